"""The sink in a Spark of its own, in front of a real broker: each row once, as it was, whatever is tried again."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

import tidelog
from metadata.errors import DuplicateSequence, TidelogError, Unavailable
from segments.records.partitioner import partition_of
from spark.data_source import TidelogDataSource
from spark.runtime.bucket_thread import BucketThread
from spark.sink import brokers as sink_brokers
from spark.sink import delivery, row_encoder
from spark.sink.commit import newest_done
from spark.sink.staging import STAGE_BYTES
from spark.sink.writer import write_of_query
from tests.kit.forked_tidelog import ForkedBroker
from tests.kit.servers import ROOT
from tidelog.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

START_MS = 1_767_225_600_000
FAILS_ONCE = """
import sys
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

def fails_once(batches):
    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt fails, with all of its rows")

brokers, bucket = sys.argv[1:]
spark = SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.range(0, 300, 1, 3).selectExpr("cast(id as string) key", "cast(id as string) value").repartition(2, "key")
rows = rows.mapInArrow(fails_once, rows.schema)
rows.write.format("tidelog").options(brokers=brokers, bucket=bucket, topic="retried").mode("append").save()
"""


class Cluster:
    def __init__(self, broker: BrokerProcess) -> None:
        self.url = broker.http_url
        self.bucket = f"file://{broker.data_dir}/bucket"
        self.staged = broker.data_dir / "bucket" / "spark"

    @property
    def where(self) -> dict[str, str]:
        return {"brokers": self.url, "bucket": self.bucket}

    def make(self, topic: str, partitions: int = 3) -> str:
        with tidelog.connect_sync(self.url) as log:
            log.topics.create(topic, partitions=partitions)
        return topic

    def values(self, topic: str) -> list[str]:
        with tidelog.connect_sync(self.url) as log:
            return [(record.value or b"").decode() for record in log.consume(topic, from_="earliest", until="end")]

    def markers(self) -> set[str]:
        return {path.name for path in self.staged.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as broker:
        broker.start()
        yield Cluster(broker)


def write(frame: DataFrame, cluster: Cluster, **options: str) -> None:
    frame.write.format("tidelog").options(**cluster.where, **options).mode("append").save()


def read(spark: SparkSession, cluster: Cluster, topic: str) -> list[Row]:
    frame = spark.read.format("tidelog").options(bucket=cluster.bucket, subscribe=topic, includeHeaders="true").load()
    return frame.withColumn("ms", F.unix_millis("timestamp")).orderBy("partition", "offset").collect()


def test_a_batch_write_keeps_keys_values_headers_timestamps_and_partitions(spark: SparkSession, cluster: Cluster) -> None:
    topic = cluster.make("kept")
    rows = [
        (None if n % 5 == 0 else b"k%d" % (n % 7), None if n % 11 == 0 else b"v%d" % n, START_MS + n, n % 3 if n % 2 else None)
        for n in range(200)
    ]
    frame = (
        spark.createDataFrame(rows, "key binary, value binary, ms bigint, partition int")
        .withColumn("timestamp", F.timestamp_millis("ms"))
        .withColumn("headers", F.expr("if(value is null, null, array(named_struct('key', 'h', 'value', value)))"))
        .drop("ms")
    )
    write(frame, cluster, topic=topic, **{"compression.type": "zstd"})
    found = read(spark, cluster, topic)
    assert sorted((row.ms, row.key, row.value) for row in found) == [(ms, key, value) for key, value, ms, _ in rows]
    for row in found:
        key, value, _, partition = rows[row.ms - START_MS]
        assert [tuple(header) for header in row.headers] == ([] if value is None else [("h", value)])
        if partition is not None or key is not None:
            assert row.partition == (partition if partition is not None else partition_of(key or b"", 3))
    assert cluster.markers() == set()


def test_a_column_says_which_topic_each_row_goes_to(spark: SparkSession, cluster: Cluster) -> None:
    topics = [cluster.make("even", 1), cluster.make("odd", 2)]
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) value", "if(id % 2 = 0, 'even', 'odd') topic")
    write(frame, cluster)
    assert [sorted(map(int, cluster.values(topic))) for topic in topics] == [[*range(0, 100, 2)], [*range(1, 100, 2)]]


def test_a_write_with_a_name_is_done_once(spark: SparkSession, cluster: Cluster) -> None:
    topic = cluster.make("named")
    for _ in range(2):
        write(spark.range(10).selectExpr("cast(id as string) value"), cluster, topic=topic, writeId="load of monday")
    assert sorted(map(int, cluster.values(topic))) == [*range(10)]


def test_a_stream_writes_each_row_once_where_spark_runs_its_last_batch_again(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = cluster.make("streamed")
    incoming, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    incoming.mkdir()

    def stream() -> Any:
        query = (
            spark.readStream.format("text")
            .load(str(incoming))
            .writeStream.format("tidelog")
            .options(**cluster.where, topic=topic, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    for batch in range(2):
        (incoming / f"{batch}.txt").write_text("".join(f"{batch}-{n}\n" for n in range(50)))
        query = stream()
    (checkpoint / "commits" / "1").unlink()  # as a driver leaves it that is killed after the sink's commit
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    assert stream().id == query.id
    assert sorted(cluster.values(topic)) == sorted(f"{batch}-{n}" for batch in range(2) for n in range(50))
    with BucketThread(cluster.bucket) as bucket:
        done = bucket.run(lambda store: newest_done(store, write_of_query(query.id)))
    assert done is not None
    assert (done.batch, done.first_batch, done.records, sum(count.records for count in done.total)) == (1, 0, 50, 100)
    assert query.id in done.label


@pytest.mark.own_spark
@pytest.mark.usefixtures("java")
def test_a_task_that_fails_and_is_run_again_by_spark_doubles_nothing(cluster: Cluster) -> None:
    topic = cluster.make("retried")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FAILS_ONCE, cluster.url, cluster.bucket]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=300, capture_output=True)
    assert sorted(map(int, cluster.values(topic))) == [*range(300)]
    assert cluster.markers() <= {"chosen", "done"}


def test_spark_reports_a_missing_topic_with_its_remedy_before_a_task_starts(spark: SparkSession, cluster: Cluster) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) value")
    reported = "there is no topic nowhere. Nothing was written. Create it first: tidelog topic create nowhere"
    with pytest.raises(AnalysisException, match=reported):
        write(frame, cluster, topic="nowhere")


# ── without a JVM ──

ROWS = StructType([StructField("key", StringType()), StructField("value", StringType())])


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"topic": "nowhere"}, "there is no topic nowhere. Nothing was written. Create it first: tidelog topic create nowhere"),
        ({"topic": "kept", "brokers": "http://127.0.0.1:1"}, "http://127.0.0.1:1: can't connect.* Check the address"),
        ({"topic": "kept", "topics": "kept"}, "Did you mean topic"),
        ({}, "neither the option topic nor a column topic"),
    ],
)
def test_a_target_that_is_not_there_is_refused_on_the_driver(
    cluster: Cluster, options: dict[str, str], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_brokers, "OPEN_PATIENCE_S", 0.0)
    with pytest.raises(PySparkException, match=reported):
        TidelogDataSource({**cluster.where, **options}).writer(ROWS, overwrite=False)
    with pytest.raises(PySparkException, match=reported):
        pickle.dumps(TidelogDataSource({**cluster.where, **options}).streamWriter(ROWS, overwrite=False))


def test_a_topic_is_not_overwritten_nor_another_bucket_taken(cluster: Cluster, tmp_path: Path) -> None:
    options = {**cluster.where, "topic": cluster.make("not-overwritten")}
    with pytest.raises(PySparkException, match="a topic can't be overwritten"):
        TidelogDataSource(options).writer(ROWS, overwrite=True)
    options["bucket"] = f"file://{tmp_path}"
    with pytest.raises(PySparkException, match="is not the bucket of these brokers: no cluster has used it yet"):
        TidelogDataSource(options).writer(ROWS, overwrite=False)


def test_rows_that_executors_find_wrong_leave_nothing_behind(cluster: Cluster) -> None:
    writer = TidelogDataSource({**cluster.where, "topic": cluster.make("left")}).writer(ROWS, overwrite=False)
    fits = pa.record_batch({"key": ["k"], "value": ["v" * (STAGE_BYTES // 40)]})
    too_large = pa.record_batch({"key": ["k"], "value": ["v" * (STAGE_BYTES - 1)]})
    before = cluster.markers()
    with pytest.raises(PySparkException, match=r"left/.*: a record takes .* Nothing of this batch of rows was written"):
        writer.write(iter([fits, too_large]))
    assert cluster.markers() == before


def test_rows_too_far_ahead_are_refused_when_they_are_staged_but_not_when_they_were_sent(cluster: Cluster) -> None:
    dates = {"type": "message.timestamp.type", "after_max": "message.timestamp.after.max.ms"}
    rows = pa.record_batch(
        {
            "value": ["v"],
            "timestamp": pa.array([time.time_ns() // 1000 + 2 * 3600 * 1_000_000], pa.timestamp("us", "UTC")),
        }
    )
    options = {**cluster.where, "topic": cluster.make("ahead"), "writeId": "ahead"}
    schema = StructType([StructField("value", StringType()), StructField("timestamp", TimestampType())])

    def set_to(**settings: str | None) -> None:
        with tidelog.connect_sync(cluster.url) as log:
            log.topics.alter("ahead", settings={dates[name]: value for name, value in settings.items()})

    def write_rows() -> None:
        writer = TidelogDataSource(options).writer(schema, overwrite=False)
        writer.commit([writer.write(iter([rows]))])

    before = cluster.markers()
    with pytest.raises(PySparkException, match=r"1 rows too far ahead: .* at most 3600000 ms\..* tidelog topic alter ahead --set"):
        write_rows()
    assert cluster.markers() == before
    set_to(type="LogAppendTime")
    TidelogDataSource(options).writer(schema, overwrite=False).write(iter([rows]))
    set_to(type=None, after_max=str(3 * 3_600_000))
    write_rows()
    set_to(after_max="0")
    write_rows()
    assert cluster.values("ahead") == ["v"]


def test_a_broker_that_is_killed_while_a_batch_is_sent_has_each_row_once(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker:
        broker.start()
        cluster = Cluster(broker)
        topic = cluster.make("killed", 4)
        writer = TidelogDataSource({**cluster.where, "topic": topic}).writer(ROWS, overwrite=False)
        names = [str(n) for n in range(300_000)]
        parts = [names[at : at + 10_000] for at in range(0, 300_000, 10_000)]
        batches = [pa.record_batch({"key": part, "value": part}) for part in parts]
        messages = [writer.write(iter(batches[task::3])) for task in range(3)]
        with ThreadPoolExecutor(1) as driver:
            committing = driver.submit(writer.commit, messages)
            while not committing.done() and not has_records(broker):
                wait([committing], timeout=0.002)
            broker.kill()
            broker.start()
            committing.result()
        assert sorted(cluster.values(topic), key=int) == names
        assert cluster.markers() == set()


def test_an_attempt_goes_on_where_a_broker_says_that_an_earlier_one_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_encoder, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(delivery, "PARTITION_BATCHES", 8)
    writer = TidelogDataSource({**cluster.where, "topic": cluster.make("broken-off", 1)}).writer(ROWS, overwrite=False)
    names = [str(n) for n in range(5_000)]
    messages = [writer.write(iter([pa.record_batch({"key": names, "value": names})]))]
    produce, requests_left = sink_brokers.ConnectedBrokers.produce, 4
    refused: list[type[TidelogError]] = []

    async def broken_off(brokers: Any, address: str, appends: Sequence[sink_brokers.Append]) -> list[TidelogError | None]:
        nonlocal requests_left
        requests_left -= 1
        if not requests_left:
            raise Unavailable("the driver is gone", hint="")
        outcomes = await produce(brokers, address, appends)
        refused.extend(type(outcome) for outcome in outcomes if outcome is not None)
        return outcomes

    monkeypatch.setattr(sink_brokers.ConnectedBrokers, "produce", broken_off)
    with pytest.raises(PySparkException, match=r"So far the rows of 0 of 1 partitions .* Run the write again with .*writeId"):
        writer.commit(messages)
    assert refused == []
    writer.commit(messages)
    assert refused[0] is DuplicateSequence, "its first batches are older than those that the broker remembers"
    assert cluster.values("broken-off") == names


def test_rows_are_staged_on_s3_as_in_a_directory(moto_bucket: str, tmp_path: Path) -> None:
    with ForkedBroker(tmp_path, command="serve", flags=["--bucket", moto_bucket]) as broker:
        broker.start()
        cluster = Cluster(broker)
        options = {"brokers": cluster.url, "bucket": moto_bucket, "topic": cluster.make("on-s3"), "compression.type": "lz4"}
        writer = TidelogDataSource(options).writer(ROWS, overwrite=False)
        names = [str(n) for n in range(20_000)]
        messages = [writer.write(iter([pa.record_batch({"key": names[task::3], "value": names[task::3]})])) for task in range(3)]
        with BucketThread(moto_bucket) as bucket:
            assert len(bucket.run(lambda store: store.list("spark/")).objects) == 3
            writer.commit(messages)
            assert bucket.run(lambda store: store.list("spark/")).objects == ()
        assert sorted(cluster.values("on-s3"), key=int) == names


def has_records(broker: BrokerProcess) -> bool:
    return any(path.stat().st_size > 100_000 for path in (broker.data_dir / "bucket" / "wal").rglob("*") if path.is_file())
