from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.rpc.status_pb2 import Status

from gateway.proto import admin_pb2, log_pb2
from gateway.proto.status import DETAILS_TRAILER
from gateway.settings import GatewaySettings
from segments.settings import SegmentSettings
from tests.gateway.grpc.produce.test_service import reason, request
from tests.kit.gateway.small_broker import FAST, SmallBroker, with_broker
from tests.kit.gateway.stubs import cluster_stub, log_stub, topics_stub
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow

Call = Awaitable[object]


async def refusal(call: Call) -> tuple[grpc.StatusCode, str]:
    """The code and the reason of a call that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    status = Status()
    trailers = dict(refused.value.trailing_metadata() or ())
    status.ParseFromString(trailers[DETAILS_TRAILER])
    assert status.message == refused.value.details()
    return refused.value.code(), reason(status)


def serve(
    tmp_path: Path,
    scenario: Callable[[SmallBroker, grpc.aio.Channel], Awaitable[None]],
    *,
    settings: GatewaySettings | None = None,
    segments: SegmentSettings = FAST,
) -> None:
    async def with_channel(broker: SmallBroker) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            await scenario(broker, channel)

    with_broker(tmp_path, with_channel, settings=settings, segments=segments)


def test_a_topic_lives_from_create_to_delete(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        topics = topics_stub(channel)
        new = admin_pb2.Topic(name="new", partition_count=2, settings={"retention.ms": "5"})
        made = await topics.CreateTopic(admin_pb2.CreateTopicRequest(topic=new))
        assert (made.name, made.partition_count, dict(made.settings), len(made.id)) == ("new", 2, {"retention.ms": "5"}, 32)
        appended = await log_stub(channel).Produce(
            request(log_pb2.Append(topic="new", partition=1, record_batch=batch_of(b"a", b"b")))
        )
        assert not appended.results[0].HasField("error")
        found = await topics.GetTopic(admin_pb2.GetTopicRequest(name="new"))
        assert list(found.partitions) == [
            admin_pb2.PartitionState(
                partition=partition,
                high_watermark=high_watermark,
                leader_epoch=7,
                leader="broker-1",
                leader_http_address=broker.http_address,
                leader_grpc_address=broker.grpc_address,
            )
            for partition, high_watermark in ((0, 0), (1, 2))
        ]
        await topics.DeleteTopic(admin_pb2.DeleteTopicRequest(name="new"))
        assert await refusal(topics.GetTopic(admin_pb2.GetTopicRequest(name="new"))) == (
            grpc.StatusCode.NOT_FOUND,
            "UNKNOWN_TOPIC",
        )

    serve(tmp_path, scenario)


def test_an_update_changes_what_its_mask_names(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        topics = topics_stub(channel)

        async def update(*paths: str, partition_count: int = 0, validate_only: bool = False, **settings: str) -> Any:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            return await topics.UpdateTopic(
                admin_pb2.UpdateTopicRequest(
                    topic=admin_pb2.Topic(name="orders", partition_count=partition_count, settings=named),
                    update_mask=FieldMask(paths=paths),
                    validate_only=validate_only,
                )
            )

        altered = await update("settings.retention.ms", retention_ms="5", cleanup_policy="compact")
        assert dict(altered.settings) == {"retention.ms": "5"}
        altered = await update("partition_count", "settings.cleanup.policy", partition_count=5, cleanup_policy="compact")
        assert (altered.partition_count, dict(altered.settings)) == (5, {"retention.ms": "5", "cleanup.policy": "compact"})
        altered = await update("settings", validate_only=True)
        assert dict(altered.settings) == {}
        altered = await update("settings.retention.ms")
        assert dict(altered.settings) == {"cleanup.policy": "compact"}
        altered = await update("settings", retention_bytes="9")
        assert dict(altered.settings) == {"retention.bytes": "9"}
        for call in (
            update(),
            update("name"),
            update("partition_count", partition_count=1),
            update("settings.retention.ms", retention_ms="soon"),
            update("settings.retentoin.ms", retentoin_ms="1"),
        ):
            assert await refusal(call) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")

    serve(tmp_path, scenario)


def test_topics_are_listed_page_by_page(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        topics = topics_stub(channel)
        first = await topics.ListTopics(admin_pb2.ListTopicsRequest(page_size=1))
        second = await topics.ListTopics(admin_pb2.ListTopicsRequest(page_size=1, page_token=first.next_page_token))
        assert [topic.name for topic in (*first.topics, *second.topics)] == ["orders", "single"]
        assert second.next_page_token == ""
        for wrong in (admin_pb2.ListTopicsRequest(page_size=-1), admin_pb2.ListTopicsRequest(page_token="nonsense")):
            assert await refusal(topics.ListTopics(wrong)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")

    serve(tmp_path, scenario)


def test_a_create_that_can_not_be_is_refused_and_one_that_only_asks_changes_nothing(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        topics = topics_stub(channel)

        async def create(validate_only: bool = False, **topic: Any) -> Any:
            fields: dict[str, Any] = {"name": "new", "partition_count": 1} | topic
            new = admin_pb2.Topic(**fields)
            return await topics.CreateTopic(admin_pb2.CreateTopicRequest(topic=new, validate_only=validate_only))

        assert (await create(validate_only=True)).name == "new"
        assert await refusal(create(name="orders")) == (grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS")
        for name in ("", ".", "..", "a/b", "naïve", "x" * 250, "a b"):
            assert await refusal(create(name=name)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_NAME")
        for wrong in (
            {"partition_count": 0},
            {"partition_count": -1},
            {"partition_count": 10_001},
            {"id": "1"},
            {"created_at_ms": 1},
        ):
            assert await refusal(create(**wrong)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
        assert [topic.name for topic in broker.topic_cache.topics()] == ["orders", "single"]

    serve(tmp_path, scenario)


def test_get_cluster_and_list_brokers_describe_every_broker(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        cluster = cluster_stub(channel)
        expected = admin_pb2.Broker(
            broker_id="broker-1",
            http_address=broker.http_address,
            grpc_address=broker.grpc_address,
            session=1,
            version="0.0.0+test",
            controller=True,
            limits=admin_pb2.BrokerLimits(
                request_bytes_max=16 << 20,
                message_bytes_max=(1 << 20) + 12,
                buffer_bytes_max=64 << 20,
                decompressed_bytes_max=64 << 20,
            ),
        )
        reported = await cluster.GetCluster(admin_pb2.GetClusterRequest())
        assert (reported.cluster_id, reported.version, reported.bucket) == (broker.cluster_id, broker.version, "memory://")
        assert list(reported.brokers) == [expected]
        broker.serving = False
        expected.draining = True
        assert list((await cluster.ListBrokers(admin_pb2.ListBrokersRequest())).brokers) == [expected]

    serve(tmp_path, scenario)


def test_a_broker_reports_its_limits_and_without_a_session_those_of_its_settings(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        cluster = cluster_stub(channel)
        reported = (await cluster.GetCluster(admin_pb2.GetClusterRequest())).brokers[0].limits
        assert (reported.request_bytes_max, reported.message_bytes_max) == (300_000, 200_000)
        assert (reported.buffer_bytes_max, reported.decompressed_bytes_max) == (9 << 20, 400_000)
        log, broker.present_log = broker.present_log, None
        reported = (await cluster.ListBrokers(admin_pb2.ListBrokersRequest())).brokers[0].limits
        broker.present_log = log
        assert reported == admin_pb2.BrokerLimits(request_bytes_max=300_000, message_bytes_max=200_000)

    settings = GatewaySettings(request_bytes_max=300_000, message_bytes_max=200_000)
    segments = SegmentSettings(linger_ms=0, buffer_bytes_max=9 << 20, decompressed_bytes_max=400_000)
    serve(tmp_path, scenario, settings=settings, segments=segments)


def test_a_topic_reports_the_lower_of_its_own_and_its_brokers_batch_limit(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        topics = topics_stub(channel)

        async def reported(name: str) -> int:
            topic = await topics.GetTopic(admin_pb2.GetTopicRequest(name=name))
            return int(topic.batch_bytes_max)

        await broker.create_topic("small", 1, {"max.message.bytes": "5000"})
        assert await reported("small") == 5000
        assert await reported("orders") == 200_000, "the broker's own limit is lower than the topic's default"

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=200_000))


def test_an_offset_is_explained_by_the_bytes_on_the_bucket(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        cluster, batch = cluster_stub(channel), batch_of(b"a", b"b")
        await log_stub(channel).Produce(request(log_pb2.Append(topic="orders", partition=1, record_batch=batch)))
        asked = admin_pb2.ExplainOffsetRequest(topic="orders", partition=1, offset=1)
        reported = await cluster.ExplainOffset(asked)
        stored = await broker.store.get(reported.object_key, start=reported.range_start, end=reported.range_end)
        assert stored[16:] == batch[16:]
        assert (reported.tier, reported.base_offset, reported.last_offset, reported.session) == ("segment", 0, 1, 1)
        asked.offset = 9
        assert await refusal(cluster.ExplainOffset(asked)) == (grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE")
        asked.partition = 9
        assert await refusal(cluster.ExplainOffset(asked)) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_PARTITION")

    serve(tmp_path, scenario)


def test_a_broker_is_drained_and_takes_partitions_again(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        cluster = cluster_stub(channel)
        reported = await cluster.DrainBroker(admin_pb2.DrainBrokerRequest(broker_id="broker-1", validate_only=True))
        assert (reported, broker.draining) == (admin_pb2.BrokerDrain(broker_id="broker-1", draining=True, partitions_led=4), False)
        await cluster.DrainBroker(admin_pb2.DrainBrokerRequest(broker_id="broker-1"))
        assert broker.draining
        reported = await cluster.UndrainBroker(admin_pb2.UndrainBrokerRequest(broker_id="broker-1"))
        assert (reported.draining, broker.draining) == (False, False)
        unknown = cluster.DrainBroker(admin_pb2.DrainBrokerRequest(broker_id="b9"))
        assert await refusal(unknown) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")

    serve(tmp_path, scenario)
