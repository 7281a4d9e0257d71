from __future__ import annotations

import asyncio

import pytest

from gateway.topics.usage.bucket_snapshots import PARTS, BucketSnapshots
from metadata.errors import Unavailable
from segments.object_store.interface import ListPage
from segments.object_store.memory import MemoryObjectStore
from tests.simulation.virtual_loop import run


class CountingStore(MemoryObjectStore):
    """Counts listings, which wait while it is held, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = 0
        self.held: asyncio.Event | None = None
        self.fails = False

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self.lists += 1
        if self.held is not None:
            await self.held.wait()
        if self.fails:
            raise Unavailable("the bucket is away")
        return await super().list(prefix, start_after=start_after, limit=limit)


async def running(snapshots: BucketSnapshots) -> asyncio.Task[None]:
    return asyncio.create_task(snapshots.run())


def test_the_bucket_is_listed_when_it_is_asked_for_and_then_only_when_that_is_old() -> None:
    async def scenario() -> None:
        store = CountingStore()
        await store.create("wal/0000000000000001/claim", [b"1"])
        snapshots = BucketSnapshots(store, lambda: 5)
        task = await running(snapshots)
        await asyncio.sleep(3_600)
        assert store.lists == 0, "it was not asked for"
        answers = await asyncio.gather(*(snapshots.ask(wait_s=1) for _ in range(20)))
        assert all(answer is not None and answer.tally.total.objects == 1 for answer in answers)
        assert store.lists == len(PARTS)
        await asyncio.sleep(50)
        await snapshots.ask(wait_s=1)
        assert store.lists == len(PARTS)
        await asyncio.sleep(20)
        assert await snapshots.ask(wait_s=1) is not answers[0]
        assert store.lists == 2 * len(PARTS)
        await asyncio.sleep(70)
        store.held = asyncio.Event()
        older = snapshots.latest
        assert await snapshots.ask(wait_s=1) is older, "the listing takes longer than the request waits"
        store.held.set()
        await asyncio.sleep(1)
        assert snapshots.latest is not older
        task.cancel()

    run(scenario())


def test_a_bucket_with_many_objects_is_listed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = CountingStore()
        monkeypatch.setattr("gateway.topics.usage.bucket_snapshots.PAGE_AGE_S", 100.0)
        snapshots = BucketSnapshots(store, lambda: 5)
        task = await running(snapshots)
        await snapshots.ask(wait_s=1)
        await asyncio.sleep(100 * len(PARTS) - 10)
        await snapshots.ask(wait_s=1)
        await asyncio.sleep(5)
        assert store.lists == len(PARTS)
        await asyncio.sleep(10)
        await snapshots.ask(wait_s=1)
        await asyncio.sleep(5)
        assert store.lists == 2 * len(PARTS)
        task.cancel()

    run(scenario())


def test_a_listing_that_takes_long_keeps_no_request() -> None:
    async def scenario() -> None:
        store = CountingStore()
        store.held = asyncio.Event()
        snapshots = BucketSnapshots(store, lambda: 5)
        task = await running(snapshots)
        assert await snapshots.ask(wait_s=1) is None
        assert snapshots.is_listing
        assert await snapshots.ask(wait_s=1) is None
        assert store.lists == 1
        store.held.set()
        assert await snapshots.ask(wait_s=1) is not None
        task.cancel()

    run(scenario())


def test_a_bucket_that_is_away_is_said_to_be_and_listed_again_later() -> None:
    async def scenario() -> None:
        store = CountingStore()
        store.fails = True
        snapshots = BucketSnapshots(store, lambda: 5)
        task = await running(snapshots)
        assert await snapshots.ask(wait_s=1) is None
        assert "away" in snapshots.trouble
        await snapshots.ask(wait_s=1)
        assert store.lists == 1
        store.fails = False
        await asyncio.sleep(61)
        await snapshots.ask(wait_s=1)
        await asyncio.sleep(1)
        assert snapshots.latest is not None
        assert snapshots.trouble == ""
        task.cancel()

    run(scenario())


def test_a_fault_in_a_listing_ends_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = CountingStore()
        snapshots = BucketSnapshots(store, lambda: 5)
        task = await running(snapshots)
        with monkeypatch.context() as patched:
            patched.setattr("gateway.topics.usage.bucket_snapshots.BucketTally", None)
            assert await snapshots.ask(wait_s=1) is None
        assert "internal error" in snapshots.trouble
        assert not task.done()
        await asyncio.sleep(61)
        assert await snapshots.ask(wait_s=1) is not None
        task.cancel()

    run(scenario())


def test_a_part_with_too_many_objects_is_cut_and_the_others_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = CountingStore()
        for seq in range(1_500):
            await store.create(f"wal/0000000000000001/{seq:016x}", [b"12345678901234567890"])
        await store.create("spark/x", [b"1"])
        monkeypatch.setitem(PARTS, "wal/", 1)
        snapshots = BucketSnapshots(store, lambda: 5)
        task = await running(snapshots)
        found = await snapshots.ask(wait_s=1)
        assert found is not None
        assert found.cut == ("wal/",)
        assert {kind: tally.objects for kind, tally in found.tally.kinds.items()} == {"segments": 1_000, "staged": 1}
        task.cancel()

    run(scenario())
