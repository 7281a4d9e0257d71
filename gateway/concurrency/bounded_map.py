"""Runs the same work for each of many items, a few at a time.

Invariant: there are at most `at_once` tasks, however many items a client has named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from segments.concurrency import gather_all

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


async def map_bounded(work: Callable[[_Item], Awaitable[_Made]], items: Sequence[_Item], *, at_once: int) -> list[_Made]:
    """Returns the results of `work` in the order of the items. The first error ends the others."""
    made: dict[int, _Made] = {}
    rest = iter(enumerate(items))

    async def run() -> None:
        for at, item in rest:
            made[at] = await work(item)

    if len(items) == 1:
        await run()
    else:
        await gather_all(run() for _ in range(min(at_once, len(items))))
    return [made[at] for at in range(len(items))]
