"""Sorts a listing of topics/ into partitions, page by page, without keeping it. Pure.

    topics/orders/1f…/_log/00000/…1  …2        manifests of partition 0: versions, kept until the topic is through
                      _log/00001/…1
                      _log/deleted-…           the topic of this id is gone: the rest is to be swept
                      _log/topic-….json
                      partition=0/….parquet    files: a partition is returned after its last one
    topics/orders/2e…/…                        the next topic id: partitions without files are returned

Any object but the markers of a deleted topic is to be swept: manifests are listed before the markers, all else after them.

Invariant: memory holds the versions of one topic id, and the files of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from metadata.model import Partition, Revision, TopicPartition
from segments.bucket.layout import HistoryKey, TopicIncarnation, TopicKey


class ListedFile(NamedTuple):
    """Describes a listed file of history."""

    key: HistoryKey
    size_bytes: int


@dataclass(slots=True)
class ListedPartition:
    """Holds what a listing shows of one partition."""

    topic: str
    partition: TopicPartition
    # Versions of its manifests, ascending.
    versions: list[int] = field(default_factory=list)
    files: list[ListedFile] = field(default_factory=list)


class Remains(NamedTuple):
    """An incarnation of a topic that is marked as deleted, and has left more than its marks."""

    topic: TopicIncarnation
    # The revision of its newest marker: a topic that was restored, and deleted again, has several.
    deleted: Revision


@dataclass(slots=True)
class _Listed:
    """Holds what was listed of one incarnation, and was not returned yet."""

    topic: TopicIncarnation
    deleted: Revision | None = None
    has_others: bool = False
    versions: dict[Partition, list[int]] = field(default_factory=dict)
    files: list[ListedFile] = field(default_factory=list)

    def with_files(self) -> ListedPartition:
        files, self.files = self.files, []
        partition = files[0].key.partition
        where = TopicPartition(self.topic.topic_id, partition)
        return ListedPartition(self.topic.name, where, self.versions.pop(partition, []), files)


class TopicListing:
    """Tells what is complete of a listing that goes by, key after key."""

    def __init__(self) -> None:
        self._listed: _Listed | None = None

    def take_in(self, key: TopicKey, size_bytes: int) -> Iterator[ListedPartition | Remains]:
        """Yields what is complete now that this key has come, the next of the listing. A topic that is marked as deleted has no
        partitions, but may have remains."""
        listed = self._listed
        if listed is None or listed.topic != key.incarnation:
            yield from self.end()
            self._listed = listed = _Listed(key.incarnation)
        if key.deleted is not None:
            listed.deleted = max(listed.deleted or key.deleted, key.deleted)
            return
        listed.has_others = True
        if key.manifest is not None:
            listed.versions.setdefault(key.manifest.partition, []).append(key.manifest.version)
        elif key.history is not None and listed.deleted is None:
            if listed.files and listed.files[0].key.partition != key.history.partition:
                yield listed.with_files()
            listed.files.append(ListedFile(key.history, size_bytes))

    def end(self) -> Iterator[ListedPartition | Remains]:
        listed, self._listed = self._listed, None
        if listed is None:
            return
        if listed.deleted is not None:
            if listed.has_others:
                yield Remains(listed.topic, listed.deleted)
            return
        if listed.files:
            yield listed.with_files()
        for partition, versions in listed.versions.items():
            yield ListedPartition(listed.topic.name, TopicPartition(listed.topic.topic_id, partition), versions)
