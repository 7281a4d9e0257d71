"""`tidelog consume`: records of a topic to stdout, as a table, JSON, raw values, or in a format of your own."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from metadata.errors import InvalidArgument, TidelogError
from tidelog.cli.client_command import with_client
from tidelog.cli.contexts import UrlOption
from tidelog.cli.output import say
from tidelog.settings import ResetPolicy

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.consumer import Consumer
    from tidelog.records import Record

READER_LOOKED_FOR_S = 0.25
WAIT_TOLD_S = 2.0


class RecordOutput(StrEnum):
    TABLE = "table"
    NDJSON = "ndjson"
    JSON = "json"
    YAML = "yaml"
    RAW = "raw"
    """The values alone, a line for each."""


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.", show_default=False)],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, -10 (the last ten of each partition), 1h (ago), 2026-01-31T12:00:00Z, or an offset.",
        ),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, and wait for new records.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="COUNT", min=1, help="Stop after so many records.", show_default=False)
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", metavar="PARTITION", min=0, help="Read this partition only. Repeatable.", show_default=False
        ),
    ] = None,
    template: Annotated[
        str,
        typer.Option(
            "--format",
            "-F",
            metavar="FORMAT",
            help="In kcat's manner: %t %p %o %T %k %s %h %K %S, \\n and \\t.",
            show_default=False,
        ),
    ] = "",
    reset: Annotated[ResetPolicy, typer.Option("--auto-offset-reset", help="Where to go on when an offset is gone.")] = "error",
    url: UrlOption = "",
    output: Annotated[
        RecordOutput | None,
        typer.Option("--output", "-o", metavar="FORM", help="Default: table on a terminal, else ndjson.", show_default=False),
    ] = None,
) -> None:
    """Reads records: up to the present end, or for ever with --follow.

    \b
    tidelog consume orders --from -10
    tidelog consume orders -f --from latest -o raw
    tidelog consume orders --from 1h --format '%p %o %k %s\\n'
    """
    from tidelog.cli.record_format import parse_format
    from tidelog.owned_tasks import OwnedTasks
    from tidelog.positions import SinceTimestamp, parse_start

    now_ms = int(time.time() * 1000)
    begins = parse_start(start, now_ms=now_ms)
    if template and output is not None:
        raise InvalidArgument("--format and --output are both given", hint="Leave one of them out.")
    if output is None:
        output = RecordOutput.TABLE if sys.stdout.isatty() else RecordOutput.NDJSON
    writer = RecordWriter(output, parse_format(template) if template else None)
    if isinstance(begins, SinceTimestamp) and begins.timestamp_ms > now_ms and follow:
        say(f"{start} is in the future: where no record is as new, reading begins with what comes")

    async def command(log: Client) -> None:
        async with (
            log.consume(topic, from_=start, partitions=partition or None, follow=follow, auto_offset_reset=reset) as consumer,
            OwnedTasks() as tasks,
        ):
            if follow:
                tasks.start(_until_reader_leaves(), name="watch standard output")
                if sys.stderr.isatty():
                    tasks.start(_tell_of_waiting(topic, writer), name="tell of waiting")
            await _write_records(consumer, writer, count)

    try:
        with_client(url, command)
    except KeyboardInterrupt:
        writer.end()
        raise
    except TidelogError:
        if writer.records:
            writer.end()
        raise
    writer.begin()
    writer.end()
    if not writer.records:
        say(f"no records in {topic} from {start} on")


async def _write_records(consumer: Consumer, writer: RecordWriter, count: int | None) -> None:
    """Until the end, or until `count` are written."""
    while records := await consumer.chunk():
        writer.write(records if count is None else records[: count - writer.records])
        if writer.records == count:
            return


async def _until_reader_leaves() -> None:
    """Raises BrokenPipeError, as a write would: with `-f orders | head -1` there may be nothing to write for long."""
    import asyncio

    output = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(output).st_mode):
        return
    pipe = select.poll()
    pipe.register(output, 0)  # errors and hang-ups are always told
    while True:
        if pipe.poll(0):
            raise BrokenPipeError
        await asyncio.sleep(READER_LOOKED_FOR_S)


async def _tell_of_waiting(topic: str, writer: RecordWriter) -> None:
    import asyncio

    await asyncio.sleep(WAIT_TOLD_S)
    if not writer.records:
        say(f"waiting for records of {topic}; Ctrl-C ends it")


class RecordWriter:
    """Writes chunks of records to stdout, and flushes each: a pipe behind it sees them at once."""

    def __init__(self, output: RecordOutput, parts: list[bytes | Callable[[Record], bytes]] | None) -> None:
        from tidelog.cli import record_format as forms

        self.records = 0
        """Written so far."""
        self._output = output
        self._has_begun = False
        self._line_of: Callable[[Record], bytes]
        if parts is not None:
            self._output = RecordOutput.RAW
            self._line_of = lambda record: forms.apply_format(parts, record)
        elif output is RecordOutput.RAW:
            self._line_of = lambda record: (record.value or b"") + b"\n"
        elif output is RecordOutput.TABLE:
            self._line_of = lambda record: forms.as_table_line(record).encode() + b"\n"
        elif output is RecordOutput.YAML:
            self._line_of = _yaml_item
        elif output is RecordOutput.JSON:
            self._line_of = lambda record: b"  " + forms.as_json_line(record).removesuffix(b"\n")
        else:
            self._line_of = forms.as_json_line

    def begin(self) -> None:
        """What stands before the first record, once."""
        if self._output is RecordOutput.TABLE and not self._has_begun:
            from tidelog.cli.record_format import TABLE_HEADER

            self._put([TABLE_HEADER.encode(), b"\n"])
        self._has_begun = True

    def write(self, records: list[Record]) -> None:
        self.begin()
        lines = [self._line_of(record) for record in records]
        if self._output is RecordOutput.JSON:
            lines = [(b"[\n" if number == 0 else b",\n") + line for number, line in enumerate(lines, self.records)]
        self.records += len(records)
        self._put(lines)

    def end(self) -> None:
        """Makes what was written one whole document, where the form is one; an interrupted one, too."""
        if self._output is RecordOutput.JSON:
            self._put([b"\n]\n" if self.records else b"[]\n"])
        elif self._output is RecordOutput.YAML and not self.records:
            self._put([b"[]\n"])

    def _put(self, pieces: list[bytes]) -> None:
        sys.stdout.buffer.write(b"".join(pieces))
        sys.stdout.buffer.flush()


def _yaml_item(record: Record) -> bytes:
    import msgspec
    import yaml

    from tidelog.cli.record_format import as_json_line

    return yaml.safe_dump([msgspec.json.decode(as_json_line(record))], sort_keys=False, allow_unicode=True).encode()
