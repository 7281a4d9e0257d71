"""Kafka's ACLs and the bindings that they stand for, without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kafka.access.acl_bindings import (
    ALL,
    ALLOW,
    ANY,
    CLUSTER,
    DENY,
    GROUP,
    KAFKA_CLUSTER,
    LITERAL,
    PREFIXED,
    TOPIC,
    KafkaAcl,
    KafkaAclFilter,
    binding_of,
    described,
)
from gateway.kafka.access.authorized_operations import (
    ALTER,
    ALTER_CONFIGS,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    IDEMPOTENT_WRITE,
    READ,
    WRITE,
)
from gateway.kafka.errors import KafkaRejected
from metadata.access.acl import Acl, check_acl

OPERATIONS = {
    TOPIC: (ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (ALL, READ, DELETE, DESCRIBE),
    CLUSTER: (ALL, CREATE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE),
}
EVERY_OPERATION = [(kind, operation) for kind, operations in OPERATIONS.items() for operation in operations]


def kafka_acl(
    kind: int, operation: int, *, pattern: int = LITERAL, permission: int = ALLOW, principal: str = "billing"
) -> KafkaAcl:
    name, pattern = (KAFKA_CLUSTER, LITERAL) if kind == CLUSTER else ("orders", pattern)
    return KafkaAcl(kind, name, pattern, f"User:{principal}", "*", operation, permission)


KAFKA_ACLS = st.builds(
    lambda asked, **more: kafka_acl(*asked, **more),
    st.sampled_from(EVERY_OPERATION),
    pattern=st.sampled_from([LITERAL, PREFIXED]),
    permission=st.sampled_from([ALLOW, DENY]),
    principal=st.sampled_from(["billing", "*"]),
)


def filter_of(acl: KafkaAcl) -> KafkaAclFilter:
    """The filter that `kafka-acls --remove` sends for what `--add` has made."""
    return KafkaAclFilter(*acl)


def rows(*bindings: Acl) -> set[KafkaAcl]:
    return {acl for binding in bindings for acl in described(binding)}


@given(KAFKA_ACLS)
def test_an_acl_is_described_as_it_was_created_and_each_description_makes_the_same_binding(acl: KafkaAcl) -> None:
    binding = check_acl(binding_of(acl))
    assert acl in described(binding)
    assert {check_acl(binding_of(each)) for each in described(binding)} == {binding}


@given(st.lists(KAFKA_ACLS, max_size=12), KAFKA_ACLS)
def test_a_filter_finds_the_binding_of_its_operation_and_no_other(others: list[KafkaAcl], acl: KafkaAcl) -> None:
    bindings = {check_acl(binding_of(each)) for each in (acl, *others)}
    found = {binding for binding in bindings if any(map(filter_of(acl).matches, described(binding)))}
    assert found == {check_acl(binding_of(acl))}


def test_the_acls_of_a_producer_are_listed_as_they_were_made_and_removed_by_the_same_filters() -> None:
    made = [kafka_acl(TOPIC, operation, pattern=PREFIXED) for operation in (WRITE, DESCRIBE, CREATE)]
    bindings = {binding_of(acl) for acl in made}
    assert {(binding.operation, binding.pattern) for binding in bindings} == {
        ("write", "prefix"),
        ("describe", "prefix"),
        ("create", "prefix"),
    }
    assert rows(*bindings) == {*made, kafka_acl(TOPIC, DESCRIBE_CONFIGS, pattern=PREFIXED)}
    administrator = binding_of(kafka_acl(TOPIC, ALTER, pattern=PREFIXED))
    left = [
        each for each in (*bindings, administrator) if not any(filter_of(acl).matches(row) for acl in made for row in rows(each))
    ]
    assert left == [administrator]


def test_create_on_the_cluster_is_a_binding_of_the_cluster_in_both_effects() -> None:
    for permission, effect in ((ALLOW, "allow"), (DENY, "deny")):
        acl = kafka_acl(CLUSTER, CREATE, permission=permission)
        binding = check_acl(binding_of(acl))
        assert (binding.operation, binding.resource, binding.name, binding.effect) == ("create", "cluster", "cluster", effect)
        assert described(binding) == [acl]


def test_create_is_no_right_to_a_group() -> None:
    with pytest.raises(KafkaRejected, match="no right to a group"):
        binding_of(kafka_acl(GROUP, CREATE))


def test_a_binding_of_an_unknown_operation_is_described_as_what_it_does_here() -> None:
    unknown: dict[str, Any] = {"principal": "billing", "operation": "fly", "resource": "topic", "name": "orders"}
    assert described(Acl(**unknown)) == []
    assert described(Acl(**unknown, effect="deny")) == [kafka_acl(TOPIC, ALL, permission=DENY)]
    assert KafkaAclFilter(ANY, None, ANY, None, None, ANY, DENY).matches(described(Acl(**unknown, effect="deny"))[0])
