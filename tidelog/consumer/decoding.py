"""Decodes a fetched batch to records. Pure."""

from __future__ import annotations

from metadata.errors import Corrupt, TidelogError
from segments.records.batch import parse_header
from segments.records.columns import iterate_records
from tidelog.consumer.fetch_state import shown
from tidelog.consumer.prefetch_buffer import Fetched
from tidelog.records import Record


def decode(fetched: Fetched, *, decompressed_bytes_max: int) -> list[Record]:
    """Returns the requested records; a batch of compacted or control records may have none. Raises Corrupt."""
    topic, partition = fetched.partition
    start, end = fetched.start_offset, fetched.end_offset
    try:
        rows = iterate_records(fetched.batch, decompressed_bytes_max=decompressed_bytes_max)
    except TidelogError as error:
        header = parse_header(fetched.batch)
        what = f"the batch at [{header.base_offset}, {header.last_offset + 1}) of {shown(fetched.partition)} can't be decoded"
        raise Corrupt(
            f"{what}: {error.message}",
            hint=f"Read on from offset {header.last_offset + 1}, or run `tidelog bucket verify`.",
            next_offset=header.last_offset + 1,
        ) from error
    if end is not None:
        rows = [row for row in rows if row[0] < end]
    return [
        Record(topic, partition, offset, timestamp_ms, key, value, headers)
        for offset, timestamp_ms, key, value, headers in rows
        if offset >= start
    ]
