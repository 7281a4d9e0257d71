"""The commit rule holds in every interleaving within these bounds, and each of its parts is needed."""

from __future__ import annotations

import pytest

from tests.simulation.commit_model import Bounds, Break, explore, main

CAUGHT = {
    Break.SEAL_IS_DELETED: "truthful",
    Break.NO_TRIM_MARKER: "prefix",
    Break.ACKNOWLEDGED_OUT_OF_ORDER: "durable",
    Break.UNKNOWN_IS_FAILURE: "truthful",
    Break.TAKEOVER_WITHOUT_SEAL: "unique",
    Break.SEAL_TAKEN_AS_OWN: "durable",
    Break.ALL_REFUSED_AT_THE_SEAL: "truthful",
    Break.SEAL_NOT_LOOKED_AT: "truthful",
    Break.NO_CLAIM: "durable",
}


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(segments=2, sealers=1, latecomer=True), id="with the collector at work"),
        pytest.param(Bounds(segments=2, sealers=2), id="with two sealers that race, and the collector"),
        pytest.param(Bounds(segments=2, sealers=2, collector=False), id="with two sealers that race with the writer's own seal"),
        pytest.param(Bounds(segments=3, sealers=1, collector=False), id="with three segments"),
    ],
)
def test_every_invariant_holds_in_every_interleaving(bounds: Bounds) -> None:
    outcome = explore(bounds)
    assert outcome.violated is None, "\n".join((outcome.violated, *outcome.steps))
    assert outcome.states > 4_000, "the bounds leave hardly anything to explore"


def test_each_rule_that_can_be_broken_has_its_test() -> None:
    assert set(CAUGHT) == set(Break) - {Break.NOTHING}


@pytest.mark.parametrize(("broken", "invariant"), CAUGHT.items(), ids=[rule.value for rule in CAUGHT])
def test_a_broken_rule_is_caught_with_the_steps_that_lead_there(broken: Break, invariant: str) -> None:
    outcome = explore(Bounds(segments=2, latecomer=True, broken=broken))
    assert outcome.violated is not None
    assert outcome.violated.split(":")[0] == invariant
    assert 2 <= len(outcome.steps) <= 8


def test_the_command_shows_the_shortest_way_to_the_damage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--segments", "1", "--break", "takeover-without-seal"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "VIOLATED unique: offset 0 has a record in this session, and another one in the next",
        "   1. the writer sends segment 0",
        "   2. the next session finds the log's end at 0, and writes the rest again",
        "   3. a request for segment 0 lands, the answer is lost",
    ]


def test_the_command_fails_when_the_damage_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--segments", "1", "--no-collector", "--break", "no-trim-marker"]) == 1
    assert "every invariant holds" in capsys.readouterr().out
