"""Waits until a group has a coordinator, for clients over HTTP: between two of them they see a slow answer, and no error.

What was refused so was not done, and may be asked again (metadata/errors.py). Invariant: who hangs up ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from metadata.errors import NoCoordinator, NotCoordinator, Stopping

COORDINATOR_WAIT_S: Final = 5.0
"""From the first refusal on: longer than brokers take to see that others came or went."""
PAUSE_LEAST_S: Final = 0.05
PAUSE_MOST_S: Final = 0.5

_Answer = TypeVar("_Answer")


async def patiently(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """What `call` answers; it is made again while nobody coordinates the group."""
    clock = asyncio.get_running_loop().time
    ends_s, pause_s = None, PAUSE_LEAST_S
    while True:
        try:
            return await call()
        except (NotCoordinator, NoCoordinator, Stopping):
            now_s = clock()
            ends_s = now_s + COORDINATOR_WAIT_S if ends_s is None else ends_s
            if now_s + pause_s >= ends_s:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MOST_S)
