"""Looks up whether a command that a page shows is one of `tidelog`, with flags that it has."""

from __future__ import annotations

import shlex
from typing import Any

import typer

from tidelog.cli.broker.setting_list import setting_names
from tidelog.cli.commands import app


def fault_of_command(command: str) -> str | None:
    """Returns what is wrong with a line that begins with `tidelog`; None if each word and flag is known."""
    words = shlex.split(command, comments=True)[1:]
    at: Any = typer.main.get_command(app)
    given = {flag for parameter in at.params for flag in parameter.opts}
    while words and words[0] in given:  # of every command, such as --context NAME
        words = words[2:]
    while hasattr(at, "commands") and words:
        word = words.pop(0)
        if word in ("--help", "--version"):
            return None
        if word not in at.commands:
            return f"{command}: there is no {word}"
        at = at.commands[word]
    flags = {flag for parameter in at.params for flag in parameter.opts}
    takes_settings = at.context_settings.get("ignore_unknown_options", False)
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = flag.removeprefix("--").replace("-", "_")
        if flag not in flags and not (takes_settings and name in setting_names()):
            return f"{command}: there is no {flag}"
    return None
