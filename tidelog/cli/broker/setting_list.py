"""Lists every setting of a broker: its value here, its default here, and its meaning.

They are ordered by what people change first, then the parts of memory_bytes_max, then by area.

"Here" counts: a bucket on S3 and one in a local directory have defaults of their own, and flags, variables and a file change
values. Names, defaults and descriptions are read from the settings' own classes, so there is one list of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from compaction.settings import CompactionSettings
from gateway.access.settings import AccessSettings
from gateway.cluster.settings import ClusterSettings
from gateway.memory_shares import PARTS, shown_bytes
from gateway.net.tls.settings import TlsSettings
from gateway.settings import BrokerSettings, GatewaySettings, load_settings
from gateway.telemetry.settings import TelemetrySettings
from metadata.errors import InvalidArgument
from metadata.groups.settings import GroupSettings
from metadata.setting_fields import is_fixed
from metadata.shown_url import shown_url
from metadata.store.etcd.settings import EtcdSettings
from segments.object_store.s3.settings import S3Settings
from segments.settings import SegmentSettings

# Stands for a data directory that was not given.
_NOWHERE = Path("-")


# What people change first, in the order of a first installation.
FIRST: Final = (
    *("data_dir", "bucket", "endpoint_url", "region", "etcd", "http", "grpc", "advertise_http", "advertise_grpc", "broker_id"),
    *("rack", "memory_bytes_max", "linger_ms", "compact", "tls_cert_file", "tls_key_file", "authentication", "admin_key_file"),
    *("insecure_listeners", "log_level"),
)
MEMORY: Final = tuple(name for name in PARTS if name not in {"footer_cache_bytes_max", "grpc_waiting_bytes_max"})
# Titles of the areas, and the classes whose settings stand there.
AREAS: Final[Mapping[str, type[Any]]] = {
    "The broker": BrokerSettings,
    "The log": SegmentSettings,
    "The listeners": GatewaySettings,
    "TLS": TlsSettings,
    "Authentication and authorization": AccessSettings,
    "The cluster": ClusterSettings,
    "etcd": EtcdSettings,
    "S3": S3Settings,
    "Compaction": CompactionSettings,
    "Consumer groups": GroupSettings,
    "Logs, traces and metrics": TelemetrySettings,
}


def settings_by_area() -> dict[str, list[str]]:
    """Returns the names of all settings by the title of their area, in the order in which they are shown."""
    areas = {"What people change first": list(FIRST), "Memory": list(MEMORY)}
    listed_first = {*FIRST, *MEMORY}
    for title, kind in AREAS.items():
        own = (field for field in dataclasses.fields(kind) if not is_fixed(field) and field.name not in listed_first)
        areas[title] = [field.name for field in own if not dataclasses.is_dataclass(field.default_factory)]  # a section
    return {title: names for title, names in areas.items() if names}


def setting_names() -> list[str]:
    """Returns the names of all settings, in the order in which they are shown."""
    return [name for names in settings_by_area().values() for name in names]


def setting_rows(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    toml: Path | None = None,
    *,
    of_command: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Returns `setting`, `value`, `default` and `what_it_does` of each, in the order of setting_names. Raises as load_settings.

    `of_command`: its own defaults.
    """
    chosen = _load(flags, environ, toml, of_command)
    usual = load_settings({"data_dir": _NOWHERE, "bucket": chosen.bucket}, {}, defaults=of_command)
    defaults = {name: value for name, value, _ in _settings_of(usual)} | {"bucket": ""}
    rows = {
        name: {"setting": name, "value": _plain(name, value), "default": _plain(name, defaults[name]), "what_it_does": doc}
        for name, value, doc in _settings_of(chosen)
    }
    return [rows[name] for name in setting_names()]


def shown(name: str, value: object) -> str:
    """Formats a value as a user types it: 8MiB, 5, 127.0.0.1:8080; empty for None."""
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) else str(int(value))
    if isinstance(value, int) and "bytes" in name:
        return shown_bytes(value)
    return "" if value is None else str(value)


def field_docs(settings: type[Any]) -> dict[str, str]:
    """Returns the comments above the fields of a class, by name. Python keeps them only in the source."""
    docs: dict[str, str] = {}
    comment: list[str] = []
    for line in inspect.getsource(settings).splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.removeprefix("#").strip())
        else:
            name, colon, _ = text.partition(":")
            if colon and name.isidentifier() and comment:
                docs[name] = " ".join(comment)
            comment = []
    return docs


def _load(
    flags: Mapping[str, object], environ: Mapping[str, str], toml: Path | None, defaults: Mapping[str, Any] | None
) -> BrokerSettings:
    try:
        return load_settings(flags, environ, toml, defaults=defaults)
    except InvalidArgument:  # a data directory need not be named to see the rest; what else is wrong is wrong again
        return load_settings({**flags, "data_dir": _NOWHERE}, environ, toml, defaults=defaults)


def _settings_of(settings: Any) -> Iterator[tuple[str, object, str]]:
    """Yields the name, value and description of each setting, including those of sections."""
    docs = field_docs(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _settings_of(value)
        elif not is_fixed(field):
            yield field.name, value, docs.get(field.name, "")


def _plain(name: str, value: object) -> object:
    """Converts a value for JSON. Secrets stay masked, and URLs lose their credentials."""
    if value == _NOWHERE:
        return None
    if isinstance(value, str) and (name == "bucket" or "://" in value):
        return shown_url(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
