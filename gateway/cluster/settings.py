"""Holds the settings of a broker as a member of its cluster. Pure; checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from metadata.errors import InvalidArgument
from metadata.model import RACK_CHARACTERS_MAX
from metadata.plain_names import why_not_plain
from metadata.setting_fields import check_numbers, fixed

KIB = 1 << 10
# etcd grants leases of about two seconds or more, and its elections take one.
SESSION_TIMEOUT_MS_ADVISED = 3_000


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Holds the settings of a broker as a member of its cluster."""

    # HOST:PORT at which clients and other brokers reach the HTTP listener. Default: where it listens.
    advertise_http: str = ""
    # HOST:PORT at which clients and other brokers reach the gRPC listener. Default: where it listens.
    advertise_grpc: str = ""
    # HOST:PORT at which Kafka clients reach this broker, for each listener as in `kafka`. Default: where it listens.
    advertise_kafka: str = ""
    # Where the broker runs, such as an availability zone. The partitions of a topic are spread over racks, and readers that name
    # their rack (client_rack) are served by a broker of it.
    rack: str = ""
    # For readers of its own rack a broker reads records of leaders in other racks from the bucket, if a request brings this many
    # bytes on average. Fewer bytes come from the leader, which costs less than the request.
    rack_read_bytes_min: int = 32 * KIB
    # A broker whose lease etcd has not renewed for this long is taken for dead: its session is sealed, its partitions move.
    session_timeout_ms: float = 9_000.0
    # A broker that does not hand over a partition within this time loses its session.
    release_timeout_ms: float = fixed(30_000.0)
    # A broker that could not write to the bucket for this long loses its session, if another broker can write.
    bucket_timeout_ms: float = 5_000.0
    # How long partitions may take to move to other brokers after SIGTERM. The rest is flushed, and taken over after the seal.
    drain_timeout_ms: float = 20_000.0
    # How often the controller copies changed metadata to the bucket. A restore after the loss of etcd lacks later changes, except
    # records and topics.
    snapshot_interval_ms: float = 600_000.0
    # Age at which the controller compacts revisions of etcd. It applies to all users of that etcd.
    metadata_history_ms: float = 1_800_000.0

    def __post_init__(self) -> None:
        check_numbers(self)
        if len(self.rack) > RACK_CHARACTERS_MAX:
            raise InvalidArgument(f"rack has {len(self.rack)} characters; at most {RACK_CHARACTERS_MAX} are taken")
        if (why := why_not_plain(self.rack)) is not None:
            raise InvalidArgument(f"rack is {self.rack[:60]!a}: {why}")
        for name, address in (("advertise_http", self.advertise_http), ("advertise_grpc", self.advertise_grpc)):
            if address:
                _check_advertised(name, address)

    @property
    def doubt(self) -> str:
        """Returns a warning about permitted but seldom intended settings, for a broker that shares its cluster; empty
        without one."""
        if self.session_timeout_ms >= SESSION_TIMEOUT_MS_ADVISED:
            return ""
        return (
            f"session_timeout_ms is {self.session_timeout_ms:g}, below {SESSION_TIMEOUT_MS_ADVISED:,}: brokers that pause for a "
            "moment, or during an election of etcd, are taken for dead, which mostly costs more than a faster failover saves"
        )

    def check_reachable(self, *, http: str, grpc: str) -> None:
        """Raises InvalidArgument if a listener is bound to every interface, and no advertised address is set for it."""
        for listener, listens, advertised in (("http", http, self.advertise_http), ("grpc", grpc, self.advertise_grpc)):
            if not advertised and is_every_interface(listens):
                raise InvalidArgument(
                    f"{listener} is {listens}, every interface, and advertise_{listener} is not set: clients cannot connect to it",
                    hint=f"Name the one at which others reach this broker: --advertise-{listener} HOST:PORT",
                )


def is_every_interface(address: str) -> bool:
    """Returns whether a socket at HOST:PORT accepts connections to any address of the machine."""
    try:
        return ip_address(address.rpartition(":")[0].strip("[]")).is_unspecified
    except ValueError:  # a host name
        return False


def _check_advertised(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    known_port = port.isascii() and port.isdigit() and 0 < int(port) <= 65_535
    if not host or not known_port or not address.isprintable() or any(sign in address for sign in " /@"):
        raise InvalidArgument(
            f"{name} is {address[:100]!r}, not HOST:PORT",
            hint=f"Write it as in --{name.replace('_', '-')} 10.0.0.7:8080; a port is a number from 1 to 65535.",
        )
    if is_every_interface(address):
        raise InvalidArgument(
            f"{name} is {address}, which stands for every interface: clients cannot connect to it",
            hint="Name the host or address at which others reach this broker.",
        )
