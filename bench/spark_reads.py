"""Records that Spark reads, side by side: its own Parquet reader on the files as they lie, ours over it, the data source, the tail.

One query, again and again: how many records, and how long their values are. All of `rows` lie in Parquet, and a quarter as many in
segments, of another bucket. Runs take turns, the first one only warms up, and each must have counted every record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bench.batches import TIMESTAMP_MS
from bench.figures import Figure, Target, median, spread
from bench.made_bucket import TOPIC, MadeBucket
from bench.run import Run
from pyspark_tidelog import read
from segments.records.columns import encode_batch
from spark.runtime.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 4
# Of a partition.
FILES = 2
VALUE_BYTES = 100
BATCH_RECORDS = 2_400
# More than a page has: the same batch twice in a page would be compressed to one.
FILE_BATCH_RECORDS = 24_000
# Of one partition, in a segment: these have 8 MiB.
BATCHES_PER_RUN = 8
ROUNDS = 5


def measure(run: Run) -> list[Figure]:
    with run.new_directory("spark-reads") as directory:
        history, tail = _history(directory / "history", run.rows), _tail(directory / "tail", run.rows // 4)
        spark = spark_session("tidelog bench", master="local[*]", config={"spark.driver.memory": "2g"})
        cores = spark.sparkContext.defaultParallelism

        def source(bucket: MadeBucket, columns: str | None = None) -> DataFrame:
            reader = spark.read.format("tidelog") if columns is None else spark.read.format("tidelog").schema(columns)
            return reader.options(bucket=bucket.url, subscribe=TOPIC).load()

        queries: dict[str, Callable[[], float]] = {
            "plain": lambda: _rate(spark.read.parquet(history[0].folder), history[1]),
            "native": lambda: _rate(read(spark, bucket=history[0].url, subscribe=TOPIC), history[1]),
            "source": lambda: _rate(source(history[0], "value binary"), history[1]),
            "all columns": lambda: _rate(source(history[0]), history[1]),
            "tail": lambda: _rate(source(tail[0], "value binary"), tail[1]),
        }
        try:
            rounds = [{name: query() for name, query in queries.items()} for _ in range(1 + ROUNDS)][1:]
        finally:
            spark.stop()

    def ratio(name: str) -> float:
        return median(one[name] / one["plain"] for one in rounds)

    def note(name: str) -> str:
        rates = [one[name] / 1e6 for one in rounds]
        return f"{median(rates):.2f} M records/s ({spread(rates)})"

    per_core = [one["tail"] / cores / 1e6 for one in rounds]
    return [
        Figure("native read, to spark.read.parquet", ratio("native"), "×", Target(least=0.9), note("native")),
        Figure("data source, to the same", ratio("source"), "×", Target(least=0.4), note("source")),
        Figure("the same, all columns through Python", ratio("all columns"), "×", None, note("all columns")),
        Figure("tail in segments, for each core", median(per_core), "M records/s", Target(least=1.0), spread(per_core)),
        Figure("spark.read.parquet", median(one["plain"] / 1e6 for one in rounds), "M records/s", None, note("plain")),
    ]


def _rate(frame: DataFrame, records: int) -> float:
    """Records a second, from the query's plan to its answer."""
    started_s = time.perf_counter()
    (found,) = frame.selectExpr("length(value) AS size").groupBy().agg({"*": "count", "size": "sum"}).collect()
    seconds = time.perf_counter() - started_s
    assert (found[0], found[1]) in {(records, records * VALUE_BYTES), (records * VALUE_BYTES, records)}, found
    return records / seconds


def _history(root: Path, rows: int) -> tuple[MadeBucket, int]:
    bucket = MadeBucket(root, PARTITIONS)
    batches = max(1, rows // (PARTITIONS * FILES * FILE_BATCH_RECORDS))
    bucket.history(_batch(FILE_BATCH_RECORDS), batches_per_file=batches, files=FILES)
    return bucket, batches * PARTITIONS * FILES * FILE_BATCH_RECORDS


def _tail(root: Path, rows: int) -> tuple[MadeBucket, int]:
    bucket = MadeBucket(root, PARTITIONS)
    segments = max(1, rows // (PARTITIONS * BATCHES_PER_RUN * BATCH_RECORDS))
    bucket.segments(_batch(BATCH_RECORDS), segments, batches_per_run=BATCHES_PER_RUN)
    return bucket, segments * PARTITIONS * BATCHES_PER_RUN * BATCH_RECORDS


def _batch(records: int) -> bytes:
    """Keys that come again, and values of which zstd saves about half."""
    random = np.random.default_rng(1)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[random.integers(0, 16, (records, VALUE_BYTES))]
    ends = np.arange(records + 1, dtype=np.int32) * VALUE_BYTES
    values = pa.Array.from_buffers(pa.binary(), records, [None, pa.py_buffer(ends), pa.py_buffer(digits)])
    keys = pa.array([b"customer-%05d" % number for number in random.integers(0, 10_000, records)], pa.binary())
    return encode_batch(keys, values, timestamps_ms=np.full(records, TIMESTAMP_MS, np.int64))
