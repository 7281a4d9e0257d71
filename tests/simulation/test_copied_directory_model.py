"""A data directory may be copied at any moment: no broker writes without knowing who has written, and each rule of it is needed."""

from __future__ import annotations

import pytest

from tests.simulation.copied_directory_model import Bounds, Break, explore, main


@pytest.mark.proof
@pytest.mark.slow
def test_every_writer_knows_all_earlier_writers_whenever_the_directory_is_copied() -> None:
    states, way = explore(Bounds())
    assert not way, "\n".join(way)
    assert states > 100_000, "the bounds leave hardly anything to explore"


def test_the_same_without_crashes() -> None:
    states, way = explore(Bounds(numbers=3, crashes=0))
    assert not way, "\n".join(way)
    assert states > 1_000, "the bounds leave hardly anything to explore"


@pytest.mark.slow
@pytest.mark.parametrize("broken", [broken for broken in Break if broken is not Break.NOTHING])
def test_without_any_one_of_its_rules_records_are_lost(broken: Break) -> None:
    _, way = explore(Bounds(broken=broken))
    assert way


def test_the_model_prints_the_shortest_path_to_the_damage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["copied_directory_model", "--break", "notes-forgotten"])
    main()
    assert "the directory is copied" in capsys.readouterr().out
