"""What was read back from the bucket, in memory, apart from the hot pool so that a lagging reader can't evict the tail: runs of
batches, and row groups of Parquet files as batches.

One GET for a run or a row group (a place, below) however many readers wait for it (single flight), least recently used out first,
and a bound on the bytes and the number of reads in flight. A row group is many times what one fetch takes, so it stays while a
reader is in the middle of it, and the next one is read only when there is room beside those: else fifty readers would push out each
other's, and each would be read as often as there are fetches in it.

What one fetch reads is in fetch_reads.py. Invariants: what it holds was checked by its CRC-32C when it was read; row groups that
are being read never take more than the pool has; of a place that was left out of an answer it is known what became of its read,
until somebody gets it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from metadata.errors import Corrupt, InvalidArgument, NotFound, Rejected, Throttled, TidelogError, Unavailable
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.history.index import GroupPlace
from segments.object_store.interface import ObjectStore
from segments.read.cached_row_group import CachedRowGroup, unreadable_group
from segments.read.cached_run import CachedRun, unreadable
from segments.read.disk_cache import DiskCache
from segments.read.row_group_loader import RowGroupLoader
from segments.read.row_group_pins import RowGroupPins
from segments.read.run_loader import RunLoader
from segments.shared_errors import copy_of
from segments.wal.run_index import RunPlace

# Places read at the same time, however small: the store's connections are there for others, too.
READS_IN_FLIGHT_MAX: Final = 16
# Places that are read or wait for their turn. Further ones are refused; from a quarter on, no fetch begins more than one.
READS_WAITING_MAX: Final = 1000
# What is damaged is read again after this: the object may have been restored, or the damage have come from the network.
DAMAGE_BELIEVED_S: Final = 10.0
# Places that are remembered because their object was not there.
GONE_MAX: Final = 1000
# Places that are remembered because a reader was left waiting for them.
LEFT_OUT_MAX: Final = 10_000
# A row group takes its bytes twice while it is read: as they are stored and as columns, then as columns and as batches.
GROUP_READ_FACTOR: Final = 2

Place = RunPlace | GroupPlace
Cold = CachedRun | CachedRowGroup
# An error is a result here: it is for the readers, and must not end the log that owns the task.
Loaded = Cold | TidelogError
OnGone = Callable[[], Awaitable[object]]


class _Held(NamedTuple):
    cold: Cold
    expires_s: float


class _LeftOut(NamedTuple):
    """The read of a place that was left out of an answer has ended."""

    # None: it was read. It may have been pushed out again before its reader came back.
    error: TidelogError | None
    ended_s: float


class ReadCache:
    def __init__(
        self,
        store: ObjectStore,
        *,
        bytes_max: int,
        reads: ByteBudget,
        read_timeout_s: float,
        spawn: Callable[[Coroutine[Any, Any, Loaded]], asyncio.Task[Loaded]],
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
        self._in_use = RowGroupPins(bytes_max)
        self._held: OrderedDict[Hashable, _Held] = OrderedDict()
        """This, and what follows, by the identity of the place."""
        self._gone: OrderedDict[Hashable, tuple[Corrupt, float]] = OrderedDict()
        """Of objects that are not there: what readers are told, and until when."""
        self._loading: dict[Hashable, asyncio.Future[Loaded]] = {}
        self._awaited: set[Hashable] = set()
        """Of those that are loading: the ones that were left out of an answer."""
        self._left_out: OrderedDict[Hashable, _LeftOut] = OrderedDict()
        self.bytes_used = 0

    async def read_whole(self, place: Place, *, on_gone: OnGone | None = None) -> Cold:
        """What lies there, for somebody who does not come back. Raises Corrupt when nothing of it is there, Unavailable."""
        held = self.held(place)
        if held is not None:
            return held
        reading = self.read(place, on_gone=on_gone)
        await asyncio.wait((reading,))
        self._in_use.end(place.identity)
        return outcome_of(reading)

    async def run_at(self, place: RunPlace, *, on_gone: OnGone | None = None) -> CachedRun:
        """As `read_whole`, of a run."""
        run = await self.read_whole(place, on_gone=on_gone)
        assert isinstance(run, CachedRun), f"{place} is a run"
        return run

    def held(self, place: Place) -> Cold | None:
        """What lies there, where it is in memory."""
        held = self._held.get(place.identity)
        if held is None:
            return None
        if held.cold.damaged and held.expires_s <= asyncio.get_running_loop().time():
            self._drop(place.identity)
            return None
        self._held.move_to_end(place.identity)
        self._left_out.pop(place.identity, None)
        return held.cold

    def read(self, place: Place, *, on_gone: OnGone | None = None) -> asyncio.Future[Loaded]:
        """Begins to read it, or joins whoever began. Unavailable when the session has ended, Throttled when too many wait.

        `on_gone` is called where the object is not there any more, before anybody is told so.
        """
        key = place.identity
        self._left_out.pop(key, None)
        loading = self._loading.get(key) or self._missing(key)
        if loading is None:
            if len(self._loading) >= READS_WAITING_MAX:
                raise Throttled(f"{READS_WAITING_MAX} reads from the bucket are under way or wait for their turn")
            loading = self._loading[key] = self._spawn(self._load(place, on_gone))
            loading.add_done_callback(lambda ended: self._on_ended(key, ended))
        return loading

    def read_ahead(self, place: Place, *, on_gone: OnGone | None = None) -> None:
        """Begins to read what a reader comes to next, unless that would make others wait, or be pushed out before it comes."""
        if place.identity in self._held or place.identity in self._loading or place.identity in self._left_out or self.is_busy:
            return
        is_kept = place.size_bytes <= self._bytes_max // 4 if isinstance(place, RunPlace) else self._in_use.has_room(place)
        if is_kept and self._reads.has_room(self._charge_of(place)):
            with suppress(Unavailable):
                self.read(place, on_gone=on_gone)

    def taken(self, place: Place, *, next_offset: int) -> None:
        """A reader was given what lies there up to before `next_offset`."""
        if isinstance(place, GroupPlace) and place.identity in self._held:
            if next_offset > place.last_offset:
                self._in_use.end(place.identity)
            else:
                self._in_use.go_on(place)

    @property
    def is_busy(self) -> bool:
        return len(self._loading) * 4 >= READS_WAITING_MAX

    # ── what was left out of an answer ──────────────────────────────────────────────────────────────────────────────────

    def leave_out(self, place: Place) -> None:
        """Somebody was answered without it, while it is read."""
        key = place.identity
        if key in self._loading:
            self._awaited.add(key)

    def was_left_out(self, place: Place) -> bool:
        """Whether somebody was answered without it, it has been read since, and nobody has had it yet."""
        return place.identity in self._left_out

    def raise_error(self, place: Place) -> None:
        """Raises what the read of a place that was left out has met: once, and only while it is news."""
        left_out = self._left_out.get(place.identity)
        if left_out is None or left_out.error is None:
            return
        if left_out.ended_s + self._read_timeout_s >= asyncio.get_running_loop().time():
            del self._left_out[place.identity]
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

    async def _load(self, place: Place, on_gone: OnGone | None) -> Loaded:
        try:
            try:
                cold = await self._read(place)
            except NotFound:
                if on_gone is not None:
                    async with asyncio.timeout(self._read_timeout_s):
                        await on_gone()
                raise
        except (NotFound, InvalidArgument) as error:
            return self._told_missing(place, error)
        except Rejected as error:
            return Unavailable(f"the bucket does not let the broker read {place.key}: {error}", hint=error.hint)
        except TimeoutError:
            return Unavailable(f"{place.key} could not be read within {self._read_timeout_s:g} s")
        except TidelogError as error:
            return error
        self._keep(place, cold)
        return cold

    def _told_missing(self, place: Place, error: NotFound | InvalidArgument) -> Corrupt:
        why = f"nothing is there: {error}"
        missing = unreadable(place, why) if isinstance(place, RunPlace) else unreadable_group(place, why)
        missing.__cause__ = error
        self._gone[place.identity] = missing, asyncio.get_running_loop().time() + DAMAGE_BELIEVED_S
        if len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)
        return missing

    def _missing(self, key: Hashable) -> asyncio.Future[Loaded] | None:
        """What was told of it a short while ago, where it was not there."""
        told = self._gone.get(key)
        if told is None:
            return None
        missing, expires_s = told
        loop = asyncio.get_running_loop()
        if expires_s <= loop.time():
            del self._gone[key]
            return None
        read: asyncio.Future[Loaded] = loop.create_future()
        read.set_result(missing)
        return read

    async def _read(self, place: Place) -> Cold:
        timeout_s = self._read_timeout_s
        if isinstance(place, RunPlace):
            async with self._reads.admit(self._charge_of(place), timeout_s=timeout_s), asyncio.timeout(timeout_s):
                return await self._run_reads.read(place)
        await self._in_use.begin(place, patience_s=timeout_s / 3)
        try:
            async with self._reads.admit(self._charge_of(place), timeout_s=timeout_s) as room, asyncio.timeout(timeout_s):
                return await self._history_reads.read(place, outlived=room.outlived)
        except BaseException:
            self._in_use.end(place.identity)
            raise

    def _charge_of(self, place: Place) -> int:
        """What reading it takes of all reads. A place that is larger than they may be is read when it is alone."""
        size_bytes = place.size_bytes * (1 if isinstance(place, RunPlace) else GROUP_READ_FACTOR)
        return min(max(size_bytes, self._reads.bytes_max // READS_IN_FLIGHT_MAX), self._reads.bytes_max)

    def _keep(self, place: Place, cold: Cold) -> None:
        self._held[place.identity] = _Held(cold, asyncio.get_running_loop().time() + DAMAGE_BELIEVED_S)
        self.bytes_used += cold.memory_bytes
        if isinstance(place, GroupPlace):
            if cold.damaged:
                self._in_use.end(place.identity)
            else:
                self._in_use.go_on(place)
        while self.bytes_used > self._bytes_max:
            self._drop(next((key for key in self._held if key not in self._in_use), next(iter(self._held))))

    def _drop(self, key: Hashable) -> None:
        self.bytes_used -= self._held.pop(key).cold.memory_bytes
        self._in_use.end(key)


def outcome_of(reading: asyncio.Future[Loaded]) -> Cold:
    """What a read that has ended brought. Raises its error, a copy for each who waited."""
    if reading.cancelled():
        raise Unavailable("the session ended while the broker read from the bucket")
    loaded = reading.result()
    if isinstance(loaded, TidelogError):
        raise copy_of(loaded)
    return loaded
