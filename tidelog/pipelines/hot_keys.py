"""Finds the keys with the most records and bytes, and how uneven the partitions are.

    python -m tidelog.pipelines.hot_keys --bucket URL --topic flights [--top 20]

A key lies in one partition, so one that has more than a partition's share of the records sets the pace for all who read them.
"""

from __future__ import annotations

import argparse
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from tidelog.pipelines.command import Pipeline, run_pipeline, show_whole


def sized(records: DataFrame) -> DataFrame:
    """Returns the topic, partition, key and size in bytes of each record."""
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    return records.select("topic", "partition", "key", size.alias("size"))


def hot_keys(sized: DataFrame, top: int) -> DataFrame:
    """Returns the keys with the most records: records, bytes, and their percentage of the topic. A null key stands for all without
    one."""
    counted = sized.groupBy("topic", "key").agg(F.count("*").alias("records"), F.sum("size").alias("bytes"))
    shares = [
        F.round(100 * F.col(name) / F.sum(name).over(Window.partitionBy("topic")), 1).alias(f"percent_of_{name}")
        for name in ("records", "bytes")
    ]
    return counted.select("*", *shares).orderBy(F.desc("records"), F.desc("bytes"), "topic", "key").limit(top)


def partition_skew(sized: DataFrame) -> DataFrame:
    """Computes for each partition with records: their number, bytes and keys, and the ratio to the mean of its topic."""
    counted = sized.groupBy("topic", "partition").agg(
        F.count("*").alias("records"), F.sum("size").alias("bytes"), F.count_distinct("key").alias("keys")
    )
    mean = F.avg("records").over(Window.partitionBy("topic"))
    return counted.withColumn("times_mean", F.round(F.col("records") / mean, 2)).orderBy("topic", "partition")


def show(sized: DataFrame, arguments: argparse.Namespace) -> None:
    sized.cache()
    show_whole(hot_keys(sized, arguments.top).withColumn("key", F.col("key").cast("string")))
    show_whole(partition_skew(sized))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--top", type=int, default=20, metavar="N", help="so many keys (20)")


PIPELINE: Final = Pipeline(
    about="Which keys have the most records and bytes, and how uneven the partitions are.",
    recipe=sized,
    show=show,
    topic=None,
    writes=False,
    add_arguments=add_arguments,
)

if __name__ == "__main__":
    raise SystemExit(run_pipeline(PIPELINE))
