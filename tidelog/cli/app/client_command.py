"""Connects a command to a cluster: one client and one event loop, both closed however the command ends.

What can't be taken back is shown and asked first on a terminal; where there is none, it needs --yes.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar, Unpack

import typer

from metadata.errors import InvalidArgument, TidelogError
from tidelog.cli.app.contexts import cluster_access
from tidelog.cli.app.credential_options import given_credentials
from tidelog.cli.app.output import say
from tidelog.settings import AcksName, CompressionName

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.settings import SettingChanges

_Answer = TypeVar("_Answer")

CompressionOption = Annotated[CompressionName, typer.Option("--compression", "-z", metavar="CODEC", help="Codec of the batches.")]
AcksOption = Annotated[AcksName, typer.Option("--acks", help="Wait for the bucket, for the leader's memory, or for nothing.")]


def shows_credentials(url: str) -> bool:
    """Returns whether this command sends credentials. If so, lists may omit what their principal may not see."""
    return bool({"api_key", "api_key_file", "cert_file"} & set(cluster_access(url, os.environ, given_credentials()).credentials))


def with_client(
    url: str, command: Callable[[Client], Awaitable[_Answer]], *, writes: bool = False, **settings: Unpack[SettingChanges]
) -> _Answer:
    """Connects, runs the command, and answers what it answers. `url` is the command's own; empty where it was not given.

    The errors of a command that `writes` say what was written. An interrupt says what became of the records that were sent.
    """
    import uvloop

    from tidelog.client import connect

    access = cluster_access(url, os.environ, given_credentials())
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")

    together: SettingChanges = {**access.credentials, **settings}
    client = connect(access.url, **together)

    async def run() -> _Answer:
        async with client as log:
            return await command(log)

    try:
        return uvloop.run(run())
    except KeyboardInterrupt:
        sent = client.outcomes
        if sent.total:
            say(f"interrupted: {sent.acknowledged:,} acknowledged, up to {sent.unknown:,} more may be in the log")
        raise
    except TidelogError as error:
        if writes and not hasattr(error, "__notes__"):
            error.add_note("Nothing was written." if error.nothing_was_written else "It may have been written.")
        raise


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def require_confirmation(doing: str) -> None:
    """Raises InvalidArgument if stdin is not a terminal, so no question can be asked. `doing`: as in "moving billing"."""
    if not sys.stdin.isatty():
        raise InvalidArgument(
            f"{doing} needs a yes, and there is no terminal to ask", hint="Add --yes; --dry-run shows what it would do."
        )
