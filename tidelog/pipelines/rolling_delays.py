"""Hopping windows: how late each airport is over the last three hours, computed every hour.

python -m tidelog.pipelines.rolling_delays --bucket URL [--into DIR [--checkpoint DIR]]
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from tidelog.pipelines.command import Pipeline, ordered_by, run_pipeline
from tidelog.pipelines.flights import flights

LATE: Final = "2 hours"


def rolling_delays(flights: DataFrame) -> DataFrame:
    """Computes per airport and hour: the flights scheduled in the three hours up to it, and their mean delay."""
    return (
        flights.withWatermark("scheduled", LATE)
        .groupBy(F.window("scheduled", "3 hours", "1 hour"), "origin")
        .agg(F.count("*").alias("flights"), F.round(F.avg("dep_delay"), 1).alias("mean_delay"))
        .select(F.col("window.end").alias("up_to"), "origin", "flights", "mean_delay")
    )


PIPELINE: Final = Pipeline(
    about="How late each airport is over the last three hours, every hour: the worst first.",
    recipe=lambda records: rolling_delays(flights(records)),
    show=ordered_by("mean_delay desc", "up_to", "origin"),
)

if __name__ == "__main__":
    raise SystemExit(run_pipeline(PIPELINE))
