"""Runs a blocking client's event loop in a thread, and wraps asynchronous methods as blocking ones.

Nothing is written twice: each method is made from its counterpart, signature and documentation included.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from metadata.errors import Rejected
from tidelog.client import Client

_P = ParamSpec("_P")
_Answer = TypeVar("_Answer")
_Twin = TypeVar("_Twin")


class LeftByError(Exception):
    """Tells the client in the thread that the block around its twin ended with an error."""


class ClientThread:
    """Enters a client in a thread, and leaves it there. Invariant: no call waits for a loop that has ended."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._entered: Future[asyncio.AbstractEventLoop] = Future()
        self._leave: asyncio.Future[None]
        self._life: asyncio.Task[None]
        self._left: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="tidelog client", daemon=True)
        # Held while a call is handed over, and while it is decided that none is taken any more.
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()

    def enter(self) -> None:
        """Raises what the client meets."""
        if self._thread.ident is not None:
            raise Rejected("a client is entered once", hint="Call connect_sync() again for another one.")
        self._thread.start()
        self._entered.result()

    def leave(self, error: BaseException | None) -> None:
        """Flushes, ends the thread, and raises what the flush met. An interrupt ends the flush."""
        self._post(lambda: self._leave_with(error))
        try:
            self._thread.join()
        except BaseException:
            self._post(lambda: self._life.cancel())
            self._thread.join()
            raise
        self._left.result()

    def wait_for(self, start: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Runs it over there. An interrupt of the caller cancels it. Raises Rejected where the client is not there (any more)."""

        async def run() -> _Answer:
            return await start()

        if threading.current_thread() is self._thread:
            raise Rejected("the client's own thread can't wait for itself", hint="Hand the call on to another thread.")
        with self._lock:
            if not self.is_running:
                what = "closed" if self._left.done() else "not connected"
                raise Rejected(f"the client is {what}", hint="Use it within `with tidelog.connect_sync(…) as log:`.")
            answer = asyncio.run_coroutine_threadsafe(run(), self._entered.result())
            self._calls.add(answer)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise Rejected("the client was closed before the call had its answer") from None
        except BaseException:
            answer.cancel()
            raise
        finally:
            self._calls.discard(answer)

    @property
    def is_running(self) -> bool:
        return self._entered.done() and self._entered.exception() is None and not self._left.done()

    def _post(self, order: Callable[[], object]) -> None:
        """Runs it in the loop, unless that has ended by itself."""
        with self._lock:
            if self.is_running:
                self._entered.result().call_soon_threadsafe(order)

    def _leave_with(self, error: BaseException | None) -> None:
        if self._leave.done():
            return
        if error is None:
            self._leave.set_result(None)
        else:
            self._leave.set_exception(LeftByError())

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001  # it belongs to the thread that waits for it
            failure = error
        with self._lock:
            entered_or_left = self._left if self._entered.done() else self._entered
            if failure is not None:
                entered_or_left.set_exception(failure)
            else:
                self._left.set_result(None)
        for call in list(self._calls):
            call.cancel()  # handed over to a loop that did not get to it any more

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        self._leave = loop.create_future()
        self._life = asyncio.current_task()  # type: ignore[assignment]  # a coroutine that asyncio.run runs has one
        try:
            async with self._client:
                self._entered.set_result(loop)
                await self._leave
        except LeftByError:
            pass


def blocking(method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _Answer]]) -> Callable[Concatenate[Any, _P], _Answer]:
    """Wraps a method as a blocking one, for a class with `_thread` and `_original`."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
        return self._thread.wait_for(lambda: method(self._original, *args, **kwargs))  # type: ignore[no-any-return]  # `self` is any class that has twins

    functools.update_wrapper(call, method)
    return call


def wrapping(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _Answer]], twin: Callable[[ClientThread, _Answer], _Twin]
) -> Callable[Concatenate[Any, _P], _Twin]:
    """Wraps a method like `blocking`, and turns its answer into the answer's own twin."""
    call_over_there = blocking(method)

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _Twin:
        return twin(self._thread, call_over_there(self, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def in_loop(method: Callable[Concatenate[Any, _P], _Answer]) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _Answer]]:
    """Wraps a method that does not wait, but must run in the client's thread."""

    async def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
        return method(self, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call
