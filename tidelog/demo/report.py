"""What the demo shows: its progress on stderr, its results on stdout."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidelog.demo.producers import Half

PIPED_WIDTH: Final = 132
# Columns of a terminal that has room for names, too.
WIDE_LEAST: Final = 124
DELAYS_SHOWN: Final = 10
# With bars of this width the table of hours fits 80 columns.
BAR_WIDTH: Final = 22
_LEGAL_FORM: Final = re.compile(r" (Inc\.|Co\.|Corporation)$")


@dataclass(frozen=True, slots=True)
class Kill:
    """What the bucket held when the broker was dead, beside what its producers knew. Counts are of rows."""

    acknowledged: int
    # In committed segments, acknowledged or not.
    on_bucket: int
    # By listener: sent and not acknowledged.
    under_way: Mapping[str, int]
    # When the broker was killed and when the next one served, by the clock of time.perf_counter.
    killed_s: float
    served_s: float


class Flight(msgspec.Struct, frozen=True, gc=False):
    """The columns of a row that the results need."""

    month: int
    day: int
    hour: int
    carrier: str
    flight: int
    origin: str
    dest: str
    dep_delay: int | None

    @property
    def delay(self) -> str:
        minutes = self.dep_delay or 0
        return f"{'-' if minutes < 0 else ''}{abs(minutes) // 60}:{abs(minutes) % 60:02}"


class HourOfDay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The flights scheduled in this hour, as the pipeline hourly_delays prints them. `late` is by more than 15 minutes."""

    hour: int
    flights: int
    departed: int
    delay_minutes: int | None
    late: int

    @property
    def mean_delay(self) -> float:
        return (self.delay_minutes or 0) / max(1, self.departed)


def delays_by_hour(flights: Iterable[Flight]) -> list[HourOfDay]:
    """Adds up the flights in the order of the hours, to compare with what Spark makes of the same rows."""
    delays: dict[int, list[int | None]] = {}
    for flight in flights:
        delays.setdefault(flight.hour, []).append(flight.dep_delay)
    hours = []
    for hour, found in sorted(delays.items()):
        departed = [delay for delay in found if delay is not None]
        late = sum(delay > 15 for delay in departed)
        hours.append(HourOfDay(hour, len(found), len(departed), sum(departed) if departed else None, late))
    return hours


# ── while it runs ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Polling(Progress):
    """Reads how far each bar is whenever the bars are drawn."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            self.update(task.id, completed=task.fields["count"]())
        yield from super().get_renderables()


class Watch:
    """Talks on stderr, with progress bars if that is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, label: str, what: str, *, style: str = "bold") -> None:
        self._console.print(f"[{style}]{label:<9}[/]{escape(what)}", soft_wrap=True)

    def space(self) -> None:
        self._console.print()

    @contextmanager
    def bars(self, bars: Mapping[str, tuple[int, Callable[[], int]]]) -> Iterator[None]:
        """Shows a bar for each name, with its total and the function that counts; only the time that it takes for a total of 0."""
        columns = [TextColumn("[bold]{task.description:<8}[/]"), TimeElapsedColumn()]
        if all(total for total, _ in bars.values()):
            columns[1:1] = [BarColumn(36), TextColumn("{task.completed:>9,.0f}")]
        shown = self._console.is_terminal
        with _Polling(*columns, console=self._console, disable=not shown, refresh_per_second=4) as progress:
            for name, (total, count) in bars.items():
                progress.add_task(name, total=total or None, count=count)
            yield


