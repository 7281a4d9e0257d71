"""An event loop under virtual time: the same seed gives the same run, and an hour costs as long as its callbacks take.

Nothing here waits, opens a socket or starts a thread. When nothing is ready, the clock jumps to the next timer; when there
is no timer either, the run is stuck, and says where every task stands.

    clock       `loop.time()` in seconds from 0; `loop.now_ms()` is the wall clock that goes with it
    processes   a context variable names the process that a callback belongs to; tasks and timers inherit it. A frozen
                process runs nothing: what becomes ready is kept, and runs in that order once it thaws (SIGSTOP, SIGCONT).
                A process that is frozen and never thawed died as under SIGKILL: not one `finally` of it runs.
    order       tasks and futures hash by their number and not by their address, so that sets of them (a TaskGroup's, those
                of asyncio.wait) iterate alike in every run. Sets of strings depend on PYTHONHASHSEED. Timers of one instant
                fire in the order in which they were set.

Whether shuffling is sound: asyncio calls ready callbacks in the order in which they were scheduled, and promises so. With
`shuffled`, only neighbours in the ready queue that are steps of different tasks change places. Plain callbacks stay where
they are (asyncio's own code relies on that), and no task has two steps in the queue, so each task sees its own events in
order. That is more than asyncio does: code which needs tasks that were woken in one pass to run in that order is right under
asyncio and fails here. It is wanted: in production the order of such wake-ups is an accident of timing.

Invariant: a run depends on `main`, `seed` and the bytes that they read, and on nothing else in this process or machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import itertools
import random
import types
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple
from unittest.mock import patch

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# The wall clock at virtual second 0 (November 2023).
EPOCH_MS = 1_700_000_000_000
# Passes over the ready queue during which the clock did not move: more is a loop that waits for nothing.
PASSES_AT_ONE_INSTANT_MAX = 100_000

_process: ContextVar[str] = ContextVar("process", default="")


class Stuck(Exception):
    """Nothing is ready and no timer is set, or the clock no longer moves. The message names where each task waits."""


def run(main: Coroutine[Any, Any, T], *, seed: int = 0, shuffled: bool = False) -> T:
    """Runs `main` to its end under a new loop, then cancels whatever it left behind, frozen processes included.

    Raises what `main` raises, Stuck, or the first error that reached the loop's exception handler (a callback or a task
    whose failure was not awaited).
    """
    loop = VirtualLoop(seed=seed, shuffled=shuffled)
    collecting = gc.isenabled()
    gc.disable()  # finalisers of cycles would run whenever the collector happens to start
    try:
        asyncio.set_event_loop(loop)
        with _known(loop):
            result = loop.run_until_complete(main)
            if loop.unhandled:
                raise loop.unhandled[0]
            return result
    finally:
        with _known(loop):
            loop.sweep()
        asyncio.set_event_loop(None)
        loop.close()
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _known(loop: VirtualLoop) -> Iterator[None]:
    """To who asks asyncio for the running loop, or sleeps: half a million times in a long world, and asyncio asks the kernel for
    the process's number each time.
    """

    async def sleep(delay: float, result: T | None = None) -> T | None:
        """As asyncio's does it."""
        if delay <= 0:
            await _pass()
            return result
        woken: asyncio.Future[T | None] = _NumberedFuture(loop=loop)
        timer = loop.call_later(delay, _answer, woken, result)
        try:
            return await woken
        except BaseException:
            timer.cancel()
            raise

    def running() -> VirtualLoop:
        return loop

    with (
        patch.object(asyncio, "sleep", sleep),
        patch.object(asyncio, "get_running_loop", running),
        patch.object(events, "get_running_loop", running),
    ):
        yield


@types.coroutine
def _pass() -> Generator[None, None, None]:
    """Until the next pass."""
    yield


