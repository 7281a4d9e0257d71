"""A segment with three runs on a scripted bucket, and a cold pool to read it with, for the tests of the cold pool; under virtual
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from metadata.model import SegmentSeq, SessionId
from segments.byte_budget import ByteBudget
from segments.read.read_cache import ReadCache
from segments.wal.run_index import RunLocation
from segments.wal.segment_file import Run
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of, partition_of, segment_of, stamped_run
from tests.kit.segments.scripted_store import ScriptedStore
from tests.simulation.virtual_loop import run

SESSION, SEQ = SessionId(7), SegmentSeq(0)
BATCHES = [batch_of(b"one", b"two"), batch_of(b"three"), batch_of(b"four", b"five")]


def location_of(found: Run) -> RunLocation:
    return RunLocation(
        found.base_offset, found.last_offset, SESSION, SEQ, found.start, found.end, found.leader_epoch, found.max_timestamp
    )


SEGMENT = segment_of(
    SESSION,
    SEQ,
    [
        (ORDERS, stamped_run(100, *BATCHES)),
        (PAYMENTS, stamped_run(0, batch_of(b"other"))),
        (partition_of(9), stamped_run(0, batch_of(b"third"))),
    ],
)
BODY = b"".join(SEGMENT.body)
LOCATION, OTHER, THIRD = map(location_of, SEGMENT.footer.runs)
KEY = LOCATION.key


def bucket(body: bytes = BODY) -> ScriptedStore:
    store = ScriptedStore()
    store.plant(KEY, body)
    return store


@asynccontextmanager
async def cold_pool(store: ScriptedStore, *, bytes_max: int = 1 << 20, reads: ByteBudget | None = None) -> AsyncIterator[ReadCache]:
    """A pool whose reads belong to a task group, as they do to the log's."""
    async with asyncio.TaskGroup() as tasks:
        yield ReadCache(store, bytes_max=bytes_max, reads=reads or ByteBudget(1 << 20), read_timeout_s=10, spawn=tasks.create_task)


def with_pool(store: ScriptedStore, work: Callable[[ReadCache], Coroutine[None, None, object]]) -> None:
    async def main() -> None:
        async with cold_pool(store) as pool:
            await work(pool)

    run(main())


def damaged(*at: int) -> bytes:
    """The segment with a flipped bit in each of these bytes."""
    body = bytearray(BODY)
    for byte in at:
        body[byte] ^= 1
    return bytes(body)
