"""What compactors tell brokers, and leaders that delete records tell both: there is a newer manifest of these partitions. Pure.

The value of /{cluster}/compactions/{unit}, JSON in UTF-8, under a lease of NOTICE_KEPT_S:

    [["1f…32 hex digits…",7,12,false],…]          topic id, partition, version of the manifest, whether a leader deleted records

A notice saves looking, and decides nothing: who hears of it reads the newest manifest from the bucket. Who misses it finds a
segment gone one day, and reads the manifest then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from metadata.errors import Corrupt
from metadata.model import Partition, TopicId, TopicPartition
from metadata.store.interface import KeyValue

NOTICE_KEPT_S: Final = 600.0
# In one key: at most 64 bytes each, so they stay below the 1 MiB that one value may have.
NOTICES_MAX: Final = 16_000


class ManifestNotice(msgspec.Struct, frozen=True, array_like=True):
    topic_id: TopicId
    partition: Partition
    # Of the manifest; there may be later ones. Where records were deleted, and the bucket did not answer, none may have it yet.
    version: int
    # By DeleteRecords: what it has let go is for compactors to delete.
    is_deletion: bool = False

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


def encode_notices(notices: Iterable[ManifestNotice]) -> list[bytes]:
    """The values of as many keys as it takes."""
    told = list(notices)
    return [msgspec.json.encode(told[at : at + NOTICES_MAX]) for at in range(0, len(told), NOTICES_MAX)]


def decode_notices(kept: KeyValue) -> tuple[ManifestNotice, ...]:
    """Raises Corrupt where the value holds none."""
    try:
        return msgspec.json.decode(kept.value, type=tuple[ManifestNotice, ...])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{kept.key} tells of no compaction: {error}", key=kept.key, revision=kept.mod_revision) from error
