"""Words the refusals of authorization, and the commands that would permit the operation. Pure.

no ACL allows it                ─▶ acl add
an ACL denies it                ─▶ acl remove, since a denial outweighs every allowance; and acl add where no ACL allows it
the key's scopes leave it out   ─▶ key create --scope …; and acl add where no ACL allows it
"""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import Final, NamedTuple

from metadata.errors import NotAuthorized

# Why clients describe a topic or group, and the operation each purpose needs; each of these includes `describe`.
_PURPOSES: Final = {
    "topic": (("to write", "write"), ("to read", "read"), ("only to look at it", "describe")),
    "group": (("to be a member", "read"), ("only to look at it", "describe")),
}


class Denial(NamedTuple):
    """Holds the reasons of a refusal; at least one is set."""

    # No ACL allows it to the principal, whether one denies it or not.
    no_right: bool = False
    # An ACL denies it to the principal.
    denied: bool = False
    # The scopes of its key leave it out.
    narrowed: bool = False


def not_authorized(principal: str, operation: str, kind: str, name: str, denial: Denial) -> NotAuthorized:
    """Returns the error of a refused operation; `kind` is "topic", "group" or "cluster".

    Its details are what a client passes to the call that explains the refusal.
    """
    shown = name[:249]
    what = "the cluster" if kind == "cluster" else f"{kind} {shown}"
    if denial.denied:
        message = f"{principal} is denied the right to {operation} {what}"
    elif denial.no_right:
        message = f"{principal} has no right to {operation} {what}"
    else:
        message = f"this API key of {principal} is narrowed to scopes that leave out the right to {operation} {what}"
    hint = _hint(principal, operation, kind, shown, denial)
    # A name that was cut is that of another resource.
    named = {"name": name} if kind != "cluster" and shown == name else {}
    return NotAuthorized(message, hint=hint, principal=principal, operation=operation, resource=kind, **named)


def _hint(principal: str, operation: str, kind: str, name: str, denial: Denial) -> str:
    who = quote(principal)
    on = "--cluster" if kind == "cluster" else f"--{kind} {quote(name)}"
    scope = kind if kind == "cluster" else f"{kind}:{name}"
    hints = []
    if denial.denied:
        hints.append("An ACL denies it, whatever others allow: ask who runs the cluster to remove that (tidelog acl list shows it)")
    if denial.no_right:
        ways = _ways(operation, kind, lambda needed: f"tidelog acl add {who} {needed} {on}")
        asked = "No ACL allows it either: ask" if denial.denied else "Ask who runs the cluster"
        hints.append(f"{asked} for {ways}")
    if denial.narrowed:
        ways = _ways(operation, kind, lambda needed: f"tidelog key create {who} --scope {quote(f'{needed}:{scope}')}")
        asked = "The API key is narrowed as well: ask for a key" if hints else "Ask who runs the cluster for a key"
        hints.append(f"{asked} whose scopes, beside those that this one has, hold {ways}")
    return ". ".join(hints)


def _ways(operation: str, kind: str, command: Callable[[str], str]) -> str:
    """Returns the commands for what the client may intend: it describes first, so `describe` alone would fail at its next call."""
    ways = _PURPOSES.get(kind, ()) if operation == "describe" else ()
    if not ways:
        return f"it: {command(operation)}"
    commands = "; ".join(f"{to}: {command(needed)}" for to, needed in ways)
    return f"what is to be done. {commands[0].upper()}{commands[1:]}"
