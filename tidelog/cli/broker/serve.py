"""`tidelog dev` and `tidelog serve`: a broker in this process, until Ctrl-C or SIGTERM.

Every setting of gateway/settings.py is a flag here: --linger-ms 250, --segment-bytes-max 4MiB. Which there are is read from the
settings themselves, so there is one list of them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from metadata.errors import InvalidArgument, TidelogError, Unavailable
from metadata.shown_url import shown_url
from tidelog.cli.app.errors import INTERRUPTED
from tidelog.cli.app.help_page import CommandPage
from tidelog.cli.app.output import Output, OutputOption, say, show_one, show_rows
from tidelog.cli.app.root import new_root

if TYPE_CHECKING:
    from gateway.broker.broker import Broker
    from gateway.settings import BrokerSettings

log = logging.getLogger("tidelog")

DEFAULT_DATA_DIR = "tidelog-data"
# Pause between checks of how many partitions are left to hand over, at the end.
HANDOVER_POLL_S = 0.1
EXTRA_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}

DataDirOption = Annotated[
    str,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Directory of the broker's metadata, and of its bucket if none is named.",
        show_default=False,
    ),
]
HttpOption = Annotated[
    str, typer.Option("--http", metavar="HOST:PORT", help="Default 127.0.0.1:8080; port 0 takes a free one.", show_default=False)
]
GrpcOption = Annotated[str, typer.Option("--grpc", metavar="HOST:PORT", help="Default 127.0.0.1:9090.", show_default=False)]
ConfigOption = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="A TOML file of settings.", show_default=False)
]
ListSettingsOption = Annotated[bool, typer.Option("--list-settings", help="Show every setting with its value, and end.")]


def dev(
    context: typer.Context,
    data_dir: DataDirOption = "",
    http: HttpOption = "",
    grpc: GrpcOption = "",
    config: ConfigOption = None,
    list_settings: ListSettingsOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Runs a broker on this machine: one process, a local directory, nothing to configure.

    Further settings are flags, such as --linger-ms 250; --list-settings shows them all.
    """
    flags = {"data_dir": data_dir, "http": http, "grpc": grpc, **extra_flags(context.args)}
    defaults = {} if data_dir or "TIDELOG_DATA_DIR" in os.environ or config else {"data_dir": DEFAULT_DATA_DIR}
    _run(
        defaults | given(flags),
        config,
        list_settings=list_settings,
        output=output,
        banner=_show_welcome,
        show=_say_on_a_line,
        is_dev=True,
    )


