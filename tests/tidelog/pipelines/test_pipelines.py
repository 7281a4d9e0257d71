"""The recipes, each on a few rows whose result can be computed by hand."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from tidelog.pipelines.aircraft_days import aircraft_days
from tidelog.pipelines.delay_chart import Drawn
from tidelog.pipelines.flights import flights
from tidelog.pipelines.hot_keys import hot_keys, partition_skew, sized
from tidelog.pipelines.hourly_delays import by_hour_of_day, hourly_delays, show
from tidelog.pipelines.knock_on_delays import departures, knock_on_delays, late_arrivals
from tidelog.pipelines.latest_by_key import latest_by_key
from tidelog.pipelines.rolling_delays import rolling_delays

pytestmark = pytest.mark.slow

RECORD = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


def flight_value(hour: str, minute: int = 0, **columns: Any) -> bytes:
    """As the demo writes it, with what a test says. `hour` in UTC, as in "2013-01-01 10"."""
    day, at = hour.split(" ")
    row = {
        "carrier": "UA",
        "flight": 1,
        "tailnum": "N1",
        "origin": "EWR",
        "dest": "IAH",
        "distance": 1400,
        "dep_delay": 0,
        "arr_delay": 0,
        "air_time": 60,
    }
    return json.dumps({"year": 2013, **row, "minute": minute, "time_hour": f"{day}T{at}:00:00Z", **columns}).encode()


def records(spark: SparkSession, *values: bytes | None) -> DataFrame:
    return spark.createDataFrame([(None, value, "flights", 0, at, None, 0) for at, value in enumerate(values)], RECORD)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Times as text, in UTC, whatever the time zone of this process is."""
    shown = [F.date_format(name, "MM-dd HH:mm").alias(name) if kind == "timestamp" else F.col(name) for name, kind in frame.dtypes]
    return sorted(tuple(row) for row in frame.select(*shown).collect())


def test_a_flight_has_the_times_of_its_schedule_departure_and_landing(spark: SparkSession) -> None:
    read = flights(
        records(
            spark,
            flight_value("2013-01-01 10", 15, dep_delay=-5, air_time=120),
            flight_value("2013-01-01 23", 59, dep_delay=None, air_time=None, tailnum=None),
            b"no flight",
            b'{"unlike": "a flight"}',
            None,
        )
    )
    assert rows(read.select("scheduled", "departed", "landed")) == [
        ("01-01 10:15", "01-01 10:10", "01-01 12:10"),
        ("01-01 23:59", None, None),
    ]


def test_delays_are_added_up_by_carrier_and_hour_and_then_by_the_hour_of_the_day_in_new_york(spark: SparkSession) -> None:
    read = flights(
        records(
            spark,
            flight_value("2013-01-01 10", 0, dep_delay=10),
            flight_value("2013-01-01 10", 59, dep_delay=-4),
            flight_value("2013-01-01 10", 30, dep_delay=None),
            flight_value("2013-01-01 10", 30, dep_delay=16, carrier="AA"),
            flight_value("2013-01-01 11", 0, dep_delay=20),
            flight_value("2013-07-01 09", 0, dep_delay=100),  # daylight saving time: five o'clock, as ten is in winter
        )
    )
    hourly = hourly_delays(read)
    assert rows(hourly) == [
        ("01-01 10:00", "AA", 1, 1, 16, 1),
        ("01-01 10:00", "UA", 3, 2, 6, 0),
        ("01-01 11:00", "UA", 1, 1, 20, 1),
        ("07-01 09:00", "UA", 1, 1, 100, 1),
    ]
    assert rows(by_hour_of_day(hourly)) == [(5, 5, 4, 122, 2), (6, 1, 1, 20, 1)]


def test_the_chart_gets_the_days_of_its_flights_in_new_york_time_and_the_table_is_unchanged(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Drawn] = []
    monkeypatch.setattr("tidelog.pipelines.delay_chart.draw_delays", lambda rows, path, of: drawn.append(of))
    read = flights(records(spark, flight_value("2026-03-02 02"), flight_value("2026-03-04 18", dep_delay=30)))
    show(hourly_delays(read), argparse.Namespace(json=True, chart=Path("c.png"), topic="flights"))
    assert drawn == [Drawn("flights", date(2026, 3, 1), date(2026, 3, 4))]
    table = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert table == [
        {"hour": 13, "flights": 1, "departed": 1, "delay_minutes": 30, "late": 1},
        {"hour": 21, "flights": 1, "departed": 1, "delay_minutes": 0, "late": 0},
    ]


