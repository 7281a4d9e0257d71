"""The explanation of a call agrees with the authorizer: in its decision, and in what would help."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.authentication import ADMIN, Authenticator
from gateway.access.authorization import Principal
from gateway.access.explanation import AccessExplainer, AskedAccess, explain_unguarded, text_of
from gateway.access.permissions import RequiredAccess
from gateway.access.quotas import PrincipalQuotas
from gateway.access.settings import AccessSettings
from metadata.access.acl import EVERYONE, Acl, Rights, Scope
from metadata.access.api_key import ApiKey, hash_secret, parse_key
from metadata.access.explanation import Finding
from metadata.access.quota import Quota
from metadata.errors import InvalidArgument, Throttled, Unauthenticated, Unavailable
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY
from tests.metadata.access.test_acl import ASKED, BINDINGS, NAMES

NOW_MS = 1_000
KEY_ID, SECRET = "1" * 16, "5e" * 32
KEYS = st.builds(
    ApiKey,
    key_id=st.just(KEY_ID),
    principal=st.sampled_from(["billing", "root"]),
    secret_sha256=st.just(hash_secret(SECRET)),
    created_at_ms=st.just(1),
    expires_at_ms=st.sampled_from([0, 999, 1_000, 1_001]),
    revoked_at_ms=st.sampled_from([0, 0, 5]),
    scopes=st.lists(st.builds(Scope, ASKED, st.sampled_from(["topic", "group"]), NAMES), max_size=3).map(tuple),
)


class Book:
    """Keys and ACLs, as the access cache holds them."""

    version = 1

    def __init__(self, *acls: Acl, key: ApiKey | None = None, stale: Unavailable | None = None) -> None:
        self._acls = acls
        self._key = key
        self._stale = stale

    def stale_error(self) -> Unavailable | None:
        return self._stale

    async def catch_up(self, timeout_s: float, *, anonymous: bool = False) -> bool:
        return True

    def key(self, key_id: str) -> ApiKey | None:
        return self._key if self._key is not None and self._key.key_id == key_id else None

    def scram_user(self, user: str) -> None:
        return None

    def bindings(self, principal: str) -> list[Acl]:
        return [acl for acl in self._acls if acl.principal in {principal, EVERYONE}]

    def rights(self, principal: str) -> Rights:
        return Rights(self.bindings(principal))


class Parts:
    """An explainer and an authenticator over the same records."""

    def __init__(self, book: Book, *quotas: Quota) -> None:
        settings = AccessSettings(authentication=True, admin_principals="root")
        self.now_s = 0.0
        held = {quota.principal: quota for quota in quotas}
        self.quotas = PrincipalQuotas(SimpleNamespace(quota=held.get), lambda: self.now_s)
        self.authenticator = Authenticator(settings, book, now_ms=lambda: NOW_MS, admin_key=parse_key(ADMIN_KEY))
        self.explainer = AccessExplainer(book, self.authenticator, self.quotas, now_ms=lambda: NOW_MS)


def acl(operation: str, name: str = "orders", **more: Any) -> Acl:
    return Acl(**{"principal": "billing", "operation": operation, "resource": "topic", "name": name} | more)


def codes(findings: Any) -> list[str]:
    return [finding.code for finding in findings]


def authenticated(authenticator: Authenticator, principal: str, *, with_key: bool) -> Principal:
    """Returns the principal of a client with the key, or of one with other credentials. Raises Unauthenticated."""
    if with_key:
        return asyncio.run(authenticator.caller(f"Bearer tlk_{KEY_ID}_{SECRET}", None))
    caller = authenticator.named(principal, "")
    assert caller is not None
    return caller


@given(
    st.lists(BINDINGS, max_size=8),
    st.none() | KEYS,
    st.sampled_from(["billing", "root"]),
    ASKED,
    st.sampled_from(["topic", "group"]),
    NAMES.filter(lambda name: name != "*"),
)
def test_an_explanation_agrees_with_the_authorizer(
    bindings: list[Acl], key: ApiKey | None, principal: str, operation: str, resource: str, name: str
) -> None:
    if (operation, resource) == ("create", "group"):
        return
    parts = Parts(Book(*bindings, key=key))
    principal = key.principal if key is not None else principal
    explained = parts.explainer.explain(AskedAccess(principal, operation, resource, name, KEY_ID if key is not None else ""))
    try:
        caller = authenticated(parts.authenticator, principal, with_key=key is not None)
        caller.check_counts()
        if caller.may(operation, resource, name):
            refusal, hint = "", ""
        else:
            error = caller.refusal(operation, resource, name)
            refusal, hint = error.code, error.hint
    except Unauthenticated as error:
        refusal, hint = error.code, f"tidelog key create {principal}"
    assert explained.found.allowed == (refusal == "")
    assert explained.refusal == refusal
    assert hint in explained.hint


def test_the_id_of_a_key_names_its_principal() -> None:
    key = ApiKey(key_id=KEY_ID, principal="billing", secret_sha256="0" * 64, created_at_ms=1)
    parts = Parts(Book(acl("write"), key=key))
    found = parts.explainer.explain(AskedAccess("", "write", "topic", "orders", KEY_ID))
    assert (found.principal, found.found.allowed) == ("billing", True)
    with pytest.raises(InvalidArgument, match="belongs to billing"):
        parts.explainer.explain(AskedAccess("ann", "write", "topic", "orders", KEY_ID))
    unknown = parts.explainer.explain(AskedAccess("ann", "write", "topic", "orders", "2" * 16))
    assert codes(unknown.found.findings) == ["KEY_UNKNOWN", "NO_ACL_ALLOWS"]


def test_the_admin_key_may_do_everything() -> None:
    found = Parts(Book()).explainer.explain(AskedAccess("", "admin", "cluster", "", "ad" * 8))
    assert (found.principal, codes(found.found.findings)) == (ADMIN, ["ADMINISTRATOR"])


def test_a_quota_that_is_used_up_is_shown_beside_the_decision() -> None:
    parts = Parts(Book(acl("write")), Quota(principal="billing", bytes_in_per_second=100))
    asked = AskedAccess("billing", "write", "topic", "orders")
    unused = parts.explainer.explain(asked).quota
    assert unused is not None
    assert unused.wait_s == 0
    meter = parts.quotas.meter("billing")
    assert meter is not None
    meter.add_bytes_in(350)
    found = parts.explainer.explain(asked)
    assert found.found.allowed
    assert found.quota is not None
    with pytest.raises(Throttled) as throttled:
        meter.begin(RequiredAccess(topic="write", bytes_in=True))
    assert found.quota.wait_s == throttled.value.retry_after_s == pytest.approx(2.5)
    assert parts.explainer.explain(AskedAccess("ann", "write", "topic", "orders")).quota is None


def test_a_broker_that_could_not_decide_explains_nothing() -> None:
    stale = Unavailable("the view is too old")
    with pytest.raises(Unavailable, match="too old"):
        Parts(Book(stale=stale)).explainer.explain(AskedAccess("billing", "write", "topic", "orders"))


@pytest.mark.parametrize(
    "asked",
    [
        AskedAccess("", "read", "topic", "orders"),
        AskedAccess("*", "read", "topic", "orders"),
        AskedAccess("billing", "all", "topic", "orders"),
        AskedAccess("billing", "fly", "topic", "orders"),
        AskedAccess("billing", "read", "queue", "orders"),
        AskedAccess("billing", "read", "topic", ""),
        AskedAccess("billing", "read", "topic", "*"),
        AskedAccess("billing", "create", "group", "g"),
        AskedAccess("billing", "read", "topic", "orders", "no id"),
    ],
)
def test_a_call_that_no_client_can_make_is_refused(asked: AskedAccess) -> None:
    with pytest.raises(InvalidArgument):
        Parts(Book()).explainer.explain(asked)


def test_without_authentication_everything_is_allowed() -> None:
    found = explain_unguarded(AskedAccess("billing", "write", "topic", "orders"))
    assert (found.found.allowed, codes(found.found.findings)) == (True, ["AUTHENTICATION_OFF"])


def test_a_finding_without_acls_announces_none() -> None:
    assert text_of(Finding("NO_ACL_ALLOWS")).endswith(".")
    assert text_of(Finding("NO_ACL_ALLOWS", [acl("read")])).endswith(":")
