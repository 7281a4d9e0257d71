"""How a client behaves: every setting, its unit and its default. Pure; checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final, Literal, TypedDict, get_args

from metadata.did_you_mean import did_you_mean
from metadata.errors import InvalidArgument
from metadata.rack import check_client_rack

KIB, MIB = 1 << 10, 1 << 20

AcksName = Literal["all", "leader", "none"]
CompressionName = Literal["none", "gzip", "snappy", "lz4", "zstd"]
PartitionerName = Literal["murmur2", "salted"]
ResetPolicy = Literal["error", "earliest", "latest"]
"""Where a reader goes on when its offset is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    acks: AcksName = "all"
    """When a record counts as sent: on the bucket ("all"), in the leader's memory ("leader"), at once ("none")."""
    compression: CompressionName = "none"
    """Codec of each batch. zstd gives most, lz4 costs least."""
    linger_ms: float = 5.0
    """How long a batch waits for more records while an earlier batch of its partition is unanswered. Else it leaves at once."""
    batch_bytes_max: int = 512 * KIB
    """A batch leaves at the latest with this many bytes, or with fewer where its topic or broker takes less. A larger record gets a
    batch of its own."""
    request_bytes_max: int = 16 * MIB
    """A record above this is refused here, and no request is filled above it. Where the broker takes less, less is sent."""
    buffer_bytes_max: int = 32 * MIB
    """Bytes of records, as encoded, that wait for their acknowledgement. `send` and `produce` await room when it is full."""
    delivery_timeout_ms: float = 120_000.0
    """From `send` to the acknowledgement, retries included. Then the handle fails."""
    retry_pause_ms: float = 50.0
    """Pause before a refused batch is sent again; doubles up to `retry_pause_ms_max`."""
    retry_pause_ms_max: float = 1_000.0
    partitioner: PartitionerName = "murmur2"
    """murmur2 puts a key where Kafka's clients put it. salted spreads each key over `salt_count` partitions: its order is lost."""
    salt_count: int = 4
    request_timeout_ms: float = 30_000.0
    """Of every call but produce and fetch, retries included."""
    connect_timeout_ms: float = 5_000.0
    """To reach one address."""
    fetch_bytes_max: int = 8 * MIB
    """Of one answer to a fetch."""
    fetch_wait_ms_max: int = 5_000
    """How long a fetch at the end of the log waits at the broker for something new (a long poll). At most 60,000."""
    read_ahead_bytes_max: int = 32 * MIB
    """Bytes that a consumer fetches ahead of what was iterated; one answer may exceed it."""
    topic_age_ms_max: float = 30_000.0
    """A topic's partitions and leaders are asked for again after this; at once when a broker says that they changed."""
    client_rack: str = ""
    """Where this client runs, as brokers name their racks (`rack`): what leaders in other racks have is read through a broker of
    this one, where there is any. Kafka's client.rack."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise InvalidArgument(f"{name} is {value!r}", hint=f"Use one of {', '.join(choices)}.")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _CHOICES or field.name == "client_rack":
                continue
            if isinstance(value, bool) or not isinstance(value, int if isinstance(field.default, int) else (int, float)):
                raise InvalidArgument(f"{field.name} is {value!r}, which is not a number", hint=f"Its default is {field.default}.")
            if (isinstance(value, float) and not isfinite(value)) or value < 0 or (value == 0 and field.name != "linger_ms"):
                raise InvalidArgument(f"{field.name} is {value}; it must be above 0", hint=f"Its default is {field.default}.")
        if not isinstance(self.client_rack, str):
            raise InvalidArgument(f"client_rack is {self.client_rack!r}, which is no text", hint="Name it as the brokers do.")
        check_client_rack(self.client_rack)
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


def settings_from(changes: dict[str, Any] | SettingChanges) -> ClientSettings:
    """The defaults with these changes. Refuses names that are no settings, and names the nearest that is."""
    known = {field.name for field in fields(ClientSettings)}
    for name in changes:
        if name not in known:
            raise InvalidArgument(
                f"connect() has no setting {name!r}",
                hint=did_you_mean(name, known) or f"There are: {', '.join(sorted(known))}.",
            )
    return ClientSettings(**changes)
