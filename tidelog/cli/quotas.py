"""`tidelog quota`: set, list, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import InvalidArgument
from tidelog.cli.app.client_command import with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, say, show_done, show_one, show_rows

if TYPE_CHECKING:
    from tidelog.admin.access import QuotaInfo

app = typer.Typer(cls=GroupPage, help="Limit what a principal may use of each broker.")

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check the request and show its result; change nothing.")]
PrincipalArgument = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Principal; * is every principal without a quota of its own.", show_default=False)
]
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@app.command("set", cls=CommandPage)
def set_quota(
    principal: PrincipalArgument,
    bytes_in: Annotated[
        str, typer.Option("--bytes-in", metavar="BYTES", help="Bytes produced per second, such as 10MiB.", show_default="no limit")
    ] = "0",
    bytes_out: Annotated[
        str, typer.Option("--bytes-out", metavar="BYTES", help="Bytes read per second.", show_default="no limit")
    ] = "0",
    requests: Annotated[int, typer.Option("--requests", min=0, help="Requests per second.", show_default="no limit")] = 0,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Sets the quota of a principal, and replaces an earlier one."""
    limits = {
        "bytes_in_per_second": parse_bytes("--bytes-in", bytes_in),
        "bytes_out_per_second": parse_bytes("--bytes-out", bytes_out),
        "requests_per_second": requests,
    }
    quota = with_client(url, lambda log: log.access.set_quota(principal, validate_only=dry_run, **limits), writes=True)
    show_one(quota_row(quota), output)
    if dry_run:
        say("nothing was changed (--dry-run)")


@app.command("list", cls=CommandPage)
def list_quotas(url: UrlOption = "", output: OutputOption = Output.TABLE) -> None:
    """Lists the quotas."""
    quotas = with_client(url, lambda log: log.access.quotas())
    columns = ("principal", "bytes_in_per_second", "bytes_out_per_second", "requests_per_second")
    show_rows([quota_row(quota) for quota in quotas], output, columns=columns)
    if output is Output.TABLE and not quotas:
        say("there are no quotas; set one: tidelog quota set PRINCIPAL --bytes-in 10MiB")


@app.command(cls=CommandPage)
def remove(
    principal: PrincipalArgument, dry_run: DryRunOption = False, url: UrlOption = "", output: OutputOption = Output.TABLE
) -> None:
    """Removes the quota of a principal. Then the quota of * applies to it, if there is one."""
    quota = with_client(url, lambda log: log.access.remove_quota(principal, validate_only=dry_run), writes=True)
    show_done(quota_row(quota), output, f"the quota of {principal} {'would be' if dry_run else 'is'} removed")


def quota_row(quota: QuotaInfo) -> dict[str, Any]:
    """Converts a quota to a row; a rate of 0 shows as none."""
    return {
        "principal": quota.principal,
        "bytes_in_per_second": quota.bytes_in_per_second or None,
        "bytes_out_per_second": quota.bytes_out_per_second or None,
        "requests_per_second": quota.requests_per_second or None,
    }


def parse_bytes(option: str, text: str) -> int:
    """Parses digits with an optional KiB, MiB or GiB. Raises InvalidArgument."""
    unit = text[-3:]
    digits = text[:-3].strip() if unit in _UNITS else text
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidArgument(f"{option} {text!r} is no number of bytes", hint="Write 1048576, 512KiB or 10MiB.")
    return int(digits) * _UNITS.get(unit, 1)
