"""Finds the partitions that a query names, by the registrations that controllers mirror on the bucket: no broker is asked."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from metadata.errors import NotFound, UnknownPartition, UnknownTopic
from metadata.model import Partition, TopicPartition
from metadata.store.interface import KeyValue
from metadata.topics.topic import Topic, decode_topic
from segments.bucket.layout import TOPICS, TopicIncarnation, topic_mirror_key
from segments.bucket.topic_catalog import incarnations, read_records
from segments.concurrency import gather_all
from segments.object_store.interface import ObjectStore
from spark.source.options import AssignedPartitions, Matching, Subscribed, Topics

# At the same time.
READS_MAX: Final = 32


async def find_partitions(store: ObjectStore, wanted: Topics, *, absent_ok: bool = False) -> dict[TopicPartition, str]:
    """Finds the partitions that the options name, in order, with the name of the topic of each.

    Raises UnknownTopic and UnknownPartition for what is named and not there, and what the store raises. `absent_ok`: topics that
    are not there are passed over.
    """
    match wanted:
        case Matching(pattern):
            topics = await _topics_under(store, TOPICS, pattern)
            if not topics and not absent_ok:
                raise UnknownTopic(f"no topic on {store.url} matches {pattern.pattern!r}", hint="See `tidelog bucket usage`.")
            return _partitions({topic.name: topic for topic in topics}, {})
        case Subscribed(names):
            return _partitions(await _named(store, names, absent_ok=absent_ok), {})
        case AssignedPartitions(partitions):
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


async def _topics_under(store: ObjectStore, prefix: str, pattern: re.Pattern[str] | None = None) -> list[Topic]:
    """Lists the live topics, one for each name: of several, the one that was registered last.

    The clocks of brokers may differ, so the time of creation does not count. Reads nothing of topics whose names do not match.
    """
    read_slots = asyncio.Semaphore(READS_MAX)
    found = [topic async for topic in incarnations(store, prefix) if pattern is None or pattern.fullmatch(topic.name)]
    topics = await gather_all(_topic(store, topic, read_slots) for topic in found)
    newest: dict[str, Topic] = {}
    for topic in sorted((topic for topic in topics if topic), key=lambda topic: topic.revision):
        newest[topic.name] = topic
    return list(newest.values())


async def _topic(store: ObjectStore, named: TopicIncarnation, read_slots: asyncio.Semaphore) -> Topic | None:
    """Reads a topic; None if it is deleted or not mirrored yet: then it has no records."""
    async with read_slots:
        records = await read_records(store, named)
        if records.deleted or not records.registered:
            return None
        revision = max(records.registered)
        try:
            body = await store.get(topic_mirror_key(*named, revision))
        except NotFound:  # the topic was deleted, and is cleared away
            return None
    return decode_topic(KeyValue(f"{TOPICS}{named.name}", body, revision, revision, version=1))
