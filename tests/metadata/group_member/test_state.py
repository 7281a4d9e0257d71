"""What a member decides by itself: what it offers and claims, how long it holds what it owns, and what heartbeats mean."""

from __future__ import annotations

from typing import Any

import pytest

from metadata.errors import (
    InconsistentProtocol,
    InstanceFenced,
    InvalidArgument,
    MemberIdRequired,
    OutcomeUnknown,
    RebalanceInProgress,
    StaleGeneration,
    TidelogError,
    Unavailable,
    UnknownMember,
)
from metadata.group_member.leader_assignment import assignments, has_grown, subscribers
from metadata.group_member.settings import MemberSettings
from metadata.group_member.state import Heard, MemberPhase, MemberState, Moves
from metadata.groups.assignors import Subscriber, TopicPartitionName
from metadata.groups.consumer_protocol import Subscription as Asked
from metadata.groups.consumer_protocol import decode_assignment, decode_subscription, encode_assignment, encode_subscription
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER, Generation, Joined, JoinedMember, MemberId, Synced

SETTINGS = MemberSettings(session_timeout_ms=10_000, max_poll_interval_ms=60_000)
ME = MemberId("c-1")
P0, P1 = ("orders", 0), ("orders", 1)


def staying(*owned: TopicPartitionName, protocol: str = "cooperative-sticky", settings: MemberSettings = SETTINGS) -> MemberState:
    """In generation 1, which it asked for at 100 s."""
    member_state = MemberState(settings)
    member_state.join_request(["orders"], now_s=100)
    member_state.joined(joined(1, protocol))
    member_state.sync_request({}, now_s=100)
    member_state.took(member_state.synced(synced(*owned)).assigned)
    return member_state


def joined(generation: int, protocol: str = "cooperative-sticky") -> Joined:
    return Joined(Generation(generation), "consumer", protocol, ME, ME)


def synced(*owned: TopicPartitionName) -> Synced:
    by_topic: dict[str, list[int]] = {}
    for topic, number in owned:
        by_topic.setdefault(topic, []).append(number)
    return Synced("consumer", "", encode_assignment(by_topic))


def answered(member_state: MemberState, error: TidelogError | None, *, sent_s: float) -> Heard:
    beat = member_state.beat(now_s=sent_s)
    assert beat is not None
    return member_state.answered(beat, error)


# ── joining ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_member_asks_for_its_id_first_and_a_static_one_need_not() -> None:
    member_state = MemberState(SETTINGS)
    assert member_state.join_request(["orders"], now_s=0).member_id_required
    member_state.named(MemberIdRequired("join again", member_id="c-7"))
    assert member_state.join_request(["orders"], now_s=0)[:2] == ("c-7", NO_INSTANCE)
    static = MemberState(MemberSettings(instance_id="a")).join_request(["orders"], now_s=0)
    assert (static.instance_id, static.member_id_required) == ("a", False)


def test_a_member_with_partitions_offers_cooperative_assignors_alone_and_says_since_when_it_holds_them() -> None:
    first = MemberState(SETTINGS).join_request(["orders", "events"], now_s=0)
    assert [offered.name for offered in first.protocols] == ["cooperative-sticky", "range"]
    assert decode_subscription(first.protocols[0].metadata) == Asked(("events", "orders"))
    (offered,) = staying(P0, P1).join_request(["orders"], now_s=0).protocols
    assert offered.name == "cooperative-sticky"
    assert decode_subscription(offered.metadata) == Asked(("orders",), {"orders": [0, 1]}, 1)


def test_partitions_given_up_to_join_are_claimed_from_eager_assignors_alone() -> None:
    settings = MemberSettings(assignors=("sticky", "cooperative-sticky"))
    member_state = staying(P0, protocol="sticky", settings=settings)
    assert member_state.revokes_before_joining
    member_state.gave_up(member_state.owned)
    eager, cooperative = member_state.join_request(["orders"], now_s=0).protocols
    assert decode_subscription(eager.metadata).owned == {"orders": [0]}
    assert decode_subscription(cooperative.metadata).owned == {}


def test_a_group_that_takes_an_assignor_which_was_not_offered_is_not_joined() -> None:
    for member_state, protocol in ((MemberState(SETTINGS), "sticky"), (staying(P0), "range")):
        member_state.join_request(["orders"], now_s=0)
        with pytest.raises(InconsistentProtocol):
            member_state.joined(joined(2, protocol))


