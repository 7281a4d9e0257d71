"""Runs of batches that were read back from the bucket, in memory, apart from the hot pool so that a lagging reader can't evict
the tail.

One GET for a run however many readers wait for it (single flight), least recently used out first, and a bound on the bytes and
the number of reads in flight. What one fetch reads is in cold_reads.py. Invariants: what it holds was checked against the batches'
CRC-32C when it was read; of a run that was left out of an answer it is known what became of its read, until somebody gets it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from metadata.errors import Corrupt, InvalidArgument, NotFound, Rejected, Throttled, TidelogError, Unavailable
from metadata.model import SegmentSeq, SessionId
from segments.byte_budget import ByteBudget
from segments.cold_run import ColdRun, open_by_footer, open_run, unreadable
from segments.footers import read_footer
from segments.object_store import ObjectInfo, ObjectStore
from segments.run_index import RunPlace
from segments.shared_errors import own_copy

READS_IN_FLIGHT_MAX: Final = 16
"""Runs read at the same time, however small: the store's connections are there for others, too."""
READS_WAITING_MAX: Final = 1000
"""Runs that are read or wait for their turn. Further ones are refused; from a quarter on, no fetch begins more than one."""
DAMAGE_BELIEVED_S: Final = 10.0
"""A damaged run is read again after this: the object may have been restored, or the damage have come from the network."""
LEFT_OUT_MAX: Final = 10_000
"""Runs that are remembered because a reader was left waiting for them."""
THREAD_BYTES: Final = 64 << 10
"""More than this is checked in a thread: a run of the smallest batches would hold the event loop for 0.2 s."""

log = logging.getLogger(__name__)

_RunKey = tuple[SessionId, SegmentSeq, int]
Loaded = ColdRun | TidelogError
"""An error is a result here: it is for the readers, and must not end the log that owns the task."""


class _Held(NamedTuple):
    run: ColdRun
    expires_s: float


class _LeftOut(NamedTuple):
    """The read of a run that was left out of an answer has ended."""

    error: TidelogError | None
    """None: it was read. It may have been pushed out again before its reader came back."""
    ended_s: float


