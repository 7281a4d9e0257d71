"""Stores what a restore from the bucket adds to the metadata: the mark that it is under way, the base of later revisions, and the
session numbers that it has skipped.

    empty ─▶ restoring, written first ─▶ all other keys ─▶ the cluster's id, and restoring deleted, in one transaction

The value of /{cluster}/restoring, JSON in UTF-8:

    {"cluster_id":"…","started_at_ms":1767225600000}

The value of /{cluster}/skipped_sessions is two decimal numbers, "19-65555": sessions from 19 to 65554. No broker of these metadata
is given one of them. If one has written, the bucket was not complete when the metadata were restored.

Invariant: while `restoring` is present, no broker starts and no controller is elected: it would see only a part of the cluster, and
give away partitions whose records are not known yet.
"""

from __future__ import annotations

import re

import msgspec

from metadata.errors import Corrupt, Rejected
from metadata.model import SessionId
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import KeyLayout, parse_number

RESTORE_COMMAND = "tidelog cluster restore"
_SKIPPED = re.compile(rb"([0-9]{1,19})-([0-9]{1,19})")


class RestoreState(msgspec.Struct, frozen=True):
    """Marks a cluster whose metadata are being restored."""

    cluster_id: str
    # Milliseconds since 1970-01-01 UTC.
    started_at_ms: int


def encode_restoring(restoring: RestoreState) -> bytes:
    return msgspec.json.encode(restoring)


def decode_restoring(kept: KeyValue) -> RestoreState:
    """Decodes the mark. Raises Corrupt."""
    try:
        return msgspec.json.decode(kept.value, type=RestoreState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{kept.key} can't be read: {error}", key=kept.key, revision=kept.mod_revision) from error


async def check_not_restoring(store: MetadataStore, layout: KeyLayout) -> None:
    """Raises Rejected while a restore is under way, or was interrupted; Unavailable."""
    if await store.get(layout.restoring) is not None:
        raise Rejected(
            f"the metadata of {layout.cluster} are being restored from the bucket, or a restore was interrupted",
            hint=f"Wait for it, or run `{RESTORE_COMMAND}` again to continue.",
            key=layout.restoring,
        )


async def read_restoration(store: MetadataStore, layout: KeyLayout) -> int:
    """Returns the number of the restore that made these metadata; 0 where none did. Raises Unavailable, Corrupt."""
    return parse_number(await store.get(layout.restoration), absent=0)


async def read_revision_base(store: MetadataStore, layout: KeyLayout) -> int:
    """Returns what is added to revisions that are written to the bucket: 0 unless the cluster was restored.

    Raises Unavailable, Corrupt.
    """
    return parse_number(await store.get(layout.revision_base), absent=0)


class SkippedSessions(msgspec.Struct, frozen=True):
    """Names the session numbers [first, end) that the last restore has skipped."""

    first: SessionId = SessionId(0)
    end: SessionId = SessionId(0)

    def __contains__(self, session: SessionId) -> bool:
        return self.first <= session < self.end


def encode_skipped(skipped: SkippedSessions) -> bytes:
    return f"{skipped.first}-{skipped.end}".encode()


async def read_skipped_sessions(store: MetadataStore, layout: KeyLayout) -> SkippedSessions:
    """Returns the session numbers that the last restore has skipped; none unless the cluster was restored.

    Raises Unavailable, Corrupt.
    """
    held = await store.get(layout.skipped_sessions)
    if held is None:
        return SkippedSessions()
    match = _SKIPPED.fullmatch(held.value)
    if match is None:
        raise Corrupt(f"{held.key} holds no range of sessions", key=held.key, revision=held.mod_revision)
    return SkippedSessions(SessionId(int(match[1])), SessionId(int(match[2])))
