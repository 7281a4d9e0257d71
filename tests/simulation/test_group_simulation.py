"""Coordinators and members of groups keep every promise in a world of trouble, and the judge notices when a rule is broken."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simulation.group_broken_rules import BrokenGroupRule
from tests.simulation.group_judge import GroupRule
from tests.simulation.group_world import TROUBLE_S, simulate_groups
from tests.simulation.many_worlds import main

pytestmark = pytest.mark.slow


class Shown(NamedTuple):
    """A broken rule: as what, and by a long world of which it is known. Where a change of the code changes the worlds, others are
    tried; `python -m tests.simulation --kind groups --seeds 20 --trouble 30 --break RULE` finds the next one."""

    promise: GroupRule
    in_seed: int


CAUGHT_AS = {
    BrokenGroupRule.ADOPTED_UNWRITTEN: Shown(GroupRule.COMMITTED, in_seed=3),
    BrokenGroupRule.COMMITS_UNGUARDED: Shown(GroupRule.COMMITTED, in_seed=15),
    BrokenGroupRule.OLD_GENERATION_COMMITS: Shown(GroupRule.COMMITTED, in_seed=6),
    BrokenGroupRule.BARRIER_OPENS_EARLY: Shown(GroupRule.OWNED, in_seed=2),
    BrokenGroupRule.ANY_GENERATION_STAYS: Shown(GroupRule.GENERATION, in_seed=2),
    BrokenGroupRule.REPORTED_BEFORE_STORED: Shown(GroupRule.GENERATION, in_seed=2),
    BrokenGroupRule.KEEPS_WHAT_MOVES: Shown(GroupRule.OWNED, in_seed=7),
    BrokenGroupRule.NO_SESSION_CLOCK: Shown(GroupRule.OWNED, in_seed=7),
    BrokenGroupRule.UNKNOWN_COMMIT_REPEATED: Shown(GroupRule.COMMITTED, in_seed=15),
    BrokenGroupRule.SESSIONS_NEVER_END: Shown(GroupRule.UNOWNED, in_seed=3),
    BrokenGroupRule.GIVEN_UP_UNCOMMITTED: Shown(GroupRule.DELIVERED, in_seed=24),
    BrokenGroupRule.FENCED_MEMBER_COMMITS: Shown(GroupRule.COMMITTED, in_seed=1),
    BrokenGroupRule.GIVEN_BEFORE_RELEASED: Shown(GroupRule.OWNED, in_seed=1),
    BrokenGroupRule.COMMIT_ERRORS_HIDDEN: Shown(GroupRule.COMMITTED, in_seed=8),
    BrokenGroupRule.OFFSET_LEFT_OUT: Shown(GroupRule.COMMITTED, in_seed=1),
}
SEEDS_TO_CATCH_MAX = 20


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What coordinators and members complain about is what was done to them."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("seed", range(4))
def test_a_short_world_keeps_every_promise(seed: int) -> None:
    assert simulate_groups(seed, trouble_s=min(TROUBLE_S)).findings == []


@pytest.mark.proof
@pytest.mark.parametrize("seeds", [range(0, 20, 2), range(1, 20, 2)], ids=["tasks in order", "tasks shuffled"])
def test_every_promise_to_a_group_is_kept_whatever_befalls_members_and_coordinators(seeds: range) -> None:
    befell = Counter[str]()
    for seed in seeds:
        print(f"seed {seed}")  # the last one that is shown is the one that failed
        outcome = simulate_groups(seed)
        assert outcome.findings == []
        befell.update(outcome.tallies)
    assert befell["generations"] > 50, "the worlds were too calm to prove anything"
    assert min(befell["offsets delivered again"], befell["partitions lost"]) > 0, "no member came to harm"


@pytest.mark.parametrize("seed", [4, 5], ids=["tasks in order", "tasks shuffled"])
def test_the_same_seed_gives_the_same_run_of_groups_in_another_process_byte_for_byte(seed: int, tmp_path: Path) -> None:
    there = tmp_path / "trace.txt"
    command = ["-c", "import sys; from tests.simulation.many_worlds import main; sys.exit(main(sys.argv[1:]))"]
    hashed_otherwise = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    arguments = ["--kind", "groups", "--seed", str(seed), "--trace", str(there)]
    subprocess.run([sys.executable, *command, *arguments], env=hashed_otherwise, check=True, timeout=600)
    here = simulate_groups(seed).trace
    assert "\n".join(here) + "\n" == there.read_text()
    assert len(here) > 100


def test_each_rule_of_groups_that_can_be_broken_has_its_test() -> None:
    assert set(CAUGHT_AS) == set(BrokenGroupRule) - {BrokenGroupRule.NOTHING}


@pytest.mark.proof
@pytest.mark.parametrize(("rule", "shown"), CAUGHT_AS.items(), ids=[rule.value for rule in CAUGHT_AS])
def test_a_broken_rule_of_groups_is_caught(rule: BrokenGroupRule, shown: Shown) -> None:
    for seed in (shown.in_seed, *range(SEEDS_TO_CATCH_MAX)):
        if any(broken.rule is shown.promise for broken in simulate_groups(seed, broken=rule, trouble_s=max(TROUBLE_S)).broken):
            return
    pytest.fail(f"{SEEDS_TO_CATCH_MAX} worlds with {rule.value} did not show it")


def test_the_command_runs_worlds_of_groups_alone_and_prints_how_to_rerun_a_failing_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--kind", "groups", "--seeds", "1", "--jobs=1", "--break", "reported-before-stored"]) == 1
    out = capsys.readouterr().out
    assert "seed 0 FAILED\n  generation: " in out
    assert "again: python -m tests.simulation --seed 0 --kind groups --break reported-before-stored --trace seed-0.txt\n" in out


def test_a_rule_of_another_kind_of_worlds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--kind", "log", "--break", "reported-before-stored"])
    assert ended.value.code == 2
    assert "reported-before-stored is no rule of worlds of log" in capsys.readouterr().err
