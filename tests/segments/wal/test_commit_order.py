"""When a segment is committed: when it and all before it are there, and no seal is among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.model import SegmentSeq
from segments.wal.commit_order import CommitOrder


def order_of(*segments: str) -> CommitOrder[str]:
    order: CommitOrder[str] = CommitOrder()
    for seq, segment in enumerate(segments):
        assert order.issue(segment) == seq
    return order


def landed(order: CommitOrder[str], seq: int) -> list[str]:
    return order.landed(SegmentSeq(seq))


def sealed(order: CommitOrder[str], seq: int) -> list[str]:
    return order.sealed(SegmentSeq(seq))


def test_a_segment_that_lands_early_waits_for_those_before_it() -> None:
    order = order_of("a", "b", "c", "d")
    assert landed(order, 1) == []
    assert landed(order, 3) == []
    assert landed(order, 0) == ["a", "b"]
    assert landed(order, 2) == ["c", "d"]
    assert order.undecided == 0


def test_a_segment_that_landed_early_is_no_longer_in_flight() -> None:
    order = order_of("a", "b", "c")
    landed(order, 2)
    assert (order.in_flight, order.undecided) == (2, 3)
    landed(order, 0)
    assert (order.in_flight, order.undecided) == (1, 2)


def test_a_segment_that_is_said_to_land_twice_is_answered_once() -> None:
    order = order_of("a", "b")
    assert [landed(order, 1), landed(order, 1), landed(order, 0), landed(order, 0)] == [[], [], ["a", "b"], []]


def test_a_seal_refuses_all_segments_from_its_sequence_number_on() -> None:
    order = order_of("a", "b", "c", "d")
    landed(order, 2)
    assert sealed(order, 1) == ["b", "c", "d"]
    assert (order.in_flight, order.undecided) == (1, 1)
    assert landed(order, 3) == []


def test_a_segment_before_a_seal_is_still_open() -> None:
    order = order_of("a", "b", "c")
    assert sealed(order, 2) == ["c"]
    assert landed(order, 1) == []
    assert landed(order, 0) == ["a", "b"]


def test_of_two_seals_the_first_in_the_session_counts() -> None:
    order = order_of("a", "b", "c", "d")
    assert sealed(order, 3) == ["d"]
    assert sealed(order, 1) == ["b", "c"]
    assert sealed(order, 2) == []
    assert order.sealed_at == 1


def test_a_sealed_session_issues_nothing() -> None:
    order = order_of("a")
    sealed(order, 0)
    with pytest.raises(AssertionError):
        order.issue("b")


@given(st.integers(0, 12), st.data())
def test_whatever_lands_when_the_answers_come_once_in_order_and_stop_at_the_seal(count: int, data: st.DataObject) -> None:
    order = order_of(*map(str, range(count)))
    landings: list[tuple[str, int]] = [("lands", seq) for seq in range(count)]
    seals = [("seal", seq) for seq in data.draw(st.lists(st.integers(0, count), max_size=2))]
    there: set[int] = set()
    committed: list[str] = []
    refused: list[str] = []
    sealed_at = count
    for event, seq in data.draw(st.permutations(landings + seals)):
        prefix_now = next((seq for seq in range(count) if seq not in there), count)
        if event == "lands":
            there.add(seq)
            committed += landed(order, seq)
        elif seq >= prefix_now:  # a seal is created at a gap, never over what is committed
            sealed_at = min(sealed_at, seq)
            refused += sealed(order, seq)
        prefix = next((seq for seq in range(count) if seq not in there), count)
        assert committed == [str(seq) for seq in range(min(prefix, sealed_at))]
    assert sorted(refused, key=int) == [str(seq) for seq in range(sealed_at, count)]
    assert order.undecided == 0
