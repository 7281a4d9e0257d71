"""Those who keep history in shape beside each other, and dying at any request: no record is lost, nothing named is deleted."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from compaction.compactor import Compactor
from compaction.maintenance.key_compaction import plan_key_pass
from compaction.maintenance.key_pass import run_key_pass
from compaction.notifier import ManifestNotifier
from metadata.errors import Denied, Unavailable
from metadata.model import Partition, TopicPartition
from segments.settings import MIB
from tests.kit.compaction.compacting import AT_ONCE, LAYOUT, Scene, on_a_bucket, plain, values
from tests.kit.compaction.kept import (
    GRACE_MS,
    Crash,
    Guarded,
    Keeper,
    Meanwhile,
    Record,
    Unhurried,
    configure,
    guarded_keeper,
    record,
    records_in,
    settle,
    small_files,
    some,
    unnamed,
    write_files,
)
from tests.kit.seeds import seeds
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of

# ── others at the same bucket ──


def test_a_commit_that_another_was_faster_with_is_made_again_and_leaves_nothing_behind() -> None:
    async def work(scene: Scene) -> None:
        await small_files(scene)
        records = await records_in(scene)
        keeper = Keeper(scene, store=Meanwhile(scene, "create manifest", lambda: write_files(scene, some(8, 2, at_ms=0))))
        await keeper.tick()
        assert await records_in(scene) == [*records, *some(8, 2, at_ms=0)]
        assert len((await scene.manifest()).files) == 2
        assert unnamed(scene, [await scene.manifest()]) == []
        keeper.close()

    on_a_bucket(work)


def test_a_maintainer_that_was_overtaken_plans_again_without_a_notice() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="1000")
        await write_files(scene, some(0, 2, at_ms=0), some(2, 2, at_ms=scene.now_ms() + 10**9))
        newer = some(4, 2, at_ms=scene.now_ms() + 10**9)
        keeper = Keeper(scene, store=Meanwhile(scene, "create manifest", lambda: write_files(scene, newer)))
        await keeper.tick()
        assert (await scene.manifest()).log_start_offset == 0
        await keeper.tick()
        assert (await scene.manifest()).log_start_offset == 2
        keeper.close()

    on_a_bucket(work)


def test_records_that_another_compactor_has_compacted_count_once_for_retention_bytes() -> None:
    """Found by the simulation: as pending and as a file it counted twice, and what was to stay went."""

    async def work(scene: Scene) -> None:
        for n in range(2):
            scene.store.segment(7, {ORDERS: [batch_of(*values(10 * n, 10))]})
            await scene.compacted()
        scene.store.segment(7, {ORDERS: [batch_of(*values(20, 10, size=2000))], PAYMENTS: [batch_of(b"not due")]})
        later = replace(AT_ONCE, compaction_due_bytes=MIB, compaction_due_age_ms=1e12)
        context = scene.context(later)
        waiting = Compactor(context, ManifestNotifier(scene.metadata, LAYOUT), report=lambda text: None)
        await waiting.tick()
        await scene.compacted(replace(later, compaction_due_bytes=10_000))
        context.manifests.forget(ORDERS)  # as when a commit has lost
        manifest = await scene.manifest()
        assert manifest.compacted_to == 30
        await configure(scene, retention_ms="-1", retention_bytes=str(sum(file.size_bytes for file in manifest.files)))
        await waiting.tick()
        assert (await scene.manifest()).log_start_offset == 0
        await configure(scene, retention_ms="-1", retention_bytes=str(sum(file.size_bytes for file in manifest.files[1:])))
        await waiting.tick()
        assert (await scene.manifest()).log_start_offset == 10

    on_a_bucket(work)


def test_a_merge_of_files_that_another_has_merged_is_given_up() -> None:
    async def work(scene: Scene) -> None:
        await small_files(scene)
        records = await records_in(scene)

        async def merged() -> None:
            await settle(scene)
            scene.ahead_ms += 10 * GRACE_MS
            await settle(scene)

        keeper = Keeper(scene, store=Meanwhile(scene, "get file", merged))
        await keeper.tick()
        await keeper.until_quiet()
        assert await records_in(scene) == records
        assert unnamed(scene, [await scene.manifest()]) == []
        keeper.close()

    on_a_bucket(work)


@pytest.mark.parametrize("meanwhile", ["merge", "key pass"])
def test_a_pass_whose_files_another_has_changed_is_not_remembered(meanwhile: str) -> None:
    """It is carried out again: a remembered one would leave duplicate keys below its end for good."""

    async def work(scene: Scene) -> None:
        await configure(scene, cleanup_policy="compact")
        await write_files(scene, *([record(n * 2, b"a"), record(n * 2 + 1, b"b%d" % n)] for n in range(4)))

        async def changed() -> None:
            if meanwhile == "merge":
                await configure(scene, cleanup_policy="delete", retention_ms="-1")
                await guarded_keeper(scene).tick()
                await configure(scene, cleanup_policy="compact")
            else:
                await guarded_keeper(scene).tick()

        keeper = Keeper(scene, store=Meanwhile(scene, "get file", changed))
        await keeper.collector.run()
        manifest = await keeper.context.manifests.newest("orders", ORDERS)
        plan = plan_key_pass(manifest, keeper.context.topics.settings(ORDERS.topic_id), dirty_ratio_min=0.5, now_ms=scene.now_ms())
        assert plan is not None
        outcome = await run_key_pass(keeper.context, "orders", ORDERS, manifest, plan)
        assert not outcome.is_over
        assert bool((await scene.manifest()).key_passes) == (meanwhile == "key pass")
        keeper.close()
        await settle(scene)
        assert [one[0] for one in await records_in(scene)] == [1, 3, 5, 6, 7]
        assert [one.end_offset for one in (await scene.manifest()).key_passes] == [8]

    on_a_bucket(work)


def test_a_compactor_that_stalls_for_an_hour_before_it_names_its_file_loses_and_leaves_nothing() -> None:
    async def work(scene: Scene) -> None:
        await small_files(scene)
        records = await records_in(scene)

        async def an_hour_goes_by() -> None:
            scene.ahead_ms += 3_600_000
            await settle(scene)

        keeper = Keeper(scene, store=Meanwhile(scene, "create manifest", an_hour_goes_by))
        await keeper.tick()
        assert await records_in(scene) == records
        keeper.close()
        scene.ahead_ms += 200 * GRACE_MS
        await settle(scene)
        assert await records_in(scene) == records
        assert unnamed(scene, [await scene.manifest()]) == []

    on_a_bucket(work)


def test_a_bucket_that_denies_deletes_is_logged_once_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        await small_files(scene)

        class Denying(Guarded):
            async def delete(self, key: str) -> None:
                self.calls.append(f"delete {key}")
                raise Denied("AccessDenied: s3:DeleteObject")

        store = Denying(plain(scene.store), scene)
        keeper = Keeper(scene, store=store)
        for _ in range(5):
            await keeper.tick()
            scene.ahead_ms += GRACE_MS + 1
        assert len((await scene.manifest()).files) == 1
        tried = [call for call in store.calls if call.startswith("delete")]
        assert 1 <= len(tried) <= 16
        await write_files(scene, *(some(n * 2, 2, at_ms=0) for n in range(4, 8)))
        keeper.close()
        await settle(scene)
        assert len(scene.store.keys("topics/orders/" + ORDERS.topic_id + "/partition=0/")) == len((await scene.manifest()).files)

    with caplog.at_level(logging.ERROR):
        on_a_bucket(work)
    assert len([text for text in caplog.messages if "s3:DeleteObject" in text]) == 1


def test_an_idle_bucket_costs_no_request() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="-1")
        for n in range(20):
            await write_files(scene, some(0, 2, at_ms=0), partition=TopicPartition(ORDERS.topic_id, Partition(n)))
        store = Guarded(plain(scene.store), scene)
        keeper = Keeper(scene, store=store)
        await keeper.tick()
        listed = len(store.calls)
        for _ in range(50):
            scene.ahead_ms += GRACE_MS
            await keeper.tick()
        assert store.calls[listed:] == []
        keeper.close()

    on_a_bucket(work)


def test_a_bucket_that_is_away_is_waited_for_and_then_asked_again_later() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="1000")
        manifest = await write_files(scene, some(0, 2, at_ms=0))
        keeper = Keeper(scene)
        scene.store.outage = Unavailable("503")
        await keeper.tick()
        scene.store.heal()
        scene.ahead_ms += 200 * GRACE_MS
        await keeper.tick()
        await keeper.tick()
        assert (await scene.manifest()).log_start_offset == manifest.compacted_to
        keeper.close()

    on_a_bucket(work)


# ── several at once ──


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(12), quick=3))
def test_several_at_once_get_in_each_others_way_and_no_record_is_lost(seed: int) -> None:
    async def work(scene: Scene) -> None:
        chance = random.Random(seed)
        await configure(scene, cleanup_policy=chance.choice(("compact", "delete")), retention_ms="-1", delete_retention_ms="20000")
        expected: dict[bytes, Record] = {}
        everything: list[Record] = []
        keepers = [Keeper(scene, store=Unhurried(Guarded(plain(scene.store), scene), chance)) for _ in range(3)]

        async def keep(keeper: Keeper) -> None:
            for _ in range(8):
                await keeper.tick()
                await asyncio.sleep(chance.random() * GRACE_MS / 500)

        async def write() -> None:
            for _ in range(10):
                first = len(everything)
                added = [
                    record(first + n, b"k%d" % chance.randrange(6), at_ms=scene.now_ms()) for n in range(chance.randrange(1, 6))
                ]
                await write_files(scene, added)
                everything.extend(added)
                expected.update((one[2] or b"", one) for one in added)
                await asyncio.sleep(chance.random() * GRACE_MS / 400)

        async with asyncio.TaskGroup() as tasks:
            for keeper in keepers:
                tasks.create_task(keep(keeper))
            tasks.create_task(write())
        for keeper in keepers:
            keeper.close()
        scene.ahead_ms += 200 * GRACE_MS
        await settle(scene)
        scene.ahead_ms += 200 * GRACE_MS
        await settle(scene)
        found = await records_in(scene)
        if scene.topics.settings(ORDERS.topic_id).compacts:
            assert set(expected.values()) <= set(found) <= set(everything)
            assert sorted(found) == found
            clean_to = (await scene.manifest()).key_passes[-1].end_offset
            clean = [one[2] for one in found if one[0] < clean_to]
            assert len(set(clean)) == len(clean)
        else:
            assert found == everything
        assert unnamed(scene, [await scene.manifest()]) == []

    on_a_bucket(work, seed=seed)


# ── crashes ──


async def merging(scene: Scene) -> list[Record]:
    await configure(scene, retention_ms="-1")
    await write_files(scene, *(some(n * 3, 3, at_ms=n) for n in range(4)))
    return await records_in(scene)


async def expiring(scene: Scene) -> list[Record]:
    now = scene.now_ms()
    await configure(scene, retention_ms="500000")
    await write_files(scene, some(0, 3, at_ms=0), some(3, 3, at_ms=0), some(6, 3, at_ms=now))
    return some(6, 3, at_ms=now)


async def compacting_keys(scene: Scene) -> list[Record]:
    await configure(scene, cleanup_policy="compact")
    await write_files(
        scene, [record(0, b"a"), record(1, b"b"), record(2, b"a")], [record(3, b"b"), record(4, b"c")], [record(5, b"c")]
    )
    return [record(2, b"a"), record(3, b"b"), record(5, b"c")]


async def deleted(scene: Scene) -> list[Record]:
    await write_files(scene, some(0, 3, at_ms=0), some(3, 3, at_ms=0))
    await scene.delete_topic("orders", ORDERS.topic_id)
    return []


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [merging, expiring, compacting_keys, deleted])
def test_a_process_may_die_at_every_request(prepare: Callable[[Scene], Coroutine[Any, Any, list[Record]]]) -> None:
    """What is there stays readable at every moment, and the next one ends in the same state as without a death."""
    calls = 0

    async def undisturbed(scene: Scene) -> None:
        nonlocal calls
        expected = await prepare(scene)
        store = Guarded(plain(scene.store), scene)
        keeper = Keeper(scene, store=store)
        await keeper.until_quiet()
        keeper.close()
        calls = len(store.calls)
        await check(scene, expected)

    async def check(scene: Scene, expected: list[Record]) -> None:
        if prepare is deleted:
            assert all("/_log/deleted-" in key for key in scene.store.keys("topics/orders/"))
            return
        assert await records_in(scene) == expected
        assert unnamed(scene, [await scene.manifest()]) == []

    def dying(at: int, *, after: bool) -> Callable[[Scene], Coroutine[Any, Any, None]]:
        async def work(scene: Scene) -> None:
            expected = await prepare(scene)
            keeper = Keeper(scene, store=Guarded(plain(scene.store), scene, dies_at=at, after=after))
            died = False
            try:
                await keeper.until_quiet()
            except Crash:
                died = True
            except BaseExceptionGroup as group:
                died = group.split(Crash)[1] is None
            keeper.close()
            assert died
            if prepare is not deleted:
                assert {one[0] for one in expected} <= {one[0] for one in await records_in(scene)}
            await settle(scene)
            scene.ahead_ms += 200 * GRACE_MS
            await settle(scene)
            await check(scene, expected)

        return work

    on_a_bucket(undisturbed)
    assert calls > 5
    for at in range(calls):
        for after in (False, True):
            on_a_bucket(dying(at, after=after))
