from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.produce_wire import AppendRequest, ProduceCall, _parse_ready_batches, _parse_with_protobuf, parse_produce
from gateway.proto import log_pb2
from metadata.errors import InvalidArgument
from segments.log import Acks

appends = st.builds(
    log_pb2.Append,
    topic=st.text(max_size=20),
    partition=st.none() | st.integers(-(2**31), 2**31 - 1),
    record_batch=st.none() | st.binary(max_size=300),
    expected_offset=st.none() | st.integers(-(2**63), 2**63 - 1),
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


def told(message: bytes, parse: Callable[[bytes], ProduceCall]) -> object:
    """What the parser makes of the message, in a form that can be compared, or why it refuses it."""
    try:
        call = parse(message)
    except InvalidArgument as error:
        return error.message
    appends = [
        (topic, partition, batch, None if records is None else records.SerializeToString(), expected_offset)
        for topic, partition, batch, records, expected_offset in call.appends
    ]
    return call.correlation_id, call.acks, call.timeout_ms, appends


@given(requests)
def test_both_ways_read_the_same_request(request: log_pb2.ProduceRequest) -> None:
    message = request.SerializeToString()
    assert told(message, parse_produce) == told(message, _parse_with_protobuf)


@given(requests, st.data())
def test_both_ways_agree_on_a_message_that_was_damaged(request: log_pb2.ProduceRequest, data: st.DataObject) -> None:
    message = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if message:
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)))
    for damaged in (bytes(message), bytes(message[:cut])):
        assert told(damaged, parse_produce) == told(damaged, _parse_with_protobuf)


@given(st.binary(max_size=60))
@example(b"\x22\x02\x1a\x05")  # a batch that claims more than there is
@example(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")  # the largest correlation id
@example(b"\x10\x81\x80\x80\x80\x10")  # acks beyond 32 bits
@example(b"\x22\x04\x0a\x02\xff\xfe")  # a topic that is not UTF-8
def test_both_ways_agree_on_any_bytes(message: bytes) -> None:
    assert told(message, parse_produce) == told(message, _parse_with_protobuf)


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


@given(st.lists(appends, max_size=4))
def test_ready_batches_are_read_by_hand(found: list[log_pb2.Append]) -> None:
    """Else the comparison above would compare protobuf with itself."""
    usual = [append for append in found if append.partition >= 0 and append.expected_offset >= 0]
    message = log_pb2.ProduceRequest(correlation_id=7, appends=usual).SerializeToString()
    assert len(_parse_ready_batches(memoryview(message)).appends) == len(usual)


def test_acks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="acks 9"):
        parse_produce(b"\x10\x09")
