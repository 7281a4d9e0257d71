"""Which broker a name belongs to, without asking anybody: rendezvous hashing. Pure.

Each broker scores each name; the highest score has it. Invariant: when a broker goes, only its names move, and when one comes it
takes names only for itself. Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous" (1996).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def highest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` belongs to; None where there is none."""
    return max(candidates, key=lambda candidate: (_score(name, candidate), candidate), default=None)


def _score(name: str, candidate: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8, key=hashlib.blake2b(candidate.encode(), digest_size=16).digest()).digest()
