"""Tumbling windows: how late the flights of each carrier leave, hour by hour.

    python -m tidelog.pipelines.hourly_delays --bucket URL                                 the hours of the day, as a table
    python -m tidelog.pipelines.hourly_delays --bucket URL --chart delays.png              and as a chart
    python -m tidelog.pipelines.hourly_delays --bucket URL --into DIR --checkpoint DIR     all hours, as a stream that goes on

Sums and counts are kept, not means: they can be added up to days and years.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from tidelog.pipelines.command import Pipeline, run_pipeline, say
from tidelog.pipelines.flights import flights

# How long a stream waits for what comes late: an hour is done, and written, when a flight two hours behind its end was seen.
LATE: Final = "2 hours"
TIME_ZONE: Final = "America/New_York"
SUMS: Final = ("flights", "departed", "delay_minutes", "late")


def hourly_delays(flights: DataFrame) -> DataFrame:
    """Computes per carrier and scheduled hour: flights, departed ones, the sum of their delays, those over 15 minutes late."""
    return (
        flights.withWatermark("scheduled", LATE)
        .groupBy(F.window("scheduled", "1 hour"), "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("delay_minutes"),
            F.count_if(F.col("dep_delay") > 15).alias("late"),
        )
        .select(F.col("window.start").alias("hour"), "carrier", "flights", "departed", "delay_minutes", "late")
    )


def by_hour_of_day(hourly: DataFrame, *more: Column) -> DataFrame:
    """Sums up by the hour of the day in New York's time. `more`: further columns."""
    sums = [F.sum(name).alias(name) for name in SUMS]
    return hourly.groupBy(F.hour(F.from_utc_timestamp("hour", TIME_ZONE)).alias("hour")).agg(*sums, *more).orderBy("hour")


def show(hourly: DataFrame, arguments: argparse.Namespace) -> None:
    day = F.to_date(F.from_utc_timestamp("hour", TIME_ZONE))
    found = [row.asDict() for row in by_hour_of_day(hourly, F.min(day).alias("first"), F.max(day).alias("last")).collect()]
    rows = [{name: row[name] for name in ("hour", *SUMS)} for row in found]
    sys.stdout.writelines(json.dumps(row) + "\n" if arguments.json else _line(row) for row in rows)
    if arguments.chart:
        from tidelog.pipelines.delay_chart import Drawn, draw_delays

        first, last = (min((row["first"] for row in found), default=None), max((row["last"] for row in found), default=None))
        draw_delays(rows, arguments.chart, Drawn(arguments.topic, first, last))
        say(f"the chart is in {arguments.chart}")


def _line(row: dict[str, Any]) -> str:
    mean = f"{row['delay_minutes'] / row['departed']:.1f} min" if row["departed"] else "-"
    return f"{row['hour']:>2}:00  {row['flights']:>9,} flights  {row['late']:>9,} over 15 minutes late  {mean:>10} on average\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the delays by the hour of the day, as PNG")
    parser.add_argument("--json", action="store_true", help="the table as lines of JSON")


PIPELINE: Final = Pipeline(
    about="How late the flights of each carrier leave, hour by hour.",
    recipe=lambda records: hourly_delays(flights(records)),
    show=show,
    add_arguments=add_arguments,
    modules={"chart": "matplotlib"},
)

if __name__ == "__main__":
    raise SystemExit(run_pipeline(PIPELINE))
