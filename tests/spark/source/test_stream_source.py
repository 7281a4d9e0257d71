"""Streams in a Spark of its own: batches of the size that is asked, restarts from the checkpoint, and data loss as it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from metadata.model import TopicId
from spark.replay.replay import SLOW_WORKER
from tests.kit.spark.topics_on_disk import Bucket, records

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    made = Bucket(tmp_path / "bucket")
    made.produce(records(0, 60))
    made.compact()
    made.produce(*(records(first, 20) for first in range(60, 100, 20)))
    return made


def into_parquet(spark: SparkSession, bucket: Bucket, **options: str) -> StreamingQuery:
    """What is available, to `rows` beside the bucket."""
    frame = spark.readStream.format("tidelog").options(bucket=bucket.url, subscribe="orders", **options).load()
    write = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(bucket.root.with_name("checkpoint")))
        .trigger(availableNow=True)
    )
    while True:
        query = write.start(str(bucket.root.with_name("rows")))
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if SLOW_WORKER not in str(error):
                raise
        else:
            return query
        finally:
            query.stop()


def read(spark: SparkSession, bucket: Bucket) -> list[tuple[int, int, bytes | None, bytes | None]]:
    rows = spark.read.parquet(str(bucket.root.with_name("rows"))).orderBy("partition", "offset").collect()
    return [(row.partition, row.offset, row.key, row.value) for row in rows]


def written(bucket: Bucket, first: int = 0) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(0, one.offset, one.key, one.value) for one in bucket.written if one.offset >= first]


def test_available_records_come_in_batches_and_each_row_once_over_restarts(spark: SparkSession, bucket: Bucket) -> None:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30", "includeHeaders": "true"}
    query = into_parquet(spark, bucket, **options)
    assert [progress.numInputRows for progress in query.recentProgress] == [30, 30, 30, 10]
    bucket.mirror("orders", TopicId(f"{1:032x}"), 2, revision=2)
    bucket.produce(records(0, 5), partition=1)
    query = into_parquet(spark, bucket, **options)
    assert [progress.numInputRows for progress in query.recentProgress] == [0, 5]
    bucket.produce(records(100, 20))
    bucket.compact()
    bucket.produce(records(120, 20))
    into_parquet(spark, bucket, **options)
    found = read(spark, bucket)
    assert [row for row in found if row[0] == 0] == written(bucket)
    assert [row[1] for row in found if row[0] == 1] == list(range(5))


def test_records_that_were_deleted_before_a_query_came_to_them_fail_it_or_are_passed_over(
    spark: SparkSession, bucket: Bucket
) -> None:
    starting = {"startingOffsets": '{"orders":{"0":10}}', "endingOffsets": '{"orders":{"0":20}}'}
    into_parquet(spark, bucket, **starting)
    bucket.delete_records(50)
    with pytest.raises(StreamingQueryException, match=r"offsets 20 to 49 of orders/0 were deleted.*Set failOnDataLoss to false"):
        into_parquet(spark, bucket)
    into_parquet(spark, bucket, failOnDataLoss="false")
    assert read(spark, bucket) == written(bucket)[10:20] + written(bucket, 50)
