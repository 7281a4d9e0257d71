"""Leaders delete records, compactors rewrite and trim, brokers die: what was acknowledged and not deleted is read."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from compaction.compactor import Compactor
from compaction.context import CompactionContext
from compaction.manifest_cache import ManifestCache
from compaction.notifier import ManifestNotifier
from compaction.service import CompactionService
from compaction.settings import CompactionSettings
from metadata.cluster.manifest_notices import ManifestNoticeCache
from metadata.errors import TidelogError
from metadata.model import TopicPartition
from metadata.topics.cache import TopicCache
from segments.bucket.layout import parse_wal_key
from segments.log.manifest_follower import HIGH_WATERMARK
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult
from tests.kit.gateway.listenerless_cluster import LAYOUT
from tests.kit.gateway.virtual_cluster import World, in_a_world
from tests.kit.segments.batches import TIMESTAMP_MS, records_in
from tests.simulation.virtual_loop import virtual_loop

SETTINGS = CompactionSettings(compaction_due_age_ms=1_000, delete_grace_ms=2_000, compaction_threads=1)


class Compactors:
    def __init__(self, world: World) -> None:
        self.topics = TopicCache(world.metadata, LAYOUT)
        self.notices = ManifestNoticeCache(world.metadata, LAYOUT)
        nonces = itertools.count(1)
        self.compactors = [
            Compactor(
                CompactionContext(
                    world.bucket,
                    self.topics,
                    ManifestCache(world.bucket, bytes_max=1 << 20, timeout_s=5),
                    SETTINGS,
                    lambda: TIMESTAMP_MS + round(virtual_loop().time() * 1000),
                    lambda size: f"{next(nonces):0{2 * size}x}",
                    lambda name: True,
                ),
                ManifestNotifier(world.metadata, LAYOUT),
                report=lambda text: None,
            )
            for _ in range(2)
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.topics.run())
            tasks.create_task(self.notices.run())
            for compactor in self.compactors:
                self.notices.subscribe(compactor.hear)
                tasks.create_task(self._work(compactor))

    async def _work(self, compactor: Compactor) -> None:
        while True:
            await asyncio.sleep(1)
            await compactor.tick()


async def keep_deleting(world: World, reported: dict[TopicPartition, int], chance: random.Random) -> None:
    """Records in `reported` the log start of each partition, as far as a client received it."""
    while True:
        await asyncio.sleep(chance.uniform(0.2, 2))
        partition = chance.choice(list(reported))
        leader = world.leader(partition)
        if leader is None:
            continue
        try:
            log = leader.leadership.log
            before = chance.randint(reported[partition], log.partitions.bounds(partition).high_watermark)
            reported[partition] = max(reported[partition], await world._at(leader, log.manifests.delete_records(partition, before)))
        except TidelogError:
            continue


async def read(world: World, partition: TopicPartition) -> tuple[int, list[tuple[int, bytes | None]]]:
    """Where the log starts, and all records from there on."""
    await world.until(lambda: world.leader(partition) is not None)
    leader = world.leader(partition)
    assert leader is not None
    log = leader.leadership.log
    start, end, *_ = log.partitions.bounds(partition)
    at, found = start, list[tuple[int, bytes | None]]()
    while at < end:
        [fetched] = await log.reads.fetch([FetchTarget(partition, at, 1 << 24)], bytes_max=1 << 24, bytes_min=0)
        assert isinstance(fetched, FetchResult), fetched
        found += records_in(fetched.batches, from_offset=at)
        at = fetched.next_offset
    return start, found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_undeleted_records_survive_changes_of_leaders_and_compactors(seed: int) -> None:
    async def scenario(world: World) -> None:
        chance = random.Random(seed)
        await world.start("b1", "b2")
        partitions = await world.topic("orders", 4)
        reported = dict.fromkeys(partitions, 0)
        async with asyncio.TaskGroup() as tasks:
            work = [
                tasks.create_task(Compactors(world).run()),
                tasks.create_task(world.keep_producing(partitions, each_s=0.1)),
                tasks.create_task(keep_deleting(world, reported, chance)),
            ]
            for turn in range(3):
                await asyncio.sleep(chance.uniform(3, 8))
                victim = chance.choice([process for process in world.processes if world.is_alive(process)])
                victim.kill()
                await world.start(f"b{turn + 3}")
            await asyncio.sleep(8)
            for task in work:
                task.cancel()
        for partition in partitions:
            start, found = await read(world, partition)
            assert start >= reported[partition], "a log start that a client received holds for every later leader"
            assert [offset for offset, _ in found] == list(range(start, start + len(found)))
            kept = {offset: value for offset, value in world.acknowledged[partition].items() if offset >= start}
            assert dict(found).items() >= kept.items()
            assert len({value for _, value in found}) == len(found)
        seqs = [parsed.seq for key in world.bucket._keys if (parsed := parse_wal_key(key)) is not None and parsed.seq is not None]
        assert any(reported.values()), "some was deleted"
        assert max(seqs) > len(seqs), "and some was trimmed"

    in_a_world(scenario)


def test_records_that_were_deleted_leave_the_bucket_though_no_more_records_come() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        [partition] = await world.topic("orders")
        view = b1.view
        service = CompactionService(
            world.bucket,
            world.metadata,
            LAYOUT,
            view.topics,
            view.compactions,
            replace(SETTINGS, compaction_interval_ms=1_000),
            world.segments,
            compactor_id="c1",
            version="1",
            now_ms=lambda: TIMESTAMP_MS + round(virtual_loop().time() * 1000),
        )
        compacting = asyncio.ensure_future(service.run())
        await world.keep_producing([partition], for_s=3)
        files = f"topics/orders/{partition.topic_id}/partition=0/"
        await world.until(lambda: any(key.startswith(files) for key in world.bucket._keys))
        await asyncio.sleep(60)  # all is compacted, and nothing due any more
        end = b1.leadership.log.partitions.bounds(partition).high_watermark
        assert await world._at(b1, b1.leadership.log.manifests.delete_records(partition, HIGH_WATERMARK)) == end
        await asyncio.sleep(10)
        assert not any(key.startswith(files) for key in world.bucket._keys)
        compacting.cancel()

    in_a_world(scenario)
