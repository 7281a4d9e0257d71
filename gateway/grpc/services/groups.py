"""Serves the members' part of Groups over gRPC: calls to the group's coordinator.

  from a client ─▶ forwarded to the coordinator, without the topics that the client may not name ─▶ its answer
  forwarded, or coordinated here ─▶ groups/coordinator.py; NOT_COORDINATOR names the coordinator if this broker knows it

Joins and syncs wait for other members as long as their client does. A client that disconnects ends its wait at the coordinator, and
a
broker that stops ends all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, TypeVar

from google.protobuf.message import Message

from gateway.access.authorization import (
    check_group,
    check_topic,
    is_guarded,
    may_see_topic,
    note_commit_by_hand,
    note_parts,
    note_resource,
)
from gateway.access.refusals import settle_group, settle_topics
from gateway.api import BrokerApi
from gateway.concurrency.offload import LoopYielder, map_yielding
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.groups.member_rights import present_member
from gateway.groups.router import ANSWER_S, SEEN_BROKERS, wait_timeout_s
from gateway.grpc.calls import Context, MethodHandler, client_host, is_forwarded, unary, unary_in_context
from gateway.proto import group_messages as wire
from gateway.proto import groups_pb2
from gateway.proto.consumer_messages import asked_to_beat, heartbeat_response
from gateway.proto.status import to_status
from gateway.topics.names import (
    NamedPartition,
    NamedTopic,
    catch_up_to_commit,
    catch_up_with_names,
    resolve_partitions,
    topics_named,
)
from metadata.errors import InvalidArgument, NotCoordinator, TidelogError
from metadata.groups.model import Generation, InstanceId, MemberId, shown
from metadata.groups.offsets import CommittedOffset
from metadata.model import TopicPartition

# Largest number of offsets in one commit, and of partitions in one fetch.
OFFSETS_MAX: Final = 10_000
LEAVING_MAX: Final = 1_000
# Calls that are counted apart from all others (grpc/server.py): a rebalance of many members must not exclude producers.
WAITING: Final = frozenset({"JoinGroup", "SyncGroup"})
_Answer = TypeVar("_Answer", bound=Message)


class GroupsService:
    """Answers members' calls if this broker coordinates the group, and otherwise forwards them to the coordinator."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits) -> None:
        self._broker = broker
        self._waits = waits

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "FindCoordinator": unary(groups_pb2.FindCoordinatorRequest, self.find_coordinator),
            "JoinGroup": unary_in_context(groups_pb2.JoinGroupRequest, self.join),
            "SyncGroup": unary_in_context(groups_pb2.SyncGroupRequest, self.sync),
            "Heartbeat": unary_in_context(groups_pb2.HeartbeatRequest, self.heartbeat),
            "ConsumerHeartbeat": unary_in_context(groups_pb2.ConsumerHeartbeatRequest, self.consumer_heartbeat),
            "LeaveGroup": unary_in_context(groups_pb2.LeaveGroupRequest, self.leave),
            "OffsetCommit": unary_in_context(groups_pb2.OffsetCommitRequest, self.commit),
            "OffsetFetch": unary_in_context(groups_pb2.OffsetFetchRequest, self.fetch_offsets),
            SEEN_BROKERS: unary(groups_pb2.SeenBrokersRequest, self.seen_brokers),
            "ListLagSamples": unary(groups_pb2.ListLagSamplesRequest, self.list_lag_samples),
        }

    async def find_coordinator(self, request: groups_pb2.FindCoordinatorRequest) -> Message:
        await settle_group(request.group)
        check_group(request.group)
        found = self._broker.groups.coordinator(request.group)
        return groups_pb2.FindCoordinatorResponse(
            broker_id=found.broker_id, http_address=found.http_address, grpc_address=found.grpc_address
        )

    async def join(self, request: groups_pb2.JoinGroupRequest, context: Context) -> Message:
        if not is_forwarded(context):
            request.client_host = client_host(context)

        async def here() -> groups_pb2.JoinGroupResponse:
            asked = wire.asked_to_join(request)
            return wire.join_response(await self._broker.coordinated_groups.join(request.group, asked))

        timeout_s = wait_timeout_s(request.rebalance_timeout_ms)
        return await self._answered(context, "JoinGroup", request, groups_pb2.JoinGroupResponse, here, timeout_s)

    async def sync(self, request: groups_pb2.SyncGroupRequest, context: Context) -> Message:
        async def here() -> groups_pb2.SyncGroupResponse:
            asked = wire.asked_to_sync(request)
            return wire.sync_response(await self._broker.coordinated_groups.sync(request.group, asked))

        return await self._answered(context, "SyncGroup", request, groups_pb2.SyncGroupResponse, here, wait_timeout_s())

    async def heartbeat(self, request: groups_pb2.HeartbeatRequest, context: Context) -> Message:
        async def here() -> groups_pb2.HeartbeatResponse:
            await self._broker.coordinated_groups.heartbeat(request.group, *_member(request))
            return groups_pb2.HeartbeatResponse()

        return await self._answered(context, "Heartbeat", request, groups_pb2.HeartbeatResponse, here)

    async def consumer_heartbeat(self, request: groups_pb2.ConsumerHeartbeatRequest, context: Context) -> Message:
        if not is_forwarded(context):
            request.client_host = client_host(context)
            await settle_topics(request.topics.names)
            for name in request.topics.names:
                check_topic(name)

        async def here() -> groups_pb2.ConsumerHeartbeatResponse:
            asked = asked_to_beat(request)._replace(principal=present_member())
            return heartbeat_response(await self._broker.coordinated_groups.beat(request.group, asked))

        return await self._answered(context, "ConsumerHeartbeat", request, groups_pb2.ConsumerHeartbeatResponse, here)

    async def leave(self, request: groups_pb2.LeaveGroupRequest, context: Context) -> Message:
        _check_count("members", len(request.members), 1, LEAVING_MAX)

        async def here() -> groups_pb2.LeaveGroupResponse:
            errors = await self._broker.coordinated_groups.leave(request.group, wire.asked_to_leave(request))
            return groups_pb2.LeaveGroupResponse(errors=wire.statuses(errors))

        return await self._answered(context, "LeaveGroup", request, groups_pb2.LeaveGroupResponse, here)

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, request: groups_pb2.OffsetCommitRequest, context: Context) -> Message:
        _check_count("offsets", len(request.offsets), 1, OFFSETS_MAX)
        await _check_once(request.offsets)

        if not request.member_id:
            note_commit_by_hand(request.group)
        await settle_group(request.group)
        check_group(request.group)
        refused = {} if is_forwarded(context) else await _refused_topics(each.topic for each in request.offsets)
        asked = request
        if refused:
            asked = groups_pb2.OffsetCommitRequest()
            asked.CopyFrom(request)
            del asked.offsets[:]
            asked.offsets.extend(each for each in request.offsets if each.topic not in refused)

        async def here() -> groups_pb2.OffsetCommitResponse:
            return groups_pb2.OffsetCommitResponse(errors=await map_yielding(wire.status, await self._commit(asked)))

        if not request.member_id and is_forwarded(context):  # its topics were checked at the other broker
            for topic in dict.fromkeys(each.topic for each in asked.offsets):
                note_resource("topic", topic)
        answer = groups_pb2.OffsetCommitResponse()
        if asked.offsets:
            answer = await self._answered(context, "OffsetCommit", asked, groups_pb2.OffsetCommitResponse, here)
        if not request.member_id:
            note_parts(wire.errors_of(answer.errors, len(asked.offsets)))
        if not refused:
            return answer
        coordinator_errors = iter(wire.errors_of(answer.errors, len(asked.offsets)))
        errors = [refused[each.topic] if each.topic in refused else next(coordinator_errors) for each in request.offsets]
        return groups_pb2.OffsetCommitResponse(errors=await map_yielding(wire.status, errors))

    async def _commit(self, request: groups_pb2.OffsetCommitRequest) -> list[TidelogError | None]:
        """Commits offsets. Returns the error of each, in order; None if it is committed."""
        if not all(each.topic_id for each in request.offsets):
            await catch_up_to_commit(self._broker)
        named = await map_yielding(lambda each: NamedPartition(each.topic, each.partition, each.topic_id), request.offsets)
        partitions = await resolve_partitions(self._broker, named)
        asked = await map_yielding(wire.offset_to_commit, request.offsets)
        offsets = {
            partition: offset for partition, offset in zip(partitions, asked, strict=True) if isinstance(partition, TopicPartition)
        }
        refused = await self._broker.coordinated_groups.commit(
            request.group, *_member(request), offsets, only_forward=request.only_forward
        )
        return [partition if isinstance(partition, TidelogError) else refused.get(partition) for partition in partitions]

    async def fetch_offsets(self, request: groups_pb2.OffsetFetchRequest, context: Context) -> Message:
        _check_count("topics", sum(max(1, len(topic.partitions)) for topic in request.topics), 0, OFFSETS_MAX)
        _check_whole_once(request.topics)
        if not is_forwarded(context):
            request.of_unknown_topics = False  # a client receives only topics that it may see
        await settle_group(request.group)
        check_group(request.group)
        refused = {} if is_forwarded(context) else await _refused_topics(each.topic for each in request.topics)
        asked = groups_pb2.OffsetFetchRequest(
            group=request.group,
            of_unknown_topics=request.of_unknown_topics,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
        )
        asked.topics.extend(each for each in request.topics if each.topic not in refused)

        async def here() -> groups_pb2.OffsetFetchResponse:
            stored = await self._broker.coordinated_groups.offsets(asked.group, MemberId(asked.member_id), asked.member_epoch)
            stored_offsets: dict[TopicPartition, CommittedOffset | TidelogError] = {**stored.committed, **stored.damaged}
            if not asked.of_unknown_topics:  # the broker that forwards this looks up the names
                await catch_up_with_names(self._broker, stored_offsets)
            found = (
                await self._asked_for(asked.topics, stored_offsets)
                if asked.topics
                else await self._all(stored_offsets, of_unknown_topics=asked.of_unknown_topics)
            )
            return groups_pb2.OffsetFetchResponse(offsets=found)

        answer = groups_pb2.OffsetFetchResponse()
        if asked.topics or not request.topics:  # a request without topics asks for all
            answer = await self._answered(context, "OffsetFetch", asked, groups_pb2.OffsetFetchResponse, here)
        if not is_forwarded(context) and not request.topics and is_guarded():  # the coordinator does not know the client's rights
            seen = [each for each in answer.offsets if may_see_topic(each.topic)]
            answer = groups_pb2.OffsetFetchResponse(offsets=seen)
        for each in request.topics:
            if each.topic in refused:
                error = to_status(refused[each.topic])
                for partition in each.partitions or [-1]:
                    answer.offsets.add(topic=each.topic, partition=partition, error=error)
        return answer

    async def _all(
        self, committed: Mapping[TopicPartition, CommittedOffset | TidelogError], *, of_unknown_topics: bool
    ) -> list[groups_pb2.FetchedOffset]:
        """Returns the offsets of topics that this broker knows and the caller may see. With `of_unknown_topics` also those of other
        topics, without names, for a broker that may know them."""
        names = {topic.id: topic.name for topic in self._broker.topic_cache.topics()}
        yielder, found = LoopYielder(), list[groups_pb2.FetchedOffset]()
        for at, each in committed.items():
            name = names.get(at.topic_id)
            if of_unknown_topics if name is None else may_see_topic(name):
                found.append(wire.fetched_offset(name or "", at, each))
            await yielder.step()
        return found

    async def _asked_for(
        self, asked: Sequence[groups_pb2.TopicPartitions], committed: Mapping[TopicPartition, CommittedOffset | TidelogError]
    ) -> list[groups_pb2.FetchedOffset]:
        """Returns each named partition, also without a committed offset; for a topic without named ones, all with an offset."""
        topics = await topics_named(self._broker, [NamedTopic(each.topic, each.topic_id) for each in asked])
        numbers: dict[str, list[int]] = {}
        for at in sorted(committed):
            numbers.setdefault(at.topic_id, []).append(at.partition)
        named = [
            NamedPartition(each.topic, partition, each.topic_id)
            for each, topic in zip(asked, topics, strict=True)
            if not isinstance(topic, TidelogError)
            for partition in list(each.partitions) or numbers.get(topic.id, [])
        ]
        found = [
            groups_pb2.FetchedOffset(topic=each.topic, partition=partition, error=to_status(topic))
            for each, topic in zip(asked, topics, strict=True)
            if isinstance(topic, TidelogError)
            for partition in each.partitions or [-1]
        ]
        yielder = LoopYielder()
        for name, partition in zip(named, await resolve_partitions(self._broker, named), strict=True):
            if isinstance(partition, TidelogError):
                found.append(groups_pb2.FetchedOffset(topic=name.topic, partition=name.partition, error=to_status(partition)))
            else:
                found.append(wire.fetched_offset(name.topic, partition, committed.get(partition)))
            await yielder.step()
        return found

    async def seen_brokers(self, _: groups_pb2.SeenBrokersRequest) -> Message:
        """Answers brokers that cannot reach the metadata store."""
        here = self._broker.groups.view.here
        return wire.seen_brokers(here.revisions, here.revision, here.proven_s_ago)

    async def list_lag_samples(self, request: groups_pb2.ListLagSamplesRequest) -> Message:
        """Answers brokers whose clients look at the lag of groups."""
        return await self._broker.lag_history.answer(request)

    # ── here, or at the coordinator ─────────────────────────────────────────────────────────────────────────────────────

    async def _answered(
        self,
        context: Context,
        method: str,
        request: _Asked,
        answer_type: type[_Answer],
        here: Callable[[], Awaitable[_Answer]],
        timeout_s: float = ANSWER_S,
    ) -> _Answer:
        await settle_group(request.group)
        check_group(request.group)
        groups = self._broker.groups
        waits: AbstractAsyncContextManager[None] = self._waits.until_stop() if method in WAITING else nullcontext()
        async with waits:
            try:
                if is_forwarded(context):
                    groups.check_here(request.group)
                else:
                    answer = await groups.forward(request.group, method, request, answer_type, timeout_s)
                    if answer is not None:
                        return answer
                return await here()
            except NotCoordinator as error:
                raise groups.named(request.group, error) from None


