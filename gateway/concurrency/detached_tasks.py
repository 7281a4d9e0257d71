"""Work that goes on where who asked for it hangs up: half of it would leave a state that nobody knows.

Invariant: whoever still waits is told how it ended, also where the owner stops before the work has begun.
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
    """Its owner sets `tasks` while it runs."""

    def __init__(self) -> None:
        self.tasks: asyncio.TaskGroup | None = None

    async def done(self, work: Coroutine[None, None, T], *, stopped: Callable[[], TidelogError] = _stopping) -> T:
        """What it answers, or raises; Stopping where its owner does not run, and what `stopped` says where it stops meanwhile."""
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.begin(work, told, stopped=stopped)
        return await told

    def begin(
        self, work: Coroutine[None, None, T], told: asyncio.Future[T], *, stopped: Callable[[], TidelogError] = _stopping
    ) -> None:
        """Its outcome is told to whoever still waits for it."""
        if self.tasks is None:
            work.close()
            raise _stopping()

        async def carry_out() -> None:
            try:
                outcome = await work
            except TidelogError as error:
                _refuse(told, error)
            else:
                if not told.done():
                    told.set_result(outcome)

        def ended(_: asyncio.Task[None]) -> None:
            work.close()  # where the owner stopped before it began
            _refuse(told, stopped())

        self.tasks.create_task(carry_out()).add_done_callback(ended)

    def start_background(self, work: Coroutine[None, None, None], name: str) -> None:
        """Nobody waits for it. It is left out where the owner does not run."""
        if self.tasks is None:
            work.close()
        else:
            self.tasks.create_task(work, name=name)


def _refuse(told: asyncio.Future[T], error: TidelogError) -> None:
    if not told.done():
        told.set_exception(error)
        told.exception()  # where nobody waits any more
