"""Lists the access that each call requires: one row for every HTTP route, gRPC method and Kafka API. Pure.

    topic, group     the operation on each topic and group that the call names, in its path or its message
    cluster          the operation on the cluster, checked before the call begins
    open             needs no authentication: probes
    peer             only other brokers may make it
    changes          the audit log records it when it is permitted as well
    lasts            ends when its credentials expire, or when a right that it uses is revoked
    bytes_in         writes records: its requests count for the quota of bytes in, and wait while that is overdrawn
    bytes_out        reads records: its answers count for the quota of bytes out, and wait while that is overdrawn
    none of the first three: every authenticated principal may make it

Every call counts for the quota of requests. A heartbeat or a commit never waits for bytes, or a consumer that has read much would
lose its group.

Invariant: a call without a row is refused; a test compares the rows with all routes and methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metadata.access.acl import Operation


@dataclass(frozen=True, slots=True)
class RequiredAccess:
    """Holds the access that one call requires; the fields are those of the module's table."""

    topic: Operation | None = None
    group: Operation | None = None
    cluster: Operation | None = None
    open: bool = False
    peer: bool = False
    changes: bool = False
    lasts: bool = False
    bytes_in: bool = False
    bytes_out: bool = False


# Every authenticated principal.
_AUTHENTICATED: Final = RequiredAccess()
_OPEN: Final = RequiredAccess(open=True)
_READ: Final = RequiredAccess(topic="read", lasts=True, bytes_out=True)
_WRITE: Final = RequiredAccess(topic="write", bytes_in=True)
_DESCRIBE: Final = RequiredAccess(topic="describe")
_CREATE: Final = RequiredAccess(topic="create", changes=True)
_ADMIN: Final = RequiredAccess(topic="admin", changes=True)
_MEMBER: Final = RequiredAccess(group="read", topic="read")
_WAITING_MEMBER: Final = RequiredAccess(group="read", topic="read", lasts=True)
_READING_MEMBER: Final = RequiredAccess(group="read", topic="read", lasts=True, bytes_out=True)
_GROUP_ADMIN: Final = RequiredAccess(group="admin", topic="read", changes=True)
_CLUSTER_ADMIN: Final = RequiredAccess(cluster="admin", changes=True)
_CLUSTER_LIST: Final = RequiredAccess(cluster="admin")
_METRICS: Final = RequiredAccess(cluster="describe")

METRICS_PATHS: Final = frozenset({"/metrics", "/metrics/detail"})
_TOPIC: Final = "/v1/topics/{topic}"
_PARTITION: Final = f"{_TOPIC}/partitions/{{partition}}"
_GROUP: Final = "/v1/groups/{group}"
_MEMBER_PATH: Final = f"{_GROUP}/members/{{member_id}}"