def test_each_flight_counts_in_the_three_windows_that_hop_over_it(spark: SparkSession) -> None:
    read = flights(records(spark, flight_value("2013-01-01 10", 30, dep_delay=10), flight_value("2013-01-01 12", 0, dep_delay=40)))
    assert rows(rolling_delays(read)) == [
        ("01-01 11:00", "EWR", 1, 10.0),
        ("01-01 12:00", "EWR", 1, 10.0),
        ("01-01 13:00", "EWR", 2, 25.0),
        ("01-01 14:00", "EWR", 1, 40.0),
        ("01-01 15:00", "EWR", 1, 40.0),
    ]


def test_a_session_ends_when_an_aircraft_rests_for_more_than_eight_hours(spark: SparkSession) -> None:
    read = flights(
        records(
            spark,
            flight_value("2013-01-01 10", 0, distance=100, dep_delay=5),
            flight_value("2013-01-01 18", 4, distance=10, dep_delay=0),  # a minute less than eight hours later
            flight_value("2013-01-02 02", 5, distance=1),  # a minute more: a new one
            flight_value("2013-01-01 10", 0, distance=7, tailnum="N2"),
            flight_value("2013-01-01 11", 0, dep_delay=None),
        )
    )
    assert rows(aircraft_days(read)) == [
        ("N1", 1, 1, 0, "01-02 02:05", "01-02 02:05"),
        ("N1", 2, 110, 5, "01-01 10:05", "01-01 18:04"),
        ("N2", 1, 7, 0, "01-01 10:00", "01-01 10:00"),
    ]


def test_departures_are_joined_with_late_arrivals_of_the_same_aircraft_within_the_bound(spark: SparkSession) -> None:
    late = flight_value("2013-01-01 10", 0, flight=1, arr_delay=30, air_time=60)  # lands at 11:00
    read = flights(
        records(
            spark,
            late,
            flight_value("2013-01-01 11", 59, flight=2),  # 59 minutes later
            flight_value("2013-01-01 11", 50, flight=3, dep_delay=10),  # an hour
            flight_value("2013-01-01 23", 0, flight=4),  # twelve
            flight_value("2013-01-01 23", 1, flight=5),
            flight_value("2013-01-01 14", 0, flight=6, tailnum="N2"),
            flight_value("2013-01-01 14", 0, flight=7, dep_delay=None, arr_delay=None),
        )
    )
    pairs = knock_on_delays(late_arrivals(read), departures(read))
    assert rows(pairs.select("arrived_flight", "landed", "flight", "departed", "dep_delay")) == [
        (1, "01-01 11:00", 3, "01-01 12:00", 10),
        (1, "01-01 11:00", 4, "01-01 23:00", 0),
    ]


# ── tables of any topic ─────────────────────────────────────────────────────────────────────────────────────────────────


def keyed(spark: SparkSession, *found: tuple[int, int, int, bytes | None, bytes | None]) -> DataFrame:
    """Rows of partition, offset, second, key and value."""
    made = [
        (key, value, "customers", partition, offset, datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC), 0)
        for partition, offset, second, key, value in found
    ]
    return spark.createDataFrame(made, RECORD)


def test_of_each_key_the_newest_record_stays_unless_it_is_a_tombstone_compacted_or_not(spark: SparkSession) -> None:
    log = [
        (0, 0, 9, b"a", b"a0"),  # its clock was fast: the offset counts
        (0, 1, 1, b"b", b"b1"),
        (0, 2, 2, None, b"no key"),
        (0, 3, 3, b"a", b"a3"),
        (0, 4, 4, b"b", None),
        (0, 5, 5, b"c", None),
        (0, 6, 6, b"c", b""),
        (1, 0, 5, b"d", b"d before the partitions were added"),
        (2, 0, 6, b"d", b"d"),
    ]
    expected = [(b"a", b"a3"), (b"c", b""), (b"d", b"d")]
    for gone in ((), (0, 1), (0, 1, 4, 5)):  # nothing compacted; what is overtaken; then the tombstones
        read = latest_by_key(keyed(spark, *(row for at, row in enumerate(log) if at not in gone)))
        assert read.columns[:2] == ["key", "value"]
        assert [(bytes(key), bytes(value)) for key, value in sorted(read.select("key", "value").collect())] == expected


def test_hot_keys_and_partition_skew_are_computed_by_records_and_bytes(spark: SparkSession) -> None:
    read = sized(
        keyed(
            spark,
            *((0, offset, 0, b"hot", b"1234567") for offset in range(6)),
            (1, 0, 0, b"big", b"x" * 37),
            (1, 1, 0, None, None),
        )
    )
    assert rows(hot_keys(read, 2)) == [
        ("customers", bytearray(b"big"), 1, 40, 12.5, 40.0),
        ("customers", bytearray(b"hot"), 6, 60, 75.0, 60.0),
    ]
    assert rows(partition_skew(read)) == [("customers", 0, 6, 60, 1, 1.5), ("customers", 1, 2, 40, 1, 0.5)]
