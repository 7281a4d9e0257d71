from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.grpc.produce.request_decoder import (
    APPENDS_MAX,
    UNUSUAL_BYTES_MAX,
    AppendRequest,
    ProduceRequestView,
    _parse_by_hand,
    _parse_with_protobuf,
    parse_produce,
)
from gateway.proto import log_pb2
from metadata.errors import InvalidArgument, TooLarge
from segments.log.session_log import Acks
from tests.kit.gateway.wire_fields import wire_fields

appends = st.builds(
    log_pb2.Append,
    topic=st.text(max_size=20),
    partition=st.none() | st.integers(-(2**31), 2**31 - 1),
    record_batch=st.none() | st.binary(max_size=300),
    expected_offset=st.none() | st.integers(-(2**63), 2**63 - 1),
    topic_id=st.text(max_size=40),
    key_id=st.text(max_size=20),
    topic_revision=st.integers(-(2**63), 2**63 - 1),
    continues=st.booleans(),
)
structured_appends = st.builds(
    log_pb2.Append,
    topic=st.text(max_size=20),
    records=st.builds(
        log_pb2.RecordList, records=st.lists(st.builds(log_pb2.Record, key=st.none() | st.binary(max_size=9)), max_size=3)
    ),
)
requests = st.builds(
    log_pb2.ProduceRequest,
    correlation_id=st.integers(0, 2**64 - 1),
    acks=st.sampled_from([0, 1, 2, 3]),
    timeout_ms=st.integers(0, 2**32 - 1),
    appends=st.lists(appends | structured_appends, max_size=4),
)


def reported(message: bytes, parse: Callable[[bytes], ProduceRequestView]) -> object:
    """What the parser makes of the message, in a form that can be compared.

    Read by hand, records are still bytes: their decoder refuses what protobuf refuses with the whole message.
    """
    try:
        call = parse(message)
        appends = [
            (topic, partition, batch, None if records is None else known(records), *others)
            for topic, partition, batch, records, *others in call.appends
        ]
    except (InvalidArgument, DecodeError):
        return "refused"
    return call.correlation_id, call.acks, call.timeout_ms, appends


def known(records: memoryview) -> bytes:
    """The records without fields of newer clients, which a parser may keep or not."""
    read = log_pb2.RecordList.FromString(bytes(records))
    read.DiscardUnknownFields()
    return read.SerializeToString()


@settings(deadline=None)
@given(requests)
def test_both_ways_read_the_same_request(request: log_pb2.ProduceRequest) -> None:
    message = request.SerializeToString()
    assert reported(message, parse_produce) == reported(message, _parse_with_protobuf)


@settings(deadline=None)
@given(requests, st.data())
def test_both_ways_agree_on_a_message_that_was_damaged(request: log_pb2.ProduceRequest, data: st.DataObject) -> None:
    message = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if message:
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)))
    for damaged in (bytes(message), bytes(message[:cut])):
        assert reported(damaged, parse_produce) == reported(damaged, _parse_with_protobuf)


@settings(deadline=None)
@given(wire_fields)
def test_both_ways_agree_on_any_fields(message: bytes) -> None:
    assert reported(message, parse_produce) == reported(message, _parse_with_protobuf)


@settings(deadline=None)
@given(st.binary(max_size=60))
@example(b"\x22\x02\x1a\x05")  # a batch that claims more than there is
@example(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")  # the largest correlation id
@example(b"\x10\x81\x80\x80\x80\x10")  # acks beyond 32 bits
@example(b"\x22\x04\x0a\x02\xff\xfe")  # a topic that is not UTF-8
def test_both_ways_agree_on_any_bytes(message: bytes) -> None:
    assert reported(message, parse_produce) == reported(message, _parse_with_protobuf)


def test_a_ready_batch_is_a_view_of_the_message_and_not_a_copy() -> None:
    message = log_pb2.ProduceRequest(
        correlation_id=300,
        acks=log_pb2.ACKS_LEADER,
        appends=[log_pb2.Append(topic="orders", partition=3, record_batch=b"x" * 70_000)],
    ).SerializeToString()
    call = parse_produce(message)
    batch = call.appends[0].record_batch
    assert (call.correlation_id, call.acks, call.timeout_ms) == (300, Acks.LEADER, 0)
    assert call.appends == [AppendRequest("orders", 3, batch, None, None)]
    assert isinstance(batch, memoryview)
    assert batch.obj is message


@settings(deadline=None)
@given(requests)
def test_requests_that_encoders_write_are_read_by_hand(request: log_pb2.ProduceRequest) -> None:
    """Else the comparison above would compare protobuf with itself."""
    message = request.SerializeToString()
    assert len(_parse_by_hand(memoryview(message)).appends) == len(request.appends)


@pytest.mark.parametrize(
    "field",
    [
        b"\x78\xff\x01",
        b"\x79" + bytes(8),
        b"\x7a\x03abc",
        b"\x7d" + bytes(4),
        b"\x82\x01\x01x",
        b"\x98\x01\x07",
        b"\x09" + bytes(8),
    ],
    ids=["varint", "fixed64", "bytes", "fixed32", "field 16", "field 19, varint", "a known field in another form"],
)
def test_fields_of_a_newer_client_are_skipped_by_hand(field: bytes) -> None:
    append = log_pb2.Append(topic="orders", partition=3, record_batch=b"batch").SerializeToString() + field
    message = field + b"\x22" + bytes([len(append)]) + append + field
    assert [(topic, partition) for topic, partition, *_ in _parse_by_hand(memoryview(message)).appends] == [("orders", 3)]
    assert reported(message, parse_produce) == reported(message, _parse_with_protobuf)


def test_a_payload_that_is_given_twice_is_what_protobuf_makes_of_it() -> None:
    batch, records = log_pb2.Append(record_batch=b"batch"), log_pb2.Append(records=log_pb2.RecordList(records=[log_pb2.Record()]))
    for first, second in ((batch, batch), (batch, records), (records, batch), (records, records)):
        append = first.SerializeToString() + second.SerializeToString()
        message = b"\x22" + bytes([len(append)]) + append
        (read,) = parse_produce(message).appends
        assert (read.record_batch is not None, read.records is not None) == (second is batch, second is records)
        assert reported(message, parse_produce) == reported(message, _parse_with_protobuf)


def test_a_message_that_only_protobuf_can_read_must_be_short() -> None:
    """It would make hundreds of megabytes of objects of it."""
    group = b"\x7b\x7c"
    assert parse_produce(group).appends == []
    with pytest.raises(InvalidArgument, match="is not a ProduceRequest, or is no usual one"):
        parse_produce(group + b"\x22\x00" * (UNUSUAL_BYTES_MAX // 2))


@pytest.mark.parametrize("unusual", [b"", b"\x7b\x7c"], ids=["by hand", "with protobuf"])
def test_more_appends_than_are_taken_are_refused(unusual: bytes) -> None:
    assert len(parse_produce(b"\x22\x00" * APPENDS_MAX + unusual).appends) == APPENDS_MAX
    with pytest.raises(TooLarge, match="more than 10000 appends"):
        parse_produce(b"\x22\x00" * (APPENDS_MAX + 1) + unusual)


def test_acks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="acks 9"):
        parse_produce(b"\x10\x09")
