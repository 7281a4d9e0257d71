"""Reads all settings of a broker process in one place: flags override TIDELOG_* variables, which override a TOML file and defaults.

    tidelog serve --linger-ms 250        TIDELOG_LINGER_MS=250        linger_ms = 250   (in the file)

A setting has the same name everywhere. Buffers and caches that are not set get shares of memory_bytes_max (memory_shares.py). The
only I/O is reading the TOML file, the password file and the host name. Invariant: returned settings are checked, and every given
name is a setting.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from compaction.settings import CompactionSettings
from gateway.access.settings import LOOPBACK, AccessSettings
from gateway.cluster.settings import ClusterSettings
from gateway.memory_shares import MEMORY_BYTES_DEFAULT, PARTS, check_memory, memory_shares
from gateway.net.tls.settings import TlsSettings
from gateway.telemetry.settings import TelemetrySettings
from metadata.cluster.broker_registry import check_broker_id
from metadata.errors import InvalidArgument
from metadata.groups.settings import GroupSettings
from metadata.secret import Secret
from metadata.setting_fields import check_numbers, fixed, is_fixed
from metadata.store.etcd.settings import EtcdSettings
from metadata.topics.settings import MESSAGE_BYTES_DEFAULT
from segments.object_store.s3.settings import S3Settings
from segments.settings import KIB, MIB, SegmentSettings

_CLIENT_VARIABLES = frozenset(
    {"TIDELOG_URL", "TIDELOG_CONTEXT", "TIDELOG_DEBUG", "TIDELOG_CONFIG", "TIDELOG_API_KEY", "TIDELOG_API_KEY_FILE"}
    | {"TIDELOG_CA_FILE", "TIDELOG_CERT_FILE", "TIDELOG_KEY_FILE", "TIDELOG_TLS_SERVER_NAME"}
)
# NAME=value that Kubernetes sets in each pod beside a Service called tidelog, unless enableServiceLinks is false.
_OF_SERVICES = re.compile(
    r"TIDELOG(?:_\w+)?_(?:SERVICE_HOST=.*|SERVICE_PORT(?:_\w+)?=\d+|PORT=\w+://.*|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?=.*)"
)
# Former names of settings whose new name is not the most similar one.
_RENAMED = {
    "hot_pool_bytes_max": "tail_cache_bytes_max",
    "cold_pool_bytes_max": "read_cache_bytes_max",
    "catch_up_bytes_max": "history_read_bytes_max",
    "grpc_unread_s_max": "grpc_queue_timeout_ms",
    "bucket_patience_ms": "bucket_retry_ms",
}
_FILES = frozenset({"compaction_threads", "history_file_bytes_max", "row_group_bytes", "merge_bytes_min", "merge_bytes_max"})
_HTTP = "127.0.0.1:8080"
# Defaults where the bucket is a local directory: a PUT takes a millisecond and costs no money.
_LOCAL_DISK = {"linger_ms": 5.0, "puts_per_second_max": 400.0}
# Defaults of `tidelog dev`, where one process does everything.
DEV: Mapping[str, Any] = {
    "compact": True,
    "compaction_due_age_ms": 60_000.0,
    "kafka": "127.0.0.1:9092",
    "kafka_auto_create_topics": True,
    "console": True,
}


def _check_console_oidc(client_id: str, redirect: str, scope: str) -> None:
    """Raises InvalidArgument unless the settings of the console's sign-in at a provider belong together."""
    if not client_id:
        return
    url = urlsplit(redirect)
    is_safe = url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK)
    if not is_safe or not url.hostname or url.path != "/console/oidc/callback" or url.query or url.fragment:
        raise InvalidArgument(
            f"console_oidc_redirect is {redirect[:200]!r}, not the address of the console's callback",
            hint="Write https://HOST:PORT/console/oidc/callback, and register the same at the provider.",
        )
    if "openid" not in scope.split():
        raise InvalidArgument("console_oidc_scope lacks openid", hint="Write for example: openid profile")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The limits of the HTTP, gRPC and Kafka listeners: sizes of requests, connections, and times."""

    # Body of one request. The broker refuses a longer one before it has read it whole.
    request_bytes_max: int = 16 * MIB
    # One record batch, unless max.message.bytes of the topic is less.
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    # Headers of one record that comes as JSON.
    record_headers_max: int = 1_000
    # How long a producer waits for its commit, unless it asks for less.
    produce_timeout_ms: int = 30_000
    # A body must not pause for longer, and must arrive in this time and one second for each 256 KiB, since it holds buffer memory.
    body_read_timeout_ms: int = 5_000
    # Bytes of records in one response, unless the reader asks for less.
    fetch_bytes_max: int = 8 * MIB
    # The longest long poll.
    fetch_wait_ms_max: int = 60_000
    # Responses that readers have not received yet, at each listener: HTTP, and gRPC, where bytes count twice, since it keeps a
    # copy. One response gets an eighth of what is free at most. Readers wait for memory, then are throttled.
    answer_bytes_max: int = 64 * MIB
    # A client must receive a response in this time and one second for each 64 KiB, and over HTTP must not pause for longer, or the
    # broker closes the connection. Over gRPC the limit applies only while others wait for the memory.
    answer_timeout_ms: int = 10_000
    # Open HTTP connections, including those in a TLS handshake. More get a 429, except probes, and are closed.
    http_connections_max: int = 10_000
    # Open HTTP connections of one address. Behind a load balancer all clients may have its address.
    http_connections_per_address_max: int = 10_000
    # Open connections of Kafka clients. More are closed.
    kafka_connections_max: int = 10_000
    # Open connections of Kafka clients of one address. Behind a load balancer all clients may have its address.
    kafka_connections_per_address_max: int = 10_000
    # How long a Kafka client may go on before it must authenticate again (KIP-368), as connections.max.reauth.ms. 0: as long as its
    # credentials count.
    kafka_session_ms_max: int = 0
    # Whether a Kafka client creates a topic by asking for it, as auto.create.topics.enable does.
    kafka_auto_create_topics: bool = False
    # Partitions of such a topic, as num.partitions.
    kafka_auto_create_partitions: int = 1
    # Whether the HTTP listener serves the console, pages for a browser, at /console.
    console: bool = False
    # Whether the console shows keys, values and headers of records. Off, it shows their sizes; the API is not affected.
    console_values: bool = True
    # The id of the console at the provider of `oidc_issuer`: readers sign in there, by the authorization code flow with PKCE.
    # Empty: by API keys and pasted tokens only.
    console_oidc_client_id: str = ""
    # A file with the secret of that client. None: a public client.
    console_oidc_client_secret_file: Path | None = None
    # Where the provider sends readers back: the console's address and /console/oidc/callback, as registered at the provider.
    console_oidc_redirect: str = ""
    # The scopes that the console asks for, with spaces between. The API must accept the access token or the ID token for them.
    console_oidc_scope: str = "openid"
    # Open gRPC connections. More are closed; their clients try again.
    grpc_connections_max: int = 10_000
    # RPCs that are open at the same time. Those of consumer groups are counted apart.
    grpc_streams_max: int = 1_000
    # Members of consumer groups that wait for others of their group at the same time (JoinGroup, SyncGroup), some 30 KiB each.
    grpc_group_waits_max: int = 10_000
    # How long a gRPC call waits to be read when more arrive than this broker answers, rounded up to seconds. Then it is refused
    # unread (CANCELLED), so that others are answered in time. It is below the time that clients wait for an answer.
    grpc_queue_timeout_ms: int = 2_000
    # Unanswered requests of one ProduceStream. The broker reads the next one when the first of them is answered.
    grpc_stream_window: int = fixed(16)
    # Produce requests that came over gRPC and wait for room in the buffer. At half of it the broker reads no more; a request on a
    # stream that was idle is throttled where the other half is taken too. A share of memory_bytes_max.
    grpc_waiting_bytes_max: int = fixed(64 * MIB)
    # Age at which a client is asked to reconnect, so that clients spread over new brokers. It varies by a tenth.
    grpc_connection_age_ms: int = 30 * 60_000
    # How long the streams of such a connection may go on. It varies by a tenth, too.
    grpc_connection_age_grace_ms: int = fixed(60_000)
    # How long requests may go on after SIGTERM, once everything is flushed.
    shutdown_grace_ms: int = 10_000
    # How long the creation of a topic waits for leaders of its partitions.
    topic_ready_timeout_ms: int = fixed(10_000)

    def __post_init__(self) -> None:
        check_numbers(self, may_be_zero={"kafka_session_ms_max"})
        _check_console_oidc(self.console_oidc_client_id, self.console_oidc_redirect, self.console_oidc_scope)
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
    """All settings of a broker or compactor process: its own, and a section for each package."""

    # Directory of this broker's metadata (SQLite) and lock, and of the bucket where `bucket` is empty.
    data_dir: Path
    # Memory that this process may take. Its buffers and caches get shares of it, unless they are set by name.
    memory_bytes_max: int = MEMORY_BYTES_DEFAULT
    # s3://bucket/prefix or file:///directory. Empty: the directory `bucket` in data_dir.
    bucket: str = ""
    # HOST:PORT of the HTTP listener. Port 0 takes a free one.
    http: str = _HTTP
    # HOST:PORT of the gRPC listener. Port 0 takes a free one.
    grpc: str = "127.0.0.1:9090"
    # HOST:PORT of the listener for Kafka clients; empty: none. Several listeners: NAME=HOST:PORT,NAME=HOST:PORT. With /forward
    # behind the port, this broker forwards to leaders, so that one address (a load balancer's) serves for all brokers.
    kafka: str = ""
    # Name of this broker, unique in its cluster; of two brokers with one name the older one stops. Default with etcd: host name and
    # port of `http`, such as `pod-0-8080`, or the process id where the port is 0.
    broker_id: str = "broker-1"
    # Name of the cluster in the metadata.
    cluster: str = "tidelog"
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    s3: S3Settings = field(default_factory=S3Settings)
    metadata: EtcdSettings = field(default_factory=EtcdSettings)
    registration: ClusterSettings = field(default_factory=ClusterSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    observability: TelemetrySettings = field(default_factory=TelemetrySettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    access: AccessSettings = field(default_factory=AccessSettings)

    def __post_init__(self) -> None:
        check_broker_id(self.broker_id)
        if self.gateway.console_oidc_client_id and not (self.access.oidc_issuer and self.access.authentication):
            raise InvalidArgument(
                "console_oidc_client_id needs authentication and oidc_issuer", hint="Set both, or leave the client's id out."
            )
        if self.metadata.etcd and not self.bucket:
            raise InvalidArgument(
                "bucket is not set; brokers that share an etcd share a bucket",
                hint="Name it: --bucket s3://bucket/prefix, or file:///directory that all brokers see.",
            )
        if self.metadata.etcd:
            self.registration.check_reachable(http=self.http, grpc=self.grpc)

    def check_memory(self, *, serves: bool = True) -> None:
        """Raises InvalidArgument if buffers and caches do not fit into memory_bytes_max. `serves`: the process is a broker."""
        sections = (self.segments, self.gateway, self.compaction)
        parts = {name: getattr(section, name) for section in sections for name in PARTS if hasattr(section, name)}
        check_memory(self.memory_bytes_max, parts, serves=serves, compacts=self.compaction.compact or not serves)

    @property
    def bucket_url(self) -> str:
        """Returns the URL of the bucket: `bucket`, or the directory `bucket` in data_dir."""
        return self.bucket or f"file://{self.data_dir.absolute() / 'bucket'}"


_SECTIONS: dict[str, type[Any]] = {
    "segments": SegmentSettings,
    "gateway": GatewaySettings,
    "s3": S3Settings,
    "metadata": EtcdSettings,
    "registration": ClusterSettings,
    "groups": GroupSettings,
    "compaction": CompactionSettings,
    "observability": TelemetrySettings,
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
    """Returns the settings that flags, environment and file give together.

    A flag that is None was not given. `defaults` are those of the command. Raises InvalidArgument for an unknown name or a value of
    the wrong type; the message names the flag, variable or file.
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
            raise unknown_setting(source, name, spelt=_as_variable if source.startswith("TIDELOG_") else str)
        chosen[name] = _converted(source, value, known[name])
    if chosen.get("etcd_password_file") is not None:
        if chosen.get("etcd_password"):
            raise InvalidArgument("etcd_password and etcd_password_file are both set", hint="Leave one of them out.")
        chosen["etcd_password"] = _read_secret("etcd_password_file", chosen["etcd_password_file"])
    if chosen.get("console_oidc_client_secret_file") is not None:
        # The console reads it with its first request; a mistake shows at the start.
        _read_secret("console_oidc_client_secret_file", chosen["console_oidc_client_secret_file"])
    if chosen.get("etcd"):
        if chosen.get("disk_cache_bytes_max") and "data_dir" not in chosen:
            raise InvalidArgument(
                "disk_cache_bytes_max is set, and data_dir is not", hint="Set data_dir to a directory for the broker's files."
            )
        chosen.setdefault("data_dir", Path())  # with etcd nothing is stored there
        chosen.setdefault("broker_id", default_broker_id(socket.gethostname(), chosen.get("http", _HTTP), os.getpid()))
    if "data_dir" not in chosen:
        raise InvalidArgument(
            "data_dir is not set",
            hint="Set a directory for a single broker's files: --data-dir DIR, or TIDELOG_DATA_DIR. For a cluster: --etcd URLS.",
        )
    if not str(chosen.get("bucket", "")).startswith("s3://"):
        chosen = _LOCAL_DISK | chosen
    chosen = {**(defaults or {}), **chosen}
    chosen |= _memory_parts(chosen)
    sections = {
        section: kind(**{f.name: chosen.pop(f.name) for f in dataclasses.fields(kind) if f.name in chosen})
        for section, kind in _SECTIONS.items()
    }
    return BrokerSettings(**chosen, **sections)


