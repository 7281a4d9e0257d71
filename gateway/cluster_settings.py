"""Settings of a broker as a member of its cluster. Pure; checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

from metadata.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    session_timeout_ms: float = 9_000.0
    """A broker that etcd has not heard of for this long is taken for dead: its session is sealed, its partitions move on."""
    release_timeout_ms: float = 30_000.0
    """A broker that does not hand over a partition within this time loses its session."""
    drain_timeout_ms: float = 20_000.0
    """At SIGTERM, how long partitions may take to move to others; what is left then is flushed, and taken over after the seal."""
    snapshot_interval_ms: float = 600_000.0
    """How often the controller copies the metadata to the bucket, where they have changed. What was changed since then is lost with
    etcd, but for records and topics."""
    rack: str = ""
    """Where the broker runs, such as an availability zone. The partitions of a topic are spread over racks."""
    advertise_http: str = ""
    """HOST:PORT at which clients and other brokers reach the HTTP door. Default: where it listens."""
    advertise_grpc: str = ""
    """The same for the gRPC door."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not (isfinite(value) and value > 0):
                raise InvalidArgument(
                    f"{field.name} is {value}; it must be a number above 0", hint=f"Leave {field.name} out for its default."
                )