# ── in the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def results_console() -> Console:
    """Returns a console as wide as the terminal, or wide enough for the tables if there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def show(console: Console, *parts: RenderableType) -> None:
    """Prints the parts with a line between them. Without a terminal, lines end where their text does."""
    with console.capture() as shown:
        for number, part in enumerate(parts):
            console.print(*([""] if number else []), part, sep="\n")
    lines = shown.get().split("\n")
    console.file.write("\n".join(lines if console.is_terminal else map(str.rstrip, lines)))
    console.file.flush()


def _table(title: str, *columns: str) -> Table:
    """The first column names the row; the others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="", box=None, pad_edge=False)
    table.add_column("", style="bold cyan", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def delays_table(flights: Mapping[str, Sequence[Flight]], airline_of: Mapping[str, str], *, width: int) -> Table:
    """Has one line for each carrier, those with the longest delay first."""
    longest = {
        carrier: heapq.nlargest(DELAYS_SHOWN, (flight for flight in own if flight.dep_delay is not None), key=_minutes)
        for carrier, own in flights.items()
    }
    table = _table("The ten longest departure delays of each carrier, in hours:minutes", "flights", "longest")
    table.add_column("and the nine after it", no_wrap=True)
    if wide := width >= WIDE_LEAST:
        table.add_column("the longest was", style="dim", no_wrap=True)
    for carrier, worst in sorted(longest.items(), key=lambda item: [-_minutes(flight) for flight in item[1][:1]]):
        name = f"{carrier}  {_LEGAL_FORM.sub('', airline_of.get(carrier, ''))}" if wide else carrier
        delays = [flight.delay for flight in worst]
        was = [f"{f.carrier} {f.flight} {f.origin}→{f.dest} {date(2013, f.month, f.day):%-d %b}" for f in worst[:1]]
        nine = " ".join(f"{delay:>5}" for delay in delays[1:])
        table.add_row(name, f"{len(flights[carrier]):,}", "".join(delays[:1]), nine, *(was if wide else []))
    return table


def _minutes(flight: Flight) -> int:
    return flight.dep_delay or 0


def figures_table(halves: Sequence[Half], kill: Kill, *, read_rows: int, read_s: float) -> Group:
    """Rates leave out the time from the kill to the first acknowledgement after it, and latencies the rows that met the kill."""
    columns = ("records", "records/s ¹", "answered after: p50", "p99", "over the kill ²")
    table = _table("How fast, with everything on this machine", *columns)
    for half in halves:
        sent_s, answered_s = np.array(half.times).T
        met_the_kill = (answered_s > kill.killed_s) & (sent_s < kill.served_s)
        waited_ms = (answered_s - sent_s) * 1000
        outage_s = min(answered_s[answered_s >= kill.served_s], default=kill.served_s) - kill.killed_s
        rate = len(half.rows) / (answered_s.max() - sent_s.min() - outage_s)
        p50, p99 = np.percentile(waited_ms[~met_the_kill], (50, 99)) if not met_the_kill.all() else (0.0, 0.0)
        latencies = [f"{found:,.0f} ms" for found in (p50, p99, max(waited_ms[met_the_kill], default=0.0))]
        table.add_row(half.listener, f"{len(half.rows):,}", f"{rate:,.0f}", *latencies)
    table.add_row("read back", f"{read_rows:,}", f"{read_rows / read_s:,.0f}")
    return Group(table, "[dim]¹ without the outage   ² the longest wait of a record that met the outage[/]")


def story(kill: Kill, counted: Mapping[str, int], rows: int) -> Group:
    """Says what happened, and the verdict. `counted`: the objects on the bucket."""
    puts = sum(counted[kind] for kind in ("segments", "indexes", "claims", "seals"))
    segment_kib = counted["segment_bytes"] / max(1, counted["segments"]) / 1024
    listeners = " and ".join(f"{count:,} over {name.partition(',')[0]}" for name, count in kill.under_way.items())
    again, there = sum(kill.under_way.values()), kill.on_bucket - kill.acknowledged
    became = (
        f"{there:,} lay on the bucket already and were refused as duplicates, {again - there:,} were written."
        if there
        else "none of them lay on the bucket yet, and all were written."
    )
    served = f"sent again to the next process, which served after {kill.served_s - kill.killed_s:.1f} s"
    return Group(
        "[bold]What the kill did[/]",
        _sentence(
            "[bold red]kill -9[/]",
            f"at {kill.acknowledged:,} acknowledged records: with no broker running, each of them lay on the bucket.",
        ),
        _sentence("again", f"{again:,} more were under way ({listeners}), and {served}: {became}"),
        _sentence(
            "bucket",
            f"{puts:,} PUTs, one for {rows / puts:,.0f} records: {counted['segments']:,} segments of {segment_kib:,.0f} KiB on "
            f"average, {counted['indexes']} indexes of their footers, {counted['claims']} claims of a session, "
            f"{counted['seals']} seals.",
        ),
        _sentence(
            "rows",
            f"[bold green]✓ {rows:,} rows[/]: each once, unchanged, in order within its key, and where its acknowledgement said.",
        ),
    )


def spark_line(chart: Path) -> Table:
    verdict = "[bold green]✓ the same rows[/], from Parquet and segments, with no broker."
    return _sentence("spark", f"{verdict} The chart: {escape(str(chart))}")


def _sentence(label: str, text: str) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(style="bold cyan", width=len("kill -9"))
    line.add_row(label, text)
    return line


def hours_table(hours: Sequence[HourOfDay]) -> Table:
    title = "Delays by the hour of the day, by Spark, with no broker running"
    table = _table(title, "flights", "cancelled", "over 15 min late", "mean delay")
    table.columns[0].justify = "right"
    table.add_column("", style="cyan", no_wrap=True)
    longest = max((row.mean_delay for row in hours), default=0.0)
    for row in hours:
        departed = [f"{row.late / row.departed:.0%}", f"{row.mean_delay:.1f} min"] if row.departed else ["", ""]
        bar = "█" * round(BAR_WIDTH * max(0.0, row.mean_delay) / longest) if longest > 0 else ""
        table.add_row(f"{row.hour}:00", f"{row.flights:,}", f"{row.flights - row.departed:,}", *departed, bar)
    return table
