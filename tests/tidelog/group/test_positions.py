"""What is processed, and what of that is due to be committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.group.positions import GroupPositions, HandedOut, Offset
from tidelog.records import Record

P0, P1 = ("orders", 0), ("orders", 1)


def records(start: int, count: int, partition: int = 0) -> list[Record]:
    return [Record("orders", partition, start + n, 0, None, None) for n in range(count)]


def positions_at(offset: int, committed: int | None = None) -> GroupPositions:
    positions = GroupPositions()
    positions.begin(P0, "id", offset, committed=committed)
    return positions


def handed(positions: GroupPositions, start: int, count: int, *, taken: int) -> HandedOut:
    """A chunk that was iterated so far."""
    hand = positions.hand = HandedOut(P0, records(start, count), 7)
    hand.next_offset = start + taken
    return hand


def test_a_start_is_due_unless_it_is_what_is_committed() -> None:
    assert positions_at(5).due() == {P0: Offset(5, -1, "id")}
    assert positions_at(5, committed=5).due() == {}


def test_a_reset_because_an_offset_is_gone_is_due_at_once() -> None:
    """A reader that went on at the end, and stopped before a record came, began at a later end the next time."""
    positions = positions_at(5, committed=5)
    positions.reset_position(P0, 20)
    assert positions.due() == {P0: Offset(20, -1, "id")}
    assert positions.all() == {P0: 20}
    assert not positions.has_uncommitted(P0), "no record was handed out"


def test_records_of_a_gone_offset_that_the_caller_holds_take_nothing_back() -> None:
    positions = positions_at(5, committed=5)
    handed(positions, 5, 2, taken=2)
    positions.reset_position(P0, 20)
    positions.hand_is_processed()
    assert positions.due() == {}
    handed(positions, 20, 2, taken=2)
    positions.hand_is_processed()
    assert positions.due() == {P0: Offset(22, 7, "id")}


def test_the_record_in_hand_is_not_due_until_the_caller_asks_for_more() -> None:
    positions = positions_at(10, committed=10)
    handed(positions, 10, 5, taken=3)
    assert positions.due() == {P0: Offset(12, 7, "id")}
    assert positions.all() == {P0: 13}
    positions.hand_is_processed()
    assert positions.due() == {P0: Offset(13, 7, "id")}
    assert positions.hand is not None, "two records of it are left"


def test_nothing_of_a_whole_chunk_is_due_until_then() -> None:
    positions = positions_at(10, committed=10)
    hand = handed(positions, 10, 5, taken=0)
    assert [record.offset for record in hand.take_all()] == [10, 11, 12, 13, 14]
    assert positions.due() == {}
    positions.hand_is_processed()
    assert positions.due() == {P0: Offset(15, 7, "id")}
    assert positions.hand is None


def test_a_commit_in_the_middle_does_not_go_back_by_itself() -> None:
    positions = positions_at(10, committed=10)
    handed(positions, 10, 5, taken=3)
    positions.hand_is_processed()  # as commit() says
    positions.committed(P0, Offset(13, 7, "id"))
    assert positions.due() == {}


def test_a_commit_ahead_of_the_processed_records_does_not_go_back_by_itself() -> None:
    positions = positions_at(10, committed=10)
    handed(positions, 10, 5, taken=3)
    positions.committed(P0, positions.named(P0, 13), asked=True)  # as commit(record) says, of the record in hand
    assert positions.due() == {}
    assert positions.due([P0]) == {}
    assert not positions.has_uncommitted(P0)
    hand = positions.hand
    assert hand is not None
    hand.next_offset = 14
    assert positions.due() == {}, "the program has not finished the record in hand"
    positions.hand_is_processed()
    assert positions.due() == {P0: Offset(14, 7, "id")}


def test_a_seek_before_what_the_caller_has_committed_is_committed() -> None:
    positions = positions_at(10, committed=10)
    positions.committed(P0, positions.named(P0, 13), asked=True)
    positions.seek(P0, 11)
    assert positions.due() == {P0: Offset(11, -1, "id")}


def test_reading_that_goes_on_before_what_was_committed_is_committed_too() -> None:
    positions = positions_at(100, committed=100)  # which is gone: the log ends before it
    handed(positions, 3, 5, taken=5)
    positions.hand_is_processed()
    assert positions.due() == {P0: Offset(8, 7, "id")}


def test_a_hand_that_is_let_go_counts_but_for_the_last_record() -> None:
    positions = positions_at(10, committed=10)
    hand = handed(positions, 10, 5, taken=3)
    positions.let_go()
    assert (hand.records, positions.hand) == ([], None)
    assert positions.due() == {P0: Offset(12, 7, "id")}


def test_a_partition_that_is_dropped_is_not_committed_and_its_chunk_ends() -> None:
    positions = positions_at(10)
    hand = handed(positions, 10, 5, taken=3)
    positions.drop([P0])
    positions.hand_is_processed()
    assert (positions.due(), positions.all(), hand.records) == ({}, {}, [])
    positions.committed(P0, Offset(12))
    assert P0 not in positions


def test_an_answer_for_a_deleted_topic_does_not_count_for_its_successor() -> None:
    positions = positions_at(10)
    positions.drop([P0])
    positions.begin(P0, "new", 0, committed=None)
    positions.committed(P0, Offset(0, -1, "id"))
    assert positions.due() == {P0: Offset(0, -1, "new")}


def test_only_what_was_handed_out_and_not_committed_is_lost() -> None:
    positions = positions_at(10)
    positions.begin(P1, "id", 0, committed=0)
    assert not positions.has_uncommitted(P0)
    hand = handed(positions, 10, 5, taken=1)
    assert positions.has_uncommitted(P0)
    assert not positions.has_uncommitted(P1)
    positions.hand_is_processed()
    positions.committed(P0, Offset(11, 7, "id"))
    assert hand.rest()
    assert not positions.has_uncommitted(P0)


@given(st.lists(st.sampled_from(["next", "commit", "chunk", "leave"]), max_size=40))
def test_a_committed_offset_never_passes_the_records_that_the_caller_has_asked_past(steps: list[str]) -> None:
    positions, fetched, asked_past = positions_at(0, committed=0), 0, 0
    committed = 0
    for step in steps:
        if step in ("next", "chunk"):
            asked_past = positions.next_offset(P0)
            positions.hand_is_processed()
            if positions.hand is None:
                positions.hand = HandedOut(P0, records(fetched, 3), 7)
                fetched += 3
            hand = positions.hand
            hand.records = hand.rest()
            if step == "chunk":
                hand.take_all()
            else:
                hand.next_offset = hand.records[0].offset + 1
        elif step == "commit":
            for partition, offset in positions.due().items():
                assert committed <= offset.offset <= asked_past
                committed = offset.offset
                positions.committed(partition, offset)
        else:
            fetched = asked_past
            positions.let_go()
            positions.seek(P0, asked_past)
