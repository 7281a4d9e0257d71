"""Creates, describes, lists, alters and deletes topics. One topic is one key; topic.py draws its value.

Every change is one transaction, guarded by the revision that it was decided on and by the cluster's count of partitions; after a
conflict it is decided again. Invariants: a topic exists wholly or not at all; of two creates of one name one succeeds;
partition_count never shrinks; leader epochs of a topic begin above those of every topic that was deleted before; the count of
partitions is the sum over all topics, and at most PARTITIONS_MAX.
"""

from __future__ import annotations

import asyncio
import heapq
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from metadata.errors import (
    KNOWN_MAX,
    AlreadyExists,
    InvalidArgument,
    InvalidName,
    Rejected,
    Unavailable,
    UnknownTopic,
    did_you_mean,
)
from metadata.model import PARTITIONS_MAX, LeaderEpoch, TopicId, check_topic_name
from metadata.page_token import PAGE_SIZE_MAX, checked_page_size, name_in, token_after
from metadata.store.interface import Compare, Delete, KeyValue, MetadataStore, Operation, Put
from metadata.store.keys import KeyLayout, parse_number
from metadata.topics.settings import ListChange, SettingChange, TopicSettings, differing_settings, setting_definition
from metadata.topics.topic import (
    FORMAT_VERSION,
    NO_REPLICATION_FACTOR,
    Topic,
    check_partition_count,
    check_replication_factor,
    decode_topic,
    encode_topic,
)

# Added to the highest leader epoch of a deleted topic: leaders may be appointed while it is deleted.
EPOCHS_AHEAD: Final = 8
# The same where the state of a partition can't be read. One change of leader each second takes twelve days for so many.
EPOCHS_AHEAD_OF_UNREADABLE: Final = 1 << 20
# The highest first leader epoch: epochs have 31 bits, and the topic needs some.
FIRST_EPOCH_MAX: Final = 2**31 - (1 << 20)
# Each lost attempt was won by another change.
ATTEMPTS_MAX = 64
PAGE_PARTITIONS = 1000


