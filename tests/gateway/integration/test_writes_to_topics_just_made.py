"""A write to a topic that was just created, or has just grown, is written or may be repeated, however late brokers hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.proto import log_pb2
from metadata.errors import NoLeader, TidelogError, Unavailable, UnknownPartition, UnknownTopic
from metadata.topics.topic import Topic
from tests.kit.gateway.routed_cluster import Broker, Cluster, with_routed_cluster
from tests.kit.segments.batches import batch_of, sequenced_batch


def append(topic: Topic, partition: int, batch: bytes | None = None, *, revision: int = 0) -> log_pb2.Append:
    return log_pb2.Append(
        topic=topic.name,
        topic_id=topic.id,
        partition=partition,
        record_batch=batch or batch_of(b"a"),
        topic_revision=revision,
    )


async def held_until_heard(stale: Broker, request: Awaitable[Any]) -> Any:
    """The answer to a request that waits for this broker to hear of topics."""
    asked = asyncio.ensure_future(request)
    done, _ = await asyncio.wait((asked,), timeout=0.7)
    assert not done, done
    stale.hear_topics()
    return await asked


# ── the leader has not heard of it ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("change", ["created", "grown", "created again"])
def test_a_forwarded_write_waits_until_its_leader_has_heard_of_the_topic(change: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        asked, stale = cluster.brokers
        if change != "created":
            await cluster.create(partition_count=1)
        stale.hear_no_topics()
        if change == "created again":
            await cluster.topics.delete("orders")
        if change == "grown":
            topic = await cluster.topics.alter("orders", partition_count=9)
        else:
            topic = await cluster.topics.create("orders", 9)
        await cluster.served(topic)
        number = cluster.led_by(stale, topic)[-1]
        [written] = await held_until_heard(stale, asked.http([{"value": "v", "partition": number}]))
        assert written == {"partition": number, "offset": 0}

    with_routed_cluster(scenario)


@pytest.mark.parametrize("change", ["created", "grown", "created again"])
def test_a_leader_that_has_not_heard_of_the_topic_refuses_a_forwarded_batch_as_not_led_yet(change: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        _, stale = cluster.brokers
        if change != "created":
            await cluster.create(partition_count=1)
        stale.hear_no_topics()
        if change == "created again":
            await cluster.topics.delete("orders")
        if change == "grown":
            topic = await cluster.topics.alter("orders", partition_count=2)
        else:
            topic = await cluster.topics.create("orders", 2)
        refused = await stale.produce(
            append(topic, 1, revision=topic.revision), append(topic, 1, revision=topic.revision), forwarded_by="broker-9"
        )
        for error in refused:
            assert isinstance(error, NoLeader), error
            assert error.retryable

    with_routed_cluster(scenario)


def test_a_leader_that_has_read_later_changes_refuses_a_forwarded_batch_for_good() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=1)
        [broker] = cluster.brokers
        await cluster.topics.delete("orders")
        other = await cluster.create("others")
        assert other.revision > topic.revision
        [refused] = await broker.produce(append(topic, 0, revision=topic.revision), forwarded_by="broker-9")
        assert isinstance(refused, UnknownTopic)
        [refused] = await broker.produce(append(other, 4, revision=other.revision), forwarded_by="broker-9")
        assert isinstance(refused, UnknownPartition)

    with_routed_cluster(scenario, brokers=1)


def test_a_write_whose_leader_does_not_hear_of_the_topic_in_time_may_be_repeated() -> None:
    async def scenario(cluster: Cluster) -> None:
        asked, stale = cluster.brokers
        stale.hear_no_topics()
        topic = await cluster.served(await cluster.topics.create("orders", 4))
        number = cluster.led_by(stale, topic)[0]
        with pytest.raises(TidelogError) as refused:
            await asked.http([{"value": "v", "partition": number}], query="timeout_ms=500")
        assert refused.value.retryable
        stale.hear_topics()
        [written] = await asked.http([{"value": "v", "partition": number}])
        assert written["offset"] == 0, "nothing of the first attempt comes later"

    with_routed_cluster(scenario)


# ── the broker that the client asks has not heard of it ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("change", ["created", "grown", "created again"])
@pytest.mark.parametrize("over", ["http", "grpc", "grpc with the id"])
def test_a_client_writes_at_a_broker_that_has_not_heard_of_the_topic(change: str, over: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        _, stale = cluster.brokers
        if change != "created":
            await cluster.create(partition_count=1)
        stale.hear_no_topics()
        if change == "created again":
            await cluster.topics.delete("orders")
        if change == "grown":
            topic = await cluster.topics.alter("orders", partition_count=9)
        else:
            topic = await cluster.topics.create("orders", 9)
        await cluster.served(topic)
        if over == "http":
            [written] = await held_until_heard(stale, stale.http([{"value": "v", "partition": 8}]))
            assert written == {"partition": 8, "offset": 0}
        else:
            asked = append(topic, 8)
            if over == "grpc":
                asked.topic_id = ""
            assert await held_until_heard(stale, stale.produce(asked)) == [0]

    with_routed_cluster(scenario)


@pytest.mark.parametrize("key", [None, '"once"'])
def test_a_write_by_name_is_not_refused_for_good_where_the_broker_took_a_former_topic_for_the_present_one(key: str | None) -> None:
    async def scenario(cluster: Cluster) -> None:
        _, stale = cluster.brokers
        await cluster.create(partition_count=2)
        stale.hear_no_topics()
        await cluster.topics.delete("orders")
        topic = await cluster.served(await cluster.topics.create("orders", 2))
        try:
            written = await held_until_heard(stale, stale.http([{"value": "v", "partition": 0}], key=key))
        except Unavailable:
            written = await stale.http([{"value": "v", "partition": 0}], key=key)
        assert written == [{"partition": 0, "offset": 0}]
        assert await cluster.values(topic) == [(0, b"v")]

    with_routed_cluster(scenario)


def test_a_write_by_name_over_grpc_may_be_repeated_where_the_broker_took_a_former_topic_for_the_present_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        _, stale = cluster.brokers
        await cluster.create(partition_count=2)
        stale.hear_no_topics()
        await cluster.topics.delete("orders")
        topic = await cluster.served(await cluster.topics.create("orders", 2))
        by_name = log_pb2.Append(topic="orders", partition=0, record_batch=batch_of(b"v"))
        [refused] = await held_until_heard(stale, stale.produce(by_name))
        assert isinstance(refused, NoLeader), refused
        assert await stale.produce(by_name) == [0]
        assert await cluster.values(topic) == [(0, b"v")]
        await cluster.topics.delete("orders")
        [gone] = await stale.produce(by_name)
        assert isinstance(gone, UnknownTopic), gone

    with_routed_cluster(scenario)


def test_a_client_that_names_a_former_topic_by_its_id_learns_which_one_has_its_name_now() -> None:
    async def scenario(cluster: Cluster) -> None:
        _, stale = cluster.brokers
        former = await cluster.create(partition_count=2)
        stale.hear_no_topics()
        await cluster.topics.delete("orders")
        topic = await cluster.served(await cluster.topics.create("orders", 2))
        [refused] = await held_until_heard(stale, stale.produce(append(former, 0)))
        assert isinstance(refused, UnknownTopic)
        assert refused.details["new_topic_id"] == topic.id, "without it, the SDK takes the topic for gone"

    with_routed_cluster(scenario)


def test_a_produce_is_unavailable_if_the_watch_does_not_report_the_topic_in_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        broker.hear_no_topics()
        topic = await cluster.topics.create("orders", 1)
        with pytest.raises(Unavailable, match="no answer of the metadata store in time"):
            await broker.http([{"value": "v"}])
        for error in await broker.produce(append(topic, 0), append(topic, 0)):
            assert isinstance(error, Unavailable)

    with_routed_cluster(scenario, brokers=1)


def test_a_topic_that_is_not_there_is_refused_for_good_after_one_read_of_the_metadata_store() -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        topic = await cluster.create(partition_count=1)
        clock = asyncio.get_running_loop().time
        broker.metadata.topics_read, began_s = 0, clock()
        with pytest.raises(UnknownTopic):
            await broker.http([{"value": "v"}], topic="missing")
        with pytest.raises(UnknownPartition):
            await broker.http([{"value": "v", "partition": 1}])
        assert broker.metadata.topics_read == 2
        missing = log_pb2.Append(topic="missing", partition=0, record_batch=batch_of(b"a"))
        reported = await broker.produce(missing, missing, append(topic, 1), append(topic, 1), append(topic, 0))
        assert [type(each) for each in reported] == [UnknownTopic, UnknownTopic, UnknownPartition, UnknownPartition, int]
        assert broker.metadata.topics_read == 4
        assert clock() - began_s < 0.5

    with_routed_cluster(scenario, brokers=1)


def test_nothing_is_refused_for_good_while_the_metadata_store_is_silent() -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        topic = await cluster.create(partition_count=1)
        broker.metadata.why_silent = Unavailable("etcd is away")
        with pytest.raises(Unavailable, match="etcd is away"):
            await broker.http([{"value": "v"}], topic="missing")
        batches = [sequenced_batch(1, number) for number in range(2)]
        reported = await broker.produce(*(append(topic, 1, batch) for batch in batches), append(topic, 0))
        assert [type(each) for each in reported] == [Unavailable, Unavailable, int]
        records = [log_pb2.RecordList(records=[log_pb2.Record(value=b"v", partition=number)]) for number in (1, 0)]
        reported = await broker.produce(*(log_pb2.Append(topic="orders", records=each) for each in records))
        assert [type(each) for each in reported] == [Unavailable, Unavailable], (
            "the first may go to any partition, so nothing overtakes it"
        )

    with_routed_cluster(scenario, brokers=1)
