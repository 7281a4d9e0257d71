"""Answers CreateTopics, DeleteTopics and CreatePartitions, each when its change is in force.

A replication factor is remembered for tools that compare it, and changes nothing: the bucket replicates. Replicas that a client
assigns by hand count the partitions, and the brokers in them mean nothing.

Invariant: an error of one topic stands in its place, and refuses no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from gateway.access.authorization import check_topic, may_see_topic
from gateway.api import BrokerApi
from gateway.kafka.admin.changes import change_each
from gateway.kafka.admin.config_entries import DEFAULT_REPLICATION_FACTOR, topic_configs
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, InvalidReplicaAssignment, KafkaRejected, admin_code, error_text
from gateway.kafka.protocol.admin_messages import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from gateway.kafka.protocol.primitives import ZERO_UUID
from gateway.topics.names import hear_of_ids
from metadata.errors import Denied, InvalidArgument, TidelogError
from metadata.model import TopicId
from metadata.topics.topic import NO_REPLICATION_FACTOR, Topic

# Stands for the broker's default in place of a count of partitions.
DEFAULT_PARTITIONS: Final = -1
# From this version on topics may be named by their ids.
DELETE_BY_ID: Final = 6


class KafkaTopics:
    """Creates, grows and deletes topics for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    # ── create ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_topics(self, call: KafkaCall, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Creates topics. Answers when their partitions are led."""
        named = Counter(topic.name for topic in request.topics)
        asked = list({topic.name: topic for topic in request.topics}.values())

        async def create(topic: CreatableTopic) -> CreatableTopicResult:
            check_topic(topic.name)
            if named[topic.name] > 1:
                raise KafkaRejected(f"the request names topic {topic.name[:249]} {named[topic.name]} times", hint="Name it once.")
            created = await self._broker.create_topic(
                topic.name,
                self._partition_count(topic),
                _configs(topic),
                replication_factor=_replication_factor(topic),
                validate_only=request.validate_only,
            )
            return self._created(created, validate_only=request.validate_only)

        found = await change_each(
            self._broker.guard, call, asked, create, timeout_ms=request.timeout_ms, validate_only=request.validate_only
        )
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=topic.name, error_code=admin_code(created), error_message=error_text(created))
                if isinstance(created, TidelogError)
                else created
                for topic, created in zip(asked, found, strict=True)
            ]
        )

    def _partition_count(self, topic: CreatableTopic) -> int:
        if topic.assignments:
            _check_assignments(topic)
            return len(topic.assignments)
        if topic.num_partitions == DEFAULT_PARTITIONS:
            return self._broker.settings.kafka_auto_create_partitions
        return topic.num_partitions

    def _created(self, topic: Topic, *, validate_only: bool) -> CreatableTopicResult:
        answer = CreatableTopicResult(
            name=topic.name, topic_id=ZERO_UUID if validate_only else bytes.fromhex(topic.id), error_message=None
        )
        if not may_see_topic(topic.name):
            answer.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answer.configs = None
            return answer
        answer.num_partitions = topic.partition_count
        answer.replication_factor = (
            DEFAULT_REPLICATION_FACTOR if topic.replication_factor == NO_REPLICATION_FACTOR else topic.replication_factor
        )
        answer.configs = [
            CreatableTopicConfigs(name=entry.name, value=entry.value, read_only=entry.read_only, config_source=entry.source)
            for entry in topic_configs(topic.settings, message_bytes_max=self._broker.settings.message_bytes_max)
        ]
        return answer

    # ── delete ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def delete_topics(self, call: KafkaCall, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        """Deletes topics by their names or ids. Answers when no broker acknowledges a record for them any more."""
        asked = request.topics if call.version >= DELETE_BY_ID else [DeleteTopicState(name=name) for name in request.topic_names]
        count = Counter((each.name, each.topic_id) for each in asked)
        once = list({(each.name, each.topic_id): each for each in asked}.values())

        async def delete(topic: DeleteTopicState) -> DeletableTopicResult:
            name = await self._name_of(topic)
            check_topic(name)
            if count[topic.name, topic.topic_id] > 1:
                raise KafkaRejected(f"the request names topic {name[:249]} more than once", hint="Name it once.")
            topic_id = TopicId(topic.topic_id.hex()) if topic.topic_id != ZERO_UUID else None
            deleted = await self._broker.delete_topic(name, topic_id=topic_id)
            return DeletableTopicResult(name=deleted.name, topic_id=bytes.fromhex(deleted.id))

        found = await change_each(self._broker.guard, call, once, delete, timeout_ms=request.timeout_ms)
        return DeleteTopicsResponse(
            responses=[
                self._not_deleted(topic, deleted) if isinstance(deleted, TidelogError) else deleted
                for topic, deleted in zip(once, found, strict=True)
            ]
        )

    async def _name_of(self, topic: DeleteTopicState) -> str:
        if (topic.name is None) == (topic.topic_id == ZERO_UUID):
            raise KafkaRejected("a topic is named by its name or by its id", hint="Give one of the two.")
        if topic.name is not None:
            return topic.name
        topic_id = TopicId(topic.topic_id.hex())
        await hear_of_ids(self._broker, [topic_id])
        return self._broker.topic_cache.by_id(topic_id).name

    def _not_deleted(self, topic: DeleteTopicState, error: TidelogError) -> DeletableTopicResult:
        """Returns the answer for a topic that was not deleted, without the name of an id if the client may not delete the topic."""
        by_id = topic.topic_id != ZERO_UUID
        text = None if by_id and isinstance(error, Denied) else error_text(error)
        return DeletableTopicResult(
            name=topic.name, topic_id=topic.topic_id, error_code=admin_code(error, by_id=by_id), error_message=text
        )

    # ── grow ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_partitions(self, call: KafkaCall, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        """Adds partitions to topics. Answers when the new ones are led."""
        named = Counter(topic.name for topic in request.topics)
        asked = list({topic.name: topic for topic in request.topics}.values())

        async def grow(topic: CreatePartitionsTopic) -> None:
            check_topic(topic.name)
            if named[topic.name] > 1:
                raise KafkaRejected(f"the request names topic {topic.name[:249]} {named[topic.name]} times", hint="Name it once.")
            held = await self._broker.topics.get(topic.name)
            _check_growth(topic, held)
            await self._broker.alter_topic(topic.name, partition_count=topic.count, validate_only=request.validate_only)

        found = await change_each(
            self._broker.guard, call, asked, grow, timeout_ms=request.timeout_ms, validate_only=request.validate_only
        )
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(name=topic.name, error_code=admin_code(error), error_message=error_text(error))
                if error is not None
                else CreatePartitionsTopicResult(name=topic.name)
                for topic, error in zip(asked, found, strict=True)
            ]
        )


