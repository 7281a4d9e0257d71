"""Stores committed offsets, under /{cluster}/offsets/{group}/{topic_id}/{p}.

    {"format_version":1,"offset":1200,"leader_epoch":4,"metadata":"","committed_at_ms":1767225600000,"generation":7}

Invariant: an offset was committed by a member of the generation of its time, or by hand while the group had no members. Where
nothing was committed, there is no key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

import msgspec

from metadata.errors import Corrupt, InvalidArgument, TidelogError, TooLarge
from metadata.groups.model import NO_GENERATION
from metadata.groups.settings import GroupSettings
from metadata.model import TopicPartition
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import KeyLayout

FORMAT_VERSION: Final = 1
PAGE: Final = 1000


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one committed offset."""

    format_version: int = FORMAT_VERSION
    # The next record to be read.
    offset: int
    # The epoch of the last record that was read; -1 where it is not known.
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int
    # The generation of the member that committed it; -1 where it was committed by hand, or before this was stored.
    generation: int = NO_GENERATION


def encode_offset(committed: CommittedOffset) -> bytes:
    return msgspec.json.encode(committed)


def decode_offset(kept: KeyValue) -> CommittedOffset:
    """Decodes a committed offset. Raises Corrupt."""
    try:
        return msgspec.json.decode(kept.value, type=CommittedOffset)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{kept.key} holds no committed offset: {error}",
            hint="Set the offset again: tidelog group seek.",
            key=kept.key,
        ) from error


def why_not(committed: CommittedOffset, settings: GroupSettings) -> TidelogError | None:
    """Returns why the offset may not be committed; None where it may."""
    if committed.offset < 0:
        return InvalidArgument(
            f"an offset of {committed.offset} can't be committed",
            hint="Commit the offset of the next record: 0 or more.",
            field="offset",
        )
    if committed.leader_epoch < -1:
        return InvalidArgument(
            f"a leader epoch of {committed.leader_epoch} can't be committed", hint="Leave it out, or send -1.", field="leader_epoch"
        )
    if committed.metadata and (size := len(committed.metadata.encode(errors="replace"))) > settings.offset_metadata_bytes_max:
        return TooLarge(
            f"the metadata of a committed offset have {size} bytes; {settings.offset_metadata_bytes_max} is the most",
            hint="Keep less with it, or raise offset_metadata_bytes_max of the brokers.",
            field="metadata",
        )
    return None


class StoredOffsets(NamedTuple):
    """Holds all that a group has committed, at one revision."""

    committed: Mapping[TopicPartition, CommittedOffset]
    # Unreadable offsets, each with its error: what was committed there is unknown.
    damaged: Mapping[TopicPartition, TidelogError]


async def read_offsets(store: MetadataStore, layout: KeyLayout, group: str) -> StoredOffsets:
    """Reads all committed offsets of a group. Raises Unavailable."""
    committed, damaged = dict[TopicPartition, CommittedOffset](), dict[TopicPartition, TidelogError]()
    async for kept in _stored(store, layout, group):
        at = layout.parse_offset(kept.key)[1]
        try:
            committed[at] = decode_offset(kept)
        except Corrupt as error:
            damaged[at] = error.with_traceback(None)
    return StoredOffsets(committed, damaged)


async def read_offset_keys(store: MetadataStore, layout: KeyLayout, group: str) -> list[str]:
    """Returns the keys of a group's offsets, damaged ones as well. Raises Unavailable."""
    return [kept.key async for kept in _stored(store, layout, group)]


async def _stored(store: MetadataStore, layout: KeyLayout, group: str) -> AsyncIterator[KeyValue]:
    prefix = layout.offsets(group)
    page = await store.range(prefix, limit=PAGE)
    while True:
        for kept in page.items:
            yield kept
        if not page.more:
            return
        page = await store.range(prefix, start_after=page.items[-1].key, limit=PAGE, revision=page.revision)
