"""Session windows: what each aircraft flew between two rests, of more than eight hours in which it did not leave New York.

python -m tidelog.pipelines.aircraft_days --bucket URL [--into DIR [--checkpoint DIR]]
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from tidelog.pipelines.command import Pipeline, ordered_by, run_pipeline
from tidelog.pipelines.flights import flights

LATE: Final = "2 hours"
REST: Final = "8 hours"


def aircraft_days(flights: DataFrame) -> DataFrame:
    """Computes for each aircraft and session: flights from New York, their miles, the worst delay, the first and last departure."""
    return (
        flights.where("departed is not null and tailnum is not null")
        .withWatermark("departed", LATE)
        .groupBy(F.session_window("departed", REST), "tailnum")
        .agg(
            F.count("*").alias("flights"),
            F.sum("distance").alias("miles"),
            F.max("dep_delay").alias("worst_delay"),
            F.min("departed").alias("first_departed"),
            F.max("departed").alias("last_departed"),
        )
        .drop("session_window")
    )


PIPELINE: Final = Pipeline(
    about="What each aircraft flew out of New York between two rests of eight hours: the busiest first.",
    recipe=lambda records: aircraft_days(flights(records)),
    show=ordered_by("flights desc", "miles desc", "tailnum", "first_departed"),
)

if __name__ == "__main__":
    raise SystemExit(run_pipeline(PIPELINE))
