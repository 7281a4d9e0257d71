"""Histories of a partition for property tests: batches of any kind as a log stores them, and the records that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from metadata.model import LeaderEpoch, Offset
from segments.history.manifest import EpochStart
from segments.records.batch import BATCH_OVERHEAD_BYTES, assemble, parse_header, with_log_append_time
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import HEADERS_TYPE, SCHEMA, encode_batch, iterate_records
from segments.records.compression import Codec
from tests.kit.segments.record_strategies import TIMESTAMP_MS, new_records

BOUND = 1 << 24
_records = st.lists(new_records, min_size=1, max_size=5)
# offset, timestamp_ms, timestamp type, key, value, headers
Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class History(NamedTuple):
    batches: list[bytes]
    epochs: list[EpochStart]

    @property
    def rows(self) -> list[Row]:
        return rows_of_batches(self.batches)


def rows_of_batches(batches: Sequence[bytes]) -> list[Row]:
    return [
        (offset, time, int(parse_header(batch).log_append_time), key, value, headers)
        for batch in batches
        for offset, time, key, value, headers in iterate_records(batch, decompressed_bytes_max=BOUND)
    ]


def rows_of_columns(columns: pa.RecordBatch) -> list[Row]:
    times = columns.column("timestamp").cast(pa.int64()).to_pylist()
    headers = [tuple((pair["key"], pair["value"]) for pair in pairs) for pairs in columns.column("headers").to_pylist()]
    others = [columns.column(name).to_pylist() for name in ("timestamp_type", "key", "value")]
    return list(zip(columns.column("offset").to_pylist(), times, *others, headers, strict=True))


def columns_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """The same rows as columns of record_columns.SCHEMA."""
    offsets, times, types, keys, values, headers = zip(*rows, strict=True)
    lists = [[{"key": key, "value": value} for key, value in pairs] for pairs in headers]
    arrays = [
        pa.array(offsets, pa.int64()),
        pa.array(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
        pa.array(types, pa.int32()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(lists, HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def batch_of(
    records: Sequence[NewRecordTuple], *, base_offset: int, codec: Codec = Codec.NONE, gaps: Sequence[int] = (), epoch: int = 0
) -> bytes:
    """`gaps`: how many offsets are missing before each record, as key compaction leaves them."""
    keys, values, headers, times = zip(*records, strict=True)
    lists = [[{"key": key, "value": value} for key, value in pairs] for pairs in headers]
    missing = np.zeros(len(records), np.int64)
    missing[: len(gaps)] = gaps[: len(records)]
    return encode_batch(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        headers=pa.array(lists, HEADERS_TYPE),
        timestamps_ms=np.array(times, np.int64),
        offset_deltas=np.arange(len(records)) + np.cumsum(missing),
        base_offset=base_offset,
        codec=codec,
        leader_epoch=epoch,
    )


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Several producers, codecs, leaders and types of timestamps; offsets that are missing; timestamps out of order, -1 and far."""
    batches: list[bytes] = []
    epochs: list[EpochStart] = []
    offset, epoch = draw(st.sampled_from([0, 7, 2**40])), 0
    for records in draw(st.lists(_records, min_size=1, max_size=5)):
        offset += draw(st.sampled_from([0, 0, 0, 1, 1000, 2**31]))
        epoch += draw(st.sampled_from([0, 0, 1, 3]))
        untimed = draw(st.booleans())
        shown = [(key, value, headers, -1) for key, value, headers, _ in records] if untimed else records
        gaps = draw(st.lists(st.sampled_from([0, 0, 5]), max_size=len(records)))
        batch = batch_of(shown, base_offset=offset, codec=draw(st.sampled_from(Codec)), gaps=gaps, epoch=epoch)
        if draw(st.integers(0, 3)) == 0:
            batch = with_log_append_time(batch, TIMESTAMP_MS + draw(st.integers(-5, 5)))
        batch = _produced(batch, draw(st.sampled_from([-1, 1, 2, 3, 4, 5])))
        if not epochs or epochs[-1].leader_epoch != epoch:
            epochs.append(EpochStart(LeaderEpoch(epoch), Offset(offset)))
        batches.append(batch)
        offset = parse_header(batch).last_offset + 1
    return History(batches, epochs)


def _produced(batch: bytes, producer_id: int) -> bytes:
    header = parse_header(batch)
    if producer_id < 0:
        return batch
    owned = msgspec.structs.replace(header, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    return assemble(owned, memoryview(batch)[BATCH_OVERHEAD_BYTES:])
