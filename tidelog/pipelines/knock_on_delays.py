"""Two streams joined: departures of aircraft that had landed late some hours before, somewhere else.

    python -m tidelog.pipelines.knock_on_delays --bucket URL [--into DIR [--checkpoint DIR]]

        landed  ├── an hour ──┼───────── eleven hours ─────────┤
                              └ departs here: a pair ──────────┘

Both sides have a watermark, and the join a bound in time: so a stream knows how long it has to keep each side.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from tidelog.pipelines.command import Pipeline, ordered_by, run_pipeline
from tidelog.pipelines.flights import flights

LATE: Final = "2 hours"
LATE_ARRIVAL_MINUTES: Final = 30


def late_arrivals(flights: DataFrame) -> DataFrame:
    return (
        flights.where(F.col("arr_delay") >= LATE_ARRIVAL_MINUTES)
        .selectExpr("tailnum as arrived_tailnum", "flight as arrived_flight", "dest as arrived_at", "landed", "arr_delay")
        .withWatermark("landed", LATE)
    )


def departures(flights: DataFrame) -> DataFrame:
    return (
        flights.where("departed is not null")
        .select("tailnum", "flight", "origin", "departed", "dep_delay")
        .withWatermark("departed", LATE)
    )


def knock_on_delays(arrivals: DataFrame, departures: DataFrame) -> DataFrame:
    """Joins each departure with the late arrivals of the same aircraft, one to twelve hours before it."""
    same_aircraft_later = F.expr(
        "tailnum = arrived_tailnum and departed between landed + interval 1 hour and landed + interval 12 hours"
    )
    pairs = arrivals.join(departures, same_aircraft_later)
    return pairs.select(
        "tailnum", "arrived_flight", "arrived_at", "landed", "arr_delay", "flight", "origin", "departed", "dep_delay"
    )


def of_records(records: DataFrame) -> DataFrame:
    flown = flights(records)
    return knock_on_delays(late_arrivals(flown), departures(flown))


PIPELINE: Final = Pipeline(
    about="Departures of aircraft that had landed late one to twelve hours before: the longest delay first.",
    recipe=of_records,
    show=ordered_by("dep_delay desc", "departed", "tailnum"),
)

if __name__ == "__main__":
    raise SystemExit(run_pipeline(PIPELINE))
