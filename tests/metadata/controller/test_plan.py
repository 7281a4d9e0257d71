"""The controller's plan: nothing is given away before its leader is sealed, and a leader that lives is asked, never overruled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from metadata.cluster.broker_registry import Candidate
from metadata.cluster.leadership import FORMAT_VERSION, PartitionState, appointed, handed_over, moving
from metadata.controller import plan as controller_plan
from metadata.controller.ledger import Changes, PartitionLedger
from metadata.controller.plan import MOVES_MAX, Steps
from metadata.model import LeaderEpoch, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition

TOPIC, OTHER = TopicId("a" * 32), TopicId("b" * 32)
NOTHING = Steps([], [], [], [])
States = dict[TopicPartition, tuple[PartitionState, Revision]]


class View(NamedTuple):
    partition_counts: Mapping[TopicId, int]
    states: States
    unreadable: Set[TopicPartition]
    candidates: Sequence[Candidate]


def plan(view: View, sealed: Set[SessionId], *, moves_max: int = MOVES_MAX) -> Steps:
    """Returns the view of a ledger that got everything at once."""
    ledger = PartitionLedger()
    ledger.apply(Changes(view.partition_counts, {**dict.fromkeys(view.unreadable), **view.states}, view.unreadable))
    return controller_plan.plan(ledger, view.candidates, sealed, moves_max=moves_max)


def partition(number: int, topic: TopicId = TOPIC) -> TopicPartition:
    return TopicPartition(topic, Partition(number))


def led(session: int, *, moving_to: int | None = None, revision: int = 5) -> tuple[PartitionState, Revision]:
    state = appointed(None, SessionId(session))
    return (moving(state, SessionId(moving_to)) if moving_to is not None else state, Revision(revision))


def view(states: States, *sessions: int, count: int | None = None, draining: tuple[int, ...] = ()) -> View:
    candidates = [Candidate(SessionId(session), draining=session in draining) for session in sessions]
    return View({TOPIC: len(states) if count is None else count}, states, frozenset(), candidates)


def decided(steps: Steps) -> dict[int, tuple[int, int | None]]:
    """By partition number, the leader's session and whom it shall hand over to."""
    return {d.partition.partition: (d.state.leader_session, d.state.moving_to) for d in steps.decisions}


def test_a_cluster_at_rest_is_left_alone() -> None:
    assert plan(view({partition(0): led(1), partition(1): led(2)}, 1, 2), set()) == NOTHING


def test_new_partitions_are_given_to_those_who_live_at_epoch_0() -> None:
    steps = plan(view({}, 1, 2, count=4), set())
    assert sorted(session for session, _ in decided(steps).values()) == [1, 1, 2, 2]
    assert {(d.read_at, d.state.leader_epoch) for d in steps.decisions} == {(0, 0)}


def test_new_partitions_begin_at_the_first_epoch_of_their_topic_until_it_is_gone() -> None:
    ledger = PartitionLedger()
    ledger.apply(Changes({TOPIC: 1, OTHER: 1}, {}, frozenset(), {TOPIC: LeaderEpoch(40)}))
    steps = controller_plan.plan(ledger, [Candidate(SessionId(1))], set())
    assert {d.partition.topic_id: d.state.leader_epoch for d in steps.decisions} == {TOPIC: 40, OTHER: 0}
    assert [d.state.sessions[0].leader_epoch for d in steps.decisions if d.partition.topic_id == TOPIC] == [40]
    ledger.apply(Changes({TOPIC: 0}, {}, frozenset()))
    assert ledger.first_epoch(partition(0)) == 0


def test_a_partition_that_a_dead_session_led_waits_for_its_seal() -> None:
    states = {partition(0): led(1), partition(1): led(9)}
    assert plan(view(states, 1), set()) == Steps([SessionId(9)], [], [], [])
    steps = plan(view(states, 1), {SessionId(9)})
    assert steps.unregistered == []
    assert decided(steps) == {1: (1, None)}
    assert (steps.decisions[0].read_at, steps.decisions[0].state.leader_epoch) == (5, 1)


