"""A consumer group under anything that its members, its clock and its coordinators may do, in any order."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from metadata.errors import TidelogError
from metadata.groups.classic.rebalance_barrier import Step
from metadata.groups.classic.state_machine import wakes_at_ms
from metadata.groups.model import NO_GENERATION, Generation, GroupPhase, Joined, MemberId, Synced, Waiter
from metadata.groups.settings import GroupSettings
from tests.kit.metadata.played_group import Played, offers, request

LONGEST_MS = 60_000
INSTANCES = ("", "", "", "i", "j")
OFFERS = (offers(), offers(names=("range", "sticky")), offers("payments", names=("sticky", "range")))
TIMES_MS = (1_000, 20_000, LONGEST_MS)
WHO = st.integers(0, 30)


class Watched(Played):
    """Sees every step, and judges it."""

    def __init__(self) -> None:
        super().__init__(GroupSettings(group_initial_rebalance_delay_ms=500, group_members_max=6))
        self.since_ms: dict[Waiter, int] = {}
        self.asked_by: dict[Waiter, MemberId] = {}
        self.given: set[Generation] = set()
        self.leaders: dict[Generation, str] = {}

    def _apply(self, step: Step) -> None:
        before, waited = self.group, set(self.open)
        answered = [waiter for waiter, _ in step.answers]
        assert len(answered) == len(set(answered)), "who waits is answered once"
        assert step.group.generation in (before.generation, before.generation + 1)
        if step.group.generation > before.generation:
            assert step.group.generation not in self.given, "a generation is given once"
            assert step.stored
            self.given.add(step.group.generation)
        super()._apply(step)
        for waiter in waited - self.open:
            self._judge(waiter)
        for waiter in self.open:
            self.since_ms.setdefault(waiter, self.now_ms)

    def _judge(self, waiter: Waiter) -> None:
        answer = self.reported[waiter]
        if isinstance(answer, Joined):
            assert answer.generation == self.stored[-1].generation, "it was stored before it was answered"
            member = self.group.members[answer.member_id]
            leader = self.group.members[answer.leader]
            name = leader.instance_id or leader.member_id
            assert self.leaders.setdefault(answer.generation, name) == name, "a generation has one leader"
            assert bool(answer.members) == (member is leader)
        elif isinstance(answer, Synced):
            assert self.group.phase is GroupPhase.STABLE
            asked_by = self.group.members[self.asked_by[waiter]]
            mine = f"{self.group.generation}:{asked_by.instance_id or asked_by.member_id}".encode()
            assert answer.assignment in (b"", mine), "an assignment is for a member of its generation"


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.played = Watched()

    @initialize(members=st.integers(0, 3))
    def begins(self, members: int) -> None:
        for _ in range(members):
            self.played.join(request())
        self.played.pass_ms(500)

    def member(self, who: int) -> MemberId:
        """Mostly one of the group, sometimes an announced one, and sometimes one that is gone."""
        known = [*self.played.group.members, *self.played.group.announced, MemberId("m1")]
        return known[who % len(known)]

    def instance_of(self, member: MemberId) -> str:
        held = self.played.group.members.get(member)
        return held.instance_id if held is not None else ""

    @rule(instance=st.sampled_from(INSTANCES), offer=st.sampled_from(OFFERS), at_ms=st.sampled_from(TIMES_MS), first=st.booleans())
    def comes(self, instance: str, offer: tuple[object, ...], at_ms: int, first: bool) -> None:
        with contextlib.suppress(TidelogError):
            self.played.join(request(instance=instance, protocols=offer, rebalance_ms=at_ms, id_required=first))  # type: ignore[arg-type]

    @rule(who=WHO, offer=st.sampled_from(OFFERS), at_ms=st.sampled_from(TIMES_MS))
    def joins_again(self, who: int, offer: tuple[object, ...], at_ms: int) -> None:
        member = self.member(who)
        with contextlib.suppress(TidelogError):
            self.played.join(request(member, instance=self.instance_of(member), protocols=offer, rebalance_ms=at_ms))  # type: ignore[arg-type]

    @precondition(lambda self: self.played.group.phase in (GroupPhase.COMPLETING, GroupPhase.STABLE))
    @rule(who=WHO, late=st.sampled_from([0, 0, 0, 1]))
    def asks_for_its_assignment(self, who: int, late: int) -> None:
        group = self.played.group
        member = self.member(who)
        assignments = {str(at): f"{group.generation}:{held.instance_id or at}".encode() for at, held in group.members.items()}
        waiter = Waiter(self.played._waiters + 1)
        self.played.asked_by[waiter] = member
        with contextlib.suppress(TidelogError):
            self.played.sync(member, group.generation - late, assignments, instance=self.instance_of(member))

    @precondition(lambda self: self.played.group.phase is GroupPhase.COMPLETING)
    @rule(leader_too=st.booleans())
    def everybody_asks_for_its_assignment(self, leader_too: bool) -> None:
        group = self.played.group
        for index, member in enumerate([*group.members, *self.played.group.announced]):
            if member != group.leader:
                self.asks_for_its_assignment(index, 0)
        if leader_too:
            self.asks_for_its_assignment(list(group.members).index(group.leader), 0)

    @rule()
    def everybody_joins_again(self) -> None:
        for member in list(self.played.group.members):
            if member in self.played.group.members and member not in self.played.group.joining:
                with contextlib.suppress(TidelogError):
                    self.played.join(request(member, instance=self.instance_of(member), protocols=OFFERS[1]))

    @rule(who=WHO)
    def leaves(self, who: int) -> None:
        with contextlib.suppress(TidelogError):
            self.played.leave(self.member(who))

    @rule(who=WHO)
    def falls_silent(self, who: int) -> None:
        self.played.tick(self.member(who))

    @precondition(lambda self: self.played.open)
    @rule(which=WHO)
    def hangs_up(self, which: int) -> None:
        waiters = sorted(self.played.open)
        self.played.hang_up(waiters[which % len(waiters)])

    @rule(who=WHO, late=st.integers(-1, 1))
    def commits(self, who: int, late: int) -> None:
        group, member = self.played.group, self.member(who)
        try:
            self.played.commit(member, group.generation - late)
        except TidelogError:
            return
        assert late == 0
        assert member in group.members

    @rule()
    def commits_by_hand(self) -> None:
        try:
            self.played.commit(generation=NO_GENERATION)
        except TidelogError:
            assert self.played.group.phase is not GroupPhase.EMPTY
        else:
            assert self.played.group.phase is GroupPhase.EMPTY

    @rule(span_ms=st.sampled_from([1, 10, 500, 500, 5_000, LONGEST_MS]))
    def time_passes(self, span_ms: int) -> None:
        self.played.pass_ms(span_ms)

    @precondition(lambda self: self.played.stored)
    @rule()
    def another_coordinator_goes_on(self) -> None:
        generation = self.played.group.generation
        self.played.fail_over()
        assert self.played.group.generation == generation, "what was answered was stored"

    @invariant()
    def who_waits_waits_in_one_place(self) -> None:
        group = self.played.group
        assert sorted(self.played.open) == sorted([*group.joining.values(), *group.syncing.values()])

    @invariant()
    def no_member_waits_longer_than_the_longest_rebalance_timeout(self) -> None:
        for waiter in self.played.open:
            assert self.played.now_ms - self.played.since_ms[waiter] <= LONGEST_MS

    @invariant()
    def the_parts_fit_together(self) -> None:
        group = self.played.group
        for part in (group.joining, group.syncing, group.unsynced, group.unnamed):
            assert set(part) <= group.members.keys()
        assert group.unnamed <= group.joining.keys()
        assert (group.barrier is not None) == (group.phase is GroupPhase.PREPARING)
        assert bool(group.members) or group.phase in (GroupPhase.EMPTY, GroupPhase.PREPARING)
        assert not group.joining or group.phase is GroupPhase.PREPARING
        assert not group.syncing or group.phase is GroupPhase.COMPLETING
        assert not group.unsynced or group.phase in (GroupPhase.COMPLETING, GroupPhase.STABLE)
        assert not group.syncing.keys() & group.unsynced
        instances = [member.instance_id for member in group.members.values() if member.instance_id]
        assert len(instances) == len(set(instances)), "an instance has one place"
        if group.phase in (GroupPhase.COMPLETING, GroupPhase.STABLE):
            assert group.leader in group.members
            assert all(any(offered.name == group.protocol for offered in member.protocols) for member in group.members.values())
        assert (due_ms := wakes_at_ms(group)) is None or due_ms > self.played.now_ms, "what is due has happened"

    def teardown(self) -> None:
        """A group whose members are all silent comes to rest: empty, and without waiting calls."""
        for _ in range(4):
            self.played.pass_ms(LONGEST_MS)
            self.played.tick(*self.played.group.members)
        assert not self.played.open
        assert self.played.group.phase is GroupPhase.EMPTY
        assert wakes_at_ms(self.played.group) is None


@pytest.mark.hypothesis  # as those of @given are: make test-thorough runs them
def test_a_group_holds_its_promises_in_any_order() -> None:
    run_state_machine_as_test(GroupMachine, settings=settings(stateful_step_count=40))


@pytest.mark.slow
@pytest.mark.hypothesis
@pytest.mark.timeout(1800)
def test_a_group_holds_its_promises_in_many_orders() -> None:
    many = 3 * settings().max_examples
    run_state_machine_as_test(GroupMachine, settings=settings(max_examples=many, stateful_step_count=60))
