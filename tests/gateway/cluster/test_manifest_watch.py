"""Brokers follow what compactors did with the partitions that they lead, and ask for nothing where they did nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import pytest

from gateway.cluster.manifest_watch import PUBLISH_PAUSE_S_MAX
from metadata.cluster.manifest_notice import ManifestNotice, decode_notices, encode_notices
from metadata.errors import OutcomeUnknown
from metadata.model import TopicPartition
from metadata.store.interface import Delete, KeyValue, Put
from segments.bucket.layout import manifest_key
from segments.history.manifest import Manifest, encode_manifest
from segments.object_store.interface import Buffer
from tests.kit.gateway.listenerless_cluster import LAYOUT
from tests.kit.gateway.virtual_cluster import Fault, Process, World, in_a_world
from tests.kit.segments.manifests import compacted_to, remembered


async def compacts(world: World, manifest: Manifest, *, notifies: bool = True, unit: str = "u1") -> None:
    """A compactor commits a manifest, and may publish a notice of it."""
    await world.bucket.create(manifest_key("orders", manifest.topic_partition, manifest.version), [encode_manifest(manifest)])
    if notifies:
        [value] = encode_notices([ManifestNotice(*manifest.topic_partition, manifest.version)])
        await world.metadata.transact([], [Put(LAYOUT.compaction(unit), value)])


def held(process: Process, partition: TopicPartition) -> int | None:
    return process.leadership.log.manifests.version(partition)


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


def test_a_damaged_manifest_or_notice_does_not_stop_leaders_from_following_others() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        one, other = (await world.topic("orders", 2))[:2]
        await world.bucket.create(manifest_key("orders", one, 1), [b"{"])
        values = encode_notices([ManifestNotice(*one, 1), ManifestNotice(*other, 1)])
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
        await compacts(world, manifest, notifies=False)
        b1.to_bucket.before = lambda what: Fault.REFUSED if what == "list" else None
        [value] = encode_notices([ManifestNotice(*partition, 1)])
        await world.metadata.transact([], [Put(LAYOUT.compaction("u1"), value)])
        await asyncio.sleep(3)
        assert held(b1, partition) == 0
        b1.to_bucket.before = lambda what: None
        await world.until(lambda: held(b1, partition) == 1, within_s=3)

    in_a_world(scenario)


def test_a_new_leader_starts_from_the_manifest_and_needs_no_notice() -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        partitions = await world.topic("orders", 4)
        mine = [partition for partition in partitions if world.leader(partition) is b1]
        await world.keep_producing(mine, for_s=1)
        for partition in mine:
            end = b1.leadership.log.partitions.bounds(partition).high_watermark
            producers = remembered(end, producer_id=1)
            await compacts(world, compacted_to(end, partition=partition, epochs=[(0, 0)], producers=producers), notifies=False)
        b1.kill()
        await world.until(lambda: all(world.leader(partition) is b2 for partition in mine))
        assert [held(b2, partition) for partition in mine] == [1] * len(mine)
        assert all(len(b2.leadership.log.partitions.at(partition).runs) == 0 for partition in mine)
        for partition in mine:
            await world.produce(partition)  # as the producer that it was, whom only the manifest remembers

    in_a_world(scenario)


def test_a_new_leader_follows_a_manifest_whose_notice_came_during_its_takeover() -> None:
    """The notice comes between its look at the manifests and the step at which it leads."""

    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        partitions = await world.topic("orders", 4)
        mine = next(partition for partition in partitions if world.leader(partition) is b1)
        await world.keep_producing([mine], for_s=1)
        first = compacted_to(1, partition=mine, epochs=[(0, 0)], producers=remembered(1, producer_id=1))
        second = compacted_to(2, before=first, partition=mine, epochs=[(0, 0)], producers=remembered(2, producer_id=1))
        await compacts(world, first, notifies=False)
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


# ── what leaders delete ──


async def deletes(world: World, process: Process, partition: TopicPartition, before_offset: int) -> int:
    return await world._at(process, process.leadership.log.manifests.delete_records(partition, before_offset))


def deletion_notices(items: Iterable[KeyValue]) -> list[tuple[TopicPartition, int]]:
    return sorted(
        (notice.topic_partition, notice.version) for item in items for notice in decode_notices(item) if notice.is_deletion
    )


def test_a_leader_publishes_its_first_deletion_at_once_and_batches_later_ones() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        partitions = await world.topic("orders", 3)
        for partition in partitions:
            await world.produce(partition)
            await world.produce(partition)
        b1.to_bucket.calls.clear()
        for before_offset in (1, 2):
            for partition in partitions:
                assert await deletes(world, b1, partition, before_offset) == before_offset
        await asyncio.sleep(10)
        reported = (await world.metadata.range(LAYOUT.compactions)).items
        assert len(reported) == 2, "the first one at once, and the others"
        assert all(one.lease for one in reported), "it goes away by itself"
        assert deletion_notices(reported) == sorted([(partitions[0], 1), *((partition, 2) for partition in partitions)])
        assert reads_below_topics(b1) == 6 * 2 + 3, "two listings for each, and the earlier manifest: nothing for its own notices"

    in_a_world(scenario)


def test_a_new_leader_follows_a_deletion_that_its_predecessor_did_not_know_to_have_come_too_late() -> None:
    """Found by the simulation: a second process with its id had taken the first one's registration away, and led."""

    async def scenario(world: World) -> None:
        [first] = await world.start("b1")
        [partition] = await world.topic("orders")
        await world.keep_producing([partition], for_s=1)
        may_go_on = asyncio.Event()
        create = first.bucket.create

        async def late(key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
            if key == manifest_key("orders", partition, 1):
                await may_go_on.wait()
            await create(key, body, crc32c=crc32c)

        first.bucket.create = late  # type: ignore[method-assign]
        first.to_metadata.before = lambda what: Fault.HANGS if what == "keep alive" else None  # so that it hears of nothing
        first.metadata.reported_after_s = 6.0
        deleting = asyncio.ensure_future(deletes(world, first, partition, 2))
        second = world.begin("b1")
        await world.until(lambda: second.leads(partition))
        assert held(second, partition) == 0
        assert first.leadership.log.leadership.lease_is_valid(), "as far as it knows"
        may_go_on.set()
        with pytest.raises(OutcomeUnknown, match="its next leader may not know it yet"):
            await deleting
        await world.until(lambda: held(second, partition) == 1, within_s=2)
        assert second.leadership.log.partitions.bounds(partition).log_start_offset == 2

    in_a_world(scenario)


def test_a_deletion_whose_caller_has_hung_up_counts_as_soon_as_it_is_on_the_bucket() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        [partition] = await world.topic("orders")
        await world.keep_producing([partition], for_s=1)
        deleting = asyncio.ensure_future(b1.leadership.log.manifests.delete_records(partition, 2))
        manifest = manifest_key("orders", partition, 1)
        await world.until(lambda: any(call[1:] == ("create", manifest) for call in b1.to_bucket.calls))
        await asyncio.sleep(0.02)  # it is there, and its answer on the way
        deleting.cancel()
        await world.until(lambda: b1.leadership.log.partitions.bounds(partition).log_start_offset == 2, within_s=2)

    in_a_world(scenario)


@pytest.mark.parametrize("outlives_the_session", [False, True])
def test_a_deletion_that_lands_a_minute_after_it_was_given_up_is_followed_by_who_leads_then(outlives_the_session: bool) -> None:
    async def scenario(world: World) -> None:
        [first] = await world.start("b1")
        [partition] = await world.topic("orders")
        await world.keep_producing([partition], for_s=1)
        manifest, sent = manifest_key("orders", partition, 1), list[Buffer]()
        first.bucket.create = hangs(first, manifest, sent)  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown, match="not known whether a manifest was written"):
            await deletes(world, first, partition, 2)
        leader = first
        if outlives_the_session:
            [leader] = await world.start("b2")
            first.stop()
            await world.until(lambda: world.leader(partition) is leader)
        await asyncio.sleep(60)
        await world.bucket.create(manifest, sent[:1])
        await world.until(lambda: held(leader, partition) == 1, within_s=31)
        assert leader.leadership.log.partitions.bounds(partition).log_start_offset == 2

    in_a_world(scenario)


