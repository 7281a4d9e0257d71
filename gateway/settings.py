"""Every setting of a broker process, read in one place: flags over TIDELOG_* variables over a TOML file over defaults.

    tidelog serve --linger-ms 250        TIDELOG_LINGER_MS=250        linger_ms = 250   (in the file)

A setting has one name, the same everywhere. Pure but for reading the file, that of a password, and the host's name. Invariant: what
is returned was checked, and no name that was given went unheard.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import socket
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction.settings import CompactionSettings
from gateway.access.settings import AccessSettings
from gateway.cluster.settings import ClusterSettings
from gateway.net.tls.settings import TlsSettings
from gateway.telemetry.settings import ObservabilitySettings
from metadata.cluster.broker_registry import check_broker_id
from metadata.errors import InvalidArgument
from metadata.groups.settings import GroupSettings
from metadata.secret import Secret
from metadata.store.etcd.settings import EtcdSettings
from segments.object_store.s3_settings import S3Settings
from segments.settings import KIB, MIB, SegmentSettings

_CLIENT_VARIABLES = frozenset(
    {"TIDELOG_URL", "TIDELOG_CONTEXT", "TIDELOG_DEBUG", "TIDELOG_CONFIG", "TIDELOG_API_KEY", "TIDELOG_API_KEY_FILE"}
    | {"TIDELOG_CA_FILE", "TIDELOG_CERT_FILE", "TIDELOG_KEY_FILE", "TIDELOG_TLS_SERVER_NAME"}
)
_OF_SERVICES = re.compile(
    r"TIDELOG(?:_\w+)?_(?:SERVICE_HOST=.*|SERVICE_PORT(?:_\w+)?=\d+|PORT=\w+://.*|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?=.*)"
)
"""NAME=value that Kubernetes gives to each pod beside a Service called tidelog, unless enableServiceLinks is false."""
_HTTP = "127.0.0.1:8080"
_LOCAL_DISK = {"linger_ms": 5.0, "puts_per_second_max": 400.0}
"""Defaults where the bucket is a local directory: a PUT costs a millisecond and no money."""
DEV: Mapping[str, Any] = {"compact": True, "compaction_due_age_ms": 60_000.0}
"""Defaults of `tidelog dev`, where one process does everything."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The doors: what one request may hold, and how long it may take."""

    request_bytes_max: int = 16 * MIB
    """One request's body. A longer one is refused before it is read whole."""
    message_bytes_max: int = 1 * MIB
    """One record batch, unless the topic's max.message.bytes says less."""
    record_headers_max: int = 1_000
    """Headers of one record that comes as JSON."""
    fetch_bytes_max: int = 8 * MIB
    """Bytes of records in one answer, unless the reader asks for less."""
    fetch_wait_ms_max: int = 60_000
    """The longest long poll."""
    answer_bytes_max: int = 64 * MIB
    """Answers that readers have not taken yet, at each door (HTTP; gRPC, where bytes count twice, since it keeps a copy). One
    answer gets at most an eighth of what is free; readers wait for room, then are refused as throttled."""
    answer_timeout_ms: int = 10_000
    """An answer must be taken in this and one second for each 64 KiB, and over HTTP must not pause for longer, or its connection is
    closed; over gRPC only while others wait for its room."""
    produce_timeout_ms: int = 30_000
    """How long a producer waits for its commit, unless it asks for less."""
    body_read_timeout_ms: int = 5_000
    """A body must not pause for longer, and must arrive in this and one second for each 256 KiB: it holds room meanwhile."""
    http_connections_max: int = 10_000
    """Open connections at the HTTP door, those in a TLS handshake included. One more is told so (429), but for
    probes, and closed."""
    http_connections_per_address_max: int = 10_000
    """The same of one address. Behind a load balancer all clients may have its address."""
    grpc_connections_max: int = 10_000
    """Open connections at the gRPC door. One more is closed; its client tries again."""
    grpc_streams_max: int = 1_000
    """RPCs that are open at the same time. Those of consumer groups are counted apart."""
    grpc_group_waits_max: int = 10_000
    """Members of consumer groups that wait at the same time for others of their group (JoinGroup, SyncGroup), some 30 KiB each."""
    grpc_queue_timeout_ms: int = 2_000
    """So long a call waits to be taken up where more come than this broker answers, in whole seconds. Then it is refused unread
    (CANCELLED), so that it answers the others in time, and not all of them too late: less than clients wait for an answer."""
    grpc_stream_window: int = 16
    """Unanswered requests of one ProduceStream; the next is read when the first of them is answered."""
    grpc_waiting_bytes_max: int = 64 * MIB
    """Bytes of produce requests that came over gRPC and wait for room in the buffer. At half of it no more are read; one that comes
    unasked, on a stream that was idle, is refused as throttled where the other half is taken too."""
    grpc_connection_age_ms: int = 30 * 60_000
    """A connection is told to reconnect after about this long, so that clients spread over new brokers."""
    grpc_connection_age_grace_ms: int = 60_000
    """How long its streams may go on after that; the age is spread by a tenth each way, and so is this."""
    shutdown_grace_ms: int = 10_000
    """How long requests may go on after SIGTERM, once everything is flushed."""
    topic_ready_timeout_ms: int = 10_000
    """How long the creation of a topic waits for its partitions to be led."""

    def __post_init__(self) -> None:
        for name, value in ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self)):
            if value <= 0:
                raise InvalidArgument(f"{name} is {value}; it must be above 0")
        if self.message_bytes_max > self.request_bytes_max:
            raise InvalidArgument(
                f"message_bytes_max ({self.message_bytes_max}) is above request_bytes_max ({self.request_bytes_max})"
            )
        if self.grpc_waiting_bytes_max < 2 * self.request_bytes_max:
            raise InvalidArgument(
                f"grpc_waiting_bytes_max ({self.grpc_waiting_bytes_max}) has no room for two requests of request_bytes_max "
                f"({self.request_bytes_max})",
                hint=f"Set grpc_waiting_bytes_max to {2 * self.request_bytes_max} or more.",
            )
        if self.answer_bytes_max < 2 * self.message_bytes_max:
            raise InvalidArgument(
                f"answer_bytes_max ({self.answer_bytes_max}) has no room for two batches of message_bytes_max "
                f"({self.message_bytes_max})",
                hint=f"Set answer_bytes_max to {2 * self.message_bytes_max} or more.",
            )


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    data_dir: Path
    """Where this broker keeps its metadata (SQLite) and its lock; and the bucket, where none is named."""
    bucket: str = ""
    """s3://bucket/prefix or file:///directory. Empty: the directory `bucket` in data_dir."""
    http: str = _HTTP
    """HOST:PORT to listen on; port 0 takes a free one."""
    grpc: str = "127.0.0.1:9090"
    """HOST:PORT to listen on; port 0 takes a free one."""
    broker_id: str = "broker-1"
    """Name of this broker, for people and in listings. With etcd, each broker has its own (the older of two with one name stops);
    default there: host name and port of `http`, such as `pod-0-8080`, or the process id where any free port will do."""
    cluster: str = "tidelog"
    """Name of the cluster in the metadata."""
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    s3: S3Settings = field(default_factory=S3Settings)
    metadata: EtcdSettings = field(default_factory=EtcdSettings)
    membership: ClusterSettings = field(default_factory=ClusterSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    observability: ObservabilitySettings = field(default_factory=ObservabilitySettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    access: AccessSettings = field(default_factory=AccessSettings)

    def __post_init__(self) -> None:
        check_broker_id(self.broker_id)
        if self.metadata.etcd and not self.bucket:
            raise InvalidArgument(
                "bucket is not set; brokers that share an etcd share a bucket",
                hint="Name it: --bucket s3://bucket/prefix, or file:///directory that all brokers see.",
            )
        if self.metadata.etcd:
            self.membership.check_reachable(http=self.http, grpc=self.grpc)

    @property
    def bucket_url(self) -> str:
        return self.bucket or f"file://{self.data_dir.absolute() / 'bucket'}"


_SECTIONS: dict[str, type[Any]] = {
    "segments": SegmentSettings,
    "gateway": GatewaySettings,
    "s3": S3Settings,
    "metadata": EtcdSettings,
    "membership": ClusterSettings,
    "groups": GroupSettings,
    "compaction": CompactionSettings,
    "observability": ObservabilitySettings,
    "tls": TlsSettings,
    "access": AccessSettings,
}


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    toml: Path | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
) -> BrokerSettings:
    """The settings that flags, environment and file give together. Flags that are None were not given. `defaults`: of a command.

    Raises InvalidArgument for an unknown name or a value of the wrong kind, naming where it stood.
    """
    given = _read_toml(toml) if toml is not None else {}
    for name, text in environ.items():
        if not name.startswith("TIDELOG_") or name in _CLIENT_VARIABLES or name.startswith("TIDELOG_TEST_"):
            continue
        if not _OF_SERVICES.fullmatch(f"{name}={text}"):
            given[name.removeprefix("TIDELOG_").lower()] = (name, text)
    for name, value in flags.items():
        if value is not None:
            given[name] = (f"--{name.replace('_', '-')}", value)

    known = _known_settings()
    chosen: dict[str, Any] = {}
    for name, (source, value) in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = near and (f"TIDELOG_{near[0].upper()}" if source.startswith("TIDELOG_") else near[0])  # as it would stand there
            hint = f"Did you mean {meant}?" if near else "`tidelog serve --list-settings` shows them all."
            raise InvalidArgument(f"{source} is not a setting", hint=hint)
        chosen[name] = _converted(source, value, known[name])
    if chosen.get("etcd_password_file") is not None:
        if chosen.get("etcd_password"):
            raise InvalidArgument("etcd_password and etcd_password_file are both set", hint="Leave one of them out.")
        chosen["etcd_password"] = _read_secret("etcd_password_file", chosen["etcd_password_file"])
    if chosen.get("etcd"):
        if chosen.get("disk_cache_bytes_max") and "data_dir" not in chosen:
            raise InvalidArgument(
                "disk_cache_bytes_max is set, and data_dir is not", hint="Say where the broker may keep its files."
            )
        chosen.setdefault("data_dir", Path())  # nothing is kept there
        chosen.setdefault("broker_id", default_broker_id(socket.gethostname(), chosen.get("http", _HTTP), os.getpid()))
    if "data_dir" not in chosen:
        raise InvalidArgument(
            "data_dir is not set",
            hint="Say where a single broker may keep its files: --data-dir DIR, or TIDELOG_DATA_DIR. Of a cluster: --etcd URLS.",
        )
    if not str(chosen.get("bucket", "")).startswith("s3://"):
        chosen = _LOCAL_DISK | chosen
    chosen = {**(defaults or {}), **chosen}
    sections = {
        section: kind(**{f.name: chosen.pop(f.name) for f in dataclasses.fields(kind) if f.name in chosen})
        for section, kind in _SECTIONS.items()
    }
    return BrokerSettings(**chosen, **sections)


def default_broker_id(host_name: str, http: str, process_id: int) -> str:
    """Of a broker that shares its cluster with others: the same after a restart, and another for each process on one machine."""
    port = http.rpartition(":")[2]
    last = port if port.isascii() and port.isdigit() and int(port) else f"pid{process_id}"
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", host_name)[:200] or "host"
    return f"{host}-{last}"


def _read_toml(path: Path) -> dict[str, tuple[str, object]]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"the settings file {path} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the settings file {path} is not TOML: {error}") from error
    return {name: (f"{name} in {path}", value) for name, value in table.items()}


