"""Defines the notices by which compactors, and leaders that delete records, announce newer manifests of partitions. Pure.

The value of /{cluster}/compactions/{unit}, JSON in UTF-8, under a lease of NOTICE_KEPT_S:

    [["1f…32 hex digits…",7,12,false],…]          topic id, partition, version of the manifest, whether a leader deleted records

A notice saves polling and decides nothing: its receiver reads the newest manifest from the bucket. A broker that misses it finds a
segment missing later, and reads the manifest then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from metadata.errors import Corrupt
from metadata.model import Partition, TopicId, TopicPartition
from metadata.store.interface import KeyValue

NOTICE_KEPT_S: Final = 600.0
# Notices in one key, at most 64 bytes each: together below the 1 MiB that one value may have.
NOTICES_MAX: Final = 16_000


class ManifestNotice(msgspec.Struct, frozen=True, array_like=True):
    """Announces that a partition has a newer manifest."""

    topic_id: TopicId
    partition: Partition
    # The manifest's version; later ones may exist. After a DeleteRecords without an answer of the bucket this one may not exist.
    version: int
    # Announced by a leader after DeleteRecords: compactors delete what became unreachable.
    is_deletion: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


def encode_notices(notices: Iterable[ManifestNotice]) -> list[bytes]:
    """Encodes the notices as the values of one key or several."""
    listed = list(notices)
    return [msgspec.json.encode(listed[at : at + NOTICES_MAX]) for at in range(0, len(listed), NOTICES_MAX)]


def decode_notices(kept: KeyValue) -> tuple[ManifestNotice, ...]:
    """Decodes the notices of one key. Raises Corrupt."""
    try:
        return msgspec.json.decode(kept.value, type=tuple[ManifestNotice, ...])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the manifest notice {kept.key} can't be read: {error}", key=kept.key, revision=kept.mod_revision) from error
