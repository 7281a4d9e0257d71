"""A measured figure beside its target, and the table of them. Pure but for the printing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure is to keep; `least` and `most` are both included."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def shown(self, unit: str) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least:,.10g} … {self.most:,.10g} {unit}"
        return f"≥ {self.least:,.10g} {unit}" if self.least is not None else f"≤ {self.most:,.10g} {unit}"


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    value: float
    unit: str
    """"×" for a ratio."""
    target: Target | None = None
    """None for a figure that explains another one."""
    note: str = ""

    @property
    def holds(self) -> bool | None:
        return self.target.holds(self.value) if self.target is not None else None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


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
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"


def show(console: Console, results: dict[str, list[Figure]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("benchmark", no_wrap=True)
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("note", style="dim")
    for benchmark, figures in results.items():
        for place, figure in enumerate(figures):
            verdict = {True: "[green]pass[/]", False: "[red]short[/]", None: ""}[figure.holds]
            target = figure.target.shown(figure.unit) if figure.target is not None else ""
            measured = f"{number(figure.value)} {figure.unit}"
            table.add_row("" if place else benchmark, figure.what, measured, target, verdict, figure.note)
        table.add_section()
    console.print(table)
