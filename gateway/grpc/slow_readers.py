"""Answers that gRPC is sending: whether their readers take them, and the end of the connection where one does not.

    handed to gRPC ─▶ taken in time: done
                   └▶ overdue, and others wait for room: its connection is shut down ─▶ gRPC ends the calls on it: done

gRPC tells when a call is done, not how far it is, and has no way for a server to end one call whose reader takes nothing: even its
status would wait behind the answer. So the connection goes, found by its two addresses among the open files of the process, and
only when somebody waits for the room: other calls of that client lose it, too, and are told that nobody is there (UNAVAILABLE).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

from gateway.net.addresses import host_and_port
from gateway.records.response_budget import BYTES_PER_SECOND_MIN, ResponseBudget

# Of this process, on Linux and macOS; elsewhere nothing is cut off.
OPEN_FILES: Final = "/dev/fd"
LOOKS_IN_A_PAUSE: Final = 4
# How a socket of both families, as gRPC opens them, names the peer that gRPC itself calls ipv4.
_MAPPED_IPV4: Final = "::ffff:"

log = logging.getLogger(__name__)


class ResponseProgress:
    """Of one answer, by identity."""

    __slots__ = ("overdue_s", "peer")

    def __init__(self, peer: str, overdue_s: float) -> None:
        self.peer = peer
        """As gRPC names it."""
        self.overdue_s = overdue_s


class SlowReaderGuard:
    """Of one door. Looks at them now and then, while there are any."""

    def __init__(self, room: ResponseBudget, *, pause_s: float) -> None:
        self._room = room
        self._pause_s = pause_s
        self._under_way: set[ResponseProgress] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, peer: str, *, local_address: str, size_bytes: int) -> ResponseProgress:
        """An answer is handed to gRPC, for a peer as gRPC names it, of the door at HOST:PORT."""
        now_s = asyncio.get_running_loop().time()
        delivery = ResponseProgress(peer, now_s + self._pause_s + size_bytes / BYTES_PER_SECOND_MIN)
        self._under_way.add(delivery)
        if self._timer is None:
            self._look_later(local_address)
        return delivery

    def end(self, delivery: ResponseProgress) -> None:
        self._under_way.discard(delivery)

    def _look_later(self, local_address: str) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause_s / LOOKS_IN_A_PAUSE, self._look, local_address)

    def _look(self, local_address: str) -> None:
        self._timer = None
        if not self._under_way:
            return
        now_s = asyncio.get_running_loop().time()
        overdue = {delivery.peer for delivery in self._under_way if delivery.overdue_s <= now_s}
        if overdue and self._room.readers_waiting:
            cut = cut_off(overdue, local_address)
            log.info("%d connections took their answers too slowly while others waited for room: cut off", cut)
        self._look_later(local_address)


def cut_off(peers: Collection[str], local_address: str) -> int:
    """Shuts the TCP connections of these peers to our HOST:PORT down; how many it found."""
    ends = {(host, port, host_and_port(local_address)[1]) for host, port in filter(None, map(_address_of, peers))}
    if not ends or not os.path.isdir(OPEN_FILES):
        return 0
    return sum(_shut_down(int(number), ends) for number in os.listdir(OPEN_FILES))


def _address_of(peer: str) -> tuple[str, int] | None:
    """ipv4:127.0.0.1:4711, ipv6:%5B::1%5D:4711; None for what has no address, as unix:…"""
    family, _, address = unquote(peer).partition(":")
    if family not in {"ipv4", "ipv6"}:
        return None
    host, port = host_and_port(address)
    return host.strip("[]"), port


def _shut_down(number: int, ends: Collection[tuple[str, int, int]]) -> bool:
    """Whether this open file is a connection from one of (host, port) to our port; it is shut down then, for gRPC to close."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        connection = socket.socket(fileno=os.dup(number))  # a copy, so that what is looked at stays what it is
    except OSError:
        return False  # closed meanwhile
    with connection:
        if connection.family not in {socket.AF_INET, socket.AF_INET6}:
            return False
        try:
            host, port, *_ = connection.getpeername()
            if (host.removeprefix(_MAPPED_IPV4), port, connection.getsockname()[1]) not in ends:
                return False
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False  # nobody is connected: a listener, or closed meanwhile
    return True