def _memory_parts(chosen: Mapping[str, Any]) -> dict[str, int]:
    """Returns the bytes of each part of memory_bytes_max: as chosen, and shares for the others."""
    segments, gateway = SegmentSettings(), GatewaySettings()
    compaction = CompactionSettings(**{name: chosen[name] for name in _FILES & chosen.keys()})
    segment_bytes, request_bytes = (
        chosen.get("segment_bytes_max", segments.segment_bytes_max),
        chosen.get("request_bytes_max", gateway.request_bytes_max),
    )
    least = {
        "buffer_bytes_max": max(segment_bytes, request_bytes),
        "grpc_waiting_bytes_max": 2 * request_bytes,
        "answer_bytes_max": 2 * chosen.get("message_bytes_max", gateway.message_bytes_max),
    }
    return memory_shares(
        chosen.get("memory_bytes_max", MEMORY_BYTES_DEFAULT),
        chosen={name: chosen[name] for name in PARTS if name in chosen},
        least=least,
        compacts=chosen.get("compact", False),
        files_bytes=compaction.files_bytes,
    )


def default_broker_id(host_name: str, http: str, process_id: int) -> str:
    """Returns the default broker_id in a cluster with etcd: host name and HTTP port, so the id survives a restart.

    Port 0 is replaced by the process id, so that two processes on one machine get different ids.
    """
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
    """Reads a secret from a file, without the line break that editors put at its end."""
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise InvalidArgument(f"{setting}: {path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidArgument(f"{setting}: {path} is not text in UTF-8") from None  # the error would show the secret
    if not text:
        raise InvalidArgument(f"{setting}: {path} is empty")
    return Secret(text)


def unknown_setting(source: str, name: str, *, spelt: Callable[[str], str]) -> InvalidArgument:
    """Returns the error for a name that is no setting. Its hint names the new or nearest name, spelled by `spelt`."""
    known = _known_settings()
    near = [_RENAMED[name]] if name in _RENAMED else difflib.get_close_matches(name, known, n=1)
    if any(name == each.name for kind in _SECTIONS.values() for each in dataclasses.fields(kind)):
        return InvalidArgument(f"{source} is a constant, not a setting", hint="Leave it out.")
    hint = f"Did you mean {spelt(near[0])}?" if near else "`tidelog serve --list-settings` shows them all."
    return InvalidArgument(f"{source} is not a setting", hint=hint)


def _as_variable(name: str) -> str:
    return f"TIDELOG_{name.upper()}"


def _known_settings() -> dict[str, type[Any]]:
    """Returns the type of each setting by its name. Constants (`fixed`) are not settings."""
    known: dict[str, type[Any]] = {}
    kinds: list[type[Any]] = [BrokerSettings, *_SECTIONS.values()]
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        for setting in dataclasses.fields(kind):
            if setting.name not in _SECTIONS and not is_fixed(setting):
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
    int: ("a whole number", "Write it in digits; sizes may end in KiB, MiB or GiB, such as 8MiB."),
    float: ("a number", "Write it in digits, such as 250 or 0.5."),
}


def _parse_bytes(text: str) -> int:
    """Parses a whole number, which may end in KiB, MiB or GiB."""
    for unit, factor in (("KiB", KIB), ("MiB", MIB), ("GiB", KIB * MIB)):
        if text.endswith(unit):
            return int(text.removesuffix(unit).strip()) * factor
    return int(text)
