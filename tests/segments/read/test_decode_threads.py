"""Decoding steps back: few threads, behind all others, in order of arrival."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from segments.read.row_group_loader import NICE, DecodeThreads, threads_max


def test_half_of_the_cores_are_left_to_others_and_one_thread_there_is() -> None:
    assert [threads_max(cores) for cores in (1, 2, 3, 4, 16)] == [1, 1, 1, 2, 8]


def test_work_is_done_in_order_of_arrival_and_who_gave_up_before_its_turn_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segments.read.row_group_loader._cores", lambda: 1)
    may_end = threading.Event()
    begun: list[str] = []

    def work(name: str) -> Callable[[], str]:
        def worked() -> str:
            begun.append(name)
            assert may_end.wait(60)
            return name

        return worked

    async def main() -> None:
        first, leaving, *others = [asyncio.ensure_future(decoding.run(work(name))) for name in "abcd"]
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait((leaving,))
        may_end.set()
        assert await asyncio.gather(first, *others) == ["a", "c", "d"]

    decoding = DecodeThreads()
    asyncio.run(main())
    assert begun == ["a", "c", "d"]


def test_queued_work_is_released_when_its_caller_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Body:
        pass

    monkeypatch.setattr("segments.read.row_group_loader._cores", lambda: 1)
    may_end = threading.Event()

    def work(body: Body) -> Callable[[], Body]:
        return lambda: body

    async def main() -> None:
        busy = asyncio.ensure_future(decoding.run(lambda: may_end.wait(60)))
        await asyncio.sleep(0)
        body = Body()
        held = weakref.ref(body)
        leaving = asyncio.ensure_future(decoding.run(work(body)))
        del body
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait((leaving,))
        del leaving
        gc.collect()
        assert held() is None
        may_end.set()
        assert await busy

    decoding = DecodeThreads()
    asyncio.run(main())


def test_an_error_of_the_work_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no group")

    with pytest.raises(ValueError, match="no group"):
        asyncio.run(DecodeThreads().run(fail))


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a niceness of its own on Linux only")
def test_decode_threads_have_a_lower_priority_than_the_process() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert asyncio.run(DecodeThreads().run(lambda: os.getpriority(os.PRIO_PROCESS, 0))) == min(19, before + NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_where_a_thread_may_not_step_back_it_decodes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_nicer: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "nice", forbidden)
    assert asyncio.run(DecodeThreads().run(lambda: "decoded")) == "decoded"


def test_decode_threads_end_with_their_pool() -> None:
    decoding = DecodeThreads()
    thread = asyncio.run(decoding.run(threading.current_thread))
    del decoding
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_the_end_of_abandoned_work_is_reported_only_if_it_had_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segments.read.row_group_loader._cores", lambda: 1)
    begun, may_end = threading.Event(), threading.Event()
    reported: list[str] = []

    def work() -> None:
        begun.set()
        assert may_end.wait(60)

    async def main() -> None:
        ended = asyncio.Event()

        def outlived() -> Callable[[], None]:
            reported.append("outlived")
            return ended.set

        running, waiting = [asyncio.ensure_future(decoding.run(work, outlived=outlived)) for _ in range(2)]
        await asyncio.to_thread(begun.wait, 60)
        for leaving in (running, waiting):
            leaving.cancel()
        await asyncio.wait((running, waiting))
        assert reported == ["outlived"], "the other one has not begun"
        assert not ended.is_set()
        may_end.set()
        await ended.wait()
        assert await decoding.run(lambda: "next", outlived=outlived) == "next"
        assert reported == ["outlived"]

    decoding = DecodeThreads()
    asyncio.run(main())
