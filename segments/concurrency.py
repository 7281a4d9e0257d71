"""Works that run beside each other for one answer: all of their results, or the first error, with no task left behind.

Not by a TaskGroup: until Python 3.13 it lets the errors of its tasks go before a cancellation of its owner, which is lost where the
owner goes on behind the error; nor can the owner look whether it was cancelled, since the group cancels it, too, and may leave that
counted in `Task.cancelling()`. Nor by asyncio.gather, which hands a cancellation to its works, and raises what they make of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def gather_all(works: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Returns the results, in order. The first failure cancels the others and is raised itself, without a group around it.

    A cancellation of the caller goes before any error. All have ended when it returns, or raises.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in failed or tasks]