def _check_assignments(topic: CreatableTopic) -> None:
    if topic.num_partitions != DEFAULT_PARTITIONS or topic.replication_factor != NO_REPLICATION_FACTOR:
        raise KafkaRejected(
            f"topic {topic.name} has replicas that are assigned by hand, and a count of partitions or a replication factor besides",
            hint="Give -1 for both: the assignments say how many there are.",
        )
    assignments: Sequence[CreatableReplicaAssignment] = topic.assignments
    if sorted(each.partition_index for each in assignments) != list(range(len(assignments))):
        raise InvalidReplicaAssignment(
            f"the replicas of topic {topic.name} are not assigned to each partition from 0 to {len(assignments) - 1} once"
        )
    _check_replicas(topic.name, [each.broker_ids for each in assignments])


def _check_replicas(name: str, replicas: Sequence[Sequence[int]]) -> None:
    counts = {len(each) for each in replicas}
    if 0 in counts or len(counts) > 1:
        raise InvalidReplicaAssignment(f"partitions of topic {name} are assigned different numbers of replicas, or none")
    if any(len(set(each)) != len(each) for each in replicas):
        raise InvalidReplicaAssignment(f"a partition of topic {name} is assigned to the same broker twice")


def _replication_factor(topic: CreatableTopic) -> int:
    if topic.assignments:
        return len(topic.assignments[0].broker_ids)
    if topic.replication_factor == 0:
        raise InvalidArgument(
            "0 is not a replication factor",
            hint="Use 1 or more, or -1 for the default.",
            replication_factor=topic.replication_factor,
        )
    return topic.replication_factor


def _configs(topic: CreatableTopic) -> dict[str, str]:
    configs = {}
    for config in topic.configs:
        if config.value is None:
            raise InvalidArgument(
                f"config {config.name[:60]} of topic {topic.name} has no value",
                hint="Leave it out for the default.",
                setting=config.name[:60],
            )
        configs[config.name] = config.value
    return configs


def _check_growth(topic: CreatePartitionsTopic, held: Topic) -> None:
    if topic.count <= held.partition_count:
        raise InvalidArgument(
            f"topic {held.name} has {held.partition_count} partitions, and {topic.count} were asked for",
            hint="Ask for more than there are: partitions are never removed.",
            partition_count=held.partition_count,
        )
    if topic.assignments is None:
        return
    if len(topic.assignments) != topic.count - held.partition_count:
        raise InvalidReplicaAssignment(
            f"topic {held.name} would get {topic.count - held.partition_count} new partitions, and replicas are assigned to "
            f"{len(topic.assignments)}"
        )
    _check_replicas(held.name, [each.broker_ids for each in topic.assignments])
