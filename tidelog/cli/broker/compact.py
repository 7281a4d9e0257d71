"""`tidelog compact`: turns what brokers have written into Parquet, and keeps the bucket clean, until Ctrl-C or SIGTERM.

It takes the settings of `tidelog serve`, from flags, variables or a file. Several at once share the work.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from metadata.shown_url import shown_url
from tidelog.cli.app.errors import UNHEALTHY
from tidelog.cli.app.output import Output, OutputOption, say, show_one
from tidelog.cli.broker.serve import (
    ConfigOption,
    ListSettingsOption,
    check_names,
    extra_flags,
    given,
    show_settings,
    warn_of_little_memory,
)

if TYPE_CHECKING:
    from compaction.compactor import TickReport
    from gateway.settings import BrokerSettings

log = logging.getLogger("tidelog")


def compact(
    context: typer.Context,
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="URL", help="s3://BUCKET/PREFIX or file:///DIRECTORY.", show_default=False)
    ] = "",
    etcd: Annotated[
        str, typer.Option("--etcd", metavar="URL", help="http://HOST:2379,…, as for the brokers.", show_default=False)
    ] = "",
    data_dir: Annotated[
        str,
        typer.Option("--data-dir", metavar="DIR", help="Data directory of a stopped broker, without --etcd.", show_default=False),
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Compact what is due, and end.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --once: compact all that waits, due or not.")] = False,
    http: Annotated[
        str,
        typer.Option(
            "--http",
            "--metrics",
            metavar="HOST:PORT",
            help="Serve only /metrics, /livez, /readyz and /startupz there.",
            show_default=False,
        ),
    ] = "",
    config: ConfigOption = None,
    list_settings: ListSettingsOption = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Compacts segments into Parquet, and deletes what is no longer needed. Any number may run, beside any number of brokers.

    \b
    tidelog compact --bucket s3://my-bucket/prefix --etcd http://etcd:2379
    tidelog compact --data-dir ./tidelog-data --once --all

    \b
    What --once reports:
    manifests       commits, each for one partition
    pending bytes   bytes of batches that wait in segments: not due, or damaged
    failed          steps that failed; the next run repeats them
    damaged         partitions with damaged data, left as they are: exit code 3
    """
    from gateway.process.logging import TEXT, configure_logging
    from gateway.settings import load_settings

    flags = given({"bucket": bucket, "etcd": etcd, "data_dir": data_dir, **extra_flags(context.args)})
    check_names(flags)
    if list_settings:
        show_settings(flags, config, output, {})
        return 0
    here = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}  # it opens neither listener, and its id is not that of a broker
    settings = load_settings(flags | here, os.environ, config)
    settings.check_memory(serves=False)
    text = TEXT if not once else "%(message)s"
    configure_logging(settings.observability, text=text, compactor_id=settings.broker_id)
    warn_of_little_memory(settings)
    import uvloop

    if not once:
        uvloop.run(_run(settings, http))
        say("stopped; the next run repeats unfinished work")
        return 0
    report, bytes_pending = uvloop.run(_once(settings, everything=everything))
    row = {"manifests": report.manifests, "pending_bytes": bytes_pending}
    show_one(row | {"failed": len(report.failed), "damaged": len(report.damaged)}, output)
    grace_s = settings.compaction.delete_grace_ms / 1000
    hindered = bool(report.failed or report.damaged)
    say(conclusion(report.manifests, bytes_pending, everything=everything, grace_s=grace_s, hindered=hindered))
    if report.failed:
        raise report.failed[0]
    return UNHEALTHY if report.damaged else 0


def conclusion(manifests: int, bytes_pending: int, *, everything: bool, grace_s: float, hindered: bool = False) -> str:
    """Returns what the figures mean, and when the bucket will shrink.

    `hindered`: damage or errors stopped some work. Then other data may wait, and the rest may be due.
    """
    said = []
    if not manifests and not bytes_pending and not hindered:
        said += ["nothing waits in segments"]
    elif not manifests:
        why = "nothing could" if everything or hindered else "nothing is due"
        said += [f"nothing went into Parquet: {why}"]
    if bytes_pending:
        waits = f"{bytes_pending:,} bytes wait in segments"
        said += [waits if everything or hindered else f"{waits} until they are due; --all takes them, too"]
    if manifests:
        said += [f"segments that are in Parquet now stay for {grace_s:.15g} s (delete_grace_ms), and are deleted by a later run"]
    return "; ".join(said)


async def _run(settings: BrokerSettings, http: str) -> None:
    import asyncio

    from segments.shared_errors import first_error

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(_work(settings, http), name="compactor")
            stopping = tasks.create_task(stop.wait(), name="stop")
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            stopping.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors


async def _work(settings: BrokerSettings, http: str) -> None:
    from gateway.process.compactor_process import run_compactor

    async with run_compactor(settings, report=log.info, http=http, waits=True) as (service, _):
        log.info("compactor %s is at work on %s", settings.broker_id, shown_url(settings.bucket_url))
        await service.run()


async def _once(settings: BrokerSettings, *, everything: bool) -> tuple[TickReport, int]:
    """Runs once. Returns the report, and the bytes still waiting."""
    from gateway.process.compactor_process import run_compactor

    async with run_compactor(settings, report=log.info) as (service, _):
        report = await service.once(everything=everything)
        return report, service.compactor.metrics.bytes_pending
