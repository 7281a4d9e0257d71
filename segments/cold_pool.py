"""Runs of batches that were read back from the bucket, in memory, apart from the hot pool so that a lagging reader can't evict
the tail.

One GET for a run however many readers wait for it (single flight), least recently used out first, and a bound on the bytes of
reads in flight. Invariant: what it holds was checked against the batches' CRC-32C when it was read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from metadata.errors import Corrupt, InvalidArgument, InvalidRecord, NotFound, Rejected, TidelogError, Unavailable
from metadata.model import Offset, SegmentSeq, SessionId
from segments.byte_budget import ByteBudget
from segments.object_store import ObjectStore
from segments.record_batch import check_stored, split_batches
from segments.run_index import RunPlace

BATCH_INDEX_BYTES: Final = 80
"""What the two positions of a batch take beside its bytes."""

_RunKey = tuple[SessionId, SegmentSeq, int]


class ColdRun(NamedTuple):
    """The bytes of one run, and where its batches begin in them."""

    body: memoryview
    base_offsets: list[Offset]
    starts: list[int]
    """Byte positions in `body`, one more than there are batches."""

    @property
    def memory_bytes(self) -> int:
        return len(self.body) + len(self.starts) * BATCH_INDEX_BYTES

    def read(self, offset: int, *, bytes_max: int) -> memoryview:
        """Whole batches from the one that holds `offset` on, at least one."""
        first = bisect_right(self.base_offsets, offset) - 1
        end = max(first + 1, bisect_right(self.starts, self.starts[first] + bytes_max) - 1)
        return self.body[self.starts[first] : self.starts[end]]

    def next_offset(self, *, after_bytes: memoryview, place: RunPlace, offset: int) -> Offset:
        """The offset that follows what `read` answered for `offset`."""
        first = bisect_right(self.base_offsets, offset) - 1
        end = bisect_right(self.starts, self.starts[first] + len(after_bytes)) - 1
        return self.base_offsets[end] if end < len(self.base_offsets) else Offset(place.last_offset + 1)


_Loaded = ColdRun | TidelogError
"""An error is a result here: it is for the readers, and must not end the log that owns the task."""


class ColdPool:
    def __init__(
        self,
        store: ObjectStore,
        *,
        bytes_max: int,
        reads: ByteBudget,
        read_timeout_s: float,
        spawn: Callable[[Coroutine[Any, Any, _Loaded]], asyncio.Task[_Loaded]],
    ) -> None:
        """`spawn` starts a task that belongs to the log: a read goes on when the reader that began it hangs up."""
        self._store = store
        self._bytes_max = bytes_max
        self._reads = reads
        self._read_timeout_s = read_timeout_s
        self._spawn = spawn
        self._runs: OrderedDict[_RunKey, ColdRun] = OrderedDict()
        self._loading: dict[_RunKey, asyncio.Task[_Loaded]] = {}
        self.bytes_used = 0

    async def run_at(self, place: RunPlace) -> ColdRun:
        """The run at this place. Raises Corrupt when its bytes don't match, Unavailable when the bucket can't be read."""
        key = (place.session, place.seq, place.start)
        held = self._runs.get(key)
        if held is not None:
            self._runs.move_to_end(key)
            return held
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = self._spawn(self._load(key, place))
            loading.add_done_callback(lambda _: self._loading.pop(key))
        await asyncio.wait((loading,))
        if loading.cancelled():
            raise Unavailable("the session ended while the broker read from the bucket")
        loaded = loading.result()
        if isinstance(loaded, TidelogError):
            raise loaded.with_traceback(None)  # shared by all who wait for this run
        return loaded

    async def _load(self, key: _RunKey, place: RunPlace) -> _Loaded:
        try:
            bytes_admitted = min(place.end - place.start, self._reads.bytes_max)
            async with self._reads.admit(bytes_admitted, timeout_s=self._read_timeout_s):
                async with asyncio.timeout(self._read_timeout_s):
                    body = await self._store.get(place.key, start=place.start, end=place.end)
            run = _checked(body, place)
        except (NotFound, InvalidArgument) as error:
            missing = Corrupt(f"{place}, but there is nothing: {error}", key=place.key, start=place.start, end=place.end)
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

    def _keep(self, key: _RunKey, run: ColdRun) -> None:
        self._runs[key] = run
        self.bytes_used += run.memory_bytes
        while self.bytes_used > self._bytes_max:
            _, dropped = self._runs.popitem(last=False)
            self.bytes_used -= dropped.memory_bytes


def _checked(body: bytes, place: RunPlace) -> ColdRun:
    """The run's batches, each with a right CRC-32C, and with the offsets and epoch that the footer gave: no CRC covers those."""
    base_offsets, starts, at = [], [0], 0
    expected = place.base_offset
    try:
        batches = split_batches(body)
    except InvalidRecord as error:
        raise _damaged(place, f"what is there is no run of record batches: {error}") from error
    for batch in batches:
        header = check_stored(batch, key=place.key, start=place.start + at)
        if header.base_offset != expected:
            raise _damaged(place, f"a batch begins at offset {header.base_offset} where {expected} comes next")
        if header.leader_epoch != place.leader_epoch:
            raise _damaged(place, f"the batch at offset {expected} has leader epoch {header.leader_epoch}")
        base_offsets.append(Offset(header.base_offset))
        at += header.size
        starts.append(at)
        expected = Offset(header.last_offset + 1)
    if expected != place.last_offset + 1:
        raise _damaged(place, f"the run ends before offset {expected}")
    return ColdRun(memoryview(body), base_offsets, starts)


def _damaged(place: RunPlace, what: str) -> Corrupt:
    return Corrupt(f"{place}: {what}", key=place.key, start=place.start, end=place.end)
