"""Files of history: columns of records to the bytes of a Parquet file and back, a row group at a time. Pure.

    ["PAR1"][row group: its column chunks][row group]…[bloom filters][page index][footer: thrift, its length, "PAR1"]
            start                         end                                    footer_start                       size_bytes

A row group is the unit of reading: one range of the object, about `row_group_bytes` of records, or one record that is larger. What
a reader needs beside it is the footer. The manifest has a CRC-32C of each, and both are checked before Parquet's decoder sees them:
it is made for bytes that are as they were written, and its own checks leave out headers of pages, and the footer.

Invariants: what is read is what was written, or Corrupt, which names the object and the range; beside the file, writing and reading
hold one row group in memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from awscrt.checksums import crc32c

from metadata.errors import Corrupt, InvalidArgument
from metadata.model import Offset
from segments.history.manifest import HistoryFile, RowGroup
from segments.history.parquet_schema import PARQUET_SCHEMA, WRITTEN_SCHEMA, from_stored, stored_names, to_stored
from segments.object_store.interface import Buffer
from segments.records.batch import corrupt_range
from segments.records.checksum import as_text, checksum_of_columns
from segments.records.columns import Int64Array, record_ends, timestamps_of

# Memory of a row beside its key, value and headers.
ROW_BYTES: Final = 40

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_DELTAS = "DELTA_BINARY_PACKED"
# More parts of a row group than these are first put together, which costs less than Parquet's work for each.
_PARTS_MAX = 16
_DISTINCT_KEYS_MIN = 1024
_INDEXED_KEY_BYTES_MAX = 64
_FALSE_POSITIVES = 0.05


@dataclass(frozen=True, slots=True)
class ParquetSettings:
    """Bounds row groups and sets their compression."""

    # Bytes of records as columns in memory, after which a row group ends. A larger record has one for itself.
    row_group_bytes: int = 16 << 20
    # Level of zstd.
    compression_level: int = 1


class WrittenFile(NamedTuple):
    """Holds a file that was written in memory, and its description for the manifest."""

    body: pa.Buffer
    file: HistoryFile


class HistoryWriter:
    """Takes records in the order of their offsets, and gives one file of them."""

    def __init__(self, topic: str, partition: int, settings: ParquetSettings) -> None:
        self._topic = topic
        self._partition = partition
        self._settings = settings
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._groups: list[_GroupRows] = []
        self._end_offset = 0
        self._record_count = 0
        self._record_bytes = 0
        self._checksum = 0

    @property
    def record_count(self) -> int:
        return self._record_count

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of the written row groups; up to one row group more waits in memory."""
        return int(self._sink.tell())

    def append(self, columns: pa.RecordBatch, *, checksum: int | None = None) -> None:
        """Appends records of record_columns.SCHEMA. InvalidArgument where their offsets do not ascend.

        `checksum`: that of the batches which these columns were made of, so that `verify_history` finds what was lost in between.
        """
        rows = columns.num_rows
        if rows == 0:
            return
        offsets = columns.column("offset").to_numpy()
        if offsets[0] < self._end_offset or not _ascend(offsets):
            raise InvalidArgument(f"offsets from {offsets[0]} to {offsets[-1]} do not ascend from {self._end_offset} on")
        self._end_offset = int(offsets[-1]) + 1
        self._checksum += checksum_of_columns(columns) if checksum is None else checksum
        self._record_count += rows
        ends = record_ends(columns)
        self._record_bytes += int(ends[-1])
        ends += ROW_BYTES * np.arange(rows + 1)
        start = 0
        while start < rows:
            room = self._settings.row_group_bytes - self._pending_bytes
            end = int(np.searchsorted(ends, ends[start] + room, "right")) - 1
            if end == start and not self._pending:
                end += 1  # larger than a row group is to be
            if end > start:
                self._pending.append(columns.slice(start, end - start))
                self._pending_bytes += int(ends[end] - ends[start])
                start = end
            if start < rows:
                self._end_row_group()

    def finish(self, name: str, *, base_offset: int | None = None, last_offset: int | None = None) -> WrittenFile:
        """Finishes the file. It represents all remaining records of [base_offset, last_offset], if these bounds exceed its records.

        Raises InvalidArgument without records.
        """
        self._end_row_group()
        if self._writer is None:
            raise InvalidArgument(f"{name} would hold no record")
        self._writer.close()
        body = self._sink.getvalue()
        view = memoryview(body)
        metadata = pq.read_metadata(pa.BufferReader(body))
        byte_ranges = [_byte_range(metadata, index) for index in range(metadata.num_row_groups)]
        groups = tuple(
            RowGroup(rows.base_offset, rows.last_offset, rows.record_count, start, end, rows.max_timestamp, crc32c(view[start:end]))
            for rows, (start, end) in zip(self._groups, byte_ranges, strict=True)
        )
        footer_start = body.size - _TAIL_BYTES - int.from_bytes(view[-_TAIL_BYTES:-4], "little")
        file = HistoryFile(
            name=name,
            base_offset=groups[0].base_offset if base_offset is None else Offset(base_offset),
            last_offset=groups[-1].last_offset if last_offset is None else Offset(last_offset),
            record_count=self._record_count,
            size_bytes=body.size,
            record_bytes=self._record_bytes,
            min_timestamp=min(rows.min_timestamp for rows in self._groups),
            max_timestamp=max(rows.max_timestamp for rows in self._groups),
            checksum=as_text(self._checksum),
            footer_start=footer_start,
            footer_crc32c=crc32c(view[footer_start:]),
            index_crc32c=crc32c(view[groups[-1].end : footer_start]),
            row_groups=groups,
        )
        return WrittenFile(body, file)

    def _end_row_group(self) -> None:
        if not self._pending:
            return
        parts = self._pending if len(self._pending) <= _PARTS_MAX else [pa.concat_batches(self._pending)]
        stored = pa.Table.from_batches([to_stored(part, topic=self._topic, partition=self._partition) for part in parts])
        if self._writer is None:
            self._writer = _open_writer(self._sink, stored, self._settings)
        self._writer.write_table(stored, row_group_size=stored.num_rows)
        self._groups.append(_rows_of(parts))
        self._pending, self._pending_bytes = [], 0


