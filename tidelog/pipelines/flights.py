"""Parses flights as `tidelog demo` writes them: each value is a JSON object, its key the carrier. All times are UTC.

    time_hour + minute ─▶ scheduled      + dep_delay ─▶ departed      + air_time ─▶ landed (all of it null where it did not fly)

The rows lie in the log in the order of the file, whose months come as 1, 10, 11, 12, 2, …: so a streaming query has to
take them as one batch, or lose most of the year behind the watermark. Streams of our own time have no such order.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

VALUE: Final = """
    carrier string, flight int, tailnum string, origin string, dest string, distance int,
    time_hour timestamp, minute int, dep_delay int, arr_delay int, air_time int
"""


def flights(records: DataFrame) -> DataFrame:
    """Parses one row for each flight; leaves out invalid values."""
    value = F.from_json(F.col("value").cast("string"), VALUE)
    decoded = records.select(F.inline(F.array(value)))  # with value.* Spark would decode it again for each condition on its columns
    return decoded.where("time_hour is not null").selectExpr(
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        "distance",
        "dep_delay",
        "arr_delay",
        "time_hour + make_dt_interval(0, 0, minute) as scheduled",
        "time_hour + make_dt_interval(0, 0, minute + dep_delay) as departed",
        "time_hour + make_dt_interval(0, 0, minute + dep_delay + air_time) as landed",
    )
