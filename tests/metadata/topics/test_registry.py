"""Topics as users make, change and delete them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
import pytest

from metadata.cluster.leadership import PartitionState, SessionSpan
from metadata.errors import (
    AlreadyExists,
    Corrupt,
    InvalidArgument,
    InvalidName,
    OutcomeUnknown,
    Rejected,
    TidelogError,
    Unavailable,
    UnknownTopic,
)
from metadata.model import PARTITIONS_MAX, LeaderEpoch, Partition, SessionId, TopicPartition
from metadata.page_token import PAGE_SIZE, PAGE_SIZE_MAX
from metadata.store.interface import KeyValue, Put, RangeResult
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics import registry as topics_module
from metadata.topics.registry import TopicRegistry
from metadata.topics.settings import ListChange
from metadata.topics.topic import PARTITION_COUNT_MAX, Topic
from tests.kit.metadata.faulty_store import FaultyStore
from tests.kit.metadata.stores import run

LAYOUT = KeyLayout()


@dataclass
class Cluster:
    store: FaultyStore
    topics: TopicRegistry

    def other_broker(self) -> TopicRegistry:
        return TopicRegistry(self.store.store)

    async def contents(self) -> RangeResult:
        return await self.store.store.range("")

    async def partitions_counted(self) -> int:
        held = await self.store.store.get(LAYOUT.partition_count)
        return int(held.value) if held else 0


@asynccontextmanager
async def cluster(directory: Path, max_message_bytes: int | None = None) -> AsyncIterator[Cluster]:
    store = FaultyStore(SqliteStore(directory / "metadata.sqlite"))
    ids, times = count(1), count(1_767_225_600_000)
    topics = TopicRegistry(
        store, LAYOUT, max_message_bytes=max_message_bytes, new_id=lambda: f"{next(ids):032x}", now_ms=lambda: next(times)
    )
    try:
        yield Cluster(store, topics)
    finally:
        await store.close()


OnCluster = Callable[[Callable[[Cluster], Awaitable[None]]], None]


@pytest.fixture
def on_cluster(tmp_path: Path) -> OnCluster:
    def on_cluster(test: Callable[[Cluster], Awaitable[None]]) -> None:
        async def opened() -> None:
            async with cluster(tmp_path) as opened_cluster:
                await test(opened_cluster)

        run(opened())

    return on_cluster


async def changes_nothing(
    c: Cluster, request: Awaitable[object], error: type[TidelogError], match: str | None = None
) -> TidelogError:
    """The error of a request that must be refused, with everything in the store as it was."""
    before = await c.contents()
    with pytest.raises(error, match=match) as refused:
        await request
    assert await c.contents() == before
    return refused.value


# Creating


def test_a_topic_that_was_created_reads_back(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        created = await c.topics.create("orders", 6, {"retention.ms": "86400000", "cleanup.policy": "delete"})
        assert created.name == "orders"
        assert created.partition_count == 6
        assert created.settings == {"retention.ms": "86400000"}  # the other one is at its default
        assert (created.id, created.created_at_ms) == (f"{1:032x}", 1_767_225_600_000)
        assert created.revision == (await c.contents()).revision
        assert await c.topics.get("orders") == created
        assert await c.other_broker().get("orders") == created

    on_cluster(test)


def test_a_name_that_is_taken_is_refused(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        await changes_nothing(c, c.topics.create("orders", 6), AlreadyExists, "orders already exists")
        await changes_nothing(c, c.topics.create("orders", 6, validate_only=True), AlreadyExists)

    on_cluster(test)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "é", "a\n", "a\x00", "a" * 250])
def test_a_bad_name_is_refused_by_every_call(on_cluster: OnCluster, name: str) -> None:
    async def test(c: Cluster) -> None:
        await changes_nothing(c, c.topics.create(name, 1), InvalidName)
        await changes_nothing(c, c.topics.get(name), InvalidName)
        await changes_nothing(c, c.topics.alter(name, partition_count=2), InvalidName)
        await changes_nothing(c, c.topics.delete(name), InvalidName)

    on_cluster(test)


@pytest.mark.parametrize("name", ["a", "a" * 249, "__internal", "a.b_c-D", "..."])
def test_every_name_that_kafka_takes_is_taken(on_cluster: OnCluster, name: str) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create(name, 1)
        assert [topic.name for topic in (await c.topics.list()).topics] == [name]

    on_cluster(test)


@pytest.mark.parametrize("partition_count", [0, -1, PARTITION_COUNT_MAX + 1])
def test_a_bad_partition_count_is_refused(on_cluster: OnCluster, partition_count: int) -> None:
    async def test(c: Cluster) -> None:
        await changes_nothing(c, c.topics.create("a", partition_count), InvalidArgument)

    on_cluster(test)


def test_a_bad_setting_is_refused_by_name(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("there", 1)
        for settings, match in (({"retention.ms": "-2"}, "retention.ms='-2'"), ({"retention.mss": "1"}, "'retention.mss' is not")):
            await changes_nothing(c, c.topics.create("a", 1, settings), InvalidArgument, match)
            await changes_nothing(c, c.topics.alter("there", settings=settings), InvalidArgument, match)

    on_cluster(test)


def test_max_message_bytes_is_bounded_by_what_the_brokers_take(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, max_message_bytes=2_000_000) as c:
            await c.topics.create("fits", 1, {"max.message.bytes": "2000000"})
            request = c.topics.create("a", 1, {"max.message.bytes": "2000001"})
            await changes_nothing(c, request, InvalidArgument, "more than this cluster takes, 2000000")
            request = c.topics.alter("fits", settings={"max.message.bytes": "2000001"})
            await changes_nothing(c, request, InvalidArgument, "more than this cluster takes, 2000000")

    run(test())


def test_one_of_many_concurrent_creates_of_a_topic_name_succeeds(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        brokers = [c.other_broker() for _ in range(8)]
        results = await asyncio.gather(*(broker.create("orders", 3) for broker in brokers), return_exceptions=True)
        created = [result for result in results if isinstance(result, Topic)]
        assert [await c.topics.get("orders")] == created
        assert sum(isinstance(result, AlreadyExists) for result in results) == 7
        assert await c.partitions_counted() == 3

    on_cluster(test)


def test_topics_created_at_once_by_many_brokers_are_all_counted(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await asyncio.gather(*(c.other_broker().create(f"topic-{n}", n) for n in range(1, 9)))
        assert await c.partitions_counted() == sum(range(1, 9))
        assert len((await c.topics.list()).topics) == 8

    on_cluster(test)


def test_a_create_whose_answer_is_lost_says_that_the_outcome_is_unknown(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        c.store.lose_answers = 1
        with pytest.raises(OutcomeUnknown):
            await c.topics.create("orders", 6)
        assert (await c.topics.get("orders")).partition_count == 6

    on_cluster(test)


def test_a_topic_that_is_made_again_has_another_id(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        first = await c.topics.create("orders", 6)
        await c.topics.delete("orders")
        second = await c.topics.create("orders", 6)
        assert first.id != second.id

    on_cluster(test)


def test_a_topic_that_is_named_by_its_id_is_deleted_in_no_later_life(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        old = await c.topics.create("orders", 1)
        await c.topics.delete("orders", topic_id=old.id)
        new = await c.topics.create("orders", 1)
        await changes_nothing(c, c.topics.delete("orders", topic_id=old.id), UnknownTopic, "deleted and made again")
        assert await c.topics.get("orders") == new

    on_cluster(test)


def test_lists_that_two_brokers_change_at_once_have_both_changes(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        name = "leader.replication.throttled.replicas"
        await c.topics.create("orders", 1, {name: "0:1"})
        await asyncio.gather(
            c.topics.alter("orders", settings={name: ListChange(added=("0:2",))}),
            c.other_broker().alter("orders", settings={name: ListChange(added=("0:3",))}),
            c.other_broker().alter("orders", settings={name: ListChange(removed=("0:1",))}),
        )
        held = (await c.topics.get("orders")).settings[name]
        assert sorted(held.split(",")) == ["0:2", "0:3"]
        empty = c.topics.alter("orders", settings={"cleanup.policy": ListChange(removed=("delete",))})
        await changes_nothing(c, empty, InvalidArgument, "cleanup.policy")

    on_cluster(test)


def test_ids_differ_without_an_injected_generator(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        topics = c.other_broker()
        ids = {(await topics.create(name, 1)).id for name in "abc"}
        assert len(ids) == 3
        assert all(len(topic_id) == 32 for topic_id in ids)

    on_cluster(test)


# Only validating


def test_a_change_that_is_only_validated_is_answered_and_not_written(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        held = await c.topics.create("held", 3)
        before = await c.contents()
        created = await c.topics.create("new", 6, {"retention.ms": "1"}, validate_only=True)
        assert (created.name, created.partition_count, created.settings) == ("new", 6, {"retention.ms": "1"})
        altered = await c.topics.alter("held", settings={"retention.ms": "1"}, partition_count=5, validate_only=True)
        assert (altered.id, altered.partition_count, altered.settings) == (held.id, 5, {"retention.ms": "1"})
        assert await c.topics.delete("held", validate_only=True) == held
        assert await c.contents() == before

    on_cluster(test)


# Describing and listing


def test_every_call_refuses_an_unknown_topic_with_a_hint_of_the_nearest_name(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 1)
        requests: list[Callable[[], Awaitable[Topic]]] = [
            lambda: c.topics.get("ordres"),
            lambda: c.topics.alter("ordres", partition_count=2),
            lambda: c.topics.delete("ordres"),
        ]
        for request in requests:
            error = await changes_nothing(c, request(), UnknownTopic, "there is no topic ordres")
            assert error.hint == "Did you mean 'orders'?"
        error = await changes_nothing(c, c.topics.get("zzz"), UnknownTopic)
        assert error.hint == UnknownTopic.default_hint

    on_cluster(test)


def test_among_very_many_topics_no_nearest_name_is_looked_for(on_cluster: OnCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "KNOWN_MAX", 2)

    async def test(c: Cluster) -> None:
        for name in ("orders", "b", "c"):
            await c.topics.create(name, 1)
        error = await changes_nothing(c, c.topics.get("ordres"), UnknownTopic)
        assert error.hint == UnknownTopic.default_hint

    on_cluster(test)


def test_a_stored_topic_that_cannot_be_read_is_corrupt(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.store.store.transact([], [Put(LAYOUT.topic("bad"), b"{")])
        await changes_nothing(c, c.topics.get("bad"), Corrupt, LAYOUT.topic("bad"))
        await changes_nothing(c, c.topics.list(), Corrupt, LAYOUT.topic("bad"))
        await changes_nothing(c, c.topics.alter("bad", partition_count=9), Corrupt, LAYOUT.topic("bad"))
        await changes_nothing(c, c.topics.delete("bad"), Corrupt, LAYOUT.topic("bad"))

    on_cluster(test)


async def all_pages(c: Cluster, page_size: int) -> list[list[str]]:
    pages, token = [], ""
    while True:
        page = await c.topics.list(page_size=page_size, page_token=token)
        pages.append([topic.name for topic in page.topics])
        token = page.next_page_token
        if not token:
            return pages


def test_pages_list_every_topic_once_in_the_order_of_names(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        names = ["B", "a", "a.b", "a-c", "b"]
        for name in names:
            await c.topics.create(name, 1)
        ordered = sorted(names)
        assert await all_pages(c, 0) == [ordered]
        assert await all_pages(c, 2) == [ordered[:2], ordered[2:4], ordered[4:]]
        assert await all_pages(c, 5) == [ordered]
        assert await all_pages(c, PAGE_SIZE_MAX) == [ordered]

    on_cluster(test)


def test_a_cluster_without_topics_lists_one_empty_page(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        assert await all_pages(c, 10) == [[]]

    on_cluster(test)


@pytest.mark.slow
def test_a_page_holds_100_topics_when_nothing_else_is_asked_for(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        for n in range(PAGE_SIZE + 1):
            await c.topics.create(f"{n:03d}", 1)
        assert [len(page) for page in await all_pages(c, 0)] == [100, 1]

    on_cluster(test)


def test_a_topic_that_comes_or_goes_while_others_are_listed_does_not_move_them(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        for name in "bdfh":
            await c.topics.create(name, 1)
        page = await c.topics.list(page_size=2)
        await c.topics.create("a", 1)
        await c.topics.delete("d")  # the very one that the token names
        await c.topics.create("e", 1)
        page = await c.topics.list(page_size=2, page_token=page.next_page_token)
        assert [topic.name for topic in page.topics] == ["e", "f"]

    on_cluster(test)


@pytest.mark.slow
@pytest.mark.parametrize("token", ["x", "orders", "AAAAAABhYg", "é", "\ud800", "=", "A" * 10_000, "../..", "AQ"])
def test_a_token_that_no_page_gave_is_refused(on_cluster: OnCluster, token: str) -> None:
    async def test(c: Cluster) -> None:
        await changes_nothing(c, c.topics.list(page_token=token), InvalidArgument, "page_token")

    on_cluster(test)


@pytest.mark.parametrize("page_size", [-1, PAGE_SIZE_MAX + 1])
def test_a_page_holds_at_most_1000_topics(on_cluster: OnCluster, page_size: int) -> None:
    async def test(c: Cluster) -> None:
        await changes_nothing(c, c.topics.list(page_size=page_size), InvalidArgument, "page_size")

    on_cluster(test)


# Altering


def test_altering_changes_what_is_named_and_nothing_else(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        created = await c.topics.create("orders", 6, {"retention.ms": "5", "retention.bytes": "7"})
        altered = await c.topics.alter("orders", settings={"retention.ms": "6", "cleanup.policy": "delete,compact"})
        assert altered.settings == {"retention.ms": "6", "retention.bytes": "7", "cleanup.policy": "compact,delete"}
        assert (altered.id, altered.created_at_ms, altered.partition_count) == (created.id, created.created_at_ms, 6)
        assert altered.revision > created.revision
        assert await c.topics.get("orders") == altered
        assert (await c.topics.alter("orders", partition_count=8)).settings == altered.settings
        assert await c.partitions_counted() == 8

    on_cluster(test)


def test_a_setting_of_none_and_one_of_its_default_go_back_to_the_default(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6, {"retention.ms": "5", "retention.bytes": "7"})
        settings = {"retention.ms": None, "retention.bytes": "-1", "delete.retention.ms": None}
        assert (await c.topics.alter("orders", settings=settings)).settings == {}

    on_cluster(test)


def test_replacing_the_settings_takes_those_not_named_back_to_their_defaults(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6, {"retention.ms": "5", "retention.bytes": "7"})
        replaced = await c.topics.alter("orders", settings={"retention.bytes": "8"}, replace_settings=True)
        assert replaced.settings == {"retention.bytes": "8"}
        assert (await c.topics.alter("orders", replace_settings=True)).settings == {}

    on_cluster(test)


def test_removing_a_setting_that_does_not_exist_is_refused(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        request = c.topics.alter("orders", settings={"retention.mss": None})
        error = await changes_nothing(c, request, InvalidArgument, "'retention.mss' is not a setting")
        assert error.hint == "Did you mean 'retention.ms'?"

    on_cluster(test)


def test_an_alteration_that_changes_nothing_writes_nothing(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        created = await c.topics.create("orders", 6, {"retention.ms": "5"})
        before = await c.contents()
        assert await c.topics.alter("orders", settings={"retention.ms": "5"}, partition_count=6) == created
        assert await c.topics.alter("orders") == created
        assert await c.contents() == before

    on_cluster(test)


def test_partitions_are_never_removed(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        await changes_nothing(c, c.topics.alter("orders", partition_count=5), InvalidArgument, "has 6 partitions")
        await changes_nothing(c, c.topics.alter("orders", partition_count=0), InvalidArgument, "not a partition count")

    on_cluster(test)


def test_two_alterations_at_once_both_happen(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        c.store.before_transaction = lambda: c.other_broker().alter("orders", settings={"retention.ms": "5"}, partition_count=9)
        altered = await c.topics.alter("orders", settings={"retention.bytes": "7"})
        assert altered.settings == {"retention.ms": "5", "retention.bytes": "7"}
        assert altered.partition_count == 9
        assert await c.partitions_counted() == 9

    on_cluster(test)


def test_an_alteration_is_decided_again_on_what_came_between(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        c.store.before_transaction = lambda: c.other_broker().alter("orders", partition_count=9)
        with pytest.raises(InvalidArgument, match="has 9 partitions"):
            await c.topics.alter("orders", partition_count=8)
        c.store.before_transaction = lambda: c.other_broker().delete("orders")
        with pytest.raises(UnknownTopic):
            await c.topics.alter("orders", partition_count=10)

    on_cluster(test)


def test_a_topic_that_anyone_rewrote_meanwhile_is_not_written_over(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        held = await stored(c, "orders")
        rewritten = Put(held.key, held.value.replace(b'"settings":{}', b'"settings":{"retention.ms":"5"}'))
        c.store.before_transaction = lambda: c.store.store.transact([], [rewritten])
        altered = await c.topics.alter("orders", settings={"retention.bytes": "7"})
        assert altered.settings == {"retention.ms": "5", "retention.bytes": "7"}

    on_cluster(test)


def test_a_change_that_never_gets_its_turn_gives_up_as_retriable(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 1)
        partition_counts = count(2)

        async def again() -> None:
            await c.other_broker().alter("orders", partition_count=next(partition_counts))
            c.store.before_transaction = again

        c.store.before_transaction = again
        with pytest.raises(Unavailable, match="attempts lost to concurrent changes"):
            await c.topics.alter("orders", settings={"retention.ms": "5"})

    on_cluster(test)


def test_settings_of_a_newer_version_stay_until_they_are_removed(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        held = await stored(c, "orders")
        value = held.value.replace(b'"settings":{}', b'"settings":{"from.the.future":"1"}')
        await c.store.store.transact([], [Put(held.key, value)])
        altered = await c.topics.alter("orders", settings={"retention.ms": "5"})
        assert altered.settings == {"from.the.future": "1", "retention.ms": "5"}
        assert (await c.topics.alter("orders", settings={"from.the.future": None})).settings == {"retention.ms": "5"}

    on_cluster(test)


def test_a_topic_of_a_newer_format_is_read_and_deleted_but_not_rewritten(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        held = await stored(c, "orders")
        await c.store.store.transact([], [Put(held.key, held.value.replace(b'"format_version":1', b'"format_version":2'))])
        assert (await c.topics.get("orders")).partition_count == 6
        await changes_nothing(c, c.topics.alter("orders", partition_count=7), Rejected, "newer version")
        await c.topics.delete("orders")
        assert await c.partitions_counted() == 0

    on_cluster(test)


async def stored(c: Cluster, name: str) -> KeyValue:
    held = await c.store.store.get(LAYOUT.topic(name))
    assert held is not None
    return held


# Deleting


def test_a_topic_that_was_deleted_is_gone_and_answered_as_it_was(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        created = await c.topics.create("orders", 6, {"retention.ms": "5"})
        await c.topics.create("other", 2)
        deleted = await c.topics.delete("orders")
        assert (deleted.id, deleted.partition_count, deleted.settings) == (created.id, 6, {"retention.ms": "5"})
        assert deleted.revision == (await c.contents()).revision
        assert [topic.name for topic in (await c.topics.list()).topics] == ["other"]
        assert await c.partitions_counted() == 2
        await changes_nothing(c, c.topics.delete("orders"), UnknownTopic)

    on_cluster(test)


# The bound of the cluster


def test_the_cluster_has_no_more_than_its_bound_of_partitions(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        for n in range(PARTITIONS_MAX // PARTITION_COUNT_MAX - 1):
            await c.topics.create(f"large-{n}", PARTITION_COUNT_MAX)
        await c.topics.create("rest", PARTITION_COUNT_MAX - 1)
        await changes_nothing(c, c.topics.create("small", 2), Rejected, "100001 partitions")
        await c.topics.create("small", 1)
        await changes_nothing(c, c.topics.alter("rest", partition_count=PARTITION_COUNT_MAX), Rejected, "100001 partitions")
        await c.topics.alter("rest", settings={"retention.ms": "5"})  # what does not grow is let through
        await c.topics.delete("large-0")
        await c.topics.alter("rest", partition_count=PARTITION_COUNT_MAX)

    on_cluster(test)


def test_a_cluster_over_its_bound_still_changes_and_deletes_topics(on_cluster: OnCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(c: Cluster) -> None:
        await c.topics.create("orders", 6)
        await c.topics.create("other", 6)
        monkeypatch.setattr(topics_module, "PARTITIONS_MAX", 5)
        await c.topics.alter("orders", settings={"retention.ms": "5"})
        await c.topics.delete("orders")
        await changes_nothing(c, c.topics.create("orders", 1), Rejected, "7 partitions, more than 5")

    on_cluster(test)


def test_a_count_of_partitions_that_cannot_be_read_is_corrupt(on_cluster: OnCluster) -> None:
    async def test(c: Cluster) -> None:
        await c.store.store.transact([], [Put(LAYOUT.partition_count, b"many")])
        await changes_nothing(c, c.topics.create("orders", 1), Corrupt, LAYOUT.partition_count)

    on_cluster(test)


# ── leader epochs over the lives of a name ──────────────────────────────────────────────────────────────────────────────


async def lead(store: FaultyStore, topic: Topic, *epochs: int) -> None:
    """Writes states of the topic's partitions, as a controller does."""
    for number, epoch in enumerate(epochs):
        span = SessionSpan(LeaderEpoch(epoch), SessionId(1))
        state = PartitionState(leader_session=SessionId(1), leader_epoch=LeaderEpoch(epoch), sessions=(span,))
        key = LAYOUT.partition(TopicPartition(topic.id, Partition(number)))
        await store.store.transact([], [Put(key, msgspec.json.encode(state))])


