"""The topics on the bucket: copies of their registrations, and marks of their deletions. Both are written and read here.

    topics/orders/1f…/_log/00000/…                   manifests, first in a listing
                      _log/deleted-…12               the topic of this id is gone; after a restore there may be several marks
    topics/orders/2e…/_log/00000/…
                      _log/topic-…7.json  …9.json    the newest registration counts
                      partition=0/…                  history, last in a listing

The controller writes (gateway/controller/topic_mirror.py). Spark, restore, audit and compactors read, and ask no broker. What a
registration says is encoded in metadata/topics/topic.py.

Invariant: a record is create-only and named by the revision of its change, so a late writer can only write again what is there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from metadata.errors import AlreadyExists, OutcomeUnknown, Unavailable
from metadata.model import Partition, Revision, TopicId
from segments.bucket.deleted_topic import TopicTombstone, encode_deleted_topic, parse_deleted_topic
from segments.bucket.layout import (
    TOPICS,
    TopicIncarnation,
    TopicKey,
    deleted_topic_key,
    end_of_topic,
    parse_topic_key,
    topic_mirror_key,
    topic_prefix,
)
from segments.object_store.interface import ObjectStore, list_all

# Attempts to write a record while the outcome is unknown.
ATTEMPTS_MAX: Final = 3

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TopicRecords:
    """Holds what a listing shows of one incarnation of a topic."""

    # Revisions of registrations, and of marks that it was deleted; both ascending.
    registered: list[Revision] = field(default_factory=list)
    deleted: list[Revision] = field(default_factory=list)
    # Partitions that have manifests.
    compacted: set[Partition] = field(default_factory=set)

    def take_in(self, key: TopicKey) -> None:
        """Takes in the next key of the listing."""
        if key.registered is not None:
            self.registered.append(key.registered)
        elif key.deleted is not None:
            self.deleted.append(key.deleted)
        elif key.manifest is not None:
            self.compacted.add(key.manifest.partition)


# ── reading ──


async def incarnations(store: ObjectStore, prefix: str = TOPICS) -> AsyncGenerator[TopicIncarnation, None]:
    """Yields the topics below a prefix, also those that are deleted, with one request for each. Raises what the store raises."""
    start_after = ""
    while (page := await store.list(prefix, start_after=start_after, limit=1)).objects:
        start_after = page.objects[0].key
        key = parse_topic_key(start_after)
        if key is not None:
            yield key.incarnation
            start_after = end_of_topic(*key.incarnation)


async def names_of(store: ObjectStore, wanted: Collection[TopicId]) -> dict[TopicId, str]:
    """Returns the names of these topics, those that the bucket knows. Raises what the store raises."""
    names: dict[TopicId, str] = {}
    async with aclosing(incarnations(store)) as topics:
        while len(names) < len(wanted) and (found := await anext(topics, None)) is not None:
            if found.topic_id in wanted:
                names[found.topic_id] = found.name
    return names


async def read_records(store: ObjectStore, topic: TopicIncarnation) -> TopicRecords:
    """Returns the registrations and marks of one incarnation, without a read of its manifests. Raises what the store raises."""
    records = TopicRecords()
    prefix = f"{topic_prefix(*topic)}_log/"
    async for found in list_all(store, prefix, start_after=f"{prefix}a"):  # manifests begin with digits
        if (key := parse_topic_key(found.key)) is not None:
            records.take_in(key)
    return records


# ── writing ──


async def write_registration(store: ObjectStore, topic: TopicIncarnation, revision: Revision, body: bytes) -> None:
    """Returns when the registration is on the bucket. Raises Unavailable, Denied."""
    await _write(store, topic_mirror_key(*topic, revision), body, lambda stored: stored == body)


async def mark_deleted(store: ObjectStore, topic: TopicIncarnation, revision: Revision, *, now_ms: int) -> None:
    """Returns when the topic is marked as deleted. Raises Unavailable, Denied."""
    marker = TopicTombstone(name=topic.name, id=topic.topic_id, gone_at_revision=revision, marked_at_ms=now_ms)

    def is_same(stored: bytes) -> bool:
        """Returns whether both are the same: two controllers may give different times for the same deletion."""
        theirs = parse_deleted_topic(stored)
        return theirs is not None and (theirs.name, theirs.id, theirs.gone_at_revision) == (*topic, revision)

    await _write(store, deleted_topic_key(*topic, revision), encode_deleted_topic(marker), is_same)


async def _write(store: ObjectStore, key: str, body: bytes, is_same: Callable[[bytes], bool]) -> None:
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            await store.create(key, [body])
        except AlreadyExists:
            if not is_same(await store.get(key)):
                log.error("another record has the key=%s: was etcd set back to a backup? Restore it from the bucket instead", key)
        except OutcomeUnknown as error:
            unknown = error
            continue
        return
    raise Unavailable(f"{key} could not be written in {ATTEMPTS_MAX} attempts") from unknown
