"""Owns a client's background tasks: a TaskGroup ends them when the client is left.

body ends, or raises      every task is cancelled and awaited; what the body raised goes on as it was
a task fails (our bug)    the body is cancelled, and the task's own error comes out instead, without an ExceptionGroup around it
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from segments import concurrency

_Answer = TypeVar("_Answer")


class ClientTasks:
    """Owns the background tasks of a client."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = self._group.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        try:
            if isinstance(error, asyncio.CancelledError):
                await self._group.__aexit__(kind, error, traceback)
            else:  # a TaskGroup would wrap the body's error in an ExceptionGroup
                await self._group.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            raise first_error(group) from None


async def first_completed(*works: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Runs them beside each other until one ends, with its answer or its error; the others are cancelled and awaited.

    Not by a TaskGroup: that lets the errors of its tasks go before a cancellation of its owner, which is lost (until Python 3.13).
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(task for task in tasks if task in done).result()


async def gather_all(works: Iterable[Coroutine[Any, Any, _Answer]], *, at_once: int) -> list[_Answer]:
    """Returns the answers in order, with bounded concurrency. Raises the first error; the others are cancelled and awaited."""
    slots, all_works = asyncio.Semaphore(at_once), list(works)

    async def in_turn(work: Coroutine[Any, Any, _Answer]) -> _Answer:
        async with slots:
            return await work

    try:
        return await concurrency.gather_all(map(in_turn, all_works))
    finally:
        for work in all_works:
            work.close()  # where it did not have its turn


def first_error(group: BaseExceptionGroup[Any]) -> Any:
    """Returns the first error of a group, however deep it lies."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error
