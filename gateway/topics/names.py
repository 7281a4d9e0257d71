"""Resolves partitions that clients name by the topic's name, and optionally its id.

Invariant: a partition is called unknown only if the metadata store does not know it either, provided that the store answers:
another
broker may have created it a moment ago.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol, TypeVar

from gateway.access.authorization import AuthorizedCall, check_topic, present_call
from gateway.access.refusals import settle_topic, settle_topics
from gateway.concurrency.offload import LoopYielder
from gateway.telemetry.request_context import remaining_s
from metadata.errors import NotFound, TidelogError, Unavailable, UnknownPartition, UnknownTopic
from metadata.groups.assignors import TopicPartitionName
from metadata.model import Partition, TopicId, TopicPartition, check_topic_name
from metadata.store.interface import OPERATIONS_MAX
from metadata.store.write_batcher import Outdated, UnchangedSince
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic

# Wait for a partition that is being handed over, and for a leader that did not answer a moment ago.
BOUNDS_WAIT_S: Final = 1.0
# Wait for a topic that is not known here: another broker may have created it a moment ago.
LOOKUP_S: Final = 1.0
# Wait for the changes of topics before a commit. Longer than the silence of one etcd member (etcd_request_timeout_ms), after which
# another one is asked: the commit is written to etcd as well.
COMMIT_CATCH_UP_S: Final = 5.0

# Attempts of a commit by names that compare the view. Each but the first follows a catch-up.
GUARDED_COMMITS: Final = 3

# Topics of one request that are looked up in the metadata store each. For further ones, this broker's view catches up.
LOOKUPS_MAX: Final = 16

_Made = TypeVar("_Made")


class TopicLookup(Protocol):
    """The topics as a look-up asks for them: the cache, and the registry for a topic that is not in the cache yet."""

    @property
    def topic_cache(self) -> TopicCache: ...
    @property
    def topics(self) -> TopicRegistry: ...


class NamedPartition(NamedTuple):
    """Names a partition as a request does."""

    topic: str
    partition: int
    # Id of this creation of the topic; empty matches any.
    topic_id: str = ""


class NamedTopic(NamedTuple):
    """Names a topic as a request does."""

    topic: str
    # Id of this creation of the topic; empty matches any.
    topic_id: str = ""


async def resolve_partitions(broker: TopicLookup, named: Sequence[NamedPartition]) -> list[TopicPartition | TidelogError]:
    """Returns each partition, or its error: NotAuthorized, InvalidName, UnknownTopic (also for a mismatched id), UnknownPartition,
    Unavailable, Corrupt."""
    await settle_topics(each.topic for each in named)
    yielder = LoopYielder()
    found: list[TopicPartition | TidelogError] = []
    topics: dict[NamedTopic, Topic | TidelogError] = {}
    for name in named:
        asked = NamedTopic(name.topic, name.topic_id)
        topic = topics.get(asked)
        if topic is None:
            topic = topics[asked] = _topic(broker, asked)
        found.append(_partition_of(topic, name.partition))
        await yielder.step()
    missing = [name.topic for name, partition in zip(named, found, strict=True) if isinstance(partition, NotFound)]
    if not missing:
        return found
    fresh = await _read_missing(broker, missing)
    return [
        _partition(broker, name, fresh) if isinstance(partition, NotFound) else partition
        for name, partition in zip(named, found, strict=True)
    ]


def known_partitions(broker: TopicLookup, named: Iterable[tuple[NamedTopic, Sequence[int]]]) -> list[TopicPartition] | None:
    """Returns the partitions of these topics, in order, if the present call may use each topic, and this broker's view has each
    partition. None, without any effect, where `resolve_partitions` has to decide."""
    call = present_call()
    topics: list[Topic] = []
    found: list[TopicPartition] = []
    for name, numbers in named:
        topic = broker.topic_cache.find(name.topic)
        if topic is None or (name.topic_id and name.topic_id != topic.id) or not _may_use(call, topic.name):
            return None
        for number in numbers:
            if not 0 <= number < topic.partition_count:
                return None
            found.append(TopicPartition(topic.id, Partition(number)))
        topics.append(topic)
    if call is not None:
        for topic in topics:
            check_topic(topic.name)  # notes for the audit log what a change names
    return found


def _may_use(call: AuthorizedCall | None, name: str) -> bool:
    try:
        return call is None or call.permits("topic", name)
    except TidelogError:
        return False


async def topics_named(broker: TopicLookup, named: Sequence[NamedTopic]) -> list[Topic | TidelogError]:
    """Returns each topic, or its error."""
    await settle_topics(each.topic for each in named)
    found = [_topic(broker, name) for name in named]
    missing = [name.topic for name, topic in zip(named, found, strict=True) if isinstance(topic, NotFound)]
    if not missing:
        return found
    fresh = await _read_missing(broker, missing)
    return [_topic(broker, name, fresh) if isinstance(topic, NotFound) else topic for name, topic in zip(named, found, strict=True)]


async def topic_heard_of(broker: TopicLookup, name: str) -> Topic:
    """Returns the topic from the metadata store once this broker's view has it, for a topic that a client learned of at another
    broker.

    Raises UnknownTopic; Unavailable if the store does not answer, or this broker's view does not follow in time.
    """
    await settle_topic(name)
    check_topic(name)
    try:
        async with asyncio.timeout(LOOKUP_S):
            topic = await broker.topics.get(check_topic_name(name))
            await broker.topic_cache.wait_for(topic.revision, timeout_s=None)
    except TimeoutError:
        raise Unavailable(
            f"this broker has not heard yet of the present state of topic {name}", hint="Retry with back-off.", topic=name
        ) from None
    return broker.topic_cache.get(name)


async def topic_with(broker: TopicLookup, name: str, partition: int = 0, *, topic_id: str = "", waits: bool = True) -> Topic:
    """Returns the topic, which has this partition, and this id if one is named.

    Where this broker's view lacks any of it, the view catches up first: another broker may have created, grown or recreated the
    topic. `waits` False: the present view decides, for a call that another broker repeats. Raises NotAuthorized, InvalidName,
    UnknownTopic, UnknownPartition; Unavailable if the view does not catch up in time.
    """
    await settle_topic(name)
    check_topic(name)
    check_topic_name(name)
    try:
        return _checked_topic(broker, name, partition, topic_id)
    except NotFound:
        if not waits:
            raise
        await broker.topic_cache.catch_up(name, timeout_s=LOOKUP_S)
        return _checked_topic(broker, name, partition, topic_id)


def _checked_topic(broker: TopicLookup, name: str, partition: int, topic_id: str) -> Topic:
    topic = broker.topic_cache.get(name)
    check_topic_id(topic, topic_id)
    partition_of(topic, partition)
    return topic


async def has_caught_up_with(broker: TopicLookup, partitions: Collection[TopicPartition]) -> bool:
    """Waits a moment until this broker's view has each of these partitions that exists. Returns False where it may lack one."""
    try:
        await broker.topic_cache.hear_of(partitions, timeout_s=LOOKUP_S)
    except TidelogError:
        return False
    return True


