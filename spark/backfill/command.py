"""`tidelog backfill`: compacts what waits in segments on Spark's executors. Nothing heavy is imported before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog.cli.app.errors import UNHEALTHY
from tidelog.cli.app.output import Output, OutputOption, say, show_one


def backfill(
    bucket: Annotated[str, typer.Option("--bucket", metavar="URL", help="s3://BUCKET/PREFIX or file:///DIRECTORY.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="This topic; may be given again.", show_default="all")
    ] = None,
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="Master of Spark, if neither spark-submit nor a session has one.")
    ] = "local[*]",
    unit_mib: Annotated[
        int, typer.Option("--unit-mib", metavar="N", min=1, help="Batches on an executor's disk at a time, for each core.")
    ] = 2048,
    output: OutputOption = Output.TABLE,
) -> int:
    """Compacts what waits in segments into Parquet, on Spark's executors. It needs the bucket alone.

    It may run beside brokers and compactors; these trim the segments later.

    \b
    tidelog backfill --bucket s3://my-bucket/prefix
    tidelog backfill --bucket s3://lake/log --topic orders --master 'local[4]'
    """
    import re

    from metadata.model import check_topic_name
    from metadata.shown_url import shown_url
    from spark.backfill import backfill as on_spark
    from spark.runtime.bucket_thread import BucketThread
    from spark.runtime.session import check_spark, spark_session
    from spark.source.options import Matching, Subscribed
    from spark.source.topic_catalog import find_partitions

    topics = Subscribed(tuple(map(check_topic_name, topic))) if topic else Matching(re.compile(".*"))
    with BucketThread(bucket) as opened:  # reports a bad bucket before the slow start of Spark
        found = opened.run(lambda store: find_partitions(store, topics))
    check_spark()
    say(f"{shown_url(bucket)}: topics {len(set(found.values())):,}, partitions {len(found):,}; starting Spark")
    spark = spark_session("tidelog backfill", master=master)
    try:
        report = on_spark.backfill(
            bucket,
            topics,
            on_spark.on_executors(spark),
            units=spark.sparkContext.defaultParallelism,
            unit_bytes_max=unit_mib << 20,
            report=say,
        )
    finally:
        spark.stop()
    for where, why in sorted(report.damaged.items()):
        say(f"{where} is not done: {why}")
    names = ("partitions", "records", "bytes_read", "files", "bytes_written", "manifests", "lost", "bytes_waiting")
    show_one({name: getattr(report, name) for name in names} | {"damaged": len(report.damaged)}, output)
    return UNHEALTHY if report.damaged else 0
