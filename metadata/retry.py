"""Repeats a call that failed for a moment, with pauses that grow. The callers of every layer share this helper.

Only a call that may be repeated belongs here: one that wrote nothing, or one whose repeat changes nothing. A create of the
caller's own key may be repeated: AlreadyExists then says that an earlier attempt wrote it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from metadata.errors import OutcomeUnknown, Throttled, Unavailable

# First and largest pause between two attempts of `retry_unavailable`.
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 10.0
# Outages that are shorter are not logged.
LOGGED_AFTER_S: Final = 5.0

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class RetryPauses:
    """Computes the pauses between the attempts of one call. Each is twice the one before, up to a maximum."""

    def __init__(self, first_s: float, max_s: float = math.inf, *, jitter: Callable[[], float] = lambda: 0.5) -> None:
        """`jitter` returns numbers from 0 to 1, which make a pause half to one and a half times as long."""
        self._next_s = min(first_s, max_s)
        self._max_s = max_s
        self._jitter = jitter

    def next_s(self, error: BaseException | None = None) -> float:
        """Returns the pause after `error` in seconds. A server that names a time in Throttled is not called sooner."""
        if isinstance(error, Throttled) and error.retry_after_s > 0:
            return error.retry_after_s * (1 + self._jitter() / 2)  # many callers are refused at the same moment
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._max_s)
        return pause_s * (0.5 + self._jitter())


async def retry(
    call: Callable[[], Awaitable[_Answer]],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    pauses: RetryPauses,
    for_s: float = math.inf,
    attempts_max: float = math.inf,
    failed: Callable[[Exception, float], None] | None = None,
) -> _Answer:
    """Returns what `call` returns, and repeats it while it raises one of `on`.

    Raises the last error instead of a pause that would end later than `for_s` seconds after the first failure, and after
    `attempts_max` attempts. `failed` is called before each pause with the error and the seconds since the first failure.
    """
    now_s = asyncio.get_running_loop().time
    attempts, failing_since_s = 0, math.nan
    while True:
        try:
            return await call()
        except on as error:
            attempts += 1
            failing_since_s = now_s() if attempts == 1 else failing_since_s
            failing_s, pause_s = now_s() - failing_since_s, pauses.next_s(error)
            if attempts >= attempts_max or failing_s + pause_s > for_s:
                raise
            if failed is not None:
                failed(error, failing_s)
        await asyncio.sleep(pause_s)


async def retry_unavailable(
    call: Callable[[], Awaitable[_Answer]],
    *,
    for_s: float = math.inf,
    attempts_max: float = math.inf,
    pauses: RetryPauses | None = None,
) -> _Answer:
    """Returns what `call` returns, and repeats it while the bucket fails or the outcome is unknown, as `retry` does.

    An outage that lasts is logged once.
    """
    is_logged = False

    def failed(error: Exception, failing_s: float) -> None:
        nonlocal is_logged
        if failing_s >= LOGGED_AFTER_S and not is_logged:
            is_logged = True
            log.warning("the bucket has not answered for %.0f s: %s; retrying", failing_s, error)

    pauses = pauses or RetryPauses(PAUSE_S, PAUSE_S_MAX)
    return await retry(call, on=(Unavailable, OutcomeUnknown), pauses=pauses, for_s=for_s, attempts_max=attempts_max, failed=failed)