async def read_topic_ids(store: MetadataStore, layout: KeyLayout) -> set[TopicId]:
    """Reads the ids of all topics at one revision, past every cache. Raises Corrupt, Unavailable."""
    ids: set[TopicId] = set()
    page = await store.range(layout.topics, limit=PAGE_SIZE_MAX)
    while True:
        ids |= {decode_topic(item).id for item in page.items}
        if not page.more:
            return ids
        last = page.items[-1].key
        page = await store.range(layout.topics, start_after=last, limit=PAGE_SIZE_MAX, revision=page.revision)


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Holds one page of a list of topics."""

    # In byte order of their names.
    topics: tuple[Topic, ...]
    # Empty on the last page. It never expires: it names a place in the order, not a moment.
    next_page_token: str


class TopicRegistry:
    """Changes and lists the cluster's topics. Errors: those of each call, and of the store (Unavailable, OutcomeUnknown)."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout | None = None,
        *,
        max_message_bytes: int | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        may_suggest: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """`max_message_bytes`: the broker's limit for the topic setting max.message.bytes, where it has a lower one.

        `may_suggest` returns whether a hint may name a topic.
        """
        self._store = store
        self._layout = layout or KeyLayout()
        self._max_message_bytes = max_message_bytes
        self._new_id = new_id
        self._now_ms = now_ms
        self._may_suggest = may_suggest
        self._changing = asyncio.Lock()  # one change at a time from here, so that they don't conflict with each other

    async def create(
        self,
        name: str,
        partition_count: int,
        settings: Mapping[str, str] | None = None,
        *,
        replication_factor: int = NO_REPLICATION_FACTOR,
        validate_only: bool = False,
    ) -> Topic:
        """Creates a topic. Raises InvalidName, InvalidArgument, AlreadyExists; Rejected over PARTITIONS_MAX for the cluster.

        `replication_factor` is remembered for Kafka's tools. It changes nothing, since the bucket replicates.
        """
        check_topic_name(name)
        check_partition_count(partition_count)
        check_replication_factor(replication_factor)
        self._parse(settings or {})
        topic = Topic(
            id=TopicId(self._new_id()),
            name=name,
            partition_count=partition_count,
            settings=differing_settings(settings or {}),
            created_at_ms=self._now_ms(),
            replication_factor=replication_factor,
        )

        def decide(held: Topic | None) -> Topic:
            if held is not None:
                raise AlreadyExists(f"topic {name} already exists", hint="Pick another name, or alter the topic.", topic=name)
            return topic

        return await self._change(name, decide, validate_only)

    async def get(self, name: str) -> Topic:
        """Returns the topic. Raises UnknownTopic, InvalidName; Corrupt where what is stored can't be read."""
        check_topic_name(name)
        held = await self._store.get(self._layout.topic(name))
        if held is None:
            raise UnknownTopic(f"there is no topic {name}", hint=await self._nearest(name) or None, topic=name)
        return decode_topic(held)

    async def list(self, *, page_size: int = 0, page_token: str = "") -> TopicPage:
        """Returns up to `page_size` topics (0 is PAGE_SIZE, at most PAGE_SIZE_MAX) after the page that gave the token.

        A topic that exists throughout is listed exactly once. Raises InvalidArgument for a token that no page gave.
        """
        name, limit = _after(page_size, page_token)
        found = await self._store.range(self._layout.topics, start_after=self._layout.topic(name) if name else "", limit=limit)
        topics = tuple(decode_topic(item) for item in found.items)
        return TopicPage(topics, token_after(topics[-1].name) if found.more else "")

    async def alter(
        self,
        name: str,
        *,
        settings: Mapping[str, SettingChange] | None = None,
        replace_settings: bool = False,
        partition_count: int | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """Changes what is named: a setting of None returns to its default; `replace_settings` resets all not named.
        A ListChange applies to the value that the setting has when the change is made.

        Raises UnknownTopic, InvalidName, InvalidArgument (also for a partition_count below the present one), Rejected.
        """
        check_topic_name(name)
        if partition_count is not None:
            check_partition_count(partition_count)
        given = dict(settings or {})
        self._parse({setting: text for setting, text in given.items() if isinstance(text, str)})

        def decide(held: Topic | None) -> Topic:
            if held is None:
                raise UnknownTopic(f"there is no topic {name}", topic=name)
            if held.format_version > FORMAT_VERSION:
                raise Rejected(
                    f"topic {name} was written by a newer version of Tidelog (format {held.format_version})",
                    hint="Ask a broker of that version, or upgrade this one.",
                )
            return msgspec.structs.replace(
                held,
                settings=_altered({} if replace_settings else held.settings, given),
                partition_count=_grown(held, partition_count),
            )

        return await self._change(name, decide, validate_only)

    async def delete(self, name: str, *, topic_id: TopicId | None = None, validate_only: bool = False) -> Topic:
        """Deletes a topic; returns it with the revision that deleted it. `topic_id`: only this life of the topic is deleted.

        Raises UnknownTopic, InvalidName.
        """
        check_topic_name(name)

        def decide(held: Topic | None) -> None:
            if held is None:
                raise UnknownTopic(f"there is no topic {name}", topic=name)
            if topic_id is not None and held.id != topic_id:
                raise UnknownTopic(
                    f"topic {name} was deleted and made again: its id is {held.id}, and {topic_id} was to be deleted",
                    hint="Delete it by its present id, or by its name.",
                    topic=name,
                )

        return await self._change(name, decide, validate_only)

    def _parse(self, settings: Mapping[str, str]) -> TopicSettings:
        parsed = TopicSettings.parse(settings)
        if self._max_message_bytes is not None and "max.message.bytes" in settings:
            limit = self._max_message_bytes
            if parsed.max_message_bytes > limit:
                raise InvalidArgument(
                    f"max.message.bytes={parsed.max_message_bytes} is more than this cluster takes, {limit} bytes",
                    hint=f"Use at most {limit}, or raise the limit of the brokers first.",
                    setting="max.message.bytes",
                )
        return parsed

    async def _change(self, name: str, decide: Callable[[Topic | None], Topic | None], validate_only: bool) -> Topic:
        """Stores what `decide` returns for the stored topic (None deletes it); decides again after a conflict."""
        key = self._layout.topic(name)
        count_key = self._layout.partition_count
        async with self._changing:
            for _ in range(ATTEMPTS_MAX):
                kept, counted = await self._store.get(key), await self._store.get(count_key)
                held = decode_topic(kept) if kept else None
                try:
                    wanted = decide(held)
                except UnknownTopic as error:
                    error.hint = await self._nearest(name) or error.hint
                    raise
                if wanted == held and held is not None:
                    return held
                growth = (wanted.partition_count if wanted else 0) - (held.partition_count if held else 0)
                count = parse_number(counted, absent=0) + growth
                if growth > 0 and count > PARTITIONS_MAX:
                    raise Rejected(
                        f"the cluster would have {count} partitions, more than {PARTITIONS_MAX}",
                        hint="Delete unused topics, or use fewer partitions.",
                        partitions=count,
                    )
                answer = wanted or held
                assert answer is not None, "a topic that does not exist cannot be deleted"
                if validate_only:
                    return answer
                operations: list[Operation] = [Put(count_key, str(count).encode())]
                if wanted is None:
                    assert held is not None, "a topic that is not there cannot be deleted"
                    operations += [Delete(key), Put(self._layout.first_leader_epoch, str(await self._epoch_after(held)).encode())]
                else:
                    if held is None:
                        wanted = answer = msgspec.structs.replace(answer, first_leader_epoch=await self._first_epoch())
                    operations.append(Put(key, encode_topic(wanted)))
                # Each create and delete writes the count, so no deletion comes between the reading of epochs and this.
                guards = [
                    Compare(key, kept.mod_revision if kept else 0),
                    Compare(count_key, counted.mod_revision if counted else 0),
                ]
                result = await self._store.transact(guards, operations)
                if result.succeeded:
                    return msgspec.structs.replace(answer, revision=result.revision)
        raise Unavailable(f"topic {name} was not changed: {ATTEMPTS_MAX} attempts lost to concurrent changes", topic=name)

    async def _first_epoch(self) -> LeaderEpoch:
        """Returns the epoch at which new topics begin."""
        return LeaderEpoch(parse_number(await self._store.get(self._layout.first_leader_epoch), absent=0))

    async def _epoch_after(self, deleted: Topic) -> LeaderEpoch:
        """Returns the epoch at which topics begin once this one is deleted: above all of its leader epochs."""
        first = max(await self._first_epoch(), LeaderEpoch(deleted.first_leader_epoch + EPOCHS_AHEAD))
        prefix = self._layout.partitions_of(deleted.id)
        after, more = "", True
        while more:
            page = await self._store.range(prefix, start_after=after, limit=PAGE_PARTITIONS)
            for item in page.items:
                first = max(first, _epoch_above(item, deleted))
                after = item.key
            more = page.more
        return min(first, LeaderEpoch(FIRST_EPOCH_MAX))

    async def _nearest(self, name: str) -> str:
        found = await self._store.range(self._layout.topics, limit=KNOWN_MAX)
        names = (self._layout.parse_topic(item.key) for item in found.items)
        return "" if found.more else did_you_mean(name, [near for near in names if self._may_suggest(near)])


class _LedAt(msgspec.Struct, frozen=True):
    """The part of a partition's state (cluster/leadership.py) that a new topic of the same name has to know."""

    leader_epoch: int


def _epoch_above(state: KeyValue, topic: Topic) -> LeaderEpoch:
    try:
        return LeaderEpoch(msgspec.json.decode(state.value, type=_LedAt).leader_epoch + EPOCHS_AHEAD)
    except (msgspec.DecodeError, UnicodeDecodeError):  # damaged: that must not keep the topic from being deleted
        return LeaderEpoch(topic.first_leader_epoch + EPOCHS_AHEAD_OF_UNREADABLE)


def _altered(held: Mapping[str, str], given: Mapping[str, SettingChange]) -> dict[str, str]:
    """Returns the settings to store: those held, updated by the given ones, without any at its default."""
    settings = dict(held)
    for name, change in given.items():
        if change is None and name in settings:
            del settings[name]  # also a setting that only a newer version knows
            continue
        definition = setting_definition(name)
        text = change.applied(settings.get(name, definition.default)) if isinstance(change, ListChange) else change
        value = definition.default if text is None else definition.canonical(text)
        if value != definition.default:
            settings[name] = value
        else:
            settings.pop(name, None)
    return settings


def _grown(held: Topic, partition_count: int | None) -> int:
    if partition_count is None:
        return held.partition_count
    if partition_count < held.partition_count:
        raise InvalidArgument(
            f"topic {held.name} has {held.partition_count} partitions, and cannot have {partition_count}",
            hint="Partitions are never removed. Make a new topic with fewer partitions, and copy the records.",
            partition_count=held.partition_count,
        )
    return partition_count


def page_of(topics: Iterable[Topic], *, page_size: int = 0, page_token: str = "") -> TopicPage:
    """Returns the page that TopicRegistry.list would give if these were all topics. Raises InvalidArgument. Pure."""
    name, limit = _after(page_size, page_token)
    found = heapq.nsmallest(limit + 1, (topic for topic in topics if topic.name > name), key=lambda topic: topic.name)
    return TopicPage(tuple(found[:limit]), token_after(found[limit - 1].name) if len(found) > limit else "")


def _after(page_size: int, page_token: str) -> tuple[str, int]:
    """Returns the name after which a page begins, and how many topics it has."""
    limit = checked_page_size(page_size)
    return _name_in(page_token) if page_token else "", limit


def _name_in(token: str) -> str:
    name = name_in(token, of="topics")
    try:
        return check_topic_name(name)
    except InvalidName:
        raise InvalidArgument("page_token names no topic", hint="Begin again without a page_token.") from None