def hangs(process: Process, hanging: str, sent: list[Buffer]) -> Callable[..., Coroutine[Any, Any, None]]:
    """Replaces `create`: the write of that one object never ends."""
    create = process.bucket.create

    async def hung(key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        if key == hanging:
            sent.append(b"".join(body))
            await asyncio.Event().wait()
        await create(key, body, crc32c=crc32c)

    return hung


def test_a_deletion_that_never_lands_is_polled_with_backoff_until_its_notice_expires() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        [partition] = await world.topic("orders")
        await world.keep_producing([partition], for_s=1)
        first = compacted_to(3, partition=partition)
        await compacts(world, first)
        await world.until(lambda: held(b1, partition) == 1, within_s=1)
        b1.bucket.create = hangs(b1, manifest_key("orders", partition, 2), [])  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await deletes(world, b1, partition, 4)
        await asyncio.sleep(1)
        b1.to_bucket.calls.clear()
        await asyncio.sleep(620)
        assert 15 < reads_below_topics(b1) < 30, "listings; the manifest that is there was read once"
        b1.to_bucket.calls.clear()
        await asyncio.sleep(600)
        assert reads_below_topics(b1) == 0

    in_a_world(scenario)


def test_a_compactors_manifest_is_followed_though_an_unwritten_deletion_announced_its_version() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        [partition] = await world.topic("orders")
        await world.keep_producing([partition], for_s=1)
        [value] = encode_notices([ManifestNotice(*partition, 1, is_deletion=True)])
        await world.metadata.transact([], [Put(LAYOUT.compaction("never-written"), value)])
        await asyncio.sleep(300)
        await compacts(world, compacted_to(3, partition=partition))
        await world.until(lambda: held(b1, partition) == 1, within_s=1)

    in_a_world(scenario)


def test_deletions_during_an_outage_of_the_metadata_store_are_published_after_it() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        partitions = await world.topic("orders", 2)
        await world.keep_producing(partitions, for_s=1)
        b1.to_metadata.before = lambda what: Fault.REFUSED if what == "grant lease" else None
        for partition in partitions:
            assert await deletes(world, b1, partition, 2) == 2
            await asyncio.sleep(20)
        b1.to_metadata.before = lambda what: None
        await asyncio.sleep(PUBLISH_PAUSE_S_MAX)
        reported = (await world.metadata.range(LAYOUT.compactions)).items
        assert deletion_notices(reported) == sorted((partition, 1) for partition in partitions)
        assert len(reported) == 1, "all at once"

    in_a_world(scenario)


@pytest.mark.parametrize("is_away", [False, True])
def test_a_stopping_broker_publishes_its_last_deletions_if_the_metadata_store_answers(is_away: bool) -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        partitions = await world.topic("orders", 2)
        await world.keep_producing(partitions, for_s=1)
        for partition in partitions:
            assert await deletes(world, b1, partition, 2) == 2
            await asyncio.sleep(1)
        if is_away:
            b1.to_metadata.before = lambda what: Fault.HANGS if what == "grant lease" else None
        b1.stop()
        await b1.ends(within_s=6)
        reported = deletion_notices((await world.metadata.range(LAYOUT.compactions)).items)
        assert reported == sorted((partition, 1) for partition in partitions[: 1 if is_away else 2])

    in_a_world(scenario)
