"""Lists the topics and groups that a request names, so that a refusal of one can be settled before the request is handled.

The handlers check each name themselves, and answer an error for each. A refusal waits first until this broker has heard of all
rights (gateway/access/refusals.py); a request that may use all that it names waits for nothing.

Invariant: each API that needs a right on topics or groups has a row here, or names none; a test compares them with permissions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from gateway.access.authorization import AuthorizedCall
from gateway.access.refusals import settle
from gateway.kafka.protocol.primitives import ZERO_UUID
from metadata.access.acl import CLUSTER_NAME
from metadata.errors import TidelogError

# The type of a resource in requests about configurations that is a topic.
TOPIC_RESOURCE: Final = 2


def _topics(message: Any) -> Iterable[Any]:
    return message.topics or ()


def _topics_of_groups(message: Any) -> Iterable[Any]:
    return chain(message.topics or (), *(each.topics or () for each in message.groups or ()))


def _topic_resources(message: Any) -> Iterable[Any]:
    return (each.resource_name for each in message.resources if each.resource_type == TOPIC_RESOURCE)


def _group(message: Any) -> Iterable[Any]:
    return (message.group_id,) if message.group_id else ()


# The topics of a request, each as a name, or as an element with a name or an id.
TOPICS: Final[dict[str, Callable[[Any], Iterable[Any]]]] = {
    "Produce": lambda message: message.topic_data,
    "Fetch": _topics,
    "ListOffsets": _topics,
    "OffsetForLeaderEpoch": _topics,
    "Metadata": _topics,
    "DescribeTopicPartitions": _topics,
    "CreateTopics": _topics,
    "DeleteTopics": lambda message: chain(message.topics or (), message.topic_names or ()),
    "CreatePartitions": _topics,
    "DeleteRecords": _topics,
    "DescribeConfigs": _topic_resources,
    "AlterConfigs": _topic_resources,
    "IncrementalAlterConfigs": _topic_resources,
    "ElectLeaders": lambda message: message.topic_partitions or (),
    "OffsetCommit": _topics,
    "OffsetFetch": _topics_of_groups,
    "OffsetDelete": _topics,
    "ConsumerGroupHeartbeat": lambda message: message.subscribed_topic_names or (),
}

# The groups of a request, each as a name, or as an element with a group id.
GROUPS: Final[dict[str, Callable[[Any], Iterable[Any]]]] = {
    "FindCoordinator": lambda message: message.coordinator_keys or ((message.key,) if message.key else ()),
    "JoinGroup": _group,
    "SyncGroup": _group,
    "Heartbeat": _group,
    "LeaveGroup": _group,
    "OffsetCommit": _group,
    "OffsetFetch": lambda message: chain(_group(message), message.groups or ()),
    "OffsetDelete": _group,
    "ConsumerGroupHeartbeat": _group,
    "ConsumerGroupDescribe": lambda message: message.group_ids,
    "DescribeGroups": lambda message: message.groups,
    "DeleteGroups": lambda message: message.groups_names,
}


def permits_named(call: AuthorizedCall, api: str, message: Any, name_of: Callable[[bytes], str]) -> bool:
    """Returns whether the call may use all that the request names. `name_of` returns the name of a topic id, or raises."""
    try:
        return all(call.permits(kind, name) for kind, name in _named(call, api, message, name_of))
    except TidelogError:
        return False


async def settle_named(call: AuthorizedCall, api: str, message: Any, name_of: Callable[[bytes], str]) -> None:
    """Waits until this broker has heard of all rights, if the call may not use something that the request names."""
    for kind, name in _named(call, api, message, name_of):
        await settle(call, kind, (name,))


def _named(call: AuthorizedCall, api: str, message: Any, name_of: Callable[[bytes], str]) -> Iterator[tuple[str, str]]:
    if api in GROUPS:
        for each in GROUPS[api](message):
            yield "group", each if isinstance(each, str) else each.group_id
    if api in TOPICS:
        for each in TOPICS[api](message):
            name = each if isinstance(each, str) else _name(each, name_of)
            if name:
                yield "topic", name
    if call.needs.cluster is not None and _concerns_cluster(call, message):
        yield "cluster", CLUSTER_NAME


def _name(topic: Any, name_of: Callable[[bytes], str]) -> str:
    """Returns the topic's name; empty for an id that this broker does not know, which clients ask about again."""
    name = getattr(topic, "name", None) or getattr(topic, "topic", None)
    if name:
        return str(name)
    topic_id = getattr(topic, "topic_id", ZERO_UUID)
    try:
        return name_of(topic_id) if topic_id != ZERO_UUID else ""
    except TidelogError:
        return ""


def _concerns_cluster(call: AuthorizedCall, message: Any) -> bool:
    """Returns whether the request needs the right on the cluster: requests about configurations may name topics alone."""
    resources = getattr(message, "resources", None)
    return call.needs.topic is None or resources is None or any(each.resource_type != TOPIC_RESOURCE for each in resources)
