"""What the demo shows, and the delays with which it checks those of Spark."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import cast

import msgspec
import pytest
from rich.console import Console

from tidelog.demo.producers import Half
from tidelog.demo.report import Flight, HourOfDay, Kill, Watch, delays_by_hour, figures_table, hours_table, show, spark_line
from tidelog.demo.run import DemoFailed, check_delays

HOURS = [HourOfDay(5, 3, 2, 30, 1), HourOfDay(6, 1, 0, None, 0)]


def written(console: Console) -> str:
    return cast(io.StringIO, console.file).getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_and_the_time_that_it_works_already_are_for_terminals(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with Watch(console).bars({"spark": (0, int)}), Watch(console).bars({"read back": (7, lambda: 7)}):
        pass
    assert ("spark" in written(console) and "0:00:00" in written(console)) if terminal else written(console) == ""


def test_the_line_of_spark_stands_under_those_of_the_kill() -> None:
    console = Console(file=io.StringIO(), width=132)
    show(console, spark_line(Path("[a].png")))
    verdict = "✓ the same rows, from Parquet and segments, with no broker. The chart: [a].png\n"
    assert written(console) == f"{'spark':9}{verdict}"


def test_figures_leave_the_outage_out_of_the_rate_and_of_the_latencies() -> None:
    half = Half("HTTP, JSON", [("AA", b"{}")] * 4)
    half.times = [(0.0, 0.1), (0.5, 0.8), (0.9, 3.9), (3.5, 4.0)]  # killed at 1, served at 3, the first answer then at 3.9
    console = Console(file=io.StringIO(), width=132)
    show(console, figures_table([half], Kill(2, 2, {}, killed_s=1.0, served_s=3.0), read_rows=4, read_s=2.0))
    rows = [line.split() for line in written(console).splitlines()]
    assert ["HTTP,", "JSON", "4", "4", "300", "ms", "496", "ms", "3,000", "ms"] in rows
    assert ["read", "back", "4", "2"] in rows


def flight(hour: int, delay: int | None) -> Flight:
    row = {"year": 2013, "month": 1, "day": 1, "hour": hour, "carrier": "UA", "flight": 1, "origin": "EWR", "dest": "IAH"}
    return msgspec.json.decode(json.dumps(row | {"dep_delay": delay}), type=Flight)


def test_delays_are_added_up_by_hour_without_those_that_never_left() -> None:
    flights = [flight(6, None), flight(5, 15), flight(5, None), flight(5, 15)]
    assert delays_by_hour(flights) == [HourOfDay(5, 3, 2, 30, 0), HOURS[1]]
    assert delays_by_hour([flight(5, 16), flight(5, -3)]) == [HourOfDay(5, 2, 2, 13, 1)]


@pytest.mark.parametrize("by_spark", [[HourOfDay(5, 3, 2, 31, 1), HOURS[1]], HOURS[1:], [*HOURS, HourOfDay(5, 1, 1, 1, 0)]])
def test_one_hour_that_spark_has_otherwise_fails_the_demo(by_spark: list[HourOfDay]) -> None:
    check_delays(HOURS, HOURS)
    with pytest.raises(DemoFailed, match="are not those of the rows that were read back") as caught:
        check_delays(HOURS, by_spark)
    assert "5:00" in caught.value.hint


def test_the_table_has_a_bar_for_each_mean_delay_and_fits_80_columns() -> None:
    shown = Console(file=io.StringIO(), width=80)
    shown.print(hours_table([*HOURS, HourOfDay(7, 10, 10, -20, 0), HourOfDay(18, 2, 2, 15, 0)]))
    assert [line.split() for line in written(shown).splitlines()[2:]] == [
        ["5:00", "3", "1", "50%", "15.0", "min", "█" * 22],
        ["6:00", "1", "1"],
        ["7:00", "10", "0", "0%", "-2.0", "min"],
        ["18:00", "2", "0", "0%", "7.5", "min", "█" * 11],
    ]
