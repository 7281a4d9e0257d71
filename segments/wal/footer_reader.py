"""Reads the footers of segments: what each holds, without its batches. One suffix GET for most, or one GET of an index for many."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from metadata.errors import AlreadyExists, Corrupt, NotFound, TidelogError
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import index_key
from segments.object_store.interface import ObjectInfo, ObjectStore
from segments.wal.footer_index import IndexBlock, IndexRange, encode_index, parse_index
from segments.wal.segment_file import FOOTER_READ_BYTES, FooterBytes, SegmentFooter, footer_bytes_needed, parse_footer

# Bytes of an index. A smaller one holds the event loop for a few milliseconds.
PARSED_IN_A_THREAD = 128 << 10

log = logging.getLogger(__name__)


async def read_footer(store: ObjectStore, info: ObjectInfo, session: SessionId, seq: SegmentSeq) -> SegmentFooter:
    """Raises Corrupt when it is damaged or not that segment's, NotFound when it is gone, and what the store raises."""
    read = await read_footer_bytes(store, info)
    return parse_footer(read.body, object_size=read.object_size, session=session, seq=seq, key=info.key)


async def read_footer_bytes(store: ObjectStore, info: ObjectInfo) -> FooterBytes:
    """Reads a footer without parsing it. Raises as `read_footer`."""
    tail = await store.tail(info.key, FOOTER_READ_BYTES)
    needed = footer_bytes_needed(tail.body, object_size=tail.size, key=info.key)
    body = tail.body[-needed:] if needed <= len(tail.body) else (await store.tail(info.key, needed)).body
    return FooterBytes(body, tail.size)


async def read_index(store: ObjectStore, session: SessionId, covered: IndexRange) -> list[SegmentFooter] | None:
    """Returns the footers in an index; None if it is missing or damaged, so that the caller reads the segments."""
    key = index_key(session, *covered)
    parse = partial(parse_index, session=session, first=covered.first, end=covered.end, key=key)
    try:
        body = await store.get(key)
        return await asyncio.to_thread(parse, body) if len(body) > PARSED_IN_A_THREAD else parse(body)
    except (Corrupt, NotFound) as error:
        log.warning("index not read: %s; reading footers one by one", error)
        return None


async def write_index(store: ObjectStore, session: SessionId, block: IndexBlock, *, timeout_s: float) -> None:
    """Writes an index with one attempt, as it only saves reads."""
    key = index_key(session, block.first, block.end)
    try:
        async with asyncio.timeout(timeout_s):
            await store.create(key, encode_index(session, block))
    except AlreadyExists:
        return  # another broker has taken over from the session as well
    except (TidelogError, TimeoutError) as error:
        log.info("index not written key=%s: %s", key, str(error) or "no answer in time")
