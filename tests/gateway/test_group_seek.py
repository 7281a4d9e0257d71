"""Where committed offsets are moved to: always within the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.group_descriptions import SeekTo
from gateway.group_seek import check_seek, sought_offset
from metadata.errors import InvalidArgument
from tests.gateway.told_log import P0, bounds


@pytest.mark.parametrize(
    ("to", "after"),
    [
        (SeekTo("earliest"), 10),
        (SeekTo("latest"), 100),
        (SeekTo("offset", 50), 50),
        (SeekTo("offset", 0), 10),
        (SeekTo("offset", 2**63 - 1), 100),
        (SeekTo("shift", -5), 35),
        (SeekTo("shift", 5), 45),
        (SeekTo("shift", -1000), 10),
        (SeekTo("shift", 1000), 100),
    ],
)
def test_each_way_of_saying_where_to(to: SeekTo, after: int) -> None:
    assert sought_offset(to, P0, bounds=bounds(10, 100), committed=40) == after


def test_a_time_is_its_first_record_and_without_one_the_end() -> None:
    to = SeekTo("timestamp_ms", 1_700_000_000_000)
    assert sought_offset(to, P0, bounds=bounds(10, 100), committed=None, of_timestamp=60) == 60
    assert sought_offset(to, P0, bounds=bounds(10, 100), committed=None, of_timestamp=None) == 100


def test_what_was_never_committed_has_nothing_to_shift_from() -> None:
    with pytest.raises(InvalidArgument, match="no committed offset"):
        sought_offset(SeekTo("shift", 1), P0, bounds=bounds(0, 9), committed=None)


@pytest.mark.parametrize("to", [SeekTo("offset", -1), SeekTo("timestamp_ms", -1)])
def test_what_no_log_could_answer_is_refused(to: SeekTo) -> None:
    with pytest.raises(InvalidArgument):
        check_seek(to)


@given(
    kind=st.sampled_from(["earliest", "latest", "timestamp_ms", "offset", "shift"]),
    value=st.integers(-(2**63), 2**63 - 1),
    start=st.integers(0, 1000),
    length=st.integers(0, 1000),
    committed=st.integers(0, 5000),
    of_timestamp=st.none() | st.integers(0, 5000),
)
def test_nobody_is_moved_out_of_the_log(
    kind: str, value: int, start: int, length: int, committed: int, of_timestamp: int | None
) -> None:
    to = SeekTo(kind, value)  # type: ignore[arg-type]
    after = sought_offset(to, P0, bounds=bounds(start, start + length), committed=committed, of_timestamp=of_timestamp)
    assert start <= after <= start + length
