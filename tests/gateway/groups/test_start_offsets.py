"""Where partitions begin that this broker reads for a member: what it asks the leaders, and what becomes of their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.groups.start_offsets import find_starts
from gateway.routing.log_service import EpochQuestion
from metadata.errors import Corrupt, NoLeader, NotFound, TidelogError, UnknownLeaderEpoch
from metadata.group_member.start_offsets import GroupStart, StartPolicy, StartRules
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import LeaderEpoch, Offset, Partition, TopicId, TopicPartition
from segments.partition.partition_log import Bounds
from segments.wal.run_index import NO_EPOCH_END, EpochEnd

P0, P1, P2 = (TopicPartition(TopicId("a" * 32), Partition(number)) for number in range(3))
NAMES = {P0: "orders/0", P1: "orders/1", P2: "orders/2"}


class Leaders:
    """Answer of each partition the same bounds, and `end` for each epoch."""

    def __init__(self, end: EpochEnd | TidelogError = NO_EPOCH_END) -> None:
        self.end = end
        self.epochs_asked: list[EpochQuestion] = []
        self.bounds_asked: list[TopicPartition] = []

    async def ends_of_epochs(self, questions: Sequence[EpochQuestion], *, wait_s: float) -> list[EpochEnd | TidelogError]:
        self.epochs_asked += questions
        return [self.end] * len(questions)

    async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float) -> list[Bounds]:
        self.bounds_asked += partitions
        return [Bounds(Offset(3), Offset(10), Offset(10), LeaderEpoch(5))] * len(partitions)


def committed(offset: int, leader_epoch: int = -1) -> CommittedOffset:
    return CommittedOffset(offset=offset, leader_epoch=leader_epoch, committed_at_ms=0)


def starts(
    leaders: Any, stored: StoredOffsets | None, policy: StartPolicy = StartPolicy.EARLIEST
) -> dict[TopicPartition, GroupStart | TidelogError]:
    return asyncio.run(find_starts(leaders, StartRules("billing", policy), NAMES, stored, wait_s=0.1))


def test_only_what_is_not_committed_is_asked_for_its_bounds() -> None:
    leaders = Leaders()
    found = starts(leaders, StoredOffsets({P0: committed(7)}, {P1: Corrupt("torn")}), StartPolicy.LATEST)
    assert (found[P0], found[P2]) == (GroupStart(7), GroupStart(10, is_end=True))
    assert isinstance(found[P1], Corrupt)
    assert leaders.bounds_asked == [P2]
    assert leaders.epochs_asked == [], "a commit without an epoch says nothing of a cut"


def test_where_the_log_was_cut_it_begins_at_the_cut() -> None:
    leaders = Leaders(EpochEnd(LeaderEpoch(4), Offset(5)))
    start = starts(leaders, StoredOffsets({P0: committed(7, leader_epoch=4)}, {}))[P0]
    assert isinstance(start, GroupStart)
    assert (start.offset, bool(start.moved)) == (5, True)
    assert leaders.epochs_asked == [EpochQuestion(P0, 4)]


@pytest.mark.parametrize(
    "end", [NO_EPOCH_END, UnknownLeaderEpoch("4 is above mine"), Corrupt("torn")], ids=["no records", "unknown", "corrupt"]
)
def test_an_epoch_of_which_nothing_is_known_says_nothing_of_the_log(end: EpochEnd | TidelogError) -> None:
    assert starts(Leaders(end), StoredOffsets({P0: committed(7, leader_epoch=4)}, {}))[P0] == GroupStart(7)


def test_a_partition_without_a_leader_gets_no_leader_and_no_start_offset() -> None:
    found = starts(Leaders(NoLeader("it has no leader")), StoredOffsets({P0: committed(7, leader_epoch=4)}, {}))
    assert isinstance(found[P0], NoLeader)
    assert found[P1] == GroupStart(3)


def test_an_offset_that_is_gone_is_not_looked_for_again() -> None:
    assert set(starts(Leaders(), None).values()) == {GroupStart(3)}


def test_the_start_policy_error_fails_without_a_committed_offset_and_asks_no_leader() -> None:
    leaders = Leaders()
    found = starts(leaders, StoredOffsets({}, {}), StartPolicy.ERROR)
    assert all(isinstance(each, NotFound) for each in found.values())
    assert leaders.bounds_asked == []
