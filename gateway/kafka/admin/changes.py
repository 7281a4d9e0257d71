"""Runs the changes that one request asks for: each resource on its own, with its own error and its own line in the audit log.

    CreateTopics [a, b, c] ─▶ the changes run side by side ─▶ each: allowed? ─▶ changed, or its error ─▶ audit log

Invariant: the audit log has the outcome of each resource, since one request may succeed for some and fail for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from gateway.access.guard import AccessGuard
from gateway.concurrency.bounded_map import map_bounded
from gateway.kafka.admin.single_change import one_change
from gateway.kafka.call import KafkaCall
from metadata.errors import OutcomeUnknown, TidelogError

# Changes of one request that run at the same time.
CHANGES_MAX: Final = 16
_Item = TypeVar("_Item")
_Changed = TypeVar("_Changed")


async def change_each(
    guard: AccessGuard | None,
    call: KafkaCall,
    items: Sequence[_Item],
    change: Callable[[_Item], Awaitable[_Changed]],
    *,
    timeout_ms: int = 0,
    validate_only: bool = False,
) -> list[_Changed | TidelogError]:
    """Returns what each change returned, or its error. `timeout_ms`: how long the client waits for each; 0 or less: no limit.

    A change that takes longer has OutcomeUnknown in its place.
    """

    async def run(item: _Item) -> _Changed | TidelogError:
        try:
            with one_change(guard, call, validate_only=validate_only):
                return await _in_time(change(item), timeout_ms)
        except TidelogError as error:
            return error.with_traceback(None)

    if call.authorized is not None:
        call.authorized.note_logged()  # also where there are no items
    return await map_bounded(run, items, at_once=CHANGES_MAX)


async def _in_time(changing: Awaitable[_Changed], timeout_ms: int) -> _Changed:
    try:
        async with asyncio.timeout(timeout_ms / 1000 if timeout_ms > 0 else None):
            return await changing
    except TimeoutError:
        raise OutcomeUnknown(
            f"the change is not confirmed after {timeout_ms} ms, the time that the client waits", hint="Look before you repeat it."
        ) from None
