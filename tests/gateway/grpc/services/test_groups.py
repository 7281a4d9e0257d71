"""Consumer groups over gRPC at one broker: requests of members, their answers, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.rpc.status_pb2 import Status

from gateway.proto import groups_pb2
from gateway.proto.status import from_status
from gateway.settings import GatewaySettings
from metadata.errors import (
    GroupFull,
    InconsistentProtocol,
    InvalidArgument,
    InvalidGroupName,
    InvalidName,
    MemberIdRequired,
    NoCoordinator,
    RebalanceInProgress,
    StaleGeneration,
    Stopping,
    Throttled,
    TidelogError,
    TooLarge,
    UnknownMember,
    UnknownPartition,
    UnknownTopic,
)
from metadata.groups.settings import GroupSettings
from tests.kit.gateway.group_calls import RANGE, GroupCalls, answered, offset, refused
from tests.kit.gateway.small_broker import GROUPS, SmallBroker, until, with_broker

pytestmark = pytest.mark.slow
Scenario = Callable[[SmallBroker, GroupCalls], Awaitable[None]]


def serve(tmp_path: Path, scenario: Scenario, *, settings: GatewaySettings | None = None, groups: GroupSettings = GROUPS) -> None:
    async def with_channel(broker: SmallBroker) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            await scenario(broker, GroupCalls(channel))

    with_broker(tmp_path, with_channel, settings=settings, groups=groups)


def reported(status: Status) -> type[TidelogError] | None:
    return type(from_status(status)) if status.code else None


def test_members_join_share_commit_and_leave(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        assert (await group.find_coordinator()).grpc_address == broker.grpc_address
        first = asyncio.ensure_future(group.join())
        second = await group.join()
        joined = [await first, second]
        assert {each.generation for each in joined} == {1}
        leader = next(each for each in joined if each.leader == each.member_id)
        ids = sorted(each.member_id for each in joined)
        assert sorted(member.member_id for member in leader.members) == ids
        assert {member.metadata for member in leader.members} == {b"orders"}
        synced = [group.sync(at, 1, {each: each.encode() for each in ids} if at == leader.leader else None) for at in ids]
        assert [(await each).assignment for each in synced] == [each.encode() for each in ids]
        await group.heartbeat(ids[0], 1)
        committed = await group.commit(
            offset(7, leader_epoch=3, metadata="m"), offset(2, partition=1), member_id=ids[0], generation=1
        )
        assert [reported(error) for error in committed.errors] == [None, None]
        left = await group.leave(ids[0], "unknown")
        assert [reported(error) for error in left.errors] == [None, UnknownMember]
        assert isinstance(await refused(group.heartbeat(ids[1], 1)), RebalanceInProgress)
        assert (await group.join(ids[1])).generation == 2

    serve(tmp_path, scenario)


def test_offsets_are_fetched_by_topic_or_all_and_none_is_distinguished_from_zero(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        topic_id = broker.topic_cache.get("orders").id
        assert list((await group.offsets()).offsets) == []
        await group.commit(offset(0), offset(9, partition=2, leader_epoch=4, metadata="mine"))
        every = {each.partition: each for each in (await group.offsets()).offsets}
        assert sorted(every) == [0, 2]
        assert (every[0].offset, every[0].leader_epoch) == (0, -1)
        assert (every[2].offset, every[2].leader_epoch, every[2].metadata, every[2].topic_id) == (9, 4, "mine", topic_id)
        asked = groups_pb2.TopicPartitions(topic="orders", partitions=[0, 1, 7])
        whole = groups_pb2.TopicPartitions(topic="orders")
        other = groups_pb2.TopicPartitions(topic="orders", partitions=[0], topic_id="f" * 32)
        gone = groups_pb2.TopicPartitions(topic="gone")
        found = (await group.offsets(asked, whole, other, gone)).offsets
        rows = [(each.partition, each.offset if each.HasField("offset") else None, reported(each.error)) for each in found]
        assert sorted(rows, key=str) == sorted(
            [
                (0, 0, None),
                (1, None, None),
                (7, None, UnknownPartition),
                (0, 0, None),
                (2, 9, None),
                (0, None, UnknownTopic),
                (-1, None, UnknownTopic),
            ],
            key=str,
        )

    serve(tmp_path, scenario)


def test_a_short_request_has_no_answer_without_end(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        await group.commit(offset(0), offset(9, partition=2))
        error = await refused(group.offsets(*[groups_pb2.TopicPartitions(topic="orders")] * 10_000))
        assert isinstance(error, InvalidArgument)
        assert error.details["field"] == "topics[1]"

    serve(tmp_path, scenario)


def test_each_offset_that_cannot_be_committed_has_an_error_of_its_own(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        committed = await group.commit(
            offset(1),
            offset(-1, partition=1),
            offset(1, partition=3),
            offset(1, partition=-1),
            offset(1, topic="gone"),
            offset(1, topic="not a name"),
            offset(1, partition=2, topic_id="f" * 32),
            offset(1, topic="single", metadata="x" * 5_000),
        )
        assert [reported(error) for error in committed.errors] == [
            None,
            InvalidArgument,
            UnknownPartition,
            UnknownPartition,
            UnknownTopic,
            InvalidName,
            UnknownTopic,
            TooLarge,
        ]
        assert from_status(committed.errors[1]).details["field"] == "offset"
        assert [(each.partition, each.offset) for each in (await group.offsets()).offsets] == [(0, 1)]

    serve(tmp_path, scenario)


def test_a_topic_that_was_deleted_and_made_again_has_no_offsets(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        before = broker.topic_cache.get("single").id
        await group.commit(offset(5, topic="single"))
        await broker.delete_topic("single")
        assert list((await group.offsets()).offsets) == []
        await broker.create_topic("single", 1)
        assert list((await group.offsets()).offsets) == []
        asked = groups_pb2.TopicPartitions(topic="single", partitions=[0])
        [found] = (await group.offsets(asked)).offsets
        assert not found.HasField("offset")
        [error] = (await group.commit(offset(6, topic="single", topic_id=before))).errors
        assert reported(error) is UnknownTopic

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("asked", "error", "field"),
    [
        ({"group": ""}, InvalidGroupName, "group"),
        ({"group": "a\nb"}, InvalidGroupName, "group"),
        ({"group": "g" * 250}, InvalidGroupName, "group"),
        ({"session_timeout_ms": 5_999}, InvalidArgument, "session_timeout_ms"),
        ({"session_timeout_ms": 1_800_001}, InvalidArgument, "session_timeout_ms"),
        ({"protocol_type": ""}, InconsistentProtocol, "protocol_type"),
        ({"protocol_type": "x" * 1_000_000}, InvalidArgument, "protocol_type"),
        ({"protocols": []}, InconsistentProtocol, "protocols"),
        ({"protocols": [RANGE, RANGE]}, InconsistentProtocol, "protocols"),
        ({"protocols": [groups_pb2.GroupProtocol(name="", metadata=b"")]}, InconsistentProtocol, "protocols"),
        ({"protocols": [groups_pb2.GroupProtocol(name="range", metadata=bytes(1 << 20))]}, TooLarge, "protocols"),
        ({"client_id": "c" * 250}, InvalidArgument, "client_id"),
        ({"instance_id": "i\x00"}, InvalidArgument, "instance_id"),
        ({"member_id": "m" * 1_000_000}, UnknownMember, None),
    ],
)
def test_a_join_that_makes_no_sense_is_refused_with_its_field(
    tmp_path: Path, asked: dict[str, Any], error: type[TidelogError], field: str | None
) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        refusal = await refused(group.join(**asked))
        assert (type(refusal), refusal.details.get("field")) == (error, field)
        assert len(refusal.message) < 500
        assert broker.coordinated_groups.waiting == 0

    serve(tmp_path, scenario)


def test_calls_with_a_wrong_member_generation_or_field_get_specific_errors(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        member, generation = await group.alone()
        outsider = "s" * 100_000
        for call in (
            group.heartbeat(outsider, generation),
            group.sync(outsider, generation),
            group.commit(offset(1), member_id=outsider, generation=generation),
            group.commit(offset(1)),
        ):
            error = await refused(call)
            assert type(error) is UnknownMember
            assert error.hint
        for call in (
            group.heartbeat(member, generation - 1),
            group.sync(member, generation + 1),
            group.commit(offset(1), member_id=member, generation=generation + 1),
        ):
            error = await refused(call)
            assert (type(error), error.details["generation"]) == (StaleGeneration, generation)
        for call in (
            group.sync(member, generation, protocol_type="connect"),
            group.sync(member, generation, protocol="x" * 100_000),
        ):
            assert type(await refused(call)) is InconsistentProtocol
        for call, field in (
            (group.commit(), "offsets"),
            (group.commit(offset(1), offset(2)), "offsets[1]"),
            (group.commit(*(offset(1, partition=number) for number in range(10_001))), "offsets"),
            (group.leave(), "members"),
            (group.offsets(groups_pb2.TopicPartitions(topic="orders", partitions=range(10_001))), "topics"),
        ):
            error = await refused(call)
            assert (type(error), error.details["field"]) == (InvalidArgument, field)
        await group.heartbeat(member, generation)

    serve(tmp_path, scenario)


def test_a_new_member_may_ask_for_its_id_first_and_a_full_group_takes_no_more(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        error = await refused(group.join(member_id_required=True, client_id=""))
        assert isinstance(error, MemberIdRequired)
        member_id = str(error.details["member_id"])
        assert isinstance(await refused(group.join()), GroupFull)
        assert (await group.join(member_id)).member_id == member_id

    serve(tmp_path, scenario, groups=GroupSettings(group_members_max=1, group_initial_rebalance_delay_ms=20))


def test_the_coordinator_keeps_the_address_of_the_client(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        member, _ = await group.alone()
        described = await broker.coordinated_groups.describe("billing")
        assert described.members[member].client_host == "127.0.0.1"  # type: ignore[index]

    serve(tmp_path, scenario)


def test_a_member_that_hangs_up_waits_no_more(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        waits = group.join()
        await until(lambda: broker.coordinated_groups.waiting == 1)
        waits.cancel()
        await until(lambda: broker.coordinated_groups.waiting == 0)
        await group.alone()
        assert len((await broker.coordinated_groups.describe("billing")).members) == 1

    serve(tmp_path, scenario, groups=GroupSettings(group_initial_rebalance_delay_ms=500, commit_linger_ms=0))


def test_waiting_joins_are_bounded_and_do_not_block_other_calls(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        waiting = [asyncio.ensure_future(group.join()) for _ in range(2)]
        await until(lambda: broker.coordinated_groups.waiting == 2)
        error = await refused(group.join())
        assert isinstance(error, Throttled)
        assert "grpc_group_waits_max" in error.message
        await group.find_coordinator()
        await group.offsets()
        for call in waiting:
            call.cancel()

    settings = GatewaySettings(grpc_streams_max=1, grpc_group_waits_max=2)
    serve(tmp_path, scenario, settings=settings, groups=GroupSettings(group_initial_rebalance_delay_ms=10_000))


def test_thousands_that_come_at_once_are_all_answered(tmp_path: Path) -> None:
    """As members do when their coordinator has gone, and who waits for as long as it takes. Of more than a thousand that wait to be
    read gRPC would cancel some."""

    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        found = await asyncio.gather(*(answered(group.find_coordinator()) for _ in range(3_000)))
        assert {answer.broker_id for answer in found} == {broker.broker_id}

    serve(tmp_path, scenario, settings=GatewaySettings(grpc_streams_max=3_000))


def test_a_stopping_listener_ends_waiting_joins_at_once(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        waits = asyncio.ensure_future(refused(group.join()))
        await until(lambda: broker.coordinated_groups.waiting == 1)
        await broker.grpc.stop(20)
        assert isinstance(await waits, Stopping)

    serve(tmp_path, scenario, groups=GroupSettings(group_initial_rebalance_delay_ms=60_000))


def test_a_broker_without_a_session_takes_no_calls_of_members(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, group: GroupCalls) -> None:
        member, generation = await group.alone()
        log, broker.present_log = broker.present_log, None
        for call in (group.heartbeat(member, generation), group.join(), group.commit(offset(1)), group.offsets()):
            assert isinstance(await refused(call), NoCoordinator)
        broker.present_log = log
        await answered(group.heartbeat(member, generation))

    serve(tmp_path, scenario)
