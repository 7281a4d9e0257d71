"""Reads topics with Spark's own Parquet reader, and only the tail, which lies in segments, through the data source.

    resolve ─▶ files that are whole ─▶ Spark's reader ───────────┐
               files that are cut   ─▶ Spark's reader, filtered ─┼─▶ union
               [compacted_to, end)  ─▶ the data source ──────────┘

Invariant: the rows are those of `spark.read.format("tidelog")` with the same options at the moment of the call, however often they
are counted; no row of a Parquet file goes through Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from metadata.errors import TidelogError
from spark.parquet.files import read_files
from spark.parquet.plan import plan_native
from spark.parquet.s3a import location_for
from spark.runtime.bucket_thread import BucketThread
from spark.source.batch_query import resolve
from spark.source.options import parse_source_options
from spark.source.schema import DDL, HEADERS_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OF_THE_TAIL = {"failondataloss", "includeheaders", "minpartitions", "maxrecordsperpartition"}


def read(spark: SparkSession, *, bucket: str, **options: object) -> DataFrame:
    """Returns the present records of topics, with the columns and options of `spark.read.format("tidelog")`.

        pyspark_tidelog.read(spark, bucket="s3://lake/log", subscribe="orders", startingTimestamp=1767225600000)

    Parquet goes through Spark's own reader (`s3a://` for S3, which needs hadoop-aws on its class path). The offsets are pinned
    here: what is produced later is not in it, and it can be read for as long as replaced files stay (the brokers' delete_grace_ms).
    `minPartitions` and `maxRecordsPerPartition` are of the tail; Spark divides files as `spark.sql.files.maxPartitionBytes` says.

    Raises InvalidArgument, OutOfRange, UnknownTopic, UnknownPartition, Corrupt, Rejected where this Spark can't read that bucket,
    and what the store raises.
    """
    try:
        return _read(spark, bucket, options)
    except TidelogError as error:
        error.add_note(error.hint)  # a notebook shows what an exception says, and its notes
        raise


def _read(spark: SparkSession, bucket: str, options: Mapping[str, object]) -> DataFrame:
    given = {"bucket": bucket} | {name: as_option(value) for name, value in options.items() if value is not None}
    parsed = parse_source_options(given)
    location = location_for(spark, bucket)
    with BucketThread(bucket) as opened:
        plan = plan_native(*opened.run(lambda store: resolve(store, parsed)))
    ddl = DDL + (HEADERS_DDL if parsed.include_headers else "")
    frames = [read_files(spark, plan.whole, root=location.root, ddl=ddl, options=location.options)]
    for cut in plan.cut:
        files = read_files(spark, cut.files, root=location.root, ddl=ddl, options=location.options)
        frames.append(files.where(cut.condition))
    if plan.tail:
        kept = {name: value for name, value in given.items() if name.lower() in _OF_THE_TAIL}
        tail = spark.read.format("tidelog").options(bucket=bucket, **kept, **plan.tail_options())
        frames.append(tail.load())
    return reduce(lambda some, more: some.unionByName(more), frames)


def as_option(value: object) -> str:
    """Formats a value as Spark's readers expect an option: mappings and lists as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return msgspec.json.encode(value).decode() if isinstance(value, Mapping | list | tuple) else str(value)
