"""How many connections a door has open, and what becomes of one too many. Pure.

    below both bounds                     it is taken
    above one of them                     it is told so, and closed: at most TOLD_MAX at once
    above it, with TOLD_MAX being told    it is closed without a word

Invariant: no more than connections_max + TOLD_MAX are open, those in a TLS handshake included; every place is given back once.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from metadata.errors import Throttled

TOLD_MAX: Final = 64


class ConnectionSlot:
    """Of one connection, from its acceptance to its end."""

    __slots__ = ("_open", "host", "refusal")

    def __init__(self, open_connections: ConnectionLimiter, host: str, refusal: Throttled | None) -> None:
        self._open: ConnectionLimiter | None = open_connections
        self.host = host
        self.refusal = refusal
        """What the connection is told, in place of any answer."""

    def give_back(self) -> None:
        """Again, it does nothing."""
        if self._open is not None:
            self._open.ended(self)
            self._open = None


class ConnectionLimiter:
    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._by_host: Counter[str] = Counter()
        self.count = 0
        self.told = 0
        self.refused_count = 0
        """Connections that were not taken, since the start."""

    def take(self, host: str) -> ConnectionSlot | None:
        """A place for one more from this address; None where it is to be closed without a word."""
        refusal = self._refusal(host)
        if refusal is None:
            self.count += 1
            self._by_host[host] += 1
        else:
            self.refused_count += 1
            if self.told >= TOLD_MAX:
                return None
            self.told += 1
        return ConnectionSlot(self, host, refusal)

    def ended(self, place: ConnectionSlot) -> None:
        if place.refusal is not None:
            self.told -= 1
            return
        self.count -= 1
        self._by_host[place.host] -= 1
        if not self._by_host[place.host]:
            del self._by_host[place.host]

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
