"""What the demo shows: its progress while it runs, and what came of it. Progress goes to stderr, results to stdout."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from tidelog.demo.bucket import Objects
from tidelog.demo.producers import Answer, Half

DELAYS_SHOWN = 10
LABEL_WIDTH = 9
PIPED_WIDTH = 132
WIDE_LEAST = 124
"""Columns of a terminal that has room for names, too."""
PACE_S = 1.0
"""Over which a bar measures how fast it moves. One that moved before, and not for so long, has no answers."""
_YEAR = 2013
_LEGAL_FORM = re.compile(r" (Inc\.|Co\.|Corporation)$")


@dataclass(frozen=True, slots=True)
class Kill:
    """What the bucket held when the broker was dead, beside what its producers knew."""

    acknowledged: int
    """Rows, all of them found on the bucket."""
    on_bucket: int
    """Rows in committed segments, acknowledged or not."""
    under_way: Mapping[str, int]
    """By door: rows sent and not acknowledged."""
    killed_s: float
    served_s: float
    """When the next process did. Both by the clock of time.perf_counter."""

    @property
    def outage_s(self) -> float:
        return self.served_s - self.killed_s

    @property
    def answers_lost(self) -> int:
        """Rows that were committed while their answer was not: sent again, they are duplicates to refuse."""
        return self.on_bucket - self.acknowledged


class Flight(msgspec.Struct, frozen=True, gc=False):
    """The columns of a row that the table of delays needs."""

    month: int
    day: int
    carrier: str
    flight: int
    origin: str
    dest: str
    dep_delay: int | None


def results_console() -> Console:
    """For tables: as wide as the terminal, or wide enough where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def show(console: Console, *parts: RenderableType) -> None:
    """One below the other, with a line between, and at once. Where no terminal is, lines end where their text does."""
    with console.capture() as shown:
        for number, part in enumerate(parts):
            console.print(*([""] if number else []), part, sep="\n")
    text = shown.get()
    if not console.is_terminal:
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    console.file.write(text)
    console.file.flush()


# ── while it runs ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _FollowingProgress(Progress):
    """Asks anew how far each bar is, whenever they are drawn: so whoever does the work need not tell."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            self.update(task.id, completed=task.fields["count"]())
        yield from super().get_renderables()


class _Pace(ProgressColumn):
    """Records a second at this moment. In the end the time it took, outage and all; how fast it was, the table tells.

    A pace is between two answers: with none yet, or with one after a while, none is known, and nothing is wrong.
    """

    def __init__(self) -> None:
        super().__init__()
        self._moved: dict[TaskID, tuple[float, float]] = {}
        """How far each bar was when it moved last, and when that was seen."""

    def render(self, task: Task) -> Text:
        completed, moved_s = self._moved.get(task.id, (0.0, 0.0))
        if task.completed != completed:
            completed, moved_s = self._moved[task.id] = (task.completed, task.get_time())
        if task.finished:
            return Text(f"in {task.finished_time:.1f} s")
        if completed and task.get_time() - moved_s > PACE_S:
            return Text("no answers", style="bold red")
        return Text("–" if task.speed is None else f"{task.speed:,.0f}/s now", style="cyan")


class _Elapsed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.elapsed or 0:.0f} s", style="cyan")


class Watch:
    """Talks on stderr, with progress bars where that is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, label: str, what: str, *, style: str = "bold") -> None:
        self._console.print(f"[{style}]{label:<{LABEL_WIDTH}}[/]{escape(what)}", soft_wrap=True)

    def space(self) -> None:
        """A blank line between progress and results."""
        self._console.print()

    @contextmanager
    def elapsed(self, label: str) -> Iterator[None]:
        """Shows for how long it works already; nothing of it stays."""
        columns = (TextColumn(f"[bold]{label:<{LABEL_WIDTH - 1}}[/]"), _Elapsed())
        shown = self._console.is_terminal
        with Progress(*columns, console=self._console, disable=not shown, transient=True, refresh_per_second=2) as progress:
            progress.add_task(label)
            yield

    @contextmanager
    def bars(self, bars: Mapping[str, tuple[int, Callable[[], int]]]) -> Iterator[None]:
        """Shows a bar for each name: its total, and what tells how far it is."""
        columns = (TextColumn("  {task.description:<10}"), BarColumn(36), TextColumn("{task.completed:>9,.0f}"), _Pace())
        shown = self._console.is_terminal
        with _FollowingProgress(*columns, console=self._console, disable=not shown, speed_estimate_period=PACE_S) as progress:
            for name, (total, count) in bars.items():
                progress.add_task(name, total=total, count=count)
            yield


# ── in the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def delays_table(rows: Mapping[str, Sequence[bytes]], airline_of: Mapping[str, str], *, width: int) -> Table:
    """One line per carrier, those with the longest delay first. `rows`: by carrier, the values as they were read back."""
    decode = msgspec.json.Decoder(Flight).decode
    longest: dict[str, list[Flight]] = {}
    for carrier, values in rows.items():
        departed = (flight for flight in map(decode, values) if flight.dep_delay is not None)
        longest[carrier] = heapq.nlargest(DELAYS_SHOWN, departed, key=_delay)
    wide = width >= WIDE_LEAST
    table = _table("The ten longest departure delays of each carrier, in hours:minutes")
    table.add_column("", style="bold cyan", no_wrap=True)
    if wide:
        table.add_column("airline", no_wrap=True, overflow="ellipsis", max_width=19)
    table.add_column("flights", justify="right", no_wrap=True)
    table.add_column("longest", style="bold", justify="right", no_wrap=True)
    table.add_column("and the nine after it", no_wrap=True)
    if wide:
        table.add_column("the longest was", style="dim", no_wrap=True)
    for carrier in sorted(longest, key=lambda carrier: [-_delay(flight) for flight in longest[carrier][:1]]):
        flights = longest[carrier]
        first = [_LEGAL_FORM.sub("", airline_of.get(carrier, ""))] if wide else []
        last = [_described(flights[0]) if flights else ""] if wide else []
        shown = [_hours(_delay(flight)) for flight in flights]
        table.add_row(carrier, *first, f"{len(rows[carrier]):,}", "".join(shown[:1]), " ".join(f"{s:>5}" for s in shown[1:]), *last)
    return table


