"""Gives blocking code access to the bucket: Spark's driver and executors call from threads of their own.

One thread runs the store's event loop. The code that opens it closes it; closing cancels the calls in flight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import Thread
from types import TracebackType
from typing import Any, TypeVar

from segments.object_store.interface import ObjectStore
from segments.object_store.open import open_store
from segments.object_store.store_clock import StoreClock

T = TypeVar("T")
Work = Callable[[ObjectStore], Coroutine[Any, Any, T]]


class BucketThread:
    """A bucket whose store runs on an event loop in a thread of its own. Use it as a context manager."""

    def __init__(self, url: str) -> None:
        """Raises InvalidArgument and Denied as `open_store` does."""
        self.clock = StoreClock(lambda: time.time_ns() // 1_000_000)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="tidelog-bucket", daemon=True)
        self._thread.start()
        try:
            self._store = asyncio.run_coroutine_threadsafe(open_store(url, clock=self.clock), self._loop).result()
        except BaseException:
            self._end()
            raise

    def start(self, work: Work[T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work(self._store), self._loop)

    def run(self, work: Work[T]) -> T:
        """Runs `work` on the store's loop and returns its result, or raises what it raises."""
        return self.start(work).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_and_close(), self._loop).result()
        self._end()

    async def _cancel_and_close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._store.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> BucketThread:
        return self

    def __exit__(self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
