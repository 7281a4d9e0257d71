"""Tracks the age of connections that carry streams, so that streams end in order before gRPC cuts them. Pure.

  first seen ──── age × 0.9 … 1.1 ────▶ gRPC sends GOAWAY ──── grace ────▶ gRPC cuts what is still open
                                └▶ GOAWAY is certainly sent: streams end in order and reopen on another connection

gRPC spreads ages by a tenth each way and does not report when it sends GOAWAY. The grace given to gRPC is longer by that spread.
Invariant: memory is bounded. A connection that served other calls before its first stream is taken for younger than it is.
"""

from __future__ import annotations

from typing import Final

SPREAD: Final = 0.1
REMEMBERED_MAX: Final = 10_000


class ConnectionAges:
    """Remembers when each connection first carried a stream, and says when streams on it must end."""

    def __init__(self, *, age_s: float, grace_s: float) -> None:
        self._goaway_s = age_s * (1 + SPREAD)
        self._gone_s = self._goaway_s + grace_given_s(age_s, grace_s)
        # Time of the first stream by peer, the oldest first.
        self._seen_s: dict[str, float] = {}

    def ends_s(self, peer: str, *, now_s: float) -> float:
        """Returns when a stream that begins now on the connection of this peer must end, in seconds of the caller's clock."""
        while self._seen_s:
            oldest = next(iter(self._seen_s))
            if now_s - self._seen_s[oldest] < self._gone_s and len(self._seen_s) < REMEMBERED_MAX:
                break
            del self._seen_s[oldest]
        return self._seen_s.setdefault(peer, now_s) + self._goaway_s

    def ended(self, peer: str) -> None:
        """Forgets a connection that was asked to close; a later stream from the same peer has a new connection."""
        self._seen_s.pop(peer, None)


def grace_given_s(age_s: float, grace_s: float) -> float:
    """Returns the grace to configure in gRPC: from the earliest GOAWAY of a connection until `grace_s` after the latest."""
    return 2 * SPREAD * age_s + grace_s
