"""What a program sees that reads: where it begins and ends, order, and brokers that break in the middle of it."""

from __future__ import annotations

import asyncio
import gc

import grpc.aio
import pytest

import tidelog
from metadata.errors import Corrupt, InvalidArgument, OutOfRange, Rejected, Throttled, Unavailable, UnknownPartition, UnknownTopic
from tests.kit.tidelog.consuming import QUICK, read, read_out, read_until_it_fails, until, with_records
from tests.kit.tidelog.producing import impatient
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.positions import StartLike

pytestmark = pytest.mark.slow


def test_every_record_is_read_once_and_in_order_within_its_partition() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        found = await read(log)
        assert sorted(found) == sorted((n % 3, n // 3, n) for n in range(30))
        for partition in range(3):
            assert [value for p, _, value in found if p == partition] == list(range(partition, 30, 3))

    with_records(test)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", set(range(30))),
        ("latest", set()),
        ("-2", set(range(24, 30))),
        (-1, {27, 28, 29}),
        ("8", set(range(24, 30))),
        ({0: 9, 2: 8}, {27, 26, 29}),
        ("@1027", {27, 28, 29}),
        ("@5000", set()),
        ("-100", set(range(30))),
        (10, set()),
    ],
)
def test_reading_begins_where_it_was_asked_to(start: StartLike, expected: set[int]) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        assert {value for _, _, value in await read(log, from_=start)} == expected

    with_records(test)


def test_only_the_partitions_asked_for_are_read() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        assert {partition for partition, _, _ in await read(log, partitions=[2, 0])} == {0, 2}

    with_records(test)


def test_reading_up_to_the_end_leaves_what_comes_later() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        seen = []
        async for record in log.consume("orders", until="end"):
            seen.append(record.json())
            if len(seen) == 1:
                await log.produce_many("orders", [tidelog.Message(1000 + n, partition=n % 3) for n in range(30)])
        assert sorted(seen) == list(range(30))

    with_records(test)


def test_following_waits_for_what_comes_later() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        seen = []
        async for record in log.consume("orders"):
            seen.append(record.json())
            if len(seen) == 30:
                await log.produce("orders", 30)
            if len(seen) == 31:
                break
        assert sorted(seen) == list(range(31))

    with_records(test)


def test_positions_are_behind_the_last_record_read_and_not_the_last_fetched() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", partitions=[1])
        async for record in consumer:
            if record.offset == 4:
                break
        assert consumer.positions == {1: 5}

    with_records(test)


def test_leaving_the_loop_ends_the_reading() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        async for _ in log.consume("orders"):
            break
        async with asyncio.timeout(60):
            await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name().startswith("fetch")])

    with_records(test)


def test_a_reader_that_was_left_says_so_instead_of_leaving_records_out() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", follow=False)
        async for _ in consumer:
            break
        await consumer.aclose()
        with pytest.raises(Rejected, match="closed before its end"):
            await consumer.chunk()
        whole = log.consume("orders", follow=False)
        assert len(await read_out(whole)) == 30
        await whole.aclose()
        assert await whole.chunk() == []

    with_records(test)


def test_a_consumer_that_waits_while_the_client_is_left_does_not_end_as_if_it_had_read_all() -> None:
    async def run() -> None:
        async with running(SmallBroker()) as broker:
            broker.create_topic("orders", 1)
            async with tidelog.connect(broker.address, **QUICK) as log:
                consumer = log.consume("orders")
                waiting = asyncio.create_task(consumer.chunk())
                await until(lambda: broker.fetches > 0)
            with pytest.raises(Rejected, match="ended before its end"):
                await waiting

    asyncio.run(run())


def test_reading_begins_within_the_clients_block() -> None:
    async def run() -> None:
        async with running(SmallBroker()) as broker:
            broker.create_topic("orders", 1)
            async with tidelog.connect(broker.address, **QUICK) as log:
                consumer = log.consume("orders")
            with pytest.raises(Rejected, match="the client is closed"):
                await consumer.chunk()

    asyncio.run(run())


def test_leaving_the_block_of_the_consumer_ends_the_reading() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders") as consumer:
            assert await consumer.chunk()
        assert not _fetching_tasks()

    with_records(test)