_Asked = (
    groups_pb2.JoinGroupRequest
    | groups_pb2.SyncGroupRequest
    | groups_pb2.HeartbeatRequest
    | groups_pb2.ConsumerHeartbeatRequest
    | groups_pb2.LeaveGroupRequest
    | groups_pb2.OffsetCommitRequest
    | groups_pb2.OffsetFetchRequest
)


async def _refused_topics(names: Iterable[str]) -> dict[str, TidelogError]:
    """Returns the topics that the present call may not name, each with its error. The broker that a client asks checks this,
    because the coordinator accepts every call that another broker forwards."""
    refused: dict[str, TidelogError] = {}
    if is_guarded():
        named = list(dict.fromkeys(names))
        await settle_topics(named)
        for name in named:
            try:
                check_topic(name)
            except TidelogError as error:
                refused[name] = error.with_traceback(None)
    return refused


def _member(request: groups_pb2.HeartbeatRequest | groups_pb2.OffsetCommitRequest) -> tuple[MemberId, InstanceId, Generation]:
    return MemberId(request.member_id), InstanceId(request.instance_id), Generation(request.generation)


def _check_count(field: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        raise InvalidArgument(f"{field} has {count} entries; {least} to {most} are taken", field=field)


def _check_whole_once(topics: Sequence[groups_pb2.TopicPartitions]) -> None:
    """Refuses a topic that is named twice without partitions; otherwise a short request could have an answer without bound."""
    seen: set[tuple[str, str]] = set()
    for index, each in enumerate(topics):
        if each.partitions:
            continue
        if (whole := (each.topic, each.topic_id)) in seen:
            raise InvalidArgument(f"all partitions of topic {shown(each.topic)} are requested twice", field=f"topics[{index}]")
        seen.add(whole)


async def _check_once(offsets: Sequence[groups_pb2.CommittedOffset]) -> None:
    seen, yielder = set[tuple[str, int]](), LoopYielder()
    for index, each in enumerate(offsets):
        partition = (each.topic, each.partition)
        if partition in seen:
            raise InvalidArgument(
                f"partition {each.partition} of topic {shown(each.topic)} is committed twice in one request",
                hint="Commit the later offset only.",
                field=f"offsets[{index}]",
            )
        seen.add(partition)
        await yielder.step()