async def hear_of_ids(broker: TopicLookup, topic_ids: Iterable[TopicId]) -> None:
    """Returns when this broker's view has each topic with one of these ids that exists. Raises Unavailable where it may lack one.

    Another broker may have created the topic a moment ago, and clients take it for final that an id is unknown.
    """
    first = Partition(0)
    await broker.topic_cache.hear_of([TopicPartition(topic_id, first) for topic_id in topic_ids], timeout_s=LOOKUP_S)


async def catch_up_with_names(
    broker: TopicLookup, committed: Collection[TopicPartition] = (), *, timeout_s: float = LOOKUP_S
) -> None:
    """Waits until this broker's view has each change of a topic, before an answer by names.

    It may lack a topic, or have a deleted one whose name was used again. Offsets committed for that one mean nothing in the new.

    Where the metadata store does not answer in time, the view decides as it is, so that groups go on. Then this raises Unavailable
    if the view lacks one of `committed`.
    """
    try:
        await broker.topic_cache.catch_up_with_all(timeout_s=timeout_s)
    except Unavailable:
        if committed:
            await broker.topic_cache.hear_of(committed, timeout_s=0)


async def commit_by_names(broker: TopicLookup, count: int, commit: Callable[[UnchangedSince | None], Awaitable[_Made]]) -> _Made:
    """Returns the result of `commit`, which resolves `count` partitions by the names of their topics and commits their offsets.

    The commit compares the view in its transaction, and raises Outdated where the view does not hold or does not suffice. It is
    repeated once the view has each change. Without a view, nothing guards the moment between the resolution and the transaction:
    that is left for a request that the present view can't serve, and for topics that change at every attempt. Raises Unavailable
    as `catch_up_to_commit` does.
    """
    tried: UnchangedSince | None = None
    for _ in range(GUARDED_COMMITS if count <= OPERATIONS_MAX else 0):
        view = broker.topic_cache.view
        if view is None or view == tried:
            break
        try:
            return await commit(view)
        except Outdated:
            tried = view
        await catch_up_to_commit(broker)
    if tried is None:
        await catch_up_to_commit(broker)
    return await commit(None)


async def catch_up_to_commit(broker: TopicLookup) -> None:
    """Waits until this broker's view has each change of a topic, before offsets are committed by names.

    A client may have read a topic that was deleted and made again. Its offset would be stored for the deleted topic, and no later
    commit corrects the last one. Concurrent commits share a read of the metadata store. Raises Unavailable if the view does not
    catch up in time.
    """
    await broker.topic_cache.catch_up_with_all(timeout_s=min(COMMIT_CATCH_UP_S, remaining_s()))