def test_a_topic_that_is_made_again_begins_above_every_leader_epoch_of_its_earlier_life(on_cluster: OnCluster) -> None:
    async def test(opened: Cluster) -> None:
        first = await opened.topics.create("orders", 3)
        assert first.first_leader_epoch == 0
        await lead(opened.store, first, 4, 9, 0)
        await opened.topics.delete("orders")
        again = await opened.topics.create("orders", 3)
        assert again.first_leader_epoch > 9
        assert (await opened.topics.get("orders")).first_leader_epoch == again.first_leader_epoch
        grown = await opened.topics.alter("orders", partition_count=6)
        assert grown.first_leader_epoch == again.first_leader_epoch
        await opened.topics.delete("orders")  # before any leader was seen
        assert (await opened.topics.create("orders", 1)).first_leader_epoch > again.first_leader_epoch

    on_cluster(test)


def test_a_deletion_that_comes_between_moves_the_epochs_of_a_topic_that_is_being_created(on_cluster: OnCluster) -> None:
    async def test(opened: Cluster) -> None:
        other = await opened.topics.create("other", 1)
        await lead(opened.store, other, 70)

        async def delete() -> None:
            await opened.other_broker().delete("other")

        opened.store.before_transaction = delete
        assert (await opened.topics.create("orders", 1)).first_leader_epoch > 70

    on_cluster(test)


