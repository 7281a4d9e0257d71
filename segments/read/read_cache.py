"""Caches what was read from the bucket, apart from the tail cache, so that a lagging reader can't evict the tail: runs, and row
groups as batches.

One read of a run or a row group (a place, below) for any number of readers (single flight), least recently used out first,
and a bound on the bytes and the number of reads in flight. A row group is many times what one fetch takes, so it stays while a
reader is in the middle of it, and the next one is read only when there is room beside those: otherwise fifty readers would evict
each other's, and each would be read as often as there are fetches in it.

Runs of one segment that are asked for in the same turn of the event loop share GETs (run_ranges.py):

    read, read, read ─▶ gathered by segment ─▶ ranges ─▶ one GET each ─▶ an outcome for each run
                                                            └ not all there: each run is read by itself

fetch_reads.py holds what one fetch reads. Invariants: contents were checked by their CRC-32C when they were read; row groups that
are in use never take more than the pool has; the outcome of a read that was left out of an answer is kept
until a reader gets it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from metadata.errors import Corrupt, InvalidArgument, NotFound, Rejected, Throttled, TidelogError, Unavailable
from metadata.model import SegmentSeq, SessionId
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.history.index import RowGroupLocation
from segments.object_store.interface import ObjectStore
from segments.read.cached_row_group import CachedRowGroup
from segments.read.cached_run import CachedRun, unreadable
from segments.read.disk_cache import DiskCache
from segments.read.row_group_loader import RowGroupLoader
from segments.read.row_group_pins import RowGroupPins
from segments.read.run_loader import RunLoader
from segments.read.run_ranges import ranges_of
from segments.shared_errors import copy_of
from segments.wal.run_index import RunLocation

# Locations read at the same time, however small: the store's connections are there for others, too.
READS_IN_FLIGHT_MAX: Final = 16
# Locations that are read or wait for their turn. Further ones are refused; from a quarter on, no fetch begins more than one.
READS_WAITING_MAX: Final = 1000
# Damage is read again after this time: the object may have been restored, or the damage have come from the network.
DAMAGE_BELIEVED_S: Final = 10.0
# Locations that are remembered because their object was not there.
GONE_MAX: Final = 1000
# Locations that are remembered because a reader was left waiting for them.
LEFT_OUT_MAX: Final = 10_000
# A row group takes its bytes twice while it is read: as they are stored and as columns, then as columns and as batches.
GROUP_READ_FACTOR: Final = 2

Location = RunLocation | RowGroupLocation
CachedBlock = CachedRun | CachedRowGroup
# An error is a result here: it is for the readers, and must not end the log that owns the task.
Loaded = CachedBlock | TidelogError
OnGone = Callable[[], Awaitable[object]]


class _Held(NamedTuple):
    block: CachedBlock
    expires_s: float


_SegmentId = tuple[SessionId, SegmentSeq]


class _Wanted(NamedTuple):
    """A run that is read together with others of its segment."""

    location: RunLocation
    on_gone: OnGone | None
    loading: asyncio.Future[Loaded]


class _LeftOut(NamedTuple):
    """The read of a place that was left out of an answer has ended."""

    # None: the place was read. It may have been evicted before its reader came back.
    error: TidelogError | None
    ended_s: float


class ReadCache:
    """Reads locations on the bucket once for all readers, and caches them."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        bytes_max: int,
        reads: ByteBudget,
        read_timeout_s: float,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        disk: DiskCache | None = None,
        counters: LogCounters | None = None,
    ) -> None:
        """`spawn` starts a task that belongs to the log: a read goes on when the reader that began it hangs up."""
        self._bytes_max = bytes_max
        self._reads = reads
        self._read_timeout_s = read_timeout_s
        self._spawn = spawn
        counters = counters or LogCounters()
        self._run_reads = RunLoader(store, disk=disk, counters=counters)
        self._history_reads = RowGroupLoader(store, disk=disk, counters=counters)
        # Runs on the local disk are kept, and read, one by one.
        self._reads_together = disk is None
        self._in_use = RowGroupPins(bytes_max)
        # Runs that are to be read, by their segment: those that were asked for in one turn of the event loop.
        self._gathered: dict[_SegmentId, list[_Wanted]] = {}
        # By the identity of the place, as the following.
        self._held: OrderedDict[Hashable, _Held] = OrderedDict()
        # Errors of missing objects, and until when they are believed.
        self._gone: OrderedDict[Hashable, tuple[Corrupt, float]] = OrderedDict()
        self._loading: dict[Hashable, asyncio.Future[Loaded]] = {}
        # Locations that are being read, and were left out of an answer.
        self._awaited: set[Hashable] = set()
        self._left_out: OrderedDict[Hashable, _LeftOut] = OrderedDict()
        self.bytes_used = 0

    async def read_whole(self, location: Location, *, on_gone: OnGone | None = None) -> CachedBlock:
        """Returns the contents for a caller that does not come back. Raises Corrupt when all of it is damaged, Unavailable."""
        held = self.held(location)
        if held is not None:
            return held
        reading = self.read(location, on_gone=on_gone)
        await asyncio.wait((reading,))
        self._in_use.end(location.identity)
        return outcome_of(reading)

    async def run_at(self, location: RunLocation, *, on_gone: OnGone | None = None) -> CachedRun:
        """Returns the run, as `read_whole` does."""
        run = await self.read_whole(location, on_gone=on_gone)
        assert isinstance(run, CachedRun), f"{location} is a run"
        return run

    def held(self, location: Location) -> CachedBlock | None:
        """Returns the contents if they are in memory."""
        held = self._held.get(location.identity)
        if held is None:
            return None
        if held.block.damaged and held.expires_s <= asyncio.get_running_loop().time():
            self._drop(location.identity)
            return None
        self._held.move_to_end(location.identity)
        self._left_out.pop(location.identity, None)
        return held.block

    def read(self, location: Location, *, on_gone: OnGone | None = None) -> asyncio.Future[Loaded]:
        """Begins a read, or joins one. Raises Unavailable when the session has ended, Throttled when too many wait.

        `on_gone` is called where the object is missing, before any waiter gets the error.
        """
        key = location.identity
        self._left_out.pop(key, None)
        loading = self._loading.get(key) or self._missing(key)
        if loading is None:
            if len(self._loading) >= READS_WAITING_MAX:
                raise Throttled(f"{READS_WAITING_MAX} reads from the bucket are under way or wait for their turn")
            if isinstance(location, RunLocation) and self._reads_together:
                loading = self._gather(location, on_gone)
            else:
                loading = self._spawn(self._load(location, on_gone))
            self._loading[key] = loading
            loading.add_done_callback(lambda ended: self._on_ended(key, ended))
        return loading

    def read_ahead(self, location: Location, *, on_gone: OnGone | None = None) -> None:
        """Begins to read what a reader comes to next, unless that would make others wait, or be pushed out before it comes."""
        if (
            location.identity in self._held
            or location.identity in self._loading
            or location.identity in self._left_out
            or self.is_busy
        ):
            return
        is_kept = (
            location.size_bytes <= self._bytes_max // 4 if isinstance(location, RunLocation) else self._in_use.has_room(location)
        )
        if is_kept and self._reads.has_room(self._charge_of(location)):
            with suppress(Unavailable):
                self.read(location, on_gone=on_gone)

    def taken(self, location: Location, *, next_offset: int) -> None:
        """Notes that a reader received the records of a block below `next_offset`."""
        if isinstance(location, RowGroupLocation) and location.identity in self._held:
            if next_offset > location.last_offset:
                self._in_use.end(location.identity)
            else:
                self._in_use.go_on(location)

    @property
    def is_busy(self) -> bool:
        return len(self._loading) * 4 >= READS_WAITING_MAX

    # ── what was left out of an answer ──────────────────────────────────────────────────────────────────────────────────

    def leave_out(self, location: Location) -> None:
        """Notes that a reader was answered without it, while it is read."""
        key = location.identity
        if key in self._loading:
            self._awaited.add(key)

    def was_left_out(self, location: Location) -> bool:
        """Returns whether an answer left the place out, and no reader has had it since it was read."""
        return location.identity in self._left_out

    def raise_error(self, location: Location) -> None:
        """Raises what the read of a place that was left out has met: once, and only while it is news."""
        left_out = self._left_out.get(location.identity)
        if left_out is None or left_out.error is None:
            return
        if left_out.ended_s + self._read_timeout_s >= asyncio.get_running_loop().time():
            del self._left_out[location.identity]
            raise left_out.error

    def _on_ended(self, key: Hashable, loading: asyncio.Future[Loaded]) -> None:
        del self._loading[key]
        if key not in self._awaited:
            return
        self._awaited.discard(key)
        if loading.cancelled():
            return
        loaded = loading.result()
        error = loaded if isinstance(loaded, TidelogError) else None
        self._left_out[key] = _LeftOut(error, asyncio.get_running_loop().time())
        if len(self._left_out) > LEFT_OUT_MAX:
            self._left_out.popitem(last=False)

    # ── reading from the bucket ─────────────────────────────────────────────────────────────────────────────────────────

    def _gather(self, location: RunLocation, on_gone: OnGone | None) -> asyncio.Future[Loaded]:
        """Lets the run be read with the others of its segment that are asked for in this turn of the event loop."""
        segment = location.session, location.seq
        wanted = self._gathered.get(segment)
        if wanted is None:
            reading = self._spawn(self._load_gathered(segment))
            wanted = self._gathered[segment] = []
            reading.add_done_callback(partial(self._end_gathered, segment, wanted))
        loading: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        wanted.append(_Wanted(location, on_gone, loading))
        return loading

    async def _load_gathered(self, segment: _SegmentId) -> None:
        by_start = {each.location.start: each for each in self._gathered.pop(segment)}
        ranges = ranges_of(
            [each.location for each in by_start.values()], bytes_max=self._reads.bytes_max // READS_IN_FLIGHT_MAX * 2
        )
        async with asyncio.TaskGroup() as reads:
            for locations in ranges[1:]:
                reads.create_task(self._load_range([by_start[each.start] for each in locations]))
            await self._load_range([by_start[each.start] for each in ranges[0]])

    def _end_gathered(self, segment: _SegmentId, wanted: list[_Wanted], reading: asyncio.Task[None]) -> None:
        """Cancels the reads without an outcome: the session ends."""
        if self._gathered.get(segment) is wanted:
            del self._gathered[segment]
        for each in wanted:
            each.loading.cancel()

    async def _load_range(self, wanted: Sequence[_Wanted]) -> None:
        """Reads the runs of one range, one by one if they are not all there."""
        loaded = await self._load_together([each.location for each in wanted]) if len(wanted) > 1 else None
        for at, each in enumerate(wanted):
            outcome = await self._load(each.location, each.on_gone) if loaded is None else loaded[at]
            if not each.loading.done():
                each.loading.set_result(outcome)

    async def _load_together(self, locations: Sequence[RunLocation]) -> Sequence[Loaded] | None:
        """Returns the runs, or the error of each; None if something is not there."""
        timeout_s = self._read_timeout_s
        bytes_count = GROUP_READ_FACTOR * (locations[-1].end - locations[0].start)  # the range, and the runs as copies of it
        try:
            async with self._reads.admit(self._bounded_charge(bytes_count), timeout_s=timeout_s), asyncio.timeout(timeout_s):
                runs = await self._run_reads.read_together(locations)
        except (NotFound, InvalidArgument):
            return None
        except (TidelogError, TimeoutError) as error:
            return [self._failed(each, error) for each in locations]
        for location, run in zip(locations, runs or (), strict=runs is not None):
            self._keep(location, run)
        return runs

    async def _load(self, location: Location, on_gone: OnGone | None) -> Loaded:
        try:
            try:
                block = await self._read(location)
            except NotFound:
                if on_gone is not None:
                    async with asyncio.timeout(self._read_timeout_s):
                        await on_gone()
                raise
        except (NotFound, InvalidArgument) as error:
            return self._remember_missing(location, error)
        except (TidelogError, TimeoutError) as error:
            return self._failed(location, error)
        self._keep(location, block)
        return block

    def _failed(self, location: Location, error: TidelogError | TimeoutError) -> TidelogError:
        if isinstance(error, Rejected):
            return Unavailable(f"the bucket does not let the broker read {location.key}: {error}", hint=error.hint)
        if isinstance(error, TidelogError):
            return error
        return Unavailable(f"{location.key} could not be read within {self._read_timeout_s:g} s")

    def _remember_missing(self, location: Location, error: NotFound | InvalidArgument) -> Corrupt:
        why = f"nothing is there: {error}"
        missing = unreadable(location, why)
        missing.__cause__ = error
        self._gone[location.identity] = missing, asyncio.get_running_loop().time() + DAMAGE_BELIEVED_S
        if len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)
        return missing

    def _missing(self, key: Hashable) -> asyncio.Future[Loaded] | None:
        """Returns the recent error of a missing object."""
        gone = self._gone.get(key)
        if gone is None:
            return None
        missing, expires_s = gone
        loop = asyncio.get_running_loop()
        if expires_s <= loop.time():
            del self._gone[key]
            return None
        read: asyncio.Future[Loaded] = loop.create_future()
        read.set_result(missing)
        return read

    async def _read(self, location: Location) -> CachedBlock:
        timeout_s = self._read_timeout_s
        if isinstance(location, RunLocation):
            async with self._reads.admit(self._charge_of(location), timeout_s=timeout_s), asyncio.timeout(timeout_s):
                return await self._run_reads.read(location)
        await self._in_use.begin(location, patience_s=timeout_s / 3)
        try:
            async with self._reads.admit(self._charge_of(location), timeout_s=timeout_s) as room, asyncio.timeout(timeout_s):
                return await self._history_reads.read(location, outlived=room.outlived)
        except BaseException:
            self._in_use.end(location.identity)
            raise

    def _charge_of(self, location: Location) -> int:
        """Returns the bytes that reading it takes of the budget. A place above the budget is read when it is alone."""
        return self._bounded_charge(location.size_bytes * (1 if isinstance(location, RunLocation) else GROUP_READ_FACTOR))

    def _bounded_charge(self, bytes_count: int) -> int:
        return min(max(bytes_count, self._reads.bytes_max // READS_IN_FLIGHT_MAX), self._reads.bytes_max)

    def _keep(self, location: Location, block: CachedBlock) -> None:
        self._held[location.identity] = _Held(block, asyncio.get_running_loop().time() + DAMAGE_BELIEVED_S)
        self.bytes_used += block.memory_bytes
        if isinstance(location, RowGroupLocation):
            if block.damaged:
                self._in_use.end(location.identity)
            else:
                self._in_use.go_on(location)
        while self.bytes_used > self._bytes_max:
            self._drop(next((key for key in self._held if key not in self._in_use), next(iter(self._held))))

    def _drop(self, key: Hashable) -> None:
        self.bytes_used -= self._held.pop(key).block.memory_bytes
        self._in_use.end(key)


def outcome_of(reading: asyncio.Future[Loaded]) -> CachedBlock:
    """Returns the contents that a finished read brought. Raises its error, a copy for each waiter."""
    if reading.cancelled():
        raise Unavailable("the session ended while the broker read from the bucket")
    loaded = reading.result()
    if isinstance(loaded, TidelogError):
        raise copy_of(loaded)
    return loaded
