"""Deletes segments that are wholly in Parquet: first a marker records that, and after the grace they go, in order.

    0   1   2   3   4   5   6   seal   claim   index-0-4   trimmed-4                  all below 4 is in Parquet; it stays a while
                    4   5   6   seal   claim               trimmed-4   trimmed-6      gone; the next marker is there already

Whether a segment is done follows from manifests that were read back from the bucket (wal/state.py). The seal, the claim
and the newest marker of a session are kept forever: the seal fences, and the marker proves that the segments before it were no gap.

Invariants: a segment is deleted only before a marker that is `delete_grace_ms` old, the first ones first (a few at a time), and the
marker before this one only when they are gone; no seal, no claim and no newest marker is ever deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import msgspec

from compaction.context import CompactionContext
from compaction.wal.state import SessionState, WalState
from metadata.errors import AlreadyExists, NotFound
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import index_key, segment_key, trimmed_key
from segments.concurrency import gather_all

# Segments of one session that one call deletes, at most.
DELETES_MAX: Final = 1_000
SESSIONS_AT_ONCE: Final = 4

log = logging.getLogger(__name__)


class TrimRecord(msgspec.Struct, frozen=True):
    """Holds the content of a trimmed marker, as JSON."""

    trimmed_at_ms: int


async def trim_wal(context: CompactionContext, state: WalState) -> int:
    """Trims this compactor's sessions; returns how many segments were deleted. Raises what the store raises."""
    mine = [session for session in state.sessions.values() if context.is_mine(session_name(session.session))]
    slots = asyncio.Semaphore(SESSIONS_AT_ONCE)

    async def trim(session: SessionState) -> int:
        async with slots:
            await _mark(context, state, session)
            return await _delete(context, session)

    return sum(await gather_all(map(trim, mine)))


def session_name(session: SessionId) -> str:
    """Returns the name of the session for `is_mine`."""
    return f"session {session}"


async def _mark(context: CompactionContext, state: WalState, session: SessionState) -> None:
    to = session.done_to
    if to <= session.trimmed_to:
        return
    with contextlib.suppress(AlreadyExists):  # another compactor's marker, or ours after a lost answer
        await context.retry(lambda: _create_marker(context, session, to))
    session.markers[to] = context.clock.stamp_ms()  # not its begin: the create may have taken long
    state.trimmed(session.listed, to)


async def _create_marker(context: CompactionContext, session: SessionState, to: SegmentSeq) -> None:
    await context.store.create(trimmed_key(session.session, to), [msgspec.json.encode(TrimRecord(context.clock.stamp_ms()))])


async def _delete(context: CompactionContext, session: SessionState) -> int:
    if context.clock.is_doubted:  # the age of a marker can't be measured by it
        return 0
    ripe = await _ripe(context, session)
    if ripe is None:
        return 0
    first = session.oldest_seq
    keys = [segment_key(session.session, SegmentSeq(seq)) for seq in range(first, min(ripe, first + DELETES_MAX))]
    gone = await context.deletions.delete(keys)
    session.oldest_seq = SegmentSeq(first + next((at for at, key in enumerate(keys) if key not in gone), len(keys)))
    context.counters.segments_deleted += len(gone)
    if session.oldest_seq >= ripe:
        indexes = {index_key(session.session, *index): index for index in sorted(session.indexes) if index.end <= ripe}
        for key in await context.deletions.delete(indexes):
            session.indexes.discard(indexes[key])
        markers = {trimmed_key(session.session, marker): marker for marker in sorted(session.markers) if marker < ripe}
        for key in await context.deletions.delete(markers):
            del session.markers[markers[key]]
    return len(gone)


async def _ripe(context: CompactionContext, session: SessionState) -> SegmentSeq | None:
    """Returns the newest marker that is older than the grace, where there is something to delete before it."""
    settled_ms = context.now_ms() - context.settings.delete_grace_ms
    for marker in sorted(session.markers, reverse=True):
        older = (
            session.oldest_seq < marker or any(index.end <= marker for index in session.indexes) or min(session.markers) < marker
        )
        if not older:
            return None
        if (made_ms := session.markers[marker]) is None:
            made_ms = await _made_ms(context, session, marker)
        made_ms = session.markers[marker] = min(made_ms, context.now_ms())  # one of the clocks may have been ahead
        if made_ms <= settled_ms:
            return marker
    return None


async def _made_ms(context: CompactionContext, session: SessionState, marker: SegmentSeq) -> int:
    """Returns when a marker was made; an unreadable one counts from now on."""
    key = trimmed_key(session.session, marker)
    try:
        return msgspec.json.decode(await context.store.get(key), type=TrimRecord).trimmed_at_ms
    except (msgspec.MsgspecError, NotFound) as error:
        log.warning("reading the time of a marker failed key=%s: %s; it counts from now", key, error)
        return context.now_ms()
