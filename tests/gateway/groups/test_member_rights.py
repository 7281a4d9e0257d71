"""Which topics a member of a group may read, by the keys and ACLs that the coordinator has heard of."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from gateway.access.authentication import Authenticator
from gateway.access.guard import AccessGuard
from gateway.access.settings import AccessSettings
from gateway.groups.member_rights import GuardedRights, UnlimitedRights
from metadata.access.acl import Acl, Rights, Scope
from metadata.access.api_key import ApiKey, parse_key
from metadata.errors import Unavailable
from metadata.groups.reconciliation.model import MemberPrincipal
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY

NAMES = frozenset({"orders", "users"})


class View:
    """Holds the keys and rights that a broker has received."""

    def __init__(self) -> None:
        self.version = 0
        self.acls: list[Acl] | None = []
        self.keys: dict[str, ApiKey] = {}
        self.changed: Callable[[], None] = lambda: None

    def subscribe(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def stale_error(self) -> None:
        return None

    def key(self, key_id: str) -> ApiKey | None:
        return self.keys.get(key_id)

    def rights(self, principal: str) -> Rights:
        if self.acls is None:
            raise Unavailable("an ACL can't be read")
        return Rights(acl for acl in self.acls if acl.principal == principal)

    def allow(self, principal: str, topic: str, operation: Any = "read") -> None:
        assert self.acls is not None
        self.acls.append(Acl(principal=principal, operation=operation, resource="topic", name=topic))
        self.version += 1
        self.changed()


def rights_by(view: View) -> GuardedRights:
    """The rights of a broker that has an admin key, and the administrator root."""
    settings = AccessSettings(authentication=True, admin_principals="root")
    authenticator = Authenticator(settings, cast(Any, view), now_ms=lambda: 0, admin_key=parse_key(ADMIN_KEY))
    guard = SimpleNamespace(cache=view, known_principal=authenticator.named)
    return GuardedRights(cast(AccessGuard, guard))


def a_key(key_id: str, *scopes: Scope) -> ApiKey:
    return ApiKey(key_id=key_id, principal="billing", secret_sha256="", created_at_ms=0, scopes=scopes)


def test_the_right_to_read_decides_and_a_change_of_acls_is_a_new_version() -> None:
    view = View()
    rights = rights_by(view)
    billing = MemberPrincipal("billing")
    view.allow("billing", "users", "describe")
    assert rights.readable(billing, NAMES) == frozenset()
    before = rights.version
    view.changed()  # of a quota
    assert rights.version == before
    view.allow("billing", "orders")
    assert rights.version == before + 1
    assert rights.readable(billing, NAMES) == frozenset({"orders"})


def test_administrators_and_clients_of_brokers_without_authentication_may_read_everything() -> None:
    rights = rights_by(View())
    admin_key = parse_key(ADMIN_KEY)
    assert admin_key is not None
    assert rights.readable(MemberPrincipal("root"), NAMES) == NAMES
    assert rights.readable(MemberPrincipal("admin", admin_key.key_id), NAMES) == NAMES
    assert rights.readable(MemberPrincipal("admin"), NAMES) == frozenset(), "a name alone proves no admin key"
    assert rights.readable(MemberPrincipal(""), NAMES) == NAMES
    assert UnlimitedRights().readable(None, NAMES) == NAMES


def test_a_key_that_this_broker_has_not_heard_of_is_asked_for_again_after_the_next_change() -> None:
    view = View()
    rights = rights_by(view)
    view.allow("billing", "orders")
    view.allow("billing", "users")
    member, before = MemberPrincipal("billing", "k1"), rights.version
    assert rights.readable(member, NAMES) is None
    view.keys["k1"] = a_key("k1", Scope("read", "topic", "orders"))
    view.changed()
    assert rights.version == before + 1
    assert rights.readable(member, NAMES) == frozenset({"orders"}), "its scopes narrow the rights"
    view.changed()
    assert rights.version == before + 1


def test_rights_are_not_known_while_an_acl_cannot_be_read_or_no_principal_is_known() -> None:
    view = View()
    view.acls = None
    rights = rights_by(view)
    assert rights.readable(MemberPrincipal("billing"), NAMES) is None
    assert rights.readable(None, NAMES) is None
