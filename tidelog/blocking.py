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
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from metadata.errors import Rejected
from tidelog.client import Client, connect
from tidelog.consumer import Consumer
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
    """Enters a client in a thread, and leaves it there."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._entered: Future[asyncio.AbstractEventLoop] = Future()
        self._leave: asyncio.Future[None]
        self._left: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="tidelog client", daemon=True)

    def enter(self) -> None:
        self._thread.start()
        self._entered.result()

    def leave(self, error: BaseException | None) -> None:
        """Flushes, ends the thread, and raises what the flush met."""
        loop = self._entered.result()
        if error is None:
            loop.call_soon_threadsafe(self._leave.set_result, None)
        else:
            loop.call_soon_threadsafe(self._leave.set_exception, LeftByError())
        self._thread.join()
        self._left.result()

    @property
    def is_running(self) -> bool:
        return self._entered.done() and not self._left.done()

    def wait_for(self, start: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Runs it over there. An interrupt of the caller cancels it."""
        if not self.is_running:
            raise Rejected("the client is not connected", hint="Use it as `with tidelog.connect_sync(…) as log:`.")

        async def run() -> _Answer:
            return await start()

        answer = asyncio.run_coroutine_threadsafe(run(), self._entered.result())
        try:
            return answer.result()
        except BaseException:
            answer.cancel()
            raise

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001  # it belongs to the thread that waits for it
            (self._left if self._entered.done() else self._entered).set_exception(error)
        else:
            self._left.set_result(None)

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        self._leave = loop.create_future()
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
    """Iterate it. Leaving the loop ends the reading."""

    def __init__(self, thread: ClientThread, original: Consumer) -> None:
        self._thread = thread
        self._original = original
        self.topic = original.topic
        self.positions = original.positions

    chunk = _blocking(Consumer.chunk)

    def __iter__(self) -> Iterator[Record]:
        try:
            while records := self.chunk():
                for record in records:
                    self.positions[record.partition] = record.offset + 1
                    yield record
        finally:
            self.close()

    def close(self) -> None:
        if self._thread.is_running:
            self._thread.wait_for(self._original.aclose)


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
    cluster = _blocking(Client.cluster)
    offsets = _blocking(Client.offsets)
    explain = _blocking(Client.explain)
