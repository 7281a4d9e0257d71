"""Computes the pauses between retries, and selects the final error. Pure, but for chance.

OutageLog reports a repeated failure once it lasts, and once more when it is over.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from metadata.errors import TidelogError
from metadata.retry import RetryPauses
from tidelog.settings import ClientSettings
from tidelog.transport.rpc_errors import is_timeout

_Error = TypeVar("_Error", bound=TidelogError)


def retry_pauses(settings: ClientSettings) -> RetryPauses:
    """Returns the pauses between the attempts of one call of a client."""
    return RetryPauses(settings.retry_pause_ms / 1000, settings.retry_pause_ms_max / 1000, jitter=random.random)


def newer_unless_cut_short(met: _Error | None, error: _Error, *, is_cut_short: bool) -> _Error:
    """Returns the newer error, unless it is the silence of an attempt that was cut short."""
    return met if met is not None and is_cut_short and is_timeout(error) else error


# What passes sooner is a handover, or a broker that is started again.
LOG_AFTER_S: Final = 10.0
LOG_EVERY_S: Final = 60.0
# A longer pause between two attempts starts a new failure.
FORGOTTEN_AFTER_S: Final = 60.0

log = logging.getLogger("tidelog")


@dataclass
class _Failing:
    since_s: float
    last_s: float
    logged_s: float | None = None


class OutageLog:
    """Logs lasting failures by the name of the call. Invariant: keeps nothing of calls that succeeded or ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._failing: dict[str, _Failing] = {}

    def met(self, what: str, error: Exception, *, began_s: float) -> None:
        """Notes a failed attempt that will be retried. `began_s`: when it began, by `clock`."""
        now_s = self.clock()
        failing = self._failing.get(what)
        if failing is None or began_s - failing.last_s > FORGOTTEN_AFTER_S:
            self._failing = {name: kept for name, kept in self._failing.items() if now_s - kept.last_s <= FORGOTTEN_AFTER_S}
            failing = self._failing[what] = _Failing(since_s=began_s, last_s=now_s)
        failing.last_s = now_s
        if now_s - failing.since_s >= LOG_AFTER_S and (failing.logged_s is None or now_s - failing.logged_s >= LOG_EVERY_S):
            failing.logged_s = now_s
            log.warning("no answer for %.0f s: %s: %s; retrying", now_s - failing.since_s, what, error)

    def over(self, what: str) -> None:
        """Notes that the call was answered."""
        failing = self._failing.pop(what, None)
        if failing is not None and failing.logged_s is not None:
            log.warning("answered again after %.0f s: %s", self.clock() - failing.since_s, what)
