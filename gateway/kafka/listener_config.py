"""Parses the Kafka listeners of a broker from its settings: bound address, advertised address, and route of each. Pure.

    --kafka            internal=0.0.0.0:9092,external=0.0.0.0:9094/forward
    --advertise-kafka  internal=broker-0.brokers:9092,external=kafka.example.com:9094

A single listener needs no name. A client connects to the advertised addresses of the listener that it has contacted, so each
address through which clients reach the brokers needs a listener of its own."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

from gateway.cluster.settings import is_every_interface
from gateway.net.addresses import host_and_port
from metadata.errors import InvalidArgument

DEFAULT_NAME: Final = "kafka"
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)


class Route(enum.Enum):
    """The way in which a listener handles requests for partitions that another broker leads."""

    # Answers that this broker does not lead them: the client connects to the leader.
    DIRECT = "direct"
    # Forwards them: the client needs one address for all brokers, such as a load balancer's.
    FORWARD = "forward"


class ListenerConfig(NamedTuple):
    """The configuration of one Kafka listener."""

    name: str
    # HOST:PORT that it binds; port 0 takes a free one.
    address: str
    # HOST:PORT that clients connect to; empty: the bound one.
    advertised: str
    route: Route


def parse_listeners(listeners: str, advertised: str) -> tuple[ListenerConfig, ...]:
    """Returns the listeners that the settings `kafka` and `advertise_kafka` name; none if `kafka` is empty.

    Raises InvalidArgument.
    """
    addresses = dict(_named(part, "advertise_kafka") for part in _parts(advertised))
    found: dict[str, ListenerConfig] = {}
    for part in _parts(listeners):
        name, rest = _named(part, "kafka")
        address, _, route = rest.partition("/")
        if route and route not in {each.value for each in Route}:
            raise InvalidArgument(f"kafka: {route!r} is no route", hint="Write /direct or /forward behind the port.")
        host_and_port(address, name="kafka")
        if name in found:
            raise InvalidArgument(f"kafka: two listeners are called {name}", hint="Name them: NAME=HOST:PORT,NAME=HOST:PORT")
        found[name] = ListenerConfig(name, address, addresses.pop(name, ""), Route(route or "direct"))
    if addresses:
        raise InvalidArgument(
            f"advertise_kafka names {next(iter(addresses))}, which is no listener", hint="Name listeners in kafka: NAME=HOST:PORT."
        )
    for listener in found.values():
        if listener.advertised:
            host_and_port(listener.advertised, name="advertise_kafka")
    return tuple(found.values())


def check_advertised(listeners: tuple[ListenerConfig, ...]) -> None:
    """Raises InvalidArgument for a listener on all addresses of a host that does not say which one clients connect to."""
    for listener in listeners:
        if not listener.advertised and is_every_interface(listener.address):
            raise InvalidArgument(
                f"the Kafka listener {listener.name} listens on {listener.address}, and clients can't connect to that address",
                hint="Say where clients reach this broker: --advertise-kafka HOST:PORT.",
            )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _named(part: str, setting: str) -> tuple[str, str]:
    name, equals, rest = part.partition("=")
    if not equals:
        return DEFAULT_NAME, part
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{setting}: {name[:40]!r} is no name of a listener", hint="Use 1 to 32 of a-z 0-9 _ -")
    return name, rest
