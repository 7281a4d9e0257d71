"""Decides how long a reader repeats a question that is refused for want of a right or a key.

A broker that lags has not heard of a new right or key yet. A refusal of the first question is final, because it most often means
that the principal has no right.
"""

from __future__ import annotations

import asyncio

from metadata.errors import TidelogError
from tidelog.consumer.fetch_state import DENIED_S, REFUSALS


class RefusalPatience:
    """Tells refusals that may pass from those that have lasted DENIED_S without an answer between them."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def may_pass(self, error: object) -> bool:
        """Returns whether the error is a refusal that may pass. Notes it."""
        if not isinstance(error, REFUSALS):
            return False
        now_s = asyncio.get_running_loop().time()
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s <= DENIED_S

    def check(self, error: TidelogError) -> None:
        """Raises the error if it is a refusal that has lasted too long."""
        if isinstance(error, REFUSALS) and not self.may_pass(error):
            raise error

    def answered(self) -> None:
        """Notes that a question was answered."""
        self._since_s = None
