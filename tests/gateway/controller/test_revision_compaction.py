"""The history of the metadata is dropped when it is old enough, without an effect on watchers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from gateway.controller.revision_compaction import compact_revisions
from metadata.model import Revision
from metadata.store.etcd.store import EtcdStore
from metadata.store.interface import Event, KeyValue, Put, RevisionCompacted
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch
from metadata.store.sqlite.store import SqliteStore
from tests.kit.etcd_server import running_etcd, settings
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
KEPT_S = 1800.0
ROUNDS = 5


def compacting(scenario: Callable[[FaultyStore, list[Revision]], Awaitable[None]]) -> None:
    """The revision of each minute, of a store that changes every minute."""

    async def main() -> None:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        store = FaultyStore(sqlite)
        minutes: list[Revision] = []
        running = asyncio.ensure_future(compact_revisions(store, LAYOUT, kept_s=KEPT_S))

        async def change() -> None:
            while True:
                minutes.append((await sqlite.transact([], [Put("/tidelog/topics/a", b"")])).revision)
                await asyncio.sleep(60)

        changing = asyncio.ensure_future(change())
        await scenario(store, minutes)
        for task in (running, changing):
            assert not task.done(), task
            task.cancel()
        await asyncio.wait((running, changing))
        await sqlite.close()

    run(main())


async def is_held(store: FaultyStore, revision: Revision) -> bool:
    try:
        await store.store.range("/tidelog/", revision=revision)
    except RevisionCompacted:
        return False
    return True


def test_revisions_of_the_time_kept_are_there_and_older_ones_go() -> None:
    async def scenario(store: FaultyStore, minutes: list[Revision]) -> None:
        await asyncio.sleep(KEPT_S - 30)
        assert await is_held(store, minutes[0])
        for _ in range(20):
            await asyncio.sleep(600)
            assert await is_held(store, minutes[-30])
            assert len(minutes) < 43 or not await is_held(store, minutes[-43])

    compacting(scenario)


def test_a_store_that_is_away_for_long_loses_no_history_that_is_too_young() -> None:
    async def scenario(store: FaultyStore, minutes: list[Revision]) -> None:
        await asyncio.sleep(KEPT_S / 2)
        store.down = unavailable()
        await asyncio.sleep(10 * KEPT_S)
        store.down = None
        held = minutes[-1]
        await asyncio.sleep(KEPT_S * 0.9)
        assert await is_held(store, held)
        await asyncio.sleep(KEPT_S)
        assert not await is_held(store, held)

    compacting(scenario)


def test_where_nothing_changes_nothing_is_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        compacted: list[Revision] = []

        async def compact(to_revision: Revision) -> None:
            compacted.append(to_revision)

        monkeypatch.setattr(sqlite, "compact", compact)
        written = (await sqlite.transact([], [Put("/a", b"")])).revision
        running = asyncio.ensure_future(compact_revisions(sqlite, LAYOUT, kept_s=KEPT_S))
        await asyncio.sleep(20 * KEPT_S)
        assert compacted == [written]
        running.cancel()
        await asyncio.wait((running,))
        await sqlite.close()

    run(main())


@pytest.mark.slow
def test_etcd_is_kept_small_and_a_watch_that_breaks_then_resumes_without_reading_everything_again(tmp_path: Path) -> None:
    async def main() -> None:
        with running_etcd(tmp_path) as member:
            store = EtcdStore(settings(member.url))
            prefix = f"/{uuid.uuid4().hex}/"
            readings: list[int] = []
            values: list[bytes] = []
            reported: list[bytes] = []

            def replace(items: Sequence[KeyValue]) -> None:
                readings.append(len(items))

            def apply(events: Sequence[Event]) -> None:
                values.extend(event.value for event in events)

            watched = RangeWatch(store, prefix, replace=replace, apply=apply)
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(watched.run())
                await watched.wait_for(Revision(1), timeout_s=10)
                for _ in range(2):
                    written = (await store.transact([], [Put(f"{prefix}b", b"")])).revision
                assert await watched.wait_for(written, timeout_s=10)
                values.clear()
                for _ in range(ROUNDS):
                    seen = Revision(watched.revision - 1)
                    for stream in tuple(store._client.streams):  # the end of a connection
                        stream.cancel()
                    for _ in range(50):
                        written = (await store.transact([], [Put(f"{prefix}a", b"%d" % len(reported))])).revision
                        reported.append(b"%d" % len(reported))
                    await store.compact(seen)
                    assert await watched.wait_for(written, timeout_s=10)
                    assert not await readable(store, prefix, Revision(seen - 1))
                following.cancel()
            assert values == reported
            assert readings == [0], "it was read once, and followed from then on"
            await store.close()

    asyncio.run(main())


async def readable(store: EtcdStore, prefix: str, revision: Revision) -> bool:
    try:
        await store.range(prefix, revision=revision)
    except RevisionCompacted:
        return False
    return True
