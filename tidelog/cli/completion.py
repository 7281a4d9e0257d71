"""`tidelog completion`: the script that makes a shell complete tidelog's commands."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.", show_default=False)]) -> None:
    """Prints the completion script for a shell. For bash: eval "$(tidelog completion bash)" """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # public in fact, not in its stubs

    sys.stdout.write(get_completion_script(prog_name="tidelog", complete_var="_TIDELOG_COMPLETE", shell=shell) + "\n")
