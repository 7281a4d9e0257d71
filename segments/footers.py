"""Reads the footers of segments: what each holds, without its batches. One suffix GET for most, or one GET of an index for many."""

from __future__ import annotations

import logging

from metadata.errors import Corrupt, NotFound
from metadata.model import SegmentSeq, SessionId
from segments.bucket_layout import index_key
from segments.footer_index import IndexRange, parse_index
from segments.object_store import ObjectInfo, ObjectStore
from segments.segment_file import FOOTER_READ_BYTES, SegmentFooter, footer_bytes_needed, parse_footer

log = logging.getLogger(__name__)


async def read_footer(store: ObjectStore, info: ObjectInfo, session: SessionId, seq: SegmentSeq) -> SegmentFooter:
    """Raises Corrupt when it is damaged or not that segment's, NotFound when it is gone, and what the store raises."""
    tail = await store.tail(info.key, FOOTER_READ_BYTES)
    needed = footer_bytes_needed(tail.body, object_size=tail.size, key=info.key)
    body = tail.body if needed <= len(tail.body) else (await store.tail(info.key, needed)).body
    return parse_footer(body, object_size=tail.size, session=session, seq=seq, key=info.key)


async def read_index(store: ObjectStore, session: SessionId, covered: IndexRange) -> list[SegmentFooter] | None:
    """The footers that an index holds; None where it is gone or damaged, and they must be read from the segments."""
    key = index_key(session, *covered)
    try:
        return parse_index(await store.get(key), session=session, first=covered.first, end=covered.end, key=key)
    except (Corrupt, NotFound) as error:
        log.warning("footers are read one by one: %s", error)
        return None
