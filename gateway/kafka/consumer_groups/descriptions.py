"""ConsumerGroupDescribe: a KIP-848 group with its members, what they own, and what they shall own.

A classic group is GROUP_ID_NOT_FOUND here: clients then ask DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gateway.access.authorization import check_group, may_see_topic
from gateway.api import BrokerApi
from gateway.kafka.access.authorized_operations import authorized_group_operations
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import error_text, group_code
from gateway.kafka.listener_config import Route
from gateway.kafka.protocol.admin_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseTopicPartitions,
    Member,
)
from gateway.proto import groups_pb2
from gateway.topics.names import hear_of_ids
from metadata.errors import TidelogError, UnknownGroup
from metadata.groups.model import check_group_name
from metadata.groups.reconciliation.group import CONSUMER
from metadata.model import TopicId

# Members of the consumer protocol, in version 1.
MEMBER_TYPE: Final = 1


class KafkaGroupDescriptions:
    """Describes KIP-848 groups for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def describe(self, call: KafkaCall, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        """Describes each group, or says why not."""
        return ConsumerGroupDescribeResponse(
            groups=[
                await self._described(call, name, with_operations=request.include_authorized_operations)
                for name in dict.fromkeys(request.group_ids)
            ]
        )

    async def _described(self, call: KafkaCall, name: str, *, with_operations: bool) -> ConsumerGroupDescribeResponseDescribedGroup:
        answer = ConsumerGroupDescribeResponseDescribedGroup(group_id=name)
        try:
            check_group(check_group_name(name))
            if call.connection.listener.route is Route.DIRECT:
                self._broker.groups.check_here(name)
            found = await self._broker.group_operations.describe(groups_pb2.DescribeGroupRequest(group=name, without_lags=True))
            if found.type != CONSUMER:
                raise UnknownGroup(f"group {name} does not use the consumer protocol", hint="")
            # Partitions of topics without a name are left out, and the coordinator may be another broker.
            await hear_of_ids(self._broker, _assigned_topics(found.members))
        except TidelogError as error:
            answer.error_code, answer.error_message = group_code(error), error_text(error)
            return answer
        if with_operations:
            answer.authorized_operations = authorized_group_operations(call.authorized, name)
        answer.group_state, answer.assignor_name = found.state, found.protocol
        answer.group_epoch = answer.assignment_epoch = found.generation
        answer.members = [self._member(each) for each in found.members]
        return answer

    def _member(self, member: groups_pb2.GroupMember) -> Member:
        consumer = member.consumer
        return Member(
            member_id=member.member_id,
            instance_id=member.instance_id or None,
            rack_id=consumer.rack or None,
            member_epoch=consumer.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(filter(may_see_topic, consumer.topics)),
            subscribed_topic_regex=consumer.pattern if consumer.HasField("pattern") else None,
            assignment=_assignment(consumer.assigned, self._name),
            target_assignment=_assignment(consumer.target, self._name),
            member_type=MEMBER_TYPE,
        )

    def _name(self, topic_id: str) -> str | None:
        """Returns the name of a topic that the caller may see."""
        try:
            name = self._broker.topic_cache.by_id(TopicId(topic_id)).name
        except TidelogError:
            return None
        return name if may_see_topic(name) else None


def _assigned_topics(members: Iterable[groups_pb2.GroupMember]) -> set[TopicId]:
    return {
        TopicId(topic.topic_id)
        for member in members
        for partitions in (member.consumer.assigned, member.consumer.target)
        for topic in partitions.topics
    }


def _assignment(
    assigned: groups_pb2.AssignedPartitions, name_of: Callable[[str], str | None]
) -> ConsumerGroupDescribeResponseAssignment:
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=bytes.fromhex(topic.topic_id), topic_name=name, partitions=list(topic.partitions)
            )
            for topic in assigned.topics
            if (name := name_of(topic.topic_id)) is not None
        ]
    )