HTTP_CALLS: Final[dict[tuple[str, str], RequiredAccess]] = {
    ("GET", "/livez"): _OPEN,
    ("GET", "/readyz"): _OPEN,
    ("GET", "/startupz"): _OPEN,
    ("GET", "/openapi.json"): _AUTHENTICATED,
    ("GET", "/metrics"): _METRICS,
    ("GET", "/metrics/detail"): _METRICS,
    ("GET", "/v1/topics"): _AUTHENTICATED,  # the answer lists those that the caller may describe
    ("POST", "/v1/topics"): _CREATE,
    ("GET", _TOPIC): _DESCRIBE,
    ("PATCH", _TOPIC): _ADMIN,
    ("DELETE", _TOPIC): _ADMIN,
    ("GET", f"{_TOPIC}/settings"): _DESCRIBE,
    ("PUT", f"{_TOPIC}/settings"): _ADMIN,
    ("GET", f"{_TOPIC}/groups"): _DESCRIBE,  # the answer lists those that the caller may describe
    ("GET", f"{_TOPIC}/partitions"): _DESCRIBE,
    ("GET", _PARTITION): _DESCRIBE,
    ("GET", f"{_PARTITION}/offsets/{{offset}}/explain"): RequiredAccess(topic="read"),
    ("GET", f"{_PARTITION}/leader-epochs/{{leader_epoch}}"): _DESCRIBE,
    ("POST", f"{_PARTITION}/delete-records"): _ADMIN,
    ("POST", f"{_TOPIC}/records"): _WRITE,
    ("GET", f"{_TOPIC}/records"): _READ,
    ("GET", f"{_PARTITION}/records"): _READ,
    ("POST", "/v1/producers"): _AUTHENTICATED,
    ("GET", "/v1/cluster"): _AUTHENTICATED,
    ("GET", "/v1/cluster/health"): RequiredAccess(cluster="describe"),
    ("GET", "/v1/brokers"): _AUTHENTICATED,
    ("GET", "/v1/storage"): _AUTHENTICATED,  # the answer lists the topics that the caller may describe, as the next
    ("GET", "/v1/costs"): _AUTHENTICATED,
    ("GET", "/v1/verification"): _CLUSTER_LIST,
    ("POST", "/v1/verification"): _CLUSTER_ADMIN,
    ("DELETE", "/v1/verification"): _CLUSTER_ADMIN,
    ("POST", "/v1/brokers/{broker_id}/drain"): _CLUSTER_ADMIN,
    ("POST", "/v1/brokers/{broker_id}/undrain"): _CLUSTER_ADMIN,
    ("GET", "/v1/groups"): _AUTHENTICATED,  # the answer lists those that the caller may describe
    ("GET", _GROUP): RequiredAccess(group="describe"),
    ("DELETE", _GROUP): _GROUP_ADMIN,
    ("GET", f"{_GROUP}/lag-history"): RequiredAccess(group="describe"),  # the answer has the topics that the caller may describe
    ("POST", f"{_GROUP}/seek"): _GROUP_ADMIN,
    ("GET", f"{_GROUP}/offsets"): RequiredAccess(group="describe", topic="describe"),
    ("POST", f"{_GROUP}/offsets"): _MEMBER,
    ("DELETE", f"{_GROUP}/offsets"): _GROUP_ADMIN,
    ("POST", f"{_GROUP}/members"): _WAITING_MEMBER,
    ("DELETE", _MEMBER_PATH): _MEMBER,
    ("GET", f"{_MEMBER_PATH}/records"): _READING_MEMBER,
    ("POST", f"{_MEMBER_PATH}/offsets"): _MEMBER,
    ("POST", f"{_MEMBER_PATH}/heartbeat"): _MEMBER,
    ("GET", "/v1/access/explain"): _CLUSTER_LIST,
    ("GET", "/v1/access/audit"): _CLUSTER_LIST,
    ("GET", "/v1/keys"): _CLUSTER_LIST,
    ("POST", "/v1/keys"): _CLUSTER_ADMIN,
    ("DELETE", "/v1/keys/{key_id}"): _CLUSTER_ADMIN,
    ("GET", "/v1/acls"): _CLUSTER_LIST,
    ("POST", "/v1/acls"): _CLUSTER_ADMIN,
    ("DELETE", "/v1/acls/{acl_id}"): _CLUSTER_ADMIN,
    ("GET", "/v1/quotas"): _CLUSTER_LIST,
    ("POST", "/v1/quotas"): _CLUSTER_ADMIN,
    ("DELETE", "/v1/quotas"): _CLUSTER_ADMIN,
}

_LOG: Final = "/tidelog.v1.Log/"
_TOPICS: Final = "/tidelog.v1.Topics/"
_CLUSTER: Final = "/tidelog.v1.Cluster/"
_GROUPS: Final = "/tidelog.v1.Groups/"
_ACCESS: Final = "/tidelog.v1.Access/"

