"""How long the caller of the present request goes on waiting, where it said so: gRPC clients send a deadline along.

It is noted where a call begins, and looked at where something may have to be waited for, so that an answer (what there is, or why
there is nothing) comes before the caller has given up. Each call runs in a task of its own, so the note is its own, too.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from typing import Final

ON_THE_WAY_S: Final = 0.25
"""Kept for the answer to arrive; of a short deadline a quarter."""

_ends_s: ContextVar[float] = ContextVar("ends_s", default=math.inf)


def note_deadline(left_s: float | None) -> None:
    """Of the call that runs in this task. None: its caller waits for ever."""
    if left_s is not None:
        _ends_s.set(asyncio.get_running_loop().time() + left_s - min(ON_THE_WAY_S, left_s / 4))


def caller_waits_s() -> float:
    """For so long from now on an answer finds its caller."""
    return max(0.0, _ends_s.get() - asyncio.get_running_loop().time())
