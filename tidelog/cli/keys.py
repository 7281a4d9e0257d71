"""`tidelog key`: create, list, revoke; generate, without a cluster."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import InvalidArgument
from tidelog.cli.app.client_command import with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, say, show_done, show_one, show_rows

if TYPE_CHECKING:
    from tidelog.admin.access import KeyInfo, Scope

app = typer.Typer(cls=GroupPage, help="Create, list and revoke API keys.")

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check the request and show its result; change nothing.")]
_COLUMNS = ("key_id", "principal", "state", "created_at", "expires_at", "scopes", "description")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


@app.command(cls=CommandPage)
def create(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Principal of the key.", show_default=False)],
    expires: Annotated[
        str, typer.Option("--expires", metavar="WHEN", help="In 90d, 12h …, or at a time in RFC 3339.", show_default="never")
    ] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="OPERATION:KIND:NAME",
            help="Limits the key to this, such as read:topic:orders or read:group:bill*. Repeatable.",
            show_default=False,
        ),
    ] = None,
    description: Annotated[str, typer.Option("--description", help="For people.", show_default=False)] = "",
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Creates an API key, and shows it. It can't be shown again."""
    import time

    expiry_ms(expires, 0)  # refuses a bad time before a broker is looked for
    scopes = [parse_scope(text) for text in scope or ()]
    key, text = with_client(
        url,
        lambda log: log.access.create_key(
            principal,
            expires_at_ms=expiry_ms(expires, time.time_ns() // 1_000_000),  # from now on, when the connection stands
            scopes=scopes,
            description=description,
            validate_only=dry_run,
        ),
        writes=True,
    )
    row = key_row(key)
    if dry_run:
        del row["key_id"]
        show_one(row, output)
        say("nothing was changed (--dry-run)")
        return
    show_one(row | {"key": text}, output)
    say("Keep the key: it is not shown again. Use it with --api-key-file FILE, or TIDELOG_API_KEY.")


@app.command("list", cls=CommandPage)
def list_keys(url: UrlOption = "", output: OutputOption = Output.TABLE) -> None:
    """Lists the keys, without their secrets."""
    keys = with_client(url, lambda log: log.access.keys())
    show_rows([key_row(key) for key in keys], output, columns=_COLUMNS)
    if output is Output.TABLE and not keys:
        say("there are no keys yet; create one: tidelog key create PRINCIPAL")


@app.command(cls=CommandPage)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The middle of tlk_KEYID_SECRET.", show_default=False)],
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Revokes a key: calls that show it are refused from now on, and those under way end."""
    key = with_client(url, lambda log: log.access.revoke_key(key_id, validate_only=dry_run), writes=True)
    said = f"key {key.key_id} of {key.principal} would be revoked" if dry_run else f"key {key.key_id} of {key.principal} is revoked"
    show_done(key_row(key), output, said)


@app.command(cls=CommandPage)
def generate() -> None:
    """Writes a new key to stdout, for the file that a broker's --admin-key-file names. No cluster is asked."""
    import secrets

    from metadata.access.api_key import KEY_ID_BYTES, SECRET_BYTES, new_key

    _, text = new_key(
        principal="admin", id_bytes=secrets.token_bytes(KEY_ID_BYTES), secret_bytes=secrets.token_bytes(SECRET_BYTES), now_ms=0
    )
    sys.stdout.write(text.reveal() + "\n")


def key_row(key: KeyInfo) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "principal": key.principal,
        "state": key.state,
        "created_at": _time(key.created_at_ms),
        "created_by": key.created_by,
        "expires_at": _time(key.expires_at_ms),
        "revoked_at": _time(key.revoked_at_ms),
        "scopes": [_scope_text(scope) for scope in key.scopes],
        "description": key.description,
    }


def expiry_ms(text: str, now_ms: int) -> int:
    """Returns the milliseconds since 1970 of 90d (from now) or a time in RFC 3339; 0 of nothing. InvalidArgument."""
    if not text:
        return 0
    count, unit = text[:-1], text[-1]
    if count.isascii() and count.isdigit() and unit in _UNITS:
        return now_ms + int(count) * _UNITS[unit] * 1000
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
    except ValueError:
        raise InvalidArgument(f"--expires {text!r} is no time", hint="Write 90d, 12h, or 2026-12-31T00:00:00Z.") from None
    return int(1000 * moment.timestamp())


def parse_scope(text: str) -> Scope:
    """Parses OPERATION:KIND:NAME, where a trailing * makes the name a prefix. Raises InvalidArgument."""
    from tidelog.admin.access import Scope

    operation, _, rest = text.partition(":")
    kind, _, name = rest.partition(":")
    if not operation or not kind:
        raise InvalidArgument(f"--scope {text!r} is no scope", hint="Write read:topic:orders, read:topic:ord* or admin:cluster.")
    if len(name) > 1 and name.endswith("*"):
        return Scope(operation, kind, name[:-1], "prefix")
    return Scope(operation, kind, name or "*")


def _scope_text(scope: Scope) -> str:
    name = f"{scope.name}*" if scope.pattern == "prefix" else scope.name
    return f"{scope.operation}:{scope.resource}" + ("" if scope.resource == "cluster" else f":{name}")


def _time(at_ms: int) -> str | None:
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
