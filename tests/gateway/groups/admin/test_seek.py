"""Where committed offsets are moved to: always within the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.admin.seek import (
    BEFORE_START,
    BEYOND_END,
    NO_RECORD_SINCE,
    SeekResult,
    SeekTo,
    check_seek,
    seek_target,
    seek_to,
)
from gateway.proto import groups_pb2
from metadata.errors import InvalidArgument
from tests.kit.gateway.reported_log import P0, bounds


@pytest.mark.parametrize(
    ("to", "sought"),
    [
        (SeekTo("earliest"), SeekResult(10)),
        (SeekTo("latest"), SeekResult(100)),
        (SeekTo("offset", 50), SeekResult(50)),
        (SeekTo("offset", 10), SeekResult(10)),
        (SeekTo("offset", 100), SeekResult(100)),
        (SeekTo("offset", 0), SeekResult(10, BEFORE_START, 0)),
        (SeekTo("offset", 101), SeekResult(100, BEYOND_END, 101)),
        (SeekTo("shift", -5), SeekResult(35)),
        (SeekTo("shift", 5), SeekResult(45)),
        (SeekTo("shift", -1000), SeekResult(10, BEFORE_START, -960)),
        (SeekTo("shift", 1000), SeekResult(100, BEYOND_END, 1040)),
        (SeekTo("shift", 2**63 - 1), SeekResult(100, BEYOND_END, 2**63 - 1)),
    ],
)
def test_each_way_of_saying_where_to(to: SeekTo, sought: SeekResult) -> None:
    assert seek_target(to, P0, bounds=bounds(10, 100), committed=40) == sought


def test_a_time_is_its_first_record_and_without_one_the_end() -> None:
    to = SeekTo("timestamp_ms", 1_700_000_000_000)
    assert seek_target(to, P0, bounds=bounds(10, 100), committed=None, of_timestamp=60) == SeekResult(60)
    assert seek_target(to, P0, bounds=bounds(10, 100), committed=None, of_timestamp=None) == SeekResult(100, NO_RECORD_SINCE)


def test_a_first_record_that_came_while_it_was_looked_for_is_what_was_asked_for() -> None:
    to = SeekTo("timestamp_ms", 1_700_000_000_000)
    assert seek_target(to, P0, bounds=bounds(10, 100), committed=None, of_timestamp=105) == SeekResult(105)
    assert seek_target(to, P0, bounds=bounds(10, 100), committed=None, of_timestamp=5) == SeekResult(10)


def test_a_partition_without_a_committed_offset_has_nothing_to_shift_from() -> None:
    with pytest.raises(InvalidArgument, match="no committed offset"):
        seek_target(SeekTo("shift", 1), P0, bounds=bounds(0, 9), committed=None)


@pytest.mark.parametrize("to", [SeekTo("offset", -1), SeekTo("timestamp_ms", -1)])
def test_a_seek_that_no_log_could_answer_is_refused(to: SeekTo) -> None:
    with pytest.raises(InvalidArgument):
        check_seek(to)


@pytest.mark.parametrize(
    ("request_", "to"),
    [
        (groups_pb2.SeekGroupRequest(earliest=True), SeekTo("earliest")),
        (groups_pb2.SeekGroupRequest(latest=True), SeekTo("latest")),
        (groups_pb2.SeekGroupRequest(timestamp_ms=0), SeekTo("timestamp_ms", 0)),
        (groups_pb2.SeekGroupRequest(offset=0), SeekTo("offset", 0)),
        (groups_pb2.SeekGroupRequest(shift=-7), SeekTo("shift", -7)),
        (groups_pb2.SeekGroupRequest(shift=0), SeekTo("shift", 0)),
    ],
)
def test_a_request_says_where_to(request_: groups_pb2.SeekGroupRequest, to: SeekTo) -> None:
    assert seek_to(request_) == to


@pytest.mark.parametrize("request_", [groups_pb2.SeekGroupRequest(), groups_pb2.SeekGroupRequest(earliest=False)])
def test_a_seek_to_nowhere_is_refused(request_: groups_pb2.SeekGroupRequest) -> None:
    with pytest.raises(InvalidArgument, match="the request names no target"):
        seek_to(request_)


@given(
    kind=st.sampled_from(["earliest", "latest", "timestamp_ms", "offset", "shift"]),
    value=st.integers(-(2**63), 2**63 - 1),
    start=st.integers(0, 1000),
    length=st.integers(0, 1000),
    committed=st.integers(0, 5000),
    of_timestamp=st.none() | st.integers(0, 5000),
)
def test_a_seek_never_moves_an_offset_out_of_the_log(
    kind: str, value: int, start: int, length: int, committed: int, of_timestamp: int | None
) -> None:
    to = SeekTo(kind, value)  # type: ignore[arg-type]
    sought = seek_target(to, P0, bounds=bounds(start, start + length), committed=committed, of_timestamp=of_timestamp)
    found = of_timestamp if kind == "timestamp_ms" else None  # it is in the log, whatever the bounds said before
    assert start <= sought.after <= max(start + length, found or 0)
    assert sought.asked is None or -(2**63) <= sought.asked < 2**63
    assert bool(sought.reason) == (sought.asked is not None or (kind == "timestamp_ms" and of_timestamp is None))
