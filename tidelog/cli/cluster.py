"""`tidelog cluster`: who is there and how they are, and taking a broker out in order."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import Unavailable
from tidelog.cli.app.client_command import with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.errors import FAILED, UNHEALTHY, register
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, say, show_done, show_one, show_rows
from tidelog.cli.cluster_restore import restore

if TYPE_CHECKING:
    from tidelog.cli.cluster_health import ClusterHealth
    from tidelog.client import Client
    from tidelog.transport.descriptions import BrokerDrain

# Pause between checks of what a broker that drains still leads.
DRAIN_POLL_S = 0.5
_STYLES = {"serving": "green", "draining": "bold yellow", "not serving": "bold red", "unreachable": "bold red"}

app = typer.Typer(cls=GroupPage, help="Look after the brokers of a cluster.")

BrokerArgument = Annotated[str, typer.Argument(metavar="BROKER", help="Id of the broker.", show_default=False)]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check the request and show its result; change nothing.")]


@app.command(cls=CommandPage)
def health(url: UrlOption = "", output: OutputOption = Output.TABLE) -> int:
    """Asks every broker whether it serves, and every partition for its leader. Exit code 3 when something is wrong."""
    import msgspec

    from tidelog.cli.cluster_health import check_cluster

    try:
        found = with_client(url, check_cluster)
    except Unavailable as error:
        error.hint = "Look at the brokers, and whether this is their address."
        register(error)
        return UNHEALTHY
    brokers = [
        {"broker": broker.broker_id, "status": broker.status, "grpc_address": broker.grpc_address, "detail": broker.detail}
        for broker in found.brokers
    ]
    summary = {
        "cluster_id": found.cluster_id,
        "bucket": found.bucket,
        "healthy": not found.faults,
        "topics": found.topics,
        "partitions": found.partitions,
        "without_leader": found.without_leader,
    }
    if output is Output.TABLE:
        show_one(summary, output)
        sys.stdout.write("\n")
        show_rows(brokers, output, styles=_STYLES)
    else:
        unserved = [msgspec.to_builtins(partition) for partition in found.unserved]
        show_one(summary | {"brokers": brokers, "unserved": unserved, "faults": found.faults}, output)
    say(_verdict(found))
    return UNHEALTHY if found.faults else 0


@app.command(cls=CommandPage)
def brokers(url: UrlOption = "", output: OutputOption = Output.TABLE) -> None:
    """Lists the brokers of the cluster."""
    import msgspec

    cluster = with_client(url, lambda log: log.cluster())
    rows: list[dict[str, Any]] = [msgspec.to_builtins(broker) for broker in cluster.brokers]
    show_rows(rows, output)


@app.command(cls=CommandPage)
def drain(
    broker: BrokerArgument,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it leads nothing any more.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait.")] = 60.0,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> int:
    """Asks a broker to hand over all that it leads; then it may be stopped, and nothing moves.

    Producers and readers go on meanwhile. It stays a member that leads nothing until it is started again, or until
    `tidelog cluster undrain`. SIGTERM drains a broker as well, and ends it.
    """

    async def command(log: Client) -> BrokerDrain:
        state = await log.drain_broker(broker, validate_only=dry_run)
        return await _until_drained(log, state, timeout_s) if wait and not dry_run else state

    state = with_client(url, command, writes=True)
    row = {"broker_id": state.broker_id, "draining": state.draining, "partitions_led": state.partitions_led}
    if dry_run:
        show_done(row, output, f"{broker} leads {_partitions(state)}; nothing was changed (--dry-run)")
    elif not state.partitions_led:
        show_done(row, output, f"{broker} leads nothing any more; it may be stopped")
    elif not wait:
        show_done(row, output, f"{broker} hands over {_partitions(state)}; `tidelog cluster drain {broker}` waits for the end")
    else:
        show_done(row, output, f"after {timeout_s:g} s, {broker} still leads {_partitions(state)}; it goes on handing over")
        return FAILED
    return 0


@app.command(cls=CommandPage)
def undrain(
    broker: BrokerArgument, dry_run: DryRunOption = False, url: UrlOption = "", output: OutputOption = Output.TABLE
) -> None:
    """Lets a broker that drains, or has drained, take partitions again."""
    state = with_client(url, lambda log: log.undrain_broker(broker, validate_only=dry_run), writes=True)
    row = {"broker_id": state.broker_id, "draining": state.draining, "partitions_led": state.partitions_led}
    show_done(
        row, output, f"{broker} could take partitions again; nothing was changed" if dry_run else f"{broker} takes partitions"
    )


app.command(cls=CommandPage)(restore)


async def _until_drained(log: Client, state: BrokerDrain, timeout_s: float) -> BrokerDrain:
    """Waits until the broker leads nothing, or the time is over, and returns its state. Retries while it does not answer."""
    import asyncio

    clock = asyncio.get_running_loop().time
    deadline_s = clock() + timeout_s
    led_before = 0
    while state.partitions_led and clock() < deadline_s:
        if state.partitions_led != led_before:
            led_before = state.partitions_led
            say(f"{state.broker_id} hands over {_partitions(state)}")
        await asyncio.sleep(min(DRAIN_POLL_S, max(0.0, deadline_s - clock())))
        try:
            state = await log.drain_broker(state.broker_id)
        except Unavailable as error:
            say(f"not known at the moment: {error.message}")
    return state


def _partitions(state: BrokerDrain) -> str:
    return f"{state.partitions_led:,} partition{'s' if state.partitions_led != 1 else ''}"


def _verdict(found: ClusterHealth) -> str:
    if found.faults:
        return "\n".join(found.faults)
    return f"all is well: {len(found.brokers)} broker{'s' if len(found.brokers) != 1 else ''}, and every partition has a leader"
