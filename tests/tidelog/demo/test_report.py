"""What the demo shows, and the delays with which it checks those of Spark."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from rich.console import Console

from tidelog.demo.producers import Half
from tidelog.demo.report import (
    HourOfDay,
    Kill,
    Watch,
    delays_by_hour,
    delays_table,
    figures_table,
    flown,
    hours_table,
    show,
    spark_line,
)
from tidelog.demo.run import DemoFailed, check_delays


def hour(hour: int, flights: int, departed: int, delay_minutes: int | None, late: int) -> HourOfDay:
    return {"hour": hour, "flights": flights, "departed": departed, "delay_minutes": delay_minutes, "late": late}


HOURS = [hour(5, 3, 2, 30, 1), hour(6, 1, 0, None, 0)]


def written(console: Console) -> str:
    return cast(io.StringIO, console.file).getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_and_what_it_works_at_are_for_terminals(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with Watch(console).elapsed("spark"):
        pass
    with Watch(console).bars({"read back": (1_234, lambda: 1_234)}):
        pass
    assert [text in written(console) for text in ("spark", "read back", "1,234", "0:00:00")] == [terminal] * 4


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


def flights(*delays: tuple[int, int | None]) -> pa.Table:
    row = {"year": 2013, "month": 1, "day": 1, "carrier": "UA", "flight": 1, "tailnum": None, "origin": "EWR", "dest": "IAH"}
    return flown(json.dumps(row | {"hour": hour, "dep_delay": delay}).encode() for hour, delay in delays)


def test_delays_are_added_up_by_hour_without_those_that_never_left() -> None:
    assert delays_by_hour(flights((6, None), (5, 15), (5, None), (5, 15))) == [hour(5, 3, 2, 30, 0), HOURS[1]]
    assert delays_by_hour(flights((5, 16), (5, -3))) == [hour(5, 2, 2, 13, 1)]


def test_the_longest_delays_of_a_carrier_stand_in_one_line() -> None:
    console = Console(file=io.StringIO(), width=132)
    table = delays_table(flights((5, 61), (6, None), (7, -2), (8, 1301)), {"UA": "United Air Lines Inc."}, width=132)
    show(console, table)
    line = written(console).splitlines()[-1].split()
    assert line == ["UA", "United", "Air", "Lines", "4", "21:41", "1:01", "-0:02", "UA", "1", "EWR→IAH", "1", "Jan"]


@pytest.mark.parametrize("by_spark", [[hour(5, 3, 2, 31, 1), HOURS[1]], HOURS[1:], [*HOURS, hour(5, 1, 1, 1, 0)]])
def test_one_hour_that_spark_has_otherwise_fails_the_demo(by_spark: list[HourOfDay]) -> None:
    check_delays(HOURS, HOURS)
    with pytest.raises(DemoFailed, match="are not those of the rows that were read back") as caught:
        check_delays(HOURS, by_spark)
    assert "5:00" in caught.value.hint


def test_the_table_has_a_bar_for_each_mean_delay_and_fits_80_columns() -> None:
    shown = Console(file=io.StringIO(), width=80)
    shown.print(hours_table([*HOURS, hour(7, 10, 10, -20, 0), hour(18, 2, 2, 15, 0)]))
    assert [line.split() for line in written(shown).splitlines()[2:]] == [
        ["5:00", "3", "1", "50%", "15.0", "min", "█" * 22],
        ["6:00", "1", "1"],
        ["7:00", "10", "0", "0%", "-2.0", "min"],
        ["18:00", "2", "0", "0%", "7.5", "min", "█" * 11],
    ]
