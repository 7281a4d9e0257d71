"""Fetched batches to records, for the doors that open them. Pure but for the thread that does it.

Invariants: what comes out begins at the asked offset, whatever the first batch begins with; however far batches were compressed,
one answer opens no more than OPENED_BYTES_MAX and one batch.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from metadata.errors import Corrupt, InvalidRecord
from segments.batch_kernel import RecordTuple
from segments.log_reader import Fetched
from segments.record_batch import parse_header, split_batches
from segments.record_columns import iterate_records

THREAD_BYTES: Final = 64 << 10
"""More than this is opened in a thread: it would hold the event loop for milliseconds."""


OPENED_BYTES_MAX: Final = 16 << 20
"""Keys and values of one answer; a batch that was begun is opened whole. The reader goes on from where it ends."""


class Opened(NamedTuple):
    records: list[RecordTuple]
    """(offset, timestamp_ms, key, value, headers)"""
    next_offset: int


async def records_from(fetched: Fetched, offset: int, *, decompressed_bytes_max: int) -> Opened:
    """The records from `offset` on. Corrupt where a stored batch can't be opened."""
    if fetched.size_bytes > THREAD_BYTES:
        return await asyncio.to_thread(_open, fetched, offset, decompressed_bytes_max)
    return _open(fetched, offset, decompressed_bytes_max)


def _open(fetched: Fetched, offset: int, decompressed_bytes_max: int) -> Opened:
    records: list[RecordTuple] = []
    bytes_left, next_offset = OPENED_BYTES_MAX, int(fetched.next_offset)
    try:
        for batch in split_batches(b"".join(fetched.batches)):
            if bytes_left <= 0:
                next_offset = parse_header(batch).base_offset
                break
            opened = iterate_records(batch, decompressed_bytes_max=decompressed_bytes_max)
            bytes_left -= sum(len(key or b"") + len(value or b"") for _, _, key, value, _ in opened)
            records += opened
    except InvalidRecord as error:
        raise Corrupt(f"a committed batch from offset {offset} on can't be opened: {error.message}", offset=offset) from error
    skipped = next((at for at, record in enumerate(records) if record[0] >= offset), len(records))
    return Opened(records[skipped:] if skipped else records, next_offset)
