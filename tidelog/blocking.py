"""The blocking twin: the same client, driven from a background thread with an event loop of its own.

    with tidelog.connect_sync("http://localhost:8080") as log:
        log.produce("orders", {"id": 7}, key="c-7")
        for record in log.consume("orders", follow=False):
            ...

Nothing is written twice: each method is made from its asynchronous counterpart, signature and documentation included. It may be
used from several threads at once. A call costs a switch of threads (some 50 µs): for many records use `produce_many`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from metadata.errors import Rejected, TidelogError
from tidelog.client import Client, connect
from tidelog.consumer import Consumer
from tidelog.outcomes import Outcomes
from tidelog.producer import Delivery
from tidelog.records import Ack, Record
from tidelog.settings import SettingChanges
from tidelog.topics import Topics

_P = ParamSpec("_P")
_Answer = TypeVar("_Answer")
_Twin = TypeVar("_Twin")


def connect_sync(*addresses: str, **settings: Unpack[SettingChanges]) -> BlockingClient:
    """As `connect`, for code without an event loop: `with connect_sync(…) as log:`."""
    return BlockingClient(connect(*addresses, **settings))


class LeftByError(Exception):
    """What the client sees in the thread, when the block around its twin was left by an error."""


class ClientThread:
    """Enters a client in a thread, and leaves it there. Invariant: no call waits for a loop that has ended."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._entered: Future[asyncio.AbstractEventLoop] = Future()
        self._leave: asyncio.Future[None]
        self._life: asyncio.Task[None]
        self._left: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="tidelog client", daemon=True)
        self._lock = threading.Lock()
        """Held while a call is handed over, and while it is decided that none is taken any more."""
        self._calls: set[Future[Any]] = set()

    def enter(self) -> None:
        """Raises what the client meets."""
        if self._thread.ident is not None:
            raise Rejected("a client is entered once", hint="Call connect_sync() again for another one.")
        self._thread.start()
        self._entered.result()

    def leave(self, error: BaseException | None) -> None:
        """Flushes, ends the thread, and raises what the flush met. An interrupt ends the flush."""
        self._tell(lambda: self._leave_with(error))
        try:
            self._thread.join()
        except BaseException:
            self._tell(lambda: self._life.cancel())
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

    def _tell(self, order: Callable[[], object]) -> None:
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
            told = self._left if self._entered.done() else self._entered
            if failure is not None:
                told.set_exception(failure)
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


def _blocking(method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _Answer]]) -> Callable[Concatenate[Any, _P], _Answer]:
    """The method's twin, for a class with `_thread` and `_original`."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
        return self._thread.wait_for(lambda: method(self._original, *args, **kwargs))  # type: ignore[no-any-return]

    functools.update_wrapper(call, method)
    return call


def _wrapping(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _Answer]], twin: Callable[[ClientThread, _Answer], _Twin]
) -> Callable[Concatenate[Any, _P], _Twin]:
    """As `_blocking`, for an answer that has a twin of its own."""
    blocking = _blocking(method)

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _Twin:
        return twin(self._thread, blocking(self, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class BlockingDelivery:
    """The handle of one record that was sent."""

    def __init__(self, thread: ClientThread, original: Delivery) -> None:
        self._thread = thread
        self._original = original

    @property
    def done(self) -> bool:
        return self._original.done

    def result(self) -> Ack:
        """Waits for the record's Ack, or raises why it failed."""
        return self._thread.wait_for(lambda: self._original)


class BlockingConsumer:
    """Iterate it. Leaving the loop, or its own `with`, ends the reading."""

    def __init__(self, thread: ClientThread, original: Consumer) -> None:
        self._thread = thread
        self._original = original
        self.topic = original.topic
        self.positions = original.positions

    chunk = _blocking(Consumer.chunk)

    @property
    def errors(self) -> dict[int, TidelogError]:
        """By partition: why it is not read any further, while others are. It was logged as well."""
        return self._original.errors

    def __iter__(self) -> Iterator[Record]:
        try:
            while records := self.chunk():
                for record in records:
                    self.positions[record.partition] = record.offset + 1
                    yield record
                del records  # a chunk may be large: no two of them at once
        finally:
            self._original.close_soon()  # a forgotten loop ends here too, in whatever thread: it must not wait

    def close(self) -> None:
        """Stops reading ahead. No harm in calling it twice."""
        if self._thread.is_running:
            self._thread.wait_for(self._original.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class BlockingTopics:
    def __init__(self, thread: ClientThread, original: Topics) -> None:
        self._thread = thread
        self._original = original

    create = _blocking(Topics.create)
    describe = _blocking(Topics.describe)
    alter = _blocking(Topics.alter)
    add_partitions = _blocking(Topics.add_partitions)
    delete = _blocking(Topics.delete)
    list = _blocking(Topics.list)


def _in_loop(method: Callable[Concatenate[Any, _P], _Answer]) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _Answer]]:
    """A method that does not wait, but belongs into the client's thread."""

    async def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
        return method(self, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class BlockingClient:
    """Use it as `with connect_sync(…) as log:`. Errors are those of `tidelog.errors`."""

    def __init__(self, original: Client) -> None:
        self._original = original
        self._thread = ClientThread(original)
        self.topics = BlockingTopics(self._thread, original.topics)

    def __enter__(self) -> Self:
        self._thread.enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._thread.leave(error)

    produce = _blocking(Client.produce)
    send = _wrapping(Client.send, BlockingDelivery)
    produce_many = _blocking(Client.produce_many)
    flush = _blocking(Client.flush)
    consume = _wrapping(_in_loop(Client.consume), BlockingConsumer)

    @property
    def outcomes(self) -> Outcomes:
        """How many of the records that were sent are acknowledged, failed for certain, or unknown. Final once the block is left."""
        return self._original.outcomes

    cluster = _blocking(Client.cluster)
    serves = _blocking(Client.serves)
    drain_broker = _blocking(Client.drain_broker)
    undrain_broker = _blocking(Client.undrain_broker)
    offsets = _blocking(Client.offsets)
    offset_for_leader_epoch = _blocking(Client.offset_for_leader_epoch)
    explain = _blocking(Client.explain)
