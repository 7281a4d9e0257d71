"""What the demo shows while it runs: how fast its bars move, and for how long it works already."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from tidelog.demo.report import PACE_S, Watch, _Pace, show, spark_line


def paces(*steps: tuple[float, float]) -> list[Text]:
    """What stands beside a bar of 100 that was drawn at these times, so far along."""
    now_s = 0.0
    pace = _Pace()
    bars = Progress(pace, get_time=lambda: now_s, speed_estimate_period=PACE_S, disable=True)
    bar = bars.add_task("", total=100)
    shown: list[Text] = []
    for now_s, completed in steps:  # noqa: B007  # the clock above reads it
        bars.update(bar, completed=completed)
        shown.append(pace.render(bars.tasks[0]))
    return shown


def plain(texts: Sequence[Text]) -> list[str]:
    return [text.plain for text in texts]


def test_a_bar_begins_without_a_pace_and_without_an_alarm() -> None:
    assert plain(paces((5.0, 0), (9.0, 0), (9.1, 13), (9.4, 13), (9.6, 23))) == ["–", "–", "–", "–", "20/s now"]


def test_a_bar_whose_answers_come_seldom_on_a_slow_machine_is_no_alarm() -> None:
    assert plain(paces((0.0, 10), (0.9, 20), (1.8, 30), (2.75, 40)))[-1] != "no answers"


def test_a_bar_that_moved_and_stands_still_has_no_answers_until_it_moves_again() -> None:
    shown = paces((0.0, 10), (0.5, 20), (1.5, 20), (1.6, 20), (9.0, 20), (9.1, 30))
    assert plain(shown) == ["–", "20/s now", "–", "no answers", "no answers", "–"]
    assert (shown[3].style, shown[5].style) == ("bold red", "cyan")


def test_a_bar_that_is_done_tells_how_long_it_took() -> None:
    assert plain(paces((0.0, 10), (2.5, 100), (9.0, 100))) == ["–", "in 2.5 s", "in 2.5 s"]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_time_that_it_works_already_is_for_terminals(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with Watch(console).elapsed("spark"):
        pass
    said = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert ("spark" in said and "0 s" in said) if terminal else said == ""


def test_the_line_of_spark_stands_under_those_of_the_kill() -> None:
    console = Console(file=io.StringIO(), width=132)
    show(console, spark_line(Path("[a].png")))
    told = "✓ the same rows, from Parquet and segments, with no broker. The chart: [a].png\n"
    assert console.file.getvalue() == f"{'spark':9}{told}"  # type: ignore[attr-defined]  # a StringIO
