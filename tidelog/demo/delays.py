"""Delays by the hour of the day, reckoned from what was read back, to compare with what Spark makes of the same bucket. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.table import Table

BAR: Final = "█"
BAR_WIDTH: Final = 22
"""With it the table fits 80 columns."""


class HourOfDay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the flights scheduled in this hour, by the clocks of New York. As the pipeline hourly_delays tells it."""

    hour: int
    flights: int
    departed: int
    """The rest were cancelled."""
    delay_minutes: int | None
    """Added up; none where none departed."""
    late: int
    """By more than 15 minutes."""

    @property
    def mean_delay(self) -> float:
        return (self.delay_minutes or 0) / max(1, self.departed)


class _Departure(msgspec.Struct, gc=False):
    hour: int
    dep_delay: int | None


def delays_by_hour(values: Iterable[bytes]) -> list[HourOfDay]:
    """From the rows of the demo; in the order of the hours."""
    decode = msgspec.json.Decoder(_Departure).decode
    delays: dict[int, list[int | None]] = {}
    for flight in map(decode, values):
        delays.setdefault(flight.hour, []).append(flight.dep_delay)
    return [_of_hour(hour, delays[hour]) for hour in sorted(delays)]


def _of_hour(hour: int, delays: Sequence[int | None]) -> HourOfDay:
    departed = [delay for delay in delays if delay is not None]
    late = sum(delay > 15 for delay in departed)
    return HourOfDay(hour, len(delays), len(departed), sum(departed) if departed else None, late)


def differences(ours: Sequence[HourOfDay], theirs: Sequence[HourOfDay]) -> list[str]:
    """One sentence for each hour that is not the same in both."""
    by_hour: tuple[Mapping[int, HourOfDay], ...] = tuple({row.hour: row for row in rows} for rows in (ours, theirs))
    return [
        f"{hour}:00 is {by_hour[1].get(hour, 'missing')}, where {by_hour[0].get(hour, 'nothing')} was reckoned"
        for hour in sorted({*by_hour[0], *by_hour[1]})
        if by_hour[0].get(hour) != by_hour[1].get(hour)
    ]


def hours_table(hours: Sequence[HourOfDay]) -> Table:
    table = Table(
        title="Delays by the hour of the day, by Spark, with no broker running",
        title_justify="left",
        title_style="bold",
        header_style="",
        box=None,
        pad_edge=False,
    )
    table.add_column("", style="bold cyan", justify="right", no_wrap=True)
    for column in ("flights", "cancelled", "over 15 min late", "mean delay"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", style="cyan", no_wrap=True)
    longest = max((row.mean_delay for row in hours), default=0.0)
    for row in hours:
        left = row.departed > 0
        table.add_row(
            f"{row.hour}:00",
            f"{row.flights:,}",
            f"{row.flights - row.departed:,}",
            f"{row.late / row.departed:.0%}" if left else "",
            f"{row.mean_delay:.1f} min" if left else "",
            BAR * round(BAR_WIDTH * max(0.0, row.mean_delay) / longest) if longest > 0 else "",
        )
    return table