def test_a_topic_whose_leaders_can_not_be_read_is_deleted_and_its_name_begins_far_above(on_cluster: OnCluster) -> None:
    async def test(opened: Cluster) -> None:
        topic = await opened.topics.create("orders", 1)
        key = LAYOUT.partition(TopicPartition(topic.id, Partition(0)))
        await opened.store.transact([], [Put(key, b"{")])
        await opened.topics.delete("orders")
        assert (await opened.topics.create("orders", 1)).first_leader_epoch >= 1 << 20

    on_cluster(test)


@pytest.mark.slow
def test_all_partitions_of_a_large_topic_are_looked_at(on_cluster: OnCluster) -> None:
    async def test(opened: Cluster) -> None:
        topic = await opened.topics.create("orders", 1500)
        await lead(opened.store, topic, *range(1500))
        await opened.topics.delete("orders")
        assert (await opened.topics.create("orders", 1)).first_leader_epoch > 1499

    on_cluster(test)


# ── what Kafka's tools set and read back ────────────────────────────────────────────────────────────────────────────────


def test_inert_settings_are_stored_altered_and_taken_back(on_cluster: OnCluster) -> None:
    async def test(opened: Cluster) -> None:
        made = await opened.topics.create("orders", 1, {"segment.bytes": "52428800", "min.insync.replicas": "1"})
        assert made.settings == {"segment.bytes": "52428800"}
        altered = await opened.topics.alter("orders", settings={"segment.bytes": None, "preallocate": "TRUE"})
        assert altered.settings == (await opened.topics.get("orders")).settings == {"preallocate": "true"}
        with pytest.raises(InvalidArgument, match=r"segment\.ms='0'"):
            await opened.topics.alter("orders", settings={"segment.ms": "0"})

    on_cluster(test)


@pytest.mark.parametrize("factor", [-1, 1, 3, 32767])
def test_a_topic_remembers_the_replication_factor_that_was_asked_for(on_cluster: OnCluster, factor: int) -> None:
    async def test(opened: Cluster) -> None:
        await opened.topics.create("orders", 1, replication_factor=factor)
        await opened.topics.alter("orders", partition_count=2)
        assert (await opened.topics.get("orders")).replication_factor == factor

    on_cluster(test)


@pytest.mark.parametrize("factor", [-2, 32768])
def test_a_number_that_is_no_replication_factor_is_refused(on_cluster: OnCluster, factor: int) -> None:
    async def test(opened: Cluster) -> None:
        with pytest.raises(InvalidArgument, match="is not a replication factor"):
            await opened.topics.create("orders", 1, replication_factor=factor)

    on_cluster(test)
