"""`tidelog produce`: a file or a pipe into a topic, as it flows, with a progress bar on a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from metadata.errors import InvalidArgument, Rejected, TidelogError
from tidelog.cli.app.client_command import AcksOption, CompressionOption, with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.output import Output, OutputOption, say, show_one
from tidelog.producer.outcomes import count_of_records

if TYPE_CHECKING:
    from tidelog.cli.formats.record_input import InputOptions
    from tidelog.client import Client

READ_BYTES = 256 << 10
CHUNKS_AHEAD_MAX = 4


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.", show_default=False)],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read this file instead of standard input.", show_default=False),
    ] = None,
    form: Annotated[
        Literal["lines", "ndjson", "csv", "envelope", "raw"] | None,
        typer.Option(
            "--as", metavar="FORM", help="Form of the input. Default: by the file's name, else lines.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str, typer.Option("--key", "-k", metavar="FIELD", help="Field that is the key (ndjson, csv).", show_default=False)
    ] = "",
    key_separator: Annotated[
        str,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Text between key and value (lines).", show_default=False),
    ] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record. Repeatable.", show_default=False),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Write to this partition.", show_default=False)] = None,
    keep_partition: Annotated[
        bool, typer.Option("--keep-partition", help="Write each envelope to the partition that it names.")
    ] = False,
    compression: CompressionOption = "none",
    acks: AcksOption = "all",
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Writes records from a file or standard input.

    \b
    echo hello | tidelog produce greetings
    tidelog produce orders --file orders.csv --key customer
    tidelog consume orders -o ndjson | tidelog produce copy --as envelope
    """
    from tidelog.cli.formats.record_input import FORMAT_OF_SUFFIX, InputFormat, InputOptions

    options = InputOptions(
        format=InputFormat(form) if form else FORMAT_OF_SUFFIX.get(file.suffix.lower() if file else "", InputFormat.LINES),
        key_field=key,
        key_separator=_unescaped(key_separator),
        headers=tuple(_header(text) for text in header or ()),
        partition=partition,
        keep_partition=keep_partition,
    )
    if file is None:
        if sys.stdin.isatty():
            say("type records, one a line; Ctrl-D ends the input")
        summary = with_client(
            url, lambda log: _send_all(log, topic, options, sys.stdin.buffer, 0), compression=compression, acks=acks, writes=True
        )
    else:
        try:
            source = file.open("rb")
        except OSError as error:
            raise Rejected(f"{file} can't be read: {error.strerror}") from error
        with source:
            size = file.stat().st_size
            summary = with_client(
                url, lambda log: _send_all(log, topic, options, source, size), compression=compression, acks=acks, writes=True
            )
    show_one(summary, output)


async def _send_all(log: Client, topic: str, options: InputOptions, source: BinaryIO, size: int) -> dict[str, Any]:
    """Sends everything; on an error flushes what was sent before it, and notes what became of it."""
    from tidelog.cli.app.progress import byte_progress, show_throttling, show_waiting
    from tidelog.cli.formats.record_input import RecordInput
    from tidelog.tasks import ClientTasks

    records, input_bytes, started_s = 0, 0, time.perf_counter()
    taken = RecordInput(options)
    with byte_progress(f"produce {topic}", size) as advance:
        async with ClientTasks() as tasks:
            waiting = show_waiting(lambda: log.outcomes.total, lambda: records, lambda: log.throttled)
            tasks.start(waiting, name="waiting messages")
            tasks.start(show_throttling(lambda: log.throttled), name="throttling messages")
            try:
                async for chunk in _chunks(source):
                    input_bytes += len(chunk)
                    for message in taken.feed(chunk) if chunk else taken.end():
                        try:
                            await log.send(
                                topic,
                                message.value,
                                key=message.key,
                                headers=message.headers,
                                partition=message.partition,
                                timestamp_ms=message.timestamp_ms,
                            )
                        except Rejected as error:
                            _name_the_line(error, taken.line)
                            raise
                        records += 1
                    advance(len(chunk), records)
                await log.flush()
            except TidelogError as error:
                if records:
                    await _show_written(log, topic, error)
                raise
    if not records:
        say("the input was empty: nothing was written")
    seconds = time.perf_counter() - started_s
    return {
        "topic": topic,
        "records": records,
        "input_bytes": input_bytes,
        "seconds": round(seconds, 3),
        "records_per_second": round(records / seconds) if seconds else 0,
    }


def _name_the_line(error: Rejected, line: int) -> None:
    """Adds the line of the input to the error of a refused record."""
    if line:
        error.message = f"line {line} of the input: {error.message}"
        error.details["line"] = line


async def _show_written(log: Client, topic: str, error: TidelogError) -> None:
    with suppress(TidelogError):  # it is counted, and the first error is the one to tell
        await log.flush()
    sent = log.outcomes
    line = error.details.get("line")
    if line is not None and sent.acknowledged == sent.total:
        was = "was" if sent.acknowledged == 1 else "were"
        error.add_note(f"{count_of_records(sent.acknowledged)} before it {was} acknowledged; nothing else was written.")
        error.hint = f"{error.hint} Mend line {line}, and send only what begins there: the rest would be there twice.".strip()
        return
    error.add_note(f"{sent}.")
    if sent.acknowledged or sent.unknown:
        again = (
            "Do not send the whole input again: what is in the log would be there twice. "
            f"Look with `tidelog consume {topic}`, and send only what is missing."
        )
        error.hint = f"{error.hint} {again}".strip() if isinstance(error, Rejected) else again


async def _chunks(source: BinaryIO) -> AsyncIterator[bytes]:
    """Yields input as it arrives, then one empty chunk. Reads in a daemon thread: a terminal's read can't be cancelled."""
    import asyncio

    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD_MAX)
    descriptor = source.fileno()  # not through the buffer: the interpreter would wait for its lock at its end

    def read() -> None:
        while True:
            room.acquire()
            try:
                chunk: bytes | OSError = os.read(descriptor, READ_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop has ended, so the chunk has no reader
                return
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="tidelog input", daemon=True).start()
    while True:
        chunk = await chunks.get()
        room.release()
        if isinstance(chunk, OSError):
            raise Rejected(f"the input can't be read on: {chunk.strerror}") from chunk
        yield chunk
        if not chunk:
            return


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidArgument(f"{text!r} is not a header", hint="Write NAME=VALUE.")
    return name, value.encode()


def _unescaped(text: str) -> bytes:
    """Parses a separator as users type it: \\t is a tab."""
    return text.replace("\\t", "\t").encode()
