"""How old the connections are on which streams are read: so that these end in order before gRPC cuts them. Pure.

    first seen ──── age × 0.9 … 1.1 ────▶ its client is told to go ──── grace ────▶ what is still open is cut
                                       └▶ surely told by now: its streams end in order, and are opened on another connection

gRPC spreads ages by a tenth each way, and tells nobody here when it has told a client to go. So the grace that it is given is
longer by what is spread. Invariant: what is remembered is bounded. A connection that was used for other calls long before its first
stream here is taken for younger than it is.
"""

from __future__ import annotations

from typing import Final

SPREAD: Final = 0.1
REMEMBERED_MAX: Final = 10_000


class ConnectionAges:
    def __init__(self, *, age_s: float, grace_s: float) -> None:
        self._told_s = age_s * (1 + SPREAD)
        self._gone_s = self._told_s + grace_given_s(age_s, grace_s)
        self._seen_s: dict[str, float] = {}
        """By peer, the oldest first."""

    def ends_s(self, peer: str, *, now_s: float) -> float:
        """When a stream that begins now on the connection of this peer has to end."""
        while self._seen_s:
            oldest = next(iter(self._seen_s))
            if now_s - self._seen_s[oldest] < self._gone_s and len(self._seen_s) < REMEMBERED_MAX:
                break
            del self._seen_s[oldest]
        return self._seen_s.setdefault(peer, now_s) + self._told_s

    def ended(self, peer: str) -> None:
        """Its client was told to go: who comes from there again has a new connection."""
        self._seen_s.pop(peer, None)


def grace_given_s(age_s: float, grace_s: float) -> float:
    """The grace that gRPC is told: from the earliest that a connection may be told to go, until `grace_s` after the latest."""
    return 2 * SPREAD * age_s + grace_s
