"""The time by which the caller of a request wants its answer."""

from __future__ import annotations

import asyncio
from typing import NamedTuple


class Deadline(NamedTuple):
    """The end of a request, which every step of the request shares; error texts name the duration that the client asked for."""

    # On the clock of the event loop.
    at_s: float
    timeout_s: float

    @classmethod
    def after(cls, timeout_s: float) -> Deadline:
        """Returns the deadline of a request that begins now."""
        return cls(asyncio.get_running_loop().time() + timeout_s, timeout_s)

    @property
    def began_s(self) -> float:
        """Returns when the request began, on the clock of the event loop."""
        return self.at_s - self.timeout_s

    def left_s(self) -> float:
        """Returns the time that is left, at least 0."""
        return max(0.0, self.at_s - asyncio.get_running_loop().time())
