"""Watches the answers that gRPC is sending, and ends the connection of a client that reads too slowly.

  handed to gRPC ─▶ read in time: done
                 └▶ overdue, and others wait for room: the connection is shut down ─▶ gRPC ends its calls: done

gRPC reports when a call is done but not its progress, and a server cannot end one call whose client reads nothing: even its status
would wait behind the answer. The connection is therefore shut down, found by its two addresses among the open files of the process,
and
only when another answer waits for the room. Other calls of that client fail, too, with UNAVAILABLE.
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

# Open files of this process, on Linux and macOS; elsewhere nothing is cut off.
OPEN_FILES: Final = "/dev/fd"
CHECKS_PER_PAUSE: Final = 4
# Prefix by which a socket of both families, as gRPC opens them, names a peer that gRPC itself calls ipv4.
_MAPPED_IPV4: Final = "::ffff:"

log = logging.getLogger(__name__)


class ResponseProgress:
    """Records by when the client must have read one answer; compared by identity."""

    __slots__ = ("overdue_s", "peer")

    def __init__(self, peer: str, overdue_s: float) -> None:
        # The peer as gRPC names it.
        self.peer = peer
        self.overdue_s = overdue_s


class SlowReaderGuard:
    """Checks the answers of one listener at intervals, and cuts off overdue readers when others wait for room."""

    def __init__(self, room: ResponseBudget, *, pause_s: float) -> None:
        self._room = room
        self._pause_s = pause_s
        self._under_way: set[ResponseProgress] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, peer: str, *, local_address: str, size_bytes: int) -> ResponseProgress:
        """Records an answer that is handed to gRPC. `peer` is named as by gRPC; `local_address` is the listener's HOST:PORT."""
        now_s = asyncio.get_running_loop().time()
        delivery = ResponseProgress(peer, now_s + self._pause_s + size_bytes / BYTES_PER_SECOND_MIN)
        self._under_way.add(delivery)
        if self._timer is None:
            self._schedule_check(local_address)
        return delivery

    def end(self, delivery: ResponseProgress) -> None:
        self._under_way.discard(delivery)

    def _schedule_check(self, local_address: str) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause_s / CHECKS_PER_PAUSE, self._check, local_address)

    def _check(self, local_address: str) -> None:
        self._timer = None
        if not self._under_way:
            return
        now_s = asyncio.get_running_loop().time()
        overdue = {delivery.peer for delivery in self._under_way if delivery.overdue_s <= now_s}
        if overdue and self._room.readers_waiting:
            cut = cut_off(overdue, local_address)
            log.info("slow readers cut off connections=%d: other answers waited for room", cut)
        self._schedule_check(local_address)


def cut_off(peers: Collection[str], local_address: str) -> int:
    """Shuts down the TCP connections of these peers to `local_address` (HOST:PORT); returns how many it found."""
    ends = {(host, port, host_and_port(local_address)[1]) for host, port in filter(None, map(_address_of, peers))}
    if not ends or not os.path.isdir(OPEN_FILES):
        return 0
    return sum(_shut_down(int(number), ends) for number in os.listdir(OPEN_FILES))


def _address_of(peer: str) -> tuple[str, int] | None:
    """Parses a peer as ipv4:127.0.0.1:4711 or ipv6:%5B::1%5D:4711; returns None for one without an IP address, such as unix:…."""
    family, _, address = unquote(peer).partition(":")
    if family not in {"ipv4", "ipv6"}:
        return None
    host, port = host_and_port(address)
    return host.strip("[]"), port


def _shut_down(number: int, ends: Collection[tuple[str, int, int]]) -> bool:
    """Shuts down an open file if it is a connection from one of (host, port) to our port, for gRPC to close. Returns whether it
    did."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        connection = socket.socket(fileno=os.dup(number))  # a copy keeps the file open while it is examined
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
            return False  # not connected: a listener, or closed meanwhile
    return True