async def why_not_heard_of(
    broker: TopicLookup, partitions: Iterable[NamedPartition | TopicPartitionName]
) -> dict[str, TidelogError]:
    """Waits a moment for topics that this broker's view lacks, or lacks some of these partitions of. Returns by topic why it still
    does: the topic is gone, may not be read, or the view lags (Unavailable).

    Once the view has caught up, it has another topic than one whose id is named if that was deleted.
    """
    last: dict[NamedTopic, int] = {}
    for name, number, *topic_id in partitions:
        topic = NamedTopic(name, *topic_id)
        last[topic] = max(number, last.get(topic, 0))
    unknown = list(
        dict.fromkeys(
            topic.topic
            for topic, number in last.items()
            if isinstance(_partition(broker, NamedPartition(topic.topic, number, topic.topic_id)), NotFound)
        )
    )
    missing = unknown[:LOOKUPS_MAX]
    heard = await asyncio.gather(*(_caught_up_with(broker, name) for name in missing), return_exceptions=True)
    why: dict[str, TidelogError] = {
        name: Unavailable(
            f"this broker has not heard of topic {name}, and looks up {LOOKUPS_MAX} others that it has not heard of first",
            hint="Retry with back-off.",
            topic=name,
        )
        for name in unknown[LOOKUPS_MAX:]
    }
    for name, found in zip(missing, heard, strict=True):
        if isinstance(found, TidelogError):
            why[name] = found.with_traceback(None)
        elif isinstance(found, BaseException):
            raise found
    return why


async def _caught_up_with(broker: TopicLookup, name: str) -> Topic:
    """Returns the topic once this broker's view has caught up with it. Many clients may poll a missing one: their reads of the
    metadata store are shared.
    """
    await settle_topic(name)
    check_topic(name)
    check_topic_name(name)
    await broker.topic_cache.catch_up(name, timeout_s=LOOKUP_S)
    return broker.topic_cache.get(name)


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
    return _partition_of(_topic(broker, NamedTopic(named.topic, named.topic_id), fresh), named.partition)


def _partition_of(topic: Topic | TidelogError, number: int) -> TopicPartition | TidelogError:
    if isinstance(topic, TidelogError):
        return topic
    try:
        return partition_of(topic, number)
    except TidelogError as error:
        return error.with_traceback(None)


def viewed_partitions(broker: TopicLookup, named: Sequence[NamedPartition]) -> list[TopicPartition | TidelogError]:
    """Returns each partition, or why the present call may not name it, without a wait. Raises Outdated where the view lacks one."""
    found = [_partition(broker, each) for each in named]
    if any(isinstance(each, NotFound) for each in found):
        raise Outdated
    return found


async def _read_missing(broker: TopicLookup, names: Iterable[str]) -> _Fresh:
    """Returns topics from the metadata store. Those that are left out are in this broker's view by now, or do not exist."""
    missing = list(dict.fromkeys(names))
    some, others = missing[:LOOKUPS_MAX], missing[LOOKUPS_MAX:]
    fresh: _Fresh = dict(zip(some, await asyncio.gather(*(_fresh(broker, name) for name in some)), strict=True))
    if others:
        try:
            await broker.topic_cache.catch_up_with_all(timeout_s=LOOKUP_S)
        except TidelogError as error:
            fresh |= dict.fromkeys(others, error.with_traceback(None))
    return fresh


async def _fresh(broker: TopicLookup, name: str) -> Topic | TidelogError:
    try:
        async with asyncio.timeout(LOOKUP_S):
            return await broker.topics.get(name)
    except TimeoutError:
        return Unavailable(f"whether there is a topic {name} is not known: the metadata store does not answer", topic=name)
    except TidelogError as error:
        return error.with_traceback(None)


def check_topic_id(topic: Topic, topic_id: str) -> None:
    """Raises UnknownTopic if the id is of another creation of the topic, whose offsets do not apply to this one. An empty id
    matches any."""
    if topic_id and topic_id != topic.id:
        asked_id = topic_id[: len(topic.id)]
        raise UnknownTopic(
            f"topic {topic.name} was deleted and recreated: its id is {topic.id}, and the request names {asked_id}",
            hint="Offsets of the old topic do not apply to the new one: read it again from the earliest offset.",
            topic=topic.name,
            topic_id=asked_id,
            new_topic_id=topic.id,
        )


def partition_of(topic: Topic, partition: int) -> TopicPartition:
    """Returns the partition; raises UnknownPartition if the topic does not have it."""
    if not 0 <= partition < topic.partition_count:
        raise UnknownPartition(
            f"topic {topic.name} has the partitions 0 to {topic.partition_count - 1}; {partition} was asked for",
            topic=topic.name,
            partition=partition,
            partition_count=topic.partition_count,
        )
    return TopicPartition(topic.id, Partition(partition))


def named(error: TidelogError, topic: Topic) -> TidelogError:
    """Replaces the topic's id by its name in the error's message, but not in keys of objects."""
    error.message = re.sub(f"(?<!/){topic.id}", topic.name, error.message)
    return error


@contextmanager
def naming(topic: Topic) -> Iterator[None]:
    try:
        yield
    except TidelogError as error:
        raise named(error, topic) from None
