"""A compacted topic as a table: of each key the newest record, without those that were deleted by a tombstone.

    python -m tidelog.pipelines.latest_by_key --bucket URL --topic customers [--into DIR]

It is the same table before and after key compaction, which removes only what is not in it. Records without a key have no place in a
table, and are left out.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from tidelog.pipelines.command import Pipeline, ordered_by, run_pipeline


def latest_by_key(records: DataFrame) -> DataFrame:
    """Returns the newest row for each topic and key, with the columns of the source.

    Within a partition the last offset counts, whatever the timestamps. Only where partitions were added does a key lie in two of
    them: then the later timestamp counts.
    """
    row = F.struct(*records.columns)
    in_partition = (
        records.where("key is not null").groupBy("topic", "partition", "key").agg(F.max_by(row, "offset").alias("newest"))
    )
    newest = in_partition.groupBy("topic", "key").agg(F.max_by("newest", "newest.timestamp").alias("newest")).select("newest.*")
    return newest.where("value is not null")


PIPELINE: Final = Pipeline(
    about="A compacted topic as a table: of each key the newest record, unless it is a tombstone.",
    recipe=latest_by_key,
    show=ordered_by("topic", "key"),
    topic=None,
    streams=False,
)

if __name__ == "__main__":
    raise SystemExit(run_pipeline(PIPELINE))
