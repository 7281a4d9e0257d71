"""`python -m tests.chaos`: exit codes, and a history that was kept is judged again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.__main__ import main
from tests.chaos.broken_broker import FOUND_BY, in_force
from tests.chaos.history import Acknowledged, History, Served


def history_with(path: Path, *, lost: bool) -> Path:
    with History(path) as history:
        operation = history.sent("a#0", ordered=True)
        history.add(Acknowledged(1.0, operation, ((0, 0),)))
        history.add(Served(2.0, 0, () if lost else ((0, "a#0"),)))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["chaos", *arguments])
    return main()


def test_a_history_that_keeps_all_promises_ends_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--judge", str(history_with(tmp_path / "history", lost=False))) == 0
    assert "no promise was broken" in capsys.readouterr().out


def test_a_history_that_breaks_one_ends_with_1_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--judge", str(history_with(tmp_path / "history", lost=True))) == 1
    assert "unseen: a#0 was acknowledged at 0/0" in capsys.readouterr().out


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_a_run_takes_some_time(minutes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--minutes", minutes)


def test_no_rule_is_broken_by_a_name_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--break", "everything")


@pytest.mark.parametrize("rule", FOUND_BY)
def test_the_rules_that_can_be_broken_exist(rule: str) -> None:
    with in_force(rule):
        pass