def test_a_registered_session_counts_as_alive_even_if_it_is_sealed() -> None:
    """It will find out by itself, and then register no more."""
    assert plan(view({partition(0): led(1)}, 1), {SessionId(1)}) == NOTHING


def test_a_live_leader_is_asked_to_hand_over_to_a_broker_that_joins() -> None:
    steps = plan(view({partition(number): led(1) for number in range(4)}, 1, 2), set())
    assert sorted(decided(steps).values()) == [(1, 2), (1, 2)]
    assert {d.state.leader_epoch for d in steps.decisions} == {0}, "the leader itself raises it"


def test_a_draining_broker_is_asked_for_everything() -> None:
    states = {partition(0): led(1), partition(1): led(2)}
    assert decided(plan(view(states, 1, 2, draining=(1,)), set())) == {0: (1, 2)}


def test_a_partition_that_is_on_its_way_counts_as_arrived() -> None:
    states = {partition(0): led(1), partition(1): led(1, moving_to=2)}
    assert plan(view(states, 1, 2), set()) == NOTHING


def test_a_move_is_neither_taken_back_nor_sent_elsewhere_though_its_target_died_or_drains() -> None:
    """Another copy of the metadata may know that the leader has handed over."""
    states = {partition(0): led(1, moving_to=3), partition(1): led(2)}
    assert plan(view(states, 1, 2), set()) == NOTHING
    assert plan(view(states, 1, 2, draining=(1,)), set()) == NOTHING
    assert plan(view(states, 1, 2, 3, draining=(3,)), set()) == NOTHING


def test_where_a_leader_dies_in_the_middle_of_a_move_the_target_is_appointed() -> None:
    states = {partition(0): led(9, moving_to=1), partition(1): led(2)}
    steps = plan(view(states, 1, 2), {SessionId(9)})
    assert decided(steps) == {0: (1, None)}
    assert steps.decisions[0].state.leader_epoch == 1
    assert plan(view(states, 1, 2), set()) == Steps([SessionId(9)], [], [], [])


def test_where_leader_and_target_died_both_are_sealed_and_the_next_leader_reads_both() -> None:
    states = {partition(0): led(9, moving_to=8), partition(1): led(1)}
    assert plan(view(states, 1, 2), {SessionId(9)}) == Steps([SessionId(8)], [], [], [])
    steps = plan(view(states, 1, 2), {SessionId(9), SessionId(8)})
    assert decided(steps) == {0: (2, None)}
    assert [(span.leader_epoch, span.session) for span in steps.decisions[0].state.sessions] == [(0, 9), (1, 8), (2, 2)]
    assert steps.decisions[0].state.leader_epoch == 2


def test_many_that_inherit_are_not_moved_at_once() -> None:
    states = {partition(number): led(9, moving_to=1) for number in range(4)}
    assert decided(plan(view(states, 1, 2), {SessionId(9)})) == dict.fromkeys(range(4), (1, None))


def test_only_so_many_partitions_move_at_a_time() -> None:
    states = {partition(number): led(1) for number in range(10)}
    states[partition(0)] = led(1, moving_to=2)
    assert len(plan(view(states, 1, 2), set(), moves_max=3).decisions) == 2
    assert plan(view(states, 1, 2), set(), moves_max=1).decisions == []


def test_a_leader_that_lives_is_asked_once_to_let_go_of_partitions_that_no_topic_has() -> None:
    states = {partition(0): led(1), partition(0, OTHER): led(1), partition(7): led(1, moving_to=2)}
    assert plan(view(states, 1, 2, count=1), set()) == Steps([], [], [partition(7), partition(0, OTHER)], [])
    asked = {partition(0): led(1), partition(7): led(1, moving_to=1)}
    assert plan(view(asked, 1, count=1), set()) == NOTHING


