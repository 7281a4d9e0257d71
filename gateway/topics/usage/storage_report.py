"""Joins what leaders know of each topic with what a listing of the bucket found. Pure.

    leaders      now            batches in segments that wait for compaction, Parquet of the newest manifests
    listing      minutes ago    all objects by kind; Parquet and manifests by topic

A segment holds batches of several topics. A topic's share of segments is the bytes of its batches that wait for compaction, which
is exact. What remains of the segments belongs to none: their headers and footers, and batches that are in Parquet already, which
stay until their segment is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.topics.usage.bucket_snapshots import BucketSnapshot
from gateway.topics.usage.bucket_tally import Tally, TopicTally
from gateway.topics.usage.cluster_usage import ClusterUsage, TopicFigures
from metadata.model import TopicId
from metadata.topics.topic import Topic

NO_FIGURES = TopicFigures()


class StoredTopic(NamedTuple):
    """Says where the bytes of one topic are."""

    topic: Topic
    figures: TopicFigures
    # Manifests, and notes of the topic's settings; None where no listing has found them yet, as the next.
    notes: Tally | None
    parquet: Tally | None

    @property
    def replaced_bytes(self) -> int:
        """Returns the bytes of Parquet files that no newest manifest names: they were merged, expired, or come from a crash."""
        return 0 if self.parquet is None else max(0, self.parquet.bytes - self.figures.parquet_bytes)

    @property
    def bytes(self) -> int:
        """Returns what the topic takes: of Parquet what lies there, where it is known."""
        parquet = max(self.figures.parquet_bytes, self.parquet.bytes if self.parquet is not None else 0)
        return self.figures.segment_bytes + parquet + (self.notes.bytes if self.notes is not None else 0)


@dataclass(frozen=True, slots=True)
class UnownedBytes:
    """Holds what lies on the bucket and belongs to no topic that exists."""

    # Of segments: what is no batch that waits for compaction.
    segments: int = 0
    # Below topics/, of topics that were deleted.
    deleted_topics: int = 0
    # Claims, indexes, metadata, staged rows and all else.
    others: int = 0

    @property
    def bytes(self) -> int:
        return self.segments + self.deleted_topics + self.others


def stored_topics(topics: Iterable[Topic], usage: ClusterUsage, snapshot: BucketSnapshot | None) -> list[StoredTopic]:
    """Returns where the bytes of these topics are, in their order."""
    listed: Mapping[TopicId, TopicTally] = snapshot.tally.topics if snapshot is not None else {}
    found = []
    for topic in topics:
        tally = listed.get(topic.id)
        figures = usage.topics.get(topic.id, NO_FIGURES)
        found.append(StoredTopic(topic, figures, tally.notes if tally else None, tally.parquet if tally else None))
    return found


def unowned(existing: Iterable[TopicId], usage: ClusterUsage, snapshot: BucketSnapshot | None) -> UnownedBytes:
    """Returns what belongs to none of the topics that exist; nothing before the first listing."""
    if snapshot is None:
        return UnownedBytes()
    tally, ids = snapshot.tally, set(existing)
    waiting = sum(figures.segment_bytes for figures in usage.topics.values())
    segments = tally.kinds["segments"].bytes if "segments" in tally.kinds else 0
    deleted = [each for topic_id, each in tally.topics.items() if topic_id not in ids]
    others = sum(
        each.bytes for kind, each in tally.kinds.items() if kind not in {"segments", "parquet", "manifests", "topic_notes"}
    )
    return UnownedBytes(
        segments=max(0, segments - waiting),
        deleted_topics=sum(each.parquet.bytes + each.notes.bytes for each in deleted) + tally.other_topics.bytes,
        others=others,
    )