class _GroupRows(NamedTuple):
    base_offset: Offset
    last_offset: Offset
    record_count: int
    min_timestamp: int
    max_timestamp: int


def _rows_of(parts: Sequence[pa.RecordBatch]) -> _GroupRows:
    times = [timestamps_of(part) for part in parts]
    return _GroupRows(
        base_offset=Offset(parts[0].column("offset")[0].as_py()),
        last_offset=Offset(parts[-1].column("offset")[-1].as_py()),
        record_count=sum(part.num_rows for part in parts),
        min_timestamp=min(int(of_part.min()) for of_part in times),
        max_timestamp=max(int(of_part.max()) for of_part in times),
    )


def _ascend(offsets: Int64Array) -> bool:
    return bool((offsets[1:] > offsets[:-1]).all())


def _open_writer(sink: pa.NativeFile, first: pa.Table, settings: ParquetSettings) -> pq.ParquetWriter:
    """Opens a writer that stores keys by those of the first row group.

    Few different ones make a dictionary, which readers look up as well to skip a row group. Of many, it would be given up at 1 MiB;
    there a bloom filter serves for that. Where they are long, their least and greatest in the footer and in the page index are not
    worth their bytes.
    """
    keys = first.column("key")
    keyed = len(keys) - keys.null_count
    distinct = pc.count_distinct(keys).as_py()
    many = distinct >= _DISTINCT_KEYS_MIN and 2 * distinct > keyed
    short = keys.nbytes <= _INDEXED_KEY_BYTES_MAX * len(keys)
    dictionaries = ["topic", "partition", "timestampType", "headers.list.element.key", *([] if many else ["key"])]
    return pq.ParquetWriter(
        sink,
        WRITTEN_SCHEMA,
        compression="zstd",
        compression_level=settings.compression_level,
        use_dictionary=dictionaries,
        column_encoding={"offset": _DELTAS, "timestamp": _DELTAS},
        write_statistics=["topic", "partition", "offset", "timestamp", "timestampType", *(["key"] if short else [])],
        bloom_filter_options={"key": {"ndv": distinct, "fpp": _FALSE_POSITIVES}} if many else None,
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
        sorting_columns=[pq.SortingColumn(WRITTEN_SCHEMA.get_field_index("offset"))],
    )


