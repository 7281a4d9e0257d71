"""Knows which topics each member of a KIP-848 group may read, so that its pattern subscribes to these alone.

    a heartbeat ─▶ present_member(): principal and API key ─▶ kept with the member ─▶ readable(): this broker's keys and ACLs, now

The coordinator decides for all members of a group at once, so it asks for the rights of members that are not calling. Of a member
that reached another broker it has what that broker asserts (gateway/access/peer_tokens.py). Rights are not known while this broker
has not heard of the member's API key, or cannot read an ACL.

Invariant: `version` rises after each change of ACLs, and when rights that were not known may have become known. The coordinator
then resolves the subscriptions of its groups again.
"""

from __future__ import annotations

from typing import Final, Protocol

from gateway.access.authorization import Principal, is_guarded, present_key_id, present_principal
from gateway.access.guard import AccessGuard
from metadata.errors import Unavailable
from metadata.groups.reconciliation.model import MemberPrincipal, all_readable

REMEMBERED_MAX: Final = 64


class MemberRights(Protocol):
    """Decides which topics a member may read."""

    @property
    def version(self) -> int: ...

    def readable(self, member: MemberPrincipal | None, names: frozenset[str]) -> frozenset[str] | None:
        """Returns those of the names that the member may read; None while its rights are not known."""


class UnlimitedRights:
    """Lets each member read each topic, at a broker without authentication."""

    version = 0

    def readable(self, member: MemberPrincipal | None, names: frozenset[str]) -> frozenset[str] | None:
        return all_readable(member, names)


class GuardedRights:
    """Decides by the keys and ACLs that this broker has heard of.

    The groups of a broker ask for the same members and topics again: the last REMEMBERED_MAX answers are kept until a key or an ACL
    changes. Keys of one principal that no scope narrows share an answer.
    """

    def __init__(self, guard: AccessGuard) -> None:
        self.version = 0
        self._guard = guard
        self._acls = guard.cache.version
        self._had_unknown = False
        self._remembered: dict[tuple[str, str, bool, frozenset[str]], frozenset[str]] = {}
        guard.cache.subscribe(self._changed)

    def readable(self, member: MemberPrincipal | None, names: frozenset[str]) -> frozenset[str] | None:
        try:
            if member is not None and not member.principal:
                return names
            caller = self._guard.known_principal(*member) if member is not None else None
            if caller is not None:
                return self._decided(caller, names)
        except Unavailable:  # an ACL can't be read, or none was read yet
            pass
        self._had_unknown = True
        return None

    def _decided(self, caller: Principal, names: frozenset[str]) -> frozenset[str]:
        """Returns the names that a principal may read. Raises Unavailable."""
        asked = caller.principal, caller.key_id if caller.is_narrowed else "", caller.is_admin, names
        found = self._remembered.get(asked)
        if found is None:
            found = frozenset(name for name in names if caller.may("read", "topic", name))
            if len(self._remembered) >= REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[asked] = found
        return found

    def _changed(self) -> None:
        self._remembered.clear()
        if self._had_unknown or self._acls != self._guard.cache.version:
            self._had_unknown, self._acls = False, self._guard.cache.version
            self.version += 1


def present_member() -> MemberPrincipal | None:
    """Returns whose heartbeat the present call is; None without authentication."""
    return MemberPrincipal(present_principal(), present_key_id()) if is_guarded() else None
