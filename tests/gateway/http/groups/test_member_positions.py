from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.http.groups.cursor import ENTRIES_MAX, Cursor, CursorEntry, CursorOwner, decode_cursor, encode_cursor, weight
from gateway.http.groups.member_positions import MemberPositions
from metadata.errors import InvalidArgument
from metadata.groups.model import Generation, MemberId
from metadata.model import Partition, TopicId, TopicPartition

TOPIC = TopicId("a" * 32)
NOTHING = Cursor(Generation(4), {})


def partitions(count: int, topic: TopicId = TOPIC) -> list[TopicPartition]:
    return [TopicPartition(topic, Partition(number)) for number in range(count)]


def targets(positions: MemberPositions) -> list[tuple[TopicPartition, int]]:
    return positions.targets(positions.in_rotation)


P0, P1, P2 = partitions(3)


def begin_at(positions: MemberPositions, partitions: Sequence[TopicPartition], offset: int) -> None:
    """As at what is committed."""
    for partition in partitions:
        if not positions.has_entry(partition):
            positions.begin(partition, offset, at_the_end=False)


def committed(cursor: Cursor) -> Cursor:
    """As the client gets it back from a commit, and sends it with its next read."""
    entries = {partition: entry._replace(must_stay=False) for partition, entry in cursor.entries.items()}
    owner = CursorOwner("cluster", "billing", MemberId("m"))
    return decode_cursor(encode_cursor(cursor._replace(entries=entries), owner), owner)


def test_positions_come_from_the_cursor_then_from_commits_then_from_the_log() -> None:
    positions = MemberPositions([P0, P1, P2], Cursor(Generation(4), {P0: CursorEntry(7, must_stay=True)}))
    positions.begin(P1, 5, at_the_end=False)
    assert positions.without_entry == [P2]
    positions.begin(P2, 3, at_the_end=False)
    assert targets(positions) == [(P0, 7), (P1, 5), (P2, 3)]
    assert positions.cursor().uncommitted == {P0: 7}


def test_an_offset_at_the_end_of_the_log_is_kept_and_committed() -> None:
    positions = MemberPositions([P0], NOTHING)
    positions.begin(P0, 100, at_the_end=True)
    assert positions.cursor().uncommitted == {P0: 100}


def test_the_next_answer_begins_behind_the_partition_that_was_read_last() -> None:
    positions = MemberPositions([P0, P1, P2], NOTHING)
    begin_at(positions, [P0, P1, P2], 0)
    positions.advance(P0, 9)
    positions.advance(P1, 4)
    cursor = positions.cursor()
    assert [partition for partition, _ in targets(MemberPositions([P0, P1, P2], cursor))] == [P2, P0, P1]
    positions.advance(P2, 1)
    assert positions.cursor().rotation == 0


def test_a_cursor_of_partitions_of_another_member_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not assigned to this member"):
        MemberPositions([P0], Cursor(Generation(4), {P1: CursorEntry(7, must_stay=True)}))


def test_positions_of_a_deleted_topic_are_dropped() -> None:
    gone = TopicPartition(TopicId("b" * 32), Partition(0))
    positions = MemberPositions(
        [P0], Cursor(Generation(4), {gone: CursorEntry(7, must_stay=True), P0: CursorEntry(2, must_stay=True)})
    )
    assert positions.cursor().uncommitted == {P0: 2}


def test_a_member_without_partitions_has_nothing_to_read() -> None:
    positions = MemberPositions([], NOTHING)
    assert (targets(positions), positions.without_entry, positions.is_full) == ([], [], False)
    assert positions.cursor() == NOTHING


@pytest.mark.slow
def test_a_member_of_more_partitions_than_a_cursor_holds_reads_them_all_as_long_as_it_commits() -> None:
    many = partitions(2_500)
    cursor, seen = NOTHING, set()
    for _ in range(100):
        positions = MemberPositions(many, cursor)
        begin_at(positions, many, 0)
        for partition, _ in targets(positions)[:100]:
            if positions.may_move(partition):
                positions.advance(partition, 1)
                seen.add(partition)
        cursor = committed(positions.cursor())
        assert weight(cursor.entries) <= ENTRIES_MAX
    assert seen == set(many)


def test_when_the_cursor_is_full_only_what_it_holds_is_read_on_until_a_commit() -> None:
    many = partitions(2_500)
    positions = MemberPositions(many, NOTHING)
    begin_at(positions, many, 0)
    moved = []
    for partition, _ in targets(positions):
        if positions.may_move(partition):
            positions.advance(partition, 1)
            moved.append(partition)
    assert len(moved) == ENTRIES_MAX - 2
    assert {partition for partition, _ in targets(positions)} == set(moved)
    assert all(positions.may_move(partition) for partition in moved)
    assert positions.is_full
    positions = MemberPositions(many, committed(positions.cursor()))
    begin_at(positions, many, 0)
    assert not positions.is_full
    assert len(targets(positions)) == 2_500


def test_where_many_begin_at_the_end_those_without_room_begin_later() -> None:
    many = partitions(2_500)
    positions = MemberPositions(many, NOTHING)
    for partition in many:
        positions.begin(partition, 5, at_the_end=True)
    assert len(targets(positions)) == ENTRIES_MAX - 2
    assert len(positions.without_entry) == 2_500 - (ENTRIES_MAX - 2)


def test_a_dropped_position_has_no_entry_until_it_begins_again() -> None:
    positions = MemberPositions([P0], Cursor(Generation(4), {P0: CursorEntry(7, must_stay=True)}))
    assert positions.drop(P0) == 7
    assert (targets(positions), positions.without_entry) == ([], [P0])
    positions.begin(P0, 90, at_the_end=False)
    assert positions.cursor().entries == {P0: CursorEntry(90, must_stay=False)}


def test_places_in_partitions_that_are_not_known_yet_stay_in_the_cursor_and_take_room_there() -> None:
    unheard = {
        TopicPartition(TopicId("b" * 32), Partition(number)): CursorEntry(9, must_stay=True) for number in range(ENTRIES_MAX - 7)
    }
    many = partitions(ENTRIES_MAX)
    positions = MemberPositions(many, Cursor(Generation(4), unheard), unknown_here=unheard)
    begin_at(positions, many, 1)
    for partition in many:
        if positions.may_move(partition):
            positions.advance(partition, 2)
    assert positions.is_full
    assert positions.cursor().uncommitted == dict.fromkeys(unheard, 9) | dict.fromkeys(many[:3], 2)
