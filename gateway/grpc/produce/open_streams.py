"""Tracks the open produce streams of the gRPC listener and their last messages, so that a stop can wait until producers have left.

    other brokers lead ─▶ later messages are forwarded ─▶ the answers name the leaders ─▶ the SDK moves there, once all is answered,
                                                                                          and ends the stream ─▶ the listener closes

A stream that is cut loses the messages that its client had sent and the broker had not read. The client cannot tell these from
messages that were written and not answered, so it must look up the leaders and send all of them again. Invariant: a stream counts
while it is open, and counts as in use for a given time after its last message.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ProducerStreams:
    """The open produce streams of one gRPC listener, each with the time of its last message."""

    def __init__(self) -> None:
        self._heard_s: dict[object, float] = {}
        self._ended = asyncio.Event()

    @contextmanager
    def open(self) -> Iterator[Callable[[], None]]:
        """Counts a stream as open while the body runs. The body calls the yielded function for each message."""
        stream, now_s = object(), asyncio.get_running_loop().time

        def heard() -> None:
            self._heard_s[stream] = now_s()

        heard()
        try:
            yield heard
        finally:
            del self._heard_s[stream]
            self._ended.set()

    async def until_left(self, *, in_use_s: float, timeout_s: float) -> bool:
        """Waits until no open stream had a message in the last `in_use_s`. Returns False if that takes longer than `timeout_s`."""
        now_s = asyncio.get_running_loop().time
        ends_s = now_s() + timeout_s
        while (idle_at_s := max(self._heard_s.values(), default=-math.inf) + in_use_s) > now_s():
            if now_s() >= ends_s:
                return False
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(idle_at_s, ends_s)):
                    await self._ended.wait()
        return True
