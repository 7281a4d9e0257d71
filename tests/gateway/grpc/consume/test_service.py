"""Consume over gRPC: requests and answers of a client without an SDK, alone and as a member of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gateway.grpc import slow_readers
from gateway.grpc.calls import Context
from gateway.grpc.consume import service as consume_service
from gateway.grpc.consume.messages import check_request
from gateway.grpc.fetch import service as fetch_service
from gateway.grpc.fetch.service import GrpcFetch
from gateway.proto import groups_pb2, log_pb2
from gateway.proto.status import from_status
from gateway.records.batch_decoder import decode_records
from gateway.records.response_budget import ResponseBudget
from gateway.routing.log_service import EpochQuestion
from gateway.settings import GatewaySettings
from metadata.errors import (
    Corrupt,
    InstanceFenced,
    InvalidArgument,
    InvalidGroupName,
    NotFound,
    OutOfRange,
    StaleMember,
    Stopping,
    TidelogError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from metadata.groups.settings import GroupSettings
from metadata.model import LeaderEpoch, Offset
from segments.settings import MIB
from segments.wal.run_index import EpochEnd
from tests.gateway.grpc.test_slow_readers import is_open
from tests.kit.gateway.consume_streams import PLENTY, ConsumeStream, GoodClient, append, start, topic_partitions
from tests.kit.gateway.group_calls import GroupCalls
from tests.kit.gateway.small_broker import GROUPS, SmallBroker, until, with_broker
from tests.kit.gateway.stalled_readers import closing, stalled_grpc
from tests.kit.gateway.stubs import log_stub
from tests.kit.segments.batches import records_in

pytestmark = pytest.mark.slow
# A message that is under way for this time waits for its client.
STALLED_S = 0.3
Scenario = Callable[[SmallBroker, grpc.aio.Channel], Awaitable[None]]


def serve(tmp_path: Path, scenario: Scenario, *, settings: GatewaySettings | None = None, groups: GroupSettings = GROUPS) -> None:
    async def with_channel(broker: SmallBroker) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            await scenario(broker, channel)

    with_broker(tmp_path, with_channel, settings=settings, groups=groups)


async def begun(channel: grpc.aio.Channel, *topics: str, credit_bytes: int = PLENTY, **more: Any) -> ConsumeStream:
    stream = ConsumeStream(channel)
    await stream.send(start=start(*topics, **more), credit_bytes=credit_bytes)
    return stream


async def committed(channel: grpc.aio.Channel, group: str = "billing") -> dict[int, int]:
    """Of the topic `orders`, by partition."""
    found = (await GroupCalls(channel, group).offsets()).offsets
    return {each.partition: each.offset for each in found if each.topic == "orders"}


async def members(channel: grpc.aio.Channel, group: str = "billing") -> list[str]:
    described = await GroupCalls(channel, group).stub.DescribeGroup(groups_pb2.DescribeGroupRequest(group=group))
    return sorted(member.client_id for member in described.members)


def partitions(*numbers: int, topic: str = "orders") -> list[groups_pb2.TopicPartitions]:
    return [groups_pb2.TopicPartitions(topic=topic, partitions=numbers)]


# ── alone ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_partitions_of_topics_are_read_and_followed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        await append(channel, b"a", b"b")
        await append(channel, b"c", partition=2)
        await append(channel, b"d", topic="single")
        stream = await begun(channel, "orders", "single")
        assert sorted(await stream.until_read(4)) == [b"a", b"b", b"c", b"d"]
        await stream.settled()
        await append(channel, b"e", partition=1)
        assert b"e" in await stream.until_read(5)
        assert stream.read["orders", 0] == [(0, b"a"), (1, b"b")]
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_ready_batches_come_with_where_to_go_on(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        await append(channel, b"a", b"b")
        stream = await begun(channel, format=log_pb2.FETCH_FORMAT_BATCHES)
        (data,) = (await stream.until("data")).partitions
        assert records_in([data.record_batches]) == [(0, b"a"), (1, b"b")]
        assert (data.topic, data.partition, data.next_offset, data.high_watermark) == ("orders", 0, 2, 2)
        assert data.leader_epoch == 7
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_partitions_begin_where_the_client_says(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for number in range(3):
            await append(channel, b"%d-0" % number, b"%d-1" % number, partition=number)
        begin = [
            log_pb2.ConsumeFrom(topic="orders", partition=0, offset=1),
            log_pb2.ConsumeFrom(topic="orders", partition=1, latest=True),
            log_pb2.ConsumeFrom(topic="orders", partition=2, timestamp_ms=1_700_000_000_001),
        ]
        stream = ConsumeStream(channel)
        asked = log_pb2.ConsumeStart(starts=begin, format=log_pb2.FETCH_FORMAT_RECORDS, heartbeat_interval_ms=100)
        await stream.send(start=asked, credit_bytes=PLENTY)
        assert sorted(await stream.until_read(2)) == [b"0-1", b"2-1"]
        await append(channel, b"1-2", partition=1)
        await stream.until_read(3)
        assert stream.read["orders", 1] == [(2, b"1-2")]
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_an_empty_partition_is_reported_at_once_and_later_progress_is_empty(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = await begun(channel, "single")
        (reported,) = (await stream.until("progress")).partitions
        assert (reported.topic, reported.partition, reported.next_offset, reported.high_watermark) == ("single", 0, 0, 0)
        assert list((await stream.until("progress")).partitions) == [], "nothing is new"
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_partitions_that_are_added_are_read_from_their_beginning(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = await begun(channel, auto_offset_reset=log_pb2.AUTO_OFFSET_RESET_LATEST)
        await stream.settled()
        await broker.alter_topic("orders", partition_count=4)
        await append(channel, b"new", partition=3)
        assert await stream.until_read(1) == [b"new"]
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_a_partition_whose_offset_is_gone_goes_on_as_its_client_chose(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        await append(channel, b"a")
        gone = log_pb2.ConsumeFrom(topic="orders", partition=0, offset=9)
        stream = await begun(channel, starts=[gone])
        assert await stream.until_read(1) == [b"a"]
        stream.call.cancel()
        other = log_pb2.ConsumeFrom(topic="orders", partition=1, offset=0)
        stream = ConsumeStream(channel)
        strict = log_pb2.ConsumeStart(starts=[gone, other], auto_offset_reset=log_pb2.AUTO_OFFSET_RESET_ERROR)
        await stream.send(start=strict, credit_bytes=PLENTY)
        (reported,) = (await stream.until("data")).partitions
        assert isinstance(from_status(reported.error), OutOfRange)
        assert reported.partition == 0
        await append(channel, b"b", partition=1)
        (reported,) = (await stream.until("data")).partitions
        assert reported.partition == 1, "the others are read on"
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_a_deleted_topic_is_reported_and_ends_a_stream_that_reads_no_other_topic(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream, other = await begun(channel, "single"), await begun(channel, "single", "orders")
        await asyncio.gather(stream.settled(), other.settled())
        await broker.delete_topic("single")
        (reported,) = (await other.until("data")).partitions
        assert isinstance(from_status(reported.error), UnknownTopic)
        assert isinstance(await stream.error(), UnknownTopic)
        await append(channel, b"a")
        assert await other.until_read(1) == [b"a"]
        other.call.cancel()

    serve(tmp_path, scenario)


def test_a_damaged_batch_stops_its_partition_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(fetched: Any, offset: int, *arguments: Any, **more: Any) -> Any:
        if b"bad" in b"".join(fetched.batches):
            raise Corrupt("a committed batch can't be opened")
        return decode_records(fetched, offset, *arguments, **more)

    monkeypatch.setattr("gateway.grpc.fetch.service.decode_records", damaged)

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for number, value in enumerate((b"a", b"bad", b"c")):
            await append(channel, value, partition=number)
        stream = await begun(channel)
        assert sorted(await stream.until_read(2)) == [b"a", b"c"]
        await append(channel, b"d", partition=2)
        await stream.until_read(3)
        assert ("orders", 1) in stream.read
        assert stream.read["orders", 1] == []
        stream.call.cancel()

    serve(tmp_path, scenario)


# ── credits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_sent_without_credit_and_a_batch_at_most_beyond_it(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for _ in range(20):
            await append(channel, *[b"x" * 100] * 10, topic="single")
        stream = await begun(channel, "single", credit_bytes=0, format=log_pb2.FETCH_FORMAT_BATCHES)
        for _ in range(3):
            await stream.until("progress")
        assert stream.delivery_id == 0
        granted, batch_bytes = 0, 1_500
        for credit in (1, 1_000, 5_000):
            granted += credit
            await stream.send(credit_bytes=credit)
            while stream.data_bytes < granted and (reported := await stream.next()) is not None:
                assert reported.WhichOneof("answer") in {"data", "progress"}
            await stream.until("progress")
            assert granted <= stream.data_bytes < granted + batch_bytes
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_a_client_that_has_no_more_to_say_reads_until_the_credits_are_used_up(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = await begun(channel, credit_bytes=10)
        await stream.call.done_writing()
        await append(channel, b"a")
        await stream.end()
        assert stream.values == [b"a"]

    serve(tmp_path, scenario)


def test_a_slow_reader_stops_only_itself_and_holds_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[ResponseBudget] = []
    monkeypatch.setattr(GrpcFetch, "__init__", remembering(rooms))

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for _ in range(30):
            await append(channel, b"x" * 500_000)
        slow = await begun(channel, max_bytes=1 << 20)
        await until(lambda: rooms[0].bytes_used > 1 << 20)
        other = await begun(channel, max_bytes=1 << 20)
        await other.until_read(30)
        await append(channel, b"last", partition=1)
        assert b"last" in await other.until_read(31)
        assert 0 < rooms[0].bytes_used <= 2 * fetch_service.COPIES << 20
        assert len(await slow.until_read(31)) == 31, "what it did not take came when it did"
        slow.call.cancel()
        other.call.cancel()
        await until(lambda: rooms[0].bytes_used == 0)

    serve(tmp_path, scenario)


def test_a_client_that_takes_nothing_at_all_is_cut_off_when_others_wait_for_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_readers, "BYTES_PER_SECOND_MIN", 100 * MIB)

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for _ in range(10):
            await append(channel, b"x" * 500_000)
        asked = log_pb2.ConsumeRequest(start=start(), credit_bytes=PLENTY)
        with closing([stalled_grpc(broker.grpc_address, asked, method="Consume") for _ in range(30)]) as stalled:
            stream = await begun(channel)
            await stream.until_read(10)
            await until(lambda: not all(is_open(reader) for reader in stalled))
            stream.call.cancel()

    serve(tmp_path, scenario, settings=GatewaySettings(answer_bytes_max=4 * MIB, answer_timeout_ms=100))


def remembering(rooms: list[ResponseBudget]) -> Callable[..., None]:
    made = GrpcFetch.__init__

    def make(endpoint: GrpcFetch, *arguments: Any) -> None:
        made(endpoint, *arguments)
        rooms.append(endpoint.room)

    return make


def test_paused_partitions_are_left_out_until_they_are_resumed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = ConsumeStream(channel)
        await stream.send(start=start(), pause=partitions(0, 1), credit_bytes=PLENTY)
        for number in range(3):
            await append(channel, b"%d" % number, partition=number)
        assert await stream.until_read(1) == [b"2"]
        await stream.settled()
        assert stream.values == [b"2"]
        await stream.send(resume=partitions(0))
        assert sorted(await stream.until_read(2)) == [b"0", b"2"]
        stream.call.cancel()

    serve(tmp_path, scenario)


# ── a member of a group ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_member_is_assigned_reads_commits_and_goes_on_there(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for number in range(3):
            await append(channel, b"%d-0" % number, b"%d-1" % number, partition=number)
        stream = await begun(channel, group="billing", client_id="c++")
        reported = await stream.until("assigned")
        assert topic_partitions(reported.partitions) == [("orders", 0), ("orders", 1), ("orders", 2)]
        assert (reported.generation, reported.member_id[:3]) == (1, "c++")
        assert await members(channel) == ["c++"]
        await stream.until_read(6)
        assert await stream.commit(7, up_to_delivery_id=stream.delivery_id) == [None] * 3
        assert await committed(channel) == {0: 2, 1: 2, 2: 2}
        mine = groups_pb2.CommittedOffset(topic="orders", partition=1, offset=1, metadata="again")
        assert await stream.commit(8, offsets=[mine]) == [None]
        await stream.send(leave=True)
        await stream.end()
        assert await members(channel) == []
        again = await begun(channel, group="billing")
        assert await again.until_read(1) == [b"1-1"]
        again.call.cancel()
        await until_left(channel)

    serve(tmp_path, scenario)


@pytest.mark.parametrize("reset", ["EARLIEST", "ERROR"])
def test_where_the_log_was_cut_below_what_is_committed_a_member_goes_on_at_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        await append(channel, b"a", b"b", b"c", topic="single")
        stream = await begun(channel, "single", group="billing")
        await stream.until_read(3)
        assert await stream.commit(7, up_to_delivery_id=stream.delivery_id) == [None]
        await stream.send(leave=True)
        await stream.end()

        async def ends(questions: Sequence[EpochQuestion], *, wait_s: float) -> list[EpochEnd]:
            return [EpochEnd(LeaderEpoch(1), Offset(1))] * len(questions)

        monkeypatch.setattr(broker.cluster_log, "ends_of_epochs", ends)
        policy = log_pb2.AutoOffsetReset.Value(f"AUTO_OFFSET_RESET_{reset}")
        again = await begun(channel, "single", group="billing", auto_offset_reset=policy)
        if reset == "EARLIEST":
            assert await again.until_read(2) == [b"b", b"c"]
        else:
            (reported,) = (await again.until("data")).partitions
            assert isinstance(from_status(reported.error), OutOfRange)
            assert "was cut at 1, below what group billing has committed (3" in reported.error.message
        again.call.cancel()
        await until_left(channel)

    serve(tmp_path, scenario)


def test_a_member_that_begins_at_the_end_skips_no_record_that_comes_while_no_stream_is_open(tmp_path: Path) -> None:
    """As one whose stream ended with its connection's age, before there was anything to commit."""

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        latest: dict[str, Any] = {"group": "billing", "auto_offset_reset": log_pb2.AUTO_OFFSET_RESET_LATEST}
        await append(channel, b"a", b"b")
        stream = await begun(channel, **latest)
        while len(await committed(channel)) < 3:  # noqa: ASYNC110  # only a call shows it
            await asyncio.sleep(0.01)
        await stream.send(leave=True)
        await stream.end()
        await append(channel, b"c")
        await append(channel, b"d", partition=1)
        stream = await begun(channel, **latest)
        assert sorted(await stream.until_read(2)) == [b"c", b"d"]
        stream.call.cancel()

    serve(tmp_path, scenario)