def serve(
    context: typer.Context,
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="URL", help="s3://BUCKET/PREFIX or file:///DIRECTORY.", show_default=False)
    ] = "",
    data_dir: DataDirOption = "",
    etcd: Annotated[
        str,
        typer.Option(
            "--etcd", metavar="URL", help="http://HOST:2379,…: metadata of a cluster of several brokers.", show_default=False
        ),
    ] = "",
    broker_id: Annotated[
        str, typer.Option("--broker-id", metavar="NAME", help="With --etcd: the name of this broker.", show_default=False)
    ] = "",
    http: HttpOption = "",
    grpc: GrpcOption = "",
    config: ConfigOption = None,
    list_settings: ListSettingsOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Runs a broker for production: logs on stderr, a clean end on SIGTERM, after its partitions were handed over.

    Further settings are flags, such as --linger-ms 250, or TIDELOG_LINGER_MS, or lines of the --settings file; --list-settings
    shows them all.
    """
    named = {"bucket": bucket, "data_dir": data_dir, "etcd": etcd, "broker_id": broker_id, "http": http, "grpc": grpc}
    flags = named | extra_flags(context.args)
    _run(given(flags), config, list_settings=list_settings, output=output, banner=_log_addresses, show=log.info)


def extra_flags(arguments: Sequence[str]) -> dict[str, str]:
    """Parses --linger-ms 250 and --linger-ms=250 to {"linger_ms": "250"}. Raises InvalidArgument for anything else."""
    flags: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if not name.startswith("--") or len(name) < 3:
            raise InvalidArgument(f"{argument!r} is not a flag", hint="Settings are flags, such as --linger-ms 250.")
        if not equals:
            if not rest:
                raise InvalidArgument(f"{name} needs a value", hint=f"Write {name} VALUE.")
            value = rest.pop(0)
        flags[name.removeprefix("--").replace("-", "_")] = value
    return flags


def given(flags: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in flags.items() if value}


def _run(
    flags: dict[str, str],
    config: Path | None,
    *,
    list_settings: bool,
    output: Output,
    banner: Callable[[Broker, BrokerSettings], None],
    show: Callable[[str], None],
    is_dev: bool = False,
) -> None:
    from gateway.process.runtime_tuning import raise_gc_thresholds

    raise_gc_thresholds()  # before the rest is loaded
    from gateway.kafka.listener_config import parse_listeners
    from gateway.net.addresses import host_and_port
    from gateway.net.tls.settings import check_listeners
    from gateway.process.logging import TEXT, configure_logging
    from gateway.settings import DEV, load_settings

    check_names(flags)
    defaults = DEV if is_dev else {}
    if list_settings:
        show_settings(flags, config, output, defaults)
        return
    settings = load_settings(flags, os.environ, config, defaults=defaults)
    for name, address in (("http", settings.http), ("grpc", settings.grpc)):  # before anything is opened, or made
        host_and_port(address, name=name)
    settings.check_memory()
    check_listeners(
        settings.tls,
        http=settings.http,
        grpc=settings.grpc,
        authentication=settings.access.authentication,
        kafka={each.name: each.address for each in parse_listeners(settings.kafka, settings.registration.advertise_kafka)},
    )
    plain = banner is _log_addresses
    configure_logging(
        settings.observability,
        level="info" if plain else "warning",
        text=TEXT if plain else "%(levelname)s: %(message)s",
        broker_id=settings.broker_id,
    )
    if settings.metadata.etcd and settings.registration.doubt:
        log.warning(settings.registration.doubt)
    warn_of_little_memory(settings)
    import uvloop

    def on_ready(broker: Broker) -> None:
        if plain or output is Output.TABLE:
            banner(broker, settings)
        if output is not Output.TABLE:
            addresses = {
                "http_address": broker.http_address,
                "grpc_address": broker.grpc_address,
                "kafka_address": ",".join(f"{each.host}:{each.port}" for each in broker.kafka_listeners),
                "bucket": broker.bucket_url,
            }
            show_one(addresses, Output.NDJSON if output is Output.JSON else output)

    try:
        uvloop.run(_serve(settings, on_ready, show))
    except TidelogError as error:
        if error.hint == Unavailable.default_hint:
            etcd = f" --etcd {quote(settings.metadata.etcd)}" if settings.metadata.etcd else ""
            doctor = f"tidelog doctor --bucket {quote(shown_url(settings.bucket_url))}{etcd}"
            error.hint = f"Check the address and the network; `{doctor}` looks at each step."
        raise
    show("stopped; every acknowledged record is on the bucket")


def warn_of_little_memory(settings: BrokerSettings) -> None:
    """Logs a warning where the machine or container has less memory than the process may take."""
    from gateway.memory_shares import shown_bytes
    from gateway.process.runtime_tuning import memory_limit_bytes

    if settings.memory_bytes_max > (limit_bytes := memory_limit_bytes()):
        log.warning(
            "memory_bytes_max is %s, and this machine or container has %s: the kernel may kill this process under load; "
            "lower memory_bytes_max",
            shown_bytes(settings.memory_bytes_max),
            shown_bytes(limit_bytes),
        )


async def _serve(settings: BrokerSettings, on_ready: Callable[[Broker], None], show: Callable[[str], None]) -> None:
    """Runs a broker until SIGTERM or Ctrl-C, which ends it cleanly; a second Ctrl-C ends it at once, like a crash."""
    import asyncio

    from gateway.process.broker_process import serve as serve_broker
    from tidelog.tasks import ClientTasks

    async with ClientTasks() as tasks:

        def ready(broker: Broker) -> None:
            on_ready(broker)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted, broker)
            tasks.start(_show_shutdown(broker, show), name="shutdown messages")

        await serve_broker(settings, ready)


def interrupted(broker: Broker) -> None:
    """Handles Ctrl-C: the first asks for a clean end; a second does not wait for it. Acknowledged records are safe either way."""
    if broker.stopping.is_set():
        os._exit(INTERRUPTED)
    broker.stop()


async def _show_shutdown(broker: Broker, show: Callable[[str], None]) -> None:
    import asyncio

    await broker.stopping.wait()
    show("stopping: what was taken goes to the bucket first (Ctrl-C again: end at once)")
    left_before = 0
    while left := broker.left_to_hand_over:
        if left != left_before:
            show(f"{left:,} partition{'s' if left != 1 else ''} to hand over to other brokers")
            left_before = left
        await asyncio.sleep(HANDOVER_POLL_S)
    if left_before:
        show("nothing is led here any more")


def _say_on_a_line(text: str) -> None:
    """Prints a line over the ^C that a terminal shows."""
    say(f"\r{text}" if sys.stderr.isatty() else text)


def check_names(flags: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a flag that is no setting, and names the nearest flag."""
    from gateway.settings import unknown_setting
    from tidelog.cli.broker.setting_list import setting_names

    for name in flags.keys() - set(setting_names()):
        raise unknown_setting(_as_flag(name), name, spelt=lambda near: repr(_as_flag(near)))


