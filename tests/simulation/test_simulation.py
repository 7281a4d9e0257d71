"""The real writer, log and reader keep every invariant in a world of trouble, and the checker notices when a rule is broken."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simulation.broken_rules import BrokenRule
from tests.simulation.history_checker import Invariant
from tests.simulation.many_worlds import main
from tests.simulation.world import simulate

pytestmark = pytest.mark.slow


class Shown(NamedTuple):
    """A broken rule: as what, and by a short world of which it is known. Where a change of the code changes the worlds, others are
    tried; `python -m tests.simulation --seeds 24 --trouble 8 --break RULE` finds the next short one."""

    invariants: set[Invariant]
    in_seed: int
    trouble_s: float


CAUGHT_AS = {
    BrokenRule.ACKNOWLEDGED_EARLY: Shown({Invariant.DURABLE}, in_seed=5, trouble_s=8),
    BrokenRule.SEAL_NOT_CHECKED: Shown({Invariant.DURABLE, Invariant.FENCED}, in_seed=3, trouble_s=8),
    BrokenRule.SEAL_DELETED: Shown({Invariant.UNIQUE}, in_seed=17, trouble_s=8),
    BrokenRule.TAKEOVER_WITHOUT_SEAL: Shown({Invariant.UNIQUE}, in_seed=6, trouble_s=8),
    BrokenRule.END_REMEMBERED: Shown({Invariant.UNIQUE}, in_seed=3, trouble_s=8),
    BrokenRule.UNKNOWN_IS_FAILURE: Shown({Invariant.TRUTHFUL}, in_seed=3, trouble_s=8),
    BrokenRule.REPEATS_NOT_KNOWN: Shown({Invariant.UNIQUE}, in_seed=10, trouble_s=8),
    BrokenRule.SESSION_REUSED: Shown({Invariant.DURABLE}, in_seed=3, trouble_s=8),
    BrokenRule.NOT_FLUSHED: Shown({Invariant.DURABLE, Invariant.UNIQUE}, in_seed=1, trouble_s=8),
    BrokenRule.RELEASED_TOO_EARLY: Shown({Invariant.DURABLE, Invariant.UNIQUE}, in_seed=1, trouble_s=8),
    BrokenRule.NOT_GIVEN_UP: Shown({Invariant.DURABLE, Invariant.UNIQUE}, in_seed=1, trouble_s=8),
    BrokenRule.READ_AHEAD_IS_ALL: Shown({Invariant.UNIQUE}, in_seed=4, trouble_s=8),
    BrokenRule.READ_WHILE_HANDED_OVER: Shown({Invariant.PREFIX}, in_seed=39, trouble_s=30),
    BrokenRule.SEAL_NOT_LOOKED_FOR: Shown({Invariant.PREFIX}, in_seed=25, trouble_s=8),
    BrokenRule.GAP_REPORTED_UNPROVEN: Shown({Invariant.TRUTHFUL}, in_seed=6, trouble_s=8),
    BrokenRule.REMOVED_WITHOUT_PROOF: Shown({Invariant.APPOINTED}, in_seed=11, trouble_s=8),
    BrokenRule.TRIMMED_TOO_EARLY: Shown({Invariant.REACHABLE, Invariant.EQUIVALENT}, in_seed=2, trouble_s=8),
    BrokenRule.COLLECTED_UNFENCED: Shown({Invariant.REACHABLE}, in_seed=52, trouble_s=8),
    BrokenRule.EXPIRED_BY_OLDEST: Shown({Invariant.KEPT}, in_seed=3, trouble_s=8),
    BrokenRule.LOG_START_FORGOTTEN: Shown({Invariant.DELETED}, in_seed=22, trouble_s=8),
    BrokenRule.DELETION_NOT_STORED: Shown({Invariant.DELETED}, in_seed=3, trouble_s=8),
    BrokenRule.LAST_OF_KEY_REMOVED: Shown({Invariant.KEPT}, in_seed=0, trouble_s=8),
    BrokenRule.NEWER_FORGOTTEN: Shown({Invariant.KEPT}, in_seed=4, trouble_s=8),
    BrokenRule.LAG_IGNORED: Shown({Invariant.KEPT}, in_seed=11, trouble_s=8),
    BrokenRule.TOMBSTONES_REMOVED_EARLY: Shown({Invariant.KEPT}, in_seed=0, trouble_s=8),
    BrokenRule.GRACE_NOT_KEPT: Shown({Invariant.REACHABLE}, in_seed=2, trouble_s=8),
    BrokenRule.PRODUCERS_FORGOTTEN: Shown({Invariant.UNIQUE}, in_seed=10, trouble_s=8),
    BrokenRule.CLOCK_TRUSTED: Shown({Invariant.KEPT, Invariant.REACHABLE}, in_seed=0, trouble_s=8),
}
# What comes up in one world of ten.
RARE = {
    "clocks of compactors that jump a day",
    "manifests lost to another",
    "log starts raised by retention",
    "merges",
    "files merged",
}
SEEDS_TO_CATCH_MAX = 20
TROUBLE_TO_CATCH_S = 30.0


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What the brokers complain about is what was done to them."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("seed", range(4))
def test_a_short_world_keeps_every_invariant(seed: int) -> None:
    outcome = simulate(seed, trouble_s=8)
    assert outcome.violations == []
    assert outcome.failures == []


@pytest.mark.proof
@pytest.mark.parametrize("seeds", [range(0, 16, 2), range(1, 20, 2)], ids=["tasks in order", "tasks shuffled"])
def test_every_invariant_holds_whatever_befalls_brokers_and_bucket(seeds: range) -> None:
    befell = Counter[str]()
    for seed in seeds:
        print(f"seed {seed}")  # the last one that is shown is the one that failed
        outcome = simulate(seed)
        assert outcome.violations == []
        assert outcome.failures == []
        befell.update(outcome.tallies)
    missed = [what for what, count in befell.items() if count == 0 and what not in RARE]
    assert missed == [], "the worlds were too calm to prove anything"


@pytest.mark.parametrize("seed", [4, 5], ids=["tasks in order", "tasks shuffled"])
def test_the_same_seed_gives_the_same_run_in_another_process_byte_for_byte(seed: int, tmp_path: Path) -> None:
    """Even where strings hash otherwise: nothing that the brokers do hangs on the order of a set."""
    there = tmp_path / "trace.txt"
    command = ["-c", "import sys; from tests.simulation.many_worlds import main; sys.exit(main(sys.argv[1:]))"]
    hashed_otherwise = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    arguments = ["--kind", "log", "--seed", str(seed), "--trouble", "10", "--trace", str(there)]
    subprocess.run([sys.executable, *command, *arguments], env=hashed_otherwise, check=True, timeout=600)
    here = simulate(seed, trouble_s=10).trace
    assert "\n".join(here) + "\n" == there.read_text()
    assert len(here) > 1000


def test_a_world_without_a_kept_trace_is_the_same_world() -> None:
    reported, unreported = simulate(4, trouble_s=2), simulate(4, trouble_s=2, keep_trace=False)
    assert reported.trace
    assert not unreported.trace
    assert (unreported.violations, unreported.failures, unreported.tallies) == (
        reported.violations,
        reported.failures,
        reported.tallies,
    )


def test_another_seed_gives_another_run() -> None:
    assert simulate(4, trouble_s=2).trace != simulate(6, trouble_s=2).trace


def test_each_rule_that_can_be_broken_has_its_test() -> None:
    assert set(CAUGHT_AS) == set(BrokenRule) - {BrokenRule.NOTHING}


@pytest.mark.proof
@pytest.mark.parametrize(("rule", "shown"), CAUGHT_AS.items(), ids=[rule.value for rule in CAUGHT_AS])
def test_a_broken_rule_is_caught(rule: BrokenRule, shown: Shown) -> None:
    found: set[Invariant] = set()
    known = (shown.in_seed, shown.trouble_s)
    for seed, trouble_s in (known, *((seed, TROUBLE_TO_CATCH_S) for seed in range(SEEDS_TO_CATCH_MAX))):
        found |= {violation.invariant for violation in simulate(seed, broken=rule, trouble_s=trouble_s).violations}
        if shown.invariants <= found:
            return
    pytest.fail(f"{SEEDS_TO_CATCH_MAX} worlds with {rule.value} showed only {found}")


def test_the_command_prints_how_to_rerun_a_failing_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--first", "5", "--jobs=1", "--break", "acknowledged-early", "--trouble", "8"]) == 1
    out = capsys.readouterr().out
    assert "seed 5 FAILED\n  durable: " in out
    assert "again: python -m tests.simulation --seed 5 --break acknowledged-early --trouble 8 --trace seed-5.txt\n" in out
    assert out.splitlines()[-1].startswith("1 seeds from 5: 1 failed")


def test_the_command_ends_well_when_every_seed_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--trouble", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 seeds from 0: 0 failed, in ")


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--jobs", "0"], ["--trouble", "-1"], ["--trace", "x"], ["--break", "x"]])
def test_the_command_refuses_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err