GRPC_CALLS: Final[dict[str, RequiredAccess]] = {
    f"{_LOG}InitProducer": _AUTHENTICATED,
    f"{_LOG}Produce": _WRITE,
    f"{_LOG}ProduceStream": _WRITE,  # each message is checked
    f"{_LOG}Fetch": _READ,
    f"{_LOG}Consume": _READING_MEMBER,
    f"{_LOG}ListOffsets": _DESCRIBE,
    f"{_LOG}OffsetForLeaderEpoch": _DESCRIBE,
    f"{_LOG}DeleteRecords": _ADMIN,
    f"{_LOG}FindWrittenOnce": RequiredAccess(peer=True),
    f"{_TOPICS}CreateTopic": _CREATE,
    f"{_TOPICS}GetTopic": _DESCRIBE,
    f"{_TOPICS}ListTopics": _AUTHENTICATED,
    f"{_TOPICS}UpdateTopic": _ADMIN,
    f"{_TOPICS}DeleteTopic": _ADMIN,
    f"{_CLUSTER}GetCluster": _AUTHENTICATED,
    f"{_CLUSTER}ListBrokers": _AUTHENTICATED,
    f"{_CLUSTER}DrainBroker": _CLUSTER_ADMIN,
    f"{_CLUSTER}UndrainBroker": _CLUSTER_ADMIN,
    f"{_CLUSTER}ExplainOffset": RequiredAccess(topic="read"),
    f"{_CLUSTER}DescribeUsage": RequiredAccess(peer=True),
    f"{_GROUPS}FindCoordinator": RequiredAccess(group="describe"),
    f"{_GROUPS}JoinGroup": _WAITING_MEMBER,
    f"{_GROUPS}SyncGroup": _WAITING_MEMBER,
    f"{_GROUPS}Heartbeat": _MEMBER,
    f"{_GROUPS}ConsumerHeartbeat": _MEMBER,
    f"{_GROUPS}LeaveGroup": _MEMBER,
    f"{_GROUPS}OffsetCommit": _MEMBER,
    f"{_GROUPS}OffsetFetch": RequiredAccess(group="describe", topic="describe"),
    f"{_GROUPS}ListGroups": _AUTHENTICATED,
    f"{_GROUPS}DescribeGroup": RequiredAccess(group="describe"),
    f"{_GROUPS}DeleteGroup": _GROUP_ADMIN,
    f"{_GROUPS}DeleteOffsets": _GROUP_ADMIN,
    f"{_GROUPS}SeekGroup": _GROUP_ADMIN,
    f"{_GROUPS}SeenBrokers": RequiredAccess(peer=True),
    f"{_GROUPS}ListLagSamples": RequiredAccess(peer=True),
    f"{_ACCESS}CreateKey": _CLUSTER_ADMIN,
    f"{_ACCESS}ListKeys": _CLUSTER_LIST,
    f"{_ACCESS}RevokeKey": _CLUSTER_ADMIN,
    f"{_ACCESS}CreateAcl": _CLUSTER_ADMIN,
    f"{_ACCESS}ListAcls": _CLUSTER_LIST,
    f"{_ACCESS}DeleteAcl": _CLUSTER_ADMIN,
    f"{_ACCESS}SetQuota": _CLUSTER_ADMIN,
    f"{_ACCESS}ListQuotas": _CLUSTER_LIST,
    f"{_ACCESS}DeleteQuota": _CLUSTER_ADMIN,
}

# By the name of the API. An API that names several topics or groups checks each, and answers an error for each.
KAFKA_CALLS: Final[dict[str, RequiredAccess]] = {
    "ApiVersions": _OPEN,
    "SaslHandshake": _OPEN,
    "SaslAuthenticate": _OPEN,
    "Produce": _WRITE,
    "Fetch": _READ,
    "ListOffsets": _DESCRIBE,
    "OffsetForLeaderEpoch": _DESCRIBE,
    "Metadata": _DESCRIBE,
    "DescribeCluster": _AUTHENTICATED,
    "DescribeTopicPartitions": _DESCRIBE,
    "InitProducerId": _AUTHENTICATED,
    "CreateTopics": _CREATE,
    "DeleteTopics": _ADMIN,
    "CreatePartitions": _ADMIN,
    "DeleteRecords": _ADMIN,
    # Configurations of topics and of brokers.
    "DescribeConfigs": RequiredAccess(topic="describe", cluster="describe"),
    "ListConfigResources": RequiredAccess(cluster="describe"),
    "AlterConfigs": RequiredAccess(topic="admin", cluster="admin", changes=True),
    "IncrementalAlterConfigs": RequiredAccess(topic="admin", cluster="admin", changes=True),
    "DescribeLogDirs": RequiredAccess(cluster="describe"),
    "ElectLeaders": RequiredAccess(topic="describe", cluster="admin"),
    "ListPartitionReassignments": _AUTHENTICATED,  # there are none
    "FindCoordinator": RequiredAccess(group="describe"),
    "JoinGroup": _WAITING_MEMBER,
    "SyncGroup": _WAITING_MEMBER,
    "Heartbeat": _MEMBER,
    "ConsumerGroupHeartbeat": _MEMBER,
    "ConsumerGroupDescribe": RequiredAccess(group="describe", topic="describe"),
    "LeaveGroup": _MEMBER,
    "OffsetCommit": _MEMBER,
    "OffsetFetch": RequiredAccess(group="describe", topic="describe"),
    "DescribeGroups": RequiredAccess(group="describe"),
    "ListGroups": _AUTHENTICATED,  # the answer lists those that the caller may describe
    "DeleteGroups": _GROUP_ADMIN,
    "OffsetDelete": _GROUP_ADMIN,
    "DescribeAcls": _CLUSTER_LIST,
    "CreateAcls": _CLUSTER_ADMIN,
    "DeleteAcls": _CLUSTER_ADMIN,
    "DescribeClientQuotas": _CLUSTER_LIST,
    "AlterClientQuotas": _CLUSTER_ADMIN,
    "DescribeUserScramCredentials": _CLUSTER_LIST,
    "AlterUserScramCredentials": _CLUSTER_ADMIN,
}

