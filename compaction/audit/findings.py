"""Collects the findings and the counts of an audit of a bucket, and names what a restore finds. Pure.

A finding is `damage` where a rule is broken, and a `note` where something is odd but allowed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from metadata.model import Partition, TopicId

# Most notes of the same text in a report; it gives only the number of the rest.
NOTES_OF_A_KIND_MAX: Final = 5

GIB: Final = 1 << 30
USD_PER_GIB_MONTH: Final = 0.023
USD_PER_WRITE: Final = 0.005 / 1000
# S3 Standard in us-east-1: https://aws.amazon.com/s3/pricing/
USD_PER_READ: Final = 0.0004 / 1000


class Finding(msgspec.Struct, frozen=True):
    """A result of an audit."""

    severity: Literal["damage", "note"]
    # An object's key, or a partition as topic id/number.
    where: str
    what: str


class RestoreFinding(msgspec.Struct, frozen=True):
    """A problem that a restore met: `damage` means loss, a `note` does not. `where` is a key, topic or partition."""

    severity: Literal["damage", "note"]
    where: str
    what: str


@dataclass(slots=True)
class TopicUsage:
    """The storage that one topic uses, and its estimated cost."""

    # From the bucket's mirror; empty if only segments name the topic.
    name: str = ""
    is_deleted: bool = False
    partitions: set[Partition] = field(default_factory=set)
    # Records in segments that are not in Parquet yet.
    records: int = 0
    # Bytes of all its batches in segments, including those already in Parquet.
    batch_bytes: int = 0
    # Segments with data of this topic; they may hold other topics, too.
    segments: int = 0
    runs: int = 0
    # Its share of these objects, by batches.
    segment_bytes: float = 0.0
    # Its share of the requests that wrote them.
    segment_writes: float = 0.0
    # Parquet files that a manifest names.
    files: int = 0
    file_bytes: int = 0
    file_records: int = 0
    # Of the records in Parquet, uncompressed.
    record_bytes: int = 0
    row_groups: int = 0
    # That were ever written.
    manifest_versions: int = 0
    # Below topics/, all kinds.
    objects: int = 0
    # Of those.
    bytes: int = 0

    @property
    def stored_bytes(self) -> float:
        return self.bytes + self.segment_bytes

    @property
    def writes(self) -> float:
        """Requests that wrote what lies here, about: one for each file and manifest, and its share of those for segments."""
        return self.files + self.manifest_versions + self.segment_writes

    @property
    def reads(self) -> int:
        """Requests to read all of it once: a footer and its row groups for each file, and a range for each run in a segment."""
        return self.files + self.row_groups + self.runs

    @property
    def usd_per_month(self) -> float:
        return self.stored_bytes / GIB * USD_PER_GIB_MONTH

    @property
    def usd_written(self) -> float:
        return self.writes * USD_PER_WRITE

    @property
    def usd_per_reading(self) -> float:
        return self.reads * USD_PER_READ


@dataclass(slots=True)
class Audit:
    """The result of an audit."""

    url: str
    cluster_id: str = ""
    findings: list[Finding] = field(default_factory=list)
    sessions: int = 0
    sealed_sessions: int = 0
    segments: int = 0
    segment_bytes: int = 0
    invisible_objects: int = 0
    invisible_bytes: int = 0
    objects: int = 0
    batches_read: int = 0
    # With a manifest.
    partitions_compacted: int = 0
    # Parquet files of which every byte was read.
    files_read: int = 0
    # That the collector takes when their grace is over: trimmed segments, retired files, orphans, what deleted topics leave …
    collectable_objects: int = 0
    collectable_bytes: int = 0
    topics: dict[TopicId, TopicUsage] = field(default_factory=dict)
    _notes: Counter[str] = field(default_factory=Counter)

    def topic(self, topic_id: TopicId) -> TopicUsage:
        return self.topics.setdefault(topic_id, TopicUsage())

    @property
    def records(self) -> int:
        return sum(usage.records + usage.file_records for usage in self.topics.values())

    @property
    def is_sound(self) -> bool:
        return not any(finding.severity == "damage" for finding in self.findings)

    def damage(self, where: str, what: str) -> None:
        self.findings.append(Finding("damage", where, what))

    def note(self, where: str, what: str) -> None:
        self.findings.append(Finding("note", where, what))

    def note_one_of(self, where: str, what: str) -> None:
        """Adds a note of a kind that may occur thousands of times."""
        self._notes[what] += 1
        if self._notes[what] <= NOTES_OF_A_KIND_MAX:
            self.note(where, what)

    def sum_up_notes(self) -> None:
        for what, count in self._notes.items():
            if count > NOTES_OF_A_KIND_MAX:
                self.note(f"{count - NOTES_OF_A_KIND_MAX} other objects", what)

    def collectable(self, objects: int, size_bytes: int) -> None:
        self.collectable_objects += objects
        self.collectable_bytes += size_bytes
