"""Tries again, with pauses, what the bucket did not do: for calls that may be repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from metadata.errors import OutcomeUnknown, Unavailable

_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 10.0
_TOLD_AFTER_S: Final = 5.0

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


async def patiently(call: Callable[[], Awaitable[Answer]], *, patience_s: float) -> Answer:
    """The answer of `call`, which is made again while it raises Unavailable or OutcomeUnknown; after `patience_s` that is raised.

    A create of one's own key may be repeated so: AlreadyExists then tells that it was done.
    """
    now_s = asyncio.get_running_loop().time
    begun_s, pause_s, told = now_s(), _PAUSE_S, False
    while True:
        try:
            return await call()
        except (Unavailable, OutcomeUnknown) as error:
            waited_s = now_s() - begun_s
            if waited_s + pause_s > patience_s:
                raise
            if waited_s >= _TOLD_AFTER_S and not told:
                log.warning("the bucket does not answer; trying again for %.0f s: %s", patience_s - waited_s, error)
                told = True
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
