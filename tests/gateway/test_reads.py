from __future__ import annotations

import asyncio

import pytest

from gateway import reads
from metadata.errors import Corrupt
from metadata.model import Offset
from segments.batch_kernel import NewRecordTuple
from segments.compression import Codec
from segments.log_reader import Fetched
from segments.record_columns import encode_records

NEW: list[NewRecordTuple] = [(None, b"%d" % number, (), number) for number in range(10)]


def fetched(*batches: bytes) -> Fetched:
    return Fetched(list(batches), sum(map(len, batches)), Offset(10), Offset(10), Offset(0))


def offsets(answer: Fetched, start: int) -> list[int]:
    records = asyncio.run(reads.records_from(answer, start, decompressed_bytes_max=1 << 20))
    return [record[0] for record in records.records]


@pytest.mark.parametrize("thread_bytes", [0, 1 << 20], ids=["in a thread", "in the loop"])
def test_records_begin_at_the_asked_offset_whatever_the_batches_begin_with(
    monkeypatch: pytest.MonkeyPatch, thread_bytes: int
) -> None:
    monkeypatch.setattr(reads, "THREAD_BYTES", thread_bytes)
    first, second = encode_records(NEW[:6]), encode_records(NEW[6:], base_offset=6)
    split_anywhere = [first[:16], first[16:], second[:16], second[16:]]
    for start in range(11):
        assert offsets(fetched(*split_anywhere), start) == list(range(start, 10))
    assert offsets(fetched(), 3) == []


def test_a_stored_batch_that_can_not_be_opened_is_corrupt() -> None:
    batch = bytearray(encode_records(NEW))
    batch[-1] ^= 1
    with pytest.raises(Corrupt, match="from offset 4 on"):
        offsets(fetched(bytes(batch)), 4)
    with pytest.raises(Corrupt):
        offsets(fetched(bytes(batch[:-1])), 4)


def test_an_answer_opens_only_so_much_of_what_was_compressed_far_and_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "OPENED_BYTES_MAX", 1000)
    batches = [encode_records([(None, b"x" * 600, (), 0)], codec=Codec.GZIP, base_offset=offset) for offset in range(10)]
    opened = asyncio.run(reads.records_from(fetched(*batches), 0, decompressed_bytes_max=1 << 20))
    assert ([record[0] for record in opened.records], opened.next_offset) == ([0, 1], 2)
