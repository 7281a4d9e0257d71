"""Threads in which row groups of Parquet become record batches: few, and behind everybody else.

    event loop     ──answers, tail──▶ ──▶ ──▶        goes first, and finds a core
    decoding       ─ group ─ group ─ group ─▶        half of the cores at most, nicer by 5, the interpreter's lock hardly ever

A row group is 50 ms of a core. Where as many are decoded at a time as there are readers, those at the tail wait behind all of them:
for a core, and for the interpreter's lock.

Invariant: work is begun in order of arrival, and not at all where nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

NICE: Final = 5
"""What is added to the process's own niceness: a third of the share of others where cores are short. With much more, a row group
would take longer than a read may on a machine that is full."""

_Made = TypeVar("_Made")
Outlived = Callable[[], Callable[[], None]]
"""Called where a thread is left at work; what it answers is called when the thread has ended."""


def threads_max(cores: int) -> int:
    return max(1, cores // 2)


class DecodingThreads:
    """They are started when there is work, and end when nobody has this object any more."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(threads_max(_cores()), thread_name_prefix="decoding", initializer=_step_back)

    async def run(self, work: Callable[[], _Made], *, outlived: Outlived | None = None) -> _Made:
        """What `work` makes in a thread, or raises. Who gives up before its turn holds nothing of it any more.

        Who gives up later leaves a thread at work, with all that it holds, and tells by `outlived`, on the event loop.
        """
        loop = asyncio.get_running_loop()
        waiting = [work]
        ended = False
        on_ended: list[Callable[[], None]] = []

        def begin() -> _Made:
            begun = waiting.pop()
            try:
                return begun()
            finally:
                del begun
                with suppress(RuntimeError):  # the loop has ended, and with it whoever counted
                    loop.call_soon_threadsafe(end)

        def end() -> None:
            nonlocal ended
            ended = True
            for told in on_ended:
                told()

        try:
            return await loop.run_in_executor(self._threads, begin)
        except asyncio.CancelledError:
            if not _taken(waiting) and not ended and outlived is not None:
                on_ended.append(outlived())
            raise


def _taken(waiting: list[Callable[[], _Made]]) -> bool:
    """Whether it was still there. The threads' queue keeps what was cancelled until it comes to it, with a row group's bytes."""
    try:
        waiting.pop()
    except IndexError:
        return False
    return True


def _cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _step_back() -> None:
    if sys.platform == "linux":  # elsewhere it would be the whole process: only here each thread has a niceness of its own
        with suppress(OSError):  # a sandbox may forbid it: history is decoded all the same, where an error here would end the pool
            os.nice(NICE)