def test_an_assignment_says_what_to_give_up_and_what_to_take_each_once_and_nothing_that_was_not_asked_for() -> None:
    member_state = staying(P0)
    reported = Synced("consumer", "", encode_assignment({"orders": [1, 1, -1], "secrets": [0]}))
    assert member_state.synced(reported) == Moves(frozenset({P0}), frozenset({P1}), frozenset({("orders", -1), ("secrets", 0)}))
    with pytest.raises(InvalidArgument):
        member_state.synced(Synced("consumer", "", b"\0"))


# ── the clock ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_member_holds_its_partitions_for_a_session_timeout_less_a_margin_after_the_last_answered_heartbeat() -> None:
    member_state = staying(P0)
    assert member_state.holds_until_s == pytest.approx(100 + 9)
    answered(member_state, None, sent_s=103)
    assert member_state.holds_until_s == pytest.approx(103 + 9)
    for error in (Unavailable("?"), OutcomeUnknown("?")):
        assert answered(member_state, error, sent_s=106) is Heard.NOTHING_NEW
    assert member_state.holds_until_s == pytest.approx(103 + 9)
    member_state.gave_up(member_state.owned)
    assert member_state.holds_until_s == float("inf")


def test_while_the_group_rebalances_heartbeats_keep_the_session_and_the_barrier_opens_all_the_same() -> None:
    member_state = staying(P0)
    answered(member_state, None, sent_s=103)
    for sent_s in range(104, 160):
        answered(member_state, RebalanceInProgress("join again"), sent_s=sent_s)
    assert member_state.holds_until_s == pytest.approx(103 + 58)
    member_state.join_request(["orders"], now_s=160)
    answered(member_state, RebalanceInProgress("join again"), sent_s=165)
    member_state.joined(joined(2))
    assert member_state.holds_until_s == pytest.approx(165 + 9), "the barrier opened after that heartbeat, with this member"


def test_a_member_whose_request_to_join_waits_keeps_what_it_owns_however_long_the_others_take() -> None:
    member_state = staying(P0)
    member_state.join_request(["orders"], now_s=110)
    for sent_s in range(111, 300):
        assert answered(member_state, RebalanceInProgress("wait", waits=True), sent_s=sent_s) is Heard.NOTHING_NEW
    assert member_state.holds_until_s == pytest.approx(299 + 9)
    for sent_s in range(300, 340):  # its call has ended, and the next coordinator does not know that it has joined
        answered(member_state, RebalanceInProgress("join again"), sent_s=sent_s)
    assert member_state.holds_until_s == pytest.approx(339 + 9)
    assert "session timeout" in member_state.why_not_held
    answered(member_state, RebalanceInProgress("join again"), sent_s=355)
    assert member_state.holds_until_s == pytest.approx(299 + 58)
    assert "rebalance timeout" in member_state.why_not_held


def test_until_it_has_its_assignment_heartbeats_keep_the_session_alone() -> None:
    member_state = staying(P0)
    member_state.join_request(["orders"], now_s=110)
    member_state.joined(joined(2))
    for sent_s in range(111, 165):
        assert answered(member_state, None, sent_s=sent_s) is Heard.NOTHING_NEW
    assert member_state.holds_until_s == pytest.approx(110 + 58), "a member that does not ask for its assignment in time is lost"
    member_state.sync_request({}, now_s=165)
    member_state.synced(synced(P0))
    answered(member_state, None, sent_s=168)
    assert member_state.holds_until_s == pytest.approx(168 + 9)


def test_an_answer_to_join_that_began_no_generation_says_nothing_of_a_barrier_that_began_since() -> None:
    member_state = staying(P0)
    member_state.join_request(["orders"], now_s=110)
    answered(member_state, RebalanceInProgress("join again"), sent_s=150)  # it overtook the answer
    member_state.joined(joined(1))
    answered(member_state, RebalanceInProgress("join again"), sent_s=167)
    assert member_state.holds_until_s == pytest.approx(110 + 58)


# ── heartbeats ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_to_a_heartbeat_says_whether_the_member_stays_joins_again_or_ends() -> None:
    assert answered(staying(P0), None, sent_s=103) is Heard.NOTHING_NEW
    assert answered(staying(P0), RebalanceInProgress(""), sent_s=103) is Heard.JOIN_AGAIN
    for error in (UnknownMember(""), StaleGeneration(""), InstanceFenced(""), InvalidArgument("")):
        assert answered(staying(P0), error, sent_s=103) is Heard.ENDED


