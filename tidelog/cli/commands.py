"""Registers the commands of `tidelog`, in the order of its help.

Nothing heavy is imported here or at the top of the commands' modules: `tidelog --help` must answer at once.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from tidelog.cli import acls, bench, bucket, cluster, groups, keys, quotas, topics
from tidelog.cli.app import contexts
from tidelog.cli.app.help_page import CommandPage
from tidelog.cli.app.root import new_root
from tidelog.cli.broker.compact import compact
from tidelog.cli.broker.serve import EXTRA_FLAGS, dev, serve
from tidelog.cli.completion import completion
from tidelog.cli.consume import consume
from tidelog.cli.demo import demo
from tidelog.cli.doctor.command import doctor
from tidelog.cli.explain import explain
from tidelog.cli.produce import produce

app = new_root()
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
