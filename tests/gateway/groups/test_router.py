"""Any broker takes any member's call; the group's coordinator answers it, after one hop at the most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from gateway.broker.broker import Broker
from gateway.cluster.view import partitions_of
from gateway.proto import groups_pb2
from gateway.routing.peer_channels import FORWARDED_BY
from metadata.errors import (
    InvalidGroupName,
    NoCoordinator,
    NotCoordinator,
    OutcomeUnknown,
    Stopping,
    TidelogError,
    UnknownMember,
    UnknownTopic,
)
from metadata.groups.model import (
    NO_GENERATION,
    NO_INSTANCE,
    NO_MEMBER,
    InstanceId,
    JoinRequest,
    MemberId,
    Protocol,
    SyncRequest,
)
from metadata.groups.offsets import CommittedOffset
from metadata.model import Partition, TopicId, TopicPartition
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.group_calls import SESSION_MS, GroupCalls, answered_by_the_next, offset, refused
from tests.kit.gateway.small_broker import until
from tests.kit.gateway.stubs import groups_stub

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Group:
    """One that is coordinated by the first of these brokers, which all three see so."""

    name: str
    at: Broker
    others: tuple[Broker, Broker]
    # Through each broker, by its id.
    calls: dict[str, GroupCalls]

    @property
    def brokers(self) -> tuple[Broker, ...]:
        return (self.at, *self.others)

    @property
    def members(self) -> int:
        """That its coordinator has in memory."""
        return len(dict(self.at.coordinated_groups.groups())[self.name].members)

    def through(self, broker: Broker) -> GroupCalls:
        return self.calls[broker.broker_id]


@asynccontextmanager
async def a_group(cluster: Cluster) -> AsyncIterator[Group]:
    """Of which the second broker is the coordinator."""
    topic = await cluster.brokers[0].create_topic("orders", 3)
    for broker in cluster.brokers:
        assert await broker.topic_cache.wait_for(topic.revision, timeout_s=60)
    first, at, third = cluster.brokers
    name = next(name for name in map(str, range(100)) if first.groups.coordinator(name).broker_id == at.broker_id)
    channels = {
        broker.broker_id: grpc.aio.insecure_channel(broker.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)])
        for broker in cluster.brokers
    }
    try:
        calls = {broker_id: GroupCalls(channel, name) for broker_id, channel in channels.items()}
        yield Group(name, at, (first, third), calls)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))


def with_group(tmp_path: Path, scenario: Callable[[Group], Awaitable[None]]) -> None:
    async def run(cluster: Cluster) -> None:
        async with a_group(cluster) as group:
            await scenario(group)

    with_cluster(tmp_path, run, count=3)


async def stable(group: Group) -> dict[str, int]:
    """A generation with a member through each broker: the place of each id in `group.brokers`."""
    await asyncio.gather(*(group.through(broker).offsets() for broker in group.brokers))  # so that all are connected
    joined = await asyncio.gather(*(group.through(broker).join() for broker in group.brokers))
    assert {(each.generation, each.leader) for each in joined} == {(1, joined[0].leader)}
    index_of = {each.member_id: index for index, each in enumerate(joined)}
    synced = await asyncio.gather(
        *(
            group.through(broker).sync(at, 1, {each: each.encode() for each in index_of} if at == joined[0].leader else None)
            for broker, at in zip(group.brokers, index_of, strict=True)
        )
    )
    assert [each.assignment.decode() for each in synced] == list(index_of)
    return index_of


def test_members_of_one_group_join_commit_and_leave_through_whichever_broker_they_ask(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        members = await stable(group)
        for broker in group.brokers:
            calls = group.through(broker)
            found = await calls.find_coordinator()
            assert (found.broker_id, found.grpc_address) == (group.at.broker_id, group.at.grpc_address)
            for member in members:
                await calls.heartbeat(member, 1)
            index = group.brokers.index(broker)
            [error] = (await calls.commit(offset(index, partition=index), member_id=next(iter(members)), generation=1)).errors
            assert error.code == 0
        assert [len(broker.coordinated_groups) for broker in group.brokers] == [1, 0, 0]
        described = await group.at.coordinated_groups.describe(group.name)
        assert {member.client_host for member in described.members.values()} == {"127.0.0.1"}
        for broker in group.brokers:
            assert sorted((each.partition, each.offset) for each in (await group.through(broker).offsets()).offsets) == [
                (0, 0),
                (1, 1),
                (2, 2),
            ]
        left = await group.through(group.others[0]).leave(*members)
        assert [error.code for error in left.errors] == [0, 0, 0]
        for broker in group.brokers:
            assert isinstance(await refused(group.through(broker).heartbeat(next(iter(members)), 1)), UnknownMember)
            assert isinstance(await refused(group.through(broker).join(group="")), InvalidGroupName)

    with_group(tmp_path, scenario)


def test_members_that_join_in_process_share_a_group_with_those_over_grpc(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        topic = group.at.topic_cache.get("orders")
        p0, p1, _ = partitions_of(topic)
        gone = TopicPartition(TopicId("f" * 32), Partition(0))
        for broker in group.brokers:
            groups = broker.groups
            asked = JoinRequest(
                NO_MEMBER, NO_INSTANCE, "listener", "10.0.0.7", "consumer", (Protocol("range", b"m"),), 10_000, 10_000
            )
            joined = await groups.join(group.name, asked)
            assert [member.metadata for member in joined.members] == [b"m"]
            me, generation = joined.member_id, joined.generation
            synced = await groups.sync(group.name, SyncRequest(me, NO_INSTANCE, generation, {me: b"\x00all"}))
            assert synced.assignment == b"\x00all"
            await groups.heartbeat(group.name, me, NO_INSTANCE, generation)
            offsets = {
                p0: CommittedOffset(offset=5, leader_epoch=2, metadata="é", committed_at_ms=0),
                p1: CommittedOffset(offset=-1, committed_at_ms=0),
                gone: CommittedOffset(offset=1, committed_at_ms=0),
            }
            errors = await groups.commit(group.name, me, NO_INSTANCE, generation, offsets)
            assert {at: error.code for at, error in errors.items()} == {p1: "INVALID_ARGUMENT", gone: UnknownTopic.code}
            found = (await groups.offsets(group.name)).committed
            assert [(at, each.offset, each.leader_epoch, each.metadata) for at, each in found.items()] == [(p0, 5, 2, "é")]
            assert found[p0].committed_at_ms > 1_700_000_000_000
            back = {p0: CommittedOffset(offset=3, committed_at_ms=0)}
            assert await groups.commit(group.name, me, NO_INSTANCE, generation, back, only_forward=True) == {}
            assert (await groups.offsets(group.name)).committed[p0].offset == 5
            member = (await group.at.coordinated_groups.describe(group.name)).members[me]
            assert (member.client_host, member.client_id) == ("10.0.0.7", "listener")
            left = await groups.leave(group.name, [(me, NO_INSTANCE), (NO_MEMBER, InstanceId("unheard of"))])
            assert [error and type(error) for error in left] == [None, UnknownMember]

    with_group(tmp_path, scenario)


def test_a_call_that_was_forwarded_once_is_refused_with_the_coordinator_s_name_and_never_sent_on(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        stub = group.through(group.others[0]).stub
        forwarded = ((FORWARDED_BY, "broker-9"),)
        for call in (
            stub.JoinGroup(groups_pb2.JoinGroupRequest(group=group.name), metadata=forwarded),
            stub.SyncGroup(groups_pb2.SyncGroupRequest(group=group.name), metadata=forwarded),
            stub.Heartbeat(groups_pb2.HeartbeatRequest(group=group.name), metadata=forwarded),
            stub.OffsetFetch(groups_pb2.OffsetFetchRequest(group=group.name), metadata=forwarded),
        ):
            error = await refused(call)
            assert isinstance(error, NotCoordinator)
            assert error.details == {
                "broker_id": group.at.broker_id,
                "grpc_address": group.at.grpc_address,
                "http_address": group.at.http_address,
            }
        assert [len(broker.coordinated_groups) for broker in group.brokers] == [0, 0, 0]

    with_group(tmp_path, scenario)


def test_a_member_that_hangs_up_at_another_broker_waits_no_more_at_the_coordinator(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await stable(group)
        joining = group.through(group.others[0]).join()  # a rebalance begins, and the others do not come
        await until(lambda: group.members == 4)
        joining.cancel()
        await until(lambda: group.members == 3)  # it did not know its id, so it is gone
        assert group.at.coordinated_groups.waiting == 0

    with_group(tmp_path, scenario)


def test_the_deadline_of_a_member_holds_at_the_coordinator(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await stable(group)
        broker = group.others[0]
        request = groups_pb2.JoinGroupRequest(
            group=group.name,
            protocol_type="consumer",
            protocols=[groups_pb2.GroupProtocol(name="range")],
            session_timeout_ms=SESSION_MS,
        )
        error = None
        while error is None:
            with suppress(grpc.aio.AioRpcError):  # on a busy machine the answer may come too late for its client
                error = await refused(group.through(broker).stub.JoinGroup(request, timeout=1.0))
        assert isinstance(error, NotCoordinator)
        assert error.retryable
        await until(lambda: group.members == 3)

    with_group(tmp_path, scenario)


def test_a_coordinator_that_is_drained_gives_its_groups_up_and_the_next_one_goes_on_in_the_generation(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        members = await stable(group)
        here, there = group.others
        await group.through(here).commit(offset(7), member_id=next(iter(members)), generation=1)
        waiting = [asyncio.ensure_future(refused(group.through(broker).join())) for broker in group.brokers]
        await until(lambda: group.at.coordinated_groups.waiting == 3)
        await here.drain(group.at.broker_id, draining=True)
        for error in await asyncio.gather(*waiting):
            assert isinstance(error, NotCoordinator)
        assert len(group.at.coordinated_groups) == 0
        for broker in group.brokers:
            await until(lambda broker=broker: broker.groups.coordinator(group.name).broker_id != group.at.broker_id)  # type: ignore[misc]
        for broker in group.brokers:
            for member in members:
                await answered_by_the_next(lambda broker=broker, member=member: group.through(broker).heartbeat(member, 1))  # type: ignore[misc]
            assert [each.offset for each in (await group.through(broker).offsets()).offsets] == [7]
        now = next(broker for broker in (here, there) if len(broker.coordinated_groups))
        assert (await now.coordinated_groups.describe(group.name)).members.keys() == members.keys()
        await here.drain(group.at.broker_id, draining=False)
        for broker in group.brokers:
            await until(lambda broker=broker: broker.groups.coordinator(group.name).broker_id == group.at.broker_id)  # type: ignore[misc]
        await until(lambda: len(now.coordinated_groups) == 0)
        for member in members:
            await answered_by_the_next(lambda member=member: group.through(now).heartbeat(member, 1))  # type: ignore[misc]

    with_group(tmp_path, scenario)


def test_members_of_a_stopped_coordinator_are_answered_by_the_next_one(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        members = await stable(group)
        through_it, through_another = group.through(group.at), group.through(group.others[0])
        waiting = [asyncio.ensure_future(refused(calls.join())) for calls in (through_it, through_another)]
        await until(lambda: group.at.coordinated_groups.waiting == 2)
        group.at.stop()
        for error in await asyncio.gather(*waiting):
            assert isinstance(error, NotCoordinator | Stopping)
        for member in members:
            await answered_by_the_next(lambda member=member: through_another.heartbeat(member, 1))  # type: ignore[misc]

    with_group(tmp_path, scenario)


def test_members_come_back_to_the_next_coordinator_when_theirs_has_died(tmp_path: Path) -> None:
    """As others see it: its connections break, and its registration ends with its lease."""

    async def scenario(group: Group) -> None:
        members = await stable(group)
        first = next(iter(members))
        calls = group.through(group.others[0])
        await calls.commit(offset(7), member_id=first, generation=1)
        waiting = asyncio.ensure_future(refused(calls.join()))
        await until(lambda: group.at.coordinated_groups.waiting == 1)
        server = group.at._grpc._server
        assert server is not None
        await server.stop(None)
        assert isinstance(await waiting, NotCoordinator)
        assert isinstance(await refused(calls.heartbeat(first, 1)), NoCoordinator), "no broker listens there"
        await group.others[0].drain(group.at.broker_id, draining=True)  # in place of the end of its lease
        for member in members:
            await answered_by_the_next(lambda member=member: calls.heartbeat(member, 1))  # type: ignore[misc]
        assert [each.offset for each in (await calls.offsets()).offsets] == [7]

    with_group(tmp_path, scenario)


def test_a_commit_whose_answer_is_lost_is_an_unknown_outcome_and_a_coordinator_that_is_silent_is_left(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        calls = group.through(group.others[0])
        arrived, held = asyncio.Event(), asyncio.Event()
        commit = group.at.coordinated_groups.commit

        async def silent(*asked: object, **more: object) -> dict[TopicPartition, TidelogError]:
            arrived.set()
            await held.wait()
            return await commit(*asked, **more)  # type: ignore[arg-type]

        group.at.coordinated_groups.commit = silent  # type: ignore[method-assign]
        committing = asyncio.ensure_future(refused(calls.commit(offset(1))))
        await arrived.wait()
        await group.others[0].drain(group.at.broker_id, draining=True)
        error = await committing
        assert isinstance(error, OutcomeUnknown)
        assert not error.nothing_was_written
        held.set()
        [status] = (await calls.commit(offset(2))).errors
        assert status.code == 0
        assert [each.offset for each in (await calls.offsets()).offsets] == [2]

    with_group(tmp_path, scenario)


def test_nothing_of_a_group_is_in_memory_where_it_is_not_coordinated(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        for broker in group.others:
            error = None
            try:
                await broker.coordinated_groups.heartbeat(group.name, MemberId("m"), NO_INSTANCE, NO_GENERATION)
            except TidelogError as refusal:
                error = refusal
            assert isinstance(error, NotCoordinator)
            assert len(broker.coordinated_groups) == 0

    with_group(tmp_path, scenario)


def test_brokers_return_committed_offsets_though_the_coordinator_does_not_know_the_topic(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        topic = group.at.topic_cache.get("orders")
        p0, _, _ = partitions_of(topic)
        committed = {p0: CommittedOffset(offset=5, committed_at_ms=0)}
        other = next(broker for broker in group.brokers if broker is not group.at)
        assert await other.groups.commit(group.name, NO_MEMBER, NO_INSTANCE, NO_GENERATION, committed) == {}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(group.at.topic_cache, "topics", tuple)
            assert (await other.groups.offsets(group.name)).committed[p0].offset == 5
            asked = groups_pb2.OffsetFetchRequest(group=group.name, of_unknown_topics=True)
            for broker in group.brokers:
                async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
                    assert not (await groups_stub(channel).OffsetFetch(asked)).offsets, "a client does not receive it"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(other.topic_cache, "by_id", group.at.topic_cache.get)  # which knows names only
            assert not (await other.groups.offsets(group.name)).committed, "of a topic that is gone here"

    with_group(tmp_path, scenario)
