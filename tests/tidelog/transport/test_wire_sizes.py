"""What is encoded is never longer than was said before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proto import log_pb2
from metadata.model import check_topic_name
from segments.records.batch import BATCH_OVERHEAD_BYTES
from segments.records.columns import encode_records
from segments.records.compression import Codec
from tidelog.producer.batch import RecordTuple
from tidelog.producer.producer import TIMESTAMP_MS_MAX
from tidelog.transport.wire_sizes import (
    LONE_BATCH_OVERHEAD_BYTES,
    REQUEST_OVERHEAD_BYTES,
    TOPIC_NAME_BYTES_MAX,
    append_bytes,
    record_bytes,
)

BYTES = st.none() | st.binary(max_size=40) | st.integers(0, 20_000).map(bytes)
NAMES = st.text(st.characters(codec="utf-8"), max_size=10)
HEADERS = st.lists(st.tuples(NAMES, BYTES), max_size=5).map(tuple)
TIMESTAMPS = st.sampled_from([0, 1, 1_700_000_000_000, TIMESTAMP_MS_MAX]) | st.integers(0, TIMESTAMP_MS_MAX)
RECORDS = st.tuples(BYTES, BYTES, HEADERS, TIMESTAMPS)


@given(st.lists(RECORDS, min_size=1, max_size=30), st.sampled_from(Codec))
@settings(deadline=None)
def test_a_batch_takes_no_more_than_its_records_and_its_header(records: list[RecordTuple], codec: Codec) -> None:
    said = BATCH_OVERHEAD_BYTES + sum(record_bytes(key, value, headers) for key, value, headers, _ in records)
    assert len(encode_records(records, codec=codec)) <= said


@pytest.mark.slow
def test_neither_do_the_largest_lengths_and_the_farthest_timestamps() -> None:
    large = bytes(40 << 20)
    records: list[RecordTuple] = [
        (large, large, (("x" * (1 << 20), large),), 0),
        (None, None, tuple(("", None) for _ in range(100_000)), TIMESTAMP_MS_MAX),
    ]
    said = BATCH_OVERHEAD_BYTES + sum(record_bytes(key, value, headers) for key, value, headers, _ in records)
    assert len(encode_records(records)) <= said


@given(
    st.lists(
        st.tuples(st.text("abc.-_", min_size=1, max_size=TOPIC_NAME_BYTES_MAX), st.integers(0, 2**31 - 1), st.binary()), max_size=5
    ),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)
def test_a_request_takes_no_more_than_its_appends(
    appends: list[tuple[str, int, bytes]], correlation_id: int, timeout_ms: int
) -> None:
    request = log_pb2.ProduceRequest(
        correlation_id=correlation_id,
        acks=log_pb2.ACKS_NONE,
        timeout_ms=timeout_ms,
        appends=[log_pb2.Append(topic=topic, partition=partition, record_batch=batch) for topic, partition, batch in appends],
    )
    assert request.ByteSize() <= REQUEST_OVERHEAD_BYTES + sum(append_bytes(topic, len(batch)) for topic, _, batch in appends)


def test_nor_does_an_append_of_two_gigabytes() -> None:
    lengths = [5, 5]  # varints of the lengths of the append and of its batch
    assert append_bytes("t", 0) >= sum(lengths) + 1 + 1 + (1 + 2 + 1) + (1 + 5)


def test_the_longest_name_of_a_topic_is_counted_for_a_lone_batch() -> None:
    name = "x" * TOPIC_NAME_BYTES_MAX
    check_topic_name(name)
    assert REQUEST_OVERHEAD_BYTES + append_bytes(name, 0) == LONE_BATCH_OVERHEAD_BYTES
