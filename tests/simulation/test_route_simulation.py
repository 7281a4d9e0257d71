"""Requests keep every invariant whichever broker takes them, and the checker notices when a rule of routing is broken."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simulation.history_checker import Invariant
from tests.simulation.route_broken_rules import BrokenRouteRule
from tests.simulation.route_world import simulate_routes

pytestmark = pytest.mark.slow


class Caught(NamedTuple):
    """A broken rule: as what, and in which world. Where a change of the code changes the worlds, others are tried;
    `python -m tests.simulation --kind routes --seeds 40 --break RULE` finds the next one."""

    invariants: set[Invariant]
    in_seed: int
    # Whether brokers end with an error that no caller was meant to get.
    fails_brokers: bool = False


CAUGHT_AS = {
    BrokenRouteRule.OTHERS_NOT_ASKED: Caught({Invariant.ONCE}, in_seed=5),
    BrokenRouteRule.STALE_ROUTING_TAKEN: Caught({Invariant.ONCE}, in_seed=114),
    BrokenRouteRule.WRITTEN_BEHIND_REFUSED: Caught({Invariant.ORDERED}, in_seed=13),
    BrokenRouteRule.LATE_ANSWERS_TAKEN: Caught(set(), in_seed=0, fails_brokers=True),
    BrokenRouteRule.UNHEARD_IS_UNKNOWN: Caught({Invariant.TRUTHFUL}, in_seed=0),
    BrokenRouteRule.UNHEARD_IS_UNREADABLE: Caught({Invariant.ATTENTIVE}, in_seed=4),
    BrokenRouteRule.GROWTH_NOT_FOLLOWED: Caught({Invariant.ATTENTIVE}, in_seed=0),
    BrokenRouteRule.APPOINTED_TWICE: Caught({Invariant.DURABLE}, in_seed=2),
    BrokenRouteRule.VIEW_NEVER_AGES: Caught({Invariant.AUTHORIZED}, in_seed=23),
    BrokenRouteRule.FORWARDED_KEY_NOT_CHECKED: Caught({Invariant.AUTHORIZED}, in_seed=23),
    BrokenRouteRule.LASTING_NOT_ENDED: Caught({Invariant.AUTHORIZED}, in_seed=23),
    BrokenRouteRule.KEY_CHECKED_ONCE: Caught({Invariant.AUTHORIZED}, in_seed=23),
    BrokenRouteRule.RIGHTS_CHECKED_ONCE: Caught({Invariant.AUTHORIZED}, in_seed=23),
    BrokenRouteRule.STALE_FOR_GOOD: Caught({Invariant.AUTHORIZED}, in_seed=23),
    BrokenRouteRule.KAFKA_ACKNOWLEDGED_EARLY: Caught({Invariant.DURABLE}, in_seed=21),
    BrokenRouteRule.FETCH_SESSION_SKIPS: Caught({Invariant.ATTENTIVE}, in_seed=4),
    BrokenRouteRule.FETCH_SESSION_STANDS_STILL: Caught({Invariant.ATTENTIVE}, in_seed=4),
    BrokenRouteRule.PRODUCER_ID_GIVEN_TWICE: Caught({Invariant.TRUTHFUL}, in_seed=4),
}
SEEDS_TO_CATCH_MAX = 40


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silences what brokers log about the faults that the world injects."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("seed", range(4))
def test_a_world_keeps_every_invariant(seed: int) -> None:
    outcome = simulate_routes(seed, keep_trace=False)
    assert outcome.violations == []
    assert outcome.failures == []


@pytest.mark.proof
@pytest.mark.parametrize("seeds", [range(0, 24, 2), range(1, 26, 2)], ids=["tasks in order", "tasks shuffled"])
def test_every_invariant_holds_whichever_broker_takes_a_request(seeds: range) -> None:
    befell = Counter[str]()
    for seed in seeds:
        print(f"seed {seed}")
        outcome = simulate_routes(seed, keep_trace=False)
        assert outcome.violations == []
        assert outcome.failures == []
        befell.update(outcome.tallies)
    missed = [what for what, count in befell.items() if count == 0]
    assert missed == [], "the worlds were too calm to prove anything"


@pytest.mark.parametrize("seed", [4, 5], ids=["tasks in order", "tasks shuffled"])
def test_the_same_seed_gives_the_same_world_in_another_process_byte_for_byte(seed: int, tmp_path: Path) -> None:
    there = tmp_path / "trace.txt"
    command = ["-c", "import sys; from tests.simulation.many_worlds import main; sys.exit(main(sys.argv[1:]))"]
    hashed_otherwise = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    arguments = ["--kind", "routes", "--seed", str(seed), "--trace", str(there)]
    subprocess.run([sys.executable, *command, *arguments], env=hashed_otherwise, check=False, timeout=600)
    here = simulate_routes(seed).trace
    assert "\n".join(here) + "\n" == there.read_text()
    assert len(here) > 1000


def test_each_rule_of_routing_that_can_be_broken_has_its_test() -> None:
    assert set(CAUGHT_AS) == set(BrokenRouteRule) - {BrokenRouteRule.NOTHING}


@pytest.mark.proof
@pytest.mark.parametrize(("rule", "shown"), CAUGHT_AS.items(), ids=[rule.value for rule in CAUGHT_AS])
def test_a_broken_rule_of_routing_is_caught(rule: BrokenRouteRule, shown: Caught) -> None:
    found: set[Invariant] = set()
    failed = False
    for seed in (shown.in_seed, *range(SEEDS_TO_CATCH_MAX)):
        outcome = simulate_routes(seed, broken=rule, keep_trace=False)
        found |= {violation.invariant for violation in outcome.violations}
        failed |= bool(outcome.failures)
        if shown.invariants <= found and failed >= shown.fails_brokers:
            return
    pytest.fail(f"{SEEDS_TO_CATCH_MAX} worlds with {rule.value} showed only {found}")