def virtual_loop() -> VirtualLoop:
    """The running loop, which must be a virtual one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "this runs under virtual time only"
    return loop


class VirtualLoop(asyncio.BaseEventLoop):
    _ready: deque[_Handle]
    _stopping: bool

    def __init__(self, *, seed: int, shuffled: bool) -> None:
        super().__init__()
        self._now_s = 0.0
        self._random = random.Random(seed) if shuffled else None
        self.numbers = itertools.count(1)
        """Of tasks and futures, in the order in which somebody first asked for their hash."""
        self._timers: list[tuple[float, int, _Handle]] = []
        """A heap. Timers of one instant are called in the order in which they were set."""
        self._timer_numbers = itertools.count()
        self._frozen: dict[str, list[_Handle]] = {}
        self._sweeping = False
        self.unhandled: list[BaseException] = []
        self.set_exception_handler(self._keep_unhandled)

    def time(self) -> float:
        return self._now_s

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._now_s * 1000)

    # Processes

    def context_of(self, process: str) -> Context:
        """A context for `create_task(…, context=…)`: the task and all that it starts belong to `process`."""
        context = copy_context()
        context.run(_process.set, process)
        return context

    def freeze(self, process: str) -> None:
        self._frozen.setdefault(process, [])

    def thaw(self, process: str) -> None:
        self._ready.extend(self._frozen.pop(process, ()))

    def running_in(self) -> list[tuple[str, asyncio.Task[Any]]]:
        """All tasks that are not done, in the order of their making, each with the process that it belongs to."""
        tasks = [task for task in sorted(asyncio.all_tasks(self), key=hash) if isinstance(task, _NumberedTask)]
        return [(task.process, task) for task in tasks]

    # The passes

    def _run_once(self) -> None:
        """Pass after pass, until somebody stops the loop: more than asyncio means by once, which costs a call for each pass."""
        ready, timers, frozen = self._ready, self._timers, self._frozen
        passes_at_this_instant = 0
        while True:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if ready or self._stopping:
                passes_at_this_instant += 1
                if passes_at_this_instant > PASSES_AT_ONE_INSTANT_MAX:
                    raise Stuck(f"the clock stands at {self._now_s:.3f} s, and yet there is always something to run{self._where()}")
            elif timers:
                self._now_s = max(self._now_s, timers[0][0])
                passes_at_this_instant = 0
            else:
                raise Stuck(f"deadlock at {self._now_s:.3f} s: nothing is ready, and no timer is set{self._where()}")
            while timers and timers[0][0] <= self._now_s:
                ready.append(heapq.heappop(timers)[2])
            if self._random is not None and len(ready) > 1:
                self._shuffle(self._random)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                if frozen and (kept := frozen.get(handle._context.get(_process, ""))) is not None:
                    kept.append(handle)
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  # as asyncio does: a callback that fails stops no other
                    self.call_exception_handler({"message": f"{handle._callback} failed", "exception": error})
            if self._stopping:
                return

    def _shuffle(self, chance: random.Random) -> None:
        shuffled: list[_Handle] = []
        steps: list[_Handle] = []
        for handle in self._ready:
            if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task):
                steps.append(handle)
                continue
            chance.shuffle(steps)
            shuffled += steps
            shuffled.append(handle)
            steps.clear()
        chance.shuffle(steps)
        self._ready.clear()
        self._ready.extend(shuffled)
        self._ready.extend(steps)

    # What asyncio asks of a loop

    # These stand in for those of BaseEventLoop, which do the same and check much that can't go wrong here: a good part of a run.

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        handle = _Handle(callback, args, copy_context() if context is None else context, self._now_s)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(callback, args, copy_context() if context is None else context, when)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when = self._now_s + delay
        handle = _Handle(callback, args, copy_context() if context is None else context, when)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), handle))
        return handle

    get_debug = staticmethod(bool)  # no; every future asks, and a function of Python's costs more

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = _NumberedTask(coro, loop=self, name="" if name is None else str(name), context=context)
        task.process = _process.get() if context is None else context.get(_process, "")
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Calls `func` here and now. The caller still has to await the answer, as it does with a thread."""
        answer: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001  # whatever it is, the awaiting task gets it
            self.call_soon(_answer_with_error, answer, error)
        else:
            self.call_soon(_answer, answer, result)
        return answer

    def _write_to_self(self) -> None:
        """call_soon_threadsafe wakes the selector with it; there is neither a selector nor a second thread."""

    def _keep_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._sweeping:
            self.unhandled.append(context.get("exception") or RuntimeError(context["message"]))

    def sweep(self) -> None:
        """Cancels every task until none is left. What they still do or raise no longer counts."""
        self._sweeping = True
        for process in list(self._frozen):
            self.thaw(process)
        for _ in range(10):
            left = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.wait(left, timeout=3600))
        raise Stuck(f"tasks go on after ten cancellations{self._where()}")

    def _where(self) -> str:
        lines = []
        for task in sorted(asyncio.all_tasks(self), key=hash):
            frames = task.get_stack(limit=1)
            location = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "not started"
            lines.append(f"\n  {task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')}) at {location}")
        return "".join(lines)


class _Handle(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: Sequence[Any], context: Context, when: float) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._when = when

    def cancel(self) -> None:
        """What it would have called is let go, for it may be long until its time comes."""
        self._cancelled = True
        self._callback = _nothing
        self._args = ()


class _NumberedTask(asyncio.Task[T]):
    process = ""
    _number: int | None = None

    def __hash__(self) -> int:
        if self._number is None:
            self._number = next(_loop_of(self).numbers)
        return self._number


class _NumberedFuture(asyncio.Future[T]):
    _number: int | None = None

    def __hash__(self) -> int:
        if self._number is None:
            self._number = next(_loop_of(self).numbers)
        return self._number


def _loop_of(future: asyncio.Future[Any]) -> VirtualLoop:
    loop = future.get_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def _nothing() -> None:
    """A cancelled callback."""


def _answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _answer_with_error(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
