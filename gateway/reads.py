"""Fetched batches to records, for the doors that open them. Pure but for the thread that does it.

Invariant: what comes out begins at the asked offset, whatever the first batch begins with.
"""

from __future__ import annotations

import asyncio
from typing import Final

from metadata.errors import Corrupt, InvalidRecord
from segments.batch_kernel import RecordTuple
from segments.log_reader import Fetched
from segments.record_batch import split_batches
from segments.record_columns import iterate_records

THREAD_BYTES: Final = 64 << 10
"""More than this is opened in a thread: it would hold the event loop for milliseconds."""


async def records_from(fetched: Fetched, offset: int, *, decompressed_bytes_max: int) -> list[RecordTuple]:
    """(offset, timestamp_ms, key, value, headers) of the records from `offset` on. Corrupt where a stored batch can't be opened."""
    if fetched.size_bytes > THREAD_BYTES:
        return await asyncio.to_thread(_open, fetched, offset, decompressed_bytes_max)
    return _open(fetched, offset, decompressed_bytes_max)


def _open(fetched: Fetched, offset: int, decompressed_bytes_max: int) -> list[RecordTuple]:
    records: list[RecordTuple] = []
    try:
        for batch in split_batches(b"".join(fetched.batches)):
            records += iterate_records(batch, decompressed_bytes_max=decompressed_bytes_max)
    except InvalidRecord as error:
        raise Corrupt(f"a committed batch from offset {offset} on can't be opened: {error.message}", offset=offset) from error
    skipped = next((at for at, record in enumerate(records) if record[0] >= offset), len(records))
    return records[skipped:] if skipped else records
