"""What can't be taken back is shown and asked first on a terminal; where there is none, it needs --yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from metadata.errors import InvalidArgument

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def need_terminal(doing: str) -> None:
    """InvalidArgument where nobody can be asked. `doing`: as in "moving billing"."""
    if not sys.stdin.isatty():
        raise InvalidArgument(
            f"{doing} needs a yes, and there is no terminal to ask", hint="Add --yes; --dry-run shows what it would do."
        )
