"""Topics through Spark's own Parquet reader: the rows of the data source, and of what was written, without Python in between."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

import pyspark_tidelog
from metadata.errors import InvalidArgument, OutOfRange, Rejected, Unavailable, UnknownTopic
from segments.records.compression import Codec
from spark.parquet.files import read_files
from spark.parquet.plan import StoredFile
from spark.parquet.s3a import location_for
from tests.kit.spark.made_log import MadeLog
from tests.kit.spark.topics_on_disk import START_MS, Bucket, Written, records

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MadeLog:
    """Parquet with gaps, and behind it segments with batches of all codecs; nulls and headers everywhere."""
    made = MadeLog(tmp_path_factory.mktemp("my log") / "bucket")
    made.history(0, records(0, 60), without=[0, 1, 30, 59])
    made.history(0, records(60, 40), without=range(5, 30))
    made.history(1, records(0, 50))
    for first, codec in zip(range(100, 200, 20), Codec, strict=True):
        made.segment({0: records(first, 20), 2: records(first - 100, 20)}, codec=codec)
    return made


def rows_of(frame: DataFrame) -> list[tuple[int, Written]]:
    columns = frame.withColumn("ms", F.unix_millis("timestamp")).orderBy("partition", "offset").collect()
    return [
        (
            row.partition,
            Written(row.offset, row.ms, row.key, row.value, tuple((header.key, header.value) for header in row.headers)),
        )
        for row in columns
    ]


def rows_written(log: MadeLog, ranges: dict[int, range]) -> list[tuple[int, Written]]:
    return [(partition, one) for partition, written in log.written.items() for one in written if one.offset in ranges[partition]]


def named(starts: dict[int, int]) -> dict[str, dict[str, int]]:
    return {"orders": {str(partition): offset for partition, offset in starts.items()}}


def test_all_columns_and_rows_are_those_of_the_data_source_and_those_that_were_written(spark: SparkSession, log: MadeLog) -> None:
    frame = pyspark_tidelog.read(spark, bucket=log.url, subscribe="orders", includeHeaders=True)
    source = spark.read.format("tidelog").options(bucket=log.url, subscribe="orders", includeHeaders="true").load()
    assert frame.schema == source.schema
    assert "headers" not in pyspark_tidelog.read(spark, bucket=log.url, subscribe="orders").columns
    assert rows_of(frame) == rows_of(source) == rows_written(log, dict.fromkeys(range(3), range(1000)))


@pytest.mark.parametrize(
    ("starts", "ends"),
    [
        ({0: 1, 1: 10, 2: 100}, {0: 65, 1: 11, 2: 100}),
        ({0: 59, 1: 0, 2: 5}, {0: 199, 1: 50, 2: 6}),
        ({0: 90, 1: 50, 2: 0}, {0: 101, 1: 50, 2: 0}),
    ],
)
def test_a_range_is_read_to_the_record(spark: SparkSession, log: MadeLog, starts: dict[int, int], ends: dict[int, int]) -> None:
    frame = pyspark_tidelog.read(
        spark,
        bucket=log.url,
        subscribe="orders",
        startingOffsets=named(starts),
        endingOffsets=named(ends),
        includeHeaders=True,
    )
    assert rows_of(frame) == rows_written(log, {partition: range(starts[partition], ends[partition]) for partition in range(3)})


def test_a_time_that_is_more_than_sparks_keeps_no_other_record_from_being_read(spark: SparkSession, tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "bucket", partitions=1)
    for _ in range(2):
        log.history(0, [(None, b"now", (), START_MS), (None, b"nanoseconds", (), 10**6 * START_MS), (None, b"none", (), -1)])
    log.segment({0: [(None, b"last", (), 2**63 - 2)]})
    expected = [1000 * START_MS, (2**63 - 1) // 1000 * 1000, -1000]
    source = spark.read.format("tidelog").options(bucket=log.url, subscribe="orders").load()
    for frame in (source, pyspark_tidelog.read(spark, bucket=log.url, subscribe="orders")):
        rows = frame.selectExpr("offset", "unix_micros(timestamp) as time").orderBy("offset").collect()
        assert [row.time for row in rows] == [*expected, *expected, expected[1]]


def test_parquet_is_read_without_python_and_filters_reach_it(spark: SparkSession, log: MadeLog) -> None:
    starts = named({0: 1, 1: 0, 2: 0})
    frame = pyspark_tidelog.read(
        spark, bucket=log.url, subscribe="orders", startingOffsets=starts, endingOffsets=named({0: 65, 1: 50, 2: 0})
    )
    plan = explained(frame.where("offset >= 40").select("value"))
    assert plan.count("FileScan parquet") == 2, "whole files, and cut ones"
    assert "PushedFilters: [IsNotNull(offset), GreaterThanOrEqual(offset,40)]" in plan
    assert "ReadSchema: struct<value:binary,offset:bigint>" in plan
    assert "python" not in plan.lower()
    with_tail = explained(pyspark_tidelog.read(spark, bucket=log.url, subscribe="orders"))
    assert with_tail.count("BatchScan tidelog") == 1


def explained(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_nothing_to_read_has_the_columns_all_the_same(spark: SparkSession, tmp_path: Path) -> None:
    empty = MadeLog(tmp_path / "bucket")
    frame = pyspark_tidelog.read(spark, bucket=empty.url, subscribe="orders", includeHeaders=True)
    assert frame.schema.simpleString().endswith("timestampType:int,headers:array<struct<key:string,value:binary>>>")
    assert frame.collect() == []


def test_the_rows_stay_the_same_while_the_log_goes_on_and_is_compacted(spark: SparkSession, tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "bucket")
    bucket.produce(records(0, 30), records(30, 30))
    bucket.compact()
    bucket.produce(records(60, 20))
    frame = pyspark_tidelog.read(spark, bucket=bucket.url, subscribe="orders", startingTimestamp=START_MS + 10_000)
    before = frame.orderBy("offset").collect()
    assert [row.offset for row in before] == list(range(10, 80))
    bucket.produce(records(80, 20))
    bucket.compact()
    assert frame.orderBy("offset").collect() == before
    assert pyspark_tidelog.read(spark, bucket=bucket.url, subscribe="orders").count() == 100


def test_a_file_that_is_gone_or_damaged_fails_the_query_whatever_the_session_says(spark: SparkSession, tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "bucket")
    log.history(0, records(0, 50))
    (path,) = log.root.glob("topics/orders/*/partition=0/*.parquet")
    body = path.read_bytes()
    for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        spark.conf.set(f"spark.sql.files.{name}", "true")
    try:
        damaged = bytearray(body)
        damaged[60] ^= 1
        for left in (bytes(damaged), None):
            path.unlink()
            if left is not None:
                path.write_bytes(left)
            frame = pyspark_tidelog.read(spark, bucket=log.url, subscribe="orders")
            with pytest.raises(Exception, match=path.name):  # Py4J's, or Spark's: it differs by when it is found
                frame.collect()
            path.write_bytes(body)
        assert pyspark_tidelog.read(spark, bucket=log.url, subscribe="orders").count() == 50
    finally:
        for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):
            spark.conf.unset(f"spark.sql.files.{name}")


def test_errors_are_reported_before_anything_is_read(spark: SparkSession, log: MadeLog) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic nowhere"):
        pyspark_tidelog.read(spark, bucket=log.url, subscribe="nowhere")
    with pytest.raises(InvalidArgument, match="startingOfsets") as wrong:
        pyspark_tidelog.read(spark, bucket=log.url, subscribe="orders", startingOfsets="latest")
    assert wrong.value.__notes__ == ["Did you mean startingOffsets?"]
    with pytest.raises(OutOfRange, match="it ends at 50"):
        pyspark_tidelog.read(spark, bucket=log.url, assign={"orders": [1]}, endingOffsets=named({1: 51}))
    with pytest.raises(Rejected, match="no hadoop-aws") as missing:
        pyspark_tidelog.read(spark, bucket="s3://lake/log", subscribe="orders")
    assert re.search(r"--packages org\.apache\.hadoop:hadoop-aws:\d+\.\d+\.\d+,", missing.value.hint)


def test_a_session_that_would_ignore_the_list_of_files_is_refused(spark: SparkSession, log: MadeLog) -> None:
    ignored = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
    spark.conf.set(ignored, "true")
    try:
        with pytest.raises(Unavailable, match="took 0 of 3 Parquet files"):
            pyspark_tidelog.read(spark, bucket=log.url, subscribe="orders")
    finally:
        spark.conf.unset(ignored)


def test_plain_parquet_reads_what_is_in_files_and_has_the_same_columns(spark: SparkSession, log: MadeLog) -> None:
    frame = spark.read.parquet(f"file://{log.root}/topics/orders/{log.topic_id}")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    in_files = {0: range(100), 1: range(100), 2: range(0)}
    assert rows_of(frame) == rows_written(log, in_files)


def test_s3_settings_of_the_session_count_and_defaults_of_hadoop_do_not(spark: SparkSession) -> None:
    hadoop = spark._jsc.hadoopConfiguration()
    said = {"fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme", "fs.s3a.endpoint.region": "eu-west-1"}
    for name, value in said.items():
        hadoop.set(name, value)
    try:
        location = location_for(spark, "s3://lake/log?endpoint=https://store:9000&region=eu-central-1")
    finally:
        for name in said:
            hadoop.unset(name)
    assert location.root == "s3a://lake/log"
    assert location.options == {
        "fs.s3a.bucket.lake.endpoint": "https://store:9000",
        "fs.s3a.bucket.lake.path.style.access": "true",
    }


def test_parquet_on_s3_is_read_through_the_file_system_that_the_session_has_for_s3a(spark: SparkSession, log: MadeLog) -> None:
    """hadoop-aws is not installed here: another file system answers for s3a:// and shows a folder instead."""
    overlay = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.viewfs.mounttable.lake.link./log": log.url,
    }
    files = [
        StoredFile(str(path.relative_to(log.root)), path.stat().st_size) for path in sorted(log.root.glob("topics/**/*.parquet"))
    ]
    frame = read_files(spark, files, root="s3a://lake/log", ddl="partition int, offset bigint", options=overlay)
    assert {path.partition("://")[0] for path in frame.inputFiles()} == {"s3a"}
    assert frame.count() == len(rows_written(log, {0: range(100), 1: range(100), 2: range(0)}))
