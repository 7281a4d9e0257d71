"""Reads the footers of segments: what each holds, without its batches. One suffix GET for most, two for a long footer."""

from __future__ import annotations

from metadata.model import SegmentSeq, SessionId
from segments.object_store import ObjectInfo, ObjectStore
from segments.segment_file import FOOTER_READ_BYTES, SegmentFooter, footer_bytes_needed, parse_footer


async def read_footer(store: ObjectStore, info: ObjectInfo, session: SessionId, seq: SegmentSeq) -> SegmentFooter:
    """Raises Corrupt when it is damaged or not that segment's, NotFound when it is gone, and what the store raises."""
    tail = await store.tail(info.key, FOOTER_READ_BYTES)
    needed = footer_bytes_needed(tail.body, object_size=tail.size, key=info.key)
    body = tail.body if needed <= len(tail.body) else (await store.tail(info.key, needed)).body
    return parse_footer(body, object_size=tail.size, session=session, seq=seq, key=info.key)
