"""Translates ACLs between Kafka's terms and the bindings of this cluster. Pure.

    Kafka     User:billing · host * · Read · Allow · Topic · Literal · orders
    Tidelog   billing · read · allow · topic · literal · orders

One operation here may be several of Kafka's: `admin` of a topic is Delete, Alter and AlterConfigs. A binding is described as all of
them, since it allows all of them. Each of them makes the same binding, and deleting one deletes it. Implied operations are not
described, as in Kafka: `admin` includes `create`, and is not described as Create. Otherwise deleting Create would delete `admin`.

Invariant: each of Kafka's operations makes exactly one binding, whose description contains it.

Sources: org.apache.kafka.common.acl, org.apache.kafka.common.resource, KIP-11, KIP-290
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gateway.kafka.access.authorized_operations import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER_ACTION,
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP_OPERATIONS,
    IDEMPOTENT_WRITE,
    TOPIC_OPERATIONS,
)
from gateway.kafka.errors import KafkaRejected
from metadata.access.acl import CLUSTER_NAME, EVERYONE, OPERATIONS, Acl, Operation, ResourceKind

ANY: Final = 1
ALL: Final = 2
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
MATCH, LITERAL, PREFIXED = 2, 3, 4
DENY, ALLOW = 2, 3
EVERY_HOST: Final = "*"
# Kafka's name of the one cluster.
KAFKA_CLUSTER: Final = "kafka-cluster"
USER: Final = "User:"

_KINDS: Final[Mapping[int, ResourceKind]] = {TOPIC: "topic", GROUP: "group", CLUSTER: "cluster"}
_TYPES: Final[Mapping[str, int]] = {kind: number for number, kind in _KINDS.items()}
_CLUSTER_OPERATIONS: Final[Mapping[Operation, Sequence[int]]] = {
    "describe": (DESCRIBE, DESCRIBE_CONFIGS),
    "write": (IDEMPOTENT_WRITE,),
    "create": (CREATE,),
    "admin": (ALTER, ALTER_CONFIGS),
}
_OPERATIONS: Final[Mapping[str, Mapping[Operation, Sequence[int]]]] = {
    "topic": TOPIC_OPERATIONS,
    "group": GROUP_OPERATIONS,
    "cluster": _CLUSTER_OPERATIONS,
}


class KafkaAcl(NamedTuple):
    """One ACL as Kafka's protocol has it."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class KafkaAclFilter(NamedTuple):
    """A filter of ACLs, as Kafka's protocol has it. None, and ANY, match all."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, acl: KafkaAcl) -> bool:
        return (
            self.resource_type in {ANY, acl.resource_type}
            and self._matches_name(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {ANY, acl.operation}
            and self.permission_type in {ANY, acl.permission_type}
        )

    def _matches_name(self, acl: KafkaAcl) -> bool:
        if self.pattern_type not in {ANY, MATCH, acl.pattern_type}:
            return False
        if self.resource_name is None or self.resource_name == acl.resource_name:
            return True
        if self.pattern_type != MATCH:
            return False
        if acl.pattern_type == PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name == EVERY_HOST


def binding_of(acl: KafkaAcl) -> Acl:
    """Returns the binding that the ACL stands for. Raises KafkaRejected if there is none."""
    kind = _KINDS.get(acl.resource_type)
    if acl.resource_type == TRANSACTIONAL_ID:
        raise KafkaRejected("transactional ids have no ACLs: transactions are not supported yet")
    if kind is None:
        raise KafkaRejected("ACLs are for topics, groups and the cluster")
    if acl.pattern_type not in {LITERAL, PREFIXED}:
        raise KafkaRejected("the pattern of an ACL is literal or prefixed")
    if acl.permission_type not in {ALLOW, DENY}:
        raise KafkaRejected("an ACL allows or denies")
    if acl.host != EVERY_HOST:
        raise KafkaRejected(f"an ACL for host {acl.host[:60]!r} is not supported", hint="Use the host *.")
    if not acl.principal.startswith(USER):
        raise KafkaRejected(f"{acl.principal[:60]!r} is no principal", hint="Write User:NAME, or User:* for everyone.")
    if kind == "cluster" and (acl.resource_name != KAFKA_CLUSTER or acl.pattern_type != LITERAL):
        raise KafkaRejected(f"the only name of the cluster is {KAFKA_CLUSTER}")
    return Acl(
        principal=acl.principal.removeprefix(USER),
        operation=_operation_of(kind, acl.operation),
        resource=kind,
        name=CLUSTER_NAME if kind == "cluster" else acl.resource_name,
        pattern="prefix" if acl.pattern_type == PREFIXED else "literal",
        effect="allow" if acl.permission_type == ALLOW else "deny",
    )


def _operation_of(kind: ResourceKind, number: int) -> Operation:
    if number == ALL:
        return "all"
    for operation, numbers in _OPERATIONS[kind].items():
        if number in numbers:
            return operation
    if number == CLUSTER_ACTION:
        raise KafkaRejected("brokers need no ACL for ClusterAction: they share a secret")
    raise KafkaRejected(f"Kafka's operation {number} is no right to a {kind}")


def described(acl: Acl) -> list[KafkaAcl]:
    """Returns all of Kafka's ACLs that the binding stands for; none if it has no effect."""
    is_cluster = acl.resource == "cluster"
    return [
        KafkaAcl(
            resource_type=_TYPES[acl.resource],
            resource_name=KAFKA_CLUSTER if is_cluster else acl.name,
            pattern_type=PREFIXED if acl.pattern == "prefix" else LITERAL,
            principal=USER + (EVERYONE if acl.principal == EVERYONE else acl.principal),
            host=EVERY_HOST,
            operation=number,
            permission_type=ALLOW if acl.effect == "allow" else DENY,
        )
        for number in _numbers_of(acl)
    ]


def _numbers_of(acl: Acl) -> Sequence[int]:
    if acl.operation == "all":
        return (ALL,)
    for operation, numbers in _OPERATIONS[acl.resource].items():
        if operation == acl.operation:
            return numbers
    if acl.operation not in OPERATIONS:  # only a newer version knows it: metadata/access/acl.py says what it does here
        return () if acl.effect == "allow" else (ALL,)
    # Such as write to a group: it allows a look at it, and denies nothing. Create alone does not even allow that.
    return (DESCRIBE,) if acl.effect == "allow" and acl.operation != "create" else ()
