"""How long a member of a group waits before it tries a call again. Pure: its owner brings the jitter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metadata.errors import Throttled

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0
"""Between two attempts; it doubles from the one to the other."""


class CallPauses:
    """Each twice as long as the one before."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._next_s = RETRY_S

    def next_s(self, error: Exception) -> float:
        if isinstance(error, Throttled):
            return error.retry_after_s * (1 + self._jitter() / 2)  # many are refused at the same moment
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, RETRY_S_MAX)
        return pause_s * (0.5 + self._jitter())
