"""Finds topics on the bucket, by the mirrors that controllers write there: no broker is asked.

topics/orders/1f…/_log/deleted-…           a life that is over
topics/orders/2e…/_log/topic-….json        the newest counts: the partitions that there are
"""

from __future__ import annotations

import asyncio
from typing import Final

from metadata.errors import NotFound, UnknownPartition, UnknownTopic
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.store.interface import KeyValue
from metadata.topics.topic import Topic, decode_topic
from segments.bucket.layout import TOPICS, end_of_topic, parse_topic_key, topic_prefix
from segments.concurrency import all_of
from segments.object_store.interface import ObjectInfo, ObjectStore
from spark.source.options import Assigned, Matching, Subscribed, Topics

READS_MAX: Final = 32
"""At the same time."""


async def find_partitions(store: ObjectStore, wanted: Topics, *, absent_ok: bool = False) -> dict[TopicPartition, str]:
    """The partitions that the options name, in order, with the name of the topic of each.

    Raises UnknownTopic and UnknownPartition for what is named and not there, and what the store raises. `absent_ok`: topics that
    are not there are passed over.
    """
    match wanted:
        case Matching(pattern):
            topics = [topic for topic in await _topics_under(store, TOPICS) if pattern.fullmatch(topic.name)]
            if not topics and not absent_ok:
                raise UnknownTopic(f"no topic on {store.url} matches {pattern.pattern!r}", hint="See `tidelog bucket usage`.")
            return _partitions({topic.name: topic for topic in topics}, {})
        case Subscribed(names):
            return _partitions(await _named(store, names, absent_ok=absent_ok), {})
        case Assigned(partitions):
            return _partitions(await _named(store, tuple(partitions), absent_ok=absent_ok), dict(partitions))


def _partitions(topics: dict[str, Topic], assigned: dict[str, tuple[int, ...]]) -> dict[TopicPartition, str]:
    found: dict[TopicPartition, str] = {}
    for name, topic in sorted(topics.items()):
        for number in sorted(assigned.get(name, range(topic.partition_count))):
            if number >= topic.partition_count:
                there = f"topic {name} has partitions 0 to {topic.partition_count - 1}"
                raise UnknownPartition(f"there is no {name}/{number}: {there}", hint="Assign one of these.")
            found[TopicPartition(topic.id, Partition(number))] = name
    return found


async def _named(store: ObjectStore, names: tuple[str, ...], *, absent_ok: bool) -> dict[str, Topic]:
    found = {}
    for name in names:
        topics = await _topics_under(store, f"{TOPICS}{name}/")
        if not topics and absent_ok:
            continue
        if not topics:
            raise UnknownTopic(
                f"there is no topic {name} on {store.url}",
                hint="Is the bucket's prefix the one that its brokers have? `tidelog bucket usage` lists topics.",
            )
        found[name] = topics[0]
    return found


async def _topics_under(store: ObjectStore, prefix: str) -> list[Topic]:
    """Those that live, one for each name."""
    lives: list[tuple[str, TopicId]] = []
    start_after = ""
    while (page := await store.list(prefix, start_after=start_after, limit=1)).objects:
        start_after = page.objects[0].key
        key = parse_topic_key(start_after)
        if key is not None:
            lives.append((key.name, key.topic_id))
            start_after = end_of_topic(key.name, key.topic_id)
    turns = asyncio.Semaphore(READS_MAX)
    topics = await all_of(_topic(store, name, topic_id, turns) for name, topic_id in lives)
    newest: dict[str, Topic] = {}
    for topic in sorted((found for found in topics if found), key=lambda topic: topic.created_at_ms):
        newest[topic.name] = topic
    return list(newest.values())


async def _topic(store: ObjectStore, name: str, topic_id: TopicId, turns: asyncio.Semaphore) -> Topic | None:
    """None where this life of the topic is over, or was not mirrored yet: then it has no records."""
    mirror = ""
    async with turns:
        for found in await _changes(store, f"{topic_prefix(name, topic_id)}_log/"):
            key = parse_topic_key(found.key)
            if key is not None and key.deleted is not None:
                return None
            if key is not None and key.registered is not None:
                mirror = found.key
        if not mirror:
            return None
        try:
            body = await store.get(mirror)
        except NotFound:  # the topic was deleted, and is cleared away
            return None
    return decode_topic(KeyValue(f"{TOPICS}{name}", body, Revision(0), Revision(0), version=1))


async def _changes(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    """Of the registration, in order; the manifests, whose names are digits, come before them in a listing."""
    found: list[ObjectInfo] = []
    start_after = f"{prefix}a"
    while True:
        page = await store.list(prefix, start_after=start_after)
        found += page.objects
        if not page.more:
            return found
        start_after = page.objects[-1].key
