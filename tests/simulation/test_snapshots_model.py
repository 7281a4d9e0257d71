"""A losing copy of the metadata does no harm on the bucket in any interleaving within these bounds, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.simulation.snapshots_model import Bounds, Break, Task, explore, main

SNAPSHOT, MARK, REGISTER, BEGIN = Task


@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(raised=10, tasks=(SNAPSHOT,)), id="snapshots, and the newer copy is far ahead"),
        pytest.param(Bounds(raised=-10, tasks=(SNAPSHOT,)), id="snapshots, and the older copy is far ahead"),
        pytest.param(Bounds(numbers=3, tasks=(SNAPSHOT,)), id="three batches"),
        pytest.param(Bounds(tasks=(MARK,)), id="marks of deletions"),
        pytest.param(Bounds(tasks=(REGISTER, BEGIN)), id="a topic that is made"),
    ],
)
def test_a_losing_copy_does_no_harm_on_the_bucket_in_every_interleaving(bounds: Bounds) -> None:
    states, way = explore(bounds)
    assert not way, "\n".join(way)
    assert states > 3_000, "the bounds leave hardly anything to explore"


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(elections=1, tasks=(SNAPSHOT,)), id="snapshots, and controllers that depose each other"),
        pytest.param(Bounds(elections=1, tasks=(MARK,)), id="marks, and controllers that depose each other"),
        pytest.param(Bounds(raised=-10, tasks=(SNAPSHOT, REGISTER, BEGIN)), id="snapshots, and a topic that is made"),
        pytest.param(Bounds(tasks=(SNAPSHOT, MARK, REGISTER)), id="all writes to the bucket"),
    ],
)
def test_a_losing_copy_does_no_harm_in_wider_bounds(bounds: Bounds) -> None:
    states, way = explore(bounds)
    assert not way, "\n".join(way)
    assert states > 50_000, "the bounds leave hardly anything to explore"


@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(raised=-10, tasks=(SNAPSHOT,), broken=Break.BY_REVISION),
        Bounds(tasks=(SNAPSHOT,), broken=Break.SNAPSHOT_UNPROVEN),
        Bounds(tasks=(MARK,), broken=Break.MARK_UNPROVEN),
        Bounds(tasks=(MARK,), broken=Break.MARKED_LATE),
        Bounds(tasks=(REGISTER,), broken=Break.REGISTER_UNPROVEN),
        Bounds(numbers=3, raised=-10, tasks=(SNAPSHOT, REGISTER, BEGIN), broken=Break.UNREPORTED),
    ],
    ids=lambda bounds: bounds.broken.value,
)
def test_without_any_one_of_its_rules_the_damage_is_found(bounds: Bounds) -> None:
    _, way = explore(bounds)
    assert way


def test_the_model_shows_the_shortest_way_to_the_damage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["snapshots_model", "--task", "a mark", "--break", "mark-unproven"])
    main()
    shown = capsys.readouterr().out
    assert "marks old as deleted" in shown
    assert "a topic of the winner is marked as deleted" in shown
