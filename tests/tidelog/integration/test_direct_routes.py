"""A client of several brokers goes to the leader of each partition; leaders that move, hang, or can't be reached from here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

import tidelog
from metadata.errors import OutcomeUnknown
from tests.kit.servers import free_port
from tests.kit.tidelog.producing import outcome_of, quick, until
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.consumer import fetcher
from tidelog.producer import sender
from tidelog.producer.producer import Delivery
from tidelog.transport import connection, routes

pytestmark = pytest.mark.slow

PARTITIONS = 4


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "SILENCE_S", 0.05)
    monkeypatch.setattr(fetcher, "SILENCE_S", 0.05)
    monkeypatch.setattr(connection, "QUESTION_S", 0.3)


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[SmallBroker, SmallBroker]]:
    """`a` leads the even partitions of orders, `b` the odd ones."""
    async with running(SmallBroker("a")) as a, running(SmallBroker("b")) as b:
        b.join(a)
        a.create_topic("orders", PARTITIONS)
        for partition in range(PARTITIONS):
            a.leaders["orders", partition] = "ab"[partition % 2]
        yield a, b


def with_two_brokers(test: Callable[[SmallBroker, SmallBroker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), two_brokers() as (a, b):
            await test(a, b)

    asyncio.run(run())


def partitions_sent_to(broker: SmallBroker) -> set[int]:
    return {append.partition for request in broker.requests for append in request.appends}


async def values(deliveries: list[Delivery]) -> list[int]:
    return [(await delivery).offset for delivery in deliveries]


# ── leaders are learnt ──


def test_records_go_to_the_leader_of_their_partition_and_are_read_there() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            for n in range(12):
                await log.produce("orders", n, partition=n % PARTITIONS)
            assert partitions_sent_to(a) == {0, 2}
            assert partitions_sent_to(b) == {1, 3}
            read = [record.json() async for record in log.consume("orders", follow=False)]
            assert sorted(read) == list(range(12))
            assert a.fetches
            assert b.fetches

    with_two_brokers(test)


def test_a_former_leader_that_forwards_is_recognised_by_the_epoch_of_its_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "SILENCE_S", 1_000.0)

    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            await log.produce("orders", 0, partition=0)
            a.forwards = True
            a.move("orders", 0, "b")
            n = 1
            while 0 not in partitions_sent_to(b):
                assert (await log.produce("orders", n, partition=0)).offset == n
                n += 1
            assert [int(value or b"") for value in a.partitions["orders", 0].values()] == list(range(n))

    with_two_brokers(test)


# ── a leader that hangs ──


@pytest.mark.parametrize("had_written", [False, True], ids=["before it wrote", "after it wrote"])
@pytest.mark.parametrize("is_seed", [False, True], ids=["another was asked first", "it was asked first"])
def test_records_for_a_leader_that_hangs_go_to_the_next_one_each_once_and_in_order(had_written: bool, is_seed: bool) -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect((b if is_seed else a).address, (a if is_seed else b).address, **quick(linger_ms=0)) as log:
            await log.produce("orders", 0, partition=1)
            (b.answering if had_written else b.running).clear()
            deliveries = [await log.send("orders", n, partition=1) for n in range(1, 4)]
            if had_written:
                await until(lambda: len(b.requests) >= 2)
            b.running.clear()
            deliveries += [await log.send("orders", n, partition=1) for n in range(4, 9)]
            asked: list[str] = []
            a.before_call = asked.append
            await until(lambda: asked.count("GetTopic") >= 2)
            assert not deliveries[0].done, "it leads still"
            b.move("orders", 1, "a")
            assert await values(deliveries) == list(range(1, 9))
            assert [int(value or b"") for value in a.partitions["orders", 1].values()] == list(range(9))
            b.running.set()
            b.answering.set()

    with_two_brokers(test)


def test_a_slow_leader_that_leads_still_is_left_alone() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            await log.produce("orders", 0, partition=1)
            asked: list[str] = []
            a.before_call = asked.append
            b.answering.clear()
            delivery = await log.send("orders", 1, partition=1)
            await until(lambda: asked.count("GetTopic") >= 3)
            b.answering.set()
            assert (await delivery).offset == 1
            assert len(b.requests) == 2, "it was not sent again"

    with_two_brokers(test)


def test_a_record_without_a_sequence_is_outcome_unknown_when_its_leader_hangs() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick(acks="none")) as log:
            await log.produce("orders", 0, partition=1)
            b.running.clear()
            delivery = await log.send("orders", 1, partition=1)
            b.move("orders", 1, "a")
            assert isinstance(await outcome_of(delivery), OutcomeUnknown)
            assert (await log.produce("orders", 2, partition=1)).offset == 1
            b.running.set()

    with_two_brokers(test)


def test_a_stream_that_a_hanging_broker_does_not_take_up_is_opened_at_the_next_leader() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            await log.produce("orders", 0, partition=0)  # the route is known
            b.running.clear()
            delivery = await log.send("orders", 1, partition=1)
            b.move("orders", 1, "a")
            assert (await delivery).offset == 0
            b.running.set()

    with_two_brokers(test)


def test_a_reader_whose_leader_hangs_reads_on_at_the_next_one() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick(fetch_wait_ms_max=20)) as log:
            await log.produce("orders", 0, partition=1)
            async with log.consume("orders", partitions=[1]) as consumer:
                assert [record.json() for record in await consumer.chunk()] == [0]
                b.running.clear()
                b.move("orders", 1, "a")
                await log.produce("orders", 1, partition=1)
                assert [record.json() for record in await consumer.chunk()] == [1]
                await until(lambda: f"fetch orders from {b.host_port}" not in {task.get_name() for task in asyncio.all_tasks()})
                b.running.set()

    with_two_brokers(test)


def test_a_client_whose_first_broker_hangs_asks_another() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, b.address, **quick()) as log:
            a.running.clear()
            for partition in (1, 3):
                assert (await log.produce("orders", 0, partition=partition)).offset == 0
            a.running.set()

    with_two_brokers(test)


# ── a leader that can't be reached from here ──


def test_records_for_a_leader_that_can_not_be_reached_go_through_another_broker_until_it_can(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "DETOUR_AGE_S", 0.02)

    async def test(a: SmallBroker, b: SmallBroker) -> None:
        a.forwards = True
        b.advertised = f"127.0.0.1:{free_port()}"
        async with tidelog.connect(a.address, **quick()) as log:
            for n in range(20):
                assert (await log.produce("orders", n, partition=1)).offset == n
            assert not b.requests
            assert len([record async for record in log.consume("orders", follow=False)]) == 20
            assert not b.fetches
            endpoint = SmallBroker("b")
            endpoint.join(a)
            endpoint.port = int(b.advertised.rpartition(":")[2])
            async with running(endpoint):
                n = 20
                while not endpoint.requests:
                    assert (await log.produce("orders", n, partition=1)).offset == n
                    n += 1
                await log.flush()
            await until(lambda: any("reached directly" in line for line in reported(caplog)))
        assert sum("leader can't be connected from here" in line for line in reported(caplog)) == 1

    with caplog.at_level(logging.WARNING, logger="tidelog"):
        with_two_brokers(test)


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tidelog"]


# ── what waits for a leader ──


async def acknowledged_where_it_is_led(log: tidelog.Client, partitions: tuple[int, ...], count: int = 5) -> None:
    for n in range(count):
        for partition in partitions:
            await log.produce("orders", n, partition=partition)


def ways(log: tidelog.Client) -> set[routes.RoutePath]:
    return set(log._producer._streams)


def test_records_forwarded_to_a_leader_that_is_gone_hold_up_nothing_of_the_broker_that_forwards() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        a.forwards = True
        a.led["orders", 1] = asyncio.Event()
        b.advertised = f"127.0.0.1:{free_port()}"
        async with tidelog.connect(a.address, **quick()) as log:
            waiting = [await log.send("orders", n, partition=1) for n in range(3)]
            await until(lambda: 1 in partitions_sent_to(a))
            await acknowledged_where_it_is_led(log, (0, 2))
            assert not waiting[0].done
            a.led["orders", 1].set()
            assert await values(waiting) == [0, 1, 2]
            assert ways(log) == {routes.RoutePath(a.host_port), routes.RoutePath(a.host_port, b.advertised)}, (
                "one more for each such leader"
            )

    with_two_brokers(test)


def test_a_lookup_of_leaders_does_not_wait_for_their_offsets() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        a.bounds_reported.clear()
        async with tidelog.connect(a.address, **quick()) as log:
            assert (await log.produce("orders", 0, partition=0)).offset == 0
        a.bounds_reported.set()

    with_two_brokers(test)


def test_a_partition_without_a_leader_does_not_delay_others_at_the_broker_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "SILENCE_S", 1_000.0)

    async def test(a: SmallBroker, b: SmallBroker) -> None:
        a.leaders["orders", 1] = ""
        a.leader_epochs["orders", 1] = routes.NO_LEADER_EPOCH
        a.forwards = True
        a.led["orders", 1] = asyncio.Event()
        async with tidelog.connect(a.address, **quick()) as log:
            waiting = await log.send("orders", 0, partition=1)
            await until(lambda: 1 in partitions_sent_to(a))
            await acknowledged_where_it_is_led(log, (0, 2))
            assert not waiting.done
            a.move("orders", 1, "a")
            a.led["orders", 1].set()
            assert (await waiting).offset == 0

    with_two_brokers(test)


def test_a_takeover_holds_up_nothing_that_the_new_leader_leads_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "SILENCE_S", 1_000.0)

    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            await acknowledged_where_it_is_led(log, (0, 1, 2, 3), count=1)
            a.led["orders", 1] = asyncio.Event()
            b.move("orders", 1, "a")
            waiting = await log.send("orders", 1, partition=1)
            await until(lambda: 1 in partitions_sent_to(a))
            await acknowledged_where_it_is_led(log, (0, 2))
            assert not waiting.done
            a.led["orders", 1].set()
            assert (await waiting).offset == 1
            assert (await log.produce("orders", 2, partition=1)).offset == 2
            await until(lambda: ways(log) == {routes.RoutePath(a.host_port), routes.RoutePath(b.host_port)})

    with_two_brokers(test)


def test_a_producer_that_waits_for_a_leader_asks_for_the_next_one_long_before_a_leader_counts_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "SILENCE_S", 1_000.0)
    monkeypatch.setattr(sender, "AWAITED_S", 0.01)

    async def test(a: SmallBroker, b: SmallBroker) -> None:
        a.forwards = True
        a.led["orders", 1] = asyncio.Event()
        b.advertised = f"127.0.0.1:{free_port()}"
        c = SmallBroker("c")
        c.join(a)
        async with running(c), tidelog.connect(a.address, **quick()) as log:
            waiting = await log.send("orders", 0, partition=1)
            await until(lambda: 1 in partitions_sent_to(a))
            b.move("orders", 1, "c")
            assert (await waiting).offset == 0
            assert partitions_sent_to(c) == {1}
            a.led["orders", 1].set()

    with_two_brokers(test)


# ── leader epochs ──


def test_an_end_offset_of_a_former_leader_is_not_accepted() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            await log.produce("orders", 0, partition=0)
            a.leader_epochs["orders", 0] = 4
            assert (await log.offsets("orders"))[0].high_watermark == 1
            held = a.partitions.pop(("orders", 0))
            a.leader_epochs["orders", 0] = 3  # the broker is now behind: it did not hear of the fourth leader, nor of its records
            asked: list[str] = []
            a.before_call = b.before_call = asked.append
            ends = asyncio.ensure_future(log.offsets("orders"))
            await until(lambda: asked.count("ListOffsets") >= 3)
            assert not ends.done()
            a.partitions["orders", 0] = held
            a.leader_epochs["orders", 0] = 4
            assert (await ends)[0].high_watermark == 1

    with_two_brokers(test)


def test_a_reader_names_the_epoch_that_it_knows_and_learns_a_newer_one() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick(fetch_wait_ms_max=20)) as log:
            await log.produce("orders", 0, partition=0)
            async with log.consume("orders", partitions=[0]) as consumer:
                assert [record.json() for record in await consumer.chunk()] == [0]
                a.leader_epochs["orders", 0] = 7  # the same broker, elected again
                await log.produce("orders", 1, partition=0)
                assert [record.json() for record in await consumer.chunk()] == [1]
                assert log._connection.epochs.newest(a.topics["orders"].id, 0) == 7

    with_two_brokers(test)


# ── topics that are made again ──


def test_records_of_a_producer_go_to_a_recreated_topic_under_a_new_producer_id() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick(linger_ms=0, topic_age_ms_max=60_000)) as log:
            first = await log.produce("orders", "before", partition=0)
            a.delete_topic("orders")
            a.create_topic("orders", PARTITIONS)
            ids = a.producer_ids + b.producer_ids
            assert first.offset == 0
            # The producer learns it from the broker, since the append names the old topic.
            assert (await log.produce("orders", "after", partition=0)).offset == 0
            assert a.producer_ids + b.producer_ids == ids + 1, "sequences restart"
            assert list(dict.fromkeys(request.appends[0].topic_id for request in a.requests)) == [f"{1:032x}", f"{2:032x}"]
        assert a.partitions["orders", 0].values() == [b"after"]

    with_two_brokers(test)


def test_topics_recreated_under_load_hold_each_acknowledged_record_once() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        held: list[list[bytes | None]] = []
        async with tidelog.connect(a.address, **quick(topic_age_ms_max=60_000)) as log:
            n = 0
            sent: list[tuple[bytes, Delivery]] = []
            for _ in range(5):
                for _ in range(200):
                    sent.append((b"%d" % n, await log.send("orders", b"%d" % n, partition=n % PARTITIONS)))
                    n += 1
                await until(lambda: bool(a.partitions["orders", 0].batches))
                held.append(a.values("orders"))
                a.delete_topic("orders")
                a.create_topic("orders", PARTITIONS)
            outcomes = [(value, await outcome_of(delivery)) for value, delivery in sent]
            held.append(a.values("orders"))
        everywhere = [value for values in held for value in values]
        assert len(everywhere) == len(set(everywhere)), "each at most once, in whichever topic"
        for value, outcome in outcomes:
            if isinstance(outcome, tidelog.Ack):
                assert value in everywhere
            else:
                assert isinstance(outcome, OutcomeUnknown), outcome
        assert sum(isinstance(outcome, tidelog.Ack) for _, outcome in outcomes) > 500

    with_two_brokers(test)
