"""A follower is kept in step with all keys under a prefix: nothing is missed, reported twice or taken back by any fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, Denied, Unavailable
from metadata.model import Revision
from metadata.store import range_watch
from metadata.store.interface import Delete, Event, KeyValue, Operation, Put, RevisionCompacted, WatchBatch
from metadata.store.range_watch import BACK_OFF_S, BACK_OFF_S_MAX, RangeWatch
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.simulation.virtual_loop import run, virtual_loop

PREFIX = "/watched/"


class Follower:
    """State of a follower of a watched range."""

    def __init__(self, store: FaultyStore) -> None:
        self.store = store
        self.held: dict[str, bytes] = {}
        self.reported: list[str] = []
        self.watched = RangeWatch(store, PREFIX, replace=self._replace, apply=self._apply)

    def _replace(self, items: Sequence[KeyValue]) -> None:
        self.held = {item.key.removeprefix(PREFIX): item.value for item in items}
        self.reported.append(f"all of {len(items)}")

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            name = event.key.removeprefix(PREFIX)
            if event.kind == "put":
                self.held[name] = event.value
            else:
                del self.held[name]
        self.reported.append(" ".join(f"{event.kind} {event.key.removeprefix(PREFIX)}" for event in events))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.watched.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled(), task

    async def put(self, name: str, value: bytes = b"") -> Revision:
        return await self.write(Put(PREFIX + name, value))

    async def write(self, *operations: Operation) -> Revision:
        """By somebody else, who can always reach the store."""
        return (await self.store.store.transact([], operations)).revision


def follow(scenario: Callable[[Follower], Awaitable[None]]) -> None:
    async def main() -> None:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        await scenario(Follower(FaultyStore(sqlite)))
        await sqlite.close()

    run(main())


def test_existing_keys_are_reported_together_and_then_each_transaction_by_itself() -> None:
    async def scenario(f: Follower) -> None:
        await f.put("a")
        revision = await f.put("b")
        async with f.running():
            assert await f.watched.wait_for(revision, timeout_s=1)
            assert f.watched.revision == revision
            revision = await f.write(Put(PREFIX + "c", b"1"), Delete(PREFIX + "a"))
            revision = await f.put("b", b"2")
            assert await f.watched.wait_for(revision, timeout_s=1)
        assert f.reported == ["all of 2", "put c delete a", "put b"]
        assert f.held == {"b": b"2", "c": b"1"}

    follow(scenario)


def test_keys_beside_the_prefix_are_not_reported() -> None:
    async def scenario(f: Follower) -> None:
        async with f.running():
            await f.write(Put("/watched", b""), Put("/watched0", b""))
            assert await f.watched.wait_for(await f.put("a"), timeout_s=1)
        assert list(f.held) == ["a"]

    follow(scenario)


def test_a_wait_for_a_revision_times_out_as_false_and_disturbs_no_other() -> None:
    async def scenario(f: Follower) -> None:
        revision = await f.put("a")
        patient = asyncio.ensure_future(f.watched.wait_for(revision, timeout_s=None))
        assert not await f.watched.wait_for(revision, timeout_s=5)
        async with f.running():
            assert await patient

    follow(scenario)


def test_a_hole_in_history_is_met_by_reading_everything_again() -> None:
    async def scenario(f: Follower) -> None:
        await f.write(Put(PREFIX + "stays", b"1"), Put(PREFIX + "goes", b"1"))
        async with f.running():
            await f.watched.wait_for(Revision(1), timeout_s=1)
            f.store.down = unavailable()
            await f.write(Put(PREFIX + "stays", b"2"), Delete(PREFIX + "goes"))
            revision = await f.put("comes")
            await f.store.store.compact(revision)
            await asyncio.sleep(30)
            f.store.down = None
            assert await f.watched.wait_for(revision, timeout_s=30)
            assert f.held == {"stays": b"2", "comes": b""}
            assert f.reported == ["all of 2", "all of 2"]
            revision = await f.put("last")
            assert await f.watched.wait_for(revision, timeout_s=1), "it goes on from there"

    follow(scenario)


def test_history_that_is_compacted_between_two_pages_is_met_by_beginning_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_watch, "PAGE_KEYS", 2)

    async def scenario(f: Follower) -> None:
        for name in "abcde":
            await f.put(name, b"1")
        read = f.store.range

        async def compacted_once(*args: object, **how: object) -> object:
            page = await read(*args, **how)  # type: ignore[arg-type]
            if f.store.ranges == 2:
                await f.store.store.compact(await f.put("a", b"2"))
            return page

        monkeypatch.setattr(f.store, "range", compacted_once)
        async with f.running():
            assert await f.watched.wait_for(Revision(6), timeout_s=5)
        assert f.reported == ["all of 5"]
        assert f.held["a"] == b"2"

    follow(scenario)


def test_a_reading_in_pages_does_not_bring_back_what_another_read_has_shown_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_watch, "PAGE_KEYS", 2)

    async def scenario(f: Follower) -> None:
        for name in "abc":
            await f.put(name)
        read = f.store.range

        async def overtaken_once(*args: object, **how: object) -> object:
            page = await read(*args, **how)  # type: ignore[arg-type]
            if f.store.ranges == 1:
                f.watched.is_at(await f.write(Delete(PREFIX + "a")))
            return page

        monkeypatch.setattr(f.store, "range", overtaken_once)
        async with f.running():
            await asyncio.sleep(5)
        assert f.reported == ["all of 2"]
        assert set(f.held) == {"b", "c"}

    follow(scenario)


def test_changes_up_to_a_revision_that_another_read_has_shown_are_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(f: Follower) -> None:
        watch, may_deliver = f.store.watch, asyncio.Event()

        async def late(prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
            async for batch in watch(prefix, from_revision):
                await may_deliver.wait()
                yield batch

        monkeypatch.setattr(f.store, "watch", late)
        await f.put("a")
        async with f.running():
            await f.watched.wait_for(Revision(1), timeout_s=1)
            await f.put("b")
            last = await f.write(Delete(PREFIX + "b"))
            f.watched.is_at(last)
            assert f.watched.revision == last
            may_deliver.set()
            await f.watched.wait_for(await f.put("c"), timeout_s=1)
        assert f.reported == ["all of 1", "put c"]

    follow(scenario)


def test_a_store_that_was_emptied_is_not_believed() -> None:
    """Etcd with an empty disk: topics that are "gone" would be reported to clients, and marked as deleted on the bucket."""

    async def scenario(f: Follower) -> None:
        await f.write(Put(PREFIX + "a", b"1"))
        revision = await f.write(Put(PREFIX + "b", b"1"))
        async with f.running():
            assert await f.watched.wait_for(revision, timeout_s=1)
            f.store.down = unavailable()
            await f.put("c")
            await asyncio.sleep(10)
            emptied = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
            f.store.store, f.store.down = emptied, None
            await asyncio.sleep(60)
            assert set(f.held) == {"a", "b"}
            assert f.watched.revision == revision
            await emptied.close()

    follow(scenario)


@pytest.mark.parametrize("error", [unavailable(), Denied("the token has expired"), Corrupt("the file is damaged")])
def test_whatever_the_store_says_it_is_asked_again(error: Exception) -> None:
    """Who follows can do nothing better: what it knows stays true as of its revision."""

    async def scenario(f: Follower) -> None:
        async with f.running():
            await f.watched.wait_for(await f.put("a"), timeout_s=1)
            f.store.down = error  # type: ignore[assignment]
            revision = await f.put("b")
            assert not await f.watched.wait_for(revision, timeout_s=60)
            assert list(f.held) == ["a"]
            f.store.down = None
            assert await f.watched.wait_for(revision, timeout_s=BACK_OFF_S_MAX)

    follow(scenario)


# ── pauses ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Breaking(FaultyStore):
    """Its watches break by themselves, each after its time, and report nothing before that."""

    def __init__(self, store: SqliteStore, after_s: Iterator[float]) -> None:
        super().__init__(store)
        self.opened_at_s: list[float] = []
        self._after_s = after_s

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        self.opened_at_s.append(virtual_loop().time())
        await asyncio.sleep(next(self._after_s))
        raise Unavailable("the member restarts")
        yield  # type: ignore[unreachable]  # which makes it a generator


def pauses(after_s: Sequence[float]) -> list[float]:
    """Between the end of each watch and the next one."""

    async def main() -> list[float]:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        store = Breaking(sqlite, iter([*after_s, 1e9]))
        async with Follower(store).running():
            while len(store.opened_at_s) <= len(after_s):  # noqa: ASYNC110  # no event shows it
                await asyncio.sleep(1)
        await sqlite.close()
        ended_at_s = [opened + lasted for opened, lasted in zip(store.opened_at_s, after_s, strict=False)]
        return [round(opened - ended, 3) for ended, opened in zip(ended_at_s, store.opened_at_s[1:], strict=True)]

    return run(main())


def test_a_watch_that_breaks_at_once_is_tried_with_pauses_that_grow_to_half_a_second() -> None:
    """Longer ones would leave brokers without news of each other when the store is back."""
    assert pauses([0.0] * 6) == [0.1, 0.2, 0.4, 0.5, 0.5, 0.5]


def test_a_watch_that_breaks_once_an_hour_is_taken_up_at_once_though_nothing_has_changed_in_between() -> None:
    """Else a quiet cluster would hear of its first dead broker seconds late, after some restarts of etcd long ago."""
    assert pauses([3600.0] * 8) == [BACK_OFF_S] * 8


def test_a_history_that_is_always_compacted_first_is_not_asked_for_without_pause() -> None:
    class Compacting(Breaking):
        async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
            self.opened_at_s.append(virtual_loop().time())
            raise RevisionCompacted(Revision(9))
            yield  # type: ignore[unreachable]  # which makes it a generator

    async def main() -> int:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        store = Compacting(sqlite, iter(()))
        async with Follower(store).running():
            await asyncio.sleep(60)
        await sqlite.close()
        return len(store.opened_at_s)

    assert run(main()) < 30


# ── whatever happens ────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.sampled_from(["put", "delete", "down", "up", "compact", "wait"]), st.integers(0, 3)), max_size=40))
def test_whatever_happens_what_is_known_in_the_end_is_what_is_there(happening: list[tuple[str, int]]) -> None:
    async def scenario(f: Follower) -> None:
        async with f.running():
            for what, number in happening:
                if what == "put":
                    await f.put(str(number), str(number).encode())
                elif what == "delete":
                    await f.write(Delete(f"{PREFIX}{number}"))
                elif what == "compact":
                    at = (await f.store.store.range(PREFIX)).revision
                    await f.store.store.compact(at)
                elif what == "wait":
                    await asyncio.sleep(number)
                else:
                    f.store.down = unavailable() if what == "down" else None
            f.store.down = None
            assert await f.watched.wait_for(await f.put("last"), timeout_s=60)
            found = await f.store.store.range(PREFIX)
            assert f.held == {item.key.removeprefix(PREFIX): item.value for item in found.items}

    follow(scenario)
