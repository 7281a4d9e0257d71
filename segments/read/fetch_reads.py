"""Tracks what one fetch reads from the bucket: the locations (runs, row groups) that it awaits, and those left to the next fetch.

    look up ─▶ block_at: in memory? ─▶ its contents
              └ no: begin ─▶ the pool reads it ─▶ woken: look up again
                                │
    answered without it ────────┴─▶ the read goes on ─▶ the next fetch finds it in the pool, or gets the error of its read,
                                                       or, where the pool had no room for it, waits for it this time

Invariants: a fetch reads about as many bytes as it may answer with, and RUNS_MAX locations at most; it keeps what it has read until
its end, whether the pool has room or not; a location is left out of answers only while it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from types import TracebackType

from metadata.errors import Unavailable
from segments.read.fetch_plan import RUNS_MAX
from segments.read.read_cache import CachedBlock, Loaded, Location, OnGone, ReadCache, outcome_of


class FetchReads:
    """Manages the bucket reads of one fetch, as a context manager. Unfinished reads are left out of the answer."""

    def __init__(self, pool: ReadCache, *, bytes_max: int, woken: asyncio.Event) -> None:
        """`bytes_max` is about what it may read, but one place at least. Sets `woken` when what it waits for arrives."""
        self._pool = pool
        self._bytes_left = bytes_max
        self._woken = woken
        # By the identity of the place.
        self._reads: dict[Hashable, tuple[Location, asyncio.Future[Loaded]]] = {}
        self._owed: asyncio.Future[Loaded] | None = None
        self._awaited: set[Hashable] | None = None

    def begin(self, location: Location, *, is_next: bool = True, on_gone: OnGone | None = None) -> None:
        """Has the place read, unless it is in memory. `block_at` raises its errors; an immediate one also sets `woken`.

        `is_next`: without it, there is nothing of its partition in the answer.
        """
        if location.identity in self._reads or self._pool.held(location) is not None:
            return
        owed = is_next and self._owed is None and self._pool.was_left_out(location)
        try:
            reading = self._pool.read(location, on_gone=on_gone)
        except Unavailable as error:
            reading = asyncio.get_running_loop().create_future()
            reading.set_result(error)
        if owed:
            self._owed = reading
        self._bytes_left -= location.size_bytes
        self._reads[location.identity] = location, reading
        if reading.done():
            self._woken.set()
        else:
            reading.add_done_callback(self._wake)

    def wait_for(self, locations: Iterable[Location]) -> None:
        """Lets only these arrivals wake the fetch, and the last of all: others change nothing about its answer.

        A history of many small runs would be looked at again for each of them.
        """
        self._awaited = {location.identity for location in locations}

    def block_at(self, location: Location) -> CachedBlock | None:
        """Returns the contents of the place; None before it is read. Raises the error of its read: Corrupt, Unavailable."""
        held = self._pool.held(location)
        if held is not None:
            return held
        if location.identity not in self._reads:
            self._pool.raise_error(location)
            return None
        _, reading = self._reads[location.identity]
        return outcome_of(reading) if reading.done() else None

    @property
    def is_full(self) -> bool:
        """Returns whether this fetch reads enough already."""
        return bool(self._reads) and (self._bytes_left <= 0 or len(self._reads) >= RUNS_MAX or self._pool.is_busy)

    def is_reading(self, location: Location) -> bool:
        return location.identity in self._reads and not self._reads[location.identity][1].done()

    @property
    def in_flight(self) -> bool:
        return any(not reading.done() for _, reading in self._reads.values())

    @property
    def owes(self) -> bool:
        """Returns whether a place is being read that was left out of an answer before, and evicted before its reader came back.

        One at a time: that is enough for every reader to get on, and holds up the others the least.
        """
        return self._owed is not None and not self._owed.done()

    def __enter__(self) -> FetchReads:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for location, reading in self._reads.values():
            reading.remove_done_callback(self._wake)
            if not reading.done():
                self._pool.leave_out(location)

    def _wake(self, ended: asyncio.Future[Loaded]) -> None:
        awaited = self._awaited is None or any(key in self._reads and self._reads[key][1] is ended for key in self._awaited)
        if awaited or ended is self._owed or not self.in_flight:
            self._woken.set()