def _as_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def show_settings(flags: Mapping[str, str], config: Path | None, output: Output, defaults: Mapping[str, object]) -> None:
    from tidelog.cli.broker.setting_list import setting_rows, shown

    rows = setting_rows(flags, os.environ, config, of_command=defaults)
    if output is not Output.TABLE:
        show_rows(rows, output)
        return
    for row in rows:
        row["value"] = shown(row["setting"], row["value"])
        if row["value"] != (default := shown(row["setting"], row["default"])) and default:
            row["what_it_does"] += f" Default: {default}."
    show_rows(rows, output, columns=("setting", "value", "what_it_does"))
    bucket = next(row["value"] for row in rows if row["setting"] == "bucket")
    if not bucket:
        say("This is for a bucket in a local directory; with --bucket s3://BUCKET/PREFIX some defaults differ.")


def _show_welcome(broker: Broker, settings: BrokerSettings) -> None:
    http = f"http{'s' * settings.tls.is_on}://{reached_here(broker.http_address)}"
    flags, curl = welcome_credentials(settings)
    flags = ("" if http in {"http://127.0.0.1:8080", "http://localhost:8080"} else f" --url {http}") + flags
    say(f"tidelog {broker.version} is ready; Ctrl-C stops it")
    say(f"  http    {http}   (API: {http}/openapi.json)")
    if settings.gateway.console:
        say(f"  console {http}/console   (open it in a browser)")
    say(f"  grpc    {broker.grpc_address}")
    for listener in broker.kafka_listeners:
        say(f"  kafka   {listener.host}:{listener.port}   (bootstrap.servers of any Kafka client)")
    say(f"  bucket  {broker.bucket_url}")
    say()
    say("Try, in another terminal:")
    say(f"  tidelog topic create greetings{flags}")
    say(f"  echo hello | tidelog produce greetings{flags}")
    say(f"  tidelog consume greetings{flags}")
    say(f"  curl -N{curl} {http}/v1/topics/greetings/records")


def reached_here(address: str) -> str:
    """Returns the HOST:PORT by which this machine reaches a listener; a wildcard address becomes the loopback. Pure."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in {"0.0.0.0", "[::]"} else address


def welcome_credentials(settings: BrokerSettings) -> tuple[str, str]:
    """Returns the extra flags of commands and of curl for a broker with these settings. Pure.

    The client's own files are unknown here, and stand as placeholders.
    """
    tls, access = settings.tls, settings.access
    flags, curl = "", ""
    if tls.is_on:
        ca = quote(str(tls.tls_peer_ca_file or tls.tls_client_ca_file or "ca.pem"))
        flags, curl = f" --ca-file {ca}", f" --cacert {ca}"
    shows_certificate = tls.tls_client_auth == "required"
    if shows_certificate:
        flags += " --cert-file client.pem --key-file client-key.pem"
        curl += " --cert client.pem --key client-key.pem"
    if access.authentication and (access.admin_key_file is not None or not shows_certificate):
        key = quote(str(access.admin_key_file or "api.key"))
        flags += f" --api-key-file {key}"
        curl += f' -H "Authorization: Bearer $(cat {key})"'
    return flags, curl


def _log_addresses(broker: Broker, settings: BrokerSettings) -> None:
    log.info("broker %s of cluster %s, version %s, is ready", broker.broker_id, broker.cluster_id, broker.version)
    metadata = f"etcd {settings.metadata.etcd}" if settings.metadata.etcd else f"data directory {settings.data_dir}"
    tls = " with TLS" if settings.tls.is_on else ""
    log.info("http %s, grpc %s%s, bucket %s, %s", broker.http_address, broker.grpc_address, tls, broker.bucket_url, metadata)
    for listener in broker.kafka_listeners:
        log.info("kafka listener=%s address=%s:%d %s", listener.name, listener.host, listener.port, listener.security_protocol)
    if settings.metadata.etcd:
        cluster = settings.registration
        reached = cluster.advertise_http or broker.http_address, cluster.advertise_grpc or broker.grpc_address
        log.info("others reach it at http %s, grpc %s", *reached)


app = new_root()
app.command(cls=CommandPage, context_settings=EXTRA_FLAGS)(dev)
app.command(cls=CommandPage, context_settings=EXTRA_FLAGS)(serve)