def test_partitions_of_no_topic_and_without_a_leader_are_forgotten() -> None:
    closed = handed_over(led(1, moving_to=1)[0], SegmentSeq(3), {SessionId(1)})
    states = {partition(0): led(1), partition(7): (closed, Revision(5)), partition(8): led(9), partition(9): led(8)}
    steps = plan(view(states, 1, count=1), {SessionId(9)})
    assert steps == Steps([SessionId(8)], [], [], [partition(7), partition(8)]), "the one that is not sealed yet is sealed first"


def test_a_state_that_can_not_be_read_is_left_as_it_is() -> None:
    steps = plan(View({TOPIC: 2}, {}, {partition(1)}, [Candidate(SessionId(1))]), set())
    assert decided(steps) == {0: (1, None)}


def test_a_state_that_can_not_be_read_now_is_left_as_it_is_though_an_older_one_is_known() -> None:
    states = {partition(0): led(9), partition(1): led(1)}
    assert plan(View({TOPIC: 2}, states, {partition(0)}, [Candidate(SessionId(1))]), {SessionId(9)}) == NOTHING


def test_a_state_that_can_not_be_read_is_forgotten_with_its_topic() -> None:
    steps = plan(View({TOPIC: 1}, {partition(0): led(1)}, {partition(0, OTHER)}, [Candidate(SessionId(1))]), set())
    assert steps == Steps([], [], [], [partition(0, OTHER)])


def test_a_state_of_a_newer_version_is_left_as_it_is_and_stops_no_other() -> None:
    state, revision = led(9)
    newer = msgspec.structs.replace(state, format_version=FORMAT_VERSION + 1), revision
    steps = plan(view({partition(0): newer, partition(1): led(9)}, 1), {SessionId(9)})
    assert decided(steps) == {1: (1, None)}


def test_without_brokers_nothing_is_decided() -> None:
    assert plan(view({partition(0): led(9, moving_to=1)}, count=2), {SessionId(9), SessionId(1)}) == NOTHING


class Cluster:
    """Carries out what is planned, at once, and lets brokers come and go."""

    def __init__(self, partition_count: int) -> None:
        self.count = partition_count
        self.states: States = {}
        self.live: set[int] = set()
        self.draining: set[int] = set()
        self.sealed: set[SessionId] = set()
        self.revision = 1

    def step(self) -> bool:
        """Whether there was anything to do."""
        steps = plan(view(self.states, *self.live, count=self.count, draining=tuple(self.draining)), self.sealed, moves_max=3)
        for session in steps.unregistered:
            assert session not in self.live
            self.sealed.add(session)
        for where, read_at, state in steps.decisions:
            held = self.states.get(where)
            assert read_at == (held[1] if held else 0)
            if held is not None and held[0].leader_session != state.leader_session:
                assert held[0].leader_session in self.sealed, "no live leader is replaced"
            assert state.leader_session in self.live or state.moving_to is None
            self.revision += 1
            self.states[where] = (state, Revision(self.revision))
        for where, (state, _) in self.states.items():
            if state.moving_to is not None and state.leader_session in self.live:
                self.revision += 1
                self.states[where] = (handed_over(state, SegmentSeq(0), set()), Revision(self.revision))
        return bool(steps.unregistered or steps.decisions)


@given(st.integers(0, 20), st.lists(st.tuples(st.sampled_from(["comes", "dies", "drains"]), st.integers(1, 6)), max_size=15))
def test_whatever_comes_and_goes_the_cluster_comes_to_rest_balanced(count: int, events: list[tuple[str, int]]) -> None:
    cluster = Cluster(count)
    for what, session in [*events, ("comes", 7)]:
        if what == "comes" and SessionId(session) not in cluster.sealed:
            cluster.live.add(session)
        elif what == "dies":
            cluster.live.discard(session)
        else:
            cluster.draining.add(session)
        cluster.step()
    for _ in range(10 + count):
        if not cluster.step():
            break
    else:
        raise AssertionError("it does not come to rest")
    loads = dict.fromkeys(cluster.live - cluster.draining, 0)
    for state, _ in cluster.states.values():
        loads[state.leader_session] += 1
    assert len(cluster.states) == count
    assert max(loads.values()) - min(loads.values()) <= 1
