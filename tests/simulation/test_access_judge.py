"""Who may be served is judged by when keys and ACLs changed, and by what the network had brought to a broker."""

from __future__ import annotations

import pytest

from metadata.model import Revision
from tests.simulation.access_judge import LASTING_S, AccessFacts, Asked, BrokerFacts, Moment, Right, Span, judge

KEY = "00" * 8
WRITE = Right("guest", "write", "orders")
AGE_S = 2.0


def revision(number: int) -> Revision:
    return Revision(number)


def facts(*asked: Asked, broker: BrokerFacts | None = None, leader: BrokerFacts | None = None) -> AccessFacts:
    """The right is given at 1 s (revision 11), and taken at 20 s (revision 14); the key is made at 2 s and revoked at 10 s."""
    changes = [(1.0, 11), (2.0, 12), (10.0, 13), (20.0, 14)]
    return AccessFacts(
        AGE_S,
        keys={KEY: Span(revision(12), 13)},
        rights={WRITE: [Span(revision(11), 14)]},
        changes=[Moment(at_s, revision(number)) for at_s, number in changes],
        brokers={"b1": broker or BrokerFacts(), "b2": leader or BrokerFacts()},
        asked=list(asked),
    )


def asked(
    began_s: float, ended_s: float, *, refused: str = "", lasts: bool = False, position: tuple[str, int] | None = None
) -> Asked:
    return Asked("guest", "b1", KEY, WRITE, began_s, ended_s, lasts, refused, position)


def judged(of: AccessFacts) -> list[str]:
    return [violation.evidence for violation in judge(of, lambda partition, offset: "b2")]


@pytest.mark.parametrize("began_s", [2.0, 9.0, 10.0, 10.0 + AGE_S])
def test_a_request_may_be_served_that_begins_while_a_view_may_hold_the_key(began_s: float) -> None:
    assert judged(facts(asked(began_s, began_s + 30))) == []


def test_a_request_that_begins_later_than_the_bound_after_a_revocation_must_not_be_served() -> None:
    [evidence] = judged(facts(asked(10.0 + AGE_S + 0.01, 12.5)))
    assert "its key held at no revision of 13 to 13" in evidence


def test_nor_one_that_is_answered_before_the_key_was_made() -> None:
    [evidence] = judged(facts(asked(1.2, 1.9)))
    assert "its key held at no revision" in evidence


def test_a_broker_that_was_brought_a_change_goes_by_it_at_once() -> None:
    brought = BrokerFacts(keys=[Moment(10.1, revision(13))])
    assert judged(facts(asked(10.05, 10.3), broker=brought)) == []
    assert len(judged(facts(asked(10.2, 10.3), broker=brought))) == 1


def test_a_right_is_held_to_the_same_bound() -> None:
    late = facts(asked(20.0 + AGE_S + 0.01, 23.0))
    late.keys[KEY] = Span(revision(12))
    [evidence] = judged(late)
    assert "its right held at no revision of 14 to 14" in evidence


def test_a_delivery_of_a_call_that_lasts_is_judged_when_it_comes() -> None:
    assert judged(facts(asked(10.0 + AGE_S + LASTING_S - 0.01, 12.1, lasts=True))) == []
    assert len(judged(facts(asked(10.0 + AGE_S + LASTING_S + 0.01, 12.2, lasts=True)))) == 1


def test_a_process_that_was_stopped_may_deliver_what_it_was_about_to() -> None:
    woken = BrokerFacts(frozen=[(11.0, 50.0)])
    assert judged(facts(asked(50.01, 50.01, lasts=True), broker=woken)) == []
    assert len(judged(facts(asked(50.2, 50.2, lasts=True), broker=woken))) == 2


def test_a_leader_that_was_brought_the_revocation_must_not_append() -> None:
    heard = BrokerFacts(keys=[Moment(10.1, revision(13))])
    assert judged(facts(asked(10.05, 10.3, position=("t/0", 5)), leader=heard)) == []
    [evidence] = judged(facts(asked(10.2, 10.3, position=("t/0", 5)), leader=heard))
    assert "b2 appended it" in evidence


def test_a_denial_of_a_client_whose_key_and_right_hold_is_a_violation() -> None:
    [evidence] = judged(facts(asked(5.0, 5.1, refused="UNAUTHENTICATED")))
    assert "both its key and its right held all the time" in evidence
    assert judged(facts(asked(3.9, 4.0, refused="UNAUTHENTICATED"))) == [], "a view may be older than the key"
    assert judged(facts(asked(9.9, 10.1, refused="UNAUTHENTICATED"))) == []
