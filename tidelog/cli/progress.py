"""Progress bars: on stderr, and only when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def byte_progress(title: str, size: int) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with the bytes that were read since the last call, and the records so far. `size` 0 is unknown."""
    if not sys.stderr.isatty() or not size:
        yield lambda read_bytes, records: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[records]:,} records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=size, records=0)

        def advance(read_bytes: int, records: int) -> None:
            progress.update(task, advance=read_bytes, records=records)

        yield advance