def _read_secret(setting: str, path: Path) -> Secret:
    """What the file holds, without the line break that editors put at its end."""
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise InvalidArgument(f"{setting}: {path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidArgument(f"{setting}: {path} is not text in UTF-8") from None  # the error would show what it holds
    if not text:
        raise InvalidArgument(f"{setting}: {path} is empty")
    return Secret(text)


def _known_settings() -> dict[str, type[Any]]:
    known: dict[str, type[Any]] = {}
    kinds: list[type[Any]] = [BrokerSettings, *_SECTIONS.values()]
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        for setting in dataclasses.fields(kind):
            if setting.name not in _SECTIONS:
                assert setting.name not in known, f"two settings are called {setting.name}"
                known[setting.name] = hints[setting.name]
    return known


def _converted(source: str, value: object, kind: Any) -> object:
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(value) in kinds:
        return value
    text = str(value)
    if Secret in kinds:
        return Secret(text)
    try:
        if bool in kinds:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if int in kinds:
            return _parse_bytes(text)
        if float in kinds:
            return float(text)
        return Path(text) if Path in kinds else text
    except (ValueError, KeyError) as error:
        what, hint = _SPOKEN[kinds[0]]
        raise InvalidArgument(f"{source} is {text!r}, which is not {what}", hint=hint) from error


_SPOKEN: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "Write true or false."),
    int: ("a whole number", "Write it in digits; bytes may have KiB, MiB or GiB behind them, such as 8MiB."),
    float: ("a number", "Write it in digits, such as 250 or 0.5."),
}


def _parse_bytes(text: str) -> int:
    """A whole number, with KiB or MiB behind it where it counts bytes."""
    for unit, factor in (("KiB", KIB), ("MiB", MIB), ("GiB", KIB * MIB)):
        if text.endswith(unit):
            return int(text.removesuffix(unit).strip()) * factor
    return int(text)
