"""Stores what a restore from the bucket adds to the metadata: the mark that it is under way, the base of later revisions, and the
session numbers that it has skipped.

    empty ─▶ restoring, written first ─▶ all other keys ─▶ the cluster's id, and restoring deleted, in one transaction

The value of /{cluster}/restoring, JSON in UTF-8:

    {"cluster_id":"…","started_at_ms":1767225600000}

The value of /{cluster}/skipped_sessions is ranges of decimal numbers, "17-18,19-65555": session 17, and sessions from 19 to 65554.
These numbers are below the next one, and no session of them was on the bucket when the metadata were restored. No broker of these
metadata is given one of them. If one has written, the bucket was not complete then.

Invariant: while `restoring` is present, no broker starts and no controller is elected: it would see only a part of the cluster, and
give away partitions whose records are not known yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from metadata.errors import Corrupt, Rejected
from metadata.model import SessionId
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import KeyLayout, parse_number

RESTORE_COMMAND = "tidelog cluster restore"
_SKIPPED = re.compile(rb"[0-9]{1,19}-[0-9]{1,19}(?:,[0-9]{1,19}-[0-9]{1,19})*")
# Ranges that are kept, those of the highest numbers: each costs a request when a session begins. A broker that took a number and
# did not claim it leaves one.
RANGES_MAX: Final = 32


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
    """Names the session numbers that the last restore has not seen on the bucket, in ascending ranges [first, end)."""

    ranges: tuple[tuple[SessionId, SessionId], ...] = ()

    @classmethod
    def between(cls, seen: Iterable[SessionId], end: SessionId) -> SkippedSessions:
        """Returns all numbers below `end` but those that were seen, which ascend; of many ranges the last RANGES_MAX."""
        ranges: list[tuple[SessionId, SessionId]] = []
        first = SessionId(1)
        for session in (*(session for session in seen if session < end), end):
            if first < session:
                ranges.append((first, session))
            first = SessionId(session + 1)
        return cls(tuple(ranges[-RANGES_MAX:]))

    def __contains__(self, session: SessionId) -> bool:
        return any(first <= session < end for first, end in self.ranges)


def encode_skipped(skipped: SkippedSessions) -> bytes:
    return ",".join(f"{first}-{end}" for first, end in skipped.ranges).encode()


async def read_skipped_sessions(store: MetadataStore, layout: KeyLayout) -> SkippedSessions:
    """Returns the session numbers that the last restore has not seen; none unless the cluster was restored.

    Raises Unavailable, Corrupt.
    """
    held = await store.get(layout.skipped_sessions)
    if held is None:
        return SkippedSessions()
    if _SKIPPED.fullmatch(held.value) is None:
        raise Corrupt(f"{held.key} holds no ranges of sessions", key=held.key, revision=held.mod_revision)
    numbers = [[SessionId(int(number)) for number in text.split(b"-")] for text in held.value.split(b",")]
    return SkippedSessions(tuple((first, end) for first, end in numbers))
