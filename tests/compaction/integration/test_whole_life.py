"""All that a compactor does, over and over, while it dies at any request: what was written is read, and nothing else is left."""

from __future__ import annotations

import random

import pytest

from compaction.settings import CompactionSettings
from segments.bucket.layout import parse_wal_key
from tests.kit.compaction.compacting import Record, Scene, on_a_bucket, plain
from tests.kit.compaction.kept import GRACE_MS, Crash, Guarded
from tests.kit.seeds import seeds
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of

SETTINGS = CompactionSettings(
    compaction_due_age_ms=1,
    compaction_threads=1,
    delete_grace_ms=GRACE_MS,
    merge_files_min=3,
    row_group_bytes=200,
    history_file_bytes_max=1 << 20,
    bucket_listing_interval_ms=5 * GRACE_MS,
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(10), quick=3))
def test_records_that_were_written_are_read_whatever_dies_when(seed: int) -> None:
    async def work(scene: Scene) -> None:
        chance = random.Random(seed)
        written: dict[str, list[Record]] = {str(ORDERS): [], str(PAYMENTS): []}
        deaths = 0

        def write() -> None:
            batches = {}
            for partition in chance.choice(((ORDERS,), (PAYMENTS,), (ORDERS, PAYMENTS))):
                log = written[str(partition)]
                values = [b"%d" % (len(log) + n) for n in range(chance.randrange(1, 5))]
                log += [(len(log) + n, value) for n, value in enumerate(values)]
                batches[partition] = [batch_of(*values)]
            scene.store.segment(1, batches)

        for _ in range(12):
            for _ in range(chance.randrange(4)):
                write()
            store = Guarded(plain(scene.store), scene, dies_at=chance.choice((None, *range(60))), after=chance.random() < 0.5)
            compactor = scene.compactor(SETTINGS, store=store)
            try:
                for _ in range(2):
                    await compactor.tick()
                    scene.ahead_ms += chance.choice((1, GRACE_MS // 2, 2 * GRACE_MS))
            except Crash:
                deaths += 1
            except BaseExceptionGroup as group:
                if group.split(Crash)[1] is not None:
                    raise
                deaths += 1
            for partition in (ORDERS, PAYMENTS):
                manifest = await scene.manifest(partition)
                assert await scene.history(partition) == written[str(partition)][: manifest.compacted_to]
        for _ in range(3):
            compactor = scene.compactor(SETTINGS, store=Guarded(plain(scene.store), scene))
            for _ in range(6):
                report = await compactor.tick(everything=True)
                assert not report.failed
                scene.ahead_ms += 2 * GRACE_MS
        for partition in (ORDERS, PAYMENTS):
            assert await scene.history(partition) == written[str(partition)]
        assert scene.orphans([await scene.manifest(partition) for partition in (ORDERS, PAYMENTS)]) == []
        left = [parse_wal_key(key) for key in scene.store.keys("wal/")]
        assert all(one is not None and one.seq is None for one in left), "all segments are in history, and gone"
        assert deaths > 0 or seed not in range(5)

    on_a_bucket(work)