def _byte_range(metadata: pq.FileMetaData, index: int) -> tuple[int, int]:
    """Returns the byte range of a row group, whose column chunks are adjacent."""
    group = metadata.row_group(index)
    chunks = [group.column(column) for column in range(group.num_columns)]
    starts = [chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset for chunk in chunks]
    return min(starts), max(start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True))


class ParquetFooter(NamedTuple):
    """Holds what is needed to read any row group of a file."""

    key: str
    file: HistoryFile
    metadata: pq.FileMetaData
    # Indexes of row groups, by the byte where they begin.
    group_indexes: dict[int, int]

    @property
    def memory_bytes(self) -> int:
        """Returns an estimate, as measured: some 8 KB for each row group."""
        return 10 * int(self.metadata.serialized_size)


def parse_parquet_footer(tail: Buffer, file: HistoryFile, key: str) -> ParquetFooter:
    """`tail`: the bytes of the object `key` from `file.footer_start` on. Corrupt where it is not the footer that was written."""
    footer_range = range(file.footer_start, file.size_bytes)
    if len(tail) != len(footer_range):
        raise _corrupt_footer(file, key, f"{len(tail)} of {len(footer_range)} bytes are there")
    if bytes(memoryview(tail)[-4:]) != _MAGIC:
        raise _corrupt_footer(file, key, "it does not end as a Parquet file does")
    if crc32c(tail) != file.footer_crc32c:
        raise _corrupt_footer(file, key, f"its CRC-32C is {crc32c(tail):08x}, the manifest says {file.footer_crc32c:08x}")
    try:
        metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail)))
        schema = metadata.schema.to_arrow_schema()
        byte_ranges = [_byte_range(metadata, index) for index in range(metadata.num_row_groups)]
        counts = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        raise _corrupt_footer(file, key, f"it is no Parquet footer: {error}") from None
    if not schema.equals(PARQUET_SCHEMA):
        raise _corrupt_footer(file, key, f"its columns are {', '.join(f'{field.name}: {field.type}' for field in schema)}")
    if counts != [group.record_count for group in file.row_groups]:
        held = f"{sum(counts)} records in {len(counts)} row groups"
        raise _corrupt_footer(file, key, f"it has {held}, the manifest {file.record_count} in {len(file.row_groups)}, or others")
    if byte_ranges != [(group.start, group.end) for group in file.row_groups]:
        raise _corrupt_footer(file, key, "its row groups lie elsewhere than the manifest says")
    return ParquetFooter(key, file, metadata, {group.start: index for index, group in enumerate(file.row_groups)})


