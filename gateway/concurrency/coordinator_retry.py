"""Repeats calls of a group while it has no coordinator: clients over HTTP see a slow answer between two coordinators, not an error.

The refusals that are repeated say that nothing was done (metadata/errors.py). A client that disconnects cancels the repeats.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from metadata.errors import NoCoordinator, NotCoordinator, Stopping
from metadata.retry import RetryPauses, retry

# Retry time, counted from the first refusal: longer than brokers take to see that others joined or left.
COORDINATOR_WAIT_S: Final = 5.0
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 0.5

_Answer = TypeVar("_Answer")


async def retry_coordinator(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Returns what `call` returns; repeats it while no broker coordinates the group."""
    refusals = NotCoordinator, NoCoordinator, Stopping
    return await retry(call, on=refusals, pauses=RetryPauses(PAUSE_S, PAUSE_S_MAX), for_s=COORDINATOR_WAIT_S)
