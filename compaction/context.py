"""Provides all background work with the bucket, the topics, the newest manifests, the time, and its share of the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, field
from typing import Protocol, TypeVar

from compaction.deleter import ObjectDeleter
from compaction.manifest_cache import ManifestCache
from compaction.metrics import CompactionCounters
from compaction.settings import CompactionSettings
from metadata.errors import UnknownTopic
from metadata.model import TopicId
from metadata.retry import retry_unavailable
from metadata.topics.cache import TopicChanged
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic
from segments.object_store.interface import ObjectStore
from segments.object_store.store_clock import StoreClock
from segments.settings import SegmentSettings

Answer = TypeVar("Answer")


async def _never() -> bool:
    return False


class KnownTopics(Protocol):
    """Looks up topics; metadata/topics/cache.py implements it."""

    def by_id(self, topic_id: TopicId) -> Topic: ...

    def settings(self, topic_id: TopicId) -> TopicSettings: ...

    def topics(self) -> tuple[Topic, ...]: ...

    async def catch_up(self, name: str, *, timeout_s: float) -> None: ...

    def subscribe(self, changed: TopicChanged) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class CompactionContext:
    """Bundles what background work needs."""

    store: ObjectStore
    topics: KnownTopics
    manifests: ManifestCache
    settings: CompactionSettings
    # The time for deadlines: `clock.now_ms`, or the wall clock where the store gives no time.
    now_ms: Callable[[], int]
    # Returns the hex digits of that many random bytes: 16 for the writer of a manifest, 8 for the name of a file.
    new_nonce: Callable[[int], str]
    # Whether this compactor, of all that run, has the work of this name. It only shares the work: two may do the same
    # without harm.
    is_mine: Callable[[str], bool]
    # Bounds that brokers set on batches and producers.
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    counters: CompactionCounters = field(default_factory=CompactionCounters)
    # Whether another copy of the metadata has gone on, so that `topics` may be outdated (metadata_copies.py).
    is_overtaken: Callable[[], Awaitable[bool]] = _never
    # If absent, `now_ms` alone counts.
    store_clock: InitVar[StoreClock | None] = None
    # The store's time. While it `is_doubted`, nothing expires and nothing is deleted; writes are dated by `stamp_ms`.
    clock: StoreClock = field(init=False)
    # Deletes all objects, so that a denial of the bucket is logged once.
    deletions: ObjectDeleter = field(init=False)

    def __post_init__(self, store_clock: StoreClock | None) -> None:
        object.__setattr__(self, "clock", store_clock or StoreClock(self.now_ms))
        object.__setattr__(self, "deletions", ObjectDeleter(self.store, now_ms=self.now_ms, clock=self.clock))

    async def retry(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeats `call` while the bucket fails, for as long as the settings say (metadata/retry.py)."""
        return await retry_unavailable(call, for_s=self.settings.bucket_retry_ms / 1000)

    def topic(self, topic_id: TopicId) -> Topic | None:
        """Returns the topic; None where the metadata do not know its id any more, or not yet."""
        try:
            return self.topics.by_id(topic_id)
        except UnknownTopic:
            return None
