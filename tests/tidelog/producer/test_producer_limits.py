"""What a topic and a broker take: producers fit what they send to it, and refuse early what can't get there."""

from __future__ import annotations

import asyncio
from enum import StrEnum

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidelog
from gateway.proto import admin_pb2
from metadata.errors import InvalidArgument, OutcomeUnknown, TooLarge
from segments.records.batch import BATCH_OVERHEAD_BYTES
from tests.kit.tidelog.producing import once_not_refused, outcome_of, quick, until, until_lost, with_broker
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.producer.producer import TIMESTAMP_MS_MAX
from tidelog.settings import CompressionName

pytestmark = pytest.mark.slow

# What a record with a value of 2 to 8 KiB and nothing else takes beside it, in a batch of its own.
ALONE = BATCH_OVERHEAD_BYTES + 9


def limited(**limits: int) -> SmallBroker:
    broker = SmallBroker()
    broker.limits = admin_pb2.BrokerLimits(**limits)
    return broker


async def with_limits(broker: SmallBroker, values: list[bytes], **changes: int) -> list[object]:
    """What becomes of each value, sent to `orders` at a broker that gRPC holds to its request_bytes_max."""
    async with running(broker):
        broker.create_topic("orders", 4)
        async with asyncio.timeout(60), tidelog.connect(broker.address, **quick(**changes)) as log:  # type: ignore[arg-type]
            sent: list[object] = []
            for number, value in enumerate(values):
                try:
                    sent.append(await log.send("orders", value, partition=number % 4))
                except TooLarge as error:
                    sent.append(error)
            return [await outcome_of(found) if isinstance(found, tidelog.Delivery) else found for found in sent]


# ── the topic's limit ──


def test_batches_that_fill_their_topics_limit_to_the_byte_are_taken() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            await log.produce_many("orders", [tidelog.Message(b"x" * 1976, partition=0)] * 20)
        assert len(broker.values("orders")) == 20

    with_broker(test, max_message_bytes="4000")


def test_a_record_that_fills_the_topics_limit_to_the_byte_is_taken_and_a_byte_more_is_refused_at_once() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address) as log:
            await log.produce("orders", b"x" * (5000 - ALONE), partition=0)
            assert len(broker.partitions["orders", 0].batches[0]) == 5000
            with pytest.raises(TooLarge, match="takes 5001 bytes in a batch of its own; orders takes 5000") as refused:
                await log.send("orders", b"x" * (5001 - ALONE), partition=0)
            assert "max.message.bytes" in refused.value.hint
            await log.produce("orders", b"fine", partition=0)
        assert len(broker.requests) == 2, "it was not even sent"

    with_broker(test, max_message_bytes="5000")


def test_a_record_that_is_short_enough_once_it_is_compressed_is_taken() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, compression="zstd") as log:
            await log.produce("orders", b"x" * 100_000)
            with pytest.raises(TooLarge):
                await log.produce("orders", bytes(range(256)) * 3 + b"".join(b"%d" % n for n in range(10_000)))

    with_broker(test, max_message_bytes="5000")


def test_a_limit_that_was_raised_counts_from_the_first_record_that_needs_it() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", b"x")
            broker.topics["orders"].settings["max.message.bytes"] = "20000"
            await once_not_refused(lambda: log.produce("orders", b"x" * 10_000), TooLarge)

    with_broker(test, max_message_bytes="5000")


def test_a_limit_that_was_lowered_costs_the_batches_that_were_filled_to_the_old_one_and_no_more() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(batch_bytes_max=8_000)) as log:
            await log.produce("orders", b"x", partition=0)
            broker.topics["orders"].settings["max.message.bytes"] = "3000"
            full = [await log.send("orders", b"x" * 1_000, partition=0) for _ in range(7)]
            kinds = {type(await outcome_of(delivery)) for delivery in full}
            assert TooLarge in kinds
            assert kinds <= {TooLarge, tidelog.Ack}
            await until(lambda: log._producer._topics.books["orders"].batch_bytes_max == 3_000)
            await log.produce_many("orders", [tidelog.Message(b"y" * 1_000, partition=0)] * 20)
        assert broker.values("orders").count(b"y" * 1_000) == 20

    with_broker(test)


VALUES = st.none() | st.binary(max_size=30) | st.integers(0, 2_500).map(bytes) | st.binary(min_size=1_000, max_size=2_300)
MESSAGES = st.builds(
    tidelog.Message,
    VALUES,
    key=st.none() | st.binary(max_size=300),
    headers=st.none()
    | st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=20), st.none() | st.binary(max_size=300)), max_size=8),
    partition=st.integers(0, 2),
    timestamp_ms=st.integers(0, TIMESTAMP_MS_MAX),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(MESSAGES, max_size=60), st.sampled_from(["none", "gzip", "zstd"]))
def test_whatever_is_sent_the_broker_never_has_to_refuse_it_for_its_size(
    messages: list[tidelog.Message], compression: CompressionName
) -> None:
    async def test(broker: SmallBroker) -> None:
        deliveries = []
        async with tidelog.connect(broker.address, compression=compression) as log:
            for message in messages:
                try:
                    deliveries.append(
                        await log.send(
                            "orders",
                            message.value,
                            key=message.key,
                            headers=message.headers,
                            partition=message.partition,
                            timestamp_ms=message.timestamp_ms,
                        )
                    )
                except TooLarge:
                    continue
            for delivery in deliveries:
                await delivery
        assert len(broker.values("orders")) == len(deliveries)

    with_broker(test, max_message_bytes="2500")


# ── the broker's limits ──


