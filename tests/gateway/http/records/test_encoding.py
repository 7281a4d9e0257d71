from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.records.encoding import (
    ARROW_SCHEMA,
    Formats,
    as_arrow,
    as_events,
    as_lines,
    as_objects,
    as_page,
    error_event,
    error_line,
)
from metadata.errors import Corrupt, InvalidArgument
from metadata.model import LeaderEpoch, Offset
from segments.read.log_reader import FetchResult
from segments.records.batch_kernel import NewRecordTuple, RecordTuple
from segments.records.columns import encode_records
from segments.records.compression import Codec
from segments.records.json_values import JsonFormat

AUTO = Formats(JsonFormat.AUTO, JsonFormat.AUTO)
RECORDS: list[RecordTuple] = [
    (5, 1000, b"c-7", b'{"id": 7}', (("trace", b"ab"), ("trace", None))),
    (6, 1001, None, "naïve".encode(), ()),
    (7, 1002, b"\xff", None, ()),
]


def fetched(*batches: bytes, next_offset: int = 0) -> FetchResult:
    return FetchResult(list(batches), sum(map(len, batches)), Offset(next_offset), Offset(90), Offset(2), LeaderEpoch(0))


def test_a_page_has_its_records_and_the_next_offset() -> None:
    pieces = [as_objects(RECORDS[:2], 3, AUTO), as_objects(RECORDS[2:], 3, AUTO)]
    assert msgspec.json.decode(as_page([], fetched(), 8))["records"] == []
    assert msgspec.json.decode(as_page(pieces, fetched(), 8)) == {
        "records": [
            {
                "partition": 3,
                "offset": 5,
                "timestamp": 1000,
                "key": "c-7",
                "value": {"id": 7},
                "headers": [{"key": "trace", "value": "ab"}, {"key": "trace", "value": None}],
            },
            {"partition": 3, "offset": 6, "timestamp": 1001, "key": None, "value": "naïve", "headers": []},
            {
                "partition": 3,
                "offset": 7,
                "timestamp": 1002,
                "key": {"type": "binary", "data": "/w=="},
                "value": None,
                "headers": [],
            },
        ],
        "next_offset": 8,
        "high_watermark": 90,
        "log_start_offset": 2,
    }


def test_lines_are_records_one_by_one() -> None:
    lines = as_lines(RECORDS, 3, AUTO).splitlines()
    assert [msgspec.json.decode(line)["offset"] for line in lines] == [5, 6, 7]


def test_events_carry_the_id_to_resume_with() -> None:
    text = as_events(RECORDS[:2], 3, AUTO, lambda offset: f"after-{offset}").decode()
    first, second, rest = text.split("\n\n")
    assert first.startswith('id: after-5\ndata: {"partition":3,"offset":5,')
    assert second.startswith("id: after-6\ndata: {")
    assert rest == ""


def test_formats_are_of_keys_and_values_apart() -> None:
    formats = Formats(JsonFormat.BASE64, JsonFormat.TEXT)
    reported = msgspec.json.decode(as_lines(RECORDS[:1], 0, formats))
    assert (reported["key"], reported["value"]) == ("Yy03", '{"id": 7}')


def test_a_record_that_does_not_fit_the_format_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"offset 6: .*JSON"):
        as_lines(RECORDS, 0, Formats(JsonFormat.AUTO, JsonFormat.JSON))


def test_arrow_begins_at_the_asked_offset_and_ends_at_the_limit() -> None:
    new: list[NewRecordTuple] = [(b"k", b"%d" % number, (), 1000 + number) for number in range(10)]
    batches = [encode_records(new[:6], base_offset=20), encode_records(new[6:], base_offset=26)]
    for records_max, offsets, expected_next in ((3, [22, 23, 24], 25), (100, list(range(22, 30)), 30)):
        body, next_offset = as_arrow(
            fetched(*batches, next_offset=30),
            4,
            offset=22,
            records_max=records_max,
            bytes_max=1 << 20,
            decompressed_bytes_max=1 << 20,
        )
        table = pa.ipc.open_stream(body).read_all()
        assert table.schema == ARROW_SCHEMA
        assert table.column("offset").to_pylist() == offsets
        assert set(table.column("partition").to_pylist()) == {4}
        assert next_offset == expected_next


@settings(deadline=None)
@given(
    batch_sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), bytes_max=st.integers(1, 4000), codec=st.sampled_from(Codec)
)
def test_arrow_after_arrow_reads_every_record_once_and_takes_about_so_many_bytes(
    batch_sizes: list[int], bytes_max: int, codec: Codec
) -> None:
    batches, end = [], 0
    for size in batch_sizes:
        batches.append(encode_records([(b"k", b"v" * 100, (), 7)] * size, base_offset=end, codec=codec))
        end += size
    found, offset = [], 0
    while offset < end:
        first = next(at for at in range(len(batches)) if offset < sum(batch_sizes[: at + 1]))
        body, next_offset = as_arrow(
            fetched(*batches[first:], next_offset=end),
            0,
            offset=offset,
            records_max=50,
            bytes_max=bytes_max,
            decompressed_bytes_max=1 << 20,
        )
        table = pa.ipc.open_stream(body).read_all()
        assert table.num_rows == 1 or table.drop_columns("partition").nbytes <= bytes_max
        found += table.column("offset").to_pylist()
        assert next_offset > offset
        offset = next_offset
    assert found == list(range(end))


def test_arrow_of_nothing_is_an_empty_table() -> None:
    body, next_offset = as_arrow(fetched(next_offset=7), 0, offset=7, records_max=5, bytes_max=0, decompressed_bytes_max=1)
    assert pa.ipc.open_stream(body).read_all().num_rows == 0
    assert next_offset == 7


def test_a_stored_batch_that_can_not_be_opened_is_corrupt_and_not_the_readers_fault() -> None:
    batch = bytearray(encode_records([(None, b"x" * 50, (), 1)]))
    batch[-3] ^= 1
    with pytest.raises(Corrupt, match="from offset 0 on"):
        as_arrow(fetched(bytes(batch)), 0, offset=0, records_max=5, bytes_max=1 << 20, decompressed_bytes_max=1 << 20)


def test_streams_encode_the_error_that_ends_them() -> None:
    assert error_event({"code": "NO_LEADER"}) == b'event: error\ndata: {"code":"NO_LEADER"}\n\n'
    assert error_line({"code": "NO_LEADER"}) == b'{"error":{"code":"NO_LEADER"}}\n'
