"""What one fetch reads from the bucket: the runs that it waits for, and those that it leaves to the next one.

    look ─▶ run_at: in memory? ─▶ the run
              └ no: begin ─▶ the pool reads it ─▶ woken: look again
                                │
    answered without it ────────┴─▶ it goes on being read ─▶ the next fetch finds it in the pool, or is told the error of its read,
                                                            or, where the pool had no room for it, waits for it this time

Invariants: a fetch reads about as many bytes as it may answer with, and RUNS_MAX runs at most; what it has read it keeps to its
end, whether the pool has room or not; a run is left out of answers only while it is read.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from metadata.errors import Unavailable
from segments.cold_pool import ColdPool, Loaded, outcome_of
from segments.cold_run import ColdRun
from segments.fetch_plan import RUNS_MAX
from segments.run_index import RunPlace


class ColdReads:
    """A context: at its end, what is not there yet is left out of the answer."""

    def __init__(self, pool: ColdPool, *, bytes_max: int, woken: asyncio.Event) -> None:
        """`bytes_max` is about what it may read, but one run at least. Sets `woken` when what it waits for arrives."""
        self._pool = pool
        self._bytes_left = bytes_max
        self._woken = woken
        self._reads: dict[RunPlace, asyncio.Future[Loaded]] = {}
        self._owed: asyncio.Future[Loaded] | None = None
        self._awaited: set[RunPlace] | None = None

    def begin(self, place: RunPlace, *, is_next: bool = True) -> None:
        """Has the run read, unless it is in memory. What goes wrong is told by `run_at`; where it is known at once, `woken` is set.

        `is_next`: without this run, there is nothing of its partition in the answer.
        """
        if place in self._reads or self._pool.held(place) is not None:
            return
        owed = is_next and self._owed is None and self._pool.was_left_out(place)
        try:
            reading = self._pool.read(place)
        except Unavailable as error:
            reading = asyncio.get_running_loop().create_future()
            reading.set_result(error)
            self._woken.set()
        if owed:
            self._owed = reading
        self._bytes_left -= place.end - place.start
        self._reads[place] = reading
        reading.add_done_callback(self._wake)

    def wait_for(self, places: set[RunPlace]) -> None:
        """From now on, only these arrivals wake the fetch, and the last of all: those in between change nothing about its answer.

        A history of many small runs would be looked at again for each of them.
        """
        self._awaited = places

    def run_at(self, place: RunPlace) -> ColdRun | None:
        """The run, or None where it is not there yet. Raises what its read met: Corrupt, Unavailable."""
        held = self._pool.held(place)
        if held is not None:
            return held
        reading = self._reads.get(place)
        if reading is None:
            self._pool.raise_error(place)
            return None
        return outcome_of(reading) if reading.done() else None

    @property
    def is_full(self) -> bool:
        """Whether this fetch reads enough already."""
        return bool(self._reads) and (self._bytes_left <= 0 or len(self._reads) >= RUNS_MAX or self._pool.is_busy)

    def is_reading(self, place: RunPlace) -> bool:
        return place in self._reads and not self._reads[place].done()

    @property
    def in_flight(self) -> bool:
        return any(not reading.done() for reading in self._reads.values())

    @property
    def owes(self) -> bool:
        """Whether a run is on its way that was left out of an answer before, and lost before its reader came back.

        One at a time: that is enough for every reader to get on, and holds up the others the least.
        """
        return self._owed is not None and not self._owed.done()

    def __enter__(self) -> ColdReads:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for place, reading in self._reads.items():
            reading.remove_done_callback(self._wake)
            if not reading.done():
                self._pool.leave_out(place)

    def _wake(self, ended: asyncio.Future[Loaded]) -> None:
        awaited = self._awaited is None or any(self._reads.get(place) is ended for place in self._awaited)
        if awaited or ended is self._owed or not self.in_flight:
            self._woken.set()
