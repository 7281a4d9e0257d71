"""Bounds the open connections of a listener, and decides how one above the bound ends. Pure.

  below both bounds                        the connection is accepted
  above one of them                        it receives the refusal and is closed: at most REFUSALS_OPEN_MAX at a time
  above it, with all refusals in use       it is closed without an answer

Invariants: at most connections_max + REFUSALS_OPEN_MAX connections are open, those in a TLS handshake included; each slot is given
back once.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from metadata.errors import Throttled

REFUSALS_OPEN_MAX: Final = 64


class ConnectionSlot:
    """Holds the place of one connection from its acceptance to its end."""

    __slots__ = ("_open", "host", "refusal")

    def __init__(self, open_connections: ConnectionLimiter, host: str, refusal: Throttled | None) -> None:
        self._open: ConnectionLimiter | None = open_connections
        self.host = host
        # The error that the connection receives instead of any answer.
        self.refusal = refusal

    def give_back(self) -> None:
        """Gives the slot back; repeated calls do nothing."""
        if self._open is not None:
            self._open.ended(self)
            self._open = None


class ConnectionLimiter:
    """Counts open connections in total and by address, and gives each a slot or a refusal."""

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._by_host: Counter[str] = Counter()
        self.count = 0
        self.refusals_open = 0
        # Connections refused since the start.
        self.refused_count = 0

    def take(self, host: str) -> ConnectionSlot | None:
        """Returns a slot for one more connection from this address; None if it is to be closed without an answer."""
        refusal = self._refusal(host)
        if refusal is None:
            self.count += 1
            self._by_host[host] += 1
        else:
            self.refused_count += 1
            if self.refusals_open >= REFUSALS_OPEN_MAX:
                return None
            self.refusals_open += 1
        return ConnectionSlot(self, host, refusal)

    def ended(self, slot: ConnectionSlot) -> None:
        if slot.refusal is not None:
            self.refusals_open -= 1
            return
        self.count -= 1
        self._by_host[slot.host] -= 1
        if not self._by_host[slot.host]:
            del self._by_host[slot.host]

    def _refusal(self, host: str) -> Throttled | None:
        if self.count >= self._connections_max:
            return Throttled(
                f"{self.count} HTTP connections are open at this broker, which is all that http_connections_max allows",
                hint="Keep connections open and use them again, close those that are idle, or raise http_connections_max.",
            )
        if self._by_host[host] >= self._per_address_max:
            return Throttled(
                f"{self._by_host[host]} HTTP connections from this address are open at this broker, which is all that "
                "http_connections_per_address_max allows",
                hint="Keep connections open and use them again, or raise http_connections_per_address_max.",
            )
        return None
