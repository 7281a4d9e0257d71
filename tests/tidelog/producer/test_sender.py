"""One stream to a broker: refused, broken, stalled, overdue; and what that means for the records on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

import tidelog
from gateway.proto import log_pb2, log_pb2_grpc
from metadata.errors import Denied, InvalidArgument, OutcomeUnknown, Throttled, TidelogError, Unauthenticated, Unavailable
from segments.records.columns import encode_records
from segments.records.header import BatchHeader
from tests.kit.tidelog.producing import impatient, once_not_refused, outcome_of, quick, time_is_up, until, until_lost, with_broker
from tests.kit.tidelog.small_broker import BreakStream, SmallBroker
from tests.simulation.virtual_loop import run
from tidelog.producer import partition_queue as queue
from tidelog.producer import sender
from tidelog.settings import SettingChanges, settings_from

pytestmark = pytest.mark.slow


async def hold_a_call(broker: SmallBroker) -> grpc.aio.Channel:
    """A stream that stays open, at a broker that takes no other."""
    channel = grpc.aio.insecure_channel(broker.address.removeprefix("grpc://"))
    call: Any = log_pb2_grpc.LogStub(channel).ProduceStream()  # type: ignore[no-untyped-call]
    await call.write(log_pb2.ProduceRequest())
    assert await call.read() is not grpc.aio.EOF
    return channel


# ── a broker that refuses the stream ──


def test_streams_that_a_busy_broker_refuses_do_not_all_come_again_at_the_same_moment() -> None:
    came_s: list[float] = []

    class Busy:
        async def until_connected(self, address: str) -> None:
            came_s.append(asyncio.get_running_loop().time())
            raise Throttled("busy", retry_after_s=1.0)

        def naming_all_that_are_silent(self, error: Unavailable) -> Unavailable:
            return error

    async def scenario() -> None:
        # Of its parts, what such a stream uses.
        accumulator: Any = SimpleNamespace(busy=lambda way: [way], unreachable=lambda way, error: None, topics_of=lambda way: [])
        accumulator.unacknowledged_records = lambda way: 0
        topics: Any = SimpleNamespace(learn_later=lambda topics: None)
        connection: Any = Busy()
        way: Any = SimpleNamespace(address="b:1")
        stream = sender.Sender(way, connection, accumulator, settings_from(quick()), topics=topics, answered=lambda: None)
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await stream.run()

    run(scenario())
    pauses_s = [later - before for before, later in pairwise(came_s)]
    assert min(pauses_s) >= 1.0
    assert max(pauses_s) <= 1.5
    assert max(pauses_s) - min(pauses_s) > 0.1


@pytest.mark.parametrize("size", [10, 2 << 20], ids=["a small request", "one that fills the connection"])
def test_more_calls_than_a_broker_takes_are_tried_again_and_nothing_is_in_doubt(size: int) -> None:
    async def run() -> None:
        broker = SmallBroker()
        await broker.start()
        broker.create_topic("orders", 3, max_message_bytes=str(4 << 20))
        async with asyncio.timeout(60), tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", "before", partition=0)
            await broker.stop()
            await until_lost(log, broker)
            broker.calls_max = 1
            await broker.start()
            held = await hold_a_call(broker)
            await until(lambda: log._connection._channels.is_connected(broker.host_port))
            delivery = await log.send("orders", bytes(size), partition=0)
            (batch,) = log._producer._accumulator.unsettled()
            await until(lambda: isinstance(batch.queue.last_trouble, Throttled))
            assert "Concurrent RPC limit exceeded" in str(batch.queue.last_trouble)
            assert not batch.maybe_written
            await held.close()
            assert (await delivery).offset == 1
        assert len(broker.values("orders")) == 2
        await broker.stop()

    asyncio.run(run())


def test_a_delivery_timeout_names_the_call_limit_of_the_broker_as_its_cause() -> None:
    async def run() -> None:
        broker = SmallBroker()
        broker.calls_max = 1
        await broker.start()
        broker.create_topic("orders", 3)
        async with asyncio.timeout(60), tidelog.connect(broker.address, **quick(linger_ms=1)) as log:
            await log.offsets("orders")
            await log._connection.route("orders")
            held = await hold_a_call(broker)
            delivery = await log.send("orders", "x", partition=0)
            (batch,) = log._producer._accumulator.unsettled()
            await until(lambda: isinstance(batch.queue.last_trouble, Throttled))
            time_is_up(log)
            with pytest.raises(Unavailable, match=r"never reached the log; the last attempt met: .*Concurrent RPC limit exceeded"):
                await delivery
            await held.close()
        await broker.stop()

    asyncio.run(run())


def test_a_broker_that_denies_the_stream_fails_its_records_at_once() -> None:
    async def test(broker: SmallBroker) -> None:
        def deny(method: str) -> None:
            if method == "ProduceStream":
                raise Denied("you may not write here")

        broker.before_call = deny
        async with tidelog.connect(broker.address) as log:
            with pytest.raises(Denied, match="you may not write here"):
                await log.produce("orders", 1)
            broker.before_call = lambda method: None
            assert (await log.produce("orders", 2, partition=0)).offset == 0, "later ones have their own chance"

    with_broker(test)


@pytest.mark.parametrize("ends", [False, True], ids=["the broker answers each batch", "the broker ends the stream"])
def test_batches_that_meet_a_revoked_key_go_again_over_a_stream_with_the_key_that_replaced_it(ends: bool, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("tlk_former")

    async def test(broker: SmallBroker) -> None:
        opened = 0

        def count(method: str) -> None:
            nonlocal opened
            opened += method == "ProduceStream"

        def refuse_former(topic: str, partition: int, header: BatchHeader) -> None:
            if opened == 1 and key.read_text() != "tlk_former":
                error = Unauthenticated("the API key was revoked")
                raise BreakStream(error) if ends else error

        broker.before_call, broker.before_append = count, refuse_former
        async with tidelog.connect(broker.address, **quick(api_key_file=key)) as log:
            await log.produce("orders", 0, partition=0)
            key.write_text("tlk_present")
            deliveries = [await log.send("orders", n, partition=n % 2) for n in range(1, 30)]
            outcomes = [await outcome_of(delivery) for delivery in deliveries]
            assert {type(outcome) for outcome in outcomes} == {tidelog.Ack}
        assert opened == 2
        assert sorted(int(value or b"") for value in broker.values("orders")) == list(range(30)), "each was written once"

    with_broker(test)


def test_a_key_that_was_revoked_and_not_replaced_fails_the_batches_that_meet_it(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("tlk_former")

    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(api_key_file=key)) as log:
            await log.produce("orders", 0, partition=0)

            def refuse(topic: str, partition: int, header: BatchHeader) -> None:
                raise Unauthenticated("the API key was revoked")

            broker.before_append = refuse
            with pytest.raises(Unauthenticated, match="was revoked"):
                await log.produce("orders", 1, partition=0)

    with_broker(test)


def test_a_broker_that_refuses_each_stream_is_not_asked_without_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: SmallBroker) -> None:
        opened_s: list[float] = []

        def refuse(method: str) -> None:
            if method == "ProduceStream":
                opened_s.append(asyncio.get_running_loop().time())
                raise Unavailable("there is no session")

        broker.before_call = refuse
        async with tidelog.connect(broker.address, retry_pause_ms=50, retry_pause_ms_max=10_000) as log:
            delivery = await log.send("orders", 1)
            await until(lambda: len(opened_s) >= 4)
            time_is_up(log)
            with pytest.raises(Unavailable, match="there is no session"):
                await delivery
        pauses_s = [later - sooner for sooner, later in pairwise(opened_s)]
        for least_s, pause_s in zip((0.025, 0.05, 0.1), pauses_s, strict=False):
            assert pause_s >= least_s, "half of retry_pause_ms at the least, then twice as long, and again"
        reported = [record.getMessage() for record in caplog.records if record.name == "tidelog"]
        assert len(reported) == 1
        assert "there is no session; retrying" in reported[0]

    with caplog.at_level(logging.WARNING):
        with_broker(test)


def test_a_stream_that_is_never_taken_up_leaves_its_records_certainly_unwritten() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            await log.offsets("orders")
            await log._connection.route("orders")
            impatient(log, request_timeout_ms=300)
            broker.taking_up.clear()
            delivery = await log.send("orders", "x", partition=0)
            queue = log._producer._topics.books["orders"].queues[0]
            await until(lambda: queue.last_trouble is not None)
            time_is_up(log)
            error = await outcome_of(delivery)
            assert type(error) is Unavailable
            assert "never reached the log; the last attempt met: " in error.message
            assert "the broker does not take up a stream" in error.message
            broker.taking_up.set()
            assert (await once_not_refused(lambda: log.produce("orders", "y", partition=0), Unavailable)).offset == 0

    with_broker(test)


# ── producer ids ──


def test_one_producer_id_serves_all_partitions() -> None:
    async def test(broker: SmallBroker) -> None:
        broker.create_topic("others", 5)
        async with tidelog.connect(broker.address) as log:
            for topic in ("orders", "others"):
                for n in range(12):
                    await log.produce(topic, n)
        assert broker.producer_ids == 1

    with_broker(test)


def test_a_producer_id_that_is_not_to_be_had_stops_only_those_who_need_one() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", 0, partition=0)
            impatient(log, request_timeout_ms=100)
            log._producer._accumulator._producer = None  # so that the next partition needs another

            def refuse(method: str) -> None:
                if method == "InitProducer":
                    raise Unavailable("the metadata store does not answer")

            broker.before_call = refuse
            waiting = await log.send("orders", "waiting", partition=1)
            for n in range(1, 50):
                assert (await log.produce("orders", n, partition=0)).offset == n
            broker.before_call = lambda method: None
            assert (await waiting).offset == 0

    with_broker(test)


def test_a_producer_id_that_is_denied_fails_those_who_need_it_at_once() -> None:
    async def test(broker: SmallBroker) -> None:
        def deny(method: str) -> None:
            if method == "InitProducer":
                raise Denied("you may not write here")

        broker.before_call = deny
        async with tidelog.connect(broker.address) as log:
            with pytest.raises(Denied, match="you may not write here"):
                await log.produce("orders", 1)

    with_broker(test)


# ── a batch that can't be encoded ──


def test_a_batch_that_can_not_be_encoded_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_or_refuse(records: Any, **facts: Any) -> bytes:
        if any(record[1] == b"poison" for record in records):
            raise InvalidArgument("record 0 can't be encoded")
        return encode_records(records, **facts)

    monkeypatch.setattr(sender, "encode_records", encode_or_refuse)

    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(batch_bytes_max=150)) as log:
            values = [b"%d" % n for n in range(30)]
            values[10] = values[20] = b"poison"
            deliveries = [
                await log.send("orders", value + bytes(60) if n % 10 else value, partition=0) for n, value in enumerate(values)
            ]
            outcomes = [await outcome_of(delivery) for delivery in deliveries]
            other = await log.produce("orders", "other", partition=1)
        failed = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, InvalidArgument)]
        assert {10, 20} <= set(failed)
        assert len(failed) <= 4, "the batch that it is in, and no other"
        acked = [outcome.offset for outcome in outcomes if isinstance(outcome, tidelog.Ack)]
        assert acked == list(range(len(acked)))
        assert other.offset == 0
        assert len(broker.requests) == len(broker.partitions["orders", 0].batches) + 1, "nothing was sent twice"

    with_broker(test)


# ── a broker that stalls ──


def test_a_broker_that_reads_nothing_more_costs_no_more_than_the_buffer_and_is_left_when_it_is_overdue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "ANSWER_GRACE_S", 0.1)
    settings = quick(buffer_bytes_max=1 << 20, batch_bytes_max=100_000)

    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **settings) as log:
            await log.produce("orders", "first", partition=0)
            accumulator = log._producer._accumulator
            log._producer._room._timeout_s = 0.5  # what is taken stays for longer than the others may wait
            broker.reading.clear()
            deliveries: list[Awaitable[tidelog.Ack]] = []

            async def is_taken() -> bool:
                try:
                    deliveries.append(await log.send("orders", bytes(90_000), partition=0))
                except Throttled:
                    return False
                finally:
                    assert accumulator.buffered_bytes <= 1 << 20
                return True

            for _ in range(3):
                # Three times what the buffer takes, at once.
                taken = await asyncio.gather(*(is_taken() for _ in range(36)))
                assert taken.count(False) >= 12, "who finds no room is refused"
                time_is_up(log)
                await until(lambda: accumulator.buffered_bytes == 0)
            outcomes = [await outcome_of(delivery) for delivery in deliveries]
            assert {type(outcome) for outcome in outcomes} <= {tidelog.Ack, OutcomeUnknown, Unavailable}
            broker.reading.set()
            last = await log.produce("orders", "last", partition=0)
        values = broker.partitions["orders", 0].values()
        assert values[last.offset] == b"last"
        acked, unknown = (sum(isinstance(outcome, kind) for outcome in outcomes) for kind in (tidelog.Ack, OutcomeUnknown))
        assert acked <= len(values) - 2 <= acked + unknown, "what is said to be unwritten is not there"

    with_broker(test)


def test_a_broker_that_waits_for_a_quota_is_shown_by_its_answer_and_does_not_count_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "SILENCE_S", 0.05)

    async def test(broker: SmallBroker) -> None:
        kept_silent: list[str] = []
        async with tidelog.connect(broker.address, **quick(linger_ms=0)) as log:
            await log.produce("orders", "first", partition=0)
            before = log.throttled
            assert before is None
            broker.throttled = Throttled("billing has used up its bytes_in_per_second of 10 at this broker", retry_after_s=60)
            await log.produce("orders", "second", partition=0)
            assert log.throttled is not None
            assert "billing has used up its bytes_in_per_second of 10 at this broker" in log.throttled.message
            assert 50 < log.throttled.retry_after_s <= 60

            async def note(address: str) -> None:
                kept_silent.append(address)

            asked: list[str] = []
            broker.before_call = asked.append
            monkeypatch.setattr(log._connection, "kept_silent", note)
            broker.answering.clear()
            delivery = await log.send("orders", "third", partition=0)
            await until(lambda: len(asked) >= 2)  # who leads by now is asked all the same
            assert not kept_silent
            broker.throttled = None
            broker.answering.set()
            assert (await delivery).offset == 2

    with_broker(test)


def test_answers_that_are_overdue_end_the_stream_and_the_next_records_go_over_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "ANSWER_GRACE_S", 0.05)

    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", "first", partition=0)
            broker.answering.clear()
            delivery = await log.send("orders", "silence", partition=0)
            await until(lambda: len(broker.requests) >= 2)
            time_is_up(log)
            with pytest.raises(OutcomeUnknown):
                await delivery
            await until(lambda: log._producer._accumulator.buffered_bytes == 0)
            broker.answering.set()
            assert (await log.produce("orders", "next", partition=0)).offset == 2

    with_broker(test)


@pytest.mark.parametrize("how", ["leaving", "an error", "cancelled"])
def test_a_client_that_is_closed_while_its_broker_stalls_settles_each_outcome(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidelog.client, "CLOSE_AFTER_ERROR_S", 0.05)

    async def test(broker: SmallBroker) -> None:
        deliveries: list[tidelog.Delivery] = []
        sent = asyncio.Event()

        async def program() -> None:
            async with tidelog.connect(broker.address, **quick()) as log:
                await log.produce("orders", "first", partition=0)
                broker.answering.clear()
                deliveries.extend([await log.send("orders", n, partition=n % 3) for n in range(100)])
                await until(lambda: len(broker.requests) > 1)
                sent.set()
                if how == "leaving":
                    time_is_up(log)
                if how == "an error":
                    raise KeyError("of the program")
                if how == "cancelled":
                    await asyncio.Event().wait()

        running = asyncio.create_task(program())
        await sent.wait()
        if how == "cancelled":
            running.cancel()
        with pytest.raises((OutcomeUnknown, Unavailable, KeyError, asyncio.CancelledError)):
            await running
        assert all(delivery.done for delivery in deliveries)
        written = broker.values("orders")
        for n, delivery in enumerate(deliveries):
            error = await outcome_of(delivery)
            assert isinstance(error, TidelogError)
            if error.nothing_was_written:
                assert b"%d" % n not in written
        ours = ("produce stream", "deadlines", "write to", "read from", "watch", "route of", "producer ids")
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(ours)]
        broker.answering.set()

    with_broker(test)


# ── answers that are wrong ──


def test_an_answer_that_belongs_to_no_request_breaks_the_stream_and_everything_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: SmallBroker) -> None:
        wrong = [1, 1]

        def mislead(topic: str, partition: int, header: BatchHeader) -> None:
            if wrong:
                wrong.pop()
                broker.requests[-1].correlation_id += 7

        broker.after_append = mislead
        async with tidelog.connect(broker.address, **quick()) as log:
            acks = [await log.produce("orders", n, partition=0) for n in range(5)]
        assert [ack.offset for ack in acks] == list(range(5))
        assert len(broker.values("orders")) == 5

    with_broker(test)


def test_settings_beyond_what_the_protocol_can_say_are_no_trouble() -> None:
    settings: SettingChanges = {"delivery_timeout_ms": 1e13, "connect_timeout_ms": 1e12, "request_timeout_ms": 1e12}

    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **settings) as log:
            assert (await log.produce("orders", 1, partition=0)).offset == 0
        assert broker.requests[0].timeout_ms == sender.TIMEOUT_MS_MAX

    with_broker(test)
