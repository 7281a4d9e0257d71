"""Produce requests that are too long for their broker are received without their records."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kafka.frame_reader import FrameReader
from gateway.kafka.protocol import shortened_produce
from gateway.kafka.protocol.apis import APIS, decode_header
from gateway.kafka.protocol.errors import MalformedFrame
from gateway.kafka.protocol.hot_messages import PartitionProduceData, ProduceRequest, TopicProduceData
from gateway.kafka.protocol.shortened_produce import (
    KEPT_BYTES_MAX,
    SHORTENED_BYTES_MAX,
    STEPS_MAX,
    TAGS_MAX,
    ShortenedProduce,
)
from metadata.errors import TooLarge
from segments.records.batch import BATCH_OVERHEAD_BYTES, parse_header
from tests.kit.gateway.kafka_codec import INSTALLED
from tests.kit.segments.batches import sequenced_batch

PRODUCE = 0
LENGTH_BYTES = 4
SHARED = 64
BATCH = sequenced_batch(7, 3, b"x" * 500, b"y" * 300)
RECORDS = st.none() | st.binary(max_size=100) | st.just(BATCH)
TOPICS = st.lists(
    st.tuples(st.text("ab", max_size=5), st.binary(min_size=16, max_size=16), st.lists(st.tuples(st.integers(0, 9), RECORDS))),
    max_size=4,
)


def frame_of(
    version: int, topics: Sequence[tuple[str, bytes, Sequence[tuple[int, bytes | None]]]], client_id: str | None = "c"
) -> bytes:
    """A request with its length."""
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=5,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=topic_id,
                partition_data=[
                    PartitionProduceData(index=index, records=None if records is None else memoryview(records))
                    for index, records in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
    )
    return INSTALLED.encode_request_frame(PRODUCE, request, version, 5, client_id)


def shortened(frame: bytes, pieces: list[int]) -> memoryview:
    body = memoryview(frame)[LENGTH_BYTES:]
    short = ShortenedProduce(len(body))
    at = turn = 0
    while at < len(body):
        count = min(pieces[turn % len(pieces)], len(body) - at)
        short.feed(body[at : at + count])
        at, turn = at + count, turn + 1
    assert short.bytes_left == 0
    return short.frame()


@given(
    version=st.integers(3, 13),
    topics=TOPICS,
    client_id=st.none() | st.text("c", max_size=4),
    pieces=st.lists(st.integers(1, 700), min_size=1, max_size=5),
)
def test_a_shortened_request_has_the_same_partitions_and_the_header_of_each_batch(
    version: int, topics: list[tuple[str, bytes, list[tuple[int, bytes | None]]]], client_id: str | None, pieces: list[int]
) -> None:
    frame = frame_of(version, topics, client_id)
    short = shortened(frame, pieces)
    header = decode_header(short)
    assert header == decode_header(memoryview(frame)[LENGTH_BYTES:])
    whole = APIS[PRODUCE].decode(memoryview(frame)[LENGTH_BYTES:], header.body_offset, version)
    found = APIS[PRODUCE].decode(short, header.body_offset, version)
    assert (found.acks, found.timeout_ms, found.transactional_id) == (whole.acks, whole.timeout_ms, whole.transactional_id)
    assert len(found.topic_data) == len(whole.topic_data)
    for topic, expected in zip(found.topic_data, whole.topic_data, strict=True):
        assert (topic.name, topic.topic_id) == (expected.name, expected.topic_id)
        for each, other in zip(topic.partition_data, expected.partition_data, strict=True):
            assert each.index == other.index
            assert (each.records is None) == (other.records is None)
            if other.records is not None:
                assert len(each.records) == min(BATCH_OVERHEAD_BYTES, len(other.records))
            if other.records == BATCH:
                kept, sent = parse_header(each.records), parse_header(BATCH)
                assert kept.size == BATCH_OVERHEAD_BYTES
                assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (
                    sent.producer_id,
                    sent.producer_epoch,
                    sent.base_sequence,
                )


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("sizes", [(), (None, 0), (10, 300, 20), (5_000, None)])
def test_the_size_of_the_largest_batch_is_kept(version: int, sizes: tuple[int | None, ...]) -> None:
    batches = [(index, None if size is None else bytes(size)) for index, size in enumerate(sizes)]
    body = memoryview(frame_of(version, [("orders", bytes(16), batches), ("others", bytes(16), [])]))[LENGTH_BYTES:]
    short = ShortenedProduce(len(body))
    short.feed(body)
    assert short.largest_batch_bytes == max([size or 0 for size in sizes], default=0)


def test_of_a_long_request_little_is_kept() -> None:
    batch = BATCH[:BATCH_OVERHEAD_BYTES] + bytes(5 << 20)
    assert len(shortened(frame_of(9, [("orders", bytes(16), [(0, batch), (1, batch)])]), [64 << 10])) < 300


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_request_that_ends_before_its_last_field_is_refused(version: int) -> None:
    frame = frame_of(version, [("orders", bytes(16), [(0, BATCH), (1, BATCH)])])
    for left_out in range(1, len(frame) - LENGTH_BYTES - 2):
        short = ShortenedProduce(len(frame) - LENGTH_BYTES - left_out)
        short.feed(memoryview(frame)[LENGTH_BYTES:-left_out])
        with pytest.raises(MalformedFrame):
            short.frame()


@pytest.mark.parametrize("version", [0, 2, 14, -1])
def test_a_version_whose_layout_is_not_known_is_refused(version: int) -> None:
    with pytest.raises(MalformedFrame, match="3 to 13"):
        ShortenedProduce(100).feed(memoryview(struct.pack(">hhi", PRODUCE, version, 1)))


def test_a_request_with_more_beside_its_records_than_may_be_kept_is_refused() -> None:
    frame = frame_of(9, [("orders", bytes(16), [(number, None) for number in range(KEPT_BYTES_MAX)])])
    with pytest.raises(TooLarge, match="not records"):
        shortened(frame, [1 << 10])
    long_name = struct.pack(">hhih", PRODUCE, 9, 1, 1) + b"c\0" + b"\xff\xff\xff\x7f"  # a transactional id of 256 MiB
    with pytest.raises(TooLarge, match="not records"):
        ShortenedProduce(1 << 20).feed(memoryview(long_name))


@pytest.mark.parametrize("is_header", [True, False])
def test_a_struct_with_more_tagged_fields_than_may_be_is_refused_as_soon_as_it_says_so(is_header: bool) -> None:
    def feed(count: int) -> ShortenedProduce:
        short = ShortenedProduce(1 << 20)
        head = struct.pack(">hhih", PRODUCE, 9, 1, 1) + b"c"
        before = b"" if is_header else b"\0" + b"\0" + bytes(6) + b"\x02" + b"\x02o" + b"\x01"  # one topic without a partition
        short.feed(memoryview(head + before + bytes([count])))
        return short

    assert feed(TAGS_MAX).bytes_left
    with pytest.raises(MalformedFrame, match="17 tagged fields"):
        feed(TAGS_MAX + 1)


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("is_in_topic", [True, False], ids=["partitions", "topics"])
def test_a_request_of_many_short_fields_is_refused_before_all_of_them_are_parsed(version: int, is_in_topic: bool) -> None:
    count = KEPT_BYTES_MAX // (4 if is_in_topic else 2)
    topics = [("", bytes(16), [(0, None)] * count)] if is_in_topic else [("", bytes(16), [])] * count
    body = memoryview(frame_of(version, topics))[LENGTH_BYTES:]
    short = ShortenedProduce(len(body))
    with pytest.raises(TooLarge, match="are not records"):
        short.feed(body)
    assert short._steps_taken <= STEPS_MAX + 1


@pytest.mark.parametrize("version", [3, 9, 13])
def test_as_many_batches_as_are_kept_have_fewer_fields_than_may_be(version: int) -> None:
    batch = BATCH[:BATCH_OVERHEAD_BYTES] + bytes(16 << 10)
    topics = [("t", bytes(16), [(0, batch)])] * (KEPT_BYTES_MAX // 100)
    body = memoryview(frame_of(version, topics))[LENGTH_BYTES:]
    short = ShortenedProduce(len(body))
    short.feed(body)
    assert len(APIS[PRODUCE].decode(short.frame(), decode_header(short.frame()).body_offset, version).topic_data) == len(topics)


def test_bytes_that_are_no_request_raise_nothing_but_what_closes_the_connection() -> None:
    chance = random.Random(5)
    for _ in range(500):
        data = struct.pack(">hhi", PRODUCE, chance.randint(3, 13), 1) + chance.randbytes(chance.randint(0, 400))
        short = ShortenedProduce(len(data))
        try:
            short.feed(memoryview(data))
            short.frame()
        except (MalformedFrame, TooLarge):
            pass


@given(
    sizes=st.lists(st.sampled_from([None, 20, 90, 150]), min_size=1, max_size=8),
    pieces=st.lists(st.integers(1, 80), min_size=1, max_size=9),
)
def test_frames_beside_a_shortened_one_are_cut_as_ever(sizes: list[int | None], pieces: list[int]) -> None:
    long = frame_of(9, [("orders", bytes(16), [(0, BATCH)])])
    sent = [long if size is None else struct.pack(">ihh", size, 3, 1) + bytes(size - 4) for size in sizes]
    data, found = b"".join(sent), list[tuple[int, int]]()
    reader = FrameReader(memoryview(bytearray(SHARED)), bytes_max=200, shortens=True)
    at = turn = 0
    while at < len(data):
        buffer = reader.buffer()
        count = min(len(buffer), pieces[turn % len(pieces)], len(data) - at)
        buffer[:count] = data[at : at + count]
        at, turn = at + count, turn + 1
        frames = reader.received(count)
        while reader.announced is not None:
            frames += reader.accept()
        found += [(len(frame.data), frame.cut_from) for frame in frames]
    short = len(shortened(long, [1000]))
    assert found == [(short, len(long) - LENGTH_BYTES) if size is None else (size, 0) for size in sizes]
    assert not reader.is_torn
    assert reader.bytes_missing == 0


def test_a_request_that_is_being_shortened_lacks_bytes_until_it_ends() -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)), bytes_max=200, shortens=True)
    frame = frame_of(9, [("orders", bytes(16), [(0, BATCH)])])
    reader.buffer()[:50] = frame[:50]
    assert reader.received(50) == []
    assert reader.is_torn
    assert reader.bytes_missing == len(frame) - 50
    assert reader.frames_begun == 1, "so that its receipt is bounded"


@pytest.mark.parametrize(
    ("api_key", "size_bytes", "shortens"),
    [(1, 300, True), (PRODUCE, 300, False), (PRODUCE, SHORTENED_BYTES_MAX + 1, True)],
    ids=["another API", "not authenticated", "too long for anything"],
)
def test_other_long_requests_are_refused_before_they_are_received(api_key: int, size_bytes: int, shortens: bool) -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)), bytes_max=200, shortens=shortens)
    reader.buffer()[:8] = struct.pack(">ihh", size_bytes, api_key, 9)
    with pytest.raises(TooLarge, match="200 are taken"):
        reader.received(8)


def test_the_layouts_are_those_of_the_versions_that_can_be_decoded() -> None:
    assert (shortened_produce.VERSIONS[0], shortened_produce.VERSIONS[-1]) == (APIS[PRODUCE].min_version, APIS[PRODUCE].max_version)
    assert APIS[PRODUCE].flexible_from == shortened_produce.FLEXIBLE_SINCE
