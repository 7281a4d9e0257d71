"""A refusal says what would help: an ACL, a key of wider scope, both, or the removal of a denial."""

from __future__ import annotations

import shlex

import pytest

from gateway.access.authorization import Principal
from gateway.proto.status import from_status, to_status
from metadata.access.acl import Acl, Rights, Scope, rights_of_scopes
from metadata.access.api_key import ApiKey
from metadata.errors import NotAuthorized

WRITE = Acl(principal="billing", operation="write", resource="topic", name="orders")
ALL = Acl(principal="billing", operation="all", resource="topic")
DENIAL = Acl(principal="billing", operation="write", resource="topic", name="ord", pattern="prefix", effect="deny")
READS = Scope("read", "topic", "orders")


class Book:
    version = 1

    def __init__(self, *acls: Acl) -> None:
        self._rights = Rights(acls)

    def stale_error(self) -> None:
        return None

    def key(self, key_id: str) -> ApiKey | None:
        return None

    async def catch_up(self, timeout_s: float, *, anonymous: bool = False) -> bool:
        return True

    def rights(self, principal: str) -> Rights:
        return self._rights


def refusal(
    *acls: Acl, asked: tuple[str, str, str], scopes: tuple[Scope, ...] = (), principal: str = "billing", is_admin: bool = False
) -> NotAuthorized:
    narrowed = rights_of_scopes(scopes) if scopes else None
    caller = Principal(principal, Book(*acls), lambda: 0, credential="API key", is_admin=is_admin, scopes=narrowed)
    assert not caller.may(*asked)
    return caller.refusal(*asked)


def test_a_denial_names_the_acl_that_would_allow_the_request() -> None:
    error = refusal(asked=("write", "topic", "orders"))
    assert error.message == "billing has no right to write topic orders"
    assert error.hint == "Ask who runs the cluster for it: tidelog acl add billing write --topic orders"
    assert refusal(asked=("admin", "cluster", "cluster")).hint.endswith("tidelog acl add billing admin --cluster")
    creation = refusal(WRITE, asked=("create", "topic", "orders"))
    assert creation.message == "billing has no right to create topic orders"
    assert creation.hint.endswith("tidelog acl add billing create --topic orders")


def test_the_details_of_a_refusal_are_what_its_explanation_is_asked_for() -> None:
    asked = {"principal": "billing", "operation": "write", "resource": "topic"}
    assert refusal(asked=("write", "topic", "17")).details == asked | {"name": "17"}
    assert from_status(to_status(refusal(asked=("write", "topic", "17")))).details == asked | {"name": "17"}
    assert refusal(asked=("write", "topic", "x" * 250)).details == asked, "a part of the name would be another topic"
    of_cluster = asked | {"operation": "admin", "resource": "cluster"}
    assert refusal(asked=("admin", "cluster", "cluster")).details == of_cluster


def test_a_refusal_by_the_scopes_of_a_key_suggests_a_wider_key_and_no_acl() -> None:
    error = refusal(ALL, asked=("write", "topic", "orders"), scopes=(READS,))
    assert error.message == "this API key of billing is narrowed to scopes that leave out the right to write topic orders"
    assert "acl add" not in error.hint
    assert error.hint.endswith(
        "for a key whose scopes, beside those that this one has, hold it: tidelog key create billing --scope write:topic:orders"
    )


def test_an_administrators_narrow_key_needs_no_acl_either() -> None:
    error = refusal(asked=("admin", "cluster", "cluster"), scopes=(READS,), principal="admin", is_admin=True)
    assert error.message.startswith("this API key of admin is narrowed")
    assert error.hint.endswith("tidelog key create admin --scope admin:cluster")


def test_a_refusal_by_acls_and_key_scopes_suggests_both_an_acl_and_a_key() -> None:
    error = refusal(asked=("write", "topic", "orders"), scopes=(READS,))
    assert error.message == "billing has no right to write topic orders"
    assert "tidelog acl add billing write --topic orders. The API key is narrowed as well: ask for a key" in error.hint
    assert error.hint.endswith("tidelog key create billing --scope write:topic:orders")


def test_a_refusal_by_a_deny_acl_names_it_and_suggests_no_other_acl() -> None:
    error = refusal(WRITE, ALL, DENIAL, asked=("write", "topic", "orders"))
    assert error.message == "billing is denied the right to write topic orders"
    assert "An ACL denies it" in error.hint
    assert "acl add" not in error.hint


def test_a_refusal_by_a_deny_acl_without_an_allow_acl_suggests_both_steps() -> None:
    error = refusal(DENIAL, asked=("write", "topic", "orders"))
    assert error.message == "billing is denied the right to write topic orders"
    assert error.hint == (
        "An ACL denies it, whatever others allow: ask who runs the cluster to remove that (tidelog acl list shows it). "
        "No ACL allows it either: ask for it: tidelog acl add billing write --topic orders"
    )
    both = refusal(DENIAL, ALL, asked=("write", "topic", "orders"), scopes=(READS,)).hint
    assert "acl add" not in both
    assert "(tidelog acl list shows it). The API key is narrowed as well: ask for a key whose scopes" in both


def test_a_denied_topic_lookup_names_the_acls_to_write_read_and_describe() -> None:
    assert refusal(asked=("describe", "topic", "orders")).hint == (
        "Ask who runs the cluster for what is to be done. To write: tidelog acl add billing write --topic orders; "
        "to read: tidelog acl add billing read --topic orders; only to look at it: tidelog acl add billing describe --topic orders"
    )
    hint = refusal(ALL, asked=("describe", "topic", "invoices"), scopes=(READS,)).hint
    assert "To write: tidelog key create billing --scope write:topic:invoices; to read: tidelog key" in hint


@pytest.mark.parametrize("name", ["o'brien {and} $(sons)", "; rm -rf /"])
def test_a_hint_can_be_pasted_into_a_shell_whatever_the_names(name: str) -> None:
    hint = refusal(asked=("read", "group", name), scopes=(READS,), principal=f"CN={name}").hint
    acl, key = hint.split(". The API key is narrowed as well")
    assert shlex.split(acl.partition(": ")[2]) == ["tidelog", "acl", "add", f"CN={name}", "read", "--group", name]
    typed = shlex.split(key[key.index("tidelog") :])
    assert typed == ["tidelog", "key", "create", f"CN={name}", "--scope", f"read:group:{name}"]
