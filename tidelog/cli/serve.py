"""`tidelog dev` and `tidelog serve`: a broker in this process, until Ctrl-C or SIGTERM.

Every setting of gateway/settings.py is a flag here: --linger-ms 250, --segment-bytes-max 4MiB. Which there are is read from the
settings themselves, so there is one list of them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.did_you_mean import did_you_mean
from metadata.errors import InvalidArgument
from tidelog.cli.output import Output, OutputOption, say, show_one, show_rows

if TYPE_CHECKING:
    from gateway.broker import Broker
    from gateway.settings import BrokerSettings

DEFAULT_DATA_DIR = "tidelog-data"
EXTRA_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}

DataDirOption = Annotated[
    str,
    typer.Option("--data-dir", help="Where the broker keeps its metadata, and its bucket where none is named.", show_default=False),
]
HttpOption = Annotated[
    str, typer.Option("--http", metavar="HOST:PORT", help="Default 127.0.0.1:8080; port 0 takes a free one.", show_default=False)
]
GrpcOption = Annotated[str, typer.Option("--grpc", metavar="HOST:PORT", help="Default 127.0.0.1:9090.", show_default=False)]
ConfigOption = Annotated[Path | None, typer.Option("--settings", help="A TOML file of settings.", show_default=False)]
ListSettingsOption = Annotated[
    bool, typer.Option("--list-settings", help="Show every setting; each is a flag, too: --linger-ms 250.")
]


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
    _run(defaults | _given(flags), config, list_settings=list_settings, output=output, banner=_show_welcome)


def serve(
    context: typer.Context,
    bucket: Annotated[str, typer.Option("--bucket", help="s3://BUCKET/PREFIX or file:///DIRECTORY.", show_default=False)] = "",
    data_dir: DataDirOption = "",
    http: HttpOption = "",
    grpc: GrpcOption = "",
    config: ConfigOption = None,
    list_settings: ListSettingsOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Runs a broker for production: logs on stderr, a clean end on SIGTERM.

    Further settings are flags, such as --linger-ms 250, or TIDELOG_LINGER_MS, or lines of the --settings file; --list-settings
    shows them all.
    """
    flags = {"bucket": bucket, "data_dir": data_dir, "http": http, "grpc": grpc, **extra_flags(context.args)}
    _run(_given(flags), config, list_settings=list_settings, output=output, banner=_log_addresses)


def extra_flags(arguments: Sequence[str]) -> dict[str, str]:
    """--linger-ms 250 and --linger-ms=250 as {"linger_ms": "250"}. Raises InvalidArgument for what is neither."""
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


def _given(flags: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in flags.items() if value}


def _run(flags: dict[str, str], config: Path | None, *, list_settings: bool, output: Output, banner: Any) -> None:
    from gateway.settings import load_settings

    if list_settings:
        show_rows(setting_rows(), output)
        return
    _check_names(flags)
    settings = load_settings(flags, os.environ, config)
    plain = banner is _log_addresses
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if plain else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s" if plain else "%(levelname)s: %(message)s",
    )
    import uvloop

    from gateway.broker import serve as serve_broker

    def on_ready(broker: Broker) -> None:
        banner(broker, settings)
        if output is not Output.TABLE:
            addresses = {"http_address": broker.http_address, "grpc_address": broker.grpc_address, "bucket": broker.bucket_url}
            show_one(addresses, Output.NDJSON if output is Output.JSON else output)

    uvloop.run(serve_broker(settings, on_ready))


def _check_names(flags: Mapping[str, str]) -> None:
    """Refuses a flag that is no setting, and names the nearest as it is typed here."""
    known = {f"--{row['setting'].replace('_', '-')}" for row in setting_rows()}
    for name in flags:
        flag = f"--{name.replace('_', '-')}"
        if flag not in known:
            raise InvalidArgument(f"{flag} is not a setting", hint=did_you_mean(flag, known) or "--list-settings shows them all.")


def setting_rows() -> list[dict[str, Any]]:
    """Every setting with its default, in the order of the settings' classes."""
    import dataclasses

    from gateway.settings import BrokerSettings

    rows = []
    for setting in dataclasses.fields(BrokerSettings):
        if setting.default_factory is dataclasses.MISSING:
            default = "" if setting.default is dataclasses.MISSING else setting.default
            rows.append({"setting": setting.name, "default": default})
        else:
            section = setting.default_factory()
            rows += [{"setting": inner.name, "default": getattr(section, inner.name)} for inner in dataclasses.fields(section)]
    return rows


def _show_welcome(broker: Broker, settings: BrokerSettings) -> None:
    http = f"http://{broker.http_address}"
    url = "" if http in {"http://127.0.0.1:8080", "http://localhost:8080"} else f" --url {http}"
    say(f"tidelog {broker.version} is ready; Ctrl-C stops it")
    say(f"  http    {http}   (API: {http}/openapi.json)")
    say(f"  grpc    {broker.grpc_address}")
    say(f"  bucket  {broker.bucket_url}")
    say()
    say("Try, in another terminal:")
    say(f"  tidelog topic create greetings{url}")
    say(f"  echo hello | tidelog produce greetings{url}")
    say(f"  tidelog consume greetings{url}")
    say(f"  curl -N {http}/v1/topics/greetings/records")


def _log_addresses(broker: Broker, settings: BrokerSettings) -> None:
    log = logging.getLogger("tidelog")
    log.info("broker %s of cluster %s, version %s, is ready", broker.broker_id, broker.cluster_id, broker.version)
    log.info(
        "http %s, grpc %s, bucket %s, data directory %s",
        broker.http_address,
        broker.grpc_address,
        broker.bucket_url,
        settings.data_dir,
    )
