"""Whom a client asks, and how it gets to leaders that it can't connect."""

from __future__ import annotations

from tidelog.transport.reachability import Reachability

A, B, C = "a:9090", "b:9090", "c:9090"


def test_the_first_one_is_asked_until_it_gives_no_answer_and_again_when_it_does() -> None:
    met = Reachability()
    assert met.choose([A, B, C]) == A
    met.gave_no_answer(A, 1.0)
    assert met.choose([A, B, C]) == B
    met.answered(A)
    assert met.choose([A, B, C]) == A


def test_where_none_answers_the_one_whose_silence_is_the_longest_ago_is_asked() -> None:
    met = Reachability()
    for at_s, address in enumerate((B, A, C)):
        assert not met.none_answers([A, B, C])
        met.gave_no_answer(address, at_s)
    assert met.none_answers([A, B, C])
    assert met.choose([A, B, C]) == B


def test_a_broker_that_answers_unavailable_is_asked_last_but_is_not_silent() -> None:
    met = Reachability()
    met.gave_no_answer(A, 1.0)
    met.can_not_connect(B, 2.0)
    assert met.all_are_silent([A, B])
    met.spoke(A)
    assert met.none_answers([A, B])
    assert not met.all_are_silent([A, B])
    assert met.choose([A, B, C]) == C
    met.answered(B)
    assert not met.all_are_silent([B])


def test_a_leader_is_called_itself_even_when_it_is_silent() -> None:
    met = Reachability()
    met.gave_no_answer(A, 1.0)
    assert met.way_to(A, [A, B]) == A
    assert not met.has_detour(A)


def test_a_leader_that_can_not_be_connected_is_reached_through_another_until_it_can() -> None:
    met = Reachability()
    met.can_not_connect(A, 1.0)
    assert met.way_to(A, [A, B, C]) == B
    assert met.is_unconnected(A)
    assert met.has_detour(A)
    assert met.is_detour(B)
    assert met.connected(A)
    assert met.way_to(A, [A, B, C]) == A
    assert not met.is_detour(B)
    assert not met.connected(A), "it went there directly already"


def test_a_detour_stays_while_it_works_and_is_another_when_it_does_not() -> None:
    met = Reachability()
    met.can_not_connect(A, 1.0)
    assert met.way_to(A, [A, B, C]) == B
    met.gave_no_answer(B, 2.0)
    assert met.way_to(A, [A, B, C]) == B, "it may be slow because the leader is"
    met.can_not_connect(B, 3.0)
    assert met.way_to(A, [A, B, C]) == C
    assert met.way_to(A, [A, B]) == A, "there is no other broker"


def test_nothing_is_remembered_of_brokers_that_are_gone() -> None:
    met = Reachability()
    met.can_not_connect(A, 1.0)
    met.way_to(A, [A, B])
    met.keep([B, C])
    assert not met.is_unconnected(A)
    assert not met.is_detour(B)
    assert met.choose([A, B]) == A


def test_brokers_with_outdated_answers_are_asked_in_turn_after_the_others() -> None:
    met = Reachability()
    met.answered_older(A, 1.0)
    assert met.choose([A, B, C]) == B
    met.answered_older(B, 2.0)
    met.gave_no_answer(C, 3.0)
    assert met.choose([A, B, C]) == A, "who answers comes before who does not"
    assert not met.none_answers([A, B])
    met.answered_older(A, 4.0)
    assert met.choose([A, B, C]) == B
    met.answered_newer(A)
    assert met.choose([A, B, C]) == A
