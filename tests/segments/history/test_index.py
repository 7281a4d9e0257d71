"""Where the records of a partition lie in Parquet: found by offset, by time and by leader epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segments.history.index import RowGroupLocation
from tests.kit.segments.batches import ORDERS
from tests.kit.segments.small_history import ROWS, history


def span(location: RowGroupLocation | None) -> tuple[int, int] | None:
    return None if location is None else (location.base_offset, location.last_offset)


def test_the_row_group_is_found_that_has_the_first_record_at_or_after_an_offset() -> None:
    found = {offset: span(history().find(offset)) for offset in (0, 2, 4, 5, 9, 10, 12, 13, 26, 31, 32, 39)}
    assert found == {
        0: (2, 4),
        2: (2, 4),
        4: (2, 4),
        5: (5, 9),
        9: (5, 9),
        10: (12, 12),
        12: (12, 12),
        13: (20, 25),
        26: (27, 30),
        31: (31, 31),
        32: None,
        39: None,
    }
    assert history([]).find(0) is None


@given(st.integers(-1, 40))
def test_a_row_group_is_found_though_its_file_claims_offsets_beyond_its_records(offset: int) -> None:
    expected = next(((first, last) for of_file in ROWS for first, last in of_file if last >= offset), None)
    assert span(history().find(offset)) == span(history(wider=True).find(offset)) == expected


def test_a_row_group_location_names_its_object_and_byte_range() -> None:
    location = history().find(27)
    assert location is not None
    file = history().manifest.files[2]
    assert location.key == f"topics/orders/{ORDERS.topic_id}/partition=0/{file.name}"
    assert (location.number, location.start, location.end, location.identity) == (1, 104, 204, (location.key, 104))
    assert location.size_bytes == file.record_bytes // 3 + 40


def test_by_time_only_row_groups_come_that_hold_such_a_record_in_offset_order() -> None:
    assert [span(location) for location in history().from_timestamp(10)] == [(12, 12), (20, 25), (27, 30), (31, 31)]
    assert [span(location) for location in history().from_timestamp(31)] == [(31, 31)]
    assert next(map(span, history().from_timestamp(0, from_offset=10))) == (12, 12)
    assert [span(location) for location in history().from_timestamp(0, from_offset=26)] == [(27, 30), (31, 31)]
    assert list(history().from_timestamp(32)) == []


def test_leader_epochs_end_where_the_next_one_begins_or_where_segments_do() -> None:
    assert [history().end_of_epoch(epoch) for epoch in (2, 3, 4, 5, 9)] == [(-1, -1), (3, 12), (3, 12), (5, 40), (5, 40)]
    assert [history().epoch_at(offset) for offset in (0, 11, 12, 39)] == [3, 3, 5, 5]
