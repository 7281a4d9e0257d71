"""Delays by the hour, as the demo reckons them to check Spark's."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tidelog.demo.delays import HourOfDay, delays_by_hour, differences, hours_table
from tidelog.demo.run import DemoFailed, check_delays

HOURS = [HourOfDay(5, 3, 2, 30, 1), HourOfDay(6, 1, 0, None, 0)]


def row(hour: int, delay: int | None) -> bytes:
    return json.dumps({"year": 2013, "hour": hour, "dep_delay": delay}).encode()


def test_delays_are_added_up_by_hour_without_those_that_never_left() -> None:
    assert delays_by_hour([row(6, None), row(5, 15), row(5, None), row(5, 15)]) == [HourOfDay(5, 3, 2, 30, 0), HOURS[1]]
    assert delays_by_hour([row(5, 16), row(5, -3)]) == [HourOfDay(5, 2, 2, 13, 1)]


def test_the_same_hours_differ_in_nothing_and_each_other_one_is_told() -> None:
    assert differences(HOURS, HOURS[::-1]) == []
    assert differences(HOURS, HOURS[:1]) == [f"6:00 is missing, where {HOURS[1]} was reckoned"]
    assert differences(HOURS[:1], HOURS) == [f"6:00 is {HOURS[1]}, where nothing was reckoned"]


def test_one_delay_that_spark_has_otherwise_fails_the_demo() -> None:
    check_delays(HOURS, HOURS)
    with pytest.raises(DemoFailed, match="are not those of the rows that were read back") as caught:
        check_delays(HOURS, [HourOfDay(5, 3, 2, 31, 1), HOURS[1]])
    assert "5:00" in caught.value.hint


def test_the_table_has_a_bar_for_each_mean_delay_and_fits_80_columns() -> None:
    shown = Console(file=io.StringIO(), width=80)
    shown.print(hours_table([*HOURS, HourOfDay(7, 10, 10, -20, 0), HourOfDay(18, 2, 2, 15, 0)]))
    lines = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]  # a StringIO
    assert [line.split() for line in lines[2:]] == [
        ["5:00", "3", "1", "50%", "15.0", "min", "█" * 22],
        ["6:00", "1", "1"],
        ["7:00", "10", "0", "0%", "-2.0", "min"],
        ["18:00", "2", "0", "0%", "7.5", "min", "█" * 11],
    ]
