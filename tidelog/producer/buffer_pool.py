"""Grants room in the producer's buffer to waiting senders, in the order of their arrival.

Invariant: `buffered_bytes` of the accumulator never exceeds `bytes_max`, and no sender is overtaken: small records do not starve
a large one. A sender that gives up leaves the queue at once, without room.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from copy import copy

from metadata.errors import Throttled, TidelogError
from tidelog.producer.accumulator import RecordAccumulator


class BufferPool:
    """Bounds the producer's buffer; senders wait here for room."""

    def __init__(self, accumulator: RecordAccumulator, *, bytes_max: int, timeout_s: float) -> None:
        self.bytes_max = bytes_max
        # Futures, with the bytes that each waits for. While there are any, every new sender waits, too.
        self.waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self._accumulator = accumulator
        self._timeout_s = timeout_s

    async def wait(self, size: int) -> None:
        """Takes `size` bytes, at most `bytes_max`, when it is their turn. Raises Throttled, or what `close` was called with."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiting[waiter] = size
        self.admit()
        try:
            async with asyncio.timeout(self._timeout_s):
                await waiter
        except BaseException as error:
            if self.waiting.pop(waiter, None) is None and waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._accumulator.buffered_bytes -= size
            self.admit()
            if isinstance(error, TimeoutError):
                raise Throttled(
                    f"the buffer ({self.bytes_max} bytes) stayed full for {1000 * self._timeout_s:g} ms",
                    hint="Send slower, or raise buffer_bytes_max.",
                ) from None
            raise

    def admit(self) -> None:
        """Gives room to those who wait, as far as there is any."""
        while self.waiting:
            waiter, size = next(iter(self.waiting.items()))
            if self._accumulator.buffered_bytes + size > self.bytes_max:
                return
            del self.waiting[waiter]
            if not waiter.done():
                self._accumulator.buffered_bytes += size
                waiter.set_result(None)

    def close(self, error: TidelogError) -> None:
        """Refuses room to all waiting senders with the error."""
        waiting, self.waiting = self.waiting, OrderedDict()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(copy(error))
