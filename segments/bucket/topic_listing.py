"""Sorts a listing of topics/ into partitions, as it goes by, without keeping it. Pure.

    topics/orders/1f…/_log/00000/…1  …2        manifests of partition 0: versions, kept until the topic is through
                      _log/00001/…1
                      _log/deleted-…           of a life that is over: the rest is for the sweep
                      _log/topic-….json
                      partition=0/….parquet    files: a partition is told when its last one has gone by
    topics/orders/2e…/…                        the next life: partitions without files are told

Of a life that is over, another object than its markers is what is left to sweep: before them are manifests, behind them the rest.

Invariant: in memory are the versions of one life of a topic, and the files of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from metadata.model import Partition, Revision, TopicId, TopicPartition
from segments.bucket.layout import HistoryKey, TopicKey


class ListedFile(NamedTuple):
    key: HistoryKey
    size_bytes: int


@dataclass(slots=True)
class ListedPartition:
    topic: str
    partition: TopicPartition
    versions: list[int] = field(default_factory=list)
    """Of its manifests, ascending."""
    files: list[ListedFile] = field(default_factory=list)


@dataclass(slots=True)
class _Life:
    topic: str
    topic_id: TopicId
    is_deleted: bool = False
    versions: dict[Partition, list[int]] = field(default_factory=dict)
    files: list[ListedFile] = field(default_factory=list)


class TopicListing:
    def __init__(self) -> None:
        self._life: _Life | None = None

    def take_in(self, key: TopicKey, size_bytes: int) -> Iterator[ListedPartition]:
        """What is complete now that this key has come, the next of the listing; nothing of a life that is marked as deleted."""
        life = self._life
        if life is None or (life.topic, life.topic_id) != (key.name, key.topic_id):
            yield from self.end()
            self._life = life = _Life(key.name, key.topic_id)
        if key.deleted is not None:
            life.is_deleted = True
        elif key.manifest is not None:
            life.versions.setdefault(key.manifest.partition, []).append(key.manifest.version)
        elif key.history is not None and not life.is_deleted:
            if life.files and life.files[0].key.partition != key.history.partition:
                yield _with_files(life)
            life.files.append(ListedFile(key.history, size_bytes))

    def end(self) -> Iterator[ListedPartition]:
        life, self._life = self._life, None
        if life is None or life.is_deleted:
            return
        if life.files:
            yield _with_files(life)
        for partition, versions in life.versions.items():
            yield ListedPartition(life.topic, TopicPartition(life.topic_id, partition), versions)


class Remains(NamedTuple):
    """A life of a topic that is marked as deleted, and has left more than its markers."""

    topic: str
    topic_id: TopicId
    deleted: Revision
    """Of its newest marker: a life that was restored, and deleted again, has several."""


class RemainsListing:
    """Finds what deleted topics have left, in the same listing."""

    def __init__(self) -> None:
        self._life: tuple[str, TopicId] | None = None
        self._deleted: Revision | None = None
        self._has_others = False

    def take_in(self, key: TopicKey) -> Remains | None:
        """The life before that of this key, the next of the listing, if it has left something."""
        complete = self.end() if self._life != (key.name, key.topic_id) else None
        self._life = key.name, key.topic_id
        if key.deleted is None:
            self._has_others = True
        else:
            self._deleted = max(self._deleted or key.deleted, key.deleted)
        return complete

    def end(self) -> Remains | None:
        complete = None
        if self._life is not None and self._deleted is not None and self._has_others:
            complete = Remains(*self._life, self._deleted)
        self._life, self._deleted, self._has_others = None, None, False
        return complete


def _with_files(life: _Life) -> ListedPartition:
    files, life.files = life.files, []
    partition = files[0].key.partition
    return ListedPartition(life.topic, TopicPartition(life.topic_id, partition), life.versions.pop(partition, []), files)
