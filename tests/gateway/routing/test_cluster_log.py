"""Any broker takes any request, wherever the leader is; a request is forwarded once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

from gateway.broker.broker import Broker
from gateway.proto import admin_pb2, log_pb2
from gateway.proto.status import from_status
from gateway.routing import local_log
from gateway.routing.peer_channels import FORWARDED_BY
from metadata.errors import NotLeader, UnknownTopic
from metadata.model import TopicPartition
from metadata.topics.topic import Topic
from segments.records.batch import split_batches
from tests.gateway.cluster.test_session_manager import hold_takeovers, partition_of
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.small_broker import until
from tests.kit.gateway.stubs import cluster_stub, log_stub, topics_stub
from tests.kit.segments.batches import batch_of, sequenced_batch

pytestmark = pytest.mark.slow
PARTITIONS = 6


@asynccontextmanager
async def channel_to(broker: Broker) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(broker.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


@asynccontextmanager
async def client_of(broker: Broker) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
        yield Client(session)


async def made(cluster: Cluster) -> tuple[Topic, int, Broker]:
    """A topic, one of its partitions, and a broker that does not lead this one."""
    topic = await cluster.brokers[0].create_topic("orders", PARTITIONS)
    for broker in cluster.brokers:
        assert await broker.topic_cache.wait_for(topic.revision, timeout_s=60)
    led = {cluster.leader(partition_of(topic, number)).broker_id for number in range(PARTITIONS)}
    assert len(led) == len(cluster.brokers), "the partitions are spread"
    return topic, 1, cluster.other(partition_of(topic, 1))


def ready(batch: bytes, partition: int, **more: Any) -> log_pb2.Append:
    return log_pb2.Append(topic="orders", partition=partition, record_batch=batch, **more)


def test_a_plain_http_client_writes_and_reads_every_partition_at_any_broker(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await made(cluster)
        for turn, broker in enumerate(cluster.brokers):
            async with client_of(broker) as client:
                records = [{"value": f"{turn}-{number}", "partition": number} for number in range(PARTITIONS)]
                reported = await client.produce("/v1/topics/orders/records", records)
                assert reported.json == {"results": [{"partition": number, "offset": turn} for number in range(PARTITIONS)]}
        for broker in cluster.brokers:
            async with client_of(broker) as client:
                for number in range(PARTITIONS):
                    found = (await client.get(f"/v1/topics/orders/partitions/{number}/records")).json
                    assert [record["value"] for record in found["records"]] == [
                        f"{t}-{number}" for t in range(len(cluster.brokers))
                    ]
                    path = f"/v1/topics/orders/partitions/{number}/offsets/1/explain"
                    assert (await client.get(path)).json["base_offset"] == 1
                described = (await client.get("/v1/topics/orders")).json["partitions"]
                assert [partition["high_watermark"] for partition in described] == [len(cluster.brokers)] * PARTITIONS
                lines = await client.get("/v1/topics/orders/records?wait_ms=0", accept="application/x-ndjson")
                assert len(lines.lines) == PARTITIONS * len(cluster.brokers)

    with_cluster(tmp_path, scenario)


def test_batches_of_a_stream_keep_their_order_and_their_sequences_through_another_broker(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        _, number, broker = await made(cluster)
        batches = [sequenced_batch(5, at) for at in range(50)]

        async def requests() -> AsyncIterator[log_pb2.ProduceRequest]:
            for at, batch in enumerate(batches):
                yield log_pb2.ProduceRequest(correlation_id=at, appends=[ready(batch, number)])
            yield log_pb2.ProduceRequest(correlation_id=50, appends=[ready(batches[-1], number)])

        async with channel_to(broker) as channel:
            placements = [answer.results[0].placements[0] async for answer in log_stub(channel).ProduceStream(requests())]
            assert [placement.base_offset for placement in placements] == [*range(50), 49]
            assert [placement.duplicate for placement in placements] == [False] * 50 + [True]
            asked = log_pb2.FetchPartition(topic="orders", partition=number)
            fetched = (await log_stub(channel).Fetch(log_pb2.FetchRequest(partitions=[asked]))).partitions[0]
            assert len(list(split_batches(fetched.record_batches))) == 50
            assert (fetched.high_watermark, fetched.next_offset) == (50, 50)

    with_cluster(tmp_path, scenario)


def test_the_largest_timestamp_is_asked_of_the_leader_whichever_broker_a_client_asks(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        _, number, broker = await made(cluster)
        query = log_pb2.OffsetQuery(topic="orders", partition=number, max_timestamp=True)
        async with channel_to(broker) as channel:
            for timestamps_ms, expected in (([], (-1, -1)), ([5, 9, 7], (1, 9)), ([9, 8], (1, 9)), ([20], (5, 20))):
                if timestamps_ms:
                    batch = batch_of(*[b"v"] * len(timestamps_ms), timestamps_ms=timestamps_ms)
                    await log_stub(channel).Produce(log_pb2.ProduceRequest(appends=[ready(batch, number)]))
                (found,) = (await log_stub(channel).ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]))).results
                assert (found.offset, found.timestamp_ms) == expected

    with_cluster(tmp_path, scenario)


def test_a_call_that_was_forwarded_once_is_refused_with_the_leader_s_name_and_never_sent_on(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, number, broker = await made(cluster)
        leader = cluster.leader(partition_of(topic, number))
        forwarded = ((FORWARDED_BY, "broker-9"),)
        async with channel_to(broker) as channel:
            request = log_pb2.ProduceRequest(appends=[ready(batch_of(b"a"), number)])
            produced = await log_stub(channel).Produce(request, metadata=forwarded)
            asked = log_pb2.FetchPartition(topic="orders", partition=number)
            fetched = await log_stub(channel).Fetch(log_pb2.FetchRequest(partitions=[asked]), metadata=forwarded)
            query = log_pb2.OffsetQuery(topic="orders", partition=number, latest=True)
            listed = await log_stub(channel).ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]), metadata=forwarded)
        for status in (produced.results[0].error, fetched.partitions[0].error, listed.results[0].error):
            error = from_status(status)
            assert isinstance(error, NotLeader)
            assert error.details == {
                "broker_id": leader.broker_id,
                "grpc_address": leader.grpc_address,
                "http_address": leader.http_address,
                "leader_epoch": 0,
            }

    with_cluster(tmp_path, scenario)


def test_an_append_that_is_forwarded_during_a_takeover_is_written_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_log, "TAKEOVER_S", 60.0)

    async def scenario(cluster: Cluster) -> None:
        may_serve = hold_takeovers(monkeypatch)
        creating = asyncio.ensure_future(cluster.brokers[0].create_topic("orders", 1))
        partition = await appointed(cluster, "orders")
        async with channel_to(cluster.leader(partition)) as channel:
            request = log_pb2.ProduceRequest(appends=[ready(batch_of(b"a"), 0, topic_id=partition.topic_id)])
            forwarded = log_stub(channel).Produce(request, metadata=((FORWARDED_BY, "broker-9"),))
            sent = asyncio.ensure_future(answer_of(forwarded))
            assert await asyncio.wait((sent,), timeout=0.5) == (set(), {sent}), "it is not refused meanwhile"
            may_serve.set()
            placement = (await sent).results[0].placements[0]
        assert (placement.base_offset, placement.HasField("error")) == (0, False)
        await creating

    with_cluster(tmp_path, scenario)


async def appointed(cluster: Cluster, topic: str) -> TopicPartition:
    """Partition 0 of the topic, once its leader has heard that it is."""
    found: list[TopicPartition] = []

    def is_heard() -> bool:
        with suppress(UnknownTopic):
            partition = partition_of(cluster.brokers[0].topic_cache.get(topic))
            leader = next((broker for broker in cluster.brokers if is_appointed(broker, partition)), None)
            found[:] = [partition] if leader is not None else []
        return bool(found)

    await until(is_heard)
    return found[0]


def is_appointed(broker: Broker, partition: TopicPartition) -> bool:
    leader = broker.leader(partition)
    return leader is not None and leader.broker_id == broker.broker_id


async def answer_of(call: Awaitable[log_pb2.ProduceResponse]) -> log_pb2.ProduceResponse:
    return await call


def test_errors_of_the_leader_come_back_as_they_are_and_stop_only_their_own_message(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        _, number, broker = await made(cluster)
        async with client_of(broker) as client:
            batch, kind = batch_of(b"a"), "application/vnd.tidelog.record-batch"
            path = f"/v1/topics/orders/records?partition={number}"
            assert (await client.post(path, batch, kind)).status == 200
            refused = client.post(f"{path}&expected_offset=7", batch, kind)
            reported, other = await asyncio.gather(refused, client.post(path, batch, kind))
            assert (reported.status, reported.json["code"], reported.json["end_offset"] in {1, 2}) == (
                412,
                "CONDITION_FAILED",
                True,
            )
            assert other.status == 200
            assert await client.refused(client.get(f"/v1/topics/orders/partitions/{number}/records?offset=99")) == (
                416,
                "OFFSET_OUT_OF_RANGE",
            )

    with_cluster(tmp_path, scenario)


def test_an_idempotency_key_is_known_wherever_its_partitions_are_led(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await made(cluster)
        first, second = cluster.brokers
        path, records = "/v1/topics/orders/records", [{"key": str(at), "value": at} for at in range(30)]
        async with client_of(first) as one, client_of(second) as two:
            reported = await one.produce(path, records, idempotency_key="k")
            again = await two.produce(path, records, idempotency_key="k")
            assert [result | {"duplicate": True} for result in reported.json["results"]] == again.json["results"]
            for client in (one, two):
                other = client.produce(path, [{"key": "7", "value": "other"}], idempotency_key="k")
                assert await client.refused(other) == (422, "IDEMPOTENCY_KEY_REUSED")

    with_cluster(tmp_path, scenario)


def test_a_long_poll_over_several_leaders_ends_when_one_of_them_has_records(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, _, _ = await made(cluster)
        asked = [log_pb2.FetchPartition(topic="orders", partition=number) for number in range(PARTITIONS)]
        request = log_pb2.FetchRequest(partitions=asked, min_bytes=1, max_wait_ms=30_000)
        for broker in cluster.brokers:
            number = next(at for at in range(PARTITIONS) if cluster.leader(partition_of(topic, at)) is not broker)
            async with channel_to(cluster.brokers[0]) as channel:
                poll = log_stub(channel).Fetch(request)
                await asyncio.sleep(0.1)  # the poll is under way; sooner, it would find the record at once
                await log_stub(channel).Produce(log_pb2.ProduceRequest(appends=[ready(batch_of(b"a"), number)]))
                fetched = (await poll).partitions
                assert [bool(partition.record_batches) for partition in fetched] == [at == number for at in range(PARTITIONS)]
                asked[number].offset = 1
                request = log_pb2.FetchRequest(partitions=asked, min_bytes=1, max_wait_ms=30_000)

    with_cluster(tmp_path, scenario)


def test_an_answer_that_is_lost_on_the_way_is_an_unknown_outcome(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, number, broker = await made(cluster)
        async with client_of(broker) as client, asyncio.TaskGroup() as tasks:
            path = "/v1/topics/orders/records"
            assert (await client.produce(path, [{"value": 0, "partition": number}])).status == 200
            cluster.bucket.hold()
            writing = tasks.create_task(client.refused(client.produce(path, [{"value": 1, "partition": number}])))
            leader = cluster.leader(partition_of(topic, number))
            await until(lambda: leader.log.partitions.bounds(partition_of(topic, number)).end_offset == 2)
            await leader._grpc.stop(0)  # as if it had been killed
            assert await writing == (504, "OUTCOME_UNKNOWN")
            cluster.bucket.let_go()

    with_cluster(tmp_path, scenario)


def test_a_plain_client_meets_no_error_while_the_leaders_of_its_partitions_are_drained(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, _, _ = await made(cluster)
        staying, leaving = cluster.brokers
        is_over = False
        written: list[tuple[int, int, int]] = []

        async def write(client: Client, number: int) -> None:
            value = 0
            while not is_over:
                reported = await client.produce("/v1/topics/orders/records", [{"value": value, "partition": number}])
                assert reported.status == 200, reported
                written.append((number, reported.json["results"][0]["offset"], value))
                value += 1

        async with client_of(staying) as client, asyncio.TaskGroup() as writers:
            for number in range(PARTITIONS):
                writers.create_task(write(client, number))
            await asyncio.sleep(0.2)
            leaving.stop()
            await until(lambda: not any(cluster.leader(partition_of(topic, at)) is leaving for at in range(PARTITIONS)))
            await asyncio.sleep(0.2)
            is_over = True
        assert all(offset == value for _, offset, value in written), "in order, each once"

    with_cluster(tmp_path, scenario)


def test_every_broker_lists_all_brokers_and_says_who_leads_what(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, _, _ = await made(cluster)
        for broker in cluster.brokers:
            async with channel_to(broker) as channel:
                listed = (await cluster_stub(channel).ListBrokers(admin_pb2.ListBrokersRequest())).brokers
                found = (await topics_stub(channel).GetTopic(admin_pb2.GetTopicRequest(name="orders"))).partitions
            assert [reported.grpc_address for reported in listed] == [known.grpc_address for known in cluster.brokers]
            assert (sum(reported.partitions_led for reported in listed), sum(reported.controller for reported in listed)) == (
                PARTITIONS,
                1,
            )
            for partition in found:
                leader = cluster.leader(partition_of(topic, partition.partition))
                assert (partition.leader, partition.leader_grpc_address) == (leader.broker_id, leader.grpc_address)

    with_cluster(tmp_path, scenario)


def test_a_batch_that_waited_for_a_leader_is_appended_here_once_this_broker_leads(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, number, _ = await made(cluster)
        leader, partition = cluster.leader(partition_of(topic, number)), partition_of(topic, number)
        await until(lambda: partition in leader.log.partitions)
        async with client_of(leader) as client, asyncio.TaskGroup() as tasks:
            leader.log.partitions.pause(partition)
            path = "/v1/topics/orders/records"
            writing = [tasks.create_task(client.produce(path, [{"value": at, "partition": number}])) for at in range(3)]
            await asyncio.sleep(0.1)
            assert not [write.result() for write in writing if write.done()]
            leader.log.partitions.resume(partition)
            reported = [await write for write in writing]
        assert sorted(answer.json["results"][0]["offset"] for answer in reported) == [0, 1, 2]
        assert leader.log.partitions.bounds(partition).high_watermark == 3

    with_cluster(tmp_path, scenario)
