from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.fetch_wire import encode_fetch_response
from gateway.proto import log_pb2

partitions = st.builds(
    log_pb2.FetchedPartition,
    topic=st.text(max_size=20),
    partition=st.integers(0, 2**31 - 1),
    high_watermark=st.integers(0, 2**63 - 1),
    log_start_offset=st.integers(0, 2**63 - 1),
    next_offset=st.integers(0, 2**63 - 1),
)


@given(st.lists(st.tuples(partitions, st.lists(st.binary(max_size=400), max_size=4)), max_size=5))
def test_protobuf_reads_what_it_would_have_written(answers: list[tuple[log_pb2.FetchedPartition, list[bytes]]]) -> None:
    message = encode_fetch_response([(partition, batches, sum(map(len, batches))) for partition, batches in answers])
    expected = log_pb2.FetchResponse()
    for partition, batches in answers:
        told = expected.partitions.add()
        told.CopyFrom(partition)
        told.record_batches = b"".join(batches)
    assert log_pb2.FetchResponse.FromString(message) == expected
    assert message == expected.SerializeToString()


def test_structured_records_go_through_protobuf() -> None:
    told = log_pb2.FetchedPartition(topic="orders", records=[log_pb2.Record(value=b"a"), log_pb2.Record(offset=1)])
    assert log_pb2.FetchResponse.FromString(encode_fetch_response([(told, [], 0)])).partitions[0] == told


def test_lengths_above_127_take_more_than_one_byte() -> None:
    told = log_pb2.FetchedPartition(topic="orders")
    message = encode_fetch_response([(told, [memoryview(b"x" * 100_000), b"y" * 50_000], 150_000)])
    assert log_pb2.FetchResponse.FromString(message).partitions[0].record_batches == b"x" * 100_000 + b"y" * 50_000
