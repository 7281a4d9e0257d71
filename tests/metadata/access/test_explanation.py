"""Explanations name what decides, and come to what the bindings do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metadata.access.acl import Acl, Scope, decide
from metadata.access.api_key import ApiKey
from metadata.access.explanation import ACLS_MAX, Explanation, Use, UsedKey, explain, explain_bindings
from tests.metadata.access.test_acl import ASKED, BINDINGS, NAMES

KEY = ApiKey(key_id="1" * 16, principal="billing", secret_sha256="0" * 64, created_at_ms=1)
NOW_MS = 1_000
WRITE = Use("write", "topic", "orders")


def acl(operation: str, name: str = "orders", **more: Any) -> Acl:
    return Acl(**{"principal": "billing", "operation": operation, "resource": "topic", "name": name} | more)


def explained(*bindings: Acl, use: Use = WRITE, key: ApiKey | None = None) -> Explanation:
    return explain(use, bindings, used=UsedKey(key) if key is not None else None, now_ms=NOW_MS)


@given(st.lists(BINDINGS, max_size=8), ASKED, st.sampled_from(["topic", "group", "cluster"]), NAMES)
def test_an_explanation_comes_to_what_the_bindings_do(bindings: list[Acl], operation: str, resource: str, name: str) -> None:
    use = Use(operation, resource, "cluster" if resource == "cluster" else name)
    assert any(finding.refuses for finding in explain_bindings(bindings, use)) != decide(bindings, *use)


def test_the_acl_that_denies_is_named_and_not_those_that_allow() -> None:
    denial = acl("write", "ord", pattern="prefix", effect="deny")
    [finding] = explained(acl("all"), denial).findings
    assert (finding.code, finding.acls) == ("ACL_DENIES", [denial])


def test_a_denial_where_no_acl_allows_it_either_is_not_the_only_finding() -> None:
    found = explained(acl("write", effect="deny"))
    assert [finding.code for finding in found.findings] == ["ACL_DENIES", "NO_ACL_ALLOWS"]


def test_the_acls_that_allow_are_named() -> None:
    [finding] = explained(acl("read"), acl("write"), acl("all", "*", principal="*")).findings
    assert finding.code == "ACL_ALLOWS"
    assert [each.operation for each in finding.acls] == ["write", "all"]


def test_where_no_acl_allows_it_those_that_cover_the_resource_are_named() -> None:
    [finding] = explained(acl("read"), acl("write", "other"), acl("write", resource="group")).findings
    assert (finding.code, finding.acls) == ("NO_ACL_ALLOWS", [acl("read")])


def test_a_right_to_the_cluster_explains_the_creation_of_a_topic() -> None:
    create = Use("create", "topic", "orders")
    on_cluster = acl("create", "cluster", resource="cluster")
    assert explained(on_cluster, use=create).findings[0].acls == [on_cluster]
    denied = explained(acl("create", "cluster", resource="cluster", effect="deny"), use=create)
    assert denied.findings[0].code == "NO_ACL_ALLOWS"


@pytest.mark.parametrize(
    ("key", "code"),
    [(None, "KEY_UNKNOWN"), (replace(KEY, revoked_at_ms=5), "KEY_REVOKED"), (replace(KEY, expires_at_ms=NOW_MS), "KEY_EXPIRED")],
)
def test_a_key_that_does_not_count_refuses_what_the_acls_allow(key: ApiKey | None, code: str) -> None:
    found = explain(WRITE, [acl("write")], used=UsedKey(key), now_ms=NOW_MS)
    assert not found.allowed
    assert [finding.code for finding in found.findings] == [code, "ACL_ALLOWS"]


def test_all_that_has_to_change_is_found_at_once() -> None:
    key = replace(KEY, revoked_at_ms=5, scopes=(Scope("read", "topic"),))
    found = explained(acl("read"), key=key)
    assert [finding.code for finding in found.findings] == ["KEY_REVOKED", "NO_ACL_ALLOWS", "NO_SCOPE_ALLOWS"]


def test_the_scopes_of_a_key_narrow_an_administrator_as_well() -> None:
    key = replace(KEY, scopes=(Scope("read", "topic"),))
    found = explain(WRITE, None, used=UsedKey(key), now_ms=NOW_MS)
    assert [finding.code for finding in found.findings] == ["KEY_ACTIVE", "ADMINISTRATOR", "NO_SCOPE_ALLOWS"]
    assert explain(WRITE, None, used=None, now_ms=NOW_MS).allowed


def test_no_more_acls_are_named_than_a_page_shows() -> None:
    many = [acl("write", "orders"[:length], pattern="prefix", principal=who) for length in range(1, 7) for who in "abcdefgh"]
    assert len(explained(*many).findings[0].acls) == ACLS_MAX
