"""How long Spark's driver plans a query over 10,000 Parquet files and 1,000 segments: the data source, and the native read.

The bucket is a directory. The files are named by manifests and are not there, because no plan opens one; segments and their indexes
are as brokers write them. Spark is warm: its first query costs seconds of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.batches import record_batch
from bench.figures import Figure, Target, median, spread
from bench.made_bucket import TOPIC, MadeBucket
from bench.run import Run
from pyspark_tidelog import read
from spark.runtime.bucket_thread import BucketThread
from spark.runtime.session import spark_session
from spark.source.batch_query import plan_batch
from spark.source.options import parse_source_options

PARTITIONS = 10
FILES = 10_000
SEGMENTS = 1_000
ROUNDS = 3
TARGET = Target(most=5.0)


def measure(run: Run) -> list[Figure]:
    with run.new_directory("spark-planning") as directory:
        made = MadeBucket(directory, PARTITIONS)
        made.history_in_name_only(files=FILES // PARTITIONS, records_per_file=800_000)
        made.segments(record_batch(10), SEGMENTS)
        options = {"bucket": made.url, "subscribe": TOPIC}

        def in_process() -> int:
            with BucketThread(made.url) as bucket:
                return len(plan_batch(bucket, parse_source_options(options)))

        spark = spark_session("tidelog bench", master="local[*]")
        try:

            def source() -> int:
                return int(spark.read.format("tidelog").options(**options).load()._jdf.rdd().getNumPartitions())

            def native() -> int:
                return len(read(spark, **options)._jdf.inputFiles())

            source()
            native()
            found = [
                _figure("to tasks, in Python", in_process),
                _figure("data source, until Spark has its tasks", source),
                _figure("native read, until Spark has its files", native),
            ]
        finally:
            spark.stop()
    return found


def _figure(what: str, plan: Callable[[], int]) -> Figure:
    seconds = []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        assert plan() >= FILES
        seconds.append(time.perf_counter() - started_s)
    return Figure(what, median(seconds), "s", TARGET, spread(seconds))
