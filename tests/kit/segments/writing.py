"""A segment writer at work on a scripted bucket, for the tests of segments/wal/segment_writer.py; under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from metadata.errors import TidelogError
from metadata.model import SegmentSeq, TopicPartition
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.object_store.health import HealthState
from segments.settings import SegmentSettings
from segments.wal.pending_segment import PendingSegment
from segments.wal.segment_file import SEGMENT_MAGIC, SegmentFooter, parse_footer, parse_head
from segments.wal.segment_writer import SegmentWriter
from segments.wal.session import seal
from tests.kit.segments.batches import BY, EPOCH, ORDERS, PAYMENTS, SESSION, WRITER, batch_of, stamped
from tests.kit.segments.scripted_store import ScriptedStore
from tests.simulation.virtual_loop import run, virtual_loop

SETTINGS = SegmentSettings()
# Each batch is a segment of its own.
AT_ONCE = SegmentSettings(linger_ms=0)


class Writing:
    """A writer at work, and all that it was given and has said."""

    def __init__(self, store: ScriptedStore, settings: SegmentSettings) -> None:
        self.store = store
        self.budget = ByteBudget(1 << 30)
        self.counters = LogCounters()
        self.bucket_state = HealthState.HEALTHY
        self.leaps = 0
        self.writer = SegmentWriter(
            store,
            SESSION,
            settings,
            budget=self.budget,
            now_ms=virtual_loop().now_ms,
            on_committed=self._on_committed,
            counters=self.counters,
            bucket_state=lambda: self.bucket_state,
            leaps=lambda: self.leaps,
        )
        self.running = asyncio.get_running_loop().create_task(self.writer.run())
        self.committed: list[tuple[int, float]] = []
        self._added: list[tuple[TopicPartition, int, PendingSegment]] = []
        self._ends = {ORDERS: 0, PAYMENTS: 0}

    def add(self, value: bytes = b"v", *, partition: TopicPartition = ORDERS) -> PendingSegment:
        batch = stamped(batch_of(value), self._ends[partition])
        pending = self.writer.add(partition, EPOCH, batch, bytes_charged=batch.size_bytes)
        self.budget.take(batch.size_bytes)
        self._added.append((partition, batch.base_offset, pending))
        self._ends[partition] += 1
        return pending

    def _on_committed(self, footer: SegmentFooter, segment: PendingSegment) -> None:
        assert not segment.outcome.done(), "a segment is readable before its producers are answered"
        self.committed.append((footer.seq, asyncio.get_running_loop().time()))

    async def check_truth(self) -> None:
        """What was acknowledged is visible to a successor, what was refused as never written is not, and the budget is whole."""
        assert self.writer.ended
        await asyncio.sleep(1000)  # what is still on the wire lands
        self.store.heal()
        listing = await seal(self.store, SESSION.id, by=BY, now_ms=virtual_loop().now_ms)
        visible: set[tuple[TopicPartition, int]] = set()
        for seq, found in enumerate(listing.segments):
            assert found is not None, f"segment {seq} was committed, and is gone"
            body = self.store.content(found.key)
            if body.startswith(SEGMENT_MAGIC) and parse_head(body, key=found.key).writer == WRITER:
                footer = parse_footer(body, object_size=len(body), session=SESSION.id, seq=SegmentSeq(seq), key=found.key)
                visible |= {
                    (run.partition, offset) for run in footer.runs for offset in range(run.base_offset, run.last_offset + 1)
                }
        for partition, offset, pending in self._added:
            assert pending.outcome.done(), f"{partition} {offset} was never answered"
            error = pending.outcome.result()
            if error is None:
                assert (partition, offset) in visible, f"{partition} {offset} was acknowledged and is not there"
            elif error.nothing_was_written:
                assert (partition, offset) not in visible, f"{partition} {offset} was refused and is there: {error}"
        assert [seq for seq, _ in self.committed] == list(range(len(self.committed)))
        assert self.budget.bytes_used == 0


@asynccontextmanager
async def writing(store: ScriptedStore, settings: SegmentSettings = AT_ONCE) -> AsyncIterator[Writing]:
    at_work = Writing(store, settings)
    await asyncio.sleep(0)
    try:
        yield at_work
    finally:
        if not at_work.running.done():
            at_work.writer.close()
            await at_work.running
    await at_work.check_truth()


def with_writer(
    store: ScriptedStore, work: Callable[[Writing], Coroutine[None, None, None]], *, settings: SegmentSettings = AT_ONCE
) -> None:
    async def main() -> None:
        async with writing(store, settings) as at_work:
            await work(at_work)

    run(main())


async def outcome(pending: PendingSegment) -> TidelogError | None:
    await asyncio.wait((pending.outcome,))
    return pending.outcome.result()


async def outcomes(pending: list[PendingSegment]) -> list[type[TidelogError] | None]:
    return [type(error) if (error := await outcome(segment)) is not None else None for segment in pending]


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def until_s(at_s: float) -> None:
    await asyncio.sleep(at_s - now_s())
