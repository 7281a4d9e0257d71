"""A measured figure beside its target, and how they are shown: on lines of at most WIDTH columns. Pure.

failover
  kill to the first acknowledgement                    9.41 s  ≤ 10         pass
    rounds: 9.10, 9.41, 8.87 s
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

WIDTH = 80
_WHAT, _MEASURED, _TARGET = 38, 19, 11


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure is to keep; `least` and `most` are both included."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        """In the unit of its figure."""
        if self.least is not None and self.most is not None:
            return f"{self.least:,.10g} … {self.most:,.10g}"
        return f"≥ {self.least:,.10g}" if self.least is not None else f"≤ {self.most:,.10g}"


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    value: float
    # "×" for a ratio.
    unit: str
    # None for a figure that explains another one.
    target: Target | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        return self.target.holds(float(self.value)) if self.target is not None else None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "value": float(self.value), "holds": self.holds}


def rates(amount: float, seconds: Iterable[float]) -> list[float]:
    return [amount / second for second in seconds]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values` that is not exceeded by `percent` of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def spread(values: Sequence[float]) -> str:
    """The values behind a median, so that a reader sees how quiet the machine was."""
    return f"{number(min(values))} … {number(max(values))} over {len(values)} runs"


def number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"


def lines(benchmark: str, figures: Iterable[Figure]) -> list[Text]:
    """The figures of one benchmark."""
    return [Text(benchmark, "bold"), *(line for figure in figures for line in _lines(figure))]


def paragraph(text: str) -> list[Text]:
    """Something said beside the figures."""
    return [Text(line, "dim") for line in textwrap.wrap(text, WIDTH)]


def _lines(figure: Figure) -> list[Text]:
    what, *more = textwrap.wrap(figure.what, _WHAT)
    target = str(figure.target) if figure.target is not None else ""
    verdict, style = {True: ("pass", "green"), False: ("short", "red"), None: ("", "")}[figure.holds]
    first = Text(f"  {what:{_WHAT}} {f'{number(figure.value)} {figure.unit}'.rstrip():>{_MEASURED}}  {target:{_TARGET}}  ")
    first.append(verdict, style)
    first.rstrip()
    further = [Text(f"  {line}") for line in more]
    return [first, *further, *(Text(f"    {line}", "dim") for line in textwrap.wrap(figure.note, WIDTH - 4))]
