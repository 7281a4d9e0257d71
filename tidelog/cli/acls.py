"""`tidelog acl`: add, list, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import InvalidArgument
from tidelog.cli.app.client_command import with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, say, show_done, show_one, show_rows

if TYPE_CHECKING:
    from tidelog.admin.access import AclInfo

app = typer.Typer(cls=GroupPage, help="Allow and deny operations. What no ACL allows is denied, and a denial wins.")

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check the request and show its result; change nothing.")]


@app.command(cls=CommandPage)
def add(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Principal; * is every principal.", show_default=False)],
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="describe, read, write, create, admin or all.", show_default=False)
    ],
    topic: Annotated[
        str, typer.Option("--topic", metavar="NAME", help="On this topic; * is every topic.", show_default=False)
    ] = "",
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="On this consumer group.", show_default=False)] = "",
    cluster: Annotated[
        bool, typer.Option("--cluster", help="On the cluster: create topics, drain brokers, keys, ACLs, metrics.")
    ] = False,
    prefix: Annotated[bool, typer.Option("--prefix", help="On all topics or groups whose names begin so.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Deny the operation, even if another ACL allows it.")] = False,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Allows a principal an operation, or denies it."""
    resource, name = _resource(topic, group, cluster=cluster)
    pattern, effect = "prefix" if prefix else "literal", "deny" if deny else "allow"
    acl = with_client(
        url,
        lambda log: log.access.add_acl(principal, operation, resource, name, pattern=pattern, effect=effect, validate_only=dry_run),
        writes=True,
    )
    show_one(acl_row(acl), output)
    if dry_run:
        say("nothing was changed (--dry-run)")


@app.command("list", cls=CommandPage)
def list_acls(
    principal: Annotated[str, typer.Option("--principal", help="Only ACLs of this principal.", show_default=False)] = "",
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Lists what is allowed and denied."""
    acls = with_client(url, lambda log: log.access.acls())
    rows = [acl_row(acl) for acl in acls if principal in {"", acl.principal}]
    rows.sort(key=lambda row: (row["principal"], row["resource"], row["name"], row["operation"]))
    show_rows(rows, output, columns=("acl_id", "principal", "effect", "operation", "resource", "name", "pattern"))
    if output is Output.TABLE and not rows:
        who = f"{principal} may do nothing then, unless as an admin" if principal else "only admins may do anything then"
        say(f"there are no ACLs{f' of {principal}' if principal else ''}; they count where `authentication` is on: {who}")
        say(f"Add one: tidelog acl add {principal or 'PRINCIPAL'} read --topic NAME")


@app.command(cls=CommandPage)
def remove(
    acl_id: Annotated[str, typer.Argument(metavar="ACL_ID", help="As `acl list` shows it.", show_default=False)],
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Removes an allowance or a denial."""
    acl = with_client(url, lambda log: log.access.remove_acl(acl_id, validate_only=dry_run), writes=True)
    what = "would no longer be" if dry_run else "is no longer"
    said = f"{acl.principal} {what} {'denied' if acl.effect == 'deny' else 'allowed'} to {acl.operation} {acl.resource} {acl.name}"
    show_done(acl_row(acl), output, said)


def acl_row(acl: AclInfo) -> dict[str, Any]:
    import msgspec

    row: dict[str, Any] = msgspec.to_builtins(acl)
    return row


def _resource(topic: str, group: str, *, cluster: bool) -> tuple[str, str]:
    named = [("topic", topic), ("group", group), ("cluster", "*" if cluster else "")]
    given = [(kind, name) for kind, name in named if name]
    if len(given) != 1:
        raise InvalidArgument("it is not said on what, or on several things", hint="Give one of --topic, --group and --cluster.")
    return given[0]
