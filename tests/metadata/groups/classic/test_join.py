"""How members join a consumer group: the barrier, ids announced first, static members, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.errors import (
    GroupFull,
    InconsistentProtocol,
    InstanceFenced,
    InvalidArgument,
    InvalidGroupName,
    RebalanceInProgress,
    TooLarge,
    UnknownMember,
)
from metadata.groups.consumer_protocol import decode_subscription
from metadata.groups.model import Group, GroupPhase, JoinRequest, Protocol, check_group_name
from metadata.groups.settings import GroupSettings
from tests.kit.metadata.played_group import REBALANCE_MS, SESSION_MS, SETTINGS, Played, offers, request, settle, stable

# ── the first barrier ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_members_that_start_together_are_one_generation() -> None:
    played = Played()
    first = played.join(request())
    played.pass_ms(400)
    second = played.join(request())
    played.pass_ms(499)
    assert not played.reported, "each that comes holds the barrier for the whole delay"
    played.pass_ms(1)
    assert [played.joined(waiter).generation for waiter in (first, second)] == [1, 1]
    assert played.joined(first).leader == "m1"
    assert [member.member_id for member in played.joined(first).members] == ["m1", "m2"]
    assert not played.joined(second).members, "only the leader receives the other members"
    assert played.group.phase is GroupPhase.COMPLETING


def test_members_that_keep_coming_hold_the_first_barrier_no_longer_than_the_longest_rebalance_timeout() -> None:
    played = Played(replace(SETTINGS, group_members_max=1000))
    first = played.join(request(rebalance_ms=3_000))
    for _ in range(7):
        played.pass_ms(400)
        played.join(request(rebalance_ms=2_000))
    played.pass_ms(199)
    assert not played.reported
    played.pass_ms(1)
    assert played.joined(first).generation == 1
    assert len(played.group.members) == 8


def test_without_a_delay_the_first_member_has_its_generation_at_once() -> None:
    played = Played(replace(SETTINGS, group_initial_rebalance_delay_ms=0))
    assert played.joined(played.join(request())).generation == 1


def test_a_first_barrier_that_every_member_left_leaves_an_empty_group() -> None:
    played = Played()
    waiter = played.join(request())
    played.leave("m1")
    assert played.refusal(waiter) is UnknownMember
    played.pass_ms(500)
    assert played.group.phase is GroupPhase.EMPTY
    assert played.group.generation == 1


# ── every other barrier ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_member_waits_until_all_others_have_joined_again() -> None:
    played = stable(request(), request())
    new = played.join(request())
    assert played.group.phase is GroupPhase.PREPARING
    for member in ("m1", "m2"):
        with pytest.raises(RebalanceInProgress):
            played.heartbeat(member)
    first = played.join(request("m1"))
    played.pass_ms(20_000)
    assert new not in played.reported
    second = played.join(request("m2"))
    assert [played.joined(waiter).generation for waiter in (new, first, second)] == [2, 2, 2]
    assert played.joined(new).leader == "m1", "who led goes on to lead"


def test_a_member_that_does_not_rejoin_within_the_longest_rebalance_timeout_is_removed() -> None:
    played = stable(request(rebalance_ms=20_000), request(rebalance_ms=30_000))
    new = played.join(request(rebalance_ms=1_000))
    played.join(request("m2", rebalance_ms=30_000))
    played.pass_ms(29_999)
    assert new not in played.reported
    played.pass_ms(1)
    assert played.joined(new).generation == 2
    assert list(played.group.members) == ["m2", "m3"]
    assert played.joined(new).leader == "m3", "of those that came, the first leads"
    with pytest.raises(UnknownMember):
        played.heartbeat("m1")


def test_the_barrier_opens_when_the_last_one_that_it_waits_for_leaves() -> None:
    played = stable(request(), request())
    first = played.join(request("m1", protocols=offers("payments")))
    assert first not in played.reported
    played.leave("m2")
    assert played.joined(first).generation == 2
    assert [member.member_id for member in played.joined(first).members] == ["m1"]


def test_a_second_join_of_a_member_ends_its_earlier_call_with_rebalance_in_progress() -> None:
    played = Played()
    earlier = played.join(request())
    later = played.join(request("m1"))
    assert played.refusal(earlier) is RebalanceInProgress
    played.pass_ms(500)
    assert played.joined(later).member_id == "m1"


def test_a_member_that_joins_again_as_it_was_changes_nothing() -> None:
    played = stable(request(), request())
    answer = played.joined(played.join(request("m2")))
    assert (answer.generation, answer.leader, played.group.phase) == (1, "m1", GroupPhase.STABLE)


def test_a_leader_that_joins_again_begins_a_rebalance() -> None:
    played = stable(request(), request())
    played.join(request("m1"))
    assert played.group.phase is GroupPhase.PREPARING


def test_a_member_that_joins_with_another_subscription_begins_a_rebalance() -> None:
    played = stable(request(), request())
    played.join(request("m2", protocols=offers("payments")))
    assert played.group.phase is GroupPhase.PREPARING


def test_a_member_whose_answer_was_lost_gets_its_generation_again_before_the_assignment() -> None:
    played = Played()
    played.join(request())
    played.join(request())
    played.pass_ms(500)
    again = played.joined(played.join(request("m1")))
    assert (again.generation, len(again.members)) == (1, 2)
    assert played.joined(played.join(request("m2"))).generation == 1
    assert played.group.phase is GroupPhase.COMPLETING


# ── members that hang up, and members that flap ─────────────────────────────────────────────────────────────────────────


def test_a_member_that_hangs_up_before_it_knows_its_id_is_removed_and_not_awaited() -> None:
    played = stable(request(), request())
    ghost = played.join(request())
    first = played.join(request("m1"))
    played.hang_up(ghost)
    assert list(played.group.members) == ["m1", "m2"]
    second = played.join(request("m2"))
    assert {played.joined(waiter).generation for waiter in (first, second)} == {2}


def test_a_member_that_hangs_up_and_knows_its_id_may_come_again() -> None:
    played = stable(request(), request())
    waiter = played.join(request("m1"))
    played.hang_up(waiter)
    assert "m1" in played.group.members
    again = played.join(request("m1"))
    played.join(request("m2"))
    assert played.joined(again).generation == 2


def test_a_member_that_joined_and_hung_up_at_the_barrier_belongs_to_the_next_generation() -> None:
    played = stable(request(), request(), request())
    first = played.join(request("m1"))
    played.hang_up(played.join(request("m2", protocols=offers("orders", owned={"orders": (7,)}))))
    played.pass_ms(REBALANCE_MS)
    reported = played.joined(first)
    assert [member.member_id for member in reported.members] == ["m1", "m2"], "m3 has not joined"
    claimed = decode_subscription(reported.members[1].metadata).owned
    assert claimed == {"orders": [7]}, "so that the leader gives no other member what it may still read"
    settle(played)
    assert played.group.members.keys() == {"m1", "m2"}


def test_a_member_that_hung_up_at_the_barrier_and_never_syncs_is_removed() -> None:
    played = stable(request(), request(), request())
    played.join(request("m1"))
    played.hang_up(played.join(request("m2")))
    played.pass_ms(REBALANCE_MS)
    played.sync("m1", assignments={"m1": b"1", "m2": b"2"})
    played.pass_ms(REBALANCE_MS)
    assert list(played.group.members) == ["m1"]


def test_where_all_who_joined_have_hung_up_they_have_their_rebalance_timeout_to_come_again_and_no_longer() -> None:
    played = stable(request(), request())
    played.hang_up(played.join(request("m1")))
    played.pass_ms(REBALANCE_MS)
    assert (list(played.group.members), played.group.generation) == (["m1"], 1)
    played.pass_ms(REBALANCE_MS)
    assert (played.group.phase, played.group.generation) == (GroupPhase.EMPTY, 2)


def test_a_member_that_hangs_up_at_the_first_barrier_is_not_awaited() -> None:
    played = Played()
    first = played.join(request())
    flapping = played.announced(played.join(request(id_required=True)))
    played.hang_up(played.join(request(flapping)))
    played.pass_ms(2 * 500)
    assert [member.member_id for member in played.joined(first).members] == ["m1"]


def test_a_member_that_joins_and_hangs_up_every_10_ms_never_stops_the_others_for_long() -> None:
    played = stable(request(), request())
    worst_ms = 0
    for _ in range(20):
        began_ms = played.now_ms
        flapping = played.join(request())
        played.pass_ms(10)
        played.hang_up(flapping)
        for member in ("m1", "m2"):  # as soon as a heartbeat has answered so
            played.join(request(member))
        assert played.group.phase is GroupPhase.COMPLETING
        settle(played)
        worst_ms = max(worst_ms, played.now_ms - began_ms)
        assert list(played.group.members) == ["m1", "m2"]
    assert worst_ms == 10


# ── ids that are announced first (KIP-394) ──────────────────────────────────────────────────────────────────────────────


def test_a_new_member_may_get_its_id_before_it_joins() -> None:
    played = Played()
    member_id = played.announced(played.join(request(id_required=True)))
    assert played.group.phase is GroupPhase.EMPTY
    assert not played.group.members
    waiter = played.join(request(member_id, id_required=True))
    played.pass_ms(500)
    assert played.joined(waiter).member_id == member_id
    assert not played.group.announced


def test_an_announced_id_holds_the_barrier_until_its_session_timeout_and_no_longer() -> None:
    played = stable(request())
    played.join(request(id_required=True))
    first = played.join(request("m1"))
    played.pass_ms(SESSION_MS - 1)
    assert first not in played.reported
    played.pass_ms(1)
    assert played.joined(first).generation == 2
    with pytest.raises(UnknownMember):
        played.join(request("m2"))


def test_a_member_with_an_assigned_id_may_leave_before_it_has_joined() -> None:
    played = stable(request())
    announced = played.announced(played.join(request(id_required=True)))
    first = played.join(request("m1"))
    played.leave(announced)
    assert played.joined(first).generation == 2


def test_a_static_member_needs_no_id_first() -> None:
    played = Played()
    waiter = played.join(request(instance="i", id_required=True))
    played.pass_ms(500)
    assert played.joined(waiter).generation == 1


# ── static members (KIP-345, KIP-814) ───────────────────────────────────────────────────────────────────────────────────


def test_a_static_member_that_restarts_takes_its_place_without_a_rebalance() -> None:
    played = stable(request(), request(instance="i"))
    answer = played.joined(played.join(request(instance="i")))
    assert (answer.member_id, answer.generation, answer.leader) == ("m3", 1, "m1")
    assert played.group.phase is GroupPhase.STABLE
    assert "m3" in played.stored[-1].members, "or its former process would come back with a coordinator that did not see it"
    assert played.assignment(played.sync("m3", instance="i")) == b"m2"


def test_the_former_process_of_a_static_member_is_fenced() -> None:
    played = stable(request(), request(instance="i"))
    played.join(request(instance="i"))
    for asks in (played.heartbeat, played.commit, played.sync, played.leave):
        with pytest.raises(InstanceFenced):
            asks("m2", instance="i")
        with pytest.raises(UnknownMember):
            asks("m2")
    with pytest.raises(InstanceFenced):
        played.join(request("m2", instance="i"))


def test_a_static_leader_that_restarts_leads_on_and_need_not_assign() -> None:
    played = stable(request(instance="i"), request())
    answer = played.joined(played.join(request(instance="i")))
    assert (answer.leader, answer.member_id, answer.skip_assignment) == ("m3", "m3", True)
    assert [member.member_id for member in answer.members] == ["m3", "m2"]
    assert played.assignment(played.sync("m3", instance="i")) == b"m1"


def test_partitions_that_a_static_member_owned_before_its_restart_do_not_change_its_subscription() -> None:
    played = stable(request(), request(instance="i", protocols=offers("orders", owned={"orders": (1, 2)})))
    played.join(request(instance="i", protocols=offers("orders")))
    assert played.group.phase is GroupPhase.STABLE


@pytest.mark.parametrize(
    "changed",
    [
        request(instance="i", protocols=offers("payments", names=("range", "sticky"))),
        request(instance="i", protocols=offers(names=("sticky", "range"))),
        request(instance="i", protocols=(Protocol("range", b"?"), Protocol("sticky", b"?"))),
    ],
    ids=["another topic", "another favourite", "metadata of its own"],
)
def test_a_static_member_that_comes_back_changed_begins_a_rebalance(changed: JoinRequest) -> None:
    both = offers(names=("range", "sticky"))
    played = stable(request(protocols=offers(names=("sticky", "range"))), request(instance="i", protocols=both))
    assert played.group.protocol == "range"
    played.join(changed)
    assert played.group.phase is GroupPhase.PREPARING
    assert played.stored[-1] == played.group


def test_a_static_member_that_restarts_at_the_barrier_takes_the_place_of_its_waiting_process() -> None:
    played = Played()
    former = played.join(request(instance="i"))
    later = played.join(request(instance="i"))
    assert played.refusal(former) is InstanceFenced
    played.pass_ms(500)
    assert played.joined(later).member_id == "m2"
    assert list(played.group.members) == ["m2"]


def test_a_static_member_that_restarts_before_the_assignment_begins_another_rebalance() -> None:
    played = Played()
    played.join(request())
    played.join(request(instance="i"))
    played.pass_ms(500)
    waiting = played.sync("m2", instance="i")
    played.join(request(instance="i"))
    assert played.refusal(waiting) is InstanceFenced
    with pytest.raises(RebalanceInProgress):
        played.sync("m1", assignments={"m1": b"", "m2": b""})


def test_a_static_member_that_restarts_before_its_sync_request_has_to_send_it() -> None:
    """Its former id would never ask, and never be lost: the time to ask would be over, again and again."""
    played = Played()
    played.join(request())
    played.join(request(instance="i"))
    played.pass_ms(SETTINGS.group_initial_rebalance_delay_ms)
    played.sync("m1", assignments={"m1": b"1", "m2": b"2"})
    assert played.group.unsynced == {"m2"}
    played.join(request(instance="i"))
    assert played.group.unsynced == {"m3"}
    assert played.assignment(played.sync("m3")) == b"2"
    assert not played.group.unsynced
    played.join(request(instance="i"))
    played.pass_ms(2 * REBALANCE_MS)
    assert played.group.phase is GroupPhase.STABLE


def test_an_absent_static_member_keeps_its_membership_over_a_rebalance() -> None:
    played = stable(request(), request(instance="i", session_ms=600_000))
    new = played.join(request())
    played.join(request("m1"))
    played.pass_ms(REBALANCE_MS)
    assert played.joined(new).generation == 2
    assert list(played.group.members) == ["m1", "m2", "m3"]
    settle(played)
    played.pass_ms(5 * REBALANCE_MS)
    assert "m2" in played.group.members, "it is not asked for its assignment until its session ends"
    assert played.assignment(played.sync("m2", instance="i")) == b"m2"


def test_where_only_static_members_are_left_and_all_are_away_the_barrier_waits_for_them() -> None:
    played = stable(request(instance="i"), request())
    played.pass_ms(0, "m2")
    played.pass_ms(3 * REBALANCE_MS)
    assert (played.group.phase, played.group.generation) == (GroupPhase.PREPARING, 1)
    back = played.join(request(instance="i"))
    assert played.joined(back).generation == 2


def test_a_newcomer_is_not_led_into_a_generation_early_by_a_barrier_that_was_put_off() -> None:
    played = stable(request(instance="i"), request(instance="j"))
    played.leave("m1")
    played.pass_ms(REBALANCE_MS + 10_000)
    new = played.join(request())
    played.pass_ms(REBALANCE_MS - 10_001)
    assert new not in played.reported
    played.pass_ms(1)
    assert played.joined(new).generation == 2


def test_an_unknown_instance_id_is_a_new_member_and_with_a_member_id_an_unknown_one() -> None:
    played = stable(request())
    with pytest.raises(UnknownMember):
        played.join(request("m1", instance="i"))
    played.join(request(instance="i"))
    assert list(played.group.members) == ["m1", "m3"]


def test_a_static_member_that_leaves_out_its_instance_id_stays_static() -> None:
    played = stable(request(), request(instance="i"))
    played.join(request("m2", protocols=offers("payments")))
    assert played.group.members["m2"].instance_id == "i"  # type: ignore[index]


# ── protocols ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_protocol_is_what_most_members_prefer_of_those_that_all_offer() -> None:
    played = stable(
        request(protocols=offers(names=("sticky", "range"))),
        request(protocols=offers(names=("roundrobin", "range", "sticky"))),
        request(protocols=offers(names=("range", "sticky"))),
    )
    assert played.group.protocol == "range"


def test_of_as_many_votes_the_first_in_the_alphabet_wins() -> None:
    played = stable(request(protocols=offers(names=("sticky", "range"))), request(protocols=offers(names=("range", "sticky"))))
    assert played.group.protocol == "range"


def test_the_leader_receives_the_metadata_of_the_chosen_protocol() -> None:
    played = Played()
    first = played.join(request(protocols=(Protocol("a", b"1"), Protocol("b", b"2"))))
    played.join(request(protocols=(Protocol("b", b"3"),)))
    played.pass_ms(500)
    assert played.joined(first).protocol == "b"
    assert [member.metadata for member in played.joined(first).members] == [b"2", b"3"]


@pytest.mark.parametrize(
    "joining",
    [
        request(protocols=offers(names=("sticky",))),
        request(protocol_type="connect"),
        request(protocol_type=""),
        request(protocols=()),
        request(protocols=offers(names=("range", "range"))),
        request(protocols=offers(names=("",))),
    ],
    ids=["nothing in common", "another kind", "no kind", "nothing", "twice", "nameless"],
)
def test_a_join_without_a_common_protocol_is_refused(joining: JoinRequest) -> None:
    played = stable(request())
    before = played.group
    with pytest.raises(InconsistentProtocol):
        played.join(joining)
    assert played.group is before


def test_a_refusal_names_no_more_than_fits_an_error() -> None:
    played = stable(request(protocols=offers("o", names=tuple(f"p{number}" for number in range(2_000)))))
    with pytest.raises(InconsistentProtocol) as refused:
        played.join(request())
    assert len(refused.value.message) < 500


def test_a_member_alone_may_change_what_it_offers_and_even_its_kind() -> None:
    played = stable(request())
    waiter = played.join(request("m1", protocol_type="connect", protocols=offers(names=("sticky",))))
    assert (played.joined(waiter).protocol, played.joined(waiter).protocol_type) == ("sticky", "connect")


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "joining",
    [
        request(session_ms=SETTINGS.group_session_timeout_ms_min - 1),
        request(session_ms=SETTINGS.group_session_timeout_ms_max + 1),
        request(rebalance_ms=0),
        request(client="c" * 250),
        request(instance="i" * 250),
        request(protocols=offers(names=("\x1b[31m",))),
        request(protocols=offers(names=("p" * 250,))),
        request()._replace(client_host="h" * 100_000),
        request()._replace(client_host="\x1b[31m"),
    ],
)
def test_a_join_out_of_bounds_is_refused(joining: JoinRequest) -> None:
    with pytest.raises(InvalidArgument):
        Played().join(joining)


def test_a_group_takes_no_more_members_than_it_may_have_and_those_that_it_has_stay() -> None:
    played = stable(*[request() for _ in range(4)])
    played.join(request(id_required=True))
    with pytest.raises(GroupFull):
        played.join(request())
    with pytest.raises(GroupFull):
        played.join(request(instance="i"))
    played.join(request("m5"))
    assert len(played.group.members) == 5


def test_a_static_member_comes_back_into_a_full_group() -> None:
    played = stable(request(instance="i"), *[request() for _ in range(4)])
    assert played.joined(played.join(request(instance="i"))).generation == 1


def test_metadata_above_the_bound_are_refused() -> None:
    with pytest.raises(TooLarge, match="1000006 bytes; 262144 is the most"):
        Played().join(request(protocols=(Protocol("range\0", bytes(1_000_000)),)))


def test_a_member_that_would_make_the_group_too_large_to_be_stored_is_refused_and_the_others_go_on() -> None:
    played = Played(GroupSettings(group_bytes_max=100_000, group_metadata_bytes_max=60_000))
    metadata = (Protocol("range", bytes(40_000)),)
    played.join(request(protocols=metadata))
    before = played.group
    with pytest.raises(TooLarge, match="the group takes"):
        played.join(request(protocols=metadata))
    assert played.group is before
    played.pass_ms(500)
    assert played.group.phase is GroupPhase.COMPLETING


@pytest.mark.parametrize("name", ["", "g" * 250, "a\nb", "\0", "\x7f", "\ud800", "a\u202eb", "\u200b", "a\u2028b"])
def test_a_name_that_would_spoil_a_terminal_or_is_too_long_is_none(name: str) -> None:
    with pytest.raises(InvalidGroupName):
        check_group_name(name)


@pytest.mark.parametrize("name", ["g", "a/b", "..", "größe 雪", "g" * 249])
def test_any_other_text_is_a_name_for_a_group(name: str) -> None:
    assert check_group_name(name) == name


@pytest.mark.parametrize("member_id", ["m1", "m9"])
def test_a_join_with_an_unknown_member_id_is_refused(member_id: str) -> None:
    played = Played()
    with pytest.raises(UnknownMember):
        played.join(request(member_id))
    assert played.group == Group()
