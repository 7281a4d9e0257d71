"""`tidelog consume`: records of a topic to stdout, as a table, JSON, raw values, or in a format of your own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from metadata.errors import InvalidArgument
from tidelog.cli.client_command import with_client
from tidelog.cli.contexts import UrlOption
from tidelog.settings import ResetPolicy

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.records import Record


class RecordOutput(StrEnum):
    TABLE = "table"
    NDJSON = "ndjson"
    JSON = "json"
    YAML = "yaml"
    RAW = "raw"
    """The values alone, a line for each."""


def consume(
    topic: Annotated[str, typer.Argument(help="Topic to read.", show_default=False)],
    start: Annotated[
        str,
        typer.Option(
            "--from", help="earliest, latest, -10 (the last ten of each partition), 1h (ago), 2026-01-31T12:00:00Z, or an offset."
        ),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, and wait for new records.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after so many records.", show_default=False)
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Read this partition only. Repeatable.", show_default=False)
    ] = None,
    template: Annotated[
        str, typer.Option("--format", "-F", help="In kcat's manner: %t %p %o %T %k %s %h %K %S, \\n and \\t.", show_default=False)
    ] = "",
    reset: Annotated[ResetPolicy, typer.Option("--auto-offset-reset", help="Where to go on when an offset is gone.")] = "error",
    url: UrlOption = "",
    output: Annotated[
        RecordOutput | None, typer.Option("--output", "-o", help="Default: table on a terminal, else ndjson.", show_default=False)
    ] = None,
) -> None:
    """Reads records: up to the present end, or for ever with --follow.

    \b
    tidelog consume orders --from -10
    tidelog consume orders -f --from latest -o raw
    tidelog consume orders --from 1h --format '%p %o %k %s\\n'
    """
    import time

    from tidelog.cli.record_format import parse_format
    from tidelog.positions import parse_start

    parse_start(start, now_ms=int(time.time() * 1000))
    if template and output is not None:
        raise InvalidArgument("--format and --output are both given", hint="Leave one of them out.")
    if output is None:
        output = RecordOutput.TABLE if sys.stdout.isatty() else RecordOutput.NDJSON
    parts = parse_format(template) if template else None
    writer = RecordWriter(output, parts)

    async def command(log: Client) -> None:
        left = count
        consumer = log.consume(topic, from_=start, partitions=partition, follow=follow, auto_offset_reset=reset)
        try:
            while records := await consumer.chunk():
                if left is not None:
                    records = records[:left]
                    left -= len(records)
                writer.write(records)
                if left == 0:
                    return
        finally:
            await consumer.aclose()

    writer.begin()
    with_client(url, command)
    writer.end()


class RecordWriter:
    """Writes chunks of records to stdout, and flushes each: a pipe behind it sees them at once."""

    def __init__(self, output: RecordOutput, parts: list[bytes | Callable[[Record], bytes]] | None) -> None:
        from tidelog.cli import record_format as forms

        self._output = output
        self._written = 0
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
        if self._output is RecordOutput.JSON:
            self._put([b"["])
        elif self._output is RecordOutput.TABLE:
            from tidelog.cli.record_format import TABLE_HEADER

            self._put([TABLE_HEADER.encode(), b"\n"])

    def write(self, records: list[Record]) -> None:
        lines = [self._line_of(record) for record in records]
        if self._output is RecordOutput.JSON:
            lines = [(b"\n" if n + self._written == 0 else b",\n") + line for n, line in enumerate(lines)]
        self._written += len(records)
        self._put(lines)

    def end(self) -> None:
        if self._output is RecordOutput.JSON:
            self._put([b"\n]\n" if self._written else b"]\n"])
        elif self._output is RecordOutput.YAML and not self._written:
            self._put([b"[]\n"])

    def _put(self, pieces: list[bytes]) -> None:
        sys.stdout.buffer.write(b"".join(pieces))
        sys.stdout.buffer.flush()


def _yaml_item(record: Record) -> bytes:
    import msgspec
    import yaml

    from tidelog.cli.record_format import as_json_line

    return yaml.safe_dump([msgspec.json.decode(as_json_line(record))], sort_keys=False, allow_unicode=True).encode()
