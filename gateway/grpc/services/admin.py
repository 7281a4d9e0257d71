"""Serves Topics and Cluster over gRPC."""

from __future__ import annotations

from typing import Final

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from gateway.access.authorization import check_topic, may_see_cluster
from gateway.access.refusals import settle_topic
from gateway.api import BrokerApi
from gateway.grpc.calls import MethodHandler, unary, unary_by_origin
from gateway.proto import admin_pb2
from gateway.proto.status import to_status
from gateway.topics.describe import (
    PartitionDescription,
    catch_up_with_topics,
    described_topic,
    fresh_topic,
    listed_topics,
    partition_leaders,
    partition_states,
)
from gateway.topics.names import naming, partition_of, topic_with
from metadata.errors import InvalidArgument, TidelogError
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic

TOPICS: Final = "tidelog.v1.Topics"
CLUSTER: Final = "tidelog.v1.Cluster"


class TopicsService:
    """Translates the calls of the service Topics to the broker's topics."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "CreateTopic": unary(admin_pb2.CreateTopicRequest, self.create),
            "GetTopic": unary(admin_pb2.GetTopicRequest, self.get),
            "ListTopics": unary(admin_pb2.ListTopicsRequest, self.list_topics),
            "UpdateTopic": unary(admin_pb2.UpdateTopicRequest, self.update),
            "DeleteTopic": unary(admin_pb2.DeleteTopicRequest, self.delete),
        }

    async def create(self, request: admin_pb2.CreateTopicRequest) -> Message:
        topic = request.topic
        await settle_topic(topic.name)
        check_topic(topic.name)
        if topic.id or topic.created_at_ms or topic.partitions or topic.first_leader_epoch:
            raise InvalidArgument("id, created_at_ms, partitions and first_leader_epoch are set by the cluster", field="topic")
        made = await self._broker.create_topic(
            topic.name, topic.partition_count, dict(topic.settings), validate_only=request.validate_only
        )
        return _to_message(made)

    async def get(self, request: admin_pb2.GetTopicRequest) -> Message:
        if request.fresh or request.refuse_outdated:
            topic = await fresh_topic(self._broker, request.name, refuses_outdated=request.refuse_outdated)
        else:
            topic = await described_topic(self._broker, request.name)
        described = _to_message(topic)
        settings = TopicSettings.parse(topic.settings, skip_unknown=True)
        described.batch_bytes_max = min(settings.max_message_bytes, self._broker.settings.message_bytes_max)
        states = partition_leaders(self._broker, topic) if request.leaders_only else await partition_states(self._broker, topic)
        described.partitions.extend(map(_partition, states))
        return described

    async def list_topics(self, request: admin_pb2.ListTopicsRequest) -> Message:
        if request.fresh or request.refuse_outdated:
            await catch_up_with_topics(self._broker, refuses_outdated=request.refuse_outdated)
        page = listed_topics(self._broker, page_size=request.page_size, page_token=request.page_token)
        return admin_pb2.ListTopicsResponse(topics=map(_to_message, page.topics), next_page_token=page.next_page_token)

    async def update(self, request: admin_pb2.UpdateTopicRequest) -> Message:
        await settle_topic(request.topic.name)
        check_topic(request.topic.name)
        given = request.topic.settings
        settings: dict[str, str | None] = {}
        replace_settings = False
        partition_count: int | None = None
        if not request.update_mask.paths:
            raise InvalidArgument(
                "update_mask is empty",
                hint="Name what changes: settings.retention.ms, settings, partition_count.",
                field="update_mask",
            )
        for path in request.update_mask.paths:
            if path == "partition_count":
                partition_count = request.topic.partition_count
            elif path == "settings":
                replace_settings = True
                settings |= given
            elif path.startswith("settings."):
                name = path.removeprefix("settings.")
                settings[name] = given.get(name)  # named but not given: reset to the default
            else:
                raise InvalidArgument(
                    f"{path[:60]!r} can't be changed",
                    hint="partition_count, settings and settings.<name> can.",
                    field="update_mask",
                )
        altered = await self._broker.alter_topic(
            request.topic.name,
            settings=settings,
            replace_settings=replace_settings,
            partition_count=partition_count,
            validate_only=request.validate_only,
        )
        return _to_message(altered)

    async def delete(self, request: admin_pb2.DeleteTopicRequest) -> Message:
        await settle_topic(request.name)
        check_topic(request.name)
        await self._broker.delete_topic(request.name, validate_only=request.validate_only)
        return Empty()


class ClusterService:
    """Translates the calls of the service Cluster: its brokers, drains and the explanation of an offset."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "GetCluster": unary(admin_pb2.GetClusterRequest, self.get),
            "ListBrokers": unary(admin_pb2.ListBrokersRequest, self.list_brokers),
            "DrainBroker": unary(admin_pb2.DrainBrokerRequest, self.drain),
            "UndrainBroker": unary(admin_pb2.UndrainBrokerRequest, self.undrain),
            "DescribeUsage": unary(admin_pb2.DescribeUsageRequest, self.describe_usage),
            "ExplainOffset": unary_by_origin(admin_pb2.ExplainOffsetRequest, self.explain),
        }

    async def get(self, _: admin_pb2.GetClusterRequest) -> Message:
        broker = self._broker
        return admin_pb2.ClusterDescription(
            cluster_id=broker.cluster_id,
            version=broker.version,
            bucket=broker.bucket_url if may_see_cluster() else "",
            brokers=self._brokers(),
            metadata_age_ms=broker.metadata_age_ms,
        )

    async def list_brokers(self, _: admin_pb2.ListBrokersRequest) -> Message:
        return admin_pb2.ListBrokersResponse(brokers=self._brokers())

    async def drain(self, request: admin_pb2.DrainBrokerRequest) -> Message:
        state = await self._broker.drain(request.broker_id, draining=True, validate_only=request.validate_only)
        return admin_pb2.BrokerDrain(**state._asdict())

    async def undrain(self, request: admin_pb2.UndrainBrokerRequest) -> Message:
        state = await self._broker.drain(request.broker_id, draining=False, validate_only=request.validate_only)
        return admin_pb2.BrokerDrain(**state._asdict())

    async def explain(self, request: admin_pb2.ExplainOffsetRequest, forwarded: bool) -> Message:
        topic = await topic_with(self._broker, request.topic, request.partition, topic_id=request.topic_id, waits=not forwarded)
        log = self._broker.local_log if forwarded else self._broker.cluster_log
        with naming(topic):
            found = await log.explain(partition_of(topic, request.partition), request.offset)
        facts = found._asdict()
        return admin_pb2.ExplainOffsetResponse(tier=found.tier, batch_crc32c=facts.pop("crc32c"), **facts)

    async def describe_usage(self, _: admin_pb2.DescribeUsageRequest) -> Message:
        return await self._broker.usage.here.usage()

    def _brokers(self) -> list[admin_pb2.Broker]:
        """Lists the brokers, each with the limits of this one: the brokers of a cluster have the same settings."""
        limits = _limits(self._broker)
        return [admin_pb2.Broker(**described.without_kafka(), limits=limits) for described in self._broker.brokers()]


def _limits(broker: BrokerApi) -> admin_pb2.BrokerLimits:
    """Returns the limits of this broker; those of the log are known only during a session."""
    limits = admin_pb2.BrokerLimits(
        request_bytes_max=broker.settings.request_bytes_max, message_bytes_max=broker.settings.message_bytes_max
    )
    try:
        settings = broker.log.settings
    except TidelogError:
        return limits
    limits.buffer_bytes_max = settings.buffer_bytes_max
    limits.decompressed_bytes_max = settings.decompressed_bytes_max
    return limits


def _partition(state: PartitionDescription) -> admin_pb2.PartitionState:
    facts = state._asdict()
    error: TidelogError | None = facts.pop("error")
    return admin_pb2.PartitionState(**facts, error=None if error is None else to_status(error))


def _to_message(topic: Topic) -> admin_pb2.Topic:
    return admin_pb2.Topic(
        name=topic.name,
        id=topic.id,
        partition_count=topic.partition_count,
        settings=topic.settings,
        created_at_ms=topic.created_at_ms,
        first_leader_epoch=topic.first_leader_epoch,
    )
