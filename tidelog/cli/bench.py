"""`tidelog bench`: load on a cluster, with live percentiles on a terminal and a line a second elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import UnknownTopic
from tidelog.cli.app.client_command import AcksOption, CompressionOption, with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, cell, say, show_one

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.load import LoadProgress

app = typer.Typer(cls=GroupPage, help="Measure a cluster: produce, consume, end-to-end.")

DEFAULT_TOPIC = "tidelog-bench"

TopicOption = Annotated[str, typer.Option("--topic", "-t", help="Topic, created with --partitions if it does not exist.")]
PartitionsOption = Annotated[int, typer.Option("--partitions", "-p", min=1, help="Partitions of a topic that is created.")]
SecondsOption = Annotated[float, typer.Option("--seconds", "-s", min=0.1, help="How long.")]
RecordsOption = Annotated[int | None, typer.Option("--records", "-n", min=1, help="End after so many records.", show_default=False)]
BytesOption = Annotated[int, typer.Option("--record-bytes", "-b", min=0, help="Size of each value.")]


@app.command(cls=CommandPage)
def produce(
    topic: TopicOption = DEFAULT_TOPIC,
    partitions: PartitionsOption = 6,
    seconds: SecondsOption = 5.0,
    records: RecordsOption = None,
    record_bytes: BytesOption = 100,
    compression: CompressionOption = "none",
    acks: AcksOption = "all",
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Sends as fast as the cluster takes it."""

    async def command(log: Client) -> dict[str, Any]:
        from tidelog.load import produce_load

        await _make_topic(log, topic, partitions)
        return await _watched(
            lambda progress: produce_load(log, topic, progress, seconds=seconds, records=records, record_bytes=record_bytes)
        )

    row = with_client(url, command, compression=compression, acks=acks)
    show_one({"bench": "produce", "topic": topic, "record_bytes": record_bytes} | row, output)
    _show_remaining(topic)


@app.command(cls=CommandPage)
def consume(
    topic: TopicOption = DEFAULT_TOPIC,
    seconds: SecondsOption = 60.0,
    records: RecordsOption = None,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Reads a topic from its beginning to its end."""

    async def command(log: Client) -> dict[str, Any]:
        from tidelog.load import consume_load

        return await _watched(lambda progress: consume_load(log, topic, progress, seconds=seconds, records=records))

    try:
        row = with_client(url, command)
    except UnknownTopic as error:
        error.hint = f"Fill it first: tidelog bench produce --topic {topic}"
        raise
    show_one({"bench": "consume", "topic": topic} | row, output)


@app.command("end-to-end", cls=CommandPage)
def end_to_end(
    topic: TopicOption = DEFAULT_TOPIC,
    partitions: PartitionsOption = 6,
    seconds: SecondsOption = 5.0,
    rate: Annotated[float, typer.Option("--rate", "-r", min=0.1, help="Records a second.")] = 100.0,
    record_bytes: BytesOption = 100,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Sends at a steady rate, and measures how long each record takes to a reader."""

    async def command(log: Client) -> dict[str, Any]:
        import os

        from tidelog.cli.app.contexts import cluster_access
        from tidelog.cli.app.credential_options import given_credentials
        from tidelog.client import connect
        from tidelog.load import end_to_end_load

        await _make_topic(log, topic, partitions)
        access = cluster_access(url, os.environ, given_credentials())
        async with connect(access.url, **access.credentials) as reader:
            return await _watched(
                lambda progress: end_to_end_load(
                    log, reader, topic, progress, seconds=seconds, rate=rate, record_bytes=record_bytes
                )
            )

    row = with_client(url, command, linger_ms=0)
    show_one({"bench": "end-to-end", "topic": topic, "rate": rate, "record_bytes": record_bytes} | row, output)
    _show_remaining(topic)


def _show_remaining(topic: str) -> None:
    if sys.stderr.isatty():
        say(f"the records stay; remove them: tidelog topic delete {topic}")


async def _make_topic(log: Client, topic: str, partitions: int) -> None:
    from metadata.errors import AlreadyExists

    with suppress(AlreadyExists):
        await log.topics.create(topic, partitions=partitions)


async def _watched(load: Callable[[LoadProgress], Awaitable[None]]) -> dict[str, Any]:
    """Runs the load, shows every second how it goes, and answers its summary. Raises what the load raises."""
    from tidelog.load import LoadProgress
    from tidelog.tasks import ClientTasks

    progress = LoadProgress()
    async with ClientTasks() as tasks:
        tasks.start(_show(progress), name="live view")
        await load(progress)
    return progress.summary()


async def _show(progress: LoadProgress) -> None:
    import asyncio

    if not sys.stderr.isatty():
        while True:
            await asyncio.sleep(1)
            say("  ".join(f"{name} {cell(value)}" for name, value in progress.summary().items()))
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        while True:
            table = Table(box=None, show_header=False)
            for name, value in progress.summary().items():
                table.add_row(name.replace("_", " "), cell(value))
            live.update(table)
            await asyncio.sleep(0.25)
