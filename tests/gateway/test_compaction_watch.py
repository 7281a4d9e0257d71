"""Brokers follow what compactors did with the partitions that they lead, and ask for nothing where they did nothing."""

from __future__ import annotations

import asyncio

from metadata.compaction_notices import CompactionNotice, encode_notices
from metadata.model import TopicPartition
from metadata.store import Delete, Put
from segments.bucket_layout import manifest_key
from segments.manifest import Manifest, encode_manifest
from tests.gateway.doorless_cluster import LAYOUT
from tests.gateway.virtual_cluster import Fault, Process, World, in_a_world
from tests.segments.manifests import compacted_to, remembered


async def compacts(world: World, manifest: Manifest, *, tells: bool = True, unit: str = "u1") -> None:
    """A compactor commits a manifest, and may tell of it."""
    await world.bucket.create(manifest_key("orders", manifest.place, manifest.version), [encode_manifest(manifest)])
    if tells:
        [value] = encode_notices([CompactionNotice(*manifest.place, manifest.version)])
        await world.metadata.transact([], [Put(LAYOUT.compaction(unit), value)])


def held(process: Process, partition: TopicPartition) -> int | None:
    return process.leadership.log.manifest_version(partition)


def reads_below_topics(process: Process) -> int:
    return sum(what in {"list", "get"} and key.startswith("topics/") and "_log" in key for _, what, key in process.to_bucket.calls)


def test_a_leader_that_hears_of_it_reads_the_manifest_and_the_others_ask_for_nothing() -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        partition, other = (await world.topic("orders", 2))[:2]
        leader, bystander = (b1, b2) if world.leader(partition) is b1 else (b2, b1)
        await world.keep_producing([partition, other], for_s=1)
        for process in (b1, b2):
            process.to_bucket.calls.clear()
        first = compacted_to(3, partition=partition)
        await compacts(world, first)
        await world.until(lambda: held(leader, partition) == 1, within_s=1)
        await compacts(world, compacted_to(5, before=first, partition=partition))
        await world.until(lambda: held(leader, partition) == 2, within_s=1)
        assert reads_below_topics(leader) == 4, "a listing and the manifest, each time"
        await world.metadata.transact([], [Delete(LAYOUT.compaction("u1"))])
        await asyncio.sleep(60)
        assert (reads_below_topics(leader), reads_below_topics(bystander)) == (4, 0)

    in_a_world(scenario)


def test_damage_of_a_manifest_or_of_a_notice_stops_nobody_from_following_the_others() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        one, other = (await world.topic("orders", 2))[:2]
        await world.bucket.create(manifest_key("orders", one, 1), [b"{"])
        values = encode_notices([CompactionNotice(*one, 1), CompactionNotice(*other, 1)])
        await world.metadata.transact([], [Put(LAYOUT.compaction("damaged"), b"["), Put(LAYOUT.compaction("u0"), values[0])])
        await compacts(world, compacted_to(1, partition=other))
        await world.until(lambda: held(b1, other) == 1, within_s=2)
        assert held(b1, one) == 0

    in_a_world(scenario)


def test_a_bucket_that_is_away_is_asked_again() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        [partition] = await world.topic("orders")
        await world.produce(partition)
        manifest = compacted_to(1, partition=partition)
        await compacts(world, manifest, tells=False)
        b1.to_bucket.before = lambda what: Fault.REFUSED if what == "list" else None
        [value] = encode_notices([CompactionNotice(*partition, 1)])
        await world.metadata.transact([], [Put(LAYOUT.compaction("u1"), value)])
        await asyncio.sleep(3)
        assert held(b1, partition) == 0
        b1.to_bucket.before = lambda what: None
        await world.until(lambda: held(b1, partition) == 1, within_s=3)

    in_a_world(scenario)


def test_who_takes_over_starts_from_the_manifest_and_needs_no_notice() -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        partitions = await world.topic("orders", 4)
        mine = [partition for partition in partitions if world.leader(partition) is b1]
        await world.keep_producing(mine, for_s=1)
        for partition in mine:
            end = b1.leadership.log.bounds(partition).high_watermark
            producers = remembered(end, producer_id=1)
            await compacts(world, compacted_to(end, partition=partition, epochs=[(0, 0)], producers=producers), tells=False)
        b1.kill()
        await world.until(lambda: all(world.leader(partition) is b2 for partition in mine))
        assert [held(b2, partition) for partition in mine] == [1] * len(mine)
        assert all(len(b2.leadership.log._led[partition].runs) == 0 for partition in mine)
        for partition in mine:
            await world.produce(partition)  # as the producer that it was, whom only the manifest remembers

    in_a_world(scenario)


def test_who_takes_over_while_a_compactor_tells_of_a_newer_manifest_follows_it_once_it_leads() -> None:
    """The notice comes between its look at the manifests and the step at which it leads."""

    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        partitions = await world.topic("orders", 4)
        mine = next(partition for partition in partitions if world.leader(partition) is b1)
        await world.keep_producing([mine], for_s=1)
        first = compacted_to(1, partition=mine, epochs=[(0, 0)], producers=remembered(1, producer_id=1))
        second = compacted_to(2, before=first, partition=mine, epochs=[(0, 0)], producers=remembered(2, producer_id=1))
        await compacts(world, first, tells=False)
        get, came = b2.bucket.get, False

        async def compacted_behind_it(key: str, *, start: int = 0, end: int | None = None) -> bytes:
            nonlocal came
            body = await get(key, start=start, end=end)
            if key == manifest_key("orders", mine, 1):
                came = True
                await compacts(world, second)
                await asyncio.sleep(1)
            return body

        b2.bucket.get = compacted_behind_it  # type: ignore[method-assign]
        b1.kill()
        await world.until(lambda: world.leader(mine) is b2)
        assert came
        await world.until(lambda: held(b2, mine) == 2, within_s=1)

    in_a_world(scenario)
