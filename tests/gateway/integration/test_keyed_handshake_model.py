"""No interleaving writes a keyed request twice, and each rule of the handshake is needed for that."""

from __future__ import annotations

import pytest

from tests.kit.gateway.keyed_handshake_model import Attempt, Rule, explore

ALL = frozenset(Rule)
THREE = (Attempt(), Attempt(), Attempt())


def test_two_attempts_write_a_request_once_whatever_the_growth_and_the_leader_change_come_between() -> None:
    written_twice, looked_at = explore(ALL)
    assert written_twice is None
    assert looked_at > 10_000, "the model does not stop early"


@pytest.mark.slow
def test_three_attempts_write_a_request_once() -> None:
    written_twice, _ = explore(ALL, attempts=THREE)
    assert written_twice is None


@pytest.mark.slow
@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name.lower())
def test_without_one_of_the_rules_a_request_may_be_written_twice(rule: Rule) -> None:
    written_twice, _ = explore(ALL - {rule}, attempts=THREE)
    assert written_twice is not None, rule.value
