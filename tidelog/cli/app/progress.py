"""Shows progress on stderr: a bar on a terminal only, and a message everywhere when a command waits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.cli.app.output import say

if TYPE_CHECKING:
    from metadata.errors import Throttled

WAIT_SHOWN_S: Final = 5
THROTTLED_SHOWN_S: Final = 2.0
THROTTLE_CHECK_S: Final = 0.25


@contextmanager
def byte_progress(title: str, size: int) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with the bytes that were read since the last call, and the records so far. `size` 0 is unknown."""
    with _bar(title, size, in_bytes=True) if size else nullcontext(_nothing) as update:
        yield lambda read_bytes, records: update(advance=read_bytes, records=records)


@contextmanager
def offset_progress(title: str) -> Iterator[Callable[[int, int, int], None]]:
    """Gives a function to call with the offsets that are done, all that there are, and the records so far."""
    with _bar(title, None, in_bytes=False) as update:
        yield lambda done, total, records: update(completed=done, total=total, records=records)


def _nothing(**_fields: int) -> None: ...


@contextmanager
def _bar(title: str, total: int | None, *, in_bytes: bool) -> Iterator[Callable[..., None]]:
    """Gives `Progress.update` of the only bar, on a terminal."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    measure = DownloadColumn() if in_bytes else TaskProgressColumn()
    text, records = TextColumn("{task.description}"), TextColumn("{task.fields[records]:,} records")
    columns = (text, BarColumn(), measure, records, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield partial(progress.update, progress.add_task(title, total=total, records=0))


async def show_throttling(throttled: Callable[[], Throttled | None]) -> None:
    """Says once by what a command is throttled, when that has held it up for a while. `throttled`: None where nothing is known."""
    import asyncio

    held_up_s = 0.0
    while True:
        await asyncio.sleep(THROTTLE_CHECK_S)
        if (error := throttled()) is not None:
            held_up_s += THROTTLE_CHECK_S
            if held_up_s >= THROTTLED_SHOWN_S:
                say(f"throttled: {error.message}; this goes on by itself, as fast as it may")
                return


async def show_waiting(
    answered: Callable[[], int], sent: Callable[[], int], throttled: Callable[[], Throttled | None] = lambda: None
) -> None:
    """Runs until cancelled: reports when answers stop for a while, and when they come again. A silent wait looks like a hang.

    Stays silent while the client is throttled, which show_throttling reports."""
    import asyncio

    before, waiting_before, waited_s, shown_at_s = 0, False, 0, WAIT_SHOWN_S
    while True:
        await asyncio.sleep(WAIT_SHOWN_S)
        now = answered()
        waiting = sent() - now
        is_silent = waiting_before and now == before
        if is_silent and throttled() is None:
            waited_s += WAIT_SHOWN_S
            if waited_s >= shown_at_s:
                say(f"{waiting:,} records wait for an answer; none came for {waited_s} s, and the broker's log may say why")
                shown_at_s = 2 * waited_s
        elif waited_s and not is_silent:
            say("answers come again")
            waited_s, shown_at_s = 0, WAIT_SHOWN_S
        before, waiting_before = now, waiting > 0
