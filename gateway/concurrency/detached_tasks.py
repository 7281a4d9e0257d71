"""Runs work that continues when its caller disconnects: work stopped half-way would leave an unknown state.

Invariant: every waiting caller receives the outcome, also if the owner stops before the work has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from metadata.errors import Stopping, TidelogError

T = TypeVar("T")


def _stopping() -> TidelogError:
    return Stopping("the broker is shutting down")


class DetachedTasks:
    """Starts work that outlives its caller. Its owner sets `tasks` while it runs."""

    def __init__(self) -> None:
        self.tasks: asyncio.TaskGroup | None = None

    async def done(self, work: Coroutine[None, None, T], *, stopped: Callable[[], TidelogError] = _stopping) -> T:
        """Returns the result of the work, or raises its error. Raises Stopping if the owner does not run, and the error of
        `stopped` if it stops meanwhile."""
        outcome_future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.begin(work, outcome_future, stopped=stopped)
        return await outcome_future

    def begin(
        self, work: Coroutine[None, None, T], outcome_future: asyncio.Future[T], *, stopped: Callable[[], TidelogError] = _stopping
    ) -> None:
        """Starts the work; its outcome resolves the future."""
        if self.tasks is None:
            work.close()
            raise _stopping()

        async def carry_out() -> None:
            try:
                outcome = await work
            except TidelogError as error:
                _refuse(outcome_future, error)
            else:
                if not outcome_future.done():
                    outcome_future.set_result(outcome)

        def ended(_: asyncio.Task[None]) -> None:
            work.close()  # if the owner stopped before the work began
            _refuse(outcome_future, stopped())

        self.tasks.create_task(carry_out()).add_done_callback(ended)

    def start_background(self, work: Coroutine[None, None, None], name: str) -> None:
        """Starts work without a waiter; drops it if the owner does not run."""
        if self.tasks is None:
            work.close()
        else:
            self.tasks.create_task(work, name=name)


def _refuse(outcome_future: asyncio.Future[T], error: TidelogError) -> None:
    if not outcome_future.done():
        outcome_future.set_exception(error)
        outcome_future.exception()  # marks the error as retrieved: there may be no waiter left
