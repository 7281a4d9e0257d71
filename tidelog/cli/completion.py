"""`tidelog completion`: the script that makes a shell complete tidelog's commands."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

COMPLETE_VARIABLE = "_TIDELOG_COMPLETE"


class Shell(StrEnum):
    """A shell with support for completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Your shell: bash, zsh or fish.", show_default=False)],
) -> None:
    """Prints the script that makes a shell complete tidelog's commands.

    \b
    eval "$(tidelog completion bash)"                     in ~/.bashrc
    eval "$(tidelog completion zsh)"                      in ~/.zshrc
    tidelog completion fish | source                      in config.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # public in fact, not in its stubs

    sys.stdout.write(get_completion_script(prog_name="tidelog", complete_var=COMPLETE_VARIABLE, shell=shell) + "\n")


def prepare_completion() -> None:
    """Makes typer know the shells, as it does by itself only where it may add options of its own."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # public in fact, not in its stubs

    completion_init()
