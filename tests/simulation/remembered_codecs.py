"""What the processes of a world decode again and again is decoded once: the same bytes give the same records, however often.

A reader with a small pool reads a row group once for each of its fetches, and so does every other broker: that was a quarter of
what a world with compactors costs. What a compactor has written it reads back at once, and others do later. Compactors list the
same keys every half second. Remembered are results of functions that are
pure, by all that they are given; an error is none. What is answered is frozen, or is read only. Manifests are left alone: who holds
one asks whether it is still the same object.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from unittest.mock import patch

import pyarrow as pa

from compaction.maintenance import history_stream
from metadata.model import SegmentSeq, SessionId
from segments.bucket import layout as bucket_layout
from segments.history import parquet_file
from segments.history.manifest import EpochStart, HistoryFile, RowGroup
from segments.history.parquet_file import ParquetFooter, parse_parquet_footer, read_row_group
from segments.history.row_group_batches import HistoryBatch, encode_row_group
from segments.object_store.interface import Buffer
from segments.read import row_group_loader
from segments.wal import segment_file
from segments.wal.segment_file import SegmentFooter, _parse_footer


@contextlib.contextmanager
def remembered_codecs() -> Iterator[None]:
    """For one world."""
    codecs = _Codecs()
    with contextlib.ExitStack() as patches:
        for module in (parquet_file, history_stream):
            patches.enter_context(patch.object(module, "read_row_group", codecs.read_row_group))
            patches.enter_context(patch.object(module, "parse_parquet_footer", codecs.parse_parquet_footer))
        patches.enter_context(patch.object(row_group_loader, "encode_row_group", codecs.encode_history))
        patches.enter_context(patch.object(segment_file, "_parse_footer", codecs.parse_footer))
        patches.enter_context(patch.object(bucket_layout, "parse_wal_key", cache(bucket_layout.parse_wal_key)))
        yield


class _Codecs:
    def __init__(self) -> None:
        self._columns: dict[object, pa.RecordBatch] = {}
        self._batches: dict[object, tuple[pa.RecordBatch, list[HistoryBatch]]] = {}
        """By the columns' address, which they keep as long as they are held here."""
        self._footers: dict[object, SegmentFooter] = {}
        self._parquet_footers: dict[object, ParquetFooter] = {}

    def read_row_group(
        self, data: Buffer, group: RowGroup, footer: ParquetFooter, *, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """Whatever the file is called: it has another name until it is checked."""
        whole = (bytes(data), group, footer.file.footer_crc32c)
        found = self._columns.get(whole)
        if columns is None:
            if found is None:
                found = self._columns[whole] = read_row_group(data, group, footer)
            return found
        what = (whole, *columns)
        part = self._columns.get(what)
        if part is None:
            part = read_row_group(data, group, footer, columns=columns) if found is None else found.select(list(columns))
            self._columns[what] = part
        return part

    def parse_parquet_footer(self, tail: Buffer, file: HistoryFile, key: str) -> ParquetFooter:
        what = (bytes(tail), file, key)
        found = self._parquet_footers.get(what)
        if found is None:
            found = self._parquet_footers[what] = parse_parquet_footer(tail, file, key)
        return found

    def encode_history(
        self, columns: pa.RecordBatch, *, end_offset: int, epochs: Sequence[EpochStart], batch_bytes_max: int
    ) -> list[HistoryBatch]:
        what = (id(columns), end_offset, tuple(epochs), batch_bytes_max)
        found = self._batches.get(what)
        if found is None:
            made = encode_row_group(columns, end_offset=end_offset, epochs=epochs, batch_bytes_max=batch_bytes_max)
            found = self._batches[what] = columns, made
        return found[1]

    def parse_footer(self, footer: bytes, *, session: SessionId, seq: SegmentSeq, batches_end: int, key: str) -> SegmentFooter:
        """Behind the check of its CRC-32C, which is made each time."""
        what = (footer, session, seq, batches_end, key)
        found = self._footers.get(what)
        if found is None:
            found = self._footers[what] = _parse_footer(footer, session=session, seq=seq, batches_end=batches_end, key=key)
        return found
