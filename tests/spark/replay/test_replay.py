"""Replays by a Spark of its own: each record of the range once, over interruptions; both sides counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

import tidelog
from metadata.errors import InvalidArgument, InvalidTimestamp, Rejected, TidelogError
from metadata.topics.settings import INT64_MAX
from spark.replay.plan import PartitionChoice, ReplayPlan, ReplayRequest, ReplayTarget, Verdict
from spark.replay.replay import ReplayProgress, Running, replay, target_topic
from tests.kit.forked_tidelog import ForkedBroker
from tests.kit.spark.topics_on_disk import Bucket, records
from tidelog import Message
from tidelog.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.slow


class StopReplayError(Exception):
    """Stands for Ctrl-C, or a crash."""


def stop(progress: ReplayProgress) -> None:
    raise StopReplayError


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    made = Bucket(tmp_path / "bucket")
    made.produce(records(0, 60))
    made.compact()
    made.produce(*(records(first, 20) for first in range(60, 120, 20)))
    return made


def asked(bucket: Bucket, target: ReplayTarget, into: str, where: str = "", start: str = "10", end: str = "110") -> ReplayRequest:
    return ReplayRequest(("orders",), bucket.url, start, end, target, into, where)


def test_a_range_that_is_filtered_goes_to_parquet_and_goes_on_after_an_interruption(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    rows, running = str(tmp_path / "rows"), Running(f"{tmp_path}/rows/_checkpoint", batch_offsets=40)
    in_small_batches = replace(running, batch_offsets=2)  # 50 batches take seconds, so the first look finds the replay half done
    wanted = asked(bucket, ReplayTarget.PARQUET, rows, where="value is not null")
    with pytest.raises(InvalidArgument, match=r"'valu = 1' is not a condition that Spark accepts: .*valu.*Nothing was written"):
        replay(spark, asked(bucket, ReplayTarget.PARQUET, rows, where="valu = 1"), running, into=None)
    with pytest.raises(StopReplayError):
        replay(spark, wanted, in_small_batches, into=None, report=stop)
    bucket.compact()
    bucket.produce(records(120, 10))
    with pytest.raises(InvalidArgument, match="is the checkpoint of another replay: --where was 'value is not null', and is ''"):
        replay(spark, asked(bucket, ReplayTarget.PARQUET, rows), running, into=None)
    seen: list[ReplayProgress] = []
    begins: list[tuple[ReplayPlan, int]] = []
    verdict = replay(spark, wanted, running, into=None, report=seen.append, began=lambda plan, done: begins.append((plan, done)))
    expected = [one for one in bucket.written[10:110] if one.value is not None]
    assert verdict == Verdict(len(expected), len(expected))
    ((plan, done),) = begins
    assert plan.offset_count == seen[-1].offsets == 100
    assert 0 < done < 100
    found = spark.read.parquet(rows).withColumn("ms", F.unix_millis("timestamp")).orderBy("offset").collect()
    assert [
        (row.offset, row.ms, row.key, row.value, tuple((header.key, header.value) for header in row.headers)) for row in found
    ] == [tuple(one) for one in expected]
    assert replay(spark, wanted, running, into=None) == verdict
    with pytest.raises(InvalidArgument, match="rows is not empty"):
        replay(spark, wanted, Running(str(tmp_path / "another")), into=None)


def test_a_replay_makes_a_table_and_takes_none_whose_rows_spark_would_hide(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """A file sink of Spark passes over batches whose numbers are in the log of the folder."""
    try:
        wanted, running = asked(bucket, ReplayTarget.TABLE, "replayed", start="0", end="30"), Running(str(tmp_path / "checkpoint"))
        assert replay(spark, wanted, running, into=None) == Verdict(30, 30)
        assert replay(spark, wanted, running, into=None) == Verdict(30, 30)
        assert [row.offset for row in spark.table("replayed").orderBy("offset").collect()] == list(range(30))
        with pytest.raises(InvalidArgument, match="the table replayed is there, and is one of parquet files"):
            replay(spark, wanted, Running(str(tmp_path / "another")), into=None)
    finally:
        spark.sql("drop table if exists replayed")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as started:
        started.start()
        yield started


def test_topics_go_into_another_topic_with_keys_headers_times_partitions_and_their_order(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    bucket = f"file://{broker.data_dir}/bucket"
    with tidelog.connect_sync(broker.http_url) as log:
        for name, partitions in (("source", 2), ("kept", 2), ("spread", 3)):
            log.topics.create(name, partitions=partitions, settings={"retention.ms": "-1"})  # they are of 1970
        log.produce_many(
            "source",
            [
                Message(b"v%d" % n, key=b"k%d" % (n % 7), partition=n % 2, headers=[("h", b"%d" % n)], timestamp_ms=1000 + n)
                for n in range(300)
            ],
        )
    source = ReplayRequest(("source",), bucket, "earliest", "latest", ReplayTarget.TOPIC, "kept")

    def run(wanted: ReplayRequest, reported: Callable[[ReplayProgress], None] = lambda progress: None) -> Verdict:
        running = Running(str(tmp_path / f"{wanted.topics[0]}-{wanted.into}"), brokers=broker.http_url, batch_offsets=120)
        return replay(spark, wanted, running, into=target_topic(wanted, running), report=reported)

    with pytest.raises(StopReplayError):
        run(source, reported=stop)
    assert run(source) == Verdict(300, 300)
    into_three = ReplayRequest(
        ("source",), bucket, "earliest", "latest", ReplayTarget.TOPIC, "spread", "partition = 1", PartitionChoice.AUTO
    )
    assert run(into_three) == Verdict(150, 150)
    assert rows(spark, bucket, "kept") == rows(spark, bucket, "source")
    spread = rows(spark, bucket, "spread")
    assert len({row.partition for row in spread}) > 1
    for key in {row.key for row in spread}:
        mine = [row for row in spread if row.key == key]
        assert len({row.partition for row in mine}) == 1
        assert [row.ms for row in mine] == sorted(row.ms for row in mine)
    with tidelog.connect_sync(broker.http_url) as log:
        log.topics.create("ahead", partitions=2, settings={"message.timestamp.after.max.ms": str(INT64_MAX)})
        log.produce_many("ahead", [Message(b"v", partition=n, timestamp_ms=(1, 2**50)[n]) for n in range(2)])
    with pytest.raises(InvalidTimestamp, match=r"offset 0 of ahead/1 is dated too far ahead: kept takes .* Nothing was written"):
        run(ReplayRequest(("ahead",), bucket, "earliest", "latest", ReplayTarget.TOPIC, "kept"))
    with tidelog.connect_sync(broker.http_url) as log:
        log.topics.delete("kept")
        log.topics.create("kept", partitions=2, settings={"retention.ms": "-1"})
    with pytest.raises(Rejected, match="topic kept was deleted and made again since this replay began"):
        run(source)
    nowhere = ReplayRequest(("source",), bucket, "0", "1", ReplayTarget.TOPIC, "nowhere")
    with pytest.raises(TidelogError, match="nowhere"):
        target_topic(nowhere, Running("", brokers=broker.http_url))
    with pytest.raises(InvalidArgument, match="source would be replayed into itself"):
        target_topic(
            ReplayRequest(("source",), bucket, "0", "1", ReplayTarget.TOPIC, "source"), Running("", brokers=broker.http_url)
        )


def rows(spark: SparkSession, bucket: str, topic: str) -> list[Row]:
    """But for their topic."""
    frame = spark.read.format("tidelog").options(bucket=bucket, subscribe=topic, includeHeaders="true").load()
    frame = frame.withColumn("ms", F.unix_millis("timestamp")).drop("topic", "timestamp", "timestampType")
    return frame.orderBy("partition", "offset").collect()
