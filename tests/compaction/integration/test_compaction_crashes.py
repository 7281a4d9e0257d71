"""A compactor that dies, or whose bucket fails, at each of its calls: the next one finishes, and all is there once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from compaction.conversion import partition_file
from compaction.settings import CompactionSettings
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import segment_key
from tests.kit.compaction.blows import BLOWS, Blow, StruckStore
from tests.kit.compaction.compacting import Scene, expected, on_a_bucket, values
from tests.kit.segments.batches import EPOCH, ORDERS, PAYMENTS, batch_of, sequenced_batch

SMALL_FILES = CompactionSettings(
    compaction_due_age_ms=1, delete_grace_ms=0, compaction_threads=2, history_file_bytes_max=600, row_group_bytes=300
)
RECORDS, PAID = 40, 4


def written(scene: Scene) -> None:
    """By a leader that died, and by the next one, which is at work."""
    for n in range(2):
        scene.store.segment(7, {ORDERS: [batch_of(*values(10 * n, 10))], PAYMENTS: [sequenced_batch(5, n)]})
    scene.store.seal(7)
    for n in range(2, 4):
        later = {ORDERS: [batch_of(*values(10 * n, 10))], PAYMENTS: [sequenced_batch(5, n)]}
        scene.store.segment(9, later, epoch=EPOCH + 1)


async def check_all_is_there(scene: Scene) -> None:
    assert await scene.history() == expected(0, RECORDS)
    assert [offset for offset, _ in await scene.history(PAYMENTS)] == list(range(PAID))
    paid = await scene.manifest(PAYMENTS)
    assert [batch.base_sequence for producer in paid.producers for batch in producer.batches] == list(range(PAID))
    assert [(begun.leader_epoch, begun.start_offset) for begun in paid.epochs] == [(EPOCH, 0), (EPOCH + 1, 2)]
    assert scene.store.has(segment_key(SessionId(7), SegmentSeq(2))), "a seal is never deleted"


def calls_of_a_whole_run() -> int:
    counted = 0

    async def work(scene: Scene) -> None:
        nonlocal counted
        written(scene)
        store = StruckStore(scene.store)
        for _ in range(2):
            assert not (await scene.compactor(SMALL_FILES, store=store).tick()).failed
        counted = len(store.calls)
        await check_all_is_there(scene)
        assert len((await scene.manifest()).files) > 1

    on_a_bucket(work)
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("blow", BLOWS)
def test_whatever_call_a_compactor_dies_or_fails_at_the_next_one_finishes(blow: Blow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_file, "DECODED_AT_ONCE", 500)

    async def struck(scene: Scene, at: int) -> None:
        written(scene)
        store = StruckStore(scene.store, at=at, blow=blow)
        compactor = scene.compactor(SMALL_FILES, store=store)
        ticks = asyncio.create_task(compactor.tick())
        dying = asyncio.create_task(store.died.wait())
        await asyncio.wait((ticks, dying), return_when=asyncio.FIRST_COMPLETED)
        for task in (ticks, dying):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for _ in range(2):
            scene.ahead_ms += 1_000
            assert not (await scene.compactor(SMALL_FILES).tick()).failed
        await check_all_is_there(scene)
        assert scene.store.keys("wal/") == whole, f"{blow} at call {at}, {store.calls[at - 1]}"

    async def unhurt(scene: Scene) -> None:
        written(scene)
        for _ in range(3):
            scene.ahead_ms += 1_000
            await scene.compactor(SMALL_FILES).tick()
        whole.extend(scene.store.keys("wal/"))

    whole: list[str] = []
    on_a_bucket(unhurt)
    for at in range(1, calls_of_a_whole_run() + 1):
        on_a_bucket(lambda scene, at=at: struck(scene, at))  # type: ignore[misc]
