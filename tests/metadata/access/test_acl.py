from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metadata.access.acl import (
    EVERY_NAME,
    EVERYONE,
    OPERATIONS,
    Acl,
    Rights,
    Scope,
    check_acl,
    check_scope,
    decide,
    decode_acl,
    encode_acl,
    rights_of_scopes,
)
from metadata.errors import Corrupt, InvalidArgument
from metadata.model import Revision
from metadata.store.interface import KeyValue

NAMES = st.sampled_from(["a", "ab", "abc", "b", "*"])
ASKED = st.sampled_from(sorted(OPERATIONS - {"all"}))
ANY_BINDINGS = st.builds(
    Acl,
    principal=st.sampled_from(["billing", EVERYONE]),
    operation=st.sampled_from(sorted(OPERATIONS)),
    resource=st.sampled_from(["topic", "group", "cluster"]),
    name=NAMES,
    pattern=st.sampled_from(["literal", "prefix"]),
    effect=st.sampled_from(["allow", "deny"]),
)
# As they are stored: the cluster has one name, and no group is created by a right.
BINDINGS = ANY_BINDINGS.filter(lambda acl: (acl.operation, acl.resource) != ("create", "group")).map(
    lambda acl: check_acl(acl if acl.resource != "cluster" else replace(acl, name=EVERY_NAME, pattern="literal"))
)


def acl(operation: Any, name: str = "orders", **more: Any) -> Acl:
    return Acl(**{"principal": "billing", "operation": operation, "resource": "topic", "name": name} | more)


@given(st.lists(BINDINGS, max_size=8), ASKED, st.sampled_from(["topic", "group"]), NAMES)
def test_rights_come_to_what_their_bindings_do(bindings: list[Acl], operation: str, resource: str, name: str) -> None:
    assert Rights(bindings).allow(operation, resource, name) == decide(bindings, operation, resource, name)


def test_names_that_nothing_can_have_are_not_remembered() -> None:
    rights = Rights([acl("read", "o", pattern="prefix")])
    assert rights.allow("read", "topic", "o" * 100_000)
    assert not rights.allow("read", "topic", "x" * 100_000)
    assert rights.remembered == 0
    assert rights.allow("read", "topic", "orders")
    assert rights.remembered == 1


def test_without_a_binding_nothing_is_allowed() -> None:
    assert not decide([], "read", "topic", "orders")


@given(st.lists(BINDINGS, max_size=8), ASKED, st.sampled_from(["topic", "group"]), NAMES)
def test_denials_only_take_away_and_allowances_only_add(bindings: list[Acl], operation: str, resource: str, name: str) -> None:
    allowed = decide(bindings, operation, resource, name)
    denials = [each for each in bindings if each.effect == "deny"]
    assert not (allowed and not decide([each for each in bindings if each not in denials], operation, resource, name))
    assert not decide([*bindings, acl("all", name, resource=resource, effect="deny")], operation, resource, name)
    if not denials:
        assert decide([*bindings, acl(operation, name, resource=resource)], operation, resource, name)
    assert Rights(bindings).allow(operation, resource, name) == allowed
    assert decide(list(reversed(bindings)), operation, resource, name) == allowed


@given(BINDINGS)
def test_a_binding_is_read_back_and_its_id_says_what_it_says(binding: Acl) -> None:
    checked = check_acl(binding)
    kept = KeyValue(f"/tidelog/acls/{checked.acl_id}", encode_acl(checked), Revision(1), Revision(1), version=1)
    assert decode_acl(kept) == checked
    other = Acl(**{name: getattr(checked, name) for name in checked.__struct_fields__} | {"name": "other"})
    assert other.acl_id != checked.acl_id


def test_a_prefix_covers_what_begins_with_it_and_a_literal_itself_alone() -> None:
    prefixed, literal = [acl("read", "ord", pattern="prefix")], [acl("read", "ord")]
    assert [decide(prefixed, "read", "topic", name) for name in ("ord", "orders", "or", "xord")] == [True, True, False, False]
    assert [decide(literal, "read", "topic", name) for name in ("ord", "orders")] == [True, False]
    assert decide([acl("read", "*")], "read", "topic", "anything")
    assert not decide([acl("read", "*", pattern="prefix")], "read", "topic", "anything")


