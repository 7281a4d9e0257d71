"""Reads the footers of a session's segments: what they hold, without their batches, through indexes where there are any."""

from __future__ import annotations

import asyncio

from metadata.errors import Corrupt, NotFound
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import segment_key
from segments.concurrency import all_of
from segments.object_store.interface import ObjectStore
from segments.wal.footer_index import IndexRange, cover
from segments.wal.footer_reader import read_footer_bytes, read_index
from segments.wal.segment_file import FooterBytes, SegmentFooter, parse_footer
from segments.wal.session import list_session
from segments.wal.session_listing import SessionListing


async def read_footers(
    store: ObjectStore, listing: SessionListing, *, reads_max: int, singly: dict[SegmentSeq, FooterBytes] | None = None
) -> list[SegmentFooter | Corrupt]:
    """The footers of the listed segments, in order, `reads_max` reads at a time; in place of a damaged or missing one, Corrupt.

    Indexes are read where there are any; `singly` is told of the others. Raises NotFound when a segment was trimmed since the
    listing, Unavailable or Denied when the bucket can't be read.
    """
    turns = asyncio.Semaphore(reads_max)

    async def read(first: SegmentSeq, index: IndexRange | None) -> list[SegmentFooter | Corrupt]:
        if index is None:
            return [await read_one(first)]
        end = min(index.end, listing.end_seq)
        async with turns:
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
        async with turns:
            try:
                read = await read_footer_bytes(store, info)
                footer = parse_footer(read.body, object_size=read.object_size, session=listing.session, seq=seq, key=info.key)
            except Corrupt as error:
                return error
        if singly is not None:
            singly[seq] = read
        return footer

    parts = cover(listing.trimmed_to, listing.end_seq, listing.indexes)
    return [footer for of_part in await all_of(read(*part) for part in parts) for footer in of_part]


async def read_session(store: ObjectStore, session: SessionId, *, reads_max: int = 16) -> list[SegmentFooter | Corrupt]:
    """The committed footers of a session that may still be written to, without sealing it: for readers of the bucket alone."""
    while True:
        try:
            return await read_footers(store, await list_session(store, session), reads_max=reads_max)
        except NotFound:
            continue
