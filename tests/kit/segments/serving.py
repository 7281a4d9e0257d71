"""A log at work on a scripted bucket, for the tests of segments/log/session_log.py; under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from metadata.errors import TidelogError
from metadata.model import LeaderEpoch, TopicPartition
from segments.byte_budget import ByteBudget
from segments.log.session_log import Acks, FetchTarget, PendingAppend, SessionLog, memory_bytes
from segments.object_store.store_clock import StoreClock
from segments.partition.partition_log import Appended
from segments.read.log_reader import FetchResult
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from segments.settings import SegmentSettings
from segments.wal.session import Session
from tests.kit.segments.batches import EPOCH, ORDERS, PAYMENTS, SESSION, batch_of, header_of, key_of, records_in
from tests.kit.segments.scripted_store import ScriptedStore, slow
from tests.simulation.virtual_loop import run, virtual_loop

SETTINGS = SegmentSettings()
EVERYTHING = 1 << 30


def bucket(*, put_s: float = 0.0, puts: int = 20) -> ScriptedStore:
    """A bucket whose first PUTs take `put_s` each."""
    store = ScriptedStore()
    for seq in range(puts if put_s else 0):
        store.script("create", key_of(seq), slow(put_s))
    return store


def lose_lease(log: SessionLog) -> None:
    """From now on the lease of the log's session may have ended."""
    log.leadership.lease_is_valid = lambda: False


@asynccontextmanager
async def serving(
    store: ScriptedStore,
    settings: SegmentSettings = SETTINGS,
    *,
    session: Session = SESSION,
    recovered: tuple[RecoveredPartition, ...] = (),
    epoch: LeaderEpoch = EPOCH,
    clock: StoreClock | None = None,
    on_deletion: Callable[[TopicPartition, int], None] = lambda partition, version: None,
) -> AsyncIterator[SessionLog]:
    """A log at work that leads ORDERS and PAYMENTS, or what was recovered. At the end nothing of it may be left."""
    budget = ByteBudget(settings.buffer_bytes_max)
    clock = clock or StoreClock(virtual_loop().now_ms)
    log = SessionLog(
        store, session, settings, budget=budget, now_ms=clock.stamp_ms, expires_ms=clock.now_ms, on_deletion=on_deletion
    )
    for partition in recovered or (empty_partition(ORDERS, settings), empty_partition(PAYMENTS, settings)):
        log.lead(partition, epoch)
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    try:
        yield log
    finally:
        store.heal()
        log.close()
        await asyncio.wait((running,))
    assert running.cancelled() or running.exception() is None
    assert log.ended
    assert list(log.partitions.keys()) == []
    assert budget.bytes_used == 0
    assert log.reads.readers_waiting == 0


def with_log(
    store: ScriptedStore, work: Callable[[SessionLog], Coroutine[Any, Any, None]], settings: SegmentSettings = SETTINGS
) -> None:
    async def main() -> None:
        async with serving(store, settings) as log:
            await work(log)

    run(main())


async def produce(
    log: SessionLog, batch: bytes = b"", *, partition: TopicPartition = ORDERS, acks: Acks = Acks.ALL, timeout_s: float = 30
) -> Appended:
    batch = batch or batch_of(b"v")
    return await log.produce(partition, batch, header_of(batch), acks=acks, timeout_s=timeout_s)


async def append(
    log: SessionLog, batch: bytes, *, partition: TopicPartition = ORDERS, expected_offset: int | None = None
) -> PendingAppend:
    async with log.admit(memory_bytes(len(batch)), timeout_s=1) as admission:
        return log.append(partition, batch, header_of(batch), admission, expected_offset=expected_offset)


async def fetch(
    log: SessionLog,
    offset: int,
    *,
    partition: TopicPartition = ORDERS,
    bytes_max: int = EVERYTHING,
    bytes_min: int = 1,
    wait_ms_max: float = 0,
) -> FetchResult:
    target = FetchTarget(partition, offset, bytes_max)
    (answer,) = await log.reads.fetch([target], bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
    if isinstance(answer, TidelogError):
        raise answer
    return answer


async def values(log: SessionLog, offset: int = 0, *, partition: TopicPartition = ORDERS) -> list[bytes | None]:
    return [value for _, value in records_in((await fetch(log, offset, partition=partition)).batches, from_offset=offset)]


async def refusal_of(waited_for: Awaitable[object]) -> TidelogError:
    try:
        await waited_for
    except TidelogError as error:
        return error
    raise AssertionError("it was not refused")


def now_s() -> float:
    return asyncio.get_running_loop().time()