@pytest.mark.parametrize(
    ("operation", "more"),
    [("describe", ""), ("read", "describe"), ("write", "describe"), ("create", ""), ("admin", "describe create")],
)
def test_each_operation_allows_itself_and_what_it_includes_and_no_other(operation: str, more: str) -> None:
    allowed = {asked for asked in OPERATIONS - {"all"} if decide([acl(operation)], asked, "topic", "orders")}
    assert allowed == {operation, *more.split()}
    assert decide([acl("all")], operation, "topic", "orders")


@pytest.mark.parametrize(
    ("operation", "more"), [("describe", ""), ("read", ""), ("write", ""), ("create", ""), ("admin", "create")]
)
def test_a_denial_denies_what_the_operation_includes_and_not_describe(operation: str, more: str) -> None:
    bindings = [acl("all"), acl(operation, effect="deny")]
    denied = {asked for asked in OPERATIONS - {"all"} if not decide(bindings, asked, "topic", "orders")}
    assert denied == {operation, *more.split()}


def test_a_right_to_create_is_one_to_the_names_that_it_covers() -> None:
    rights = Rights([acl("create", "team-", pattern="prefix"), acl("create", "team-secret", effect="deny")])
    assert [rights.allow("create", "topic", name) for name in ("team-a", "team-secret", "other")] == [True, False, False]


@pytest.mark.parametrize("operation", ["create", "admin", "all"])
def test_a_right_to_create_on_the_cluster_is_one_to_every_topic_that_is_not_denied(operation: str) -> None:
    bindings = [check_acl(acl(operation, "*", resource="cluster")), acl("create", "secret", effect="deny")]
    for allowed in (Rights(bindings).allow, lambda *asked: decide(bindings, *asked)):
        assert allowed("create", "topic", "orders")
        assert allowed("create", "cluster", "cluster")
        assert not allowed("create", "topic", "secret")
        for other in OPERATIONS - {"create", "all"}:
            assert not allowed(other, "topic", "orders")


def test_a_denial_of_create_on_the_cluster_takes_away_the_right_to_every_topic_alone() -> None:
    denial = check_acl(acl("create", "*", resource="cluster", effect="deny"))
    everywhere = check_acl(acl("create", "*", resource="cluster"))
    rights = Rights([denial, everywhere, acl("create", "team-", pattern="prefix")])
    assert [rights.allow("create", "topic", name) for name in ("team-a", "orders")] == [True, False]
    assert [rights.grant("create", "topic", name) for name in ("team-a", "orders")] == [True, False]
    assert Rights([everywhere]).grant("create", "topic", "orders")


def test_no_right_to_create_is_one_to_a_group() -> None:
    for make in (lambda: check_acl(acl("create", resource="group")), lambda: check_scope(Scope("create", "group", "g"))):
        with pytest.raises(InvalidArgument, match="no right to a group"):
            make()


def test_a_denied_operation_is_denied_whatever_else_is_allowed() -> None:
    bindings = [acl("all", "*"), acl("write", "orders", effect="deny")]
    assert not decide(bindings, "write", "topic", "orders")
    assert decide(bindings, "read", "topic", "orders")
    assert decide(bindings, "write", "topic", "others")


def test_a_right_to_topics_is_none_to_groups_and_none_to_the_cluster() -> None:
    assert not decide([acl("all", "*")], "read", "group", "orders")
    assert not decide([acl("all", "*")], "admin", "cluster", "cluster")
    cluster = check_acl(acl("admin", "*", resource="cluster"))
    assert decide([cluster], "admin", "cluster", "cluster")


def test_scopes_are_what_a_key_may_do_at_most() -> None:
    rights = rights_of_scopes([Scope("read", "topic", "orders")])
    assert rights.allow("read", "topic", "orders")
    assert rights.allow("describe", "topic", "orders")
    assert not rights.allow("write", "topic", "orders")


