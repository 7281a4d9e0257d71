"""The commands of `tidelog`, in the order of their help.

Nothing heavy is imported here or at the top of the commands' modules: `tidelog --help` must answer at once.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tidelog.cli import bench, bucket, contexts, topics
from tidelog.cli.completion import completion
from tidelog.cli.consume import consume
from tidelog.cli.demo import demo
from tidelog.cli.doctor import doctor
from tidelog.cli.explain import explain
from tidelog.cli.failure import EPILOG
from tidelog.cli.produce import produce
from tidelog.cli.serve import EXTRA_FLAGS, dev, serve

app = typer.Typer(
    name="tidelog",
    help="The streaming log that lives in your own bucket.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"tidelog {version('tidelog')}\n")
        raise typer.Exit


@app.callback()
def _root(
    context: Annotated[
        str, typer.Option("--context", help="Talk to this context's cluster.", envvar="TIDELOG_CONTEXT", show_default=False)
    ] = "",
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True, show_default=False)
    ] = False,
) -> None:
    if context:
        os.environ["TIDELOG_CONTEXT"] = context


RUN, USE, LOOK = "Run a broker", "Use a cluster", "Look inside"
app.command(rich_help_panel=RUN, context_settings=EXTRA_FLAGS, epilog=EPILOG)(dev)
app.command(rich_help_panel=RUN, context_settings=EXTRA_FLAGS, epilog=EPILOG)(serve)
app.command(rich_help_panel=RUN, epilog=EPILOG)(demo)
app.add_typer(topics.app, name="topic", rich_help_panel=USE, epilog=EPILOG)
app.command(rich_help_panel=USE, epilog=EPILOG)(produce)
app.command(rich_help_panel=USE, epilog=EPILOG)(consume)
app.add_typer(contexts.app, name="context", rich_help_panel=USE, epilog=EPILOG)
app.command(rich_help_panel=LOOK, epilog=EPILOG)(doctor)
app.command(rich_help_panel=LOOK, epilog=EPILOG)(explain)
app.add_typer(bucket.app, name="bucket", rich_help_panel=LOOK, epilog=EPILOG)
app.add_typer(bench.app, name="bench", rich_help_panel=LOOK, epilog=EPILOG)
app.command(epilog=EPILOG)(completion)
