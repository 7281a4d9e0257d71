"""What `--help` shows, of every command there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from tidelog.cli.commands import app
from tidelog.cli.main import run


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


COMMANDS = dict(commands(get_command(app)))


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", "80")
    return 80


@pytest.mark.slow
@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "tidelog")
def test_every_page_fits_the_terminal_and_speaks_no_python(
    path: tuple[str, ...], columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "--help"]) == 0
    page = capsys.readouterr().out
    assert all(len(line) <= columns for line in page.splitlines())
    assert re.search(r"<(str|int|bool|path|float|list)|\bx>=|\{\w+\}", page) is None
    assert "\x1b" not in page, "colours are for terminals"
    for parameter in COMMANDS[path].params:
        assert parameter.opts[0] in page or parameter.name.upper() in page
        assert parameter.help, f"{parameter.name} says nothing of itself"


def test_the_page_of_a_command_names_its_values_its_choices_and_its_defaults(
    columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["produce", "--help"])
    page = capsys.readouterr().out
    assert page.startswith("Usage: tidelog produce [OPTIONS] TOPIC\n\n  Writes records")
    assert "\n  echo hello | tidelog produce greetings\n" in page
    assert "  -k, --key FIELD           Field that is the key (ndjson, csv).\n" in page
    assert "  --keep-partition          Write each envelope" in page
    assert "[all, leader, none; default: all]" in " ".join(page.split())
    assert "[default: TIDELOG_URL, the current context, or http://localhost:8080]" in " ".join(page.split())


def test_the_first_page_groups_the_commands(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    page = capsys.readouterr().out
    headings = [line for line in page.splitlines() if re.fullmatch(r"[A-Z][A-Za-z ]+:", line)]
    sections = ["Run a broker:", "Use a cluster:", "Process it with Spark:", "Say who may do what:", "Look inside:", "Settle in:"]
    assert headings == [*sections, "Options:"]
    assert "TIDELOG_CONTEXT" in page


def test_help_lines_are_at_most_100_columns_wide_on_a_wide_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    run(["topic", "create", "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
