"""Writes docs/reference/command-line.md from the commands themselves: `python -m docs.command_line_page`. A test compares them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tidelog.cli.app.help_page import EXIT_CODES
from tidelog.cli.commands import app

PAGE = Path(__file__).parent / "reference" / "command-line.md"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_EXIT_CODES = re.compile(r"\n\s*Exit codes:")

_INTRODUCTION = """\
# Command line

This page shows the help of every command. `python -m docs.command_line_page` generates it.

Data goes to stdout, messages to stderr. `-o table|json|yaml|ndjson` chooses the form of the data. Each setting of a broker is a
flag of `dev`, `serve` and `compact`: [settings.md](settings.md).

{codes}
"""


def page() -> str:
    """Returns the text of docs/reference/command-line.md."""
    codes = EXIT_CODES.removeprefix("\b\n").replace("\n", "\n\n")
    return _INTRODUCTION.format(codes=codes) + "".join(_sections(typer.main.get_command(app), None))


def _sections(command: Any, parent: Any) -> Iterator[str]:
    """Yields the help of the command, then of the commands below it."""
    context = command.make_context(
        "tidelog" if parent is None else command.name, [], parent=parent, resilient_parsing=True, terminal_width=100
    )
    text = _EXIT_CODES.split(_STYLE.sub("", command.get_help(context)))[0]
    shown = "\n".join(line.removeprefix("  ").rstrip() if line.startswith("  ") else line.rstrip() for line in text.splitlines())
    yield f"\n## {context.command_path}\n\n```\n{shown.strip()}\n```\n"
    for name in getattr(command, "commands", {}):
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield from _sections(below, context)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
