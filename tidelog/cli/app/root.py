"""Creates the root of every command line: its help page, and the options before a command's name.

cli/commands.py puts all commands under it. A broker's alone stand under one of their own (cli/broker/serve.py): what is done for
the others would be a sixth of the start of a broker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import typer

from tidelog.cli.app.help_page import GroupPage


def new_root() -> typer.Typer:
    """Creates a root without commands."""
    app = typer.Typer(
        cls=_RootPage,
        name="tidelog",
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    return app


class _RootPage(GroupPage):
    sections: ClassVar[Mapping[str, Sequence[str]]] = {
        "Run a broker": ("demo", "dev", "serve", "compact"),
        "Use a cluster": ("topic", "produce", "consume", "group", "bench"),
        "Process it with Spark": ("replay", "backfill"),
        "Say who may do what": ("key", "acl", "quota"),
        "Look inside": ("cluster", "doctor", "explain", "bucket"),
        "Settle in": ("context", "completion"),
    }


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"tidelog {version('tidelog')}\n")
        raise typer.Exit


def _root(
    context: Annotated[
        str,
        typer.Option(
            "--context", metavar="NAME", help="Talk to this context's cluster.", envvar="TIDELOG_CONTEXT", show_default=False
        ),
    ] = "",
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True, show_default=False)
    ] = False,
) -> None:
    """The streaming log that lives in your own bucket.

    \b
    tidelog demo                        see what it promises, in a minute
    tidelog dev                         a broker on this machine
    tidelog topic create greetings
    echo hello | tidelog produce greetings
    tidelog consume greetings
    """
    if context:
        os.environ["TIDELOG_CONTEXT"] = context