class ColdPool:
    def __init__(
        self,
        store: ObjectStore,
        *,
        bytes_max: int,
        reads: ByteBudget,
        read_timeout_s: float,
        spawn: Callable[[Coroutine[Any, Any, Loaded]], asyncio.Task[Loaded]],
    ) -> None:
        """`spawn` starts a task that belongs to the log: a read goes on when the reader that began it hangs up."""
        self._store = store
        self._bytes_max = bytes_max
        self._reads = reads
        self._read_timeout_s = read_timeout_s
        self._spawn = spawn
        self._runs: OrderedDict[_RunKey, _Held] = OrderedDict()
        self._loading: dict[_RunKey, asyncio.Future[Loaded]] = {}
        self._awaited: set[_RunKey] = set()
        """Of those that are loading: the ones that were left out of an answer."""
        self._left_out: OrderedDict[_RunKey, _LeftOut] = OrderedDict()
        self.bytes_used = 0

    async def run_at(self, place: RunPlace) -> ColdRun:
        """The run at this place. Raises Corrupt when nothing of it is there, Unavailable when the bucket can't be read."""
        held = self.held(place)
        if held is not None:
            return held
        reading = self.read(place)
        await asyncio.wait((reading,))
        return outcome_of(reading)

    def held(self, place: RunPlace) -> ColdRun | None:
        """The run, where it is in memory."""
        key = _key_of(place)
        held = self._runs.get(key)
        if held is None:
            return None
        if held.run.damaged and held.expires_s <= asyncio.get_running_loop().time():
            self._drop(key)
            return None
        self._runs.move_to_end(key)
        self._left_out.pop(key, None)
        return held.run

    def read(self, place: RunPlace) -> asyncio.Future[Loaded]:
        """Begins to read the run, or joins whoever began. Unavailable when the session has ended, Throttled when too many wait."""
        key = _key_of(place)
        self._left_out.pop(key, None)
        loading = self._loading.get(key)
        if loading is None:
            if len(self._loading) >= READS_WAITING_MAX:
                raise Throttled(f"{READS_WAITING_MAX} reads from the bucket are under way or wait for their turn")
            loading = self._loading[key] = self._spawn(self._load(key, place))
            loading.add_done_callback(lambda ended: self._on_ended(key, ended))
        return loading

    @property
    def is_busy(self) -> bool:
        return len(self._loading) * 4 >= READS_WAITING_MAX

    # ── what was left out of an answer ──────────────────────────────────────────────────────────────────────────────────

    def leave_out(self, place: RunPlace) -> None:
        """Somebody was answered without this run, while it is read."""
        key = _key_of(place)
        if key in self._loading:
            self._awaited.add(key)

    def was_left_out(self, place: RunPlace) -> bool:
        """Whether somebody was answered without this run, it has been read since, and nobody has had it yet."""
        return _key_of(place) in self._left_out

    def raise_error(self, place: RunPlace) -> None:
        """Raises what the read of a run that was left out has met: once, and only while it is news."""
        left_out = self._left_out.get(_key_of(place))
        if left_out is None or left_out.error is None:
            return
        if left_out.ended_s + self._read_timeout_s >= asyncio.get_running_loop().time():
            del self._left_out[_key_of(place)]
            raise left_out.error

    def _on_ended(self, key: _RunKey, loading: asyncio.Future[Loaded]) -> None:
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

    async def _load(self, key: _RunKey, place: RunPlace) -> Loaded:
        bytes_charged = max(place.end - place.start, self._reads.bytes_max // READS_IN_FLIGHT_MAX)
        try:
            async with self._reads.admit(min(bytes_charged, self._reads.bytes_max), timeout_s=self._read_timeout_s):
                async with asyncio.timeout(self._read_timeout_s):
                    run = await self._read_and_check(place)
        except (NotFound, InvalidArgument) as error:
            missing = unreadable(place, f"nothing is there: {error}")
            missing.__cause__ = error
            return missing
        except Rejected as error:
            return Unavailable(f"the bucket does not let the broker read {place.key}: {error}", hint=error.hint)
        except TimeoutError:
            return Unavailable(f"{place.key} could not be read within {self._read_timeout_s:g} s")
        except TidelogError as error:
            return error
        self._keep(key, run)
        return run

    async def _read_and_check(self, place: RunPlace) -> ColdRun:
        body = await self._store.get(place.key, start=place.start, end=place.end)
        run = open_run(body, place) if len(body) <= THREAD_BYTES else await asyncio.to_thread(open_run, body, place)
        if not run.damaged:
            return run
        partition = "a partition"
        try:
            footer = await read_footer(self._store, ObjectInfo(place.key, place.end), place.session, place.seq)
            for told in footer.runs:
                if (told.start, told.end) == (place.start, place.end):
                    partition = str(told.partition)
                    run = await asyncio.to_thread(open_by_footer, body, place, footer.batches(told))
        except Corrupt as error:
            log.error("%s, so what lies behind the damage in its run can't be told apart", error)
        first = next(iter(run.damaged))
        log.error("%s: %s (batches damaged in this run: %d)", partition, run.damage_at(first), len(run.damaged))
        return run

    def _keep(self, key: _RunKey, run: ColdRun) -> None:
        self._runs[key] = _Held(run, asyncio.get_running_loop().time() + DAMAGE_BELIEVED_S)
        self.bytes_used += run.memory_bytes
        while self.bytes_used > self._bytes_max:
            self._drop(next(iter(self._runs)))

    def _drop(self, key: _RunKey) -> None:
        self.bytes_used -= self._runs.pop(key).run.memory_bytes


def outcome_of(reading: asyncio.Future[Loaded]) -> ColdRun:
    """What a read that has ended brought. Raises its error, a copy for each who waited."""
    if reading.cancelled():
        raise Unavailable("the session ended while the broker read from the bucket")
    loaded = reading.result()
    if isinstance(loaded, TidelogError):
        raise own_copy(loaded)
    return loaded


def _key_of(place: RunPlace) -> _RunKey:
    return (place.session, place.seq, place.start)
