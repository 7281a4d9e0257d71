"""Writes records to standard output, in the forms of `tidelog consume`.

A reader that takes nothing (a pager, a slow program behind a pipe) holds up the records and nothing else: what is written goes out
in pieces that a pipe takes at once, whole lines each, and between them the event loop is free, for heartbeats above all.

Invariant: `records` counts those of which the last byte was taken. Between two pieces it may be cancelled, and what stands there is
whole lines.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.records import Record

# How often a thread that waits for room checks whether its caller still waits, in milliseconds.
POLL_MS: Final = 100


class RecordOutput(StrEnum):
    """The output format of records."""

    TABLE = "table"
    NDJSON = "ndjson"
    JSON = "json"
    YAML = "yaml"
    # The values alone, a line for each.
    RAW = "raw"


class RecordWriter:
    """Writes chunks of records to stdout, and flushes each: a pipe behind it sees them at once."""

    def __init__(
        self, output: RecordOutput, parts: list[bytes | Callable[[Record], bytes]] | None, *, topics: Sequence[str] = ()
    ) -> None:
        """Sets up a writer to stdout. With several `topics`, a table names each record's topic."""
        from tidelog.cli.formats import record_format as forms

        # Records written so far.
        self.records = 0
        self._output = output
        self._has_begun = False
        self._topic_width = max(map(len, topics)) if len(topics) > 1 else 0
        self._room = _room_of_output()
        self._line_of: Callable[[Record], bytes]
        if parts is not None:
            self._output = RecordOutput.RAW
            self._line_of = lambda record: forms.apply_format(parts, record)
        elif output is RecordOutput.RAW:
            self._line_of = lambda record: (record.value or b"") + b"\n"
        elif output is RecordOutput.TABLE:
            self._line_of = lambda record: forms.as_table_line(record, topic_width=self._topic_width).encode() + b"\n"
        elif output is RecordOutput.YAML:
            self._line_of = _yaml_item
        elif output is RecordOutput.JSON:
            self._line_of = lambda record: b"  " + forms.as_json_line(record).removesuffix(b"\n")
        else:
            self._line_of = forms.as_json_line

    def begin(self) -> None:
        """Writes the header before the first record, once."""
        if self._output is RecordOutput.TABLE and not self._has_begun:
            from tidelog.cli.formats.record_format import table_header

            _put([table_header(self._topic_width).encode(), b"\n"])
        self._has_begun = True

    async def write(self, records: list[Record]) -> None:
        """Writes records. Raises BrokenPipeError if the reader of the pipe is gone."""
        self.begin()
        lines = [self._line_of(record) for record in records]
        if self._output is RecordOutput.JSON:
            lines = [(b"[\n" if number == 0 else b",\n") + line for number, line in enumerate(lines, self.records)]
        for piece in [lines] if self._room is None else pieces(lines, select.PIPE_BUF):
            if self._room is not None:
                await _until_ready(self._room)
            _put(piece)
            self.records += len(piece)

    def end(self) -> None:
        """Makes what was written one whole document, where the form is one; an interrupted one, too."""
        if self._output is RecordOutput.JSON:
            _put([b"\n]\n" if self.records else b"[]\n"])
        elif self._output is RecordOutput.YAML and not self.records:
            _put([b"[]\n"])


def pieces(lines: Sequence[bytes], bytes_max: int) -> Iterator[list[bytes]]:
    """Splits lines into pieces of at most `bytes_max`; a longer line is a piece of its own."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if piece and size + len(line) > bytes_max:
            yield piece
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield piece


def _put(lines: list[bytes]) -> None:
    """Writes all lines: an unbuffered write (PYTHONUNBUFFERED=1) may be partial, for example when the pipe's reader leaves."""
    rest = memoryview(b"".join(lines))
    while rest:
        taken = sys.stdout.buffer.write(rest)
        if taken is None:
            raise BlockingIOError(errno.EAGAIN, "standard output takes nothing at the moment, and is not to be waited for")
        rest = rest[taken:]
    sys.stdout.buffer.flush()


def _room_of_output() -> select.poll | None:
    """Tells whether standard output takes something at once; None where it always does, or can't be asked."""
    try:
        output = sys.stdout.fileno()
    except (OSError, AttributeError):  # it is none of the operating system's
        return None
    if stat.S_ISREG(os.fstat(output).st_mode):
        return None
    room = select.poll()
    room.register(output, select.POLLOUT)
    return room


async def _until_ready(room: select.poll) -> None:
    """Waits for room in a pipe without the event loop: uvloop would make the terminal non-blocking, also for the parent shell."""
    import asyncio

    while not room.poll(0):
        await asyncio.to_thread(room.poll, POLL_MS)


def _yaml_item(record: Record) -> bytes:
    import msgspec
    import yaml

    from tidelog.cli.formats.record_format import as_json_line

    return yaml.safe_dump([msgspec.json.decode(as_json_line(record))], sort_keys=False, allow_unicode=True).encode()
