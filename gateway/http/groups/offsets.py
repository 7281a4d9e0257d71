"""Commits, lists and deletes the offsets of a group.

    POST   …/members/{m}/offsets    {"generation", "offsets"} or {"generation", "cursor"}: commits as a member
    POST   …/offsets                commits by hand, for a group without members
    GET    …/offsets                lists committed offsets
    DELETE …/offsets?topic=…        deletes them, for a group without members

Results of single offsets carry their errors, as those of a produce request do. A member that may not commit at all is refused as a
whole. Invariants: an offset is committed for the topic id that the client names, if it names one. A cursor commits only forward
within its generation; only named offsets may lower a committed one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET

from gateway.access.authorization import check_topic, may_read_topic, may_see_topic, note_commit_by_hand, note_parts
from gateway.access.refusals import settle_topic
from gateway.api import BrokerApi
from gateway.concurrency.coordinator_retry import retry_coordinator
from gateway.http.groups.bodies import (
    Commit,
    CommitAnswer,
    CommittedAnswer,
    DeletedAnswer,
    MemberCommit,
    NewOffset,
    OffsetAnswer,
    OffsetsAnswer,
)
from gateway.http.groups.cursor import Cursor, CursorOwner, decode_cursor, encode_cursor
from gateway.http.groups.request import GroupRequest, MemberIdentity, check_generation, numbers_of
from gateway.http.problem_details import error_members
from gateway.http.request import TRUE_OR_FALSE
from gateway.http.struct_body import decode_body
from gateway.proto import groups_pb2
from gateway.proto.values import value_of
from gateway.topics.names import LOOKUP_S, NamedPartition, catch_up_to_commit, catch_up_with_names, resolve_partitions
from metadata.errors import InvalidArgument, TidelogError, UnknownTopic
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER, Generation, InstanceId
from metadata.groups.offsets import CommittedOffset
from metadata.model import TopicPartition
from metadata.topics.topic import Topic


class HttpGroupOffsets:
    """Handles requests about committed offsets."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def commit(self, call: GroupRequest) -> None:
        call.query()
        body = decode_body(call.body, MemberCommit)
        member = MemberIdentity(call.group, call.member_id, InstanceId(body.instance_id), Generation(body.generation))
        if (body.offsets is UNSET) == (body.cursor is UNSET):
            raise InvalidArgument("a commit has either offsets or a cursor", hint="Send one of both.")
        with call.with_hints():
            if body.offsets is not UNSET:
                await call.answer(CommitAnswer(offsets=await self._commit(member, body.offsets)))
            elif body.cursor is not UNSET:
                owner = CursorOwner(self._broker.cluster_id, call.group, call.member_id)
                cursor = decode_cursor(body.cursor, owner)
                check_generation(cursor, member)
                # The client may leave the group after this answer, so nothing may be left for a later request.
                await self._broker.topic_cache.hear_of(cursor.uncommitted, timeout_s=LOOKUP_S)
                cursor, answers = await self.commit_cursor(member, cursor)
                await call.answer(CommitAnswer(offsets=answers, cursor=encode_cursor(cursor, owner)))

    async def commit_by_hand(self, call: GroupRequest) -> None:
        call.query()
        note_commit_by_hand(call.group)
        body = decode_body(call.body, Commit)
        no_member = MemberIdentity(call.group, NO_MEMBER, NO_INSTANCE, NO_GENERATION)
        await call.answer(CommitAnswer(offsets=await self._commit(no_member, body.offsets)))

    async def commit_cursor(self, member: MemberIdentity, cursor: Cursor) -> tuple[Cursor, list[OffsetAnswer]]:
        """Commits the positions of the cursor, unless a later offset was committed in the same generation.

        So a late repetition lowers nothing. Returns the cursor with the entries that are still uncommitted: refused ones, those of
        topics that this broker does not know yet, and those of topics that the caller may not read.
        """
        known = {partition: topic for partition in cursor.uncommitted if (topic := self._topic(partition)) is not None}
        topics = {partition: topic for partition, topic in known.items() if may_read_topic(topic.name)}
        offsets = {partition: _committed(offset) for partition, offset in cursor.uncommitted.items() if partition in topics}
        refused = await self._committed(member, offsets, only_forward=True)
        entries = {
            partition: entry._replace(must_stay=False) if partition in offsets and partition not in refused else entry
            for partition, entry in cursor.entries.items()
        }
        answers = [
            _offset_answer(topics[partition].name, partition.partition, offsets[partition].offset, refused.get(partition))
            for partition in offsets
        ]
        return cursor._replace(entries=entries), answers

    async def _commit(self, member: MemberIdentity, new_offsets: Sequence[NewOffset]) -> list[OffsetAnswer]:
        """Commits the offsets, and returns a result for each in their order."""
        if not all(offset.topic_id for offset in new_offsets):
            await catch_up_to_commit(self._broker)
        names = [NamedPartition(offset.topic, offset.partition, offset.topic_id) for offset in new_offsets]
        found = await resolve_partitions(self._broker, names)
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for at, (partition, offset) in enumerate(zip(found, new_offsets, strict=True)):
            if isinstance(partition, TidelogError):
                continue
            if partition in offsets:
                raise InvalidArgument(
                    f"partition {offset.partition} of topic {offset.topic} is named twice",
                    hint="Commit each once.",
                    field=f"offsets[{at}]",
                )
            offsets[partition] = _committed(offset.offset, offset.leader_epoch, offset.metadata)
        refused = await self._committed(member, offsets)
        errors = [_refusal(partition, refused) for partition in found]
        note_parts(errors)
        return [
            _offset_answer(offset.topic, offset.partition, offset.offset, error)
            for offset, error in zip(new_offsets, errors, strict=True)
        ]

    async def _committed(
        self, member: MemberIdentity, offsets: Mapping[TopicPartition, CommittedOffset], *, only_forward: bool = False
    ) -> Mapping[TopicPartition, TidelogError]:
        group, member_id, instance_id, generation = member
        return await retry_coordinator(
            lambda: self._broker.groups.commit(group, member_id, instance_id, generation, offsets, only_forward=only_forward)
        )

    def _topic(self, partition: TopicPartition) -> Topic | None:
        """Returns the topic of a partition; None if it was deleted or is unknown here, or if the caller may not see it."""
        try:
            topic = self._broker.topic_cache.by_id(partition.topic_id)
        except UnknownTopic:
            return None
        return topic if may_see_topic(topic.name) else None

    # ── list, delete ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_offsets(self, call: GroupRequest) -> None:
        """Lists committed offsets of existing topics; those of deleted ones have no meaning."""
        query = call.query("topic")
        only = query.text("topic")
        await catch_up_with_names(self._broker)
        found = await retry_coordinator(lambda: self._broker.groups.offsets(call.group))
        offsets = [
            CommittedAnswer(
                topic.name,
                topic.id,
                partition.partition,
                committed.offset,
                committed.leader_epoch,
                committed.metadata,
                committed.committed_at_ms,
            )
            for partition, committed in found.committed.items()
            if (topic := self._topic(partition)) is not None and only in {"", topic.name}
        ]
        errors = [
            _offset_answer(topic.name, partition.partition, -1, error)
            for partition, error in found.damaged.items()
            if (topic := self._topic(partition)) is not None and only in {"", topic.name}
        ]
        offsets.sort(key=lambda offset: (offset.topic, offset.partition))
        await call.answer(OffsetsAnswer(offsets, errors=errors or UNSET))

    async def delete(self, call: GroupRequest) -> None:
        query = call.query("topic", "partitions", "validate_only")
        call.refuse_body()
        if "topic" not in query:
            raise InvalidArgument(
                "the topic is missing", hint=f"Add topic=NAME; DELETE {call.path} deletes the group with all its offsets."
            )
        await settle_topic(query.text("topic"))
        check_topic(query.text("topic"))
        topic = groups_pb2.TopicPartitions(topic=query.text("topic"), partitions=numbers_of(query, "partitions"))
        validate_only = query.choice("validate_only", TRUE_OR_FALSE) or False
        request = groups_pb2.DeleteOffsetsRequest(group=call.group, topics=[topic], validate_only=validate_only)
        answer = await retry_coordinator(lambda: self._broker.group_operations.delete_offsets(request))
        await call.answer(DeletedAnswer([value_of(offset, CommittedAnswer) for offset in answer.deleted]))


def _committed(offset: int, leader_epoch: int = -1, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(offset=offset, leader_epoch=leader_epoch, metadata=metadata, committed_at_ms=0)


def _refusal(partition: TopicPartition | TidelogError, refused: Mapping[TopicPartition, TidelogError]) -> TidelogError | None:
    return partition if isinstance(partition, TidelogError) else refused.get(partition)


def _offset_answer(topic: str, partition: int, offset: int, error: TidelogError | None) -> OffsetAnswer:
    if error is None:
        return OffsetAnswer(topic, partition, offset)
    return OffsetAnswer(topic, partition, error=error_members(error))
