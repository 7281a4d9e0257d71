"""What becomes of a consumer group between two rebalances: assignments, heartbeats, commits, and who is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from metadata.errors import (
    InconsistentProtocol,
    InvalidArgument,
    RebalanceInProgress,
    StaleGeneration,
    TidelogError,
    TooLarge,
    UnknownMember,
)
from metadata.groups.classic.rebalance_barrier import begun_when_stored
from metadata.groups.classic.state_machine import wakes_at_ms
from metadata.groups.model import NO_GENERATION, Barrier, Group, GroupPhase
from metadata.groups.settings import GroupSettings
from tests.kit.metadata.played_group import REBALANCE_MS, Played, offers, request, settle, stable


def completing() -> Played:
    played = Played()
    played.join(request())
    played.join(request())
    played.pass_ms(500)
    return played


def preparing() -> Played:
    played = stable(request(), request())
    played.join(request())
    return played


# ── each phase, and the answers in it ───────────────────────────────────────────────────────────────────────────────────

PHASES: dict[GroupPhase, Callable[[], Played]] = {
    GroupPhase.EMPTY: Played,
    GroupPhase.PREPARING: preparing,
    GroupPhase.COMPLETING: completing,
    GroupPhase.STABLE: lambda: stable(request(), request()),
}
OK = None


@pytest.mark.parametrize(
    ("phase", "heartbeat", "commit", "sync", "by_hand"),
    [
        (GroupPhase.EMPTY, UnknownMember, UnknownMember, UnknownMember, OK),
        (GroupPhase.PREPARING, RebalanceInProgress, OK, RebalanceInProgress, UnknownMember),
        (GroupPhase.COMPLETING, OK, RebalanceInProgress, OK, UnknownMember),
        (GroupPhase.STABLE, OK, OK, OK, UnknownMember),
    ],
    ids=lambda value: value.value if isinstance(value, GroupPhase) else getattr(value, "__name__", "ok"),
)
def test_calls_of_a_member_of_the_generation_have_fixed_answers_in_each_phase(
    phase: GroupPhase,
    heartbeat: type[TidelogError] | None,
    commit: type[TidelogError] | None,
    sync: type[TidelogError] | None,
    by_hand: type[TidelogError] | None,
) -> None:
    played = PHASES[phase]()
    assert played.group.phase is phase
    assert refusal(lambda: played.heartbeat("m2")) is heartbeat
    assert refusal(lambda: played.commit("m2")) is commit
    assert refusal(lambda: played.commit(generation=NO_GENERATION)) is by_hand
    assert refusal(lambda: played.sync("m2")) is sync


@pytest.mark.parametrize("phase", [GroupPhase.PREPARING, GroupPhase.COMPLETING, GroupPhase.STABLE], ids=lambda phase: phase.value)
def test_unknown_members_and_other_generations_are_refused_in_every_phase(phase: GroupPhase) -> None:
    played = PHASES[phase]()
    before = played.group
    for asks in (played.heartbeat, played.commit, played.sync):
        for generation in (0, played.group.generation + 1, NO_GENERATION):
            assert refusal(lambda asks=asks, generation=generation: asks("m2", generation)) is StaleGeneration  # type: ignore[misc]
        assert refusal(lambda asks=asks: asks("outsider")) is UnknownMember  # type: ignore[misc]
        assert refusal(lambda asks=asks: asks("")) is UnknownMember  # type: ignore[misc]
    assert refusal(lambda: played.leave("outsider")) is UnknownMember
    assert played.group is before


def refusal(asks: Callable[[], object]) -> type[TidelogError] | None:
    try:
        asks()
    except TidelogError as error:
        return type(error)
    return None


# ── assignments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_members_wait_until_the_leader_brings_the_assignment_and_it_is_stored_before_they_hear_of_it() -> None:
    played = completing()
    second = played.sync("m2")
    assert second not in played.reported
    first = played.sync("m1", assignments={"m1": b"1", "m2": b"2"})
    assert [played.assignment(waiter) for waiter in (first, second)] == [b"1", b"2"]
    assert played.stored[-1] == played.group
    assert {at: member.assignment for at, member in played.stored[-1].members.items()} == {"m1": b"1", "m2": b"2"}


def test_a_member_that_syncs_later_receives_the_assignment_of_the_leader() -> None:
    played = completing()
    played.sync("m1", assignments={"m2": b"2"})
    assert played.assignment(played.sync("m2")) == b"2"
    assert played.assignment(played.sync("m1", assignments={"m1": b"another"})) == b"", "it is assigned once"


def test_only_the_leader_of_the_group_assigns_partitions() -> None:
    played = completing()
    waiter = played.sync("m2", assignments={"m1": b"mine", "m2": b"mine"})
    assert waiter not in played.reported
    played.sync("m1", assignments={"m2": b"2"})
    assert played.assignment(waiter) == b"2"


def test_an_assignment_for_an_unknown_member_is_refused_and_the_leader_may_retry() -> None:
    played = completing()
    with pytest.raises(InvalidArgument, match="'outsider'"):
        played.sync("m1", assignments={"m1": b"1", "outsider": b"3"})
    played.sync("m1", assignments={"m1": b"1"})
    assert played.group.phase is GroupPhase.STABLE


def test_a_member_that_syncs_for_another_protocol_is_refused() -> None:
    played = completing()
    for asked in ({"protocol": "sticky"}, {"protocol_type": "connect"}):
        with pytest.raises(InconsistentProtocol):
            played.sync("m2", **asked)  # type: ignore[arg-type]
    played.sync("m2", protocol="range", protocol_type="consumer")


def test_a_second_sync_of_a_member_ends_its_earlier_call_with_rebalance_in_progress() -> None:
    played = completing()
    earlier, later = played.sync("m2"), played.sync("m2")
    assert played.refusal(earlier) is RebalanceInProgress
    played.sync("m1", assignments={"m2": b"2"})
    assert played.assignment(later) == b"2"


def test_a_member_that_waits_for_its_assignment_has_to_rejoin_when_a_rebalance_begins() -> None:
    played = completing()
    waiter = played.sync("m2")
    played.join(request())
    assert played.refusal(waiter) is RebalanceInProgress


def test_an_assignment_above_the_bound_is_refused() -> None:
    played = completing()
    with pytest.raises(TooLarge, match="an assignment has 270000 bytes"):
        played.sync("m1", assignments={"m1": bytes(270_000)})
    assert played.group.phase is GroupPhase.COMPLETING


def test_assignments_that_would_make_the_group_too_large_to_be_stored_are_refused() -> None:
    played = Played(GroupSettings(group_bytes_max=60_000, group_metadata_bytes_max=60_000))
    played.join(request())
    played.pass_ms(500)
    with pytest.raises(TooLarge, match="the group takes"):
        played.sync("m1", assignments={"m1": bytes(60_000)})
    assert played.group.phase is GroupPhase.COMPLETING


# ── members that never ask for their assignment ─────────────────────────────────────────────────────────────────────────


def test_a_leader_that_brings_no_assignment_within_the_rebalance_timeout_is_lost() -> None:
    played = completing()
    waiter = played.sync("m2")
    played.pass_ms(REBALANCE_MS)
    assert played.refusal(waiter) is RebalanceInProgress
    assert list(played.group.members) == ["m2"]
    again = played.join(request("m2"))
    assert (played.joined(again).leader, played.joined(again).generation) == ("m2", 2)


def test_a_member_that_never_asks_for_its_assignment_is_lost_though_it_sends_heartbeats() -> None:
    played = completing()
    played.sync("m1", assignments={"m1": b"1", "m2": b"2"})
    played.pass_ms(REBALANCE_MS - 1)
    played.heartbeat("m2")
    played.pass_ms(1)
    assert list(played.group.members) == ["m1"], "else no member would read its partitions"
    assert played.group.phase is GroupPhase.PREPARING


def test_a_member_that_asked_and_hung_up_is_not_lost_for_that() -> None:
    played = completing()
    played.hang_up(played.sync("m2"))
    played.sync("m1", assignments={"m1": b"1", "m2": b"2"})
    played.pass_ms(2 * REBALANCE_MS)
    assert played.group.phase is GroupPhase.STABLE
    assert played.assignment(played.sync("m2")) == b"2"


# ── leaving, and being lost ─────────────────────────────────────────────────────────────────────────────────────────────


def test_when_the_last_member_leaves_the_group_is_empty_and_its_next_generation_begins() -> None:
    played = stable(request())
    played.leave("m1")
    assert (played.group.phase, played.group.generation, played.group.leader) == (GroupPhase.EMPTY, 2, "")
    assert played.stored[-1] == played.group
    assert wakes_at_ms(played.group) is None
    played.join(request())
    played.pass_ms(500)
    assert played.group.generation == 3


def test_a_member_that_falls_silent_is_lost_and_the_others_join_again() -> None:
    played = stable(request(), request())
    played.tick("m1")
    assert list(played.group.members) == ["m2"]
    with pytest.raises(RebalanceInProgress):
        played.heartbeat("m2")
    assert played.joined(played.join(request("m2"))).leader == "m2"


def test_heartbeats_of_a_member_at_the_barrier_say_that_it_waits_for_any_known_generation() -> None:
    played = stable(request(), request())
    waiter = played.join(request("m1"))
    for generation in (1, 0):  # an earlier one: it had not received the present one when the next rebalance began
        with pytest.raises(RebalanceInProgress) as reported:
            played.heartbeat("m1", generation)
        assert reported.value.details == {"waits": True}
    with pytest.raises(RebalanceInProgress) as reported:
        played.heartbeat("m2")
    assert not reported.value.details, "it shall join"
    played.hang_up(waiter)
    with pytest.raises(RebalanceInProgress) as reported:
        played.heartbeat("m1")
    assert not reported.value.details


def test_a_member_that_waits_for_the_coordinator_is_not_silent() -> None:
    played = stable(request(), request(), request())
    played.join(request("m1"))
    played.tick("m1", "m2", "m3")
    assert list(played.group.members) == ["m1"], "it waits at the barrier"
    played = completing()
    played.sync("m2")
    played.tick("m2")
    assert "m2" in played.group.members


def test_a_static_member_leaves_by_its_instance_id_alone() -> None:
    played = stable(request(), request(instance="i"))
    played.leave("", instance="i")
    assert list(played.group.members) == ["m1"]
    with pytest.raises(UnknownMember):
        played.leave("", instance="i")


def test_a_leader_that_leaves_before_the_assignment_is_replaced() -> None:
    played = completing()
    waiter = played.sync("m2")
    played.leave("m1")
    assert played.refusal(waiter) is RebalanceInProgress
    assert played.joined(played.join(request("m2"))).leader == "m2"


def test_a_tick_with_nothing_due_changes_nothing() -> None:
    played = stable(request(), request())
    before = played.group
    played.tick()
    played.tick("outsider")
    assert played.group == before
    assert wakes_at_ms(played.group) is None


# ── commits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_commit_of_a_generation_counts_until_the_next_one_begins() -> None:
    played = stable(request(), request())
    new = played.join(request())
    played.join(request("m1"))
    played.commit("m1", 1)
    played.commit("m2", 1)
    played.join(request("m2"))
    assert played.joined(new).generation == 2
    for member in ("m1", "m2"):
        with pytest.raises(StaleGeneration) as refused:
            played.commit(member, 1)
        assert refused.value.details["generation"] == 2


def test_a_group_without_members_takes_commits_by_hand_also_when_it_had_members_before() -> None:
    played = Played()
    played.commit(generation=NO_GENERATION)
    played = stable(request())
    with pytest.raises(UnknownMember, match="only they commit"):
        played.commit(generation=NO_GENERATION)
    played.leave("m1")
    played.commit(generation=NO_GENERATION)


# ── another coordinator goes on ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_next_coordinator_resumes_a_generation_without_a_rebalance() -> None:
    played = stable(request(), request())
    played.fail_over()
    played.heartbeat("m1", 1)
    played.commit("m2", 1)
    assert played.assignment(played.sync("m2", 1)) == b"m2"
    played.pass_ms(5 * REBALANCE_MS)
    assert played.group.phase is GroupPhase.STABLE


def test_the_next_coordinator_waits_for_the_assignment_of_the_announced_generation() -> None:
    played = completing()
    played.sync("m2")
    played.fail_over()
    assert played.joined(played.join(request("m2"))).generation == 1
    second = played.sync("m2")
    played.sync("m1", assignments={"m2": b"2"})
    assert played.assignment(second) == b"2"


def test_the_next_coordinator_gives_up_a_leader_that_does_not_come_back_with_the_assignment() -> None:
    played = completing()
    played.fail_over()
    second = played.sync("m2")
    played.pass_ms(REBALANCE_MS)
    assert played.refusal(second) is RebalanceInProgress
    assert list(played.group.members) == ["m2"]


def test_the_next_coordinator_restarts_the_rebalance_timeout_of_the_barrier() -> None:
    played = stable(request(), request(instance="i"))
    played.join(request())
    played.join(request(instance="i"))
    assert played.stored[-1].phase is GroupPhase.PREPARING
    played.fail_over()
    waiter = played.join(request("m1"))
    played.pass_ms(REBALANCE_MS - 1)
    assert waiter not in played.reported
    played.pass_ms(1)
    assert played.joined(waiter).generation == 2


def test_a_rebalance_that_was_under_way_is_begun_again_by_the_next_coordinator_at_the_first_join() -> None:
    played = stable(request(), request())
    played.join(request())
    played.fail_over()
    assert (played.group.phase, played.group.generation) == (GroupPhase.STABLE, 1)
    played.join(request())
    assert played.group.phase is GroupPhase.PREPARING
    settle(played)


# ── while a step is stored ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_deadline_that_a_step_began_counts_from_its_write_and_an_earlier_one_goes_on() -> None:
    opening, began, at_rest = completing().group, preparing().group, stable(request(), request()).group
    stored = begun_when_stored(Group(), opening, now_ms=50_000)
    assert stored == replace(opening, sync_by_ms=50_000 + REBALANCE_MS), "nothing else"
    later = begun_when_stored(at_rest, began, now_ms=50_000)
    assert later == replace(began, barrier=Barrier(50_000, 50_000 + REBALANCE_MS, first=False))
    for group in (opening, began, at_rest):
        assert begun_when_stored(group, group, now_ms=50_000) is group


def test_a_member_that_joined_a_new_coordinator_has_its_rebalance_timeout_from_where_that_is_alone() -> None:
    played = stable(request(), request())
    played.group = replace(played.group, alone_from_ms=played.now_ms + 3_000)
    for member in ("m1", "m2"):
        played.join(request(member, protocols=offers("others")))
    assert played.group.phase is GroupPhase.COMPLETING
    assert played.group.sync_by_ms == played.now_ms + 3_000 + REBALANCE_MS
    later = begun_when_stored(played.stored[0], played.group, now_ms=played.now_ms + 1_000)
    assert later.sync_by_ms == played.now_ms + 3_000 + REBALANCE_MS
