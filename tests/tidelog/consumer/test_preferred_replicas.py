"""Where each partition is fetched: at its leader, at a broker of the reader's rack, and back."""

from __future__ import annotations

from tidelog.consumer.preferred_replicas import FetchSource, PreferredReplicas

AGE_S = 30.0
ONE, TWO = ("orders", 0), ("orders", 1)
LEADER, NEAR, NEXT = "leader:1", "near:1", "next:1"
# The leader, which may name another.
ASKED = FetchSource(LEADER, "b")
THERE = FetchSource(NEAR, "b")
# The leader, which is to answer.
AGAIN = FetchSource(LEADER, "")


def replicas(client_rack: str = "b") -> PreferredReplicas:
    return PreferredReplicas(client_rack, age_s=AGE_S)


def test_a_consumer_that_names_no_rack_fetches_from_leaders_alone() -> None:
    held = replicas("")
    assert held.of(ONE, LEADER, 0) == AGAIN
    assert held.avoid([ONE], 0) == []
    assert held.of(ONE, NEXT, 1) == FetchSource(NEXT, "")


def test_the_leader_is_asked_first_then_the_broker_that_it_names_and_the_leader_again_after_a_while() -> None:
    held = replicas()
    assert held.of(ONE, LEADER, 0) == ASKED
    held.prefer(ONE, NEAR, 10)
    assert (held.of(ONE, LEADER, 10), held.of(TWO, LEADER, 10)) == (THERE, ASKED)
    assert held.is_elsewhere(ONE)
    assert not held.is_elsewhere(TWO)
    assert held.of(ONE, NEXT, 10 + AGE_S - 1) == THERE, "it finds the next leader itself"
    assert held.of(ONE, NEXT, 10 + AGE_S) == FetchSource(NEXT, "b")
    assert not held.is_elsewhere(ONE)


def test_a_failed_preferred_broker_is_left_for_the_leader_without_a_rack_for_a_while() -> None:
    held = replicas()
    held.prefer(ONE, NEAR, 0)
    assert held.avoid([ONE, TWO], 5) == [ONE], "what fails at its leader fails there"
    assert held.of(ONE, LEADER, 5) == AGAIN
    assert held.avoid([ONE], 6) == []
    assert held.of(ONE, NEXT, 5 + AGE_S - 1) == FetchSource(NEXT, "")
    assert held.of(ONE, NEXT, 5 + AGE_S) == FetchSource(NEXT, "b")


def test_a_preferred_broker_that_names_another_sends_the_reader_to_the_leader() -> None:
    held = replicas()
    held.prefer(ONE, NEAR, 0)
    held.prefer(ONE, NEXT, 0)
    assert held.of(ONE, LEADER, 0) == AGAIN
    held = replicas()
    held.prefer(ONE, LEADER, 0)
    held.prefer(ONE, LEADER, 0)
    assert held.of(ONE, LEADER, 0) == AGAIN, "one that names itself"


def test_a_partition_that_is_read_no_more_is_forgotten() -> None:
    held = replicas()
    held.prefer(ONE, NEAR, 0)
    held.forget(ONE)
    held.forget(TWO)
    assert held.of(ONE, LEADER, 1) == ASKED