def test_a_scope_to_create_is_one_to_its_names_or_to_every_topic() -> None:
    rights = rights_of_scopes([Scope("create", "topic", "team-", "prefix")])
    assert [rights.allow("create", "topic", name) for name in ("team-a", "orders")] == [True, False]
    assert not rights.allow("admin", "topic", "team-a")
    assert rights_of_scopes([check_scope(Scope("create", "cluster"))]).allow("create", "topic", "orders")


@pytest.mark.parametrize(
    "wrong",
    [
        {"operation": "fly"},
        {"resource": "moon"},
        {"pattern": "regex"},
        {"effect": "maybe"},
        {"name": ""},
        {"name": "a\x00"},
        {"name": "x" * 250},
        {"principal": ""},
        {"resource": "cluster", "name": "mine"},
        {"resource": "cluster", "name": "*", "pattern": "prefix"},
    ],
)
def test_a_binding_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        check_acl(acl(**{"operation": "read"} | wrong))


def stored(binding: Acl) -> KeyValue:
    return KeyValue(f"/tidelog/acls/{binding.acl_id}", encode_acl(binding), Revision(1), Revision(1), version=1)


@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_a_stored_binding_of_an_operation_that_only_a_newer_version_knows_is_read_and_not_made(effect: str) -> None:
    newer = acl("fly", effect=effect)
    assert decode_acl(stored(newer)) == newer
    with pytest.raises(InvalidArgument):
        check_acl(newer)


@pytest.mark.parametrize("operation", sorted(OPERATIONS - {"all"}))
def test_an_allowance_of_an_unknown_operation_allows_nothing_and_hides_no_other(operation: str) -> None:
    assert not decide([acl("fly")], operation, "topic", "orders")
    assert decide([acl("fly"), acl(operation)], operation, "topic", "orders")


@pytest.mark.parametrize("operation", sorted(OPERATIONS - {"all"}))
def test_a_denial_of_an_unknown_operation_denies_every_operation_on_what_it_covers_alone(operation: str) -> None:
    bindings = [acl("all", "*"), acl("all", "*", resource="group"), acl("fly", "ord", pattern="prefix", effect="deny")]
    for allowed in (Rights(bindings).allow, lambda *asked: decide(bindings, *asked)):
        assert not allowed(operation, "topic", "orders")
        assert allowed(operation, "topic", "others")
        assert allowed("read", "group", "orders")


def test_a_value_that_is_no_binding_is_corrupt() -> None:
    good = check_acl(acl("read"))
    for key, value in (
        ("x", b"{"),
        (good.acl_id, b'{"principal":"a"}'),
        ("0" * 16, encode_acl(good)),
        (acl("").acl_id, encode_acl(acl(""))),
    ):
        with pytest.raises(Corrupt):
            decode_acl(KeyValue(f"/tidelog/acls/{key}", value, Revision(1), Revision(1), version=1))


def test_an_operation_is_allowed_for_any_name_by_a_binding_of_all_names_that_no_binding_of_a_name_denies() -> None:
    everywhere = acl("describe", "*")
    assert Rights([everywhere]).allow_every("describe", "topic")
    assert Rights([acl("read", "*"), acl("describe", "orders")]).allow_every("describe", "topic"), "read includes it"
    assert not Rights([everywhere]).allow_every("write", "topic")
    assert not Rights([everywhere]).allow_every("describe", "group")
    for other in (acl("describe", "orders"), acl("describe", "*", pattern="prefix"), acl("describe", "o", pattern="prefix")):
        assert not Rights([other]).allow_every("describe", "topic")
    for denied in (acl("describe", "pay", effect="deny"), acl("describe", "p", effect="deny", pattern="prefix")):
        assert not Rights([everywhere, denied]).allow_every("describe", "topic")
    assert Rights([everywhere, acl("write", "pay", effect="deny")]).allow_every("describe", "topic")
