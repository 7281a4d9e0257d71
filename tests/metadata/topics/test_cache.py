"""The topics in memory, in step with the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from metadata.errors import Corrupt, InvalidName, Unavailable, UnknownTopic
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.store import range_watch
from metadata.store.interface import KeyValue, MetadataStore, Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics import cache
from metadata.topics.cache import READS_AT_ONCE, TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.kit.metadata.stores import PATIENCE_S, run, until

LAYOUT = KeyLayout()


@dataclass
class Broker:
    """A cache that is not yet running, over a store that can fail."""

    store: FaultyStore
    sqlite: SqliteStore
    topics: TopicRegistry
    cache: TopicCache
    changes: list[tuple[Topic | None, Topic | None]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.ensure_future(self.cache.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled()

    async def seen(self, topic: Topic) -> Topic:
        assert await self.cache.wait_for(topic.revision, PATIENCE_S)
        return topic

    async def overwrite(self, name: str, value: bytes) -> None:
        """Puts the value in place of a topic's own, and waits until the cache has read it."""
        result = await self.sqlite.transact([], [Put(LAYOUT.topic(name), value)])
        assert await self.cache.wait_for(result.revision, PATIENCE_S)


OnBroker = Callable[[Callable[[Broker], Awaitable[None]]], None]


@pytest.fixture
def on_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnBroker:
    monkeypatch.setattr(range_watch, "BACK_OFF_S", 0.001)
    monkeypatch.setattr(range_watch, "BACK_OFF_S_MAX", 0.004)

    async def opened(test: Callable[[Broker], Awaitable[None]]) -> None:
        sqlite = SqliteStore(tmp_path / "metadata.sqlite")
        store = FaultyStore(sqlite)
        broker = Broker(store, sqlite, TopicRegistry(sqlite), TopicCache(store))
        broker.cache.subscribe(lambda old, new: broker.changes.append((old, new)))
        try:
            await test(broker)
        finally:
            await sqlite.close()

    return lambda test: run(opened(test))


