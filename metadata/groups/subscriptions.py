"""Finds the topics that the members of a group subscribe to, as far as their metadata shows them. Pure."""

from __future__ import annotations

from metadata.errors import InvalidArgument
from metadata.groups.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from metadata.groups.model import Group
from metadata.groups.reconciliation.group import ReconciledGroup


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """Returns the topics of all protocols that the members offer. None where the metadata of a member have another form.

    For a group of KIP-848 they are the topics that its members name, and those that their patterns matched at the last step.
    """
    if isinstance(group, ReconciledGroup):
        named = (member.topics for member in group.consumer.members.values())
        return frozenset(group.consumer.topics).union(*named)
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
