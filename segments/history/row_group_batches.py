"""Records of history as record batches again, as a consumer is served them. Pure.

    records   0  1  2 · · 5  6 · · ·│· 10 11 │ 12 …      · has no record any more: key compaction has removed it
    batches   [ 0  to  4 ][ 5 to 8  ]│ [10 11 ][ 12 …    batches of at most `batch_bytes_max`, not compressed
              epoch 4                │ epoch 5, which begins at offset 9

A batch has one leader epoch, one type of timestamps, and with log append time one timestamp: where these change, the next begins.
A batch covers the gap behind its records by its `last_offset_delta`, as Kafka's log cleaner leaves it. A Kafka client reads on at
the last offset of a batch + 1, so it would not pass a gap at the end of the log otherwise. The cover ends with the batch's leader
epoch: a client that stands further would take the end of that epoch (KIP-320) for a truncation of the log.

Invariants: the records are those of the columns, each once. The batches do not overlap, and no offset that a batch covers will ever
hold another record. Producers' ids and sequences are gone: the log remembers them elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metadata.model import Offset
from segments.history.manifest import EpochStart
from segments.records.batch import BATCH_OVERHEAD_BYTES, NO_LEADER_EPOCH, OFFSETS_PER_BATCH_MAX
from segments.records.columns import ColumnsEncoder, Int64Array, record_ends, timestamps_of, value_offsets

BATCH_BYTES_MAX = 1 << 20
_RECORD_OVERHEAD_BYTES = 36
# What a record and a header take in a batch beside keys and values, at most: varints of their lengths, times and offsets.
_HEADER_OVERHEAD_BYTES = 10
_LOG_APPEND_TIME = 1


class HistoryBatch(NamedTuple):
    """Holds a record batch that was encoded from rows of a row group.

    `last_offset` is that of its last record; `end_offset` lies behind the gap that the batch covers.
    """

    base_offset: Offset
    last_offset: Offset
    end_offset: Offset
    body: bytes


def encode_row_group(
    columns: pa.RecordBatch, *, end_offset: int, epochs: Sequence[EpochStart], batch_bytes_max: int = BATCH_BYTES_MAX
) -> list[HistoryBatch]:
    """Encodes the records in their order; a record that is larger than `batch_bytes_max` has a batch for itself.

    `end_offset`: up to which there are no records behind the last one.
    """
    rows = columns.num_rows
    if rows == 0:
        return []
    offsets: Int64Array = columns.column("offset").to_numpy()
    times = timestamps_of(columns)
    types = columns.column("timestamp_type").to_numpy()
    ends = record_ends(columns) + _RECORD_OVERHEAD_BYTES * np.arange(rows + 1)
    ends += _HEADER_OVERHEAD_BYTES * value_offsets(columns.column("headers"))
    starts = np.array([each.start_offset for each in epochs], np.int64)
    encoder = ColumnsEncoder(columns)
    batches = []
    start = 0
    for border in _borders(offsets, times, types, starts):
        while start < border:
            base = int(offsets[start])
            end = int(ends.searchsorted(ends[start] + batch_bytes_max - BATCH_OVERHEAD_BYTES, "right")) - 1
            end = min(max(end, start + 1), border)
            if offsets[end - 1] - base >= OFFSETS_PER_BATCH_MAX:
                end = int(offsets.searchsorted(base + OFFSETS_PER_BATCH_MAX))
            epoch = int(starts.searchsorted(base, "right")) - 1
            covered_to = min(int(offsets[end]) if end < rows else end_offset, base + OFFSETS_PER_BATCH_MAX)
            if epoch + 1 < len(epochs):
                covered_to = min(covered_to, epochs[epoch + 1].start_offset)
            body = encoder.encode(
                start,
                end,
                end_offset=covered_to,
                leader_epoch=epochs[epoch].leader_epoch if epoch >= 0 else NO_LEADER_EPOCH,
                log_append_time=bool(types[start] == _LOG_APPEND_TIME),
            )
            batches.append(HistoryBatch(Offset(base), Offset(int(offsets[end - 1])), Offset(covered_to), body))
            start = end
    return batches


def _borders(offsets: Int64Array, times: Int64Array, types: npt.NDArray[np.int32], epoch_starts: Int64Array) -> list[int]:
    """Returns the rows before which a batch must end, in order, and the number of rows."""
    changes = types[1:] != types[:-1]
    changes |= (types[1:] == _LOG_APPEND_TIME) & (times[1:] != times[:-1])
    borders = np.concatenate([np.flatnonzero(changes) + 1, np.searchsorted(offsets, epoch_starts), [len(offsets)]])
    return [int(border) for border in np.unique(borders)]
