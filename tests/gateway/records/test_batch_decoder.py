from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.records import batch_decoder
from gateway.records.batch_decoder import DecodedRecords, decode_records, takes_long
from metadata.errors import Corrupt, InvalidArgument
from metadata.model import LeaderEpoch, Offset
from segments.read.log_reader import FetchResult
from segments.records.batch_kernel import NewRecordTuple, RecordTuple
from segments.records.columns import encode_records, iterate_records
from segments.records.compression import Codec

NEW: list[NewRecordTuple] = [(None, b"%d" % number, (), number) for number in range(10)]


def fetched(*batches: bytes, next_offset: int = 10) -> FetchResult:
    return FetchResult(list(batches), sum(map(len, batches)), Offset(next_offset), Offset(next_offset), Offset(0), LeaderEpoch(0))


def offsets_in(records: list[RecordTuple]) -> bytes:
    return msgspec.json.encode([record[0] for record in records])


def open_all(answer: FetchResult, start: int, *, records_max: int = 10**6, bytes_max: int = 1 << 30) -> DecodedRecords:
    return decode_records(answer, start, offsets_in, records_max=records_max, bytes_max=bytes_max, decompressed_bytes_max=128 << 20)


def offsets(opened: DecodedRecords) -> list[int]:
    return [offset for piece in opened.pieces for offset in msgspec.json.decode(piece)]


def test_records_begin_at_the_asked_offset_whatever_the_batches_begin_with() -> None:
    first, second = encode_records(NEW[:6]), encode_records(NEW[6:], base_offset=6)
    split_anywhere = [first[:16], first[16:], second[:16], second[16:]]
    for start in range(11):
        opened = open_all(fetched(*split_anywhere), start)
        assert (offsets(opened), opened.next_offset) == (list(range(start, 10)), 10)
        assert opened.record_count == 10 - start
        assert opened.size_bytes == sum(map(len, opened.pieces))
    assert open_all(fetched(), 3) == DecodedRecords([], 0, 0, 10)


@settings(deadline=None)
@given(
    batch_sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    records_max=st.integers(1, 60),
    bytes_max=st.integers(1, 300),
    slice_records=st.integers(1, 20),
    tuples_max=st.integers(0, 40),
)
def test_answer_after_answer_reads_every_record_once(
    batch_sizes: list[int], records_max: int, bytes_max: int, slice_records: int, tuples_max: int
) -> None:
    batches, end = [], 0
    for size in batch_sizes:
        batches.append(encode_records([(b"k", None, [("h", b"v")], 7)] * size, base_offset=end))
        end += size
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch_decoder, "SLICE_RECORDS", slice_records)
        patched.setattr(batch_decoder, "TUPLES_MAX", tuples_max)
        found, offset = [], 0
        while offset < end:
            first = next(at for at in range(len(batches)) if offset < sum(batch_sizes[: at + 1]))
            opened = open_all(fetched(*batches[first:], next_offset=end), offset, records_max=records_max, bytes_max=bytes_max)
            assert opened.next_offset > offset
            assert len(offsets(opened)) == opened.record_count <= records_max
            assert opened.size_bytes - len(opened.pieces[-1]) < bytes_max
            found += offsets(opened)
            offset = opened.next_offset
    assert found == list(range(end))


def test_a_batch_of_very_many_records_is_opened_as_columns_to_the_same_records(monkeypatch: pytest.MonkeyPatch) -> None:
    new: list[NewRecordTuple] = [
        (b"key", b"", [("a", b"1"), ("a", None)], 5),
        (None, None, (), 6),
        ("n\u00efve".encode(), b"\xff", [("", b"")], 7),
    ]
    batch = encode_records(new, base_offset=4, codec=Codec.GZIP)
    monkeypatch.setattr(batch_decoder, "TUPLES_MAX", 0)
    seen: list[RecordTuple] = []

    def seeing(records: list[RecordTuple]) -> bytes:
        seen.extend(records)
        return b""

    for start in (4, 5, 6, 7):
        seen.clear()
        decode_records(fetched(batch), start, seeing, records_max=10, bytes_max=1, decompressed_bytes_max=1 << 20)
        assert seen == [record for record in iterate_records(batch, decompressed_bytes_max=1 << 20) if record[0] >= start]


def test_a_stored_batch_that_can_not_be_opened_is_corrupt() -> None:
    batch = bytearray(encode_records(NEW))
    batch[-1] ^= 1
    for damaged in (bytes(batch), bytes(batch[:-1])):
        assert not takes_long([fetched(damaged)])
        with pytest.raises(Corrupt, match="from offset 4 on"):
            open_all(fetched(damaged), 4)


def test_a_refusal_of_the_encoder_is_not_taken_for_damage() -> None:
    def refusing(records: list[RecordTuple]) -> bytes:
        raise InvalidArgument("a value is not JSON")

    with pytest.raises(InvalidArgument, match="not JSON"):
        decode_records(fetched(encode_records(NEW)), 0, refusing, records_max=1, bytes_max=1, decompressed_bytes_max=1 << 20)


def test_an_answer_takes_only_so_much_of_what_was_compressed_far_and_says_where_to_go_on() -> None:
    batches = [encode_records([(None, b"x" * 600, (), 0)], codec=Codec.GZIP, base_offset=offset) for offset in range(10)]
    values = decode_records(
        fetched(*batches),
        0,
        lambda records: b"".join(record[3] or b"" for record in records),
        records_max=100,
        bytes_max=1000,
        decompressed_bytes_max=1 << 20,
    )
    assert (values.size_bytes, values.record_count, values.next_offset) == (1200, 2, 2)


def test_a_batch_may_be_left_in_its_middle() -> None:
    batch = encode_records([(None, b"x" * 50_000, (), 0)] * 100, codec=Codec.ZSTD)
    opened = decode_records(
        fetched(batch, next_offset=100),
        7,
        lambda records: b"".join(record[3] or b"" for record in records),
        records_max=100,
        bytes_max=300_000,
        decompressed_bytes_max=8 << 20,
    )
    assert (opened.size_bytes, opened.record_count, opened.next_offset) == (300_000, 6, 13)
    assert open_all(fetched(batch, next_offset=100), 98, records_max=1).next_offset == 99


def test_a_few_records_of_a_batch_of_a_million_take_little_memory() -> None:
    batch = encode_records([(None, None, (), 0)] * 1_000_000, codec=Codec.ZSTD)
    tracemalloc.start()
    try:
        opened = open_all(fetched(batch, next_offset=1_000_000), 500_000, records_max=10)
        assert offsets(opened) == list(range(500_000, 500_010))
        assert tracemalloc.get_traced_memory()[1] < 80 << 20  # as tuples they took 170 MiB
    finally:
        tracemalloc.stop()
