"""Which topics the members of a group subscribe to, as far as their metadata says so. Pure."""

from __future__ import annotations

from metadata.errors import InvalidArgument
from metadata.groups.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from metadata.groups.model import Group


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """Returns the topics of all protocols that the members offer. None where the metadata of a member have another form."""
    if not group.members:
        return frozenset()
    if group.protocol_type != PROTOCOL_TYPE:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        for protocol in member.protocols:
            try:
                topics.update(decode_subscription(protocol.metadata).topics)
            except InvalidArgument:
                return None
    return frozenset(topics)
