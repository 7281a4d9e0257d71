"""Defines every setting of a client, its unit and its default. Pure; checked when it is made.

Credentials are settings like others. What the program does not name, the process's environment may:

    TIDELOG_API_KEY, TIDELOG_API_KEY_FILE      TIDELOG_CA_FILE, TIDELOG_CERT_FILE, TIDELOG_KEY_FILE, TIDELOG_TLS_SERVER_NAME
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, get_args

from metadata.errors import InvalidArgument, did_you_mean
from metadata.model import check_client_rack
from metadata.secret import Secret

KIB, MIB = 1 << 10, 1 << 20

AcksName = Literal["all", "leader", "none"]
CompressionName = Literal["none", "gzip", "snappy", "lz4", "zstd"]
PartitionerName = Literal["murmur2", "salted"]
# Where a reader goes on when its offset is gone.
ResetPolicy = Literal["error", "earliest", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Holds the settings of one client."""

    # When a record counts as sent: on the bucket ("all"), in the leader's memory ("leader"), or at once ("none").
    acks: AcksName = "all"
    # Codec of each batch. zstd compresses most, lz4 costs least CPU.
    compression: CompressionName = "none"
    # How long a batch waits for more records while an earlier batch of its partition is unanswered. Otherwise it is sent at once.
    linger_ms: float = 5.0
    # A batch is sent at the latest when it has this many bytes, or fewer where its topic or broker takes less. A larger record gets
    # a batch of its own.
    batch_bytes_max: int = 512 * KIB
    # A larger record is refused by the client, and no request grows above it. Where the broker takes less, less is sent.
    request_bytes_max: int = 16 * MIB
    # Bytes of encoded records that wait for their acknowledgement. `send` and `produce` wait while it is full.
    buffer_bytes_max: int = 32 * MIB
    # Time limit from `send` to the acknowledgement, retries included. Then the handle fails.
    delivery_timeout_ms: float = 120_000.0
    # Pause before a refused batch is sent again. It doubles with each try, up to `retry_pause_ms_max`.
    retry_pause_ms: float = 50.0
    retry_pause_ms_max: float = 1_000.0
    # murmur2 puts a key into the partition into which Kafka's clients put it. salted spreads each key over `salt_count` partitions,
    # so that the order of its records is lost.
    partitioner: PartitionerName = "murmur2"
    salt_count: int = 4
    # Time limit of every call except produce and fetch, retries included.
    request_timeout_ms: float = 30_000.0
    # Time limit of connecting to one address.
    connect_timeout_ms: float = 5_000.0
    # Bytes of one response to a fetch.
    fetch_bytes_max: int = 8 * MIB
    # How long a fetch at the end of the log waits at the broker for new records (a long poll). At most 60,000.
    fetch_wait_ms_max: int = 5_000
    # Bytes that a consumer fetches ahead of the caller. One response may exceed it.
    read_ahead_bytes_max: int = 32 * MIB
    # Age at which the client asks again for the partitions and leaders of a topic. It asks at once where a broker says that they
    # changed.
    topic_age_ms_max: float = 30_000.0
    # Where this client runs, as brokers name their racks (`rack`). Records of leaders in other racks are read through a broker of
    # this rack, if there is one. Kafka's client.rack.
    client_rack: str = ""
    # Adds a header `traceparent` to each record, which names the span of OpenTelemetry in which it was sent.
    trace_headers: bool = False
    # Credentials of this client: an API key as `tidelog key create` prints it once (tlk_…), or a token of the cluster's OIDC
    # issuer.
    api_key: Secret | str | None = None
    # A file that holds it, such as a mounted secret. The client reads it again every few seconds, so that it may be replaced.
    api_key_file: Path | str | None = None
    # Sends the key without TLS beyond this machine as well, where it can be read on the way.
    allow_plaintext_api_key: bool = False
    # PEM file of the authorities that sign the brokers' certificates. Default: the system's.
    ca_file: Path | str | None = None
    # PEM file of this client's certificate, where brokers ask for one. Files are read again when a connection is made.
    cert_file: Path | str | None = None
    # PEM file of its private key.
    key_file: Path | str | None = None
    # The name that the brokers' certificates must hold, where brokers are reached at addresses that no certificate holds, such as
    # those of pods. Empty: the host of each address.
    tls_server_name: str = ""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise InvalidArgument(f"{name} is {value!r}", hint=f"Use one of {', '.join(choices)}.")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _CHOICES or field.name in {"client_rack", "trace_headers"} or field.name in CREDENTIALS:
                continue
            if isinstance(value, bool) or not isinstance(value, int if isinstance(field.default, int) else (int, float)):
                raise InvalidArgument(f"{field.name} is {value!r}, which is not a number", hint=f"Its default is {field.default}.")
            if (isinstance(value, float) and not isfinite(value)) or value < 0 or (value == 0 and field.name != "linger_ms"):
                raise InvalidArgument(f"{field.name} is {value}; it must be above 0", hint=f"Its default is {field.default}.")
        if not isinstance(self.client_rack, str):
            raise InvalidArgument(f"client_rack is {self.client_rack!r}, which is no text", hint="Name it as the brokers do.")
        check_client_rack(self.client_rack)
        if not isinstance(self.trace_headers, bool):
            raise InvalidArgument(f"trace_headers is {self.trace_headers!r}", hint="Use True or False.")
        self._check_credentials()
        if self.buffer_bytes_max < self.batch_bytes_max:
            raise InvalidArgument(
                f"buffer_bytes_max ({self.buffer_bytes_max}) is below batch_bytes_max ({self.batch_bytes_max})",
                hint="Give the buffer room for at least one batch.",
            )
        if self.linger_ms >= self.delivery_timeout_ms:
            raise InvalidArgument(
                f"linger_ms ({self.linger_ms:g}) is not below delivery_timeout_ms ({self.delivery_timeout_ms:g})",
                hint="A batch would fail before it leaves.",
            )
        for name, value_max in _VALUES_MAX.items():
            if (value := getattr(self, name)) > value_max:
                raise InvalidArgument(f"{name} is {value}", hint=f"At most {value_max}.")

    def _check_credentials(self) -> None:
        if isinstance(self.api_key, str):
            object.__setattr__(self, "api_key", Secret(self.api_key) if self.api_key else None)
        if self.api_key is not None and not self.api_key.reveal().isprintable():  # type: ignore[union-attr]  # it is a Secret now
            raise InvalidArgument("api_key holds a line break, or another character that no key has")
        if self.api_key is not None and self.api_key_file is not None:
            raise InvalidArgument("api_key and api_key_file are both set", hint="Leave one of them out.")
        if (self.cert_file is None) != (self.key_file is None):
            missing = "key_file" if self.key_file is None else "cert_file"
            raise InvalidArgument(f"{missing} is not set", hint="cert_file and key_file go together.")


