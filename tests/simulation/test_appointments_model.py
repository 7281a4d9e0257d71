"""No offset is given twice by two copies of an etcd, in every interleaving within these bounds, and each rule of it is needed."""

from __future__ import annotations

import pytest

from tests.simulation.appointments_model import Bounds, Break, explore, main


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(elections=0), id="every session stays with the older copy"),
        pytest.param(Bounds(elections=0, leaves=(0,)), id="the leader uses the newer copy"),
        pytest.param(Bounds(elections=0, leaves=(1,)), id="the next leader uses the newer copy"),
        pytest.param(Bounds(elections=0, leaves=(0, 1)), id="both use the newer copy"),
        pytest.param(Bounds(elections=0, asked=True), id="copied while the leader is asked to hand over"),
        pytest.param(Bounds(elections=0, unled=True), id="a partition that has no leader yet"),
        pytest.param(Bounds(elections=0, unled=True, leaves=(1,)), id="no leader yet, and a session uses the newer copy"),
    ],
)
def test_every_writer_has_read_what_others_wrote_in_every_interleaving(bounds: Bounds) -> None:
    states, way = explore(bounds)
    assert not way, "\n".join(way)
    assert states > 20_000, "the bounds leave hardly anything to explore"


def test_metadata_that_exist_once_are_never_taken_for_two_though_controllers_depose_each_other() -> None:
    states, way = explore(Bounds(elections=1, copied=False))
    assert not way, "\n".join(way)
    assert states > 5_000, "the bounds leave hardly anything to explore"


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(elections=0, broken=Break.NOT_NUMBERED),
        Bounds(elections=0, broken=Break.NOT_REPLAYED),
        Bounds(elections=0, unled=True, broken=Break.FIRST_LEADER_SKIPPED),
        Bounds(elections=0, broken=Break.TARGET_FORGOTTEN),
        Bounds(elections=0, broken=Break.TARGET_UNREAD),
        Bounds(elections=0, asked=True, newcomer=True, leaves=(0, 1), led_copy=False, broken=Break.TAKEN_BACK),
        Bounds(elections=0, idle_batches=True, broken=Break.COLLECTED_UNLOOKED),
        Bounds(copied=False, broken=Break.UNCONFIRMED),
    ],
    ids=lambda bounds: bounds.broken.value,
)
def test_without_any_one_of_its_rules_the_damage_is_found(bounds: Bounds) -> None:
    _, way = explore(bounds)
    assert way


def test_the_model_prints_the_shortest_path_to_the_damage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["appointments_model", "--elections", "0", "--break", "not-numbered"])
    main()
    reported = capsys.readouterr().out
    assert "session 1 writes" in reported
    assert "session 2 writes" in reported