def figures_table(halves: Sequence[Half], kill: Kill, *, read_rows: int, read_s: float) -> Group:
    """Rates leave out the time from the kill to the first acknowledgement after it; latencies tell of it apart."""
    table = _table("How fast, with everything on this machine")
    table.add_column("", style="bold cyan", no_wrap=True)
    for column in ("records", "records/s ¹", "answered after: p50", "p99", "over the kill ²"):
        table.add_column(column, justify="right", no_wrap=True)
    for half in halves:
        undisturbed, disturbed = _split(half.answers, kill)
        back_s = min((a.acknowledged_s for a in half.answers if a.acknowledged_s >= kill.served_s), default=kill.served_s)
        table.add_row(
            half.door,
            f"{len(half.rows):,}",
            f"{len(half.rows) / (half.seconds - (back_s - kill.killed_s)):,.0f}",
            f"{_latency_ms(undisturbed, 50):,.0f} ms",
            f"{_latency_ms(undisturbed, 99):,.0f} ms",
            f"{_latency_ms(disturbed, 100):,.0f} ms",
        )
    table.add_row("read back", f"{read_rows:,}", f"{read_rows / read_s:,.0f}")
    return Group(table, Text("¹ without the outage   ² the longest wait of a record that met the outage", style="dim"))


def _table(title: str | None) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", header_style="", box=None, pad_edge=False)


def _split(answers: Sequence[Answer], kill: Kill) -> tuple[list[Answer], list[Answer]]:
    """Those that came while a broker ran all the time, and those that met the kill."""
    undisturbed: list[Answer] = []
    disturbed: list[Answer] = []
    for answer in answers:
        met_the_kill = answer.acknowledged_s > kill.killed_s and answer.sent_s < kill.served_s
        (disturbed if met_the_kill else undisturbed).append(answer)
    return undisturbed, disturbed


def _latency_ms(answers: Sequence[Answer], percent: float) -> float:
    """What `percent` of the rows did not exceed."""
    rows_left = sum(answer.rows for answer in answers) * percent / 100
    for latency_s, rows in sorted((answer.acknowledged_s - answer.sent_s, answer.rows) for answer in answers):
        rows_left -= rows
        if rows_left <= 0:
            return latency_s * 1000
    return 0.0


def story(kill: Kill, bucket: Objects, rows: int) -> Table:
    """What happened, and the verdict; label and sentences, in lines that fit."""
    table = _sentences("What the kill did")
    table.add_row(
        "[bold red]kill -9[/]",
        f"at {kill.acknowledged:,} acknowledged records: with no broker running, each of them lay on the bucket.",
    )
    table.add_row("again", _told_of_what_was_under_way(kill))
    table.add_row("bucket", _told_of_the_bucket(bucket, rows))
    table.add_row(
        "rows",
        f"[bold green]✓ {rows:,} rows[/]: each once, unchanged, in order within its key, and where its acknowledgement said.",
    )
    return table


def spark_line(chart: Path) -> Table:
    """Goes on where the story ended."""
    table = _sentences()
    told = f"[bold green]✓ the same rows[/], from Parquet and segments, with no broker. The chart: {escape(str(chart))}"
    table.add_row("spark", told)
    return table


def _sentences(title: str | None = None) -> Table:
    table = _table(title)
    table.show_header = False
    table.add_column("", style="bold cyan", no_wrap=True, min_width=len("kill -9"))
    table.add_column("")
    return table


def _told_of_what_was_under_way(kill: Kill) -> str:
    doors = " and ".join(f"{rows:,} over {door.partition(',')[0]}" for door, rows in kill.under_way.items())
    again, lost = sum(kill.under_way.values()), kill.answers_lost
    became = (
        f"{lost:,} lay on the bucket already and were refused as duplicates, {again - lost:,} were written."
        if lost
        else "none of them lay on the bucket yet, and all were written."
    )
    return (
        f"{again:,} more were under way ({doors}), and sent again to the next process, which served after {kill.outage_s:.1f} s: "
        f"{became}"
    )


def _told_of_the_bucket(bucket: Objects, rows: int) -> str:
    segment_kib = bucket.segment_bytes / max(1, bucket.segments) / 1024
    return (
        f"{bucket.puts:,} PUTs, one for {rows / bucket.puts:,.0f} records: {bucket.segments:,} segments of {segment_kib:,.0f} KiB "
        f"on average, {bucket.indexes} indexes of their footers, {bucket.claims} claims of a session, {bucket.seals} seals."
    )


def _delay(flight: Flight) -> int:
    return flight.dep_delay or 0


def _hours(minutes: int) -> str:
    return f"{'-' if minutes < 0 else ''}{abs(minutes) // 60}:{abs(minutes) % 60:02}"


def _described(flight: Flight) -> str:
    return f"{flight.carrier} {flight.flight} {flight.origin}→{flight.dest} {date(_YEAR, flight.month, flight.day):%-d %b}"
