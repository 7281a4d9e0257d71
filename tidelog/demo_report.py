"""What the demo shows: its progress while it runs, and what came of it. Progress goes to stderr, results to stdout."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date

import msgspec
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from tidelog.demo_bucket import Objects
from tidelog.demo_producers import Answer, Half

DELAYS_SHOWN = 10
PIPED_WIDTH = 132
WIDE_LEAST = 124
"""Columns of a terminal that has room for names, too."""
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


# ── while it runs ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _FollowingProgress(Progress):
    """Asks anew how far each bar is, whenever they are drawn: so whoever does the work need not tell."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            self.update(task.id, completed=task.fields["count"]())
        yield from super().get_renderables()


class _RecordsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.completed / task.elapsed:>9,.0f} records/s" if task.elapsed else "", style="cyan")


class Watch:
    """Talks on stderr, with progress bars where that is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, what: str) -> None:
        self._console.print(what, markup=False, soft_wrap=True)

    @contextmanager
    def bars(self, bars: Mapping[str, tuple[int, Callable[[], int]]]) -> Iterator[None]:
        """Shows a bar for each name: its total, and what tells how far it is."""
        columns = (TextColumn("{task.description:<12}"), BarColumn(40), TextColumn("{task.completed:>9,.0f}"), _RecordsPerSecond())
        with _FollowingProgress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
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
    table = Table(
        title="The ten longest departure delays of each carrier, in hours:minutes", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("", style="bold cyan", no_wrap=True)
    if wide:
        table.add_column("airline", no_wrap=True, overflow="ellipsis", max_width=19)
    table.add_column("flights", justify="right", no_wrap=True)
    table.add_column("longest", style="bold", justify="right", no_wrap=True)
    table.add_column("… and the nine after it", no_wrap=True)
    if wide:
        table.add_column("the longest was", style="dim", no_wrap=True)
    for carrier in sorted(longest, key=lambda carrier: [-_delay(flight) for flight in longest[carrier][:1]]):
        flights = longest[carrier]
        first = [_LEGAL_FORM.sub("", airline_of.get(carrier, ""))] if wide else []
        last = [_described(flights[0]) if flights else ""] if wide else []
        shown = [_hours(_delay(flight)) for flight in flights]
        table.add_row(carrier, *first, f"{len(rows[carrier]):,}", "".join(shown[:1]), " ".join(f"{s:>5}" for s in shown[1:]), *last)
    return table


def figures_table(halves: Sequence[Half], kill: Kill, *, read_rows: int, read_s: float) -> Table:
    """Rates leave out the time from the kill to the first acknowledgement after it; latencies tell of it apart."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", style="bold", no_wrap=True)
    for column in ("records", "records/s", "acknowledged p50", "p99", "over the kill"):
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
    return table


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


def told_of_the_kill(kill: Kill) -> str:
    under_way = " and ".join(f"{rows:,} over {door}" for door, rows in kill.under_way.items())
    again, lost = sum(kill.under_way.values()), kill.answers_lost
    return "\n".join(
        (
            f"[bold]kill -9[/] at {kill.acknowledged:,} acknowledged records: all lay on the bucket, with no broker running.",
            f"  {again:,} more were under way ({under_way}). They were sent again",
            f"  to the next process, which served after {kill.outage_s:.1f} s:",
            f"  {lost:,} lay on the bucket already and were refused as duplicates, {again - lost:,} were written.",
        )
    )


def told_of_the_bucket(bucket: Objects, rows: int) -> str:
    segment_kib = bucket.segment_bytes / max(1, bucket.segments) / 1024
    return (
        f"[bold]{bucket.puts:,} PUTs[/], one for {rows / bucket.puts:,.0f} records: {bucket.segments:,} segments "
        f"of {segment_kib:,.0f} KiB on average, {bucket.claims} claims of a session, {bucket.seals} seals."
    )


def told_of_the_rows(rows: int) -> str:
    return f"[bold green]✓ {rows:,} rows[/]: each once, unchanged, in order within its key, and where its acknowledgement said."


def _delay(flight: Flight) -> int:
    return flight.dep_delay or 0


def _hours(minutes: int) -> str:
    return f"{'-' if minutes < 0 else ''}{abs(minutes) // 60}:{abs(minutes) % 60:02}"


def _described(flight: Flight) -> str:
    return f"{flight.carrier} {flight.flight} {flight.origin}→{flight.dest} {date(_YEAR, flight.month, flight.day):%-d %b}"
