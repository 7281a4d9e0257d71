"""What every metadata store promises (metadata/store/interface.py), by etcd's semantics. Runs against each opener of STORES
alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.errors import InvalidArgument, Rejected, TooLarge
from metadata.model import Revision
from metadata.store.interface import (
    NO_LEASE,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Compare,
    Delete,
    DeletePrefix,
    Event,
    LeaseId,
    LeaseLost,
    Operation,
    Put,
    RevisionCompacted,
)
from tests.kit.metadata.stores import EACH_STORE, PATIENCE_S, Opener, OpenStore, run, take

Test = Callable[[OpenStore], Awaitable[None]]


@pytest.fixture(params=EACH_STORE)
def on_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Test], None]:
    """Runs a test against a store that was opened for it."""
    opener: Opener = request.param

    def on_store(test: Test) -> None:
        async def opened() -> None:
            async with opener(tmp_path) as open_store:
                await test(open_store)

        run(opened())

    return on_store


OnStore = Callable[[Test], None]


# Reading and writing one key


def test_a_key_that_was_never_put_is_not_there(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        assert await s.store.get(s.key("a")) is None

    on_store(test)


def test_a_key_reads_back_with_the_revision_that_wrote_it(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        revision = await s.put("a", b"\x00\xff")
        found = await s.store.get(s.key("a"))
        assert found is not None
        assert (found.key, found.value, found.lease) == (s.key("a"), b"\x00\xff", NO_LEASE)
        assert (found.create_revision, found.mod_revision, found.version) == (revision, revision, 1)

    on_store(test)


def test_a_second_put_keeps_the_create_revision_and_raises_the_version(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first = await s.put("a", b"1")
        second = await s.put("a", b"2")
        found = await s.store.get(s.key("a"))
        assert found is not None
        assert (found.value, found.create_revision, found.mod_revision, found.version) == (b"2", first, second, 2)

    on_store(test)


def test_a_key_that_was_deleted_begins_again_at_version_1(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        await s.put("a")
        await s.put("a")
        await s.delete("a")
        assert await s.store.get(s.key("a")) is None
        revision = await s.put("a", b"again")
        found = await s.store.get(s.key("a"))
        assert found is not None
        assert (found.create_revision, found.version) == (revision, 1)

    on_store(test)


# Revisions


def test_every_transaction_that_writes_raises_the_revision_by_one(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first = await s.put("a")
        assert await s.write(Put(s.key("b"), b""), Put(s.key("c"), b""), Delete(s.key("a"))) == first + 1
        assert await s.put("a") == first + 2
        assert (await s.store.range(s.prefix)).revision == first + 2

    on_store(test)


def test_a_transaction_that_writes_nothing_leaves_the_revision_as_it_is(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        revision = await s.put("a")
        assert await s.write() == revision
        assert await s.delete("never there") == revision
        assert await s.write(DeletePrefix(s.key("never/")), Delete(s.key("nor this"))) == revision
        assert (await s.store.transact([Compare(s.key("a"), 0)], [Put(s.key("b"), b"")])).revision == revision

    on_store(test)


def test_an_empty_store_is_at_a_revision_that_can_be_read_and_watched_from(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        read = await s.store.range(s.prefix)
        assert read.items == ()
        assert read.revision >= 1  # 0 asks for the present, so it can't be a moment
        written = await s.put("a")
        assert [batch.revision for batch in await s.watched(Revision(read.revision + 1), 1)] == [written]
        assert (await s.store.range(s.prefix, revision=read.revision)).items == ()

    on_store(test)


# Compares


@pytest.mark.parametrize(
    ("relation", "less", "equal", "greater"),
    [("=", False, True, False), ("!=", True, False, True), ("<", False, False, True), (">", True, False, False)],
)
def test_a_compare_puts_the_mod_revision_on_the_left_of_the_relation(
    on_store: OnStore, relation: Any, less: bool, equal: bool, greater: bool
) -> None:
    async def test(s: OpenStore) -> None:
        revision = await s.put("a")
        for asked, holds in ((revision - 1, less), (revision, equal), (revision + 1, greater)):
            assert (await s.store.transact([Compare(s.key("a"), asked, relation)], [])).succeeded is holds

    on_store(test)


def test_a_key_that_is_not_there_has_mod_revision_0(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        await s.put("gone")
        await s.delete("gone")
        for name in ("never", "gone"):
            assert (await s.store.transact([Compare(s.key(name), 0)], [])).succeeded
            assert not (await s.store.transact([Compare(s.key(name), 0, ">")], [])).succeeded

    on_store(test)


def test_one_compare_that_fails_keeps_every_operation_from_happening(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        revision = await s.put("a", b"old")
        compares = [Compare(s.key("a"), revision), Compare(s.key("b"), 7)]
        result = await s.store.transact(compares, [Put(s.key("a"), b"new"), Put(s.key("c"), b""), DeletePrefix(s.key("b"))])
        assert not result.succeeded
        assert await s.names() == {"a": b"old"}

    on_store(test)


def test_of_many_creates_at_once_exactly_one_succeeds(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        creates = [s.store.transact([Compare(s.key("a"), 0)], [Put(s.key("a"), bytes([n]))]) for n in range(16)]
        succeeded = [result.succeeded for result in await asyncio.gather(*creates)]
        assert succeeded.count(True) == 1
        assert await s.names() == {"a": bytes([succeeded.index(True)])}

    on_store(test)


def test_a_counter_guarded_by_its_revision_loses_no_increment(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        async def increment() -> None:
            while True:
                held = await s.store.get(s.key("n"))
                value = int(held.value) if held else 0
                guard = Compare(s.key("n"), held.mod_revision if held else 0)
                if (await s.store.transact([guard], [Put(s.key("n"), b"%d" % (value + 1))])).succeeded:
                    return

        await asyncio.gather(*(increment() for _ in range(12)))
        assert await s.names() == {"n": b"12"}

    on_store(test)


# Deleting prefixes, and what a transaction may hold


def test_deleting_a_prefix_spares_its_neighbours(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        for name in ("a", "a/", "a/1", "a/2/x", "a0", "a.", "A/1", "a/ÿ", "a/\U0010ffff"):
            await s.put(name)
        await s.write(DeletePrefix(s.key("a/")))
        assert sorted(await s.names()) == ["A/1", "a", "a.", "a0"]

    on_store(test)


@pytest.mark.parametrize(
    "second",
    [lambda s: Put(s.key("a/1"), b"2"), lambda s: Delete(s.key("a/1")), lambda s: DeletePrefix(s.key("a/"))],
    ids=["put", "delete", "delete of its prefix"],
)
def test_a_key_that_one_transaction_writes_twice_is_refused(on_store: OnStore, second: Callable[[OpenStore], Operation]) -> None:
    async def test(s: OpenStore) -> None:
        puts = [Put(s.key(name), b"") for name in ("a", "a/1", "b")]
        for operations in ([*puts, second(s)], [second(s), *puts]):
            with pytest.raises(InvalidArgument, match="twice"):
                await s.store.transact([], operations)
        assert await s.names() == {}

    on_store(test)


def test_a_transaction_may_delete_a_key_twice_and_put_what_lies_beside_it(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        await s.write(Put(s.key("a/1"), b""), Put(s.key("a/2"), b""))
        before = (await s.store.range(s.prefix)).revision
        await s.write(
            Delete(s.key("a/1")), DeletePrefix(s.key("a/")), Delete(s.key("a/1")), Put(s.key("a"), b""), Put(s.key("a0"), b"")
        )
        assert await s.names() == {"a": b"", "a0": b""}
        (batch,) = await s.watched(Revision(before + 1), 1)
        assert [(event.kind, event.key) for event in batch.events] == [
            ("delete", s.key("a/1")),
            ("delete", s.key("a/2")),
            ("put", s.key("a")),
            ("put", s.key("a0")),
        ]

    on_store(test)


def test_a_transaction_holds_128_operations_and_compares_and_no_more(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        puts = [Put(s.key(f"{n:03d}"), b"") for n in range(OPERATIONS_MAX + 1)]
        compares = [Compare(put.key, 0) for put in puts]
        await s.write(*puts[:OPERATIONS_MAX], compares=compares[:OPERATIONS_MAX])
        assert len(await s.names()) == OPERATIONS_MAX
        with pytest.raises(InvalidArgument, match="129 operations"):
            await s.store.transact([], puts)
        with pytest.raises(InvalidArgument, match="129 compares"):
            await s.store.transact(compares, [])
        assert len(await s.names()) == OPERATIONS_MAX

    on_store(test)


def test_a_value_holds_1_mib_and_no_more(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        await s.put("a", bytes(VALUE_BYTES_MAX))
        with pytest.raises(TooLarge):
            await s.put("b", bytes(VALUE_BYTES_MAX + 1))
        with pytest.raises(TooLarge):  # each is small enough, but not both together
            await s.write(Put(s.key("b"), bytes(VALUE_BYTES_MAX)), Put(s.key("c"), bytes(VALUE_BYTES_MAX)))
        assert list(await s.names()) == ["a"]

    on_store(test)


@pytest.mark.parametrize(
    "operation", [Put("", b""), Delete(""), DeletePrefix(""), Put("\ud800", b""), Delete("\udfff"), DeletePrefix("\ud800")]
)
def test_a_key_that_is_empty_or_half_a_character_is_refused(on_store: OnStore, operation: Operation) -> None:
    async def test(s: OpenStore) -> None:
        await s.put("a")
        with pytest.raises(InvalidArgument):
            await s.store.transact([], [Put(s.key("b"), b""), operation])
        assert list(await s.names()) == ["a"]

    on_store(test)


def test_a_compare_or_a_get_of_no_key_is_refused(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        with pytest.raises(InvalidArgument):
            await s.store.transact([Compare("", 0)], [])
        with pytest.raises(InvalidArgument):
            await s.store.get("")

    on_store(test)


# Ranges


def test_a_range_is_in_byte_order_and_ends_with_its_prefix(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        names = ["", "a", "a/b", "a0", "ab", "b", "Z", "é", "z", "\U00010000", "\uffff", "a\x00"]
        for name in names:
            await s.put(name)
        assert list(await s.names()) == sorted(names, key=str.encode)
        found = await s.store.range(s.key("a"))
        assert [item.key for item in found.items] == [s.key(name) for name in ("a", "a\x00", "a/b", "a0", "ab")]

    on_store(test)


def test_pages_of_a_range_hold_each_key_once(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        names = [f"{n:02d}" for n in range(10)]
        await s.write(*(Put(s.key(name), b"") for name in names))
        for limit in (1, 3, 5, 10, 11):
            read: list[str] = []
            more = True
            while more:
                page = await s.store.range(s.prefix, start_after=s.key(read[-1]) if read else "", limit=limit)
                assert len(page.items) <= limit
                read += [item.key.removeprefix(s.prefix) for item in page.items]
                more = page.more
            assert read == names

    on_store(test)


def test_a_range_may_start_anywhere(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        await s.write(*(Put(s.key(name), b"") for name in ("b/1", "b/2", "b/3", "c")))

        async def after(name: str) -> list[str]:
            found = await s.store.range(s.key("b/"), start_after=s.key(name))
            return [item.key.removeprefix(s.prefix) for item in found.items]

        assert await after("a") == ["b/1", "b/2", "b/3"]
        assert await after("b/") == ["b/1", "b/2", "b/3"]
        assert await after("b/15") == ["b/2", "b/3"]
        assert await after("b/3") == []
        assert await after("c") == []

    on_store(test)


def test_pages_at_one_revision_see_one_moment(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        await s.write(*(Put(s.key(name), b"old") for name in "abcd"))
        first = await s.store.range(s.prefix, limit=2)
        await s.write(Put(s.key("c"), b"new"), Delete(s.key("d")), Put(s.key("e"), b"new"))
        await s.put("d", b"new")
        rest = await s.store.range(s.prefix, start_after=s.key("b"), limit=2, revision=first.revision)
        assert [(item.key, item.value) for item in rest.items] == [(s.key("c"), b"old"), (s.key("d"), b"old")]
        assert not rest.more
        assert rest.revision == first.revision

    on_store(test)


def test_a_revision_that_is_still_to_come_cannot_be_read(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        revision = await s.put("a")
        with pytest.raises(Rejected):
            await s.store.range(s.prefix, revision=Revision(revision + 1))
        assert await s.names(revision) == {"a": b""}

    on_store(test)


def test_a_revision_that_history_no_longer_holds_is_refused_and_the_present_stays(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first = await s.put("a", b"1")
        await s.put("b", b"1")
        second = await s.write(Put(s.key("a"), b"2"), Delete(s.key("b")))
        await s.put("a", b"3")
        await s.compact(second)
        with pytest.raises(RevisionCompacted) as compacted:
            await s.names(first)
        assert compacted.value.oldest == second
        assert await s.names(second) == {"a": b"2"}
        assert await s.names() == {"a": b"3"}

    on_store(test)


# Leases


def test_a_lease_that_is_not_renewed_takes_its_keys_along(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        lease = await s.store.grant_lease(5)
        await s.put("leased", b"", lease)
        await s.put("free")
        found = await s.store.get(s.key("leased"))
        assert found is not None
        assert found.lease == lease
        await s.pass_time(4)
        assert list(await s.names()) == ["free", "leased"]
        await s.pass_time(2)
        assert list(await s.names()) == ["free"]

    on_store(test)


def test_a_lease_that_is_renewed_stays(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        lease = await s.store.grant_lease(5)
        await s.put("leased", b"", lease)
        for _ in range(3):
            await s.pass_time(4)
            assert await s.store.keep_alive(lease) == 5
        assert list(await s.names()) == ["leased"]

    on_store(test)


def test_a_lease_that_has_ended_cannot_be_renewed_or_used(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        expired = await s.store.grant_lease(5)
        revoked = await s.store.grant_lease(500)
        await s.pass_time(6)
        await s.store.revoke_lease(revoked)
        for lease in (expired, revoked, LeaseId(123_456_789)):
            with pytest.raises(LeaseLost):
                await s.store.keep_alive(lease)
            with pytest.raises(LeaseLost):
                await s.write(Put(s.key("free"), b""), Put(s.key("leased"), b"", lease))
            unheld = await s.store.transact([Compare(s.key("a"), 7)], [Put(s.key("leased"), b"", lease)])
            assert not unheld.succeeded
            await s.store.revoke_lease(lease)  # no error
        assert await s.names() == {}

    on_store(test)


def test_revoking_a_lease_deletes_its_keys_in_one_transaction_that_watchers_see(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        lease = await s.store.grant_lease(500)
        await s.put("b", b"", lease)
        await s.put("free")
        before = await s.put("a", b"", lease)
        await s.store.revoke_lease(lease)
        (batch,) = await s.watched(Revision(before + 1), 1)
        assert {(event.kind, event.key) for event in batch.events} == {("delete", s.key("a")), ("delete", s.key("b"))}
        assert batch.revision == before + 1

    on_store(test)


def test_watchers_see_the_keys_of_an_expired_lease_go(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        lease = await s.store.grant_lease(5)
        before = await s.put("a", b"", lease)
        async with asyncio.TaskGroup() as tasks:
            watched = tasks.create_task(s.watched(Revision(before + 1), 1))
            await s.pass_time(6)
        assert [event.kind for event in watched.result()[0].events] == ["delete"]

    on_store(test)


def test_a_key_belongs_to_the_lease_of_its_last_put(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first, second = await s.store.grant_lease(500), await s.store.grant_lease(500)
        await s.put("freed", b"", first)
        await s.put("freed", b"")
        await s.put("moved", b"", first)
        await s.put("moved", b"", second)
        await s.store.revoke_lease(first)
        assert list(await s.names()) == ["freed", "moved"]
        await s.store.revoke_lease(second)
        assert list(await s.names()) == ["freed"]

    on_store(test)


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf")])
def test_a_lease_must_last_some_time(on_store: OnStore, ttl_s: float) -> None:
    async def test(s: OpenStore) -> None:
        with pytest.raises(InvalidArgument):
            await s.store.grant_lease(ttl_s)

    on_store(test)


# Watches


def test_a_watch_goes_through_history_and_on_without_gap_or_repeat(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        past = [await s.put("a", b"%d" % n) for n in range(20)]
        async with asyncio.TaskGroup() as tasks:
            watched = tasks.create_task(s.watched(past[3], 37))
            future = [await s.put("a", b"%d" % n) for n in range(20, 40)]
        assert [batch.revision for batch in watched.result()] == past[3:] + future
        assert [event.value for batch in watched.result() for event in batch.events] == [b"%d" % n for n in range(3, 40)]

    on_store(test)


def test_a_watch_gives_each_transaction_whole_in_the_order_of_its_operations(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        before = await s.write(Put(s.key("p/2"), b""), Put(s.key("p/1"), b""))
        revision = await s.write(Put(s.key("z"), b"1"), DeletePrefix(s.key("p/")), Put(s.key("b"), b"2"))
        await s.put("last")
        whole, _ = await s.watched(Revision(before + 1), 2)
        assert whole.revision == revision
        assert whole.events == (
            Event("put", s.key("z"), b"1", revision),
            Event("delete", s.key("p/1"), b"", revision),
            Event("delete", s.key("p/2"), b"", revision),
            Event("put", s.key("b"), b"2", revision),
        )

    on_store(test)


def test_a_watch_sees_its_prefix_alone(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        revision = await s.write(Put(s.key("a/1"), b""), Put(s.key("a0"), b""), Put(s.key("a"), b""))
        await s.put("b")
        last = await s.put("a/2")
        batches = await take(s.store.watch(s.key("a/"), revision), 2)
        assert [(batch.revision, [event.key for event in batch.events]) for batch in batches] == [
            (revision, [s.key("a/1")]),
            (last, [s.key("a/2")]),
        ]

    on_store(test)


def test_an_empty_value_is_distinguished_from_a_delete(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        revision = await s.put("a", b"")
        await s.delete("a")
        batches = await s.watched(revision, 2)
        assert [batch.events[0].kind for batch in batches] == ["put", "delete"]

    on_store(test)


def test_a_watch_from_a_revision_to_come_waits_for_it(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        now = await s.put("a")
        async with asyncio.TaskGroup() as tasks:
            watched = tasks.create_task(s.watched(Revision(now + 3), 1))
            written = [await s.put("a") for _ in range(4)]
        assert [batch.revision for batch in watched.result()] == [written[2]]

    on_store(test)


@pytest.mark.slow
def test_a_slow_watcher_misses_nothing_and_blocks_no_other(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first = await s.put("a")
        slow = s.store.watch(s.prefix, first)
        assert (await anext(slow)).revision == first
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(s.watched(first, 101)) for _ in range(3)]
            written = [first] + [await s.put("a", bytes(1000)) for _ in range(100)]
        for other in others:
            assert [batch.revision for batch in other.result()] == written
        assert [batch.revision for batch in await take(slow, 100)] == written[1:]

    on_store(test)


def test_a_watcher_that_hangs_up_does_not_stop_the_others(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first = await s.put("a")
        async with asyncio.TaskGroup() as tasks:
            staying = tasks.create_task(s.watched(first, 2))
            leaving = tasks.create_task(s.watched(first, 99))
            await s.watched(first, 1)
            leaving.cancel()
            await asyncio.wait([leaving], timeout=PATIENCE_S)
            await s.put("a")
        assert len(staying.result()) == 2

    on_store(test)


def test_a_watch_from_what_history_no_longer_holds_says_where_history_begins(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first = await s.put("a")
        second = await s.put("a")
        third = await s.put("a")
        await s.compact(second)
        with pytest.raises(RevisionCompacted) as compacted:
            await s.watched(first, 1)
        assert compacted.value.oldest <= third
        assert [batch.revision for batch in await s.watched(third, 1)] == [third]

    on_store(test)


def test_history_is_dropped_below_a_watch_that_has_seen_it_and_the_watch_goes_on(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first = await s.put("a")
        watch = s.store.watch(s.prefix, first)
        assert (await anext(watch)).revision == first
        second = await s.put("a")
        assert (await anext(watch)).revision == second
        await s.store.compact(second)
        await s.store.compact(first)
        await s.store.compact(second)
        third = await s.put("a")
        assert (await anext(watch)).revision == third
        with pytest.raises(RevisionCompacted):
            await s.names(first)
        assert [batch.revision for batch in await s.watched(third, 1)] == [third]
        with pytest.raises(InvalidArgument):
            await s.store.compact(Revision(third + 1_000_000))

    on_store(test)


def test_a_watcher_that_a_compaction_has_overtaken_gets_revision_compacted(on_store: OnStore) -> None:
    async def test(s: OpenStore) -> None:
        first = await s.put("a")
        watch = s.store.watch(s.prefix, first)
        assert (await anext(watch)).revision == first
        written = [await s.put("a", bytes(10_000)) for _ in range(s.sent_ahead + 5)]
        await s.compact(written[-1])
        seen: list[Revision] = []

        async def read_on() -> None:
            async for batch in watch:
                seen.append(batch.revision)  # noqa: PERF401 (what came before the error counts)

        with pytest.raises(RevisionCompacted):
            await asyncio.wait_for(read_on(), PATIENCE_S)
        assert seen == written[: len(seen)]  # what was on its way to it; then comes the error, and there is no gap
        assert len(seen) <= s.sent_ahead

    on_store(test)


@pytest.mark.parametrize("revision", [0, -1])
def test_a_watch_begins_at_a_revision(on_store: OnStore, revision: int) -> None:
    async def test(s: OpenStore) -> None:
        with pytest.raises(InvalidArgument):
            s.store.watch(s.prefix, Revision(revision))

    on_store(test)


# All of it together

NAMES = st.sampled_from(["a", "a/", "a/1", "a/2", "a0", "b", "é"])
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.binary(max_size=3)),
    st.tuples(st.sampled_from(["delete", "delete prefix"]), NAMES, st.just(b"")),
)
TRANSACTIONS = st.lists(st.lists(OPERATIONS, max_size=4, unique_by=lambda operation: operation[1]), max_size=8)


@pytest.mark.parametrize("opener", EACH_STORE)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(transactions=TRANSACTIONS)
def test_every_revision_reads_as_it_was_and_a_watch_replays_the_way_there(
    opener: Opener, tmp_path_factory: pytest.TempPathFactory, transactions: list[list[tuple[str, str, bytes]]]
) -> None:
    async def test() -> None:
        async with opener(tmp_path_factory.mktemp("store")) as s:
            state: dict[str, bytes] = {}
            first = (await s.store.range(s.prefix)).revision
            states: dict[Revision, dict[str, bytes]] = {first: {}}
            for transaction in transactions:
                after = dict(state)
                try:
                    revision = await s.write(*(to_operation(s, *operation) for operation in transaction))
                except InvalidArgument:
                    continue  # it wrote a key twice, and so nothing at all
                for operation in transaction:
                    apply(after, *operation)
                assert (revision != max(states)) == bool(set(touched(state, transaction)))
                state = states[revision] = after
            replayed: dict[str, bytes] = {}
            for revision, expected in states.items():
                assert await s.names(revision) == expected
            for batch in await s.watched(Revision(first + 1), len(states) - 1):
                for event in batch.events:
                    name = event.key.removeprefix(s.prefix)
                    if event.kind == "put":
                        replayed[name] = event.value
                    else:
                        del replayed[name]
                assert replayed == states[batch.revision]

    run(test())


def to_operation(s: OpenStore, kind: str, name: str, value: bytes) -> Operation:
    match kind:
        case "put":
            return Put(s.key(name), value)
        case "delete":
            return Delete(s.key(name))
        case _:
            return DeletePrefix(s.key(name))


def apply(state: dict[str, bytes], kind: str, name: str, value: bytes) -> None:
    if kind == "put":
        state[name] = value
    else:
        for gone in [held for held in state if held == name or (kind == "delete prefix" and held.startswith(name))]:
            del state[gone]


def touched(state: dict[str, bytes], transaction: list[tuple[str, str, bytes]]) -> Iterator[str]:
    """The keys that a transaction writes or deletes."""
    for kind, name, _ in transaction:
        if kind == "put":
            yield name
        yield from (held for held in state if held == name or (kind == "delete prefix" and held.startswith(name)))
