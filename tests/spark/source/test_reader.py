"""The data source in a Spark of its own: found without registration, typed as the Kafka source, and clear where it can't read."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from tests.kit.spark.topics_on_disk import START_MS, Bucket, records

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    made = Bucket(tmp_path_factory.mktemp("log") / "bucket")
    made.produce(*(records(first, 50) for first in range(0, 200, 50)))
    made.compact()
    made.produce(records(200, 50))
    return made


def orders(spark: SparkSession, bucket: Bucket, **options: str) -> DataFrame:
    return spark.read.format("tidelog").options(bucket=bucket.url, subscribe="orders", **options).load()


def test_the_columns_are_those_of_the_kafka_source_and_the_rows_those_that_were_written(
    spark: SparkSession, bucket: Bucket
) -> None:
    frame = orders(spark, bucket, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert "headers" not in orders(spark, bucket).columns
    rows = frame.withColumn("ms", F.unix_millis("timestamp")).orderBy("offset").collect()
    assert [
        (row.offset, row.ms, row.key, row.value, tuple((header.key, header.value) for header in row.headers)) for row in rows
    ] == [tuple(written) for written in bucket.written]


def test_a_schema_of_some_columns_reads_only_these(spark: SparkSession, bucket: Bucket) -> None:
    frame = spark.read.format("tidelog").schema("value binary, topic string").options(bucket=bucket.url, subscribe="orders").load()
    assert frame.columns == ["value", "topic"]
    assert frame.where("topic = 'orders'").count() == 250


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_give_the_same_rows_pushed_down_or_not(spark: SparkSession, bucket: Bucket, pushed: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        frame = orders(spark, bucket)
        assert frame.where("partition = 0 and offset >= 30 and offset < 40").count() == 10
        assert frame.where("partition in (1, 2)").count() == 0
        late = F.timestamp_millis(F.lit(START_MS + 240_000))
        assert [row.offset for row in frame.where(F.col("timestamp") >= late).orderBy("offset").collect()] == list(range(240, 250))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"subscribe": "nowhere"}, "there is no topic nowhere on .*tidelog bucket usage"),
        ({"startingOffsets": '{"orders":{"0":251}}'}, "it ends at 250. Give an offset from 0 to 250"),
        ({"startingOfsets": "earliest"}, "Did you mean startingOffsets"),
    ],
)
def test_errors_are_reported_with_their_remedy_before_a_task_starts(
    spark: SparkSession, bucket: Bucket, options: dict[str, str], reported: str
) -> None:
    with pytest.raises(AnalysisException, match=reported):
        spark.read.format("tidelog").options(**{"bucket": bucket.url, "subscribe": "orders", **options}).load().count()