def test_until_all_topics_are_read_every_question_is_to_be_asked_again(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        topic = await b.topics.create("orders", 6)
        questions: list[Callable[[], object]] = [
            lambda: b.cache.get("orders"),
            lambda: b.cache.by_id(topic.id),
            lambda: b.cache.settings(topic.id),
            b.cache.topics,
        ]
        for question in questions:
            with pytest.raises(Unavailable, match="not been read yet"):
                question()
        assert b.cache.revision == 0
        async with b.running():
            assert await b.cache.wait_for(Revision(1), PATIENCE_S)
            assert [question() for question in questions] == [topic, topic, TopicSettings(), (topic,)]

    on_broker(test)


def test_a_topic_is_found_by_its_name_and_its_id_with_its_settings(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            created = await b.seen(await b.topics.create("orders", 6, {"retention.ms": "5"}))
            assert b.cache.get("orders") == b.cache.by_id(created.id) == created
            assert b.cache.settings(created.id) == TopicSettings(retention_ms=5)
            altered = await b.seen(await b.topics.alter("orders", settings={"retention.ms": "6"}, partition_count=7))
            assert b.cache.get("orders") == b.cache.by_id(created.id) == altered
            assert b.cache.settings(created.id) == TopicSettings(retention_ms=6)
            assert b.cache.topics() == (altered,)

    on_broker(test)


def test_a_deleted_topic_is_unknown_by_its_name_and_its_id(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            created = await b.seen(await b.topics.create("orders", 6))
            await b.seen(await b.topics.delete("orders"))
            questions: list[Callable[[], object]] = [
                lambda: b.cache.get("orders"),
                lambda: b.cache.by_id(created.id),
                lambda: b.cache.settings(created.id),
            ]
            for question in questions:
                with pytest.raises(UnknownTopic):
                    question()
            assert b.cache.topics() == ()

    on_broker(test)


def test_the_error_for_a_deleted_topic_names_the_one_that_has_its_name_now(
    on_broker: OnBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "FORMER_MAX", 1)

    async def test(broker: Broker) -> None:
        async with broker.running():
            former = await broker.seen(await broker.topics.create("orders", 1))
            await broker.seen(await broker.topics.delete("orders"))
            present = await broker.seen(await broker.topics.create("orders", 1))
            with pytest.raises(UnknownTopic) as raised:
                broker.cache.by_id(former.id)
            assert raised.value.details["new_topic_id"] == present.id
            other = await broker.seen(await broker.topics.create("payments", 1))
            await broker.seen(await broker.topics.delete("payments"))
            for topic_id in (other.id, former.id, TopicId("f" * 32)):
                with pytest.raises(UnknownTopic) as raised:
                    broker.cache.by_id(topic_id)
                assert "new_topic_id" not in raised.value.details

    on_broker(test)


def test_an_unknown_name_is_refused_with_the_nearest_one_and_a_bad_one_as_bad(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            await b.seen(await b.topics.create("orders", 6))
            with pytest.raises(UnknownTopic, match="there is no topic ordres") as unknown:
                b.cache.get("ordres")
            assert unknown.value.hint == "Did you mean 'orders'?"
            with pytest.raises(UnknownTopic) as unknown:
                b.cache.get("zzz")
            assert unknown.value.hint == UnknownTopic.default_hint
            for name in ("", "a/b", "x" * 10_000, "a\n"):
                with pytest.raises(InvalidName):
                    b.cache.get(name)

    on_broker(test)


def test_subscribers_hear_of_every_change_in_order_until_they_have_enough(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        early: list[tuple[Topic | None, Topic | None]] = []
        enough = b.cache.subscribe(lambda old, new: early.append((old, new)))
        before = await b.topics.create("before", 1)
        async with b.running():
            await b.seen(before)
            created = await b.seen(await b.topics.create("orders", 6))
            enough()
            altered = await b.topics.alter("orders", partition_count=7)
            await b.seen(await b.topics.delete("orders"))
        assert early == [(None, before), (None, created)]
        assert b.changes == [(None, before), (None, created), (created, altered), (altered, None)]

    on_broker(test)


def test_a_recreated_topic_is_reported_as_a_deletion_and_a_creation(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        old = await b.topics.create("orders", 6)
        async with b.running():
            await b.seen(old)
        await b.topics.delete("orders")
        new = await b.topics.create("orders", 6)
        await b.sqlite.compact(new.revision)  # so that only the new one can be read
        async with b.running():
            await b.seen(new)
        assert b.changes == [(None, old), (old, None), (None, new)]
        with pytest.raises(UnknownTopic):
            b.cache.by_id(old.id)

    on_broker(test)


def test_a_wait_for_what_does_not_come_ends_in_time(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            created = await b.seen(await b.topics.create("orders", 6))
            assert not await b.cache.wait_for(Revision(created.revision + 1), 0)
            assert await b.cache.wait_for(Revision(created.revision - 1), 0)

    on_broker(test)


def test_a_waiter_that_hangs_up_does_not_stop_the_others(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        leaving = asyncio.ensure_future(b.cache.wait_for(Revision(2), PATIENCE_S))
        staying = asyncio.ensure_future(b.cache.wait_for(Revision(2), PATIENCE_S))
        await asyncio.sleep(0)
        leaving.cancel()
        await b.topics.create("orders", 6)
        async with b.running():
            assert await staying
        assert leaving.cancelled()

    on_broker(test)


def test_while_the_store_is_down_the_cache_answers_and_then_catches_up_without_reading_all_again(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            first = await b.seen(await b.topics.create("first", 1))
            b.store.down = unavailable()
            second = await b.topics.create("second", 1)  # another broker reaches the store
            third = await b.topics.alter("first", partition_count=2)
            await until(lambda: b.store.refused > 2)
            assert b.cache.topics() == (first,)
            b.store.down = None
            await b.seen(third)
            assert {topic.name: topic for topic in b.cache.topics()} == {"first": third, "second": second}
        assert b.store.ranges == 1
        assert b.store.watches == 2
        assert b.changes == [(None, first), (None, second), (first, third)]

    on_broker(test)


def test_a_store_that_is_down_at_the_start_is_waited_for(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        created = await b.topics.create("orders", 6)
        b.store.down = unavailable()
        async with b.running():
            await until(lambda: b.store.refused > 2)
            assert b.cache.revision == 0
            b.store.down = None
            await b.seen(created)

    on_broker(test)


def test_the_pauses_between_attempts_grow_to_a_bound(on_broker: OnBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            enough.set()
            await asyncio.Event().wait()  # no tenth

    async def test(b: Broker) -> None:
        monkeypatch.setattr(range_watch, "BACK_OFF_S", 0.1)
        monkeypatch.setattr(range_watch, "BACK_OFF_S_MAX", 5.0)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        b.store.down = unavailable()
        async with b.running():
            await asyncio.wait_for(enough.wait(), PATIENCE_S)
        assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]

    on_broker(test)


def test_after_a_gap_in_history_all_is_read_again_and_the_differences_are_reported(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        kept, altered, deleted = [await b.topics.create(name, 1) for name in ("kept", "altered", "deleted")]
        async with b.running():
            await b.seen(deleted)
            b.changes.clear()
            b.store.down = unavailable()
            after = await b.topics.alter("altered", partition_count=9)
            await b.topics.delete("deleted")
            made = await b.topics.create("made", 1)
            await b.sqlite.compact(made.revision)
            b.store.down = None
            await b.seen(made)
            assert b.store.ranges == 2
            assert {topic.name: topic for topic in b.cache.topics()} == {"kept": kept, "altered": after, "made": made}
            last = await b.seen(await b.topics.create("last", 1))  # and it follows on from there
        assert sorted(b.changes, key=str) == sorted([(deleted, None), (altered, after), (None, made), (None, last)], key=str)

    on_broker(test)


def test_pages_are_read_at_one_moment_and_what_changes_meanwhile_is_followed(
    on_broker: OnBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_watch, "PAGE_KEYS", 2)

    async def test(b: Broker) -> None:
        created = [await b.topics.create(name, 1) for name in "abcde"]
        read = b.store.range

        async def delete_after_the_first_page(*args: object, **kwargs: object) -> object:
            page = await read(*args, **kwargs)  # type: ignore[arg-type]
            if b.store.ranges == 1:
                await b.topics.delete("e")
            return page

        monkeypatch.setattr(b.store, "range", delete_after_the_first_page)
        async with b.running():
            assert await b.cache.wait_for(Revision(created[-1].revision + 1), PATIENCE_S)
        assert b.changes == [*((None, topic) for topic in created), (created[4], None)]

    on_broker(test)


def test_a_topic_that_cannot_be_read_does_not_stop_the_others(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            await b.overwrite("bad", b"{")
            good = await b.seen(await b.topics.create("good", 1))
            assert b.cache.get("good") == good
            assert b.cache.topics() == (good,)
            with pytest.raises(Corrupt, match="/tidelog/topics/bad"):
                b.cache.get("bad")
            await b.sqlite.transact([], [Put(LAYOUT.topic("bad"), (await stored(b.sqlite, "good")).value.replace(b"good", b"bad"))])
            await b.seen(await b.topics.create("last", 1))
            assert b.cache.get("bad").partition_count == 1

    on_broker(test)


def test_a_damaged_value_does_not_pass_for_a_deletion(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            created = await b.seen(await b.topics.create("orders", 6))
            await b.overwrite("orders", b"{")
            assert b.cache.get("orders") == created
        assert b.changes == [(None, created)]

    on_broker(test)


def test_a_stored_setting_out_of_bounds_is_corrupt_and_an_unknown_one_is_skipped(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            created = await b.seen(await b.topics.create("orders", 6))
            value = (await stored(b.sqlite, "orders")).value
            future = value.replace(b'"settings":{}', b'"settings":{"from.the.future":"x","retention.ms":"5"}')
            await b.overwrite("orders", future)
            assert b.cache.settings(created.id) == TopicSettings(retention_ms=5)
            await b.overwrite(
                "bad", value.replace(b'"settings":{}', b'"settings":{"retention.ms":"-5"}').replace(b"orders", b"bad")
            )
            with pytest.raises(Corrupt, match=r"retention\.ms"):
                b.cache.get("bad")

    on_broker(test)


def test_an_id_that_no_topic_has_is_unknown(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            assert await b.cache.wait_for(Revision(1), PATIENCE_S)
            with pytest.raises(UnknownTopic, match="no topic with the id"):
                b.cache.by_id(TopicId("0" * 32))

    on_broker(test)


async def stored(store: MetadataStore, name: str) -> KeyValue:
    held = await store.get(LAYOUT.topic(name))
    assert held is not None
    return held


# ── catching up with the store ──────────────────────────────────────────────────────────────────────────────────────────


class CountedGets(FaultyStore):
    """Counts the reads of single keys, and holds them while `open` is cleared."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.open = asyncio.Event()
        self.open.set()
        self.gets = self.at_once = self.at_once_peak = 0
        self.slow_s = 0.0

    async def get(self, key: str) -> KeyValue | None:
        self.gets += 1
        self.at_once += 1
        self.at_once_peak = max(self.at_once, self.at_once_peak)
        found = await super().get(key)
        await asyncio.sleep(self.slow_s)
        await self.open.wait()
        self.at_once -= 1
        return found


def catching_up(test: Callable[[CountedGets, TopicRegistry, TopicCache], Awaitable[None]]) -> None:
    async def opened() -> None:
        sqlite = SqliteStore(Path(":memory:"))
        store = CountedGets(sqlite)
        cache = TopicCache(store)
        following = asyncio.ensure_future(cache.run())
        try:
            assert await cache.wait_for(Revision(0), PATIENCE_S)
            await test(store, TopicRegistry(sqlite), cache)
        finally:
            following.cancel()
            await asyncio.wait((following,))
            await sqlite.close()

    run(opened())


def test_each_change_of_a_topic_makes_an_earlier_view_outdated() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        changes: list[Callable[[], Awaitable[object]]] = [
            lambda: topics.create("orders", 3),
            lambda: topics.alter("orders", partition_count=5),
            lambda: topics.alter("orders", settings={"retention.ms": "1000"}),
            lambda: topics.delete("orders"),
            lambda: topics.create("orders", 1),
        ]
        for change in changes:
            await cache.catch_up_with_all(timeout_s=PATIENCE_S)
            before = cache.view
            assert before is not None
            assert (await store.transact([before.compare], [])).succeeded
            await change()
            assert not (await store.transact([before.compare], [])).succeeded
        await store.transact([], [Put("/tidelog/scratch/other", b"")])
        await cache.catch_up_with_all(timeout_s=PATIENCE_S)
        assert cache.view is not None
        assert cache.view is cache.view
        assert (await store.transact([cache.view.compare], [])).succeeded

    catching_up(test)


def test_a_cache_without_a_first_reading_has_no_view() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        assert TopicCache(store).view is None

    catching_up(test)


def test_a_topic_is_known_after_the_cache_has_caught_up_with_the_store() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        made = await topics.create("orders", 3)
        await cache.catch_up("orders", timeout_s=PATIENCE_S)
        assert cache.get("orders") == made
        grown = await topics.alter("orders", partition_count=5)
        await cache.catch_up("orders", timeout_s=PATIENCE_S)
        assert cache.by_id(made.id) == grown
        await cache.catch_up("missing", timeout_s=PATIENCE_S)
        assert store.gets == 3

    catching_up(test)


def test_those_who_catch_up_at_once_share_a_read_that_begins_after_all_of_them_have_asked() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        store.open.clear()
        early = asyncio.ensure_future(cache.catch_up("orders", timeout_s=PATIENCE_S))
        await until(lambda: store.gets == 1)
        await asyncio.sleep(0)  # it has read that there is no such topic
        made = await topics.create("orders", 3)
        late = [asyncio.ensure_future(cache.catch_up("orders", timeout_s=PATIENCE_S)) for _ in range(50)]
        await asyncio.sleep(0)
        store.open.set()
        await asyncio.gather(early, *late)
        assert cache.get("orders") == made
        assert store.gets == 2

    catching_up(test)


def test_those_who_catch_up_with_all_topics_at_once_share_a_read_that_begins_after_all_of_them_have_asked() -> None:
    """Many consumers restart, and each asks its coordinator for its offsets."""

    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        store.open.clear()
        early = asyncio.ensure_future(cache.catch_up_with_all(timeout_s=PATIENCE_S))
        await until(lambda: store.gets == 1)
        await asyncio.sleep(0)  # it has read that there are no topics
        made = await topics.create("orders", 3)
        late = [asyncio.ensure_future(cache.catch_up_with_all(timeout_s=PATIENCE_S)) for _ in range(50)]
        await asyncio.sleep(0)
        store.open.set()
        await asyncio.gather(early, *late)
        assert cache.get("orders") == made
        assert store.gets == 2

    catching_up(test)


def test_those_who_share_a_read_go_on_together() -> None:
    """The commits of many groups then share a transaction."""

    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        loop, iteration, went_on = asyncio.get_running_loop(), 0, set[int]()

        def count() -> None:
            nonlocal iteration
            iteration += 1
            counting[0] = loop.call_soon(count)

        counting = [loop.call_soon(count)]
        store.open.clear()
        asked = [asyncio.ensure_future(cache.catch_up_with_all(timeout_s=PATIENCE_S)) for _ in range(50)]
        for each in asked[1:]:
            each.add_done_callback(lambda _: went_on.add(iteration))
        await until(lambda: store.gets == 1)
        store.open.set()
        await asyncio.gather(*asked)
        counting[0].cancel()
        assert len(went_on) <= 3

    catching_up(test)


def test_a_caller_that_gives_up_does_not_end_the_read_of_others() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        store.open.clear()
        first, *others = [asyncio.ensure_future(cache.catch_up_with_all(timeout_s=PATIENCE_S)) for _ in range(3)]
        await until(lambda: store.gets == 1)
        first.cancel()
        store.open.set()
        await asyncio.gather(*others)
        assert (first.cancelled(), store.gets) == (True, 1)

    catching_up(test)


@pytest.mark.slow  # seconds of steady calls
def test_after_a_stall_callers_catch_up_though_reads_take_almost_as_long_as_each_of_them_waits() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        answered, refused = 0, 0

        async def ask() -> None:
            nonlocal answered, refused
            try:
                await cache.catch_up_with_all(timeout_s=0.5)
                answered += 1
            except Unavailable:
                refused += 1

        async def steady(seconds: float) -> None:
            for _ in range(round(seconds * 50)):
                asked.append(asyncio.ensure_future(ask()))
                await asyncio.sleep(0.02)

        asked: list[asyncio.Future[None]] = []
        store.open.clear()
        await steady(1.0)
        assert (answered, store.gets) == (0, 1)
        store.open.set()
        store.slow_s = 0.2
        answered = refused = 0
        await steady(3.0)
        await asyncio.gather(*asked)
        assert answered > 4 * refused

    catching_up(test)


def test_a_read_that_fails_fails_for_all_who_share_it() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        store.down = unavailable()
        asked = [cache.catch_up_with_all(timeout_s=PATIENCE_S) for _ in range(50)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {Unavailable}
        assert store.gets == 1
        store.down = None
        await cache.catch_up_with_all(timeout_s=PATIENCE_S)

    catching_up(test)


def test_clients_that_name_many_missing_topics_do_not_hold_up_those_who_catch_up_with_all() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        store.open.clear()
        missing = [asyncio.ensure_future(cache.catch_up(f"missing-{number}", timeout_s=PATIENCE_S)) for number in range(100)]
        await until(lambda: store.gets == READS_AT_ONCE)
        others = asyncio.ensure_future(cache.catch_up_with_all(timeout_s=PATIENCE_S))
        await until(lambda: store.gets == READS_AT_ONCE + 1)
        store.open.set()
        await asyncio.gather(others, *missing)

    catching_up(test)


def test_clients_that_name_many_missing_topics_read_few_of_them_at_once() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        await asyncio.gather(*(cache.catch_up(f"missing-{number}", timeout_s=PATIENCE_S) for number in range(100)))
        assert (store.gets, store.at_once_peak) == (100, READS_AT_ONCE)

    catching_up(test)


def test_reads_of_names_that_no_caller_waits_for_any_more_do_not_queue_while_the_store_is_silent() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        store.open.clear()
        asked = [cache.catch_up(f"missing-{number}", timeout_s=0.01) for number in range(10 * READS_AT_ONCE)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {Unavailable}
        await until(lambda: not cache._under_way)

    catching_up(test)


def test_a_caller_that_can_t_catch_up_is_to_ask_again() -> None:
    async def test(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        store.open.clear()
        with pytest.raises(Unavailable, match="no answer of the metadata store in time"):
            await cache.catch_up("orders", timeout_s=0.01)
        store.open.set()
        store.down = Unavailable("the store is away")
        with pytest.raises(Unavailable, match="the store is away"):
            await cache.catch_up("orders", timeout_s=PATIENCE_S)
        store.down = None
        await cache.catch_up("orders", timeout_s=PATIENCE_S)
        assert not cache._catching_up, "nothing is kept of those who asked"

    catching_up(test)


# Partitions that a caller knows of, and this cache may not


def test_a_partition_that_was_created_before_the_call_is_known_after_it(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            assert await b.cache.wait_for(Revision(1), PATIENCE_S)
            created = await b.topics.create("orders", 1)
            await b.cache.hear_of([TopicPartition(created.id, Partition(0))], timeout_s=PATIENCE_S)
            assert b.cache.by_id(created.id) == created
            grown = await b.topics.alter("orders", partition_count=2)
            await b.cache.hear_of([TopicPartition(created.id, Partition(1))], timeout_s=PATIENCE_S)
            assert b.cache.by_id(created.id) == grown

    on_broker(test)


def test_a_partition_that_is_known_is_not_asked_for_and_one_that_never_existed_is_not_waited_for(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        async with b.running():
            created = await b.seen(await b.topics.create("orders", 1))
            b.store.down = unavailable()
            await b.cache.hear_of([TopicPartition(created.id, Partition(0))], timeout_s=PATIENCE_S)
            with pytest.raises(Unavailable):
                await b.cache.hear_of([TopicPartition(TopicId("0" * 32), Partition(0))], timeout_s=PATIENCE_S)
            b.store.down = None
            await b.cache.hear_of([TopicPartition(TopicId("0" * 32), Partition(0))], timeout_s=PATIENCE_S)

    on_broker(test)


def test_a_cache_whose_watch_does_not_follow_says_so(on_broker: OnBroker) -> None:
    async def test(b: Broker) -> None:
        created = await b.topics.create("orders", 1)
        with pytest.raises(Unavailable, match="no answer of the metadata store in time"):
            await b.cache.hear_of([TopicPartition(created.id, Partition(0))], timeout_s=0.01)

    on_broker(test)