@pytest.mark.parametrize("limits", [{"request_bytes_max": 30_000}, {"request_bytes_max": 30_000, "buffer_bytes_max": 64 << 20}])
def test_a_broker_that_takes_smaller_requests_gets_smaller_requests(limits: dict[str, int]) -> None:
    broker = limited(**limits)
    outcomes = asyncio.run(with_limits(broker, [b"x" * 5_000] * 100))
    assert [type(outcome) for outcome in outcomes] == [tidelog.Ack] * 100
    assert max(request.ByteSize() for request in broker.requests) <= 30_000
    assert len(broker.requests) < 40, "as many batches as fit go together"


def test_no_request_is_larger_than_the_brokers_buffer() -> None:
    broker = limited(request_bytes_max=1 << 20, buffer_bytes_max=40_000)
    assert all(isinstance(outcome, tidelog.Ack) for outcome in asyncio.run(with_limits(broker, [b"x" * 5_000] * 100)))
    assert max(request.ByteSize() for request in broker.requests) <= 40_000


def test_a_record_that_no_request_there_can_hold_is_refused_alone_and_at_once() -> None:
    values = [b"x" * 5_000, b"x" * 31_000, b"x" * 5_000]
    outcomes = asyncio.run(with_limits(limited(request_bytes_max=30_000), values))
    assert [type(outcome) for outcome in outcomes] == [tidelog.Ack, TooLarge, tidelog.Ack]


def test_records_that_would_open_to_more_than_the_broker_takes_travel_in_smaller_batches() -> None:
    broker = limited(decompressed_bytes_max=20_000)
    outcomes = asyncio.run(with_limits(broker, [b"x" * 1_000] * 200, compression="zstd"))  # type: ignore[arg-type]
    assert all(isinstance(outcome, tidelog.Ack) for outcome in outcomes)
    assert len(broker.requests) >= 3
    assert sum(len(batch.record_batch) > 0 for request in broker.requests for batch in request.appends) >= 10


def test_a_broker_that_comes_back_with_a_smaller_limit_is_fed_and_what_is_too_large_for_it_now_fails_alone() -> None:
    async def run() -> None:
        broker = limited(request_bytes_max=1 << 20)
        async with running(broker):
            broker.create_topic("orders", 3)
            async with asyncio.timeout(60), tidelog.connect(broker.address, **quick()) as log:
                await log.produce("orders", b"first", partition=0)
                await broker.stop()
                await until_lost(log, broker)
                fits = [await log.send("orders", b"x" * 4_000, partition=0) for _ in range(10)]
                too_large = await log.send("orders", b"x" * 100_000, partition=1)
                small = await log.send("orders", b"small", partition=2)
                broker.limits.request_bytes_max = 50_000
                await broker.start()
                assert [type(await outcome_of(delivery)) for delivery in fits] == [tidelog.Ack] * 10
                error = await outcome_of(too_large)
                assert isinstance(error, TooLarge)
                assert "does not fit a request there; it takes 50000 bytes" in error.message
                assert isinstance(await outcome_of(small), tidelog.Ack)

    asyncio.run(run())


def test_a_record_in_doubt_that_is_too_large_to_be_sent_again_is_of_unknown_outcome() -> None:
    async def run() -> None:
        broker = limited(request_bytes_max=1 << 20)
        async with running(broker):
            broker.create_topic("orders", 2)
            async with asyncio.timeout(60), tidelog.connect(broker.address, **quick()) as log:
                broker.answering.clear()
                in_doubt = await log.send("orders", b"x" * 100_000, partition=0)
                await until(lambda: bool(broker.requests))
                await broker.stop()
                broker.answering.set()
                broker.limits.request_bytes_max = 50_000
                await broker.start()
                error = await outcome_of(in_doubt)
                assert isinstance(error, OutcomeUnknown)
                assert "may be in the log by an earlier attempt" in error.message

    asyncio.run(run())


def test_a_broker_that_reports_no_limits_gets_requests_within_the_default_ones() -> None:
    broker = SmallBroker()
    broker.reports_limits = False
    assert all(isinstance(outcome, tidelog.Ack) for outcome in asyncio.run(with_limits(broker, [b"x" * 5_000] * 100)))


# ── one record is wrong ──


def test_the_latest_timestamp_that_a_batch_can_hold_is_taken_and_the_next_is_refused_alone() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            before = [await log.send("orders", n, partition=0) for n in range(3)]
            for timestamp_ms in (2**63 - 1, 2**63, -1):
                with pytest.raises(InvalidArgument, match=f"timestamp_ms is {timestamp_ms}"):
                    await log.send("orders", "wrong", partition=0, timestamp_ms=timestamp_ms)
            latest = await log.send("orders", "latest", partition=0, timestamp_ms=2**63 - 2)
            oldest = await log.send("orders", "oldest", partition=0, timestamp_ms=0)
            assert [(await delivery).offset for delivery in (*before, latest, oldest)] == [0, 1, 2, 3, 4]
            assert (await latest).timestamp_ms == 2**63 - 2

    with_broker(test)


def test_a_value_that_looks_like_text_or_a_number_is_sent_as_text_or_a_number() -> None:
    class Name(StrEnum):
        TRACE = "trace"

    class Bytes(bytes):
        pass

    class Number(int):
        pass

    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            headers = [(Name.TRACE, Bytes(b"1"))]
            ack = await log.produce("orders", Bytes(b"v"), key=Bytes(b"k"), headers=headers, partition=0, timestamp_ms=Number(5))
            assert type(ack.timestamp_ms) is int
            await log.produce("orders", "next", partition=0)
        assert broker.partitions["orders", 0].values() == [b"v", b"next"]

    with_broker(test)