def test_a_reader_that_is_forgotten_ends_its_tasks() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders")
        await consumer.chunk()
        assert _fetching_tasks()
        del consumer
        gc.collect()
        async with asyncio.timeout(60):
            await asyncio.wait(_fetching_tasks())
        assert not _fetching_tasks()

    with_records(test)


def _fetching_tasks() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(("fetch", "route"))]


def test_a_wait_that_is_cancelled_loses_no_record() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders")
        values: list[int] = []
        while len(values) < 31:
            try:
                async with asyncio.timeout(0.02):
                    values += [record.json() for record in await consumer.chunk()]
            except TimeoutError:
                await log.send("orders", 30, partition=0)
        assert sorted(values)[:31] == [*range(31)]
        await consumer.aclose()

    with_records(test)


def test_a_batch_that_cannot_be_decoded_ends_its_partition_and_no_other() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        batches = broker.partitions["orders", 1].batches
        assert len(batches) == 10, "one record in each"
        batches[4] = batches[4][:-1] + bytes([batches[4][-1] ^ 1])
        consumer = log.consume("orders", follow=False)
        seen, error = await read_until_it_fails(consumer)
        assert isinstance(error, Corrupt)
        assert "the batch at [4, 5) of orders/1 can't be decoded" in error.message
        assert sorted(seen) == sorted(n for n in range(30) if n % 3 != 1 or n // 3 < 4)
        assert consumer.positions == {0: 10, 1: 4, 2: 10}
        assert error.details["next_offset"] == 5
        assert "Read on from offset 5" in error.hint
        assert [offset for _, offset, _ in await read(log, from_={1: 5})] == [5, 6, 7, 8, 9]

    with_records(test, batch_bytes_max=27)


def test_reading_ahead_stops_at_its_bound() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        await log.produce_many("orders", [tidelog.Message(b"x" * 1000, partition=0)] * 1000)
        consumer = log.consume("orders", follow=False)
        first = await consumer.chunk()
        for _ in range(100):
            await asyncio.sleep(0)
        fetches = broker.fetches
        assert fetches <= 5
        seen = len(first)
        while records := await consumer.chunk():
            seen += len(records)
        assert seen == 1030
        assert broker.fetches > 2 * fetches

    with_records(test, read_ahead_bytes_max=20_000, fetch_bytes_max=10_000, batch_bytes_max=5_000)


# ── brokers that fail ──


def test_reading_goes_on_after_every_kind_of_break_without_losing_or_repeating() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.fetch_faults = [ConnectionError(), Throttled("busy", retry_after_s=0.001), ConnectionError(), ConnectionError()] * 5
        seen = []
        async for record in log.consume("orders"):
            seen.append(record.json())
            if len(seen) == 30:
                await broker.stop()
                await broker.start()
                await log.produce("orders", 30)
            if len(seen) == 31:
                break
        assert sorted(seen) == list(range(31))
        assert not broker.fetch_faults

    with_records(test, fetch_bytes_max=200, batch_bytes_max=150)


def test_partitions_are_followed_to_their_new_leaders() -> None:
    async def run() -> None:
        async with running(SmallBroker("a")) as a, running(SmallBroker("b")) as b:
            a.create_topic("orders", 4)
            b.join(a)
            a.leaders |= {("orders", partition): "ab"[partition % 2] for partition in range(4)}
            async with tidelog.connect(a.address, **QUICK) as log, asyncio.timeout(60):
                seen: list[int] = []
                await log.produce_many("orders", _numbers(0))
                async for record in log.consume("orders"):
                    seen.append(record.json())
                    if len(seen) == 500:
                        break
                    if len(seen) % 100 == 0:
                        a.leaders |= {partition: "b" if leader == "a" else "a" for partition, leader in a.leaders.items()}
                        await log.produce_many("orders", _numbers(len(seen)))
        assert sorted(seen) == list(range(500))
        assert b.fetches

    asyncio.run(run())


def _numbers(start: int) -> list[tidelog.Message]:
    return [tidelog.Message(start + n, partition=n % 4) for n in range(100)]


def test_a_broker_that_stays_away_ends_a_reading_that_has_an_end() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        impatient(log, delivery_timeout_ms=1_000)
        consumer = log.consume("orders", follow=False)
        await consumer.chunk()
        impatient(log, request_timeout_ms=1_000)
        await broker.stop()
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
            await read_out(consumer)
        await broker.start()

    with_records(test, fetch_bytes_max=100, read_ahead_bytes_max=1)


def test_an_error_that_stays_is_raised_after_what_was_fetched_before_it(caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders")
        seen = [len(await consumer.chunk()) for _ in range(3)]
        assert sum(seen) == 30
        broker.fetch_faults = [Corrupt("bad segment")]
        with pytest.raises(Corrupt, match="bad segment"):
            await read_out(consumer)
        assert "retrying" not in caplog.text

    with_records(test, fetch_wait_ms_max=50)


def test_an_offset_that_is_gone_is_an_error_unless_the_reader_chose_otherwise() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        for partition in range(3):
            held = broker.partitions["orders", partition]
            del held.batches[:5]
            held.start = 5
        with pytest.raises(OutOfRange, match="offset 2") as raised:
            await read(log, from_=2, partitions=[0])
        assert (raised.value.details["log_start_offset"], raised.value.details["high_watermark"]) == (5, 10)
        assert "auto_offset_reset" in raised.value.hint
        assert [offset for _, offset, _ in await read(log, from_=2, partitions=[0], auto_offset_reset="earliest")] == [
            5,
            6,
            7,
            8,
            9,
        ]
        assert await read(log, from_=2, partitions=[0], auto_offset_reset="latest") == []
        with pytest.raises(OutOfRange, match=r"offset 11 of orders/0 is outside of \[5, 10\]"):
            await read(log, from_=11, partitions=[0])

    with_records(test, batch_bytes_max=27)


# ── wrong use ──


def test_a_wrong_argument_is_refused_with_a_remedy() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        with pytest.raises(InvalidArgument, match="no place to begin"):
            log.consume("orders", from_="yesterday")
        with pytest.raises(InvalidArgument, match="until is"):
            log.consume("orders", until="tomorrow")  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="auto_offset_reset"):
            log.consume("orders", auto_offset_reset="none")  # type: ignore[call-overload]
        with pytest.raises(UnknownPartition, match="7 was asked for"):
            await read(log, partitions=[7])
        with pytest.raises(UnknownPartition, match="none for partition 1"):
            await read(log, from_={0: 1}, partitions=[0, 1])
        with pytest.raises(UnknownTopic, match="there is no topic order"):
            async for _ in log.consume("order"):
                pass

    with_records(test)


def test_the_ends_of_a_topic_can_be_asked_for() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        offsets = await log.offsets("orders")
        assert {partition: (ends.log_start_offset, ends.high_watermark) for partition, ends in offsets.items()} == {
            0: (0, 10),
            1: (0, 10),
            2: (0, 10),
        }
        assert (await log.cluster()).bucket == "memory://"

    with_records(test)


def test_an_address_without_a_server_is_reported_with_a_remedy() -> None:
    async def run() -> None:
        for address, shown in (("grpc://127.0.0.1:1", r"127\.0\.0\.1:1"), ("http://127.0.0.1:1", r"http://127\.0\.0\.1:1")):
            with pytest.raises(Unavailable, match=f"{shown}: can't connect") as raised:
                async with tidelog.connect(address, connect_timeout_ms=2_000):
                    pass
            assert "tidelog dev" in raised.value.hint

    asyncio.run(run())


def test_the_first_address_that_answers_is_enough() -> None:
    async def run() -> None:
        async with running(SmallBroker()) as broker:
            broker.create_topic("orders", 1)
            async with tidelog.connect("http://127.0.0.1:1, grpc://127.0.0.1:1", broker.address) as log:
                assert (await log.produce("orders", 1)).offset == 0

    asyncio.run(run())


def test_a_server_that_is_no_broker_is_reported_as_such() -> None:
    async def run() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with pytest.raises(Rejected, match="Method not found") as raised:
            async with tidelog.connect(f"grpc://127.0.0.1:{port}"):
                pass
        assert "no Tidelog broker" in raised.value.hint
        await server.stop(None)

    asyncio.run(run())
