"""What a program sees that sends: acknowledgements, back-pressure, failures, and brokers that break in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

import tidelog
from metadata.errors import (
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Rejected,
    Stopping,
    Throttled,
    TooLarge,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from segments.records.header import BatchHeader
from tests.kit.tidelog.producing import QUICK, quick, time_is_up, until, until_lost, with_broker
from tests.kit.tidelog.small_broker import BreakStream, SmallBroker, running
from tidelog import client
from tidelog.producer import sender
from tidelog.transport.connection import Connection
from tidelog.transport.wire_sizes import RECORD_OVERHEAD_BYTES

pytestmark = pytest.mark.slow


def test_an_acknowledgement_has_the_partition_offset_and_timestamp_of_its_record() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            acks = [await log.produce("orders", f"v{n}", partition=1, timestamp_ms=1000 + n) for n in range(3)]
        assert acks == [tidelog.Ack("orders", 1, n, 1000 + n) for n in range(3)]
        assert broker.partitions["orders", 1].values() == [b"v0", b"v1", b"v2"]

    with_broker(test)


def test_values_keys_and_headers_arrive_as_their_bytes() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            await log.produce("orders", {"id": 7, "name": "é"}, key=12, headers={"trace": b"\x00\xff", "none": None}, partition=0)
            await log.produce("orders", None, key=b"gone", headers=[("a", "1"), ("a", "2")], partition=0)
            records = [record async for record in log.consume("orders", follow=False)]
        assert (records[0].value, records[0].key) == ('{"id":7,"name":"é"}'.encode(), b"12")
        assert records[0].headers == (("trace", b"\x00\xff"), ("none", None))
        assert (records[1].value, records[1].key) == (None, b"gone")
        assert records[1].headers == (("a", b"1"), ("a", b"2"))

    with_broker(test)


def test_records_of_one_key_meet_in_one_partition_in_order() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            acks = await log.produce_many("orders", [tidelog.Message(n, key=f"k{n % 5}") for n in range(200)])
        for key in range(5):
            of_key = acks[key::5]
            assert len({ack.partition for ack in of_key}) == 1
            assert [ack.offset for ack in of_key] == sorted(ack.offset for ack in of_key)

    with_broker(test)


def test_salted_records_of_one_key_spread_over_the_partitions() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, partitioner="salted", salt_count=3) as log:
            acks = await log.produce_many("orders", [tidelog.Message(n, key="hot") for n in range(300)])
        counts = [sum(ack.partition == partition for ack in acks) for partition in range(8)]
        assert sorted(counts, reverse=True) == [100, 100, 100, 0, 0, 0, 0, 0]

    with_broker(test, partitions=8)


def test_records_without_a_key_stay_together_until_their_batch_leaves() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            acks = await log.produce_many("orders", [b"x" * 100] * 50)
            assert len({ack.partition for ack in acks[1:]}) <= 2
            one_by_one = [await log.produce("orders", b"x") for _ in range(6)]
            assert len({ack.partition for ack in one_by_one}) == 3, "then the next partition has its turn"

    with_broker(test)


def test_a_program_that_only_sends_fills_large_batches() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, batch_bytes_max=20_000) as log:
            for _ in range(2_000):
                await log.send("orders", b"x" * 76, partition=0)
            await log.flush()
        assert len(broker.partitions["orders", 0].batches) <= 15

    with_broker(test)


def test_a_topic_with_a_lower_limit_gets_smaller_batches() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            await log.produce_many("orders", [b"x" * 500] * 100)
        assert max(len(batch) for p in range(3) for batch in broker.partitions["orders", p].batches) <= 4_000

    with_broker(test, max_message_bytes="4000")


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_as_asked(compression: str) -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, compression=compression) as log:  # type: ignore[arg-type]
            await log.produce_many("orders", [tidelog.Message(b"x" * 1000, partition=0)] * 100)
        assert sum(map(len, broker.partitions["orders", 0].batches)) < 20_000
        assert broker.partitions["orders", 0].values() == [b"x" * 1000] * 100

    with_broker(test)


# ── brokers that fail ──


def once_each(faults: list[Exception]) -> Callable[[str, int, BatchHeader], None]:
    def fault(topic: str, partition: int, header: BatchHeader) -> None:
        if faults:
            raise faults.pop(0)

    return fault


@pytest.mark.parametrize(
    ("moment", "fault"),
    [
        ("before_append", Throttled("the buffer is full", retry_after_s=0.001)),
        ("before_append", NotLeader("another broker leads")),
        ("before_append", Stopping("the broker stops")),
        ("before_append", OutcomeUnknown("the bucket is slow")),
        ("before_append", BreakStream()),
        ("after_append", OutcomeUnknown("the bucket is slow")),
        ("after_append", BreakStream()),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_whatever_can_be_retried_loses_nothing_and_doubles_nothing(moment: str, fault: Exception) -> None:
    async def test(broker: SmallBroker) -> None:
        appends = faults = 0

        def every_third(topic: str, partition: int, header: BatchHeader) -> None:
            nonlocal appends, faults
            appends += 1
            if appends % 3 == 0 and appends < 100:
                faults += 1
                raise fault

        setattr(broker, moment, every_third)
        async with tidelog.connect(broker.address, **quick(batch_bytes_max=1_000)) as log:
            acks = await log.produce_many("orders", [tidelog.Message(b"%d" % n, key=b"%d" % (n % 7)) for n in range(1_000)])
        assert faults > 10
        assert sorted(int(value or b"") for value in broker.values("orders")) == list(range(1_000))
        for n, ack in enumerate(acks):
            assert broker.partitions["orders", ack.partition].values()[ack.offset] == b"%d" % n
        for partition in range(3):
            values = [int(value or b"") for value in broker.partitions["orders", partition].values()]
            for key in range(7):
                assert [v for v in values if v % 7 == key] == sorted(v for v in values if v % 7 == key)

    with_broker(test)


def test_a_broker_that_goes_and_comes_back_is_waited_for() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **QUICK) as log:
            first = await log.produce("orders", "before", partition=0)
            await broker.stop()
            waiting = [await log.send("orders", f"while {n}", partition=0) for n in range(3)]
            await broker.start()
            acks = [await delivery for delivery in waiting]
        assert [first.offset, *(ack.offset for ack in acks)] == [0, 1, 2, 3]

    with_broker(test)


def test_a_partition_is_followed_to_its_new_leader_and_nothing_is_lost_or_doubled_on_the_way() -> None:
    async def run() -> None:
        async with running(SmallBroker("a")) as a, running(SmallBroker("b")) as b:
            a.create_topic("orders", 4)
            b.join(a)
            a.leaders |= {("orders", partition): "a" for partition in range(4)}
            async with tidelog.connect(a.address, **quick(batch_bytes_max=500)) as log, asyncio.timeout(60):
                deliveries = []
                for n in range(2_000):
                    deliveries.append(await log.send("orders", b"%d" % n, partition=n % 4))
                    if n % 400 == 399:
                        moved = ("orders", n // 400 % 4)
                        a.leaders[moved] = "b" if a.leaders[moved] == "a" else "a"
                acks = [await delivery for delivery in deliveries]
        for partition in range(4):
            values = [int(value or b"") for value in a.partitions["orders", partition].values()]
            assert values == list(range(partition, 2_000, 4))
        assert [ack.offset for ack in acks] == [n // 4 for n in range(2_000)]
        assert b.requests

    asyncio.run(run())


def test_a_record_that_no_broker_took_in_time_is_unavailable_and_says_why() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            await log.offsets("orders")
            await broker.stop()
            await until_lost(log, broker)
            delivery = await log.send("orders", "late", partition=0)
            queue = log._producer._topics.books["orders"].queues[0]
            await until(lambda: queue.last_trouble is not None)
            time_is_up(log)
            with pytest.raises(Unavailable, match=r"no acknowledgement within 40000 ms, and never reached the log.*can't connect"):
                await delivery
            await broker.start()

    with_broker(test)


def test_a_record_that_a_broker_took_and_did_not_answer_for_is_of_unknown_outcome() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            broker.answering.clear()
            delivery = await log.send("orders", "late", partition=0)
            await until(lambda: bool(broker.requests))
            time_is_up(log)
            with pytest.raises(OutcomeUnknown, match="1 record"):
                await delivery
            broker.answering.set()
            assert (await log.produce("orders", "next", partition=0)).offset == 1

    with_broker(test)


def test_a_rejected_batch_fails_alone_and_those_behind_it_keep_their_order() -> None:
    async def test(broker: SmallBroker) -> None:
        def reject(topic: str, partition: int, header: BatchHeader) -> None:
            if header.record_count == 3:
                raise TooLarge("three are too many")

        broker.before_append = reject
        async with tidelog.connect(broker.address, **quick(batch_bytes_max=400, linger_ms=1_000)) as log:
            sizes = [100, 200, *([76] * 3), *([230] * 4)]  # batches of 1 · 1 · 3 · 1 · 1 · 1 · 1 records
            deliveries = [await log.send("orders", bytes([n]) * size, partition=0) for n, size in enumerate(sizes)]
            with pytest.raises(TooLarge):
                await log.flush()
            outcomes = await asyncio.gather(*(_outcome(delivery) for delivery in deliveries))
        assert [type(outcome) is TooLarge for outcome in outcomes] == [False, False, True, True, True, False, False, False, False]
        assert [value and value[0] for value in broker.partitions["orders", 0].values()] == [0, 1, 5, 6, 7, 8]

    with_broker(test)


async def _outcome(delivery: Awaitable[tidelog.Ack]) -> object:
    try:
        return await delivery
    except Rejected as error:
        return error


def test_a_topic_that_is_deleted_while_we_send_fails_its_records() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            await log.produce("orders", 1)
            broker.topics.clear()
            with pytest.raises(UnknownTopic, match=r"127\.0\.0\.1:\d+: there is no topic orders"):
                await log.produce("orders", 2)

    with_broker(test)


def test_of_many_records_the_first_failure_is_raised_once_each_that_was_taken_has_its_outcome() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, linger_ms=1) as log:
            with pytest.raises(InvalidArgument, match="object can't be sent") as raised:
                await log.produce_many("orders", [1, 2, object(), 4])
            assert raised.value.__notes__ == ["The 2 records before it are acknowledged."]
            assert log.outcomes.acknowledged == len(broker.values("orders")) == 2
            broker.before_append = once_each([TooLarge("too large for us")])
            with pytest.raises(TooLarge):
                await log.produce_many("orders", [5, object()])

    with_broker(test)


def test_each_awaiter_of_a_delivery_gets_its_own_instance_of_the_error() -> None:
    async def test(broker: SmallBroker) -> None:
        broker.before_append = once_each([TooLarge("too large for us", bytes_max=7)])
        async with tidelog.connect(broker.address) as log:
            delivery = await log.send("orders", 1)
            errors = await asyncio.gather(*(_outcome(delivery) for _ in range(3)))
        assert len({id(error) for error in errors}) == 3
        for error in errors:
            assert isinstance(error, TooLarge)
            assert (error.message[-16:], error.details["bytes_max"]) == ("too large for us", 7)

    with_broker(test)


def test_callbacks_are_called_for_each_record_and_their_errors_stop_no_others() -> None:
    async def test(broker: SmallBroker) -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        async with tidelog.connect(broker.address) as log:
            calls: list[int] = []

            def count() -> None:
                calls.append(1)

            def fail() -> None:
                raise ValueError("of the program")

            deliveries = [await log.send("orders", n, partition=0) for n in range(20)]
            for delivery in deliveries:
                delivery.when_done(fail)
                delivery.when_done(count)
            assert [(await delivery).offset for delivery in deliveries] == list(range(20))
            await log.flush()
            deliveries[0].when_done(count)
        assert len(calls) == 21
        assert [type(error) for error in reported] == [ValueError] * 20

    with_broker(test)


# ── back-pressure ──


def test_sending_waits_while_the_buffer_is_full() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, buffer_bytes_max=10_000, batch_bytes_max=2_000) as log:
            await log.produce("orders", b"", partition=1)  # from here on sending needs no answer of the broker
            broker.answering.clear()
            sent = 0

            async def send_many() -> None:
                nonlocal sent
                for _ in range(100):
                    await log.send("orders", b"x" * (1_000 - RECORD_OVERHEAD_BYTES), partition=0)
                    sent += 1

            sending = asyncio.create_task(send_many())
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert sent == 10, "ten records of 1000 bytes fill it"
            broker.answering.set()
            await sending
        assert len(broker.values("orders")) == 101

    with_broker(test)


def test_a_send_cancelled_while_it_waits_for_room_leaks_none() -> None:
    async def test(broker: SmallBroker) -> None:
        broker.answering.clear()
        async with tidelog.connect(broker.address, buffer_bytes_max=3_000, batch_bytes_max=1_000) as log:
            for _ in range(3):
                await log.send("orders", b"x" * (1_000 - RECORD_OVERHEAD_BYTES), partition=0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await log.send("orders", b"lost" * 200, partition=0)
            broker.answering.set()
            await log.flush()
            await asyncio.gather(*(log.produce("orders", b"y" * 900, partition=0) for _ in range(9)))
        assert [value and value[:1] for value in broker.values("orders")] == [b"x"] * 3 + [b"y"] * 9

    with_broker(test)


def test_a_buffer_that_stays_full_is_an_error_in_the_end() -> None:
    async def test(broker: SmallBroker) -> None:
        broker.answering.clear()
        async with tidelog.connect(broker.address, buffer_bytes_max=2_000, batch_bytes_max=1_000) as log:
            for _ in range(2):
                await log.send("orders", b"x" * (1_000 - RECORD_OVERHEAD_BYTES), partition=0)
            log._producer._room._timeout_s = 1.0  # those that fill it have longer: they do not make room by failing
            with pytest.raises(Throttled, match="stayed full for 1000 ms"):
                await log.send("orders", b"x" * (1_000 - RECORD_OVERHEAD_BYTES), partition=0)
            broker.answering.set()
            await log.flush()

    with_broker(test)


def test_waits_for_room_are_rejected_when_the_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CLOSE_AFTER_ERROR_S", 0.01)

    async def test(broker: SmallBroker) -> None:
        broker.answering.clear()
        async with asyncio.TaskGroup() as tasks:
            with suppress(KeyError):
                async with tidelog.connect(broker.address, buffer_bytes_max=1_000, batch_bytes_max=1_000) as log:
                    await log.send("orders", bytes(900), partition=0)
                    waiting = [tasks.create_task(_outcome(log.produce("orders", bytes(900)))) for _ in range(3)]
                    await until(lambda: len(log._producer._room.waiting) == 3)
                    raise KeyError("of the program")
        assert [str(await task) for task in waiting] == ["the client is closed"] * 3
        broker.answering.set()

    with_broker(test)


def test_batches_smaller_than_any_record_send_each_record_alone() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, batch_bytes_max=1) as log:
            acks = await log.produce_many("orders", [tidelog.Message(n, partition=0) for n in range(20)])
        assert [ack.offset for ack in acks] == list(range(20))
        assert len(broker.partitions["orders", 0].batches) == 20

    with_broker(test)


def test_a_send_that_is_cancelled_has_sent_nothing() -> None:
    async def test(broker: SmallBroker) -> None:
        taken, cancelled = [b"first"], 0
        async with tidelog.connect(broker.address) as log:
            await log.produce("orders", b"first", partition=0)
            for n in range(50):
                sending = asyncio.ensure_future(two_sends(log, n))
                await asyncio.sleep(0)
                sending.cancel()
                with suppress(asyncio.CancelledError):
                    await sending
                taken += sent
                cancelled += len(sent) < 2
                sent.clear()
        assert cancelled
        assert broker.values("orders") == taken

    sent: list[bytes] = []

    async def two_sends(log: tidelog.Client, n: int) -> None:
        for value in (b"%d" % n, b"%d, again" % n):
            await log.send("orders", value, partition=0)
            sent.append(value)

    with_broker(test)


def test_tasks_that_send_at_the_same_time_keep_the_order_of_their_calls() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, batch_bytes_max=500) as log:
            await log.produce("orders", 0, partition=0)
            await asyncio.gather(*(log.send("orders", n, partition=0) for n in range(1, 200)))
        assert broker.values("orders") == [b"%d" % n for n in range(200)]

    with_broker(test)


def test_a_send_after_a_batch_was_opened_is_not_overtaken_by_a_later_one() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            asked = asyncio.Event()

            async def ask() -> None:
                await asked.wait()
                await log.send("orders", b"second", partition=0)

            asking = asyncio.ensure_future(ask())
            await log.produce("orders", b"opens a batch", partition=0)
            asked.set()
            await log.send("orders", b"first", partition=0)
            await asking
        assert broker.values("orders") == [b"opens a batch", b"first", b"second"]

    with_broker(test)


def test_a_loop_that_only_sends_lets_others_run_after_each_batch() -> None:
    async def test(broker: SmallBroker) -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with tidelog.connect(broker.address, batch_bytes_max=1000) as log:
            await log.produce("orders", b"connects", partition=0)
            running_beside = asyncio.ensure_future(others())
            await asyncio.sleep(0)
            for _ in range(100):
                await log.send("orders", bytes(400), partition=0)  # two in a batch
            assert turns >= 50
            running_beside.cancel()

    with_broker(test)


# ── wrong use ──


def test_a_wrong_record_is_refused_before_anything_is_sent() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, request_bytes_max=50_000, batch_bytes_max=40_000) as log:
            with pytest.raises(UnknownTopic, match="there is no topic order"):
                await log.produce("order", 1)
            with pytest.raises(UnknownPartition, match="partitions 0 to 2; 3 was asked for"):
                await log.produce("orders", 1, partition=3)
            with pytest.raises(UnknownPartition, match="first was asked for"):
                await log.produce("orders", 1, partition="first")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="object can't be sent"):
                await log.produce("orders", object())
            with pytest.raises(InvalidArgument, match="timestamp_ms"):
                await log.produce("orders", 1, timestamp_ms=1.5)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="not pairs"):
                await log.produce("orders", 1, headers=["trace"])  # type: ignore[list-item]
            with pytest.raises(TooLarge, match="at most 50000"):
                await log.produce("orders", b"x" * 50_001)
            for names in ("\ud800", ["orders", "\ud800"]):
                with pytest.raises(InvalidArgument, match="is no topic's name"):
                    await anext(aiter(log.consume(names)))
            with pytest.raises(InvalidArgument, match="is no topic's name"):
                await log.produce("\ud800", 1)
            await log.topics.list()  # the client goes on
        assert broker.requests == []

    with_broker(test)


def test_a_client_that_is_closed_says_so() -> None:
    async def test(broker: SmallBroker) -> None:
        with pytest.raises(Rejected, match="not connected"):
            await tidelog.connect(broker.address).produce("orders", 1)
        async with tidelog.connect(broker.address) as log:
            await log.produce("orders", 1)
        with pytest.raises(Rejected, match="closed"):
            await log.produce("orders", 1)
        with pytest.raises(Rejected, match="entered once"):
            async with log:
                pass

    with_broker(test)


# ── leaving ──


def test_calls_without_an_answer_raise_errors_and_no_cancellation_when_the_client_closes() -> None:
    """A TaskGroup takes a task that ends by CancelledError for one that has done its work."""

    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            broker.running.clear()
            calls = log.produce("orders", 1), log.topics.list(), log.topics.create("payments"), log.topics.describe("orders")
            *waiting, cancelled = map(asyncio.ensure_future, calls)
            await until(lambda: sum(stubs.calls for stubs in log._connection._channels._stubs.values()) == 4)
            cancelled.cancel()
            await log._connection.close()  # as leaving the block does, in the end
            met = await asyncio.gather(*waiting, return_exceptions=True)
            assert list(map(str, met)) == ["the client was closed before the call had its answer"] * 3
            assert list(map(type, met)) == [Rejected, Rejected, OutcomeUnknown]
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            with pytest.raises(Rejected, match="the client is closed"):
                await log.topics.list()
            broker.running.set()

    with_broker(test)


def test_leaving_the_block_flushes() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, linger_ms=60_000) as log:
            for n in range(100):
                await log.send("orders", n, partition=0)
        assert len(broker.values("orders")) == 100

    with_broker(test)


def test_leaving_the_block_raises_a_failure_that_was_not_raised_before() -> None:
    async def test(broker: SmallBroker) -> None:
        broker.before_append = once_each([TooLarge("too large for us")])
        with pytest.raises(TooLarge, match="too large for us"):
            async with tidelog.connect(broker.address) as log:
                await log.send("orders", 1)

    with_broker(test)


def test_a_failure_that_was_seen_is_not_raised_again() -> None:
    async def test(broker: SmallBroker) -> None:
        broker.before_append = once_each([TooLarge("too large for us")])
        async with tidelog.connect(broker.address) as log:
            with pytest.raises(TooLarge):
                await log.produce("orders", 1)

    with_broker(test)


def test_an_error_in_the_block_comes_out_as_it_was_and_what_was_sent_before_is_flushed() -> None:
    async def test(broker: SmallBroker) -> None:
        error = ValueError("of the program")

        async def program() -> None:
            async with tidelog.connect(broker.address) as log:
                await log.send("orders", 1)
                raise error

        with pytest.raises(ValueError, match="of the program") as raised:
            await program()
        assert raised.value is error
        assert len(broker.values("orders")) == 1
        ours = ("produce stream", "deadlines", "write to", "read from", "watch", "leaders of")
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(ours)]

    with_broker(test)


def test_a_cancelled_block_ends_at_once_and_fails_its_deliveries() -> None:
    async def test(broker: SmallBroker) -> None:
        broker.answering.clear()
        deliveries = []
        sent = asyncio.Event()

        async def program() -> None:
            async with tidelog.connect(broker.address) as log:
                deliveries.append(await log.send("orders", 1))
                sent.set()
                await asyncio.Event().wait()

        running_program = asyncio.create_task(program())
        await sent.wait()
        running_program.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running_program
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await deliveries[0]
        broker.answering.set()

    with_broker(test)


def test_a_waiter_that_hangs_up_does_not_stop_the_others() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            broker.answering.clear()
            deliveries = [await log.send("orders", n, partition=0) for n in range(2)]
            impatient, patient = (asyncio.ensure_future(_outcome(delivery)) for delivery in deliveries)
            await asyncio.sleep(0)
            impatient.cancel()
            broker.answering.set()
            assert isinstance(await patient, tidelog.Ack)

    with_broker(test)


def test_a_cancelled_block_bears_the_answers_that_arrive_while_it_closes() -> None:
    async def test(broker: SmallBroker) -> None:
        for _ in range(20):  # when an answer arrives within the closing is a matter of luck
            clients: list[tidelog.Client] = []
            sending = asyncio.Event()

            async def program(clients: list[tidelog.Client], sending: asyncio.Event) -> None:
                async with tidelog.connect(broker.address, batch_bytes_max=1_000) as log:
                    clients.append(log)
                    while True:
                        await log.send("orders", bytes(500))
                        if log.outcomes.acknowledged > 20:
                            sending.set()

            running_program = asyncio.create_task(program(clients, sending))
            await sending.wait()
            running_program.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running_program
            written, outcomes = len(broker.values("orders")), clients[0].outcomes
            assert outcomes.acknowledged <= written <= outcomes.acknowledged + outcomes.unknown
            for partition in range(3):
                del broker.partitions["orders", partition]

    with_broker(test)


@pytest.mark.parametrize("reported_every_s", [3600.0, 0.0])
def test_an_outage_is_logged_at_its_start_periodically_and_at_its_end(
    reported_every_s: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "OUTAGE_LOG_EVERY_S", reported_every_s)
    connect_once, attempts = Connection.until_connected, 0

    async def test(broker: SmallBroker) -> None:
        enough = asyncio.Event()

        async def counted(connection: Connection, address: str) -> None:
            nonlocal attempts
            attempts += 1
            if attempts >= 10:
                enough.set()
            await connect_once(connection, address)

        async with tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", 1, partition=0)
            await broker.stop()
            monkeypatch.setattr(Connection, "until_connected", counted)
            delivery = await log.send("orders", 2, partition=0)
            await enough.wait()
            await broker.start()
            await delivery
        first, *between, last = [record.getMessage() for record in caplog.records if record.name == "tidelog"]
        assert first.endswith("; retrying")
        assert last.startswith("connected again broker=")
        assert bool(between) == (reported_every_s == 0)
        assert all("; 1 record not acknowledged; retrying" in line for line in between)

    with_broker(test)
