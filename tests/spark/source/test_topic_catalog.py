"""Which partitions a query names, by what the bucket alone knows of topics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest

from metadata.errors import Corrupt, UnknownPartition, UnknownTopic
from metadata.model import Revision, TopicId
from metadata.topics.topic import Topic, encode_topic
from segments.bucket.layout import TopicIncarnation
from segments.bucket.topic_catalog import mark_deleted, write_registration
from segments.object_store.memory import MemoryObjectStore
from spark.source.options import AssignedPartitions, Matching, Subscribed, Topics
from spark.source.topic_catalog import find_partitions


class Counting(MemoryObjectStore):
    """Remembers what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[str] = []

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.gets.append(key)
        return await super().get(key, start=start, end=end)


def named(name: str, letter: str) -> TopicIncarnation:
    return TopicIncarnation(name, TopicId(letter * 32))


async def register(
    store: MemoryObjectStore, topic: TopicIncarnation, partitions: int, *, revision: int = 1, created_at_ms: int = 0
) -> None:
    made = Topic(id=topic.topic_id, name=topic.name, partition_count=partitions, settings={}, created_at_ms=created_at_ms)
    await write_registration(store, topic, Revision(revision), encode_topic(made))


def found(store: MemoryObjectStore, wanted: Topics) -> list[tuple[str, str, int]]:
    partitions = asyncio.run(find_partitions(store, wanted))
    return [(name, where.topic_id[0], where.partition) for where, name in partitions.items()]


def made(*steps: tuple[TopicIncarnation, int, int]) -> Counting:
    """`steps`: topic, revision, and partitions; 0 partitions: it is deleted."""
    store = Counting()

    async def make() -> None:
        for topic, revision, partitions in steps:
            if partitions:
                await register(store, topic, partitions, revision=revision, created_at_ms=revision)
            else:
                await mark_deleted(store, topic, Revision(revision), now_ms=0)

    asyncio.run(make())
    return store


def test_the_newest_registration_of_the_topic_that_lives_counts() -> None:
    store = made(
        (named("orders", "a"), 1, 3), (named("orders", "a"), 5, 0), (named("orders", "b"), 6, 1), (named("orders", "b"), 8, 2)
    )
    assert found(store, Subscribed(("orders",))) == [("orders", "b", 0), ("orders", "b", 1)]
    assert found(store, AssignedPartitions({"orders": (1,)})) == [("orders", "b", 1)]
    with pytest.raises(UnknownPartition, match="orders/2"):
        found(store, AssignedPartitions({"orders": (2,)}))


def test_of_two_topics_of_one_name_the_later_one_counts_whatever_the_clocks_of_brokers_say() -> None:
    """The former one may stay unmarked: it was deleted before its partitions had leaders."""
    store = Counting()
    asyncio.run(register(store, named("orders", "b"), 1, revision=3, created_at_ms=2_000))
    asyncio.run(register(store, named("orders", "a"), 1, revision=9, created_at_ms=1_000))
    assert found(store, Subscribed(("orders",))) == [("orders", "a", 0)]


@pytest.mark.parametrize("steps", [(), ((named("orders", "a"), 1, 1), (named("orders", "a"), 2, 0))])
def test_a_topic_that_was_deleted_or_never_made_is_not_there(steps: Sequence[tuple[TopicIncarnation, int, int]]) -> None:
    store = made(*steps)
    with pytest.raises(UnknownTopic):
        found(store, Subscribed(("orders",)))
    with pytest.raises(UnknownTopic):
        found(store, Matching(re.compile("o.*")))
    assert asyncio.run(find_partitions(store, Subscribed(("orders",)), absent_ok=True)) == {}


def test_of_topics_that_do_not_match_nothing_but_the_name_is_read() -> None:
    store = made((named("bills", "a"), 1, 1), (named("orders", "b"), 1, 1), (named("orders-eu", "c"), 1, 1))
    asyncio.run(write_registration(store, named("broken", "d"), Revision(1), b"not JSON"))
    assert found(store, Matching(re.compile("orders.*"))) == [("orders", "b", 0), ("orders-eu", "c", 0)]
    assert sorted(key.split("/")[1] for key in store.gets) == ["orders", "orders-eu"]


def test_a_damaged_registration_fails_the_query_though_an_older_one_is_sound() -> None:
    """The older one may have fewer partitions, whose records would be left out in silence."""
    store = made((named("orders", "a"), 1, 1))
    asyncio.run(write_registration(store, named("orders", "a"), Revision(2), b"not JSON"))
    with pytest.raises(Corrupt):
        found(store, Subscribed(("orders",)))
