"""What all background work is given: the bucket, the topics, the newest manifests, the time, and its share of the work."""

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


class KnownTopics(Protocol):
    """The topics that there are, as metadata/topics/cache.py tells them."""

    def by_id(self, topic_id: TopicId) -> Topic: ...

    def settings(self, topic_id: TopicId) -> TopicSettings: ...

    def topics(self) -> tuple[Topic, ...]: ...

    def subscribe(self, changed: TopicChanged) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class CompactionContext:
    store: ObjectStore
    topics: KnownTopics
    manifests: ManifestCache
    settings: CompactionSettings
    # The time by which things are due: `clock.now_ms`, or the wall clock where the store tells no time.
    now_ms: Callable[[], int]
    # Hex digits of so many random bytes: 16 for the writer of a manifest, 8 for the name of a file.
    new_nonce: Callable[[int], str]
    # Whether this compactor, of all that are at work, is to do what has this name. It shares the work, and no more: what another
    # does at the same time does no harm.
    is_mine: Callable[[str], bool]
    # What brokers bound batches and producers by.
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    counters: CompactionCounters = field(default_factory=CompactionCounters)
    # Where none is given, `now_ms` alone counts.
    store_clock: InitVar[StoreClock | None] = None
    # What the store tells of the time. While it `is_doubted`, nothing expires and nothing is deleted; what is written is dated by
    # `stamp_ms`.
    clock: StoreClock = field(init=False)
    # The one way to delete objects: what the bucket denies is told once, whoever wanted it.
    deletions: ObjectDeleter = field(init=False)

    def __post_init__(self, store_clock: StoreClock | None) -> None:
        object.__setattr__(self, "clock", store_clock or StoreClock(self.now_ms))
        object.__setattr__(self, "deletions", ObjectDeleter(self.store, now_ms=self.now_ms, clock=self.clock))

    async def retry(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeats `call` while the bucket fails, for as long as the settings say (metadata/retry.py)."""
        return await retry_unavailable(call, for_s=self.settings.bucket_retry_ms / 1000)

    def topic(self, topic_id: TopicId) -> Topic | None:
        """None: there is no topic with this id any more, or not yet, as far as the metadata have told."""
        try:
            return self.topics.by_id(topic_id)
        except UnknownTopic:
            return None