# Methods that one broker may call at another. A peer token for any other method is refused: brokers change topics, keys and ACLs
# in the metadata store, not through each other.
FORWARDED_CALLS: Final = frozenset(
    {
        f"{_LOG}Produce",
        f"{_LOG}Fetch",
        f"{_LOG}ListOffsets",
        f"{_LOG}OffsetForLeaderEpoch",
        f"{_LOG}DeleteRecords",
        f"{_LOG}FindWrittenOnce",
        f"{_CLUSTER}ExplainOffset",
        f"{_CLUSTER}DescribeUsage",
        f"{_GROUPS}JoinGroup",
        f"{_GROUPS}SyncGroup",
        f"{_GROUPS}Heartbeat",
        f"{_GROUPS}ConsumerHeartbeat",
        f"{_GROUPS}LeaveGroup",
        f"{_GROUPS}OffsetCommit",
        f"{_GROUPS}OffsetFetch",
        f"{_GROUPS}DescribeGroup",
        f"{_GROUPS}DeleteGroup",
        f"{_GROUPS}DeleteOffsets",
        f"{_GROUPS}SeekGroup",
        f"{_GROUPS}SeenBrokers",
        f"{_GROUPS}ListLagSamples",
    }
)


class HttpRoute:
    """Matches paths to one row of HTTP_CALLS, and says at which part of the path its topic and group are (0: none)."""

    __slots__ = ("action", "group_at", "needs", "topic_at", "words")

    def __init__(self, method: str, template: str, needs: RequiredAccess) -> None:
        self.action = f"{method} {template}"
        self.needs = needs
        parts = template.split("/")
        self.words = [(at, part) for at, part in enumerate(parts) if not part.startswith("{")]
        self.topic_at = parts.index("{topic}") if "{topic}" in parts else 0
        self.group_at = parts.index("{group}") if "{group}" in parts else 0

    def matches(self, parts: Sequence[str]) -> bool:
        for at, word in self.words:  # noqa: SIM110  # every request runs this, and all() costs four times as much
            if parts[at] != word:
                return False
        return True


def _by_method_and_length() -> dict[tuple[str, int], list[HttpRoute]]:
    routes: dict[tuple[str, int], list[HttpRoute]] = {}
    for (method, template), needs in HTTP_CALLS.items():
        routes.setdefault((method, template.count("/")), []).append(HttpRoute(method, template, needs))
    return routes


_ROUTES: Final = _by_method_and_length()
# Paths without a route: only authenticated clients receive 404.
NO_ROUTE: Final = HttpRoute("", "", _AUTHENTICATED)


def http_route(method: str, parts: Sequence[str]) -> HttpRoute:
    """Returns the row of a path that was split at its slashes; NO_ROUTE where there is none."""
    for route in _ROUTES.get((method, len(parts) - 1), ()):
        if route.matches(parts):
            return route
    return NO_ROUTE
