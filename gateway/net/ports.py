"""Reserves the ports of the listeners before the broker writes anything, so that a refused start leaves nothing behind.

  take_port ─▶ bound, not listening ─▶ … bucket, metadata, cluster id … ─▶ a listener opens there
                 ├▶ clients that connect meanwhile are refused, so no probe or balancer takes the port for a ready broker
                 └▶ processes that bind meanwhile are refused, however long the start waits for the bucket or the metadata

gRPC cannot be handed a socket: the socket that reserves its port is closed in the same step in which gRPC binds. Invariant: a port
that
another process holds is reported before the bucket or the metadata are opened, unless two processes take it at the same moment.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from gateway.net.addresses import cannot_listen, host_and_port

BACKLOG: Final = 2048
# Errors of an address that the host's name has and this machine has not: ::1 of localhost, if IPv6 is off.
ABSENT: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


class ReservedPort:
    """Reserves one port on each address of its host. Its owner closes it, unless a listener opens there."""

    def __init__(self, host: str, sockets: list[socket.socket], *, listener: str) -> None:
        # HOST:PORT, with the port that was chosen for port 0.
        self.address = f"{host}:{sockets[0].getsockname()[1]}"
        self._listener = listener
        self._sockets = sockets

    def listen(self) -> list[socket.socket]:
        """Starts to listen, and returns the sockets, which the caller then owns. Raises as take_port."""
        try:
            for each in self._sockets:
                _share(each, True)  # Linux checks the port again, and earlier connections leave traces
                each.listen(BACKLOG)
        except OSError as error:
            self.close()
            raise cannot_listen(*host_and_port(self.address), error, listener=self._listener) from None
        sockets, self._sockets = self._sockets, []
        return sockets

    def close(self) -> None:
        """Closes the sockets, unless they were handed over."""
        for each in self._sockets:
            each.close()
        self._sockets = []


class Ports(NamedTuple):
    """Holds the reserved ports of a broker's two listeners."""

    http: ReservedPort
    grpc: ReservedPort
    # Of each Kafka listener, in the order of the settings.
    kafka: Sequence[ReservedPort] = ()

    def close(self) -> None:
        for port in (self.http, self.grpc, *self.kafka):
            port.close()


async def reserve_ports(*, http: str, grpc: str, kafka: Iterable[str] = ()) -> Ports:
    """Takes the port of each listener, or none. Raises as take_port."""
    with ExitStack() as taken:
        first = await take_port(http, listener="HTTP")
        taken.callback(first.close)
        second = await take_port(grpc, listener="gRPC")
        taken.callback(second.close)
        others = []
        for address in kafka:
            others.append(await take_port(address, listener="Kafka"))
            taken.callback(others[-1].close)
        taken.pop_all()
    return Ports(first, second, others)


async def take_port(address: str, *, listener: str) -> ReservedPort:
    """Reserves HOST:PORT; port 0 takes a free one. The second argument names the listener, "HTTP" or "gRPC", in errors.

    gRPC's [::] includes IPv4. Addresses of the host that this machine lacks are skipped if it has another.
    Raises Unavailable if the port is taken, and InvalidArgument if it cannot be opened for another reason.
    """
    host, port = host_and_port(address, name=listener.lower())
    try:
        return ReservedPort(host, await _bound(host.strip("[]"), port, both_families=listener == "gRPC"), listener=listener)
    except OSError as error:
        raise cannot_listen(host, port, error, listener=listener) from None


async def _bound(host: str, port: int, *, both_families: bool) -> list[socket.socket]:
    """Binds one socket for each available address of the host; port 0 takes one free port for all. Raises OSError.

    `both_families`: `::` stands for IPv4 as well, as gRPC takes it.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    absent: OSError | None = None
    with ExitStack() as taken:
        sockets: list[socket.socket] = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if sockets and not port:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            try:
                sockets.append(taken.enter_context(_bound_to(address, family, kind, protocol, both_families=both_families)))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                absent = error
        if not sockets and absent is not None:
            raise absent
        taken.pop_all()
    return sockets


def _bound_to(address: Any, family: int, kind: int, protocol: int, *, both_families: bool) -> socket.socket:
    with ExitStack() as opened:
        bound = opened.enter_context(socket.socket(family, kind, protocol))
        _share(bound, True)  # as in `listen`
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both_families)
        bound.bind(address)
        _share(bound, False)  # else another process could bind it as well, until one of them listens
        bound.setblocking(False)
        opened.pop_all()
    return bound


def _share(bound: socket.socket, shared: bool) -> None:
    """Sets whether the port may be bound beside ended connections, and on Linux beside sockets that do not listen."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)
