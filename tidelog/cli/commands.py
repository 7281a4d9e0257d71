"""The commands of `tidelog`, and their order in its help.

Nothing heavy is imported here or at the top of the commands' modules: `tidelog --help` must answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Annotated, ClassVar

import typer

from tidelog.cli import acls, bench, bucket, cluster, contexts, groups, keys, quotas, topics
from tidelog.cli.compact import compact
from tidelog.cli.completion import completion
from tidelog.cli.consume import consume
from tidelog.cli.demo import demo
from tidelog.cli.doctor import doctor
from tidelog.cli.explain import explain
from tidelog.cli.help_page import CommandPage, GroupPage
from tidelog.cli.produce import produce
from tidelog.cli.serve import EXTRA_FLAGS, dev, serve


class _RootPage(GroupPage):
    sections: ClassVar[Mapping[str, Sequence[str]]] = {
        "Run a broker": ("demo", "dev", "serve", "compact"),
        "Use a cluster": ("topic", "produce", "consume", "group", "bench"),
        "Process it with Spark": ("replay", "backfill"),
        "Say who may do what": ("key", "acl", "quota"),
        "Look inside": ("cluster", "doctor", "explain", "bucket"),
        "Settle in": ("context", "completion"),
    }


app = typer.Typer(
    cls=_RootPage,
    name="tidelog",
    help="""The streaming log that lives in your own bucket.

    \b
    tidelog demo                        see what it promises, in a minute
    tidelog dev                         a broker on this machine
    tidelog topic create greetings
    echo hello | tidelog produce greetings
    tidelog consume greetings
    """,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
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
        str,
        typer.Option(
            "--context", metavar="NAME", help="Talk to this context's cluster.", envvar="TIDELOG_CONTEXT", show_default=False
        ),
    ] = "",
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True, show_default=False)
    ] = False,
) -> None:
    if context:
        os.environ["TIDELOG_CONTEXT"] = context


app.command(cls=CommandPage)(demo)
app.command(cls=CommandPage, context_settings=EXTRA_FLAGS)(dev)
app.command(cls=CommandPage, context_settings=EXTRA_FLAGS)(serve)
app.command(cls=CommandPage, context_settings=EXTRA_FLAGS)(compact)
app.add_typer(topics.app, name="topic")
app.command(cls=CommandPage)(produce)
app.command(cls=CommandPage)(consume)
app.add_typer(groups.app, name="group")
app.add_typer(bench.app, name="bench")
app.add_typer(keys.app, name="key")
app.add_typer(acls.app, name="acl")
app.add_typer(quotas.app, name="quota")
app.add_typer(cluster.app, name="cluster")
app.command(cls=CommandPage)(doctor)
app.command(cls=CommandPage)(explain)
app.add_typer(bucket.app, name="bucket")
for found in entry_points(group="tidelog.commands"):  # of packages that know the SDK, where it knows nothing of them
    app.command(name=found.name, cls=CommandPage)(found.load())
app.add_typer(contexts.app, name="context")
app.command(cls=CommandPage)(completion)
