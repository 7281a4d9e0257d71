"""Records for property tests, and Kafka's own codec (aiokafka's, in Python) to compare with."""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy, _DefaultRecordBatchPy
from hypothesis import strategies as st

from segments.records.batch_kernel import NewRecordTuple, RecordTuple

TIMESTAMP_MS = 1_700_000_000_000

_bytes = st.one_of(st.binary(max_size=20), st.binary(min_size=60, max_size=200))
_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
_timestamps = st.one_of(
    st.integers(TIMESTAMP_MS - 10_000, TIMESTAMP_MS + 10_000),
    st.sampled_from([0, 1, 63, 64, 2**31, 2**40, 2**63 - 2]),
)

# (key, value, headers, timestamp_ms)
new_records: st.SearchStrategy[NewRecordTuple] = st.tuples(st.none() | _bytes, st.none() | _bytes, _headers, _timestamps)

record_lists = st.lists(new_records, min_size=1, max_size=12)


def as_read(records: Sequence[NewRecordTuple], base_offset: int = 0) -> list[RecordTuple]:
    """What `iterate_records` gives for them."""
    return [(base_offset + row, time, key, value, tuple(headers)) for row, (key, value, headers, time) in enumerate(records)]


def aiokafka_batch(records: Sequence[NewRecordTuple], *, compression_type: int = 0) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(
        magic=2,
        compression_type=compression_type,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for row, (key, value, headers, timestamp_ms) in enumerate(records):
        assert builder.append(row, timestamp_ms, key, value, list(headers)) is not None
    return bytes(builder.build())


def aiokafka_records(batch: bytes) -> list[RecordTuple]:
    reader = _DefaultRecordBatchPy(batch)
    assert reader.validate_crc()
    return [(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in reader]
