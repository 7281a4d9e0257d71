"""The recipes as streams, run as their command runs them: batch by batch from a topic, into Parquet, and on from the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.kit.spark.slow_workers import despite_slow_workers
from tests.kit.spark.topics_on_disk import START_MS, Bucket
from tests.tidelog.pipelines.test_pipelines import flight_value, rows
from tidelog.pipelines import aircraft_days, hourly_delays, knock_on_delays, rolling_delays
from tidelog.pipelines.command import Pipeline, execute, parser, shown_spark_error

pytestmark = pytest.mark.slow


class Stream:
    """A topic with flights, and one pipeline that reads it."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, directory: Path, *, per_batch: int) -> None:
        self.bucket = Bucket(directory / "bucket")
        self.into = str(directory / "into")
        self._per_batch = per_batch
        self._spark = spark
        self._pipeline = pipeline
        self._checkpoint = str(directory / "checkpoint")

    def produce(self, *values: bytes) -> None:
        self.bucket.produce([(None, value, (), START_MS) for value in values])

    def run(self) -> None:
        """What came since the last time, so many flights at a time."""
        options = ["--bucket", self.bucket.url, "--topic", "orders", "--option", f"maxOffsetsPerTrigger={self._per_batch}"]
        arguments = [*options, "--into", self.into, "--checkpoint", self._checkpoint]
        despite_slow_workers(lambda: execute(self._spark, self._pipeline, parser(self._pipeline).parse_args(arguments)))

    def written(self, *columns: str) -> list[tuple[Any, ...]]:
        return rows(self._spark.read.parquet(self.into).select(*(columns or "*")))

    def as_batch(self) -> list[tuple[Any, ...]]:
        records = self._spark.read.format("tidelog").options(bucket=self.bucket.url, subscribe="orders").load()
        return rows(self._pipeline.recipe(records))


def test_a_late_flight_counts_while_its_hour_is_open_and_not_after_it_and_a_second_run_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, hourly_delays.PIPELINE, tmp_path, per_batch=2)
    in_time = [("12", 30), ("13", 59), ("15", 30), ("14", 10), ("15", 40), ("14", 20)]  # the newest less two hours is 13:40
    stream.produce(*(flight_value(f"2013-01-01 {hour}", minute, dep_delay=1) for hour, minute in in_time))
    stream.produce(
        flight_value("2013-01-01 13", 10, dep_delay=10),  # behind the watermark, and the hour to 14:00 is open
        flight_value("2013-01-01 12", 50, dep_delay=100),  # the hour to 13:00 was written
    )
    stream.produce(flight_value("2013-01-01 18", 30, dep_delay=1), flight_value("2013-01-01 19", 59, dep_delay=1))
    stream.run()
    closed = [("01-01 12:00", 1, 1), ("01-01 13:00", 2, 11), ("01-01 14:00", 2, 2), ("01-01 15:00", 2, 2)]
    assert stream.written("hour", "flights", "delay_minutes") == closed

    stream.bucket.compact()
    stream.produce(flight_value("2013-01-02 10", 0))
    stream.run()
    assert stream.written("hour", "flights", "delay_minutes") == [*closed, ("01-01 18:00", 1, 1), ("01-01 19:00", 1, 1)]


@pytest.mark.parametrize("pipeline", [rolling_delays.PIPELINE, aircraft_days.PIPELINE, knock_on_delays.PIPELINE])
def test_a_stream_of_flights_in_order_writes_what_a_batch_shows(spark: SparkSession, tmp_path: Path, pipeline: Pipeline) -> None:
    stream = Stream(spark, pipeline, tmp_path, per_batch=4)
    stream.produce(
        flight_value("2013-01-01 10", 0, flight=1, arr_delay=45),
        flight_value("2013-01-01 11", 0, flight=2, tailnum="N2", arr_delay=31),
        flight_value("2013-01-01 13", 0, flight=3, dep_delay=20),
        flight_value("2013-01-01 13", 30, flight=4, tailnum="N2", dep_delay=None, arr_delay=None, air_time=None),
    )
    stream.bucket.compact()
    stream.produce(flight_value("2013-01-01 16", 0, flight=5, tailnum="N2", dep_delay=7))
    expected = stream.as_batch()
    stream.produce(flight_value("2013-01-09 00", 0, tailnum="N9"), flight_value("2013-01-09 00", 1, tailnum="N9"))  # all closes
    stream.run()
    assert expected
    assert stream.written() == expected


def test_an_error_of_the_source_is_shown_without_the_traceback_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "bucket")
    arguments = parser(rolling_delays.PIPELINE).parse_args(["--bucket", bucket.url, "--topic", "nowhere"])
    with pytest.raises(Exception, match="nowhere") as caught:
        execute(spark, rolling_delays.PIPELINE, arguments)
    reported = shown_spark_error(str(caught.value))
    assert reported.startswith("there is no topic nowhere on ")
    assert "\n" not in reported
