"""Prints the progress of the demo on stderr and its results on stdout."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Table

from tidelog.demo.kafka_client import KafkaRead
from tidelog.demo.producers import Half

PIPED_WIDTH: Final = 132
# Columns of a terminal that has room for names, too.
WIDE_LEAST: Final = 124
DELAYS_SHOWN: Final = 10
# With bars of this width the table of hours fits 80 columns.
BAR_WIDTH: Final = 22
# The columns of a row that the results need.
SHOWN: Final = pa.schema(
    [(name, pa.int64()) for name in ("month", "day", "hour", "flight", "dep_delay")]
    + [(name, pa.string()) for name in ("carrier", "origin", "dest")]
)
_LEGAL_FORM: Final = re.compile(r" (Inc\.|Co\.|Corporation)$")


@dataclass(frozen=True, slots=True)
class Kill:
    """The state after the broker was killed: what the bucket holds, and what the producers know, in rows."""

    acknowledged: int
    # In committed segments, acknowledged or not.
    on_bucket: int
    # By listener: sent and not acknowledged.
    under_way: Mapping[str, int]
    # When the broker was killed and when the next one served, by the clock of time.perf_counter.
    killed_s: float
    served_s: float


class HourOfDay(TypedDict):
    """The flights scheduled in this hour, as the pipeline hourly_delays prints them. `late` is by more than 15 minutes."""

    hour: int
    flights: int
    departed: int
    delay_minutes: int | None
    late: int


def flown(values: Iterable[bytes]) -> pa.Table:
    """Returns the rows of these JSON objects, which are flights."""
    options = pyarrow.json.ParseOptions(explicit_schema=SHOWN, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(io.BytesIO(b"\n".join(values)), parse_options=options)


def delays_by_hour(flights: pa.Table) -> list[HourOfDay]:
    """Adds the flights up in the order of the hours, to compare with what Spark makes of the same rows."""
    late = pc.fill_null(pc.greater(flights["dep_delay"], 15), False).cast(pa.int64())
    sums = [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum"), ("late", "sum")]
    hours = flights.append_column("late", late).group_by("hour").aggregate(sums).sort_by("hour")
    found: list[HourOfDay] = hours.rename_columns(list(HourOfDay.__annotations__)).to_pylist()
    return found


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
        """Shows a bar and the time for each name, which has a total and a function that counts."""
        columns = (TextColumn("[bold]{task.description:<10}[/]"), BarColumn(36), TextColumn("{task.completed:>9,.0f}"))
        with _Polling(*columns, TimeElapsedColumn(), console=self._console, disable=not self._console.is_terminal) as progress:
            for name, (total, count) in bars.items():
                progress.add_task(name, total=total, count=count)
            yield

    def elapsed(self, label: str) -> Status | nullcontext[None]:
        """Shows that it works; nothing of it stays."""
        return self._console.status(f"[bold]{label}[/]") if self._console.is_terminal else nullcontext()


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
    """Creates a table whose first column names the row; the others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="", box=None, pad_edge=False)
    table.add_column("", style="bold cyan", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def delays_table(flights: pa.Table, airline_of: Mapping[str, str], *, width: int) -> Table:
    """Creates a table with a line for each carrier, those with the longest delay first."""
    table = _table("The ten longest departure delays of each carrier, in hours:minutes", "flights", "longest")
    table.add_column("and the nine after it", no_wrap=True)
    if wide := width >= WIDE_LEAST:
        table.add_column("the longest was", style="dim", no_wrap=True)
    worst_first = flights.sort_by([("dep_delay", "descending")])  # those that never left are the last
    for carrier in pc.unique(worst_first["carrier"]).to_pylist():
        own = worst_first.filter(pc.equal(worst_first["carrier"], carrier))
        worst = own.drop_null().slice(0, DELAYS_SHOWN).to_pylist()
        name = f"{carrier}  {_LEGAL_FORM.sub('', airline_of.get(carrier, ''))}" if wide else carrier
        delays = [_hours(flight["dep_delay"]) for flight in worst]
        was = ["{carrier} {flight} {origin}→{dest} ".format(**f) + f"{date(2013, f['month'], f['day']):%-d %b}" for f in worst[:1]]
        nine = " ".join(f"{delay:>5}" for delay in delays[1:])
        table.add_row(name, f"{len(own):,}", "".join(delays[:1]), nine, *(was if wide else []))
    return table


def _hours(minutes: int) -> str:
    return f"{'-' if minutes < 0 else ''}{abs(minutes) // 60}:{abs(minutes) % 60:02}"


def figures_table(halves: Sequence[Half], kill: Kill, *, read_rows: int, read_s: float) -> Group:
    """Returns the table of figures. Rates leave out the time from the kill to the first acknowledgement after it, and latencies the
    rows that met the kill."""
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


def story(kill: Kill, counted: Mapping[str, int], rows: int, by_kafka: KafkaRead | None) -> Group:
    """Says what happened, and the verdict. `counted`: the objects on the bucket. `by_kafka`: None without a Kafka client."""
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
        *([_kafka_line(by_kafka)] if by_kafka else []),
    )


def _kafka_line(read: KafkaRead) -> Table:
    verdict = f"[bold green]✓ the same {read.rows:,} rows[/], consumed by {read.client}, a stock Kafka client."
    return _sentence("kafka", verdict)


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
    means = [(row["delay_minutes"] or 0) / max(1, row["departed"]) for row in hours]
    for row, mean in zip(hours, means, strict=True):
        departed = [f"{row['late'] / row['departed']:.0%}", f"{mean:.1f} min"] if row["departed"] else ["", ""]
        bar = "█" * round(BAR_WIDTH * max(0.0, mean) / max(0.001, *means))
        table.add_row(f"{row['hour']}:00", f"{row['flights']:,}", f"{row['flights'] - row['departed']:,}", *departed, bar)
    return table
