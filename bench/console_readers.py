"""People who look at the console, as their browsers ask for it: pages, what pages load, refreshes of open pages, live tails.

Runs in a client's process of its own (load.py). Of READERS people four go from page to page, three have a page open that refreshes
itself, and three follow a topic. They hurry: a page each second, and a refresh each second in place of one in 15.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import NamedTuple

import aiohttp
import uvloop

READERS = 10
BROWSING, REFRESHING, TAILING = 4, 3, 3
THINK_S = 1.0
TIMEOUT_S = 60.0
SEARCHES = 3
# Pages that show neither one topic nor one group.
SHARED = ("/cluster", "/bill", "/access")
# Files without a version in their names, which a browser asks for with each page.
LOADED = ("console.css", "console.js", "theme.js", "charts.js")


class Seen(NamedTuple):
    """Holds what the readers asked for: pages and refreshes, without files."""

    requests: int
    seconds: float
    page_ms: list[float]
    tail_events: int


class PageTime(NamedTuple):
    """Holds how long one page took, each time that it was asked for."""

    what: str
    took_ms: list[float]
    size_bytes: int
    # A search by content goes on for two seconds where few records of some partition match.
    is_bounded: bool = True


def _pages(topic: str, group: str) -> list[str]:
    return ["/topics", *_topic_pages(topic), f"/topics/{topic}/records/0/1", "/groups", f"/groups/{group}", *SHARED]


def _topic_pages(topic: str) -> list[str]:
    return [f"/topics/{topic}/{tab}" for tab in ("records", "partitions", "groups", "settings", "produce", "tail")]


def look_around(url: str, topics: Sequence[str], group: str, *, tailed: str, seconds: float) -> Seen:
    """Lets the readers look for this time. Raises if a page is not 200."""

    async def run() -> Seen:
        page_ms: list[float] = []
        events = 0
        ends_s = time.perf_counter() + seconds

        async def browse(session: aiohttp.ClientSession, first: int) -> None:
            pages = _pages(topics[first % len(topics)], group)
            for page in cycle(pages[first:] + pages[:first]):
                began_s = time.perf_counter()
                await _get(session, page)
                page_ms.append(1000 * (time.perf_counter() - began_s))
                for name in LOADED:
                    await _get(session, f"/static/{name}")
                if not await _thinks(ends_s):
                    return

        async def refresh(session: aiohttp.ClientSession, first: int) -> None:
            page = ("/topics", "/groups", f"/groups/{group}")[first % 3]
            await _get(session, page)
            while await _thinks(ends_s):
                began_s = time.perf_counter()
                await _get(session, page, headers={"hx-request": "true"})
                page_ms.append(1000 * (time.perf_counter() - began_s))

        async def tail(session: aiohttp.ClientSession, _: int) -> None:
            nonlocal events
            await _get(session, f"/topics/{tailed}/tail")
            try:
                async with asyncio.timeout(max(0.0, ends_s - time.perf_counter())):
                    async with session.get(f"/console/topics/{tailed}/tail/events") as answer:
                        _check(answer)
                        async for line in answer.content:
                            events += line.startswith(b"event:")
            except TimeoutError:
                return

        people: list[Callable[[aiohttp.ClientSession, int], Awaitable[None]]]
        people = [browse] * BROWSING + [refresh] * REFRESHING + [tail] * TAILING
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number, person in enumerate(people):
                tasks.create_task(_as_person(url, person, number))
        return Seen(len(page_ms), time.perf_counter() - began_s, page_ms, events)

    return uvloop.run(run())


async def _as_person(url: str, person: Callable[[aiohttp.ClientSession, int], Awaitable[None]], number: int) -> None:
    await asyncio.sleep(THINK_S * number / READERS)  # they do not begin at the same moment
    async with _session(url) as session:
        await person(session, number)


def _session(url: str) -> aiohttp.ClientSession:
    # A line of a live tail holds the rows of a quarter of a second.
    return aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), read_bufsize=4 << 20)


async def _thinks(ends_s: float) -> bool:
    """Waits as a reader does before the next page. Returns whether there is time for one."""
    await asyncio.sleep(min(THINK_S, max(0.0, ends_s - time.perf_counter())))
    return time.perf_counter() < ends_s


def page_times(url: str, topic: str, group: str, *, times: int) -> list[PageTime]:
    """Asks for each page, and for searches of the flights, `times` times one after the other, after once that is not counted."""

    async def run() -> list[PageTime]:
        async with _session(url) as session:
            records = f"/topics/{topic}/records"
            listed = [*_pages(topic, group), f"{records}?order=time&time=2013-01-01", f"{records}?count=500"]
            pages = [PageTime(page, *await _timed(session, page, times)) for page in listed]
            searches = {f"{records}?json=carrier%3DUA": "", f"{records}?json=flight%3D-1": ", which no record matches"}
            return pages + [
                PageTime(page + note, *await _timed(session, page, SEARCHES), is_bounded=False) for page, note in searches.items()
            ]

    return uvloop.run(run())


def wide_page_times(url: str, topic: str, group: str, *, times: int) -> list[PageTime]:
    """Times the pages that show a topic with many partitions and a group that reads all of them, as page_times does."""

    async def run() -> list[PageTime]:
        async with _session(url) as session:
            pages = ["/topics", *_topic_pages(topic), "/groups", f"/groups/{group}", *SHARED]
            return [PageTime(page, *await _timed(session, page, times)) for page in pages]

    return uvloop.run(run())


async def _timed(session: aiohttp.ClientSession, page: str, times: int) -> tuple[list[float], int]:
    took_ms: list[float] = []
    size_bytes = await _get(session, page)
    for _ in range(times):
        began_s = time.perf_counter()
        await _get(session, page)
        took_ms.append(1000 * (time.perf_counter() - began_s))
    return took_ms, size_bytes


async def _get(session: aiohttp.ClientSession, page: str, *, headers: dict[str, str] | None = None) -> int:
    async with session.get(f"/console{page}", headers=headers) as answer:
        _check(answer)
        return len(await answer.read())


def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        raise RuntimeError(f"{answer.url.path} is answered with {answer.status}")
