"""Spark beside the broker: what is read from the bucket is what is read through the SDK, record by record, wherever it lies.

The topic is written by a real broker: part of it is Parquet that key compaction has left gaps in, the rest segments; with nulls,
empty bytes, headers, times of the producer, and all codecs.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it
from pyspark.sql.window import Window

import pyspark_tidelog
from segments.history.manifest import decode_manifest
from tests.kit.forked_tidelog import ForkedBroker, run_tidelog
from tidelog import Message, Record, connect
from tidelog.settings import CompressionName
from tidelog.testing.broker_process import BrokerProcess, surroundings

pytestmark = pytest.mark.slow

PARTITIONS: Final = 3
START_MS: Final = 1_767_225_600_000
CODECS: Final[tuple[CompressionName, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")
EAGER: Final = ("--dirty-ratio-min", "0.01", "--merge-files-min", "2", "--row-group-bytes", "4096")


class Summary(NamedTuple):
    """Of one partition; what does not depend on the order of the rows, and then what does."""

    rows: int
    first: int
    last: int
    checksum: int
    out_of_order: int


def messages(seed: int, count: int) -> list[Message]:
    """Of few keys, so that key compaction finds something."""
    chance = random.Random(seed)
    return [
        Message(
            key=chance.choice((None, b"", *(b"k%d" % n for n in range(40)))),
            value=chance.choice((None, b"", b"\x00\xff" * chance.randrange(40))),
            headers=chance.choice(((), (("h", b"1"), ("h", None), ("", b"")))),
            timestamp_ms=START_MS + chance.randrange(10**9),
            partition=chance.randrange(PARTITIONS),
        )
        for _ in range(count)
    ]


async def produce(broker: BrokerProcess, topic: str, seed: int, *, count: int = 150) -> None:
    """With each codec."""
    for at, codec in enumerate(CODECS):
        async with connect(broker.http_url, compression=codec) as log:
            await log.produce_many(topic, messages(seed + at, count))


async def read_by_sdk(broker: BrokerProcess, topic: str) -> list[Record]:
    async with connect(broker.http_url) as log:
        return [record async for record in log.consume(topic, until="end")]


def compact(broker: BrokerProcess) -> None:
    """All that lies in segments, and keys; while the broker is stopped."""
    arguments = ["compact", "--data-dir", str(broker.data_dir), "--once", "--all", *EAGER]
    done = run_tidelog(arguments, env=surroundings(), timeout_s=200)
    assert done.returncode == 0, done.stderr


# ── what both are reduced to ────────────────────────────────────────────────────────────────────────────────────────────


def summary_of(records: Sequence[Record]) -> dict[int, Summary]:
    found = {}
    for partition in {record.partition for record in records}:
        rows = [record for record in records if record.partition == partition]
        offsets = [row.offset for row in rows]
        out_of_order = sum(later <= earlier for earlier, later in pairwise(offsets))
        found[partition] = Summary(len(rows), min(offsets), max(offsets), sum(map(checksum, rows)), out_of_order)
    return found


def checksum(record: Record) -> int:
    headers = ",".join(f"{name}={shown(value)}" for name, value in record.headers)
    reported = "|".join((str(record.offset), str(record.timestamp_ms), shown(record.key), shown(record.value), headers))
    return zlib.crc32(reported.encode())


def shown(data: bytes | None) -> str:
    return "null" if data is None else data.hex().upper()


def summary_by_spark(frame: DataFrame) -> dict[int, Summary]:
    """The same, computed by Spark. The order is that of the tasks, and of the rows in them."""
    headers = "array_join(transform(headers, h -> concat(h.key, '=', coalesce(hex(h.value), 'null'))), ',')"
    reported = F.concat_ws(
        "|",
        F.col("offset").cast("string"),
        F.unix_millis("timestamp").cast("string"),
        F.coalesce(F.hex("key"), F.lit("null")),
        F.coalesce(F.hex("value"), F.lit("null")),
        F.coalesce(F.expr(headers), F.lit("")),
    )
    in_order = Window.partitionBy("partition").orderBy("at")
    rows = frame.select("partition", "offset", F.crc32(reported).alias("checksum"), F.monotonically_increasing_id().alias("at"))
    late = F.count_if(F.col("offset") <= F.col("before"))
    summed = (
        rows.withColumn("before", F.lag("offset").over(in_order))
        .groupBy("partition")
        .agg(F.count("*"), F.min("offset"), F.max("offset"), F.sum("checksum"), late)
    )
    return {row[0]: Summary(*row[1:]) for row in summed.collect()}


def by_the_source(spark: SparkSession, bucket: str, **options: str) -> DataFrame:
    return spark.read.format("tidelog").options(bucket=bucket, includeHeaders="true", **options).load()


def natively(spark: SparkSession, bucket: str, **options: str) -> DataFrame:
    return pyspark_tidelog.read(spark, bucket=bucket, includeHeaders="true", **options)


Reading = Callable[..., DataFrame]
BOTH: Final = pytest.mark.parametrize("reading", [by_the_source, natively])


# ── a topic that lies in both ───────────────────────────────────────────────────────────────────────────────────────────


class Topic(NamedTuple):
    bucket: str
    directory: Path
    records: list[Record]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Topic:
    directory = tmp_path_factory.mktemp("cross")
    with ForkedBroker(directory, flags=("--compact", "false")) as broker:
        broker.start()
        asyncio.run(_created(broker))
        for seed in (0, 100):  # the second time, what is Parquet already is compacted by key and merged
            asyncio.run(produce(broker, "orders", seed))
            broker.stop()
            compact(broker)
            broker.start()
        asyncio.run(produce(broker, "orders", 200))
        records = asyncio.run(read_by_sdk(broker, "orders"))
        broker.stop()
    return Topic(f"file://{directory / 'data' / 'bucket'}", directory / "data" / "bucket", records)


async def _created(broker: BrokerProcess) -> None:
    async with connect(broker.http_url) as log:
        await log.topics.create("orders", partitions=PARTITIONS, settings={"cleanup.policy": "compact"})


def test_the_topic_lies_in_parquet_with_gaps_and_in_segments(topic: Topic) -> None:
    """What the tests below rest on."""
    assert list(topic.directory.glob("topics/orders/*/**/*.parquet"))
    ends = {record.partition: record.offset + 1 for record in topic.records}
    assert sum(ends.values()) == 3 * len(CODECS) * 150
    assert 150 * len(CODECS) < len(topic.records) < sum(ends.values()) - 500
    assert {record.value for record in topic.records} > {None, b""}
    assert {record.headers for record in topic.records} > {()}


@BOTH
def test_spark_reads_what_the_broker_serves_in_the_same_order(spark: SparkSession, topic: Topic, reading: Reading) -> None:
    read = summary_by_spark(reading(spark, topic.bucket, subscribe="orders"))
    expected = summary_of(topic.records)
    assert set(expected) == set(range(PARTITIONS))
    assert {partition: summary._replace(out_of_order=0) for partition, summary in read.items()} == expected
    if reading is by_the_source:  # files that are read natively are dealt out by their sizes
        assert read == expected


@BOTH
def test_a_range_that_begins_in_a_gap_and_ends_in_segments_is_the_same(spark: SparkSession, topic: Topic, reading: Reading) -> None:
    offsets = [record.offset for record in topic.records if record.partition == 1]
    start = next(earlier + 1 for earlier, later in pairwise(offsets) if later > earlier + 1)
    end = offsets[-20]
    read = summary_by_spark(
        reading(
            spark,
            topic.bucket,
            assign='{"orders":[1]}',
            startingOffsets=f'{{"orders":{{"1":{start}}}}}',
            endingOffsets=f'{{"orders":{{"1":{end}}}}}',
        )
    )
    wanted = [record for record in topic.records if record.partition == 1 and start <= record.offset < end]
    assert {partition: summary._replace(out_of_order=0) for partition, summary in read.items()} == summary_of(wanted)


# ── a log that moves on ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_offsets_give_the_same_rows_while_a_broker_produces_compacts_merges_and_deletes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The broker compacts all the time; what is asked for lies above what is deleted."""
    flags = ("--compaction-interval-ms", "100", "--compaction-due-age-ms", "1", "--merge-files-min", "2")
    with ForkedBroker(tmp_path, flags=flags) as broker:
        broker.start()
        bucket = f"file://{broker.data_dir / 'bucket'}"
        asyncio.run(_begin(broker))
        expected = summary_of([record for record in asyncio.run(read_by_sdk(broker, "events")) if 50 <= record.offset < 180])
        asked: dict[str, Any] = {"subscribe": "events", "startingOffsets": _at(50), "endingOffsets": _at(180)}
        pinned = natively(spark, bucket, **asked)
        for turn in range(1, 4):
            asyncio.run(_go_on(broker, turn))
            read = summary_by_spark(by_the_source(spark, bucket, **asked))
            assert read == expected, f"turn {turn}"
            read = summary_by_spark(pinned)
            assert {partition: summary._replace(out_of_order=0) for partition, summary in read.items()} == expected
        assert len(asyncio.run(read_by_sdk(broker, "events"))) > sum(summary.rows for summary in expected.values())
        broker.stop()
    assert has_merged(tmp_path / "data" / "bucket", "events")


def has_merged(bucket: Path, topic: str) -> bool:
    """Whether a file of a later manifest covers what were several."""
    for partition in bucket.glob(f"topics/{topic}/*/_log/*"):
        manifests = [decode_manifest(path.read_bytes(), key=str(path.relative_to(bucket))) for path in sorted(partition.iterdir())]
        spans = [{(file.base_offset, file.last_offset) for file in manifest.files} for manifest in manifests]
        for earlier, later in pairwise(spans):
            if any(sum(first <= base and last <= end for base, last in earlier) > 1 for first, end in later):
                return True
    return False


async def _begin(broker: BrokerProcess) -> None:
    async with connect(broker.http_url) as log:
        await log.topics.create("events", partitions=PARTITIONS, settings={"retention.ms": "-1"})  # the times are old
    await produce(broker, "events", 0)


async def _go_on(broker: BrokerProcess, turn: int) -> None:
    await produce(broker, "events", 1000 * turn)
    async with connect(broker.http_url) as log:
        for partition in range(PARTITIONS):
            await log.topics.delete_records("events", partition, before=15 * turn)


def _at(offset: int) -> str:
    return json.dumps({"events": dict.fromkeys(range(PARTITIONS), offset)})
