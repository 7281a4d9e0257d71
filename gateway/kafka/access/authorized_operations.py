"""Encodes the operations that a caller may do as the bit field of Kafka's answers (KIP-430). Pure.

Source: org.apache.kafka.common.acl.AclOperation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.access.authorization import AuthorizedCall
from metadata.access.acl import CLUSTER_NAME, Operation

# The value for a client that has not asked.
NOT_ASKED: Final = -(2**31)
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(3, 13)

TOPIC_OPERATIONS: Final[Mapping[Operation, Sequence[int]]] = {
    "read": (READ,),
    "write": (WRITE,),
    "describe": (DESCRIBE, DESCRIBE_CONFIGS),
    "create": (CREATE,),
    "admin": (DELETE, ALTER, ALTER_CONFIGS),
}
GROUP_OPERATIONS: Final[Mapping[Operation, Sequence[int]]] = {"read": (READ,), "describe": (DESCRIBE,), "admin": (DELETE,)}
CLUSTER_OPERATIONS: Final[Mapping[Operation, Sequence[int]]] = {
    "describe": (DESCRIBE, DESCRIBE_CONFIGS),
    "create": (CREATE,),
    "admin": (ALTER, ALTER_CONFIGS, CLUSTER_ACTION),
}


def authorized_topic_operations(call: AuthorizedCall | None, name: str) -> int:
    """Returns the operations that the caller may do to a topic."""
    return _bits(call, "topic", name, TOPIC_OPERATIONS)


def authorized_group_operations(call: AuthorizedCall | None, name: str) -> int:
    """Returns the operations that the caller may do to a consumer group."""
    return _bits(call, "group", name, GROUP_OPERATIONS)


def authorized_cluster_operations(call: AuthorizedCall | None) -> int:
    """Returns the operations that the caller may do to the cluster. Every client may write idempotently."""
    return _bits(call, "cluster", CLUSTER_NAME, CLUSTER_OPERATIONS) | 1 << IDEMPOTENT_WRITE


def _bits(call: AuthorizedCall | None, kind: str, name: str, operations: Mapping[Operation, Sequence[int]]) -> int:
    return sum(
        1 << number
        for operation, numbers in operations.items()
        if call is None or call.may(operation, kind, name)
        for number in numbers
    )
