"""Streams of producers that are open at the gRPC door, and when each was heard last: a stop waits until those in use were left.

    others lead ─▶ what still comes is forwarded ─▶ the answers tell who leads ─▶ the SDK goes there, once nothing is unanswered,
                                                                                   and ends the stream ─▶ the door closes

A stream that is cut takes with it what its client had sent and nobody had read yet. The client can't tell that from what was
written and not answered: it has to ask who leads, and to send all of it again. Invariant: a stream counts while it is open, and
as in use for so long after its last message.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ProducerStreams:
    def __init__(self) -> None:
        self._heard_s: dict[object, float] = {}
        self._ended = asyncio.Event()

    @contextmanager
    def open(self) -> Iterator[Callable[[], None]]:
        """While the body runs, the stream is open. What is yielded is called with each message of it."""
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
        """Until none is open that was heard in the last `in_use_s`; False where that takes too long."""
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