def read_row_group(data: Buffer, group: RowGroup, footer: ParquetFooter, *, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Reads the records of a row group as columns of record_columns.SCHEMA, or as the named ones of them.

    `data`: the bytes [group.start, group.end) of the object. Raises Corrupt if they differ from what was written.
    """
    if len(data) != group.end - group.start:
        raise _corrupt_group(group, footer.key, f"{len(data)} of {group.end - group.start} bytes are there")
    if crc32c(data) != group.crc32c:
        raise _corrupt_group(group, footer.key, f"their CRC-32C is {crc32c(data):08x}, the manifest says {group.crc32c:08x}")
    source = pa.PythonFile(_ObjectRange(memoryview(data), group.start, footer.file.size_bytes), mode="r")
    try:
        parquet = pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=False)
        table = parquet.read_row_group(footer.group_indexes[group.start], columns=stored_names(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise _corrupt_group(group, footer.key, f"Parquet can't read it: {error}") from None
    records = from_stored(table, columns)
    if columns is None or "offset" in columns:
        _check_offsets(records, group, footer.key)
    return records


def _check_offsets(records: pa.RecordBatch, group: RowGroup, key: str) -> None:
    offsets = records.column("offset").to_numpy()
    if len(offsets) != group.record_count:
        raise _corrupt_group(group, key, f"{len(offsets)} records are there, the manifest says {group.record_count}")
    if (offsets[0], offsets[-1]) != (group.base_offset, group.last_offset) or not _ascend(offsets):
        raise _corrupt_group(group, key, f"offsets {offsets[0]} to {offsets[-1]} are there, or they do not ascend")


def read_columns(
    body: Buffer, file: HistoryFile, *, key: str = "", columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Reads the records of a whole file, one row group at a time, as columns of record_columns.SCHEMA, or as the named ones.

    Raises Corrupt.
    """
    view = memoryview(body).cast("B")
    key = key or file.name
    if len(view) != file.size_bytes:
        raise _corrupt_file(file, key, f"it has {len(view)} bytes, the manifest says {file.size_bytes}")
    footer = parse_parquet_footer(view[file.footer_start :], file, key)
    for group in file.row_groups:
        yield read_row_group(view[group.start : group.end], group, footer, columns=columns)


def verify_history(body: Buffer, file: HistoryFile, *, key: str = "") -> None:
    """Reads a file back to its last byte and record; Corrupt where it is not exactly what the manifest says, or is to say."""
    key = key or file.name
    checksum = record_bytes = 0
    earliest, latest = [], []
    for group, records in zip(file.row_groups, read_columns(body, file, key=key), strict=True):
        checksum += checksum_of_columns(records)
        record_bytes += int(record_ends(records)[-1])
        times = timestamps_of(records)
        earliest.append(int(times.min()))
        latest.append(int(times.max()))
        if latest[-1] != group.max_timestamp:
            raise _corrupt_group(group, key, f"the latest timestamp is {latest[-1]}, the manifest says {group.max_timestamp}")
    found = (as_text(checksum), record_bytes, min(earliest), max(latest))
    expected = (file.checksum, file.record_bytes, file.min_timestamp, file.max_timestamp)
    if found != expected:
        what = "checksum, bytes, earliest and latest timestamp"
        raise _corrupt_file(file, key, f"of its records, {what} are {found}, the manifest says {expected}")
    index = memoryview(body)[file.row_groups[-1].end : file.footer_start]
    if crc32c(index) != file.index_crc32c or bytes(memoryview(body)[: len(_MAGIC)]) != _MAGIC:
        raise _corrupt_file(file, key, "its page index or its bloom filters, which only Spark reads, are not as they were written")


def _corrupt_file(file: HistoryFile, key: str, why: str) -> Corrupt:
    return corrupt_range(key, range(file.base_offset, file.last_offset + 1), range(file.size_bytes), why)


def _corrupt_group(group: RowGroup, key: str, why: str) -> Corrupt:
    return corrupt_range(key, range(group.base_offset, group.last_offset + 1), range(group.start, group.end), why)


def _corrupt_footer(file: HistoryFile, key: str, why: str) -> Corrupt:
    return corrupt_range(
        key, range(file.base_offset, file.last_offset + 1), range(file.footer_start, file.size_bytes), f"the footer: {why}"
    )


class _ObjectRange(io.RawIOBase):
    """An object of which only bytes from `start` on are at hand."""

    def __init__(self, data: memoryview, start: int, size: int) -> None:
        super().__init__()
        self._data = data
        self._start = start
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Returns a view, which Arrow takes as it is."""
        start = self._at - self._start
        if start < 0 or size < 0 or start + size > len(self._data):
            raise OSError(f"bytes [{self._at}, {self._at + size}) were not read")
        self._at += size
        return self._data[start : start + size]
