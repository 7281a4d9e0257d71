"""History as consumers are served it: batches of the same records, with their offsets, epochs and types of timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.model import LeaderEpoch, Offset
from segments.history.manifest import EpochStart
from segments.history.parquet_file import ParquetSettings, read_columns, verify_history
from segments.history.row_group_batches import HistoryBatch, encode_row_group
from segments.records.batch import NO_LEADER_EPOCH, parse_header
from segments.records.columns import decode_batches, iterate_records
from tests.kit.segments.history_files import checksum_of_batches, write_history
from tests.kit.segments.history_strategies import BOUND, History, Row, columns_of, histories, rows_of_batches
from tests.kit.segments.record_strategies import TIMESTAMP_MS, aiokafka_records

EPOCH = [EpochStart(LeaderEpoch(4), Offset(0))]


def encode(
    rows: Sequence[Row],
    *,
    epochs: Sequence[EpochStart] = EPOCH,
    batch_bytes_max: int = 1 << 20,
    end_offset: int | None = None,
) -> list[HistoryBatch]:
    if end_offset is None:
        end_offset = rows[-1][0] + 1
    batches = encode_row_group(columns_of(rows), end_offset=end_offset, epochs=epochs, batch_bytes_max=batch_bytes_max)
    assert rows_of_batches([batch.body for batch in batches]) == list(rows)
    for batch in batches:
        header = parse_header(batch.body)
        assert (header.base_offset, header.last_offset) == (batch.base_offset, batch.end_offset - 1)
        assert batch.last_offset == iterate_records(batch.body, decompressed_bytes_max=BOUND)[-1][0]
    return batches


def row(offset: int, *, time: int = TIMESTAMP_MS, kind: int = 0, value: bytes = b"value") -> Row:
    return (offset, time, kind, b"key", value, ())


@pytest.mark.slow
@settings(max_examples=60)
@given(histories(), st.sampled_from([1, 300, 1 << 20]), st.sampled_from([100, 2000, 1 << 20]))
def test_any_history_is_the_same_records_behind_columns_parquet_and_row_groups(
    history: History, batch_bytes_max: int, row_group_bytes: int
) -> None:
    columns = decode_batches(history.batches, decompressed_bytes_max=BOUND)
    options = ParquetSettings(row_group_bytes=row_group_bytes)
    written = write_history([columns], name="x.parquet", topic="orders", partition=3, settings=options)
    verify_history(written.body, written.file)
    served = [
        batch
        for group in read_columns(written.body, written.file)
        for batch in encode_row_group(
            group,
            end_offset=group.column("offset")[-1].as_py() + 1 if group.num_rows else 0,
            epochs=history.epochs,
            batch_bytes_max=batch_bytes_max,
        )
    ]
    bodies = [batch.body for batch in served]
    assert rows_of_batches(bodies) == history.rows
    assert checksum_of_batches(bodies, decompressed_bytes_max=BOUND) == checksum_of_batches(
        history.batches, decompressed_bytes_max=BOUND
    )
    assert all(a.last_offset < a.end_offset <= b.base_offset for a, b in pairwise(served))
    epoch_of = {
        record[0]: parse_header(batch).leader_epoch
        for batch in history.batches
        for record in iterate_records(batch, decompressed_bytes_max=BOUND)
    }
    for batch in served:
        header = parse_header(batch.body)
        records = iterate_records(batch.body, decompressed_bytes_max=BOUND)
        assert {epoch_of[record[0]] for record in records} == {header.leader_epoch}
        assert (header.producer_id, header.base_sequence) == (-1, -1)


def test_other_clients_read_them() -> None:
    rows = [row(5), (9, TIMESTAMP_MS - 5, 0, None, b"", (("a", None), ("a", b"1"))), row(10)]
    (batch,) = encode(rows)
    assert aiokafka_records(batch.body) == [(offset, time, key, value, headers) for offset, time, _, key, value, headers in rows]


def test_a_batch_covers_the_gap_behind_its_records_also_the_one_at_the_end_of_the_row_group() -> None:
    batches = encode([row(1), row(4), row(9, kind=1), row(11, kind=1, time=5)], end_offset=20)
    assert [(batch.base_offset, batch.last_offset, batch.end_offset) for batch in batches] == [(1, 4, 9), (9, 9, 11), (11, 11, 20)]


def test_the_cover_of_a_batch_ends_with_its_leader_epoch() -> None:
    epochs = [EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in ((4, 0), (5, 3), (6, 8), (7, 30))]
    batches = encode([row(0), row(5), row(20)], epochs=epochs, end_offset=40)
    assert [(batch.base_offset, batch.end_offset) for batch in batches] == [(0, 3), (5, 8), (20, 30)]


def test_a_batch_covers_no_more_offsets_than_its_last_offset_delta_can_express() -> None:
    (batch,) = encode([row(7)], end_offset=2**40)
    assert batch.end_offset == 7 + 2**31


def test_no_records_are_no_batches() -> None:
    assert encode_row_group(columns_of([row(1)]).slice(0, 0), end_offset=0, epochs=EPOCH) == []


def test_a_batch_ends_where_the_next_leader_epoch_begins() -> None:
    epochs = [EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in ((1, 0), (2, 3), (5, 4), (7, 100))]
    batches = encode([row(offset) for offset in range(6)], epochs=epochs)
    assert [(parse_header(batch.body).leader_epoch, batch.base_offset, batch.last_offset) for batch in batches] == [
        (1, 0, 2),
        (2, 3, 3),
        (5, 4, 5),
    ]


def test_an_epoch_that_begins_at_an_offset_that_is_gone_begins_with_the_next_record() -> None:
    batches = encode([row(1), row(9), row(10)], epochs=[*EPOCH, EpochStart(LeaderEpoch(6), Offset(5))])
    assert [(parse_header(batch.body).leader_epoch, batch.base_offset) for batch in batches] == [(4, 1), (6, 9)]


def test_records_before_the_first_epoch_that_is_known_have_none() -> None:
    (batch,) = encode([row(1)], epochs=[])
    assert parse_header(batch.body).leader_epoch == NO_LEADER_EPOCH


def test_a_batch_ends_where_the_type_of_timestamps_changes_and_with_log_append_time_where_the_timestamp_does() -> None:
    rows = [
        row(0, time=5),
        row(1, time=6),
        row(2, time=7, kind=1),
        row(3, time=7, kind=1),
        row(4, time=8, kind=1),
        row(5, time=8),
    ]
    batches = encode(rows)
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(0, 1), (2, 3), (4, 4), (5, 5)]
    assert [parse_header(batch.body).log_append_time for batch in batches] == [False, True, True, False]


def test_offsets_too_far_apart_for_one_batch_are_in_two() -> None:
    batches = encode([row(0), row(2**31 - 1), row(2**31), row(2**40)])
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(0, 2**31 - 1), (2**31, 2**31), (2**40, 2**40)]


@pytest.mark.parametrize("headers", [(), (("name", b"x" * 50), ("name", None))])
def test_no_batch_is_larger_than_asked_for_but_that_of_one_record(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    rows: list[Row] = [(offset, TIMESTAMP_MS + offset, 0, b"key", b"v" * (offset % 90), headers) for offset in range(400)]
    rows.append((400, TIMESTAMP_MS, 0, None, b"v" * 5000, headers))
    batches = encode(rows, batch_bytes_max=1000)
    *others, huge = batches
    assert (huge.base_offset, huge.last_offset) == (400, 400)
    sizes = [len(batch.body) for batch in others]
    assert max(sizes) <= 1000
    assert sum(sizes) / len(sizes) > 500
