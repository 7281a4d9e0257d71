"""The client and a real broker: a process of its own, a bucket on disk, kill -9 in between."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

import tidelog
from compaction.audit.bucket_audit import Audit, audit_bucket
from metadata.errors import AlreadyExists, InvalidArgument, InvalidName, OutOfRange, TooLarge, UnknownPartition, UnknownTopic
from segments.object_store.directory import DirectoryObjectStore
from tests.kit.forked_tidelog import ForkedBroker
from tidelog.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.slow


def test_produce_and_consume_over_an_http_address(tidelog_broker: BrokerProcess) -> None:
    async def run() -> None:
        async with tidelog.connect(tidelog_broker.http_url) as log:
            await log.topics.create("e2e-orders", partitions=3)
            ack = await log.produce("e2e-orders", {"id": 7}, key="c-7", headers={"trace": "1"}, timestamp_ms=1234)
            assert (ack.offset, ack.timestamp_ms) == (0, 1234)
            await log.produce_many("e2e-orders", [tidelog.Message(n, key=f"k{n % 5}") for n in range(500)])
            records = [record async for record in log.consume("e2e-orders", follow=False)]
            assert sorted(record.json() for record in records if record.key != b"c-7") == list(range(500))
            (first,) = (record for record in records if record.key == b"c-7")
            assert (first.partition, first.offset, first.headers) == (ack.partition, 0, (("trace", b"1"),))
            found = await log.explain("e2e-orders", ack.partition, 0)
            assert found.object_key.startswith("wal/")
            with pytest.raises(OutOfRange):
                await log.explain("e2e-orders", ack.partition, 10_000)

    asyncio.run(run())


def test_a_reader_does_not_go_over_into_a_topic_that_was_made_again(tidelog_broker: BrokerProcess) -> None:
    async def run() -> None:
        quick = tidelog.connect(tidelog_broker.http_url, topic_age_ms_max=200)
        async with quick as log, log.consume("e2e-read-on") as consumer:
            await log.topics.create("e2e-read-on", partitions=1)
            await log.produce("e2e-read-on", "old")
            assert [record.value for record in await consumer.chunk()] == [b"old"]
            await log.topics.delete("e2e-read-on")
            made = await log.topics.create("e2e-read-on", partitions=1)
            await log.produce_many("e2e-read-on", ["new", "new"])
            with pytest.raises(UnknownTopic, match="was deleted") as ended:
                await consumer.chunk()
            assert ended.value.details.get("new_topic_id") in {None, made.id}  # None: seen before it was made again

    asyncio.run(run())


def test_topics_are_managed(tidelog_broker: BrokerProcess) -> None:
    async def run() -> None:
        async with tidelog.connect(f"grpc://{tidelog_broker.grpc_address}") as log:
            made = await log.topics.create("e2e-topic", partitions=2, settings={"retention.ms": "86400000"})
            assert (made.partition_count, made.settings) == (2, {"retention.ms": "86400000"})
            assert "e2e-topic" in [topic.name for topic in await log.topics.list()]
            with pytest.raises(AlreadyExists):
                await log.topics.create("e2e-topic")
            with pytest.raises(InvalidName):
                await log.topics.create("no/slashes")
            with pytest.raises(InvalidArgument):
                await log.topics.alter("e2e-topic", {"retention.msx": "1"})
            altered = await log.topics.alter("e2e-topic", {"retention.ms": None, "max.message.bytes": "2000"})
            assert altered.settings == {"max.message.bytes": "2000"}
            await log.topics.add_partitions("e2e-topic", 4, validate_only=True)
            assert (await log.topics.describe("e2e-topic")).partition_count == 2
            await log.topics.add_partitions("e2e-topic", 4)
            await log.produce("e2e-topic", b"x" * 1500, partition=3)
            described = await log.topics.describe("e2e-topic")
            assert [partition.high_watermark for partition in described.partitions] == [0, 0, 0, 1]
            assert await log.topics.delete_records("e2e-topic", 3, before=-1, validate_only=True) == 1
            with pytest.raises(OutOfRange):
                await log.topics.delete_records("e2e-topic", 3, before=2)
            assert await log.topics.delete_records("e2e-topic", 3, before=1) == 1
            assert (await log.topics.describe("e2e-topic")).partitions[3].log_start_offset == 1
            await log.topics.delete("e2e-topic")
            with pytest.raises(UnknownTopic):
                await log.topics.describe("e2e-topic")

    asyncio.run(run())


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_goes_there_and_back(tidelog_broker: BrokerProcess, compression: str) -> None:
    topic = f"e2e-{compression}"
    with tidelog.connect_sync(tidelog_broker.http_url, compression=compression) as log:  # type: ignore[arg-type]
        log.topics.create(topic, partitions=1)
        log.produce_many(topic, [f"value {n}" for n in range(1000)])
        assert [record.text() for record in log.consume(topic, follow=False)] == [f"value {n}" for n in range(1000)]


def test_each_kind_of_acknowledgement(tidelog_broker: BrokerProcess) -> None:
    with tidelog.connect_sync(tidelog_broker.http_url, acks="leader") as log:
        log.topics.create("e2e-acks", partitions=1)
        assert log.produce("e2e-acks", "leader").offset == 0
    with tidelog.connect_sync(tidelog_broker.http_url, acks="none") as log:
        assert log.produce("e2e-acks", "none").offset == -1
    with tidelog.connect_sync(tidelog_broker.http_url, acks="all") as log:
        assert log.produce("e2e-acks", "all").offset == 2
        assert [record.text() for record in log.consume("e2e-acks", follow=False)] == ["leader", "none", "all"]


def test_a_recreated_topic_takes_records_of_a_producer_that_wrote_to_the_old_one(tidelog_broker: BrokerProcess) -> None:
    with tidelog.connect_sync(tidelog_broker.http_url, retry_pause_ms=5) as log:
        for _ in range(2):
            log.topics.create("e2e-again", partitions=1)
            assert [log.produce("e2e-again", n).offset for n in range(3)] == [0, 1, 2]
            log.topics.delete("e2e-again")


def test_a_broker_with_small_limits_is_fed_and_says_early_what_it_does_not_take(tmp_path: Path) -> None:
    flags = ["--request-bytes-max", "100KiB", "--message-bytes-max", "60KiB"]
    with ForkedBroker(tmp_path, flags=flags) as broker:
        broker.start()
        with tidelog.connect_sync(broker.http_url, compression="lz4") as log:
            log.topics.create("orders", partitions=2)
            log.topics.create("smaller", partitions=1, settings={"max.message.bytes": "20000"})
            acks = log.produce_many("orders", [tidelog.Message(os.urandom(5_000), partition=n % 2) for n in range(200)])
            assert sorted(ack.offset for ack in acks) == sorted([*range(100)] * 2)
            log.produce("orders", os.urandom(60 * 1024 - 61 - 20), partition=0)
            with pytest.raises(TooLarge, match="orders takes 61440"):
                log.produce("orders", os.urandom(61_440), partition=0)
            log.produce_many("smaller", [os.urandom(3_000)] * 50)
            with pytest.raises(TooLarge, match="smaller takes 20000"):
                log.produce("smaller", os.urandom(20_000))
            log.produce("orders", bytes(200_000), partition=0)  # it compresses well
        broker.stop()


def test_a_topic_takes_records_after_it_grows_and_after_it_is_recreated_smaller(tidelog_broker: BrokerProcess) -> None:
    with tidelog.connect_sync(tidelog_broker.http_url, retry_pause_ms=5, retry_pause_ms_max=20, topic_age_ms_max=50) as log:
        log.topics.create("e2e-grows", partitions=1)
        assert log.produce("e2e-grows", 1, partition=0).offset == 0
        log.topics.add_partitions("e2e-grows", 4)
        while log.outcomes.acknowledged < 2:
            with suppress(UnknownPartition):  # it is not asked about more often than every 20 ms
                assert log.produce("e2e-grows", 1, partition=3).offset == 0
        assert {log.produce("e2e-grows", n).partition for n in range(8)} == {0, 1, 2, 3}
        log.topics.delete("e2e-grows")
        with pytest.raises(UnknownTopic):
            log.produce("e2e-grows", 1, partition=0)
        log.topics.create("e2e-grows", partitions=2)
        assert [log.produce("e2e-grows", n, partition=1).offset for n in range(3)] == [0, 1, 2]
        with pytest.raises(UnknownPartition):
            log.produce("e2e-grows", 1, partition=3)


def test_a_broker_that_comes_back_at_another_grpc_port_is_found_through_its_http_port(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker:
        broker.start()
        with tidelog.connect_sync(broker.http_url, retry_pause_ms=20, retry_pause_ms_max=100) as log:
            log.topics.create("orders", partitions=1)
            assert log.produce("orders", 0).offset == 0
            broker.kill()
            waiting = [log.send("orders", n) for n in range(1, 20)]
            port, broker.grpc_address = broker.grpc_address, "127.0.0.1:0"
            broker.start()
            assert broker.grpc_address != port
            assert [delivery.result().offset for delivery in waiting] == list(range(1, 20))
        broker.stop()


def test_kill_minus_nine_under_an_idempotent_producer_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    count, kills = 6_000, 4

    async def run(broker: BrokerProcess) -> list[tidelog.Record]:
        async with tidelog.connect(broker.http_url, batch_bytes_max=4_000, retry_pause_ms=20, retry_pause_ms_max=100) as log:
            await log.topics.create("orders", partitions=4)
            deliveries = []
            follower = asyncio.create_task(_read(log, count))
            for number in range(count):
                deliveries.append(await log.send("orders", number, key=f"key {number % 17}"))
                if number % (count // kills) == 100:
                    await deliveries[max(0, number - 50)]
                    broker.kill()
                    await asyncio.to_thread(broker.start)
            acks = [await delivery for delivery in deliveries]
            records = await follower
            assert len({(ack.partition, ack.offset) for ack in acks}) == count
            value_at = {(record.partition, record.offset): record.json() for record in records}
            assert [value_at[ack.partition, ack.offset] for ack in acks] == list(range(count)), "an acknowledgement lied"
            again = [record async for record in log.consume("orders", follow=False)]
            assert sorted(record.offset for record in again) == sorted(record.offset for record in records)
            return records

    with ForkedBroker(tmp_path) as broker:
        broker.start()
        records = asyncio.run(run(broker))
        broker.stop()
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for record in records:
        by_key[record.key].append(record.json())
    assert sorted(value for values in by_key.values() for value in values) == list(range(count))
    assert all(values == sorted(values) for values in by_key.values()), "out of order within a key"
    audit = asyncio.run(_audit(tmp_path / "data" / "bucket"))
    assert audit.is_sound, audit.findings
    assert (audit.sessions, audit.sealed_sessions) == (kills + 1, kills + 1)
    assert audit.records == count


async def _read(log: tidelog.Client, count: int) -> list[tidelog.Record]:
    records = []
    async for record in log.consume("orders"):
        records.append(record)
        if len(records) == count:
            return records
    raise AssertionError("a follower never ends by itself")


async def _audit(bucket: Path) -> Audit:
    store = await DirectoryObjectStore.open(bucket)
    try:
        return await audit_bucket(store, deep=True)
    finally:
        await store.close()
