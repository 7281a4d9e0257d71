"""Runs the changes that one request asks for: each resource on its own, with its own error and its own line in the audit log.

    CreateTopics [a, b, c] ─▶ the changes run side by side ─▶ each: allowed? ─▶ changed, or its error ─▶ audit log

Invariant: the audit log has the outcome of each resource, since one request may succeed for some and fail for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from gateway.access.authorization import acting
from gateway.access.guard import AccessGuard
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
    free = asyncio.Semaphore(CHANGES_MAX)

    async def run(item: _Item) -> _Changed | TidelogError:
        async with free:
            return await _audited(guard, call, lambda: _in_time(change(item), timeout_ms), validate_only=validate_only)

    if call.authorized is not None:
        call.authorized.note_logged()  # each change is a call of its own in the audit log
    return await asyncio.gather(*(run(item) for item in items))


async def _audited(
    guard: AccessGuard | None, call: KafkaCall, change: Callable[[], Awaitable[_Changed]], *, validate_only: bool
) -> _Changed | TidelogError:
    asked = call.authorized
    if guard is None or asked is None:
        try:
            return await change()
        except TidelogError as error:
            return error.with_traceback(None)
    part = asked.part()
    part.validate_only = validate_only
    failure = "INTERNAL"
    try:
        with acting(part):
            changed = await change()
        failure = ""
    except TidelogError as error:
        failure = error.code
        return error.with_traceback(None)
    finally:
        guard.ended(part, failure)
    return changed


async def _in_time(changing: Awaitable[_Changed], timeout_ms: int) -> _Changed:
    try:
        async with asyncio.timeout(timeout_ms / 1000 if timeout_ms > 0 else None):
            return await changing
    except TimeoutError:
        raise OutcomeUnknown(
            f"the change is not confirmed after {timeout_ms} ms, the time that the client waits", hint="Look before you repeat it."
        ) from None
