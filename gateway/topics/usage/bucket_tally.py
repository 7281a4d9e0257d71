"""Adds up a listing of the bucket by kind and by topic. Pure.

Keys come in ascending order, so that of a session the trim marker comes after the segments that it speaks of:

    wal/S/0 … wal/S/n  ─▶ sizes of this session  ─▶ wal/S/trimmed-m: those below m are in Parquet, and go after their grace

Invariant: memory holds the sizes of one session, and a tally for each of TOPICS_MAX topics; the others are counted together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from metadata.model import TopicId
from segments.bucket.layout import parse_topic_key, parse_wal_key
from segments.bucket.object_kinds import ObjectKind, kind_of
from segments.object_store.interface import ObjectInfo
from segments.wal.segment_file import SEAL_BYTES

TOPICS_MAX: Final = 20_000


@dataclass(slots=True)
class Tally:
    """Counts objects and their bytes."""

    objects: int = 0
    bytes: int = 0

    def add(self, size_bytes: int, objects: int = 1) -> None:
        self.objects += objects
        self.bytes += size_bytes


@dataclass(slots=True)
class TopicTally:
    """Counts what lies below one life of a topic."""

    name: str
    parquet: Tally = field(default_factory=Tally)
    # Manifests, and what says that the topic was created or changed.
    notes: Tally = field(default_factory=Tally)
    is_deleted: bool = False


@dataclass(slots=True)
class BucketTally:
    """Takes in the objects of a listing, in the order of their keys."""

    kinds: dict[ObjectKind, Tally] = field(default_factory=dict)
    topics: dict[TopicId, TopicTally] = field(default_factory=dict)
    # Of topics beyond TOPICS_MAX.
    other_topics: Tally = field(default_factory=Tally)
    # Segments whose records are in Parquet: among those of `kinds`.
    trimmed: Tally = field(default_factory=Tally)
    sessions: int = 0
    sealed_sessions: int = 0
    _session: int = -1
    _is_sealed: bool = False
    # Of the session that is being listed.
    _seqs: array[int] = field(default_factory=lambda: array("Q"))
    _sizes: array[int] = field(default_factory=lambda: array("Q"))
    _trimmed_to: int = 0

    def take_in(self, found: Iterable[ObjectInfo]) -> None:
        """Adds the next objects."""
        for info in found:
            kind = kind_of(info.key)
            tally = self.kinds.get(kind)
            if tally is None:
                tally = self.kinds[kind] = Tally()
            tally.add(info.size)
            if kind in {"segments", "wal_notes"}:
                self._take_in_wal(info)
            elif kind in {"parquet", "manifests", "topic_notes"}:
                self._take_in_topic(info, kind)

    def end(self) -> None:
        """Ends the listing."""
        self._end_session()

    @property
    def total(self) -> Tally:
        return Tally(sum(each.objects for each in self.kinds.values()), sum(each.bytes for each in self.kinds.values()))

    def _take_in_wal(self, info: ObjectInfo) -> None:
        parsed = parse_wal_key(info.key)
        if parsed is None:
            return
        if parsed.session != self._session:
            self._end_session()
            self._session = parsed.session
            self.sessions += 1
        if parsed.trimmed_to is not None:
            self._trimmed_to = max(self._trimmed_to, parsed.trimmed_to)
        elif parsed.seq is not None:
            if info.size == SEAL_BYTES:
                self._is_sealed = True
            else:
                self._seqs.append(parsed.seq)
                self._sizes.append(info.size)

    def _end_session(self) -> None:
        below = bisect_left(self._seqs, self._trimmed_to)
        self.trimmed.add(sum(self._sizes[:below]), below)
        self.sealed_sessions += self._is_sealed
        self._seqs, self._sizes = array("Q"), array("Q")
        self._trimmed_to, self._is_sealed = 0, False

    def _take_in_topic(self, info: ObjectInfo, kind: ObjectKind) -> None:
        parsed = parse_topic_key(info.key)
        if parsed is None:
            return
        tally = self.topics.get(parsed.topic_id)
        if tally is None:
            if len(self.topics) >= TOPICS_MAX:
                self.other_topics.add(info.size)
                return
            tally = self.topics[parsed.topic_id] = TopicTally(parsed.name)
        (tally.parquet if kind == "parquet" else tally.notes).add(info.size)
        tally.is_deleted |= parsed.deleted is not None
