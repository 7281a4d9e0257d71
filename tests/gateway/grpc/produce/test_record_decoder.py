"""Records are read by hand as protobuf reads them, and nothing is made of those that are too many or too large."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.grpc.produce.record_decoder import (
    THREAD_BYTES,
    THREAD_RECORDS,
    RecordLimits,
    StructuredRecords,
    _decode_by_hand,
    _decode_with_protobuf,
    decode_record,
    decode_records,
    tags_at_most,
    takes_long,
)
from gateway.proto import log_pb2
from gateway.records.partitioning import HEADERS_MAX
from metadata.errors import InvalidArgument, TidelogError, TooLarge
from tests.kit.gateway.wire_fields import wire_fields

NOW_MS = 1_750_000_000_000
HEADERS = 3
LIMITS = RecordLimits(record_bytes_max=1000, headers_max=HEADERS)

records = st.builds(
    log_pb2.Record,
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(
        st.builds(log_pb2.Header, key=st.text(max_size=5), value=st.none() | st.binary(max_size=200)), max_size=HEADERS + 1
    ),
    timestamp_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
    partition=st.none() | st.integers(-(2**31), 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
)


def decode(
    *sent: log_pb2.Record | bytes, partition: int | None = None, limits: RecordLimits = LIMITS, behind: bytes = b""
) -> StructuredRecords:
    encoded = [record if isinstance(record, bytes) else record.SerializeToString() for record in sent]
    return decode_list(b"".join(b"\n" + length(record) + record for record in encoded) + behind, partition, limits)


def decode_list(record_list: bytes, partition: int | None = None, limits: RecordLimits = LIMITS) -> StructuredRecords:
    view = memoryview(record_list)
    return decode_records(view, partition=partition, now_ms=NOW_MS, limits=limits, field="appends[7].records")


def length(content: bytes) -> bytes:
    return bytes([len(content) & 0x7F | 0x80, len(content) >> 7])


def reported(record: bytes, by_hand: bool) -> object:
    """A record in a form that can be compared. Read by hand, too many headers are refused before what is torn behind them."""
    try:
        if by_hand:
            return decode_record(record, now_ms=NOW_MS, headers_max=HEADERS)
        return _decode_with_protobuf(record, NOW_MS, HEADERS)
    except TidelogError:
        return "refused"


# ── both ways ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None)
@given(records)
def test_both_ways_read_the_same_record(record: log_pb2.Record) -> None:
    assert reported(record.SerializeToString(), by_hand=True) == reported(record.SerializeToString(), by_hand=False)


@settings(deadline=None)
@given(records, st.data())
def test_both_ways_agree_on_a_record_that_was_damaged(record: log_pb2.Record, data: st.DataObject) -> None:
    damaged = bytearray(record.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    torn = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for message in (bytes(damaged), torn):
        assert reported(message, by_hand=True) == reported(message, by_hand=False)


@settings(deadline=None)
@given(wire_fields)
def test_both_ways_agree_on_any_fields(record: bytes) -> None:
    assert reported(record, by_hand=True) == reported(record, by_hand=False)


@settings(deadline=None)
@given(records.filter(lambda record: len(record.headers) <= HEADERS))
def test_records_that_encoders_write_are_read_by_hand(record: log_pb2.Record) -> None:
    """Else the comparison above would compare protobuf with itself."""
    _decode_by_hand(record.SerializeToString(), NOW_MS, HEADERS)


# ── what is decoded ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nulls_and_empty_bytes_stay_apart_and_the_clock_stamps_what_has_no_timestamp() -> None:
    header = [log_pb2.Header(key="a", value=b""), log_pb2.Header(key="a"), log_pb2.Header()]
    decoded = decode(log_pb2.Record(), log_pb2.Record(key=b"", value=b"", headers=header, timestamp_ms=0))
    assert decoded.records == [(None, None, [], NOW_MS), (b"", b"", [("a", b""), ("a", None), ("", None)], 0)]


def test_a_record_asks_for_its_own_partition_or_for_that_of_its_append() -> None:
    own = log_pb2.Record(partition=4)
    assert decode(own, log_pb2.Record()).own_partitions == [4, None]
    assert decode(own, log_pb2.Record(), partition=4).own_partitions == [4, 4]
    with pytest.raises(InvalidArgument, match=r"appends\[7\].records\[1\]: it asks for partition 4, its append for 5"):
        decode(log_pb2.Record(), own, partition=5)


def test_fields_of_a_newer_client_are_skipped() -> None:
    known = log_pb2.Record(key=b"k").SerializeToString()
    assert decode(known, known + b"\x7a\x03abc", behind=b"\x78\x05").records == [(b"k", None, [], NOW_MS)] * 2


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("record", "kind", "said"),
    [
        (b"\x0a\x05ab", InvalidArgument, r"records\[1\]: it is not a Record"),
        (b"\x1a\x03\x0a\x01\xff", InvalidArgument, r"records\[1\]: it is not a Record"),
        (log_pb2.Record(headers=[log_pb2.Header()] * 4), TooLarge, r"records\[1\]: it has more than 3 headers"),
        (log_pb2.Record(headers=[log_pb2.Header()] * 4).SerializeToString() + b"\x78\x01", TooLarge, "more than 3 headers"),
        (log_pb2.Record(value=b"x" * 1100), TooLarge, r"records\[1\]: it takes 1103 bytes; the topic takes 1000"),
    ],
    ids=["torn", "a header that is no UTF-8", "headers", "headers, read by protobuf", "too large"],
)
def test_the_record_that_can_not_be_taken_is_named(record: Any, kind: type[TidelogError], said: str) -> None:
    with pytest.raises(kind, match=said) as refused:
        decode(log_pb2.Record(), record, log_pb2.Record())
    assert refused.value.details["field"] == "appends[7].records[1]"


@pytest.mark.parametrize("damage", [b"\x0a", b"\x0a\x05ab", b"\x03", b"\x09\x01", b"\x0a\x81\x80\x80\x80\x80\x00x"])
def test_a_list_of_records_that_is_damaged_behind_one_is_refused(damage: bytes) -> None:
    with pytest.raises(InvalidArgument, match="is not a RecordList, behind its record 1"):
        decode(log_pb2.Record(), behind=damage)


def test_an_append_without_records_is_refused() -> None:
    for nothing in (b"", b"\x78\x05"):
        with pytest.raises(InvalidArgument, match=r"appends\[7\].records is empty"):
            decode_list(nothing)


def test_one_record_more_than_a_message_may_have_is_refused() -> None:
    two_left = LIMITS._replace(records_left=2)
    assert len(decode(log_pb2.Record(), log_pb2.Record(), limits=two_left).records) == 2
    with pytest.raises(TooLarge, match=r"records\[2\]: it is one too many: a message has at most 200000 records"):
        decode(*[log_pb2.Record()] * 3, limits=two_left)


def test_more_headers_than_an_append_may_have_are_refused() -> None:
    many = log_pb2.Record(headers=[log_pb2.Header()] * 1000)
    limits = RecordLimits(record_bytes_max=1 << 20, headers_max=1000)
    full = HEADERS_MAX // 1000
    assert len(decode(*[many] * full, limits=limits).records) == full
    with pytest.raises(TooLarge, match="its headers are too many"):
        decode(*[many] * full, log_pb2.Record(headers=[log_pb2.Header()]), limits=limits)


@pytest.mark.parametrize(
    "record_list",
    [b"\n\0" * (512 << 10), b"\n\x80\x80\x40" + b"\x1a\0" * (512 << 10)],
    ids=["empty records", "a record of empty headers"],
)
def test_a_record_list_that_is_refused_took_no_multiple_of_its_bytes(record_list: bytes) -> None:
    """protobuf makes a hundred bytes of two."""
    limits = RecordLimits(record_bytes_max=1 << 20, headers_max=1000, records_left=10_000)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decode_list(record_list, limits=limits)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 6 << 20


# ── what takes long ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("record", "count", "long"),
    [
        (log_pb2.Record(), THREAD_RECORDS, False),
        (log_pb2.Record(), THREAD_RECORDS + 1, True),
        (log_pb2.Record(headers=[log_pb2.Header()] * 3), THREAD_RECORDS // 4, False),
        (log_pb2.Record(headers=[log_pb2.Header()] * 3), THREAD_RECORDS // 4 + 1, True),
        (log_pb2.Record(value=b"x" * (THREAD_BYTES - 8)), 1, False),
        (log_pb2.Record(value=b"x" * THREAD_BYTES), 1, True),
    ],
)
def test_records_take_long_by_their_number_or_by_their_bytes(record: log_pb2.Record, count: int, long: bool) -> None:
    assert takes_long(memoryview(log_pb2.RecordList(records=[record] * count).SerializeToString())) is long


@given(st.lists(records, max_size=30))
def test_records_are_never_counted_too_few(sent: list[log_pb2.Record]) -> None:
    wire = log_pb2.RecordList(records=sent).SerializeToString()
    assert tags_at_most(wire) >= sum(1 + len(record.headers) for record in sent)
