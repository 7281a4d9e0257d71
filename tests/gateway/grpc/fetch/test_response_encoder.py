from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.grpc.fetch.response_encoder import PartitionResponse, encode_consumed_data, encode_fetch_response, encode_records
from gateway.proto import log_pb2
from segments.records.batch_kernel import RecordTuple

partitions = st.builds(
    log_pb2.FetchedPartition,
    topic=st.text(max_size=20),
    partition=st.integers(0, 2**31 - 1),
    high_watermark=st.integers(0, 2**63 - 1),
    log_start_offset=st.integers(0, 2**63 - 1),
    next_offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(0, 2**31 - 1),
)


def answer_of(partition: log_pb2.FetchedPartition, pieces: list[bytes], *, structured: bool = False) -> PartitionResponse:
    head = log_pb2.FetchedPartition()
    head.CopyFrom(partition)
    head.ClearField("leader_epoch")
    return PartitionResponse(head, pieces, sum(map(len, pieces)), structured, partition.leader_epoch)


records = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
    ),
    max_size=4,
)


@settings(deadline=None)
@given(st.lists(st.tuples(partitions, st.lists(st.binary(max_size=400), max_size=4)), max_size=5))
def test_protobuf_reads_what_it_would_have_written(answers: list[tuple[log_pb2.FetchedPartition, list[bytes]]]) -> None:
    message = encode_fetch_response(answer_of(head, batches) for head, batches in answers)
    expected = log_pb2.FetchResponse()
    for head, batches in answers:
        reported = expected.partitions.add()
        reported.CopyFrom(head)
        reported.record_batches = b"".join(batches)
    assert log_pb2.FetchResponse.FromString(message) == expected
    assert message == expected.SerializeToString()


@settings(deadline=None)
@given(st.lists(st.tuples(partitions, st.lists(st.binary(max_size=400), max_size=4)), max_size=5), st.integers(1, 2**63))
def test_deliveries_of_a_stream_are_what_protobuf_would_have_written(
    answers: list[tuple[log_pb2.FetchedPartition, list[bytes]]], delivery_id: int
) -> None:
    message = encode_consumed_data([answer_of(head, batches) for head, batches in answers], delivery_id)
    expected = log_pb2.ConsumeResponse(data=log_pb2.ConsumedData(delivery_id=delivery_id))
    for head, batches in answers:
        reported = expected.data.partitions.add()
        reported.CopyFrom(head)
        reported.record_batches = b"".join(batches)
    assert message == expected.SerializeToString()


@settings(deadline=None)
@given(st.lists(st.tuples(partitions, st.lists(records, max_size=3)), max_size=3))
def test_structured_records_come_slice_by_slice_as_protobuf_would_write_them_all(
    answers: list[tuple[log_pb2.FetchedPartition, list[list[RecordTuple]]]],
) -> None:
    reported = []
    expected = log_pb2.FetchResponse()
    for head, slices in answers:
        pieces = [encode_records(of_slice, head.partition) for of_slice in slices]
        reported.append(answer_of(head, pieces, structured=True))
        partition = expected.partitions.add()
        partition.CopyFrom(head)
        for offset, timestamp_ms, key, value, headers in chain(*slices):
            record = partition.records.add(key=key, value=value, timestamp_ms=timestamp_ms, partition=head.partition, offset=offset)
            for name, content in headers:
                record.headers.add(key=name, value=content)
    message = encode_fetch_response(reported)
    assert log_pb2.FetchResponse.FromString(message) == expected
    assert message == expected.SerializeToString()


def test_lengths_above_127_take_more_than_one_byte() -> None:
    head = log_pb2.FetchedPartition(topic="orders")
    message = encode_fetch_response([PartitionResponse(head, [memoryview(b"x" * 100_000), b"y" * 50_000], 150_000)])
    assert log_pb2.FetchResponse.FromString(message).partitions[0].record_batches == b"x" * 100_000 + b"y" * 50_000
