"""Records of history as record batches again, as a consumer is served them. Pure.

    columns   0  1  2 │ 3  4 │ 7  8  9 │ 10 …         batches of at most `batch_bytes_max`, not compressed; between them offsets may
              epoch 4 │ epoch 5, log append time      be missing, and within them too: their offset deltas tell

A batch has one leader epoch, one type of timestamps, and with log append time one timestamp: where these change, the next begins.
Invariant: the records are those of the columns, each once. Producers' ids and sequences are gone: the log remembers them elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metadata.model import Offset
from segments.history.manifest import EpochStart
from segments.records.batch import BATCH_OVERHEAD_BYTES, NO_LEADER_EPOCH
from segments.records.columns import ColumnsEncoder, Int64Array, record_ends, timestamps_of, value_offsets

BATCH_BYTES_MAX = 1 << 20
_RECORD_OVERHEAD_BYTES = 36
# What a record and a header take in a batch beside keys and values, at most: varints of their lengths, times and offsets.
_HEADER_OVERHEAD_BYTES = 10
_OFFSET_DELTA_MAX = 2**31 - 1
_LOG_APPEND_TIME = 1


class HistoryBatch(NamedTuple):
    base_offset: Offset
    last_offset: Offset
    body: bytes


def encode_row_group(
    columns: pa.RecordBatch, *, epochs: Sequence[EpochStart], batch_bytes_max: int = BATCH_BYTES_MAX
) -> list[HistoryBatch]:
    """Batches of the records, in their order; a record that is larger than `batch_bytes_max` has one for itself."""
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
            if offsets[end - 1] - base > _OFFSET_DELTA_MAX:
                end = int(offsets.searchsorted(base + _OFFSET_DELTA_MAX, "right"))
            epoch = int(starts.searchsorted(base, "right")) - 1
            body = encoder.encode(
                start,
                end,
                leader_epoch=epochs[epoch].leader_epoch if epoch >= 0 else NO_LEADER_EPOCH,
                log_append_time=bool(types[start] == _LOG_APPEND_TIME),
            )
            batches.append(HistoryBatch(Offset(base), Offset(int(offsets[end - 1])), body))
            start = end
    return batches


def _borders(offsets: Int64Array, times: Int64Array, types: npt.NDArray[np.int32], epoch_starts: Int64Array) -> list[int]:
    """Rows before which a batch must end, in order, and the number of rows."""
    changes = types[1:] != types[:-1]
    changes |= (types[1:] == _LOG_APPEND_TIME) & (times[1:] != times[:-1])
    borders = np.concatenate([np.flatnonzero(changes) + 1, np.searchsorted(offsets, epoch_starts), [len(offsets)]])
    return [int(border) for border in np.unique(borders)]
