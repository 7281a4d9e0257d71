"""Brokers read what others lead, some seconds after these have located the records, while all of it moves: compactors rewrite,
trim and collect, records are deleted, leaders die."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from metadata.errors import TidelogError
from metadata.model import TopicPartition
from segments.log.session_log import FetchTarget
from segments.read.follower_reader import LocatedTarget
from segments.read.record_locations import LeaderSnapshot
from tests.gateway.integration.test_delete_records_and_compaction import Compactors, keep_deleting, read
from tests.kit.gateway.virtual_cluster import World, in_a_world
from tests.kit.segments.batches import records_in

pytestmark = pytest.mark.slow
# How long after the leader's answer others read at the most: twice as long as what was replaced stays on the bucket.
LATE_S = 4.0


class Readers:
    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self.seen: dict[TopicPartition, dict[int, bytes | None]] = {}
        self.read: Counter[str] = Counter()
        """Answers that were read from runs or Parquet, and errors."""

    async def keep_reading(self, partitions: list[TopicPartition]) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.01, 0.1))
            try:
                await self._read_one(self._chance.choice(partitions))
            except TidelogError:  # the leader, or the reader, has no session, or is dead
                continue

    async def _read_one(self, partition: TopicPartition) -> None:
        world, chance = self._world, self._chance
        leader = world.leader(partition)
        others = [process for process in world.processes if world.is_alive(process) and process is not leader]
        if leader is None or not others:
            return
        reader = chance.choice(others)
        bounds = leader.leadership.log.partitions.bounds(partition)
        offset = chance.randint(bounds.log_start_offset, bounds.high_watermark)
        bytes_max = chance.choice([1, 500, 1 << 20])
        target = FetchTarget(partition, offset, bytes_max, locations_bytes_min=1)
        [reported] = await world._at(leader, leader.leadership.log.reads.fetch([target], bytes_max=bytes_max, bytes_min=0))
        if isinstance(reported, TidelogError) or reported.located is None:
            return
        if chance.random() < 0.3:
            await asyncio.sleep(chance.uniform(0, LATE_S))
        if not world.is_alive(reader):
            return
        asked = LocatedTarget(
            "orders",
            target,
            LeaderSnapshot(reported.located, reported.high_watermark, reported.log_start_offset, reported.leader_epoch),
        )
        [answer] = await world._at(reader, reader.leadership.log.reads.located.fetch([asked], bytes_max=bytes_max))
        if isinstance(answer, TidelogError):
            self.read[type(answer).__name__] += 1
            return
        assert answer.high_watermark == reported.high_watermark
        assert offset <= answer.next_offset <= reported.high_watermark
        records = records_in(answer.batches, from_offset=offset)
        assert [at for at, _ in records] == list(range(offset, answer.next_offset)), "no record is left out, and none comes twice"
        seen = self.seen.setdefault(partition, {})
        for at, value in records:
            assert seen.setdefault(at, value) == value, f"{partition} {at} was read as two records"
        if records:
            self.read["parquet" if reported.located.manifest_version else "runs"] += 1


@pytest.mark.parametrize("seed", range(2))
def test_located_reads_return_committed_records_while_leaders_and_files_change(seed: int) -> None:
    async def scenario(world: World) -> None:
        chance = random.Random(seed)
        await world.start("b1", "b2", "b3")
        partitions = await world.topic("orders", 3)
        deleted = dict.fromkeys(partitions, 0)
        readers = Readers(world, chance)
        async with asyncio.TaskGroup() as tasks:
            work = [
                tasks.create_task(Compactors(world).run()),
                tasks.create_task(world.keep_producing(partitions, each_s=0.1)),
                tasks.create_task(keep_deleting(world, deleted, chance)),
                *(tasks.create_task(readers.keep_reading(partitions)) for _ in range(4)),
            ]
            for turn in range(3):
                await asyncio.sleep(chance.uniform(3, 8))
                victim = chance.choice([process for process in world.processes if world.is_alive(process)])
                victim.kill()
                await world.start(f"b{turn + 4}")
            await asyncio.sleep(8)
            for task in work:
                task.cancel()
        for partition in partitions:
            start, found = await read(world, partition)
            left = {offset: value for offset, value in readers.seen[partition].items() if offset >= start}
            assert dict(found).items() >= left.items(), "what they were answered is what the log holds"
            acknowledged = world.acknowledged[partition]
            assert all(readers.seen[partition].get(at, value) == value for at, value in acknowledged.items())
        assert readers.read["parquet"] > 20
        assert readers.read["runs"] > 20
        assert readers.read.keys() <= {"parquet", "runs", "OutOfRange"}, "at most, some was deleted since the leader's answer"

    in_a_world(scenario)
