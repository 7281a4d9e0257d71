"""What the judge of groups takes for broken, on histories of a few lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from metadata.groups.assignors import TopicPartitionName
from tests.simulation.group_judge import GroupJudge, GroupRule, Offsets

P0 = ("orders", 0)


@dataclass(eq=False, slots=True)
class Somebody:
    name: str
    group: str = "g"
    instance_id: str = ""
    alive: bool = True
    frozen: bool = False
    twins_s: float = 2.0
    is_member: bool = True
    owned: set[TopicPartitionName] = field(default_factory=set)

    def believes(self, partition: TopicPartitionName) -> bool:
        return partition in self.owned


class Reported:
    """A judge, and its clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.judge = GroupJudge(lambda: self.now_s, lambda _: None)

    def assign(self, who: Somebody) -> None:
        who.owned.add(P0)
        self.judge.assigned(who, [P0])

    @property
    def broken(self) -> list[GroupRule]:
        return [broken.rule for broken in self.judge.broken]


def test_two_live_members_that_own_a_partition_are_found_out() -> None:
    reported = Reported()
    first, second = Somebody("c1"), Somebody("c2")
    reported.assign(first)
    reported.assign(second)
    assert reported.broken == [GroupRule.OWNED]


def test_a_frozen_member_may_have_owned_it_and_hands_out_nothing_when_it_wakes() -> None:
    reported = Reported()
    first, second = Somebody("c1"), Somebody("c2")
    reported.assign(first)
    first.frozen = True
    reported.assign(second)
    assert reported.broken == []
    first.frozen = False
    reported.judge.handed_out(first, P0, 0, 5)
    assert reported.broken == [GroupRule.OWNED]


def test_a_member_that_was_replaced_under_its_instance_id_has_until_its_session_ends() -> None:
    reported = Reported()
    former, later = Somebody("c1", instance_id="i"), Somebody("c2", instance_id="i")
    reported.judge.replaced(former)
    reported.assign(former)
    reported.judge.replaced(later)
    reported.assign(later)
    reported.judge.handed_out(former, P0, 0, 5)
    assert reported.broken == []
    reported.now_s = 2.1
    reported.judge.handed_out(former, P0, 5, 9)
    assert reported.broken == [GroupRule.OWNED]


def test_a_process_that_came_back_and_is_replaced_once_more_has_its_time_again() -> None:
    reported = Reported()
    first, second, third = (Somebody(name, instance_id="i") for name in ("c1", "c2", "c3"))
    for reported.now_s, joins in ((0.0, first), (1.0, second), (1.5, first)):
        reported.judge.replaced(joins)
    reported.assign(first)
    reported.now_s = 9.0
    reported.judge.replaced(third)
    reported.assign(third)
    assert reported.broken == []
    reported.now_s = 11.1
    reported.judge.handed_out(first, P0, 0, 5)
    assert reported.broken == [GroupRule.OWNED]


def test_a_partition_without_an_owner_is_reported_after_the_bound_since_the_last_blow() -> None:
    reported = Reported()
    for reported.now_s in (0.0, 9.0, 11.0):
        reported.judge.sampled("g", [P0], bound_s=10.0, calm_since_s=2.0)
    assert reported.broken == []
    reported.now_s = 12.1
    reported.judge.sampled("g", [P0], bound_s=10.0, calm_since_s=2.0)
    assert reported.broken == [GroupRule.UNOWNED]


def test_a_start_below_the_acknowledged_offset_and_a_commit_of_unread_records_are_found() -> None:
    reported = Reported()
    owner = Somebody("c1")
    reported.judge.handed_out(owner, P0, 0, 5)
    reported.judge.committed(owner, P0, 5)
    reported.judge.began(owner, P0, 5, acknowledged=5)
    assert reported.broken == []
    reported.judge.began(owner, P0, 4, acknowledged=5)
    reported.judge.committed(owner, P0, 6)
    assert reported.broken == [GroupRule.COMMITTED, GroupRule.COMMITTED]


def test_two_members_that_commit_a_partition_in_one_generation_are_found() -> None:
    reported = Reported()
    reported.judge.handed_out(Somebody("c1"), P0, 0, 9)
    reported.judge.committed(Somebody("c1"), P0, 3, by="m1", generation=4)
    reported.judge.committed(Somebody("c1"), P0, 5, by="m1", generation=4)
    reported.judge.committed(Somebody("c2"), P0, 7, by="m2", generation=5)
    assert reported.broken == []
    reported.judge.committed(Somebody("c1"), P0, 8, by="m1", generation=5)
    assert reported.broken == [GroupRule.COMMITTED]


def test_partitions_of_a_removed_member_that_has_not_heard_of_it_do_not_count() -> None:
    reported = Reported()
    reported.now_s = 10.0
    removed, other = Somebody("c1"), Somebody("c2")
    reported.assign(removed)
    removed.is_member = False
    reported.assign(other)
    reported.judge.handed_out(removed, P0, 0, 1)
    assert reported.broken == []
    removed.is_member = True
    reported.judge.handed_out(removed, P0, 1, 2)
    assert reported.broken == [GroupRule.OWNED]


def test_offsets_that_were_never_delivered_and_those_that_came_twice_are_counted() -> None:
    reported = Reported()
    owner = Somebody("c1")
    reported.judge.handed_out(owner, P0, 0, 5)
    reported.judge.handed_out(owner, P0, 3, 8)
    reported.judge.judge_delivery("g", {P0: 8}, exactly_once=False)
    assert reported.broken == []
    reported.judge.judge_delivery("g", {P0: 9}, exactly_once=True)
    assert reported.broken == [GroupRule.DELIVERED, GroupRule.DELIVERED]


def test_offsets_of_a_last_commit_that_a_new_generation_refused_may_come_again_and_no_others() -> None:
    reported = Reported()
    reported.judge.handed_out(Somebody("c1"), P0, 0, 5)
    reported.judge.left_in_a_rebalance(3)
    reported.judge.handed_out(Somebody("c2"), P0, 2, 8)
    reported.judge.judge_delivery("g", {P0: 8}, exactly_once=True)
    assert reported.broken == []
    reported.judge.handed_out(Somebody("c2"), P0, 7, 9)
    reported.judge.judge_delivery("g", {P0: 9}, exactly_once=True)
    assert reported.broken == [GroupRule.DELIVERED]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8))))
def test_ranges_of_offsets_count_as_a_set_does(added: list[tuple[int, int]]) -> None:
    offsets, model = Offsets(), set[int]()
    for start, size in added:
        new = set(range(start, start + size))
        assert offsets.add(start, start + size) == len(new & model)
        model |= new
    assert offsets.complete_to == next(at for at in range(len(model) + 1) if at not in model)
