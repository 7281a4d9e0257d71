"""Answers Metadata, DescribeCluster and DescribeTopicPartitions: brokers and leaders, as the clients of one listener see them.

An answer has each broker's address on the listener that received the request. Replicas are the leader first, then the broker
that readers of each other rack are sent to: Java's consumer takes a preferred read replica only from this list (KIP-392). All
replicas are in sync, since any broker can read committed records from the bucket.

Invariant: the brokers of an answer are all that its partitions name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.access.authorization import check_topic, may_see_topic
from gateway.access.permissions import KAFKA_CALLS
from gateway.api import BrokerApi
from gateway.concurrency.bounded_map import map_bounded
from gateway.concurrency.offload import LoopYielder
from gateway.kafka.access.authorized_operations import NOT_ASKED, authorized_cluster_operations, authorized_topic_operations
from gateway.kafka.admin.single_change import one_change
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, metadata_code
from gateway.kafka.leaders import KafkaLeaders, KafkaNode
from gateway.kafka.protocol.admin_messages import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from gateway.kafka.protocol.hot_messages import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from gateway.kafka.protocol.primitives import ZERO_UUID
from gateway.topics.names import NamedTopic, hear_of_ids, topics_named
from metadata.errors import AlreadyExists, TidelogError, UnknownTopic
from metadata.model import Partition, TopicId, TopicPartition
from metadata.topics.topic import Topic

# From this version on a request without topics asks for none; before, for all.
NONE_SINCE: Final = 1
# Partitions of one answer to DescribeTopicPartitions.
PARTITIONS_MAX: Final = 2_000
# Topics of one request that are created at the same time.
CREATED_MAX: Final = 16
_NO_NODE: Final = -1


class KafkaMetadata:
    """Answers requests about brokers, topics and leaders for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi, leaders: KafkaLeaders) -> None:
        self._broker = broker
        self._leaders = leaders

    async def metadata(self, call: KafkaCall, request: MetadataRequest) -> MetadataResponse:
        """Answers each topic with its leaders, or with its error; all topics that the caller may see, where none is named."""
        listener = call.connection.listener
        nodes = {node.node_id: node for node in self._leaders.nodes(listener)}
        if request.topics is None or (not request.topics and call.version < NONE_SINCE):
            found: list[Topic | TidelogError] = [topic for topic in self._broker.topic_cache.topics() if may_see_topic(topic.name)]
            asked: Sequence[tuple[str | None, bytes]] = [("", ZERO_UUID)] * len(found)
        else:
            asked = [(topic.name, topic.topic_id) for topic in request.topics]
            found = await self._topics(asked)
            if request.allow_auto_topic_creation and self._broker.settings.kafka_auto_create_topics:
                found = await self._created(call, asked, found)
        yielder = LoopYielder()
        topics = []
        for (name, topic_id), topic in zip(asked, found, strict=True):
            topics.append(
                self._topic(call, topic, name, topic_id, nodes, with_operations=request.include_topic_authorized_operations)
            )
            await yielder.step()
        own = self._leaders.node(self._broker.broker_id, listener)
        answer = MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack or None)
                for node in nodes.values()
            ],
            cluster_id=self._broker.cluster_id,
            controller_id=own.node_id if own is not None else _NO_NODE,
            topics=topics,
        )
        if request.include_cluster_authorized_operations:
            answer.cluster_authorized_operations = authorized_cluster_operations(call.authorized)
        return answer

    async def describe_cluster(self, call: KafkaCall, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """Answers with the brokers; the answering one is named as the controller, since any broker serves the controller's APIs."""
        listener = call.connection.listener
        own = self._leaders.node(self._broker.broker_id, listener)
        return DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self._broker.cluster_id,
            controller_id=own.node_id if own is not None else _NO_NODE,
            brokers=[
                DescribeClusterBroker(broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack or None)
                for node in self._leaders.nodes(listener)
            ],
            cluster_authorized_operations=authorized_cluster_operations(call.authorized)
            if request.include_cluster_authorized_operations
            else NOT_ASKED,
        )

    async def describe_topic_partitions(
        self, call: KafkaCall, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        """Answers with a page of partitions, in the order of the topics' names, and where the next page starts."""
        names = sorted({topic.name for topic in request.topics})
        if not names:
            names = sorted(topic.name for topic in self._broker.topic_cache.topics() if may_see_topic(topic.name))
        start = request.cursor
        if start is not None:
            names = [name for name in names if name >= start.topic_name]
        left = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
        nodes = {node.node_id: node for node in self._leaders.nodes(call.connection.listener)}
        response = DescribeTopicPartitionsResponse(topics=[])
        topics: list[DescribeTopicPartitionsResponseTopic] = []
        # Each topic takes a place of the page. Those that this broker's view lacks are looked up together.
        first_names = names[:left]
        found = await topics_named(self._broker, [NamedTopic(name) for name in first_names])
        known = dict(zip(first_names, found, strict=True))
        yielder = LoopYielder()
        for name in names:
            first = max(0, start.partition_index) if start is not None and name == start.topic_name else 0
            if left <= 0:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=first)
                break
            described = self._topic(call, known[name], name, ZERO_UUID, nodes, with_operations=True)
            await yielder.step()
            page = described.partitions[first : first + left]
            left -= max(1, len(page))
            topics.append(_described(described, page))
            if first + len(page) < len(described.partitions):
                next_partition = first + len(page)
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=next_partition)
                break
        response.topics = topics
        return response

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _topics(self, asked: Sequence[tuple[str | None, bytes]]) -> list[Topic | TidelogError]:
        named: list[NamedTopic | TidelogError] = []
        behind: TidelogError | None = None
        try:
            await hear_of_ids(self._broker, [TopicId(each.hex()) for _, each in asked if each != ZERO_UUID])
        except TidelogError as error:
            behind = error.with_traceback(None)
        for name, topic_id in asked:
            if topic_id == ZERO_UUID:
                named.append(NamedTopic(name or ""))
                continue
            try:
                named.append(NamedTopic(self._broker.topic_cache.by_id(TopicId(topic_id.hex())).name, topic_id.hex()))
            except TidelogError as error:
                named.append(behind or error.with_traceback(None))
        found = iter(await topics_named(self._broker, [each for each in named if isinstance(each, NamedTopic)]))
        return [next(found) if isinstance(each, NamedTopic) else each for each in named]

    async def _created(
        self, call: KafkaCall, asked: Sequence[tuple[str | None, bytes]], found: Sequence[Topic | TidelogError]
    ) -> list[Topic | TidelogError]:
        """Creates the topics that are missing, where the client asks for it and may do so."""

        missing: dict[str, UnknownTopic] = {}
        for (name, topic_id), topic in zip(asked, found, strict=True):
            if isinstance(topic, UnknownTopic) and topic_id == ZERO_UUID:
                missing.setdefault(name or "", topic)

        async def create(name: str) -> Topic | TidelogError:
            if call.authorized is not None and not call.authorized.may("create", "topic", name):
                return missing[name]
            try:
                with one_change(self._broker.guard, call, needs=KAFKA_CALLS["CreateTopics"]):
                    check_topic(name)  # which names it in the audit log
                    return await self._broker.create_topic(name, self._broker.settings.kafka_auto_create_partitions)
            except AlreadyExists:
                return (await topics_named(self._broker, [NamedTopic(name)]))[0]
            except TidelogError as error:
                return error.with_traceback(None)

        names = list(missing)
        created = dict(zip(names, await map_bounded(create, names, at_once=CREATED_MAX), strict=True))
        return [
            created[asked[at][0] or ""] if asked[at][1] == ZERO_UUID and isinstance(topic, UnknownTopic) else topic
            for at, topic in enumerate(found)
        ]

    def _topic(
        self,
        call: KafkaCall,
        topic: Topic | TidelogError,
        name: str | None,
        topic_id: bytes,
        nodes: dict[int, KafkaNode],
        *,
        with_operations: bool,
    ) -> MetadataResponseTopic:
        if isinstance(topic, TidelogError):
            is_by_id = topic_id != ZERO_UUID
            code = metadata_code(topic, by_id=is_by_id)
            return MetadataResponseTopic(error_code=code, name=None if is_by_id else name, topic_id=topic_id)
        answer = MetadataResponseTopic(
            name=topic.name,
            topic_id=bytes.fromhex(topic.id),
            partitions=[self._partition(call, topic, number, nodes) for number in range(topic.partition_count)],
        )
        if with_operations:
            answer.topic_authorized_operations = authorized_topic_operations(call.authorized, topic.name)
        return answer

    def _partition(self, call: KafkaCall, topic: Topic, number: int, nodes: dict[int, KafkaNode]) -> MetadataResponsePartition:
        partition = TopicPartition(topic.id, Partition(number))
        leader = self._leaders.leader(partition, call.connection.listener)
        if leader is None:
            return MetadataResponsePartition(error_code=ErrorCode.LEADER_NOT_AVAILABLE, partition_index=number, leader_id=_NO_NODE)
        nodes.setdefault(leader.node.node_id, leader.node)
        replicas = [leader.node.node_id, *self._leaders.readers_in_other_racks(partition, leader.node)]
        return MetadataResponsePartition(
            partition_index=number,
            leader_id=leader.node.node_id,
            leader_epoch=leader.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=replicas,
        )


def _described(topic: MetadataResponseTopic, page: Sequence[MetadataResponsePartition]) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        topic_authorized_operations=topic.topic_authorized_operations,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=each.error_code,
                partition_index=each.partition_index,
                leader_id=each.leader_id,
                leader_epoch=each.leader_epoch,
                replica_nodes=each.replica_nodes,
                isr_nodes=each.isr_nodes,
                eligible_leader_replicas=(),  # Java's clients take null for an error of their own
                last_known_elr=(),
            )
            for each in page
        ],
    )
