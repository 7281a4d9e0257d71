"""Reads the footers of a session's segments: what they hold, without their batches, through indexes where there are any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from metadata.errors import Corrupt, NotFound
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import segment_key
from segments.concurrency import gather_all
from segments.object_store.interface import ObjectInfo, ObjectStore
from segments.wal.footer_index import IndexRange, cover
from segments.wal.footer_reader import read_footer, read_footer_bytes, read_index
from segments.wal.known_sessions import SEGMENTS_AT_ONCE
from segments.wal.segment_file import FooterBytes, SegmentFooter, parse_footer
from segments.wal.session import list_session, trim_point
from segments.wal.session_listing import ListedSession, SessionListing

# Attempts in a row after a listed segment was gone; each lists the session again.
GONE_TRIES: Final = 5
# Reads at the same time of a session that is read alone.
SESSION_READS_MAX: Final = 16


async def read_footers(
    store: ObjectStore, listing: SessionListing, *, reads_max: int, singly: dict[SegmentSeq, FooterBytes] | None = None
) -> list[SegmentFooter | Corrupt]:
    """Returns the footers of the listed segments, in order, `reads_max` reads at a time. A damaged or missing one is a Corrupt.

    Reads indexes of footers if there are any; adds the bytes of footers that were read one by one to `singly`. Raises NotFound if a
    segment was trimmed since the listing, Unavailable or Denied if the bucket cannot be read.
    """
    read_slots = asyncio.Semaphore(reads_max)

    async def read(first: SegmentSeq, index: IndexRange | None) -> list[SegmentFooter | Corrupt]:
        if index is None:
            return [await read_one(first)]
        end = min(index.end, listing.end_seq)
        async with read_slots:
            footers = await read_index(store, listing.session, index)
        if footers is None:
            return [await read_one(SegmentSeq(seq)) for seq in range(first, end)]
        return [*footers[first - index.first : end - index.first]]

    async def read_one(seq: SegmentSeq) -> SegmentFooter | Corrupt:
        info = listing.segments[seq - listing.trimmed_to]
        if info is None:
            key = segment_key(listing.session, seq)
            return Corrupt(
                f"{key} is gone, and was committed: {listing.evidence} says so",
                hint="Restore it from a version or a backup of the bucket, then restart the broker.",
                key=key,
            )
        async with read_slots:
            try:
                read = await read_footer_bytes(store, info)
                footer = parse_footer(read.body, object_size=read.object_size, session=listing.session, seq=seq, key=info.key)
            except Corrupt as error:
                return error
        if singly is not None:
            singly[seq] = read
        return footer

    parts = cover(listing.trimmed_to, listing.end_seq, listing.indexes)
    return [footer for of_part in await gather_all(read(*part) for part in parts) for footer in of_part]


async def read_committed(
    store: ObjectStore, listing: SessionListing, *, reads_max: int, segments_max: int
) -> AsyncIterator[tuple[SessionListing, list[SegmentFooter | Corrupt]]]:
    """Yields the listed segments with their footers, `segments_max` at a time.

    Where one was trimmed since the listing, the session is listed again, and what comes from then on is of the newer listing.
    Raises NotFound where listed segments are gone GONE_TRIES times in a row, and as `read_footers`.
    """
    gone = 0
    while True:
        part = listing.up_to(SegmentSeq(listing.trimmed_to + segments_max))
        try:
            footers = await read_footers(store, part, reads_max=reads_max)
        except NotFound:
            gone += 1
            if gone >= GONE_TRIES:
                raise
            listing = (await list_session(store, listing.session)).since(listing.trimmed_to)
            continue
        gone = 0
        yield part, footers
        if part.end_seq >= listing.end_seq:
            return
        listing = listing.since(part.end_seq)


async def read_below_trim_point(
    store: ObjectStore, listed: ListedSession, *, reads_max: int, segments_max: int
) -> AsyncIterator[list[SegmentFooter | Corrupt]]:
    """Yields the footers of what is left below the trim point, `segments_max` at a time. An unreadable one is a Corrupt.

    A segment that is gone is left out, unless an index has its footer. Raises Unavailable or Denied if the bucket cannot be read.
    """
    for stretch in listed.below_trim_point():
        while stretch.segments:
            part = stretch.up_to(SegmentSeq(stretch.trimmed_to + segments_max))
            stretch = stretch.since(part.end_seq)
            try:
                footers = await read_footers(store, part, reads_max=reads_max)
            except NotFound:  # a compactor deletes them meanwhile
                yield await _read_remaining(store, part, reads_max=reads_max)
                continue
            found = zip(part.segments, footers, strict=True)
            yield [footer for info, footer in found if info is not None or isinstance(footer, SegmentFooter)]


async def _read_remaining(store: ObjectStore, part: SessionListing, *, reads_max: int) -> list[SegmentFooter | Corrupt]:
    """Reads the footers of the listed segments one by one, and leaves out those that are gone."""
    read_slots = asyncio.Semaphore(reads_max)

    async def read(seq: SegmentSeq, info: ObjectInfo) -> SegmentFooter | Corrupt | None:
        async with read_slots:
            try:
                return await read_footer(store, info, part.session, seq)
            except Corrupt as error:
                return error
            except NotFound:
                return None

    listed = enumerate(part.segments, start=part.trimmed_to)
    footers = await gather_all(read(SegmentSeq(seq), info) for seq, info in listed if info is not None)
    return [footer for footer in footers if footer is not None]


async def read_session(store: ObjectStore, session: SessionId) -> list[SegmentFooter | Corrupt]:
    """Reads the committed footers of a session that may still be written to, without sealing it."""
    parts = read_committed(store, await list_session(store, session), reads_max=SESSION_READS_MAX, segments_max=SEGMENTS_AT_ONCE)
    return [footer async for _, footers in parts for footer in footers]


async def read_segment(store: ObjectStore, session: SessionId, seq: SegmentSeq) -> SegmentFooter | None:
    """Returns the footer of a segment that was committed; None where it was trimmed.

    Raises NotFound where it is gone, Corrupt where it is damaged, and what the store raises.
    """
    try:
        return await read_footer(store, ObjectInfo(segment_key(session, seq), size=0), session, seq)
    except (Corrupt, NotFound):
        if await trim_point(store, session) > seq:
            return None
        raise