def test_a_heartbeat_of_a_generation_before_means_nothing() -> None:
    member_state = staying(P0)
    beat = member_state.beat(now_s=103)
    member_state.join_request(["orders"], now_s=104)
    member_state.joined(joined(2))
    assert beat is not None
    for error in (RebalanceInProgress(""), UnknownMember("")):
        assert member_state.answered(beat, error) is Heard.NOTHING_NEW
    assert MemberState(SETTINGS).beat(now_s=0) is None


def test_a_join_is_repeated_only_after_a_later_heartbeat_contradicts_it() -> None:
    member_state = staying(P0)
    member_state.join_request(["orders"], now_s=110)
    for error in (None, StaleGeneration(""), RebalanceInProgress("join again")):
        assert answered(member_state, error, sent_s=111) is Heard.NOTHING_NEW, "it may have overtaken the request"
    for error in (None, RebalanceInProgress("join again")):
        assert answered(member_state, error, sent_s=114) is Heard.ASK_AGAIN
    assert answered(member_state, RebalanceInProgress("wait", waits=True), sent_s=114) is Heard.NOTHING_NEW
    assert answered(member_state, UnknownMember(""), sent_s=111) is Heard.ENDED


def test_a_member_that_waits_to_join_checks_a_stale_generation_again_before_it_gives_up_the_answer() -> None:
    member_state = staying(P0)
    for asked_s in (110, 120):
        member_state.join_request(["orders"], now_s=asked_s)
        assert answered(member_state, StaleGeneration(""), sent_s=asked_s + 4) is Heard.CHECK_AGAIN, "the answer may be on its way"
        assert answered(member_state, StaleGeneration(""), sent_s=asked_s + 5) is Heard.ASK_AGAIN


def test_a_member_that_is_lost_owns_nothing_and_keeps_its_id_unless_the_group_does_not_know_it() -> None:
    for why, member_id in ((StaleGeneration(""), ME), (UnknownMember(""), NO_MEMBER)):
        member_state = staying(P0, P1)
        assert member_state.lost(why) == {P0, P1}
        assert (member_state.owned, member_state.generation, member_state.member_id, member_state.phase) == (
            frozenset(),
            NO_GENERATION,
            member_id,
            MemberPhase.OUT,
        )
        assert len(member_state.join_request(["orders"], now_s=0).protocols) == 2


# ── the leader ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_member_whose_subscription_can_not_be_read_is_given_nothing_and_the_others_everything() -> None:
    whole = JoinedMember(MemberId("b"), NO_INSTANCE, encode_subscription(Asked(("orders",), {"orders": [1]}, 4)))
    reported = joined(1)._replace(members=(JoinedMember(MemberId("a"), NO_INSTANCE, b"\0\3torn"), whole))
    found = subscribers(reported)
    assert found.torn == ("a",)
    assert found.topics == {"orders"}
    assert found.readable == (Subscriber(MemberId("b"), frozenset({"orders"}), NO_INSTANCE, frozenset({P1}), 4),)
    assert {at: decode_assignment(reported) for at, reported in assignments("range", {"orders": 2}, found.readable).items()} == {
        "b": {"orders": [0, 1]}
    }


def test_more_partitions_are_news_and_fewer_are_none() -> None:
    assert has_grown({"orders": 2}, {"orders": 3})
    assert has_grown({}, {"orders": 1})
    assert not has_grown({"orders": 2, "events": 1}, {"orders": 1})


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_settings_that_make_no_sense_are_refused_and_heartbeats_are_three_in_each_timeout() -> None:
    with pytest.raises(InvalidArgument, match="rang") as reported:
        MemberSettings(assignors=("rang",))
    assert reported.value.hint == "Did you mean 'range'?"
    refused: list[dict[str, Any]] = [{"session_timeout_ms": 0}, {"assignors": ()}, {"assignors": ("range", "range")}]
    for changes in refused:
        with pytest.raises(InvalidArgument):
            MemberSettings(**changes)
    assert MemberSettings().beat_ms == 3_000
    assert MemberSettings(session_timeout_ms=6_000).beat_ms == 2_000
    assert MemberSettings(max_poll_interval_ms=900).beat_ms == 300
