"""ConsumerGroupHeartbeat: a member of a KIP-848 group joins, follows its assignment and leaves by this call alone.

version 0    a member without an id is given one
version 1    the client makes the id; a subscription may be a regular expression
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from gateway.access.authorization import check_group, check_topic
from gateway.api import BrokerApi
from gateway.groups.member_rights import present_member
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import KafkaRejected, error_text, group_topic_code
from gateway.kafka.listener_config import Route
from gateway.kafka.protocol.admin_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from metadata.errors import TidelogError
from metadata.groups.model import InstanceId, MemberId
from metadata.groups.reconciliation.model import JOINING, Beat, Heartbeat, Partitions
from metadata.model import Partition, TopicId, TopicPartition

# From here on the client makes the id of its member.
OWN_IDS_SINCE: Final = 1
_NO_TIMEOUT: Final = -1


class KafkaHeartbeats:
    """Answers members of KIP-848 groups for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def heartbeat(self, call: KafkaCall, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """Answers with the member's epoch, and with its assignment where that changed."""
        try:
            asked = _checked(call, request)
            if call.connection.listener.route is Route.DIRECT:
                self._broker.groups.check_here(request.group_id)
            return _response(await self._broker.groups.beat(request.group_id, asked))
        except TidelogError as error:
            return _refused(error)

    def heartbeat_at_once(self, call: KafkaCall, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse | None:
        """Answers as `heartbeat` does. None if the heartbeat changes its group, or this broker has to ask before it can answer."""
        if request.member_epoch <= JOINING:
            return None
        try:
            beat = self._broker.groups.beat_at_once(request.group_id, _checked(call, request))
        except TidelogError as error:
            return _refused(error)
        return None if beat is None else _response(beat)


def _checked(call: KafkaCall, request: ConsumerGroupHeartbeatRequest) -> Heartbeat:
    asked = _asked(call, request)
    check_group(request.group_id)
    for topic in request.subscribed_topic_names or ():
        check_topic(topic)
    return asked


def _response(beat: Beat) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_id=beat.member_id,
        member_epoch=beat.epoch,
        heartbeat_interval_ms=beat.interval_ms,
        assignment=None if beat.assignment is None else _assignment(beat.assignment),
    )


def _refused(error: TidelogError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=group_topic_code(error), error_message=error_text(error))


def _asked(call: KafkaCall, request: ConsumerGroupHeartbeatRequest) -> Heartbeat:
    member_id = request.member_id
    if not member_id and request.member_epoch == JOINING and call.version < OWN_IDS_SINCE:
        member_id = str(uuid.uuid4())
    if request.instance_id == "":
        raise KafkaRejected("the instance id is empty")
    timeout_ms = request.rebalance_timeout_ms
    return Heartbeat(
        member_id=MemberId(member_id),
        epoch=request.member_epoch,
        instance_id=InstanceId(request.instance_id or ""),
        rack=request.rack_id,
        rebalance_timeout_ms=None if timeout_ms == _NO_TIMEOUT else timeout_ms,
        topics=None if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names),
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _partitions(request.topic_partitions),
        principal=present_member(),
        client_id=call.client_id,
        client_host=call.connection.client_host,
    )


def _partitions(owned: Sequence[ConsumerGroupHeartbeatRequestTopicPartitions]) -> Partitions:
    return frozenset(
        TopicPartition(TopicId(topic.topic_id.hex()), Partition(number)) for topic in owned for number in topic.partitions
    )


def _assignment(partitions: Partitions) -> ConsumerGroupHeartbeatResponseAssignment:
    numbers: dict[TopicId, list[int]] = {}
    for at in sorted(partitions):
        numbers.setdefault(at.topic_id, []).append(at.partition)
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=bytes.fromhex(topic_id), partitions=each)
            for topic_id, each in numbers.items()
        ]
    )
