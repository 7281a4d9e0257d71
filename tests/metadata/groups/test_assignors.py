"""Who reads which partitions: complete, disjoint, in balance, and with the fewest moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from metadata.groups.assignors import ASSIGNORS, Assignment, Assignor, Subscriber, cooperative_sticky_assignor, sticky_assignor
from metadata.groups.model import InstanceId, MemberId

TOPICS = ("a", "b", "c")
COUNTS = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})
OWNED = st.frozensets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)), max_size=12)


@st.composite
def members(draw: st.DrawFn, *, alike: bool = False) -> list[Subscriber]:
    ids = draw(st.lists(st.from_regex(r"m[0-9]{1,2}", fullmatch=True), min_size=1, max_size=6, unique=True))
    some = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    return [
        Subscriber(
            MemberId(member),
            frozenset(TOPICS) if alike else draw(some),
            InstanceId(draw(st.sampled_from(["", f"i{member}"]))),
            draw(OWNED),
            draw(st.integers(-1, 3)),
        )
        for member in ids
    ]


def sizes(assignment: Assignment) -> list[int]:
    return [len(partitions) for partitions in assignment.values()]


def owner_of(assignment: Assignment) -> dict[tuple[str, int], MemberId]:
    return {partition: member for member, partitions in assignment.items() for partition in partitions}


def after(assignment: Assignment, generation: int = 1) -> list[Subscriber]:
    """The members, as they come to the next rebalance."""
    return [Subscriber(at, frozenset(TOPICS), owned=frozenset(held), generation=generation) for at, held in assignment.items()]


@pytest.mark.slow
@pytest.mark.parametrize("assignor", [each for name, each in ASSIGNORS.items() if name != "cooperative-sticky"])
@given(counts=COUNTS, group=members())
def test_each_partition_goes_to_one_member_that_subscribes_to_its_topic(
    assignor: Assignor, counts: Mapping[str, int], group: Sequence[Subscriber]
) -> None:
    assignment = assignor(counts, group)
    assert assignment.keys() == {member.member_id for member in group}
    given_away = Counter(partition for partitions in assignment.values() for partition in partitions)
    subscribed = {topic for member in group for topic in member.topics}
    assert given_away == {(topic, number): 1 for topic in subscribed for number in range(counts[topic])}
    for member in group:
        assert {topic for topic, _ in assignment[member.member_id]} <= member.topics
    assert assignor(counts, group[::-1]) == assignment


@pytest.mark.slow
@pytest.mark.parametrize("name", ["roundrobin", "sticky"])
@given(counts=COUNTS, group=members(alike=True))
def test_with_equal_subscriptions_members_differ_by_at_most_one_partition(
    name: str, counts: Mapping[str, int], group: Sequence[Subscriber]
) -> None:
    assigned = sizes(ASSIGNORS[name](counts, group))
    assert max(assigned) - min(assigned) <= 1


@given(counts=COUNTS, group=members())
def test_the_sticky_assignor_never_gives_a_member_two_partitions_more_than_another_that_could_take_one(
    counts: Mapping[str, int], group: Sequence[Subscriber]
) -> None:
    assignment = sticky_assignor(counts, group)
    for giver in group:
        for topic, _ in assignment[giver.member_id]:
            for taker in group:
                if topic in taker.topics:
                    assert len(assignment[giver.member_id]) <= len(assignment[taker.member_id]) + 1


@given(counts=COUNTS, size=st.integers(1, 6))
def test_sticky_moves_the_least_when_a_member_comes(counts: Mapping[str, int], size: int) -> None:
    before = sticky_assignor(counts, [Subscriber(MemberId(f"m{at}"), frozenset(TOPICS)) for at in range(size)])
    now = sticky_assignor(counts, [*after(before), Subscriber(MemberId("new"), frozenset(TOPICS))])
    moved = [at for at, owner in owner_of(before).items() if owner_of(now)[at] != owner]
    assert len(moved) == len(now[MemberId("new")]), "what moves goes to the new one, and to no other"
    assert len(moved) == sum(counts.values()) // (size + 1)


@given(counts=COUNTS, size=st.integers(2, 6))
def test_sticky_moves_only_what_a_member_had_that_is_gone(counts: Mapping[str, int], size: int) -> None:
    before = sticky_assignor(counts, [Subscriber(MemberId(f"m{at}"), frozenset(TOPICS)) for at in range(size)])
    now = sticky_assignor(counts, after(before)[1:])
    for member, held in list(before.items())[1:]:
        assert set(held) <= set(now[member])


@given(counts=COUNTS, group=members(alike=True))
def test_sticky_changes_nothing_where_nothing_changed(counts: Mapping[str, int], group: Sequence[Subscriber]) -> None:
    before = sticky_assignor(counts, group)
    assert sticky_assignor(counts, after(before)) == before


def test_of_two_that_claim_the_same_partitions_the_later_generation_is_believed() -> None:
    held = frozenset({("a", 0), ("a", 1)})
    old = Subscriber(MemberId("old"), frozenset("a"), owned=held, generation=4)
    new = Subscriber(MemberId("new"), frozenset("a"), owned=held, generation=5)
    assert sticky_assignor({"a": 2}, [old, new])[MemberId("old")] == [("a", 1)]
    assert cooperative_sticky_assignor({"a": 2}, [old, new]) == {"old": [], "new": []}, "both must give them up first"


@given(counts=COUNTS, group=members())
def test_cooperative_never_gives_away_what_another_still_holds(counts: Mapping[str, int], group: Sequence[Subscriber]) -> None:
    assignment = cooperative_sticky_assignor(counts, group)
    for partition, owner in owner_of(assignment).items():
        assert not [member for member in group if member.member_id != owner and partition in member.owned]
    sticky = sticky_assignor(counts, group)
    assert all(set(held) <= set(sticky[member]) for member, held in assignment.items())


@given(counts=COUNTS, size=st.integers(1, 5), come=st.integers(0, 3), gone=st.integers(0, 2))
def test_cooperative_comes_to_rest_in_two_rebalances_and_what_does_not_move_never_stops(
    counts: Mapping[str, int], size: int, come: int, gone: int
) -> None:
    first = sticky_assignor(counts, [Subscriber(MemberId(f"m{at}"), frozenset(TOPICS)) for at in range(size)])
    there = after(first)[min(gone, size - 1) :] + [Subscriber(MemberId(f"n{at}"), frozenset(TOPICS)) for at in range(come)]
    second = cooperative_sticky_assignor(counts, there)
    third = cooperative_sticky_assignor(counts, after(second, 2))
    assert set(owner_of(third)) == {(topic, number) for topic in TOPICS for number in range(counts[topic])}
    assert cooperative_sticky_assignor(counts, after(third, 3)) == third
    for member in there:
        assert member.owned & set(third[member.member_id]) <= set(second[member.member_id]) <= set(third[member.member_id])


@pytest.mark.slow
def test_a_thousand_members_and_nine_thousand_partitions_are_in_balance_after_one_joins() -> None:
    counts = dict.fromkeys(TOPICS, 3_000)
    before = sticky_assignor(counts, [Subscriber(MemberId(f"m{at:04}"), frozenset(TOPICS)) for at in range(999)])
    now = sticky_assignor(counts, [*after(before), Subscriber(MemberId("new"), frozenset(TOPICS))])
    assert set(sizes(now)) == {9}


class Cluster:
    """What aiokafka's assignors ask of a cluster."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self._counts[topic]))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "theirs"), [("range", RangePartitionAssignor), ("roundrobin", RoundRobinPartitionAssignor)])
@given(counts=COUNTS, group=members())
def test_range_and_round_robin_assign_as_another_client_does(
    name: str, theirs: Any, counts: Mapping[str, int], group: Sequence[Subscriber]
) -> None:
    group = [member._replace(instance_id=InstanceId("")) for member in group]
    reported = {member.member_id: ConsumerProtocolMemberMetadata(0, sorted(member.topics), b"") for member in group}
    expected = {
        member: sorted((topic, number) for topic, numbers in assigned.assignment for number in numbers)
        for member, assigned in theirs.assign(Cluster(counts), reported).items()
    }
    assert {member: sorted(held) for member, held in ASSIGNORS[name](counts, group).items()} == expected


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_a_static_member_that_restarts_under_another_id_has_the_same_partitions(name: str) -> None:
    def of(member_id: str) -> Assignment:
        static = Subscriber(MemberId(member_id), frozenset("a"), InstanceId("i"))
        return ASSIGNORS[name]({"a": 5}, [static, Subscriber(MemberId("m"), frozenset("a"))])

    assert of("a-first")[MemberId("a-first")] == of("z-later")[MemberId("z-later")]
