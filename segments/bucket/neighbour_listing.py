"""Lists folders of several partitions of a topic together: a page of a listing tells of all that lie in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from metadata.model import TopicPartition
from segments.object_store.interface import ObjectInfo, ObjectStore

# Partitions of a topic that share the pages of one listing; more are listed side by side.
LISTED_TOGETHER: Final = 256


def neighbours(topics: Mapping[TopicPartition, str], prefix: Callable[[str, TopicPartition], str]) -> list[list[TopicPartition]]:
    """Returns the partitions that one listing can tell of together: of one life of a topic, in the order of their prefixes."""
    by_topic: dict[tuple[str, str], list[TopicPartition]] = {}
    for partition in sorted(topics, key=lambda one: prefix(topics[one], one)):
        by_topic.setdefault((topics[partition], partition.topic_id), []).append(partition)
    return [
        partitions[at : at + LISTED_TOGETHER]
        for partitions in by_topic.values()
        for at in range(0, len(partitions), LISTED_TOGETHER)
    ]


async def list_neighbours(store: ObjectStore, parent: str, prefixes: Sequence[str]) -> AsyncIterator[ObjectInfo]:
    """Yields the objects under the prefixes, and others of the same pages, in ascending byte order of keys.

    `prefixes`: ascending, all below `parent`. What lies between two of them is skipped where a page ends in it. Raises what the
    store raises.
    """
    at, start_after = 0, ""
    while at < len(prefixes):
        page = await store.list(parent if len(prefixes) > 1 else prefixes[at], start_after=max(prefixes[at], start_after))
        for info in page.objects:
            yield info
        if not page.more:
            return
        start_after = page.objects[-1].key
        while at < len(prefixes) and _is_behind(start_after, prefixes[at]):
            at += 1


def _is_behind(key: str, prefix: str) -> bool:
    """Returns whether a listing that has come to this key is past all keys that begin with `prefix`."""
    return key > prefix and not key.startswith(prefix)
