"""Carries out operators' calls at the group's coordinator: describes it, deletes it or its offsets, moves its offsets.

  seek    committed offsets, ends of the logs ─▶ seek.py computes the targets ─▶ committed by hand, on an empty group only

Before a change, the view of the topics catches up with the metadata store. Another broker may have created, grown or recreated a
topic that the operator names, or that the group has read.

Invariants: `validate_only` writes nothing. A seek whose target is unknown for one partition moves none. At most 128 offsets are
written at one instant: if a longer seek fails half-way, each partition says whether it was moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gateway.concurrency.offload import LoopYielder, map_yielding
from gateway.groups.admin.descriptions import assigned_partitions, sum_lags
from gateway.groups.admin.lag import GroupLag, KnownTopics, bounds_by_parts
from gateway.groups.admin.seek import SeekResult, SeekTo, check_seek, seek_target, seek_to
from gateway.groups.coordinator import GroupCoordinator, check_empty, check_unsubscribed
from gateway.proto import groups_pb2
from gateway.proto.consumer_messages import described
from gateway.proto.group_messages import fetched_offset
from gateway.proto.status import to_status
from gateway.routing.log_service import LogService
from gateway.topics.names import LOOKUP_S, check_topic_id, named, partition_of
from metadata.errors import (
    GroupNotEmpty,
    InvalidArgument,
    TidelogError,
    Unavailable,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
)
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER, Group
from metadata.groups.offsets import CommittedOffset
from metadata.groups.reconciliation.group import ReconciledGroup, state_of, type_of
from metadata.model import Partition, TopicPartition
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic
from segments.partition.partition_log import Bounds

LOOKUPS_AT_ONCE: Final = 16
# Timeout of one look-up of an offset by timestamp, which may go to the bucket.
LOOKUP_TIMEOUT_S: Final = 10.0
# Reported as the former value of a damaged offset that is deleted.
UNREADABLE: Final = CommittedOffset(offset=-1, committed_at_ms=0)
# Stands in the answer of a partition that cannot be moved.
NOWHERE: Final = SeekResult(-1)


class LocalGroupAdmin:
    """Carries out what operators ask of the groups that this broker coordinates."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        log: LogService,
        topics: TopicCache,
        *,
        broker_id: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`log` serves the whole cluster."""
        self._coordinator = coordinator
        self._log = log
        self._topics = topics
        self._broker_id = broker_id
        self.lag = GroupLag(log, topics, now_ms=now_ms)

    async def describe(self, request: groups_pb2.DescribeGroupRequest) -> groups_pb2.GroupDescription:
        """Describes the group. Raises UnknownGroup, and what keeps this broker from coordinating it.

        Raises Unavailable if this broker's view lacks topics that the group has read, and does not catch up.
        """
        group = await self._coordinator.describe(request.group)
        found = groups_pb2.GroupDescription(
            group=request.group,
            state=state_of(group),
            type=type_of(group),
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=group.leader,
            coordinator=self._broker_id,
            members=_members(group),
        )
        if not request.without_lags:
            stored = await self._coordinator.offsets(request.group)
            await self._topics.hear_of((*stored.committed, *stored.damaged), timeout_s=LOOKUP_S)
            found.lags.extend(await self.lag.lags(stored, owners(group, self._topics)))
            sum_lags(found)
        return found

    async def delete(self, request: groups_pb2.DeleteGroupRequest) -> groups_pb2.DeleteGroupResponse:
        """Deletes the group and its offsets. Raises UnknownGroup, GroupNotEmpty."""
        if request.validate_only:
            check_empty(request.group, await self._coordinator.describe(request.group))
        else:
            await self._coordinator.delete(request.group)
        return groups_pb2.DeleteGroupResponse()

    async def delete_offsets(self, request: groups_pb2.DeleteOffsetsRequest) -> groups_pb2.DeleteOffsetsResponse:
        """Returns what was committed of the named ones, of topics that no member subscribes to.

        Raises UnknownGroup, GroupNotEmpty, GroupSubscribed, UnknownTopic, UnknownPartition; Unavailable as `seek`.
        """
        name = request.group
        if not request.topics:
            raise InvalidArgument(
                "no topic is named", hint="Name the topics whose offsets to delete, or delete the group.", field="topics"
            )
        names = {each.topic for each in request.topics}
        check_unsubscribed(name, await self._coordinator.describe(name), names)
        await self._topics.catch_up_with_all(timeout_s=LOOKUP_S)
        chosen = self._chosen(request.topics)
        stored = await self._coordinator.offsets(name)
        found = {at: topic for at, topic in chosen.items() if at in stored.committed or at in stored.damaged}
        if found and not request.validate_only:
            await self._coordinator.delete_offsets(name, list(found), topics=names)
        deleted = [fetched_offset(topic.name, at, stored.committed.get(at, UNREADABLE)) for at, topic in found.items()]
        return groups_pb2.DeleteOffsetsResponse(deleted=deleted)

    async def seek(self, request: groups_pb2.SeekGroupRequest) -> groups_pb2.SeekGroupResponse:
        """Moves committed offsets and returns each move. With `validate_only` each partition has its own error; else the first one
        is raised.

        Without topics, all that the group has committed moves. A seek that names topics creates a missing group. Raises Unavailable
        if this broker's view of the topics does not catch up.
        """
        name, to = request.group, seek_to(request)
        check_seek(to)
        try:
            check_empty(name, await self._coordinator.describe(name))
        except UnknownGroup:
            if not request.topics:
                raise
        committed, damaged = await self._coordinator.offsets(name)
        await self._topics.catch_up_with_all(timeout_s=LOOKUP_S)
        chosen = self._chosen(request.topics) if request.topics else self._still_there([*committed, *damaged])
        if not chosen:
            raise InvalidArgument(
                f"group {name} has committed nothing that could be moved", hint="Name topics to seek in.", field="topics"
            )
        sought, errors = await self._sought(chosen, to, committed, damaged)
        if not request.validate_only:
            for at in chosen:
                if (error := errors.get(at)) is not None:
                    error.message = f"nothing was moved, since one partition can't be: {error.message}"
                    raise error
            offsets = {at: CommittedOffset(offset=sought[at].after, committed_at_ms=0) for at in chosen}
            try:
                errors = await self._coordinator.commit(name, NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets)
            except UnknownMember as error:
                raise GroupNotEmpty(f"group {name} has got members meanwhile") from error

        def moved(at: TopicPartition) -> groups_pb2.MovedOffset:
            return _moved(at, chosen[at], committed.get(at), sought.get(at, NOWHERE), errors.get(at))

        return groups_pb2.SeekGroupResponse(moved=await map_yielding(moved, chosen))

    async def _sought(
        self,
        chosen: Mapping[TopicPartition, Topic],
        to: SeekTo,
        committed: Mapping[TopicPartition, CommittedOffset],
        damaged: Mapping[TopicPartition, TidelogError],
    ) -> tuple[dict[TopicPartition, SeekResult], dict[TopicPartition, TidelogError]]:
        """Returns the target of each partition, or its error."""
        bounds = dict(zip(chosen, await bounds_by_parts(self._log, list(chosen)), strict=True))
        sought, errors = dict[TopicPartition, SeekResult](), dict[TopicPartition, TidelogError]()

        async def of_one(at: TopicPartition, bounds: Bounds | TidelogError) -> SeekResult:
            if isinstance(bounds, TidelogError):
                raise bounds
            if to.kind == "shift" and at in damaged:
                raise damaged[at]
            before = committed.get(at)
            of_timestamp = None
            if to.kind == "timestamp_ms":
                of_timestamp = await self._of_timestamp(at, to.value)
            return seek_target(
                to, at, bounds=bounds, committed=None if before is None else before.offset, of_timestamp=of_timestamp
            )

        waiting = iter(chosen)

        async def some() -> None:
            yielder = LoopYielder()
            for at in waiting:
                try:
                    sought[at] = await of_one(at, bounds[at])
                except TidelogError as error:
                    errors[at] = named(error.with_traceback(None), chosen[at])
                await yielder.step()

        async with asyncio.TaskGroup() as asking:
            for _ in range(min(LOOKUPS_AT_ONCE, len(chosen)) if to.kind == "timestamp_ms" else 1):
                asking.create_task(some())
        return sought, errors

    async def _of_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                found = await self._log.offset_for_timestamp(partition, timestamp_ms)
        except TimeoutError:
            raise Unavailable(f"the first record of {partition} after that time was not found in {LOOKUP_TIMEOUT_S:g} s") from None
        return None if found is None else int(found.offset)

    def _chosen(self, topics: Iterable[groups_pb2.TopicPartitions]) -> dict[TopicPartition, Topic]:
        """Returns the named partitions. Raises UnknownTopic, also for a mismatched id, and UnknownPartition."""
        found: dict[TopicPartition, Topic] = {}
        for asked in topics:
            topic = self._topics.get(asked.topic)
            check_topic_id(topic, asked.topic_id)
            found |= {partition_of(topic, number): topic for number in asked.partitions or range(topic.partition_count)}
        return found

    def _still_there(self, committed: Iterable[TopicPartition]) -> dict[TopicPartition, Topic]:
        found = {at: topic for at in committed if (topic := self.lag.topic_of(at)) is not None}
        return dict(sorted(found.items(), key=lambda item: (item[1].name, item[0])))


def owners(group: Group, topics: KnownTopics) -> dict[TopicPartition, str]:
    """Returns the member that each partition is assigned to, for assignments in the form of Kafka's consumers."""
    found: dict[TopicPartition, str] = {}
    for member in group.members.values():
        for name, numbers in assigned_partitions(group.protocol_type, member.assignment).items():
            try:
                topic = topics.get(name)
            except (UnknownTopic, InvalidArgument):
                continue
            there = range(topic.partition_count)
            found.update((TopicPartition(topic.id, Partition(number)), member.member_id) for number in numbers if number in there)
    return found


def _members(group: Group) -> list[groups_pb2.GroupMember]:
    consumers = group.consumer.members if isinstance(group, ReconciledGroup) else {}
    return [
        groups_pb2.GroupMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            metadata=member.metadata(group.protocol),
            assignment=member.assignment,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            consumer=described(consumers[member.member_id]) if member.member_id in consumers else None,
        )
        for member in group.members.values()
    ]


def _moved(
    at: TopicPartition, topic: Topic, committed: CommittedOffset | None, sought: SeekResult, error: TidelogError | None
) -> groups_pb2.MovedOffset:
    return groups_pb2.MovedOffset(
        topic=topic.name,
        topic_id=topic.id,
        partition=at.partition,
        error=None if error is None else to_status(error),
        before=None if committed is None else committed.offset,
        **sought._asdict(),
    )
