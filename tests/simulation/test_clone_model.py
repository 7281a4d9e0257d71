"""Of two copies of the metadata one alone writes, in every interleaving within these bounds, and each rule of it is needed."""

from __future__ import annotations

import pytest

from tests.simulation.clone_model import Bounds, Break, explore, main


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(), id="one broker each, one crash"),
        pytest.param(Bounds(brokers=(0, 0, 1), numbers=3, crashes=0), id="two brokers of one copy"),
        pytest.param(Bounds(numbers=4, crashes=2), id="two crashes"),
    ],
)
def test_brokers_of_one_copy_alone_write_in_every_interleaving(bounds: Bounds) -> None:
    states, way = explore(bounds)
    assert not way, "\n".join(way)
    assert states > 4_000, "the bounds leave hardly anything to explore"


@pytest.mark.parametrize("broken", [broken for broken in Break if broken is not Break.NOTHING])
def test_without_any_one_of_its_rules_brokers_of_both_copies_write(broken: Break) -> None:
    _, way = explore(Bounds(broken=broken))
    assert way


def test_the_model_prints_the_shortest_path_to_the_damage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["clone_model", "--break", "not-noted"])
    main()
    reported = capsys.readouterr().out
    assert "WRITE 0" in reported
    assert "WRITE 1" in reported