async def until_left(channel: grpc.aio.Channel) -> None:
    while await members(channel):  # noqa: ASYNC110  # only a call shows it
        await asyncio.sleep(0.01)


def test_a_commit_names_deliveries_one_by_one(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = await begun(channel, group="billing")
        for number in range(3):
            await append(channel, b"a", partition=number)
            await stream.until_read(number + 1)
        first_two = await stream.commit(1, up_to_delivery_id=2)
        assert first_two == [None, None]
        assert await committed(channel) == {0: 1, 1: 1}
        assert await stream.commit(2, up_to_delivery_id=2) == [], "they are committed"
        assert await stream.commit(3, up_to_delivery_id=3) == [None]
        await stream.send(commit=log_pb2.ConsumeCommit(up_to_delivery_id=4))
        error = await stream.error()
        assert (type(error), error.details["field"]) == (InvalidArgument, "commit.up_to_delivery_id")

    serve(tmp_path, scenario)


def test_refused_commits_are_reported_in_the_order_of_the_request(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = await begun(channel, group="billing")
        await stream.until("assigned")
        named = [("orders", 0, 1), ("orders", 1, -1), ("orders", 7, 1), ("single", 0, 1), ("nothing", 0, 1)]
        offsets = [groups_pb2.CommittedOffset(topic=topic, partition=at, offset=offset) for topic, at, offset in named]
        offsets.append(groups_pb2.CommittedOffset(topic="orders", partition=2, offset=1, topic_id="f" * 32))
        reported = await stream.commit(1, offsets=offsets)
        assert reported == [None, InvalidArgument, StaleMember, StaleMember, StaleMember, UnknownTopic]
        assert await committed(channel) == {0: 1}
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_two_members_share_and_the_other_reads_on_when_one_dies(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        async with asyncio.TaskGroup() as tasks, AsyncExitStack() as channels:
            clients = [
                GoodClient(await channels.enter_async_context(fresh_channel(broker)), client_id=f"client-{at}") for at in range(2)
            ]
            running = [tasks.create_task(client.run()) for client in clients]
            await until(lambda: sorted(len(client.stream.owned) for client in clients) == [1, 2])
            for number in range(3):
                await append(channel, b"%d" % number, partition=number)
            await until(lambda: sum(len(client.stream.values) for client in clients) == 3)
            while await committed(channel) != {0: 1, 1: 1, 2: 1}:  # noqa: ASYNC110  # the same
                await asyncio.sleep(0.01)
            dead, alive = clients
            running[0].cancel()
            dead.stream.call.cancel()
            await until(lambda: len(alive.stream.owned) == 3)
            for number in range(3):
                await append(channel, b"%d-again" % number, partition=number)
            await until(lambda: sum(b"again" in value for value in alive.stream.values) == 3)
            assert sorted([*dead.stream.values, *alive.stream.values]) == sorted(
                each for number in range(3) for each in (b"%d" % number, b"%d-again" % number)
            ), "what was committed is not read again"
            assert alive.lost == []
            running[1].cancel()

    serve(tmp_path, scenario)


def fresh_channel(broker: SmallBroker) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(broker.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)])


@pytest.mark.parametrize("assignors", [("cooperative-sticky",), ("range",)])
def test_rebalances_while_records_flow_repeat_nothing_and_skip_nothing(tmp_path: Path, assignors: tuple[str, ...]) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        clients: list[GoodClient] = []
        written: list[tuple[int, bytes]] = []

        async def write() -> None:
            while len(written) < 240:
                partition, value = len(written) % 3, b"%d" % len(written)
                written.append((partition, value))
                await append(channel, value, partition=partition)

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            for wanted in range(1, 4):
                clients.append(GoodClient(channel, credit_bytes=500, pause_s=0.002, assignors=assignors))
                tasks.create_task(clients[-1].run())
                await until(lambda count=wanted: sum(len(client.stream.owned) == 3 // count for client in clients) >= count - 1)  # type: ignore[misc]
            await until(lambda: [len(client.stream.owned) for client in clients] == [1, 1, 1])
            clients[0].leaving = True
            await until(lambda: sorted(len(client.stream.owned) for client in clients[1:]) == [1, 2])
            await writing
            await until(lambda: sum(len(client.stream.values) for client in clients) >= len(written))
            for client in clients[1:]:  # when it has committed what it read: else the one that stays for a moment reads that again
                client.leaving = True
        read = sorted(
            (topic_partition[1], offset, value)
            for client in clients
            for topic_partition, records in client.stream.read.items()
            for offset, value in records
        )
        assert [value for _, _, value in read] == [value for partition in range(3) for at, value in written if at == partition]
        assert [client.lost for client in clients] == [[], [], []]
        assert [client.refused for client in clients] == [[], [], []]
        assert any(client.revoked for client in clients)
        await until_left(channel)

    serve(tmp_path, scenario)


def test_an_offset_that_is_committed_before_its_partition_is_let_go_of_counts(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for number in range(3):
            await append(channel, b"%d-0" % number, b"%d-1" % number, partition=number)
        first = await begun(channel, group="billing")
        await first.until_read(6)
        async with asyncio.TaskGroup() as tasks:
            second = await begun(channel, group="billing")
            joining = tasks.create_task(second.until("assigned"))
            revoked = await first.until("revoked")
            assert revoked.within_ms > 200_000
            assert len(topic_partitions(revoked.partitions)) == 1
            assert not joining.done()
            (partition,) = topic_partitions(revoked.partitions)
            offset = groups_pb2.CommittedOffset(topic=partition[0], partition=partition[1], offset=1)
            assert await first.commit(1, offsets=[offset]) == [None]
            await first.send(released=revoked.revocation_id)
            assert topic_partitions((await joining).partitions) == [partition]
            assert await first.commit(2, offsets=[offset]) == [StaleMember]
            assert await second.until_read(1) == [b"%d-1" % partition[1]]
        first.call.cancel()
        second.call.cancel()

    serve(tmp_path, scenario)


def test_a_client_that_gives_no_credit_leaves(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = await begun(channel, group="billing", credit_bytes=0, max_poll_interval_ms=1_000)
        await stream.until("assigned")
        await stream.until("lost")
        await until_left(channel)
        await stream.send()
        await stream.until("assigned")
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_a_client_that_reads_nothing_leaves_though_it_has_credit(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for _ in range(10):
            await append(channel, b"x" * 500_000)
        fixed_window = [("grpc.http2.bdp_probe", 0)]  # else gRPC may take all of it for a client that reads nothing
        async with grpc.aio.insecure_channel(broker.grpc_address, options=fixed_window) as reading:
            stream = await begun(reading, group="billing", max_bytes=1 << 20, max_poll_interval_ms=1_000)
            await stream.until("assigned")
            await until_left(channel)
            await stream.until("lost")
            assert stream.values
            await stream.until("assigned")
            assert len(await members(channel)) == 1, "it reads again"
            stream.call.cancel()

    serve(tmp_path, scenario)


def test_a_client_that_takes_nothing_leaves_and_joins_again_when_it_says_something(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for number in range(3):
            await append(channel, b"%d" % number, partition=number)
        idle = await begun(channel, group="billing", credit_bytes=1, max_bytes=1, max_poll_interval_ms=600)
        await idle.until_read(1)
        assert len(topic_partitions((await idle.until("lost")).partitions)) == 3
        await until_left(channel)
        await idle.send(credit_bytes=PLENTY)
        await idle.until("assigned")
        await idle.until_read(4)
        for _ in range(6):
            await idle.until("progress")
        assert len(idle.owned) == 3, "who waits for records is not idle"
        idle.call.cancel()

    serve(tmp_path, scenario)


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_client_that_does_not_let_go_in_time_loses_it(tmp_path: Path, assignor: str) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        terms: dict[str, Any] = {"group": "billing", "max_poll_interval_ms": 1_500, "assignors": [assignor]}
        stubborn = await begun(channel, **terms)
        await stubborn.until("assigned")
        other = await begun(channel, **terms)
        revoked = await stubborn.until("revoked")
        assert 0 < revoked.within_ms < 1_500
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(other.until("assigned"))
            assert topic_partitions((await stubborn.until("lost")).partitions) == topic_partitions(revoked.partitions)
            assert await joining
            if assignor == "range":
                await stubborn.until("assigned")
            reading = [tasks.create_task(stream.end()) for stream in (stubborn, other)]
            await until(lambda: len(stubborn.owned | other.owned) == len(stubborn.owned) + len(other.owned) == 3)
            for each in reading:
                each.cancel()
        stubborn.call.cancel()
        other.call.cancel()

    serve(tmp_path, scenario)


def test_a_static_member_comes_back_without_a_rebalance_and_its_successor_fences_it(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        first = await begun(channel, group="billing", instance_id="one")
        assert (await first.until("assigned")).generation == 1
        first.call.cancel()
        second = await begun(channel, group="billing", instance_id="one")
        assert (await second.until("assigned")).generation == 1, "its place was kept"
        third = await begun(channel, group="billing", instance_id="one")
        await third.until("assigned")
        assert isinstance(await second.error(), InstanceFenced)
        await third.send(leave=True)
        await third.end()
        assert await members(channel) == [], "it asked to leave"

    serve(tmp_path, scenario)


def test_a_topic_that_is_made_again_is_read_from_its_beginning_by_the_group(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        await append(channel, b"a", b"b", topic="single")
        stream = await begun(channel, "single", group="billing")
        await stream.until_read(2)
        assert await stream.commit(1, up_to_delivery_id=stream.delivery_id) == [None]
        await broker.delete_topic("single")
        await broker.create_topic("single", 1)
        await append(channel, b"c", topic="single")
        await stream.until_read(3)
        assert stream.read["single", 0][-1] == (0, b"c")
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_a_coordinator_that_does_not_answer_holds_up_nothing_that_is_read_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = await begun(channel, group="billing", heartbeat_interval_ms=100)
        await append(channel, b"a")
        await stream.until_read(1)
        asked, answer, offsets = asyncio.Event(), asyncio.Event(), broker.groups.offsets

        async def late(group: str) -> Any:
            asked.set()
            await answer.wait()
            return await offsets(group)

        monkeypatch.setattr(broker.groups, "offsets", late)
        await broker.alter_topic("orders", partition_count=4)
        await append(channel, b"new", partition=3)
        assert topic_partitions((await stream.until("assigned")).partitions) == [("orders", 3)]
        await asked.wait()
        await append(channel, b"b")
        assert await stream.until_read(2) == [b"a", b"b"]
        answer.set()
        assert b"new" in await stream.until_read(3)
        stream.call.cancel()

    serve(tmp_path, scenario)


def test_auto_offset_reset_error_without_a_committed_offset_returns_not_found(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stream = await begun(channel, "single", group="billing", auto_offset_reset=log_pb2.AUTO_OFFSET_RESET_ERROR)
        (reported,) = (await stream.until("data")).partitions
        assert isinstance(from_status(reported.error), NotFound)
        stream.call.cancel()

    serve(tmp_path, scenario)


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_that_stops_lets_members_commit_and_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_service, "RELEASE_AT_STOP_S", 30.0)

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        await append(channel, b"a", b"b")
        member, alone = await begun(channel, group="billing"), await begun(channel)
        await asyncio.gather(member.until_read(2), alone.until_read(2))
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(broker.grpc.stop(60))
            revoked = await member.until("revoked")
            assert (len(topic_partitions(revoked.partitions)), revoked.within_ms) == (3, 30_000)
            assert await member.commit(1, up_to_delivery_id=member.delivery_id) == [None]
            await member.send(released=revoked.revocation_id)
            assert isinstance(await member.error(), Stopping)
            assert isinstance(await alone.error(), Stopping)
            await stopping
        held = dict(broker.coordinated_groups.groups())
        assert held["billing"].members == {}, "it has left: others need not wait for its session to end"

    serve(tmp_path, scenario)


def test_nothing_is_left_behind_by_streams_that_break(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        before = len(asyncio.all_tasks())
        streams = [await begun(channel, group="billing") for _ in range(3)] + [await begun(channel) for _ in range(3)]
        for stream in streams:
            await stream.until("progress")
        for stream in streams:
            stream.call.cancel()
        await until_left(channel)
        await until(lambda: len(asyncio.all_tasks()) <= before)

    serve(tmp_path, scenario)


def test_the_loop_of_the_guide_reads_and_commits(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[4] / "docs" / "guides" / "grpc-stream.md").read_text()
    reported: dict[str, Any] = {"log_pb2": log_pb2}
    exec(guide.partition("```python\n")[2].partition("```")[0], reported)  # our own page

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        read: list[bytes] = []

        async def work() -> None:
            with pytest.raises(grpc.aio.AioRpcError, match="shutting down"):
                await reported["work"](log_stub(channel), lambda each: read.extend(record.value for record in each.records))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(work())
            for number in range(30):
                await append(channel, b"%d" % number, partition=number % 3)
            while await committed(channel) != {0: 10, 1: 10, 2: 10}:  # noqa: ASYNC110  # only a call shows it
                await asyncio.sleep(0.01)
            await broker.grpc.stop(60)
        assert sorted(read) == sorted(b"%d" % number for number in range(30))

    serve(tmp_path, scenario)


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────────

ORDERS_0 = log_pb2.ConsumeFrom(topic="orders", offset=0)
REFUSED: list[tuple[dict[str, Any], type[TidelogError], str]] = [
    ({"start": start(group="billing", client_id="evil\u202ecod")}, InvalidArgument, "start.client_id"),
    ({"start": start(group="billing", instance_id="evil\u202ecod")}, InvalidArgument, "start.instance_id"),
    ({"start": start(client_rack="evil\u202ecod")}, InvalidArgument, "start.client_rack"),
    ({"credit_bytes": 1}, InvalidArgument, "start"),
    ({"start": log_pb2.ConsumeStart()}, InvalidArgument, "start.topics"),
    ({"start": start("orders", "orders")}, InvalidArgument, "start.topics[1]"),
    ({"start": start("orders", "nothing")}, UnknownTopic, "start.topics[1]"),
    ({"start": start(), "credit_bytes": -1}, InvalidArgument, "credit_bytes"),
    ({"start": start(auto_offset_reset=9)}, InvalidArgument, "start.auto_offset_reset"),
    ({"start": start(format=9)}, InvalidArgument, "start.format"),
    ({"start": start(heartbeat_interval_ms=1)}, InvalidArgument, "start.heartbeat_interval_ms"),
    ({"start": start(instance_id="one")}, InvalidArgument, "start.instance_id"),
    ({"start": start(session_timeout_ms=10_000)}, InvalidArgument, "start.session_timeout_ms"),
    ({"start": start(group="g", assignors=["best"])}, InvalidArgument, "start.assignors"),
    ({"start": start(group="g\n")}, InvalidGroupName, "group"),
    ({"start": start(group="g", session_timeout_ms=1)}, InvalidArgument, "session_timeout_ms"),
    ({"start": start(group="g", starts=[ORDERS_0])}, InvalidArgument, "start.starts"),
    ({"start": start(starts=[ORDERS_0, ORDERS_0])}, InvalidArgument, "start.starts[1]"),
    ({"start": start(starts=[log_pb2.ConsumeFrom(topic="orders")])}, InvalidArgument, "start.starts[0].at"),
    ({"start": start(starts=[log_pb2.ConsumeFrom(topic="orders", offset=-1)])}, InvalidArgument, "start.starts[0].offset"),
    ({"start": start(starts=[log_pb2.ConsumeFrom(topic="nothing", offset=0)])}, UnknownTopic, "start.starts[0].topic"),
    ({"start": start(starts=[log_pb2.ConsumeFrom(topic="orders", partition=3, latest=True)])}, UnknownPartition, "start.starts[0]"),
    ({"start": start(auto_offset_reset=3)}, InvalidArgument, "start.auto_offset_reset"),
    ({"start": start(), "commit": log_pb2.ConsumeCommit(up_to_delivery_id=1)}, InvalidArgument, "commit"),
    ({"start": start(), "released": 1}, InvalidArgument, "released"),
    ({"start": start(), "pause": partitions(0, topic="single")}, InvalidArgument, "pause[0].topic"),
    ({"start": start(), "resume": [groups_pb2.TopicPartitions(topic="orders")]}, InvalidArgument, "resume[0].partitions"),
]


def test_bad_first_messages_are_refused_with_the_name_of_the_field(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for message, kind, field in REFUSED:
            stream = ConsumeStream(channel)
            await stream.send(**message)
            error = await stream.error()
            assert (type(error), error.details.get("field")) == (kind, field), message
        stream = ConsumeStream(channel)
        await stream.call.done_writing()
        assert isinstance(await stream.error(), InvalidArgument)

    serve(tmp_path, scenario)


LATER: list[tuple[dict[str, Any], str]] = [
    ({"start": start()}, "start"),
    ({"credit_bytes": -5}, "credit_bytes"),
    ({"released": 1}, "released"),
    ({"commit": log_pb2.ConsumeCommit(commit_id=1)}, "commit"),
    ({"commit": log_pb2.ConsumeCommit(offsets=[groups_pb2.CommittedOffset(topic="orders")] * 2)}, "commit.offsets[1]"),
]


def test_bad_later_messages_end_the_stream_and_its_member_leaves(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for message, field in LATER:
            stream = await begun(channel, group="billing")
            await stream.until("assigned")
            await stream.send(**message)
            error = await stream.error()
            assert (type(error), error.details.get("field")) == (InvalidArgument, field), message
            await until_left(channel)
        alone = await begun(channel)
        await alone.send(commit=log_pb2.ConsumeCommit(up_to_delivery_id=1))
        assert (await alone.error()).details["field"] == "commit"

    serve(tmp_path, scenario)


def test_a_slow_client_receives_the_error_that_ended_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, under_way_since_s = asyncio.Event(), list[float]()
    begin = GrpcFetch.under_way

    def under_way(endpoint: GrpcFetch, context: Context, size_bytes: int) -> Callable[[], None]:
        taken = begin(endpoint, context, size_bytes)
        under_way_since_s.append(asyncio.get_running_loop().time())
        return taken

    monkeypatch.setattr(GrpcFetch, "under_way", under_way)

    def check(request: log_pb2.ConsumeRequest, *, first: bool, in_group: bool) -> None:
        try:
            check_request(request, first=first, in_group=in_group)
        except InvalidArgument:
            refused.set()
            raise

    monkeypatch.setattr(consume_service, "check_request", check)

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        for _ in range(30):
            await append(channel, b"x" * 500_000)
        small_windows = [
            ("grpc.http2.lookahead_bytes", 1 << 16),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        late = grpc.aio.insecure_channel(broker.grpc_address, options=small_windows)
        stream = await begun(late, max_bytes=1 << 20)
        clock = asyncio.get_running_loop().time
        await until(lambda: bool(under_way_since_s) and clock() - under_way_since_s[-1] > STALLED_S)
        await stream.send(commit=log_pb2.ConsumeCommit(up_to_delivery_id=1))
        await refused.wait()
        for _ in range(10):
            await asyncio.sleep(0)  # the stream ends
        async with asyncio.timeout(60):
            error = await stream.error()
        assert (type(error), error.details["field"]) == (InvalidArgument, "commit")
        assert 0 < len(stream.values) < 30, "they were under way when it ended"
        assert len(under_way_since_s) == 1, "gRPC ends no call at all whose first message is given up"
        await late.close()

    serve(tmp_path, scenario)


def test_a_stream_of_an_old_connection_ends_in_order_and_its_client_may_commit_before(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        await append(channel, b"a", b"b")
        stream = await begun(channel, group="billing")
        revoked = await stream.until("revoked")
        while len(stream.values) < 2:  # on a busy machine its connection may be old before anything is read
            await stream.send(released=revoked.revocation_id)
            await stream.error()
            stream = await begun(channel, group="billing")
            revoked = await stream.until("revoked")
        assert topic_partitions(revoked.partitions) == [("orders", 0), ("orders", 1), ("orders", 2)]
        assert await stream.commit(up_to_delivery_id=stream.delivery_id) == [None]
        await stream.send(released=revoked.revocation_id)
        error = await stream.error()
        assert isinstance(error, Unavailable)
        assert "has reached its age" in str(error)
        assert (await committed(channel))[0] == 2

    serve(tmp_path, scenario, settings=GatewaySettings(grpc_connection_age_ms=1_000, grpc_connection_age_grace_ms=10_000))
