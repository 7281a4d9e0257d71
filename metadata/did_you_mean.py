"""The nearest known name to a mistyped one. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection

KNOWN_MAX = 64
"""Above this many names none is suggested: comparing them all would cost milliseconds of the event loop."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A question that names the nearest of `known`, or '' where none is near (or there are too many to compare)."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7) if len(known) <= KNOWN_MAX and len(name) <= 249 else []
    return f"Did you mean {near[0]!r}?" if near else ""
