"""Partitions as clients name them, by the topic's name and, where they like, its id: which ones of the store they are.

Invariant: a partition that is called unknown was unknown to the metadata store as well, as long as that answers: it may have been
made at another broker this moment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from gateway.access.authorization import check_topic
from gateway.concurrency.offload import LoopYielder
from metadata.errors import NotFound, TidelogError, Unavailable, UnknownPartition, UnknownTopic
from metadata.groups.assignors import TopicPartitionName
from metadata.model import Partition, TopicPartition, check_topic_name
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic

# For a partition that is just handed over, and for a leader that does not answer.
BOUNDS_WAIT_S: Final = 1.0
# For a topic that is not known here: it may have been made at another broker this moment.
LOOK_UP_S: Final = 1.0

# Topics of one request that are looked up in the metadata store; what else is not known here is called unknown.
LOOK_UPS_MAX: Final = 16


class TopicLookup(Protocol):
    """The topics as a look-up asks for them: the cache, and the registry for a topic that is not in the cache yet."""

    @property
    def topic_cache(self) -> TopicCache: ...
    @property
    def topics(self) -> TopicRegistry: ...


class NamedPartition(NamedTuple):
    topic: str
    partition: int
    # Of this life of the topic; empty: whichever is there.
    topic_id: str = ""


class NamedTopic(NamedTuple):
    topic: str
    # As above.
    topic_id: str = ""


async def resolve_partitions(broker: TopicLookup, named: Sequence[NamedPartition]) -> list[TopicPartition | TidelogError]:
    """Each, or why not: NotAuthorized, InvalidName, UnknownTopic (also of another life), UnknownPartition, Unavailable, Corrupt."""
    turns = LoopYielder()
    found: list[TopicPartition | TidelogError] = []
    for name in named:
        found.append(_partition(broker, name))
        await turns.give()
    missing = [name.topic for name, partition in zip(named, found, strict=True) if isinstance(partition, NotFound)]
    if not missing:
        return found
    fresh = await _looked_up(broker, missing)
    return [
        _partition(broker, name, fresh) if isinstance(partition, NotFound) else partition
        for name, partition in zip(named, found, strict=True)
    ]


async def topics_named(broker: TopicLookup, named: Sequence[NamedTopic]) -> list[Topic | TidelogError]:
    """Each, or why not."""
    found = [_topic(broker, name) for name in named]
    missing = [name.topic for name, topic in zip(named, found, strict=True) if isinstance(topic, NotFound)]
    if not missing:
        return found
    fresh = await _looked_up(broker, missing)
    return [_topic(broker, name, fresh) if isinstance(topic, NotFound) else topic for name, topic in zip(named, found, strict=True)]


async def topic_heard_of(broker: TopicLookup, name: str) -> Topic:
    """Returns the topic as it is in the metadata store, once this broker's view has it, too: for what a client has learnt at
    another broker. Raises UnknownTopic; Unavailable where the store does not answer, or this broker does not hear of it in time.
    """
    check_topic(name)
    try:
        async with asyncio.timeout(LOOK_UP_S):
            topic = await broker.topics.get(check_topic_name(name))
            await broker.topic_cache.wait_for(topic.revision, timeout_s=None)
    except TimeoutError:
        raise Unavailable(
            f"this broker has not heard yet of the present state of topic {name}", hint="Retry with back-off.", topic=name
        ) from None
    return broker.topic_cache.get(name)


async def why_not_heard_of(broker: TopicLookup, partitions: Iterable[TopicPartitionName]) -> dict[str, TidelogError]:
    """Waits a moment for topics that this broker's view does not have, or not with all of these partitions. Returns by topic why it
    still does not: the topic is gone, it may not be read, or this broker does not hear of it at the moment (Unavailable)."""
    last: dict[str, int] = {}
    for name, number in partitions:
        last[name] = max(number, last.get(name, 0))
    unknown = [name for name, number in last.items() if isinstance(_partition(broker, NamedPartition(name, number)), NotFound)]
    missing = unknown[:LOOK_UPS_MAX]
    heard = await asyncio.gather(*(topic_heard_of(broker, name) for name in missing), return_exceptions=True)
    why: dict[str, TidelogError] = {
        name: Unavailable(
            f"this broker has not heard of topic {name}, and looks up {LOOK_UPS_MAX} others that it has not heard of first",
            hint="Retry with back-off.",
            topic=name,
        )
        for name in unknown[LOOK_UPS_MAX:]
    }
    for name, topic in zip(missing, heard, strict=True):
        if isinstance(topic, TidelogError):
            why[name] = topic.with_traceback(None)
        elif isinstance(topic, BaseException):
            raise topic
    return why


_Fresh = dict[str, Topic | TidelogError]


def _topic(broker: TopicLookup, named: NamedTopic, fresh: _Fresh | None = None) -> Topic | TidelogError:
    try:
        check_topic(named.topic)
        topic = (fresh or {}).get(named.topic)
        if topic is None:
            topic = broker.topic_cache.get(check_topic_name(named.topic))
        if isinstance(topic, TidelogError):
            return topic
        check_topic_id(topic, named.topic_id)
    except TidelogError as error:
        return error.with_traceback(None)
    return topic


def _partition(broker: TopicLookup, named: NamedPartition, fresh: _Fresh | None = None) -> TopicPartition | TidelogError:
    topic = _topic(broker, NamedTopic(named.topic, named.topic_id), fresh)
    if isinstance(topic, TidelogError):
        return topic
    try:
        return partition_of(topic, named.partition)
    except TidelogError as error:
        return error.with_traceback(None)


async def _looked_up(broker: TopicLookup, names: Iterable[str]) -> _Fresh:
    some = list(dict.fromkeys(names))[:LOOK_UPS_MAX]
    return dict(zip(some, await asyncio.gather(*(_fresh(broker, name) for name in some)), strict=True))


async def _fresh(broker: TopicLookup, name: str) -> Topic | TidelogError:
    try:
        async with asyncio.timeout(LOOK_UP_S):
            return await broker.topics.get(name)
    except TimeoutError:
        return Unavailable(f"whether there is a topic {name} is not known: the metadata store does not answer", topic=name)
    except TidelogError as error:
        return error.with_traceback(None)


def check_topic_id(topic: Topic, topic_id: str) -> None:
    """UnknownTopic where another life of the topic is meant: its offsets mean nothing in this one. Empty: whichever is there."""
    if topic_id and topic_id != topic.id:
        asked_id = topic_id[: len(topic.id)]
        raise UnknownTopic(
            f"topic {topic.name} was deleted and made again: its id is {topic.id}, and {asked_id} was asked for",
            hint="Offsets of the old topic mean nothing in the new one: read it anew, from the earliest offset.",
            topic=topic.name,
            topic_id=asked_id,
            new_topic_id=topic.id,
        )


def partition_of(topic: Topic, partition: int) -> TopicPartition:
    """UnknownPartition unless the topic has it."""
    if not 0 <= partition < topic.partition_count:
        raise UnknownPartition(
            f"topic {topic.name} has the partitions 0 to {topic.partition_count - 1}; {partition} was asked for",
            topic=topic.name,
            partition=partition,
            partition_count=topic.partition_count,
        )
    return TopicPartition(topic.id, Partition(partition))


def named(error: TidelogError, topic: Topic) -> TidelogError:
    """The error with the topic's name in place of its id: the log knows ids, people know names. Keys of objects keep theirs."""
    error.message = re.sub(f"(?<!/){topic.id}", topic.name, error.message)
    return error


@contextmanager
def naming(topic: Topic) -> Iterator[None]:
    try:
        yield
    except TidelogError as error:
        raise named(error, topic) from None
