"""Chooses the broker that a name belongs to, without communication: rendezvous hashing. Pure.

Each broker scores each name; the highest score has it. Invariant: when a broker goes, only its names move; a new broker takes
names only for itself. Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous" (1996).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


class Rendezvous:
    """Scores names for fixed candidates. It keeps a hash state of each, so that thousands of names take some ten milliseconds."""

    def __init__(self, candidates: Iterable[str]) -> None:
        self._scores = [(candidate, _score_of(candidate)) for candidate in sorted(candidates, reverse=True)]

    def highest(self, name: str) -> str | None:
        """Returns the candidate that `name` belongs to; None where there is none."""
        encoded, best, found = name.encode(), b"", None
        for candidate, score in self._scores:
            scored = score.copy()
            scored.update(encoded)
            if (digest := scored.digest()) > best:
                best, found = digest, candidate
        return found


def highest(name: str, candidates: Iterable[str]) -> str | None:
    """Returns the candidate that one name belongs to; None where there is none."""
    return Rendezvous(candidates).highest(name)


def _score_of(candidate: str) -> hashlib.blake2b:
    key = hashlib.blake2b(candidate.encode(), digest_size=16).digest()
    return hashlib.blake2b(digest_size=8, key=key)