CREDENTIALS: Final = frozenset(
    {"api_key", "api_key_file", "allow_plaintext_api_key", "ca_file", "cert_file", "key_file", "tls_server_name"}
)
# Settings that TIDELOG_… variables give, unless the program gives one of these.
_VARIABLES: Final[dict[str, frozenset[str]]] = {
    "api_key": frozenset({"api_key", "api_key_file"}),
    "api_key_file": frozenset({"api_key", "api_key_file"}),
    "ca_file": frozenset({"ca_file"}),
    "cert_file": frozenset({"cert_file", "key_file"}),
    "key_file": frozenset({"cert_file", "key_file"}),
    "tls_server_name": frozenset({"tls_server_name"}),
}
_VALUES_MAX: Final = {"fetch_wait_ms_max": 60_000, "fetch_bytes_max": 1024 * MIB}

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "acks": get_args(AcksName),
    "compression": get_args(CompressionName),
    "partitioner": get_args(PartitionerName),
}


class SettingChanges(TypedDict, total=False):
    """The keyword arguments of `connect`: the fields of ClientSettings, by name. A test holds the two together."""

    acks: AcksName
    compression: CompressionName
    linger_ms: float
    batch_bytes_max: int
    request_bytes_max: int
    buffer_bytes_max: int
    delivery_timeout_ms: float
    retry_pause_ms: float
    retry_pause_ms_max: float
    partitioner: PartitionerName
    salt_count: int
    request_timeout_ms: float
    connect_timeout_ms: float
    fetch_bytes_max: int
    fetch_wait_ms_max: int
    read_ahead_bytes_max: int
    topic_age_ms_max: float
    client_rack: str
    trace_headers: bool
    api_key: Secret | str | None
    api_key_file: Path | str | None
    allow_plaintext_api_key: bool
    ca_file: Path | str | None
    cert_file: Path | str | None
    key_file: Path | str | None
    tls_server_name: str


def settings_from(changes: dict[str, Any] | SettingChanges) -> ClientSettings:
    """Returns the defaults with these changes. Refuses unknown names, and names the nearest setting."""
    known = {field.name for field in fields(ClientSettings)}
    for name in changes:
        if name not in known:
            raise InvalidArgument(
                f"connect() has no setting {name!r}",
                hint=did_you_mean(name, known) or f"There are: {', '.join(sorted(known))}.",
            )
    return ClientSettings(**changes)


def credentials_from(environ: Mapping[str, str], changes: SettingChanges, *, tls: bool) -> SettingChanges:
    """Returns credentials from the environment that the program does not set; TLS files only if there is TLS."""
    found: dict[str, Any] = {}
    for name, instead in _VARIABLES.items():
        value = environ.get(f"TIDELOG_{name.upper()}", "")
        if value and instead.isdisjoint(changes) and (tls or name.startswith("api_key")):
            found[name] = value
    return found  # type: ignore[return-value]  # its names are settings
