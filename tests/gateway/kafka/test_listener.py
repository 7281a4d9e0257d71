"""What a Kafka client meets at a listener: order, errors, leaders, and the end of connections."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from gateway.broker.broker import Broker
from gateway.kafka.protocol.client_messages import (
    ApiVersionsRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from gateway.kafka.protocol.hot_messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from gateway.settings import GatewaySettings
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from segments.records.batch import parse_header, split_batches
from segments.records.columns import encode_records
from tests.kit.gateway.broker_cluster import Cluster, broker_cluster
from tests.kit.gateway.kafka_client import KafkaTestClient, kafka_client
from tests.kit.gateway.small_broker import PATIENCE_S, until
from tests.kit.segments.batches import TIMESTAMP_MS, batch_of, sequenced_batch

pytestmark = pytest.mark.slow

TOPIC = "orders"
LISTENERS = "direct=127.0.0.1:0,forward=127.0.0.1:0/forward"
AUTO_CREATE = replace(GatewaySettings(), kafka_auto_create_topics=True, kafka_auto_create_partitions=3)
EARLIEST, LATEST, LARGEST = -2, -1, -3
UNSUPPORTED = (35, -1)  # UNSUPPORTED_VERSION, and no offset


def address(broker: Broker, listener: str = "direct") -> str:
    found = next(each for each in broker.kafka_listeners if each.name == listener)
    return f"{found.host}:{found.port}"


def run(
    tmp_path: Path,
    scenario: Callable[[Cluster, Topic], Awaitable[None]],
    *,
    count: int = 1,
    partitions: int = 1,
    gateway: GatewaySettings | None = None,
) -> None:
    async def whole() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            broker_cluster(tmp_path, count, kafka=LISTENERS, gateway=gateway) as cluster,
        ):
            topic = await cluster.brokers[0].create_topic(TOPIC, partitions)
            await scenario(cluster, topic)

    uvloop.run(whole())


@asynccontextmanager
async def client_of(broker: Broker, listener: str = "direct") -> AsyncIterator[KafkaTestClient]:
    async with kafka_client(address(broker, listener)) as client:
        yield client


def produce(topic: Topic, *batches: bytes, acks: int = -1, partition: int = 0, timeout_ms: int = 20_000) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=memoryview(batch)) for batch in batches]
    named = TopicProduceData(name=topic.name, topic_id=bytes.fromhex(topic.id), partition_data=data)
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[named])


def fetch(topic: Topic, offset: int = 0, *, wait_ms: int = 0, partition: int = 0) -> FetchRequest:
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    named = FetchTopic(topic=topic.name, topic_id=bytes.fromhex(topic.id), partitions=[asked])
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[named])


async def produced(client: KafkaTestClient, version: int, request: ProduceRequest) -> PartitionProduceResponse:
    answer = await client.ask("Produce", version, request)
    [[result]] = [topic.partition_responses for topic in answer.responses]
    found: PartitionProduceResponse = result
    return found


async def fetched(client: KafkaTestClient, version: int, request: FetchRequest) -> PartitionData:
    answer = await client.ask("Fetch", version, request)
    assert answer.error_code == 0
    [[data]] = [topic.partitions for topic in answer.responses]
    found: PartitionData = data
    return found


def records_of(data: PartitionData) -> bytes:
    received = data.records or b""
    return bytes(received) if isinstance(received, bytes | memoryview) else b"".join(received)


def test_records_produced_in_any_version_are_fetched_in_any_version(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            batch = batch_of(b"a", b"b")
            for count, version in enumerate(range(3, 14)):
                result = await produced(client, version, produce(topic, batch))
                assert (result.error_code, result.base_offset) == (0, 2 * count)
            for version in range(4, 18):
                data = await fetched(client, version, fetch(topic))
                assert (data.error_code, data.high_watermark, data.aborted_transactions) == (0, 22, None)
                assert records_of(data)[21:61] == batch[21:61], "the first batch, but for its stamp"
                assert len(records_of(data)) == 11 * len(batch)

    run(tmp_path, scenario)


def test_requests_of_one_connection_are_appended_in_order_and_answered_in_order(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            cluster.bucket.hold()
            sent = [client.send("Produce", 9, produce(topic, batch_of(b"%d" % number))) for number in range(10)]
            sent.append(client.send("ApiVersions", 3, ApiVersionsRequest(client_software_name="t", client_software_version="1")))
            await asyncio.sleep(0.05)  # all wait for the bucket
            cluster.bucket.let_go()
            for number, correlation_id in enumerate(sent[:10]):
                answered, answer = await client.receive("Produce", 9)
                assert (answered, answer.responses[0].partition_responses[0].base_offset) == (correlation_id, number)
            assert (await client.receive("ApiVersions", 3))[0] == sent[-1]

    run(tmp_path, scenario)


def test_a_fetch_that_waits_gives_way_to_the_next_request(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            client.send("Fetch", 12, fetch(topic, wait_ms=60_000))
            await asyncio.sleep(0.05)
            client.send("Heartbeat", 4, HeartbeatRequest(group_id="g", member_id="m"))
            _, waited = await client.receive("Fetch", 12)
            assert waited.responses[0].partitions[0].error_code == 0
            await client.receive("Heartbeat", 4)

    run(tmp_path, scenario)


def test_a_fetch_that_waits_is_answered_by_the_commit(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as reader, client_of(cluster.brokers[0]) as writer:
            reader.send("Fetch", 12, fetch(topic, wait_ms=60_000))
            await asyncio.sleep(0.05)
            await produced(writer, 9, produce(topic, batch_of(b"a")))
            _, answer = await reader.receive("Fetch", 12)
            assert records_of(answer.responses[0].partitions[0])

    run(tmp_path, scenario)


def test_a_repeated_batch_has_the_offsets_of_the_first_time(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            given = await client.ask("InitProducerId", 4, InitProducerIdRequest(transactional_id=None))
            assert (given.error_code, given.producer_epoch) == (0, 0)
            batch = sequenced_batch(given.producer_id, 0, b"a")
            first = await produced(client, 9, produce(topic, batch))
            again = await produced(client, 9, produce(topic, batch))
            assert (again.error_code, again.base_offset) == (0, first.base_offset)
            gap = await produced(client, 9, produce(topic, sequenced_batch(given.producer_id, 5, b"b")))
            assert gap.error_code == 45  # OUT_OF_ORDER_SEQUENCE_NUMBER
            for sequence in range(1, 6):
                await produced(client, 9, produce(topic, sequenced_batch(given.producer_id, sequence, b"c")))
            forgotten = await produced(client, 9, produce(topic, batch))
            assert (forgotten.error_code, forgotten.base_offset) == (46, -1)  # DUPLICATE_SEQUENCE_NUMBER

    run(tmp_path, scenario)


def test_a_batch_behind_a_refused_one_is_refused_like_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        partition = TopicPartition(topic.id, Partition(0))
        await cluster.led(partition)
        partitions = cluster.brokers[0].log.partitions
        async with client_of(cluster.brokers[0]) as client:
            given = await client.ask("InitProducerId", 4, InitProducerIdRequest(transactional_id=None))
            first, second, third = (produce(topic, sequenced_batch(given.producer_id, number, b"a")) for number in range(3))
            partitions.pause(partition)
            assert (await produced(client, 9, first)).error_code == 6  # NOT_LEADER_OR_FOLLOWER
            partitions.resume(partition)
            assert [(await produced(client, 9, request)).error_code for request in (second, third)] == [6, 6]
            assert [(await produced(client, 9, request)).error_code for request in (first, second, third)] == [0, 0, 0]

    run(tmp_path, scenario)


def test_a_batch_behind_a_refused_one_is_refused_like_it_where_one_in_front_was_on_its_way(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        partition = TopicPartition(topic.id, Partition(0))
        await cluster.led(partition)
        partitions = cluster.brokers[0].log.partitions
        async with client_of(cluster.brokers[0]) as client:
            given = await client.ask("InitProducerId", 4, InitProducerIdRequest(transactional_id=None))
            first, second, third = (produce(topic, sequenced_batch(given.producer_id, number, b"a")) for number in range(3))
            cluster.bucket.hold()
            client.send("Produce", 9, first)
            await until(lambda: partitions.bounds(partition).end_offset == 1)  # it is appended, and waits for the bucket
            partitions.pause(partition)
            client.send("Produce", 9, second)
            kafka = cluster.brokers[0]._kafka
            assert kafka is not None
            [connection] = kafka.requests.open
            await until(lambda: connection.refused_batches is not None)
            partitions.resume(partition)
            cluster.bucket.let_go()
            client.send("Produce", 9, third)
            answers = [(await client.receive("Produce", 9))[1] for _ in range(3)]
            assert [answer.responses[0].partition_responses[0].error_code for answer in answers] == [0, 6, 6]

    run(tmp_path, scenario)


def test_a_request_without_an_answer_closes_the_connection_where_it_fails(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            client.send("Produce", 9, produce(topic, batch_of(b"a"), acks=0))
            data = await fetched(client, 12, fetch(topic, wait_ms=10_000))
            assert data.high_watermark == 1, "the Fetch behind it has the first answer"
            client.send("Produce", 9, produce(topic, batch_of(b"a"), acks=0, partition=7))
            assert await client.is_closed()

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda batch: batch[:-1], 87),  # INVALID_RECORD
        (lambda batch: batch[:30] + b"\xff" + batch[31:], 2),  # CORRUPT_MESSAGE: clients send it again
        (lambda batch: batch + batch, 87),
        (lambda batch: b"", 87),
        (lambda batch: batch[:16] + b"\x01" + batch[17:], 87),
    ],
)
def test_a_bad_batch_is_refused_and_nothing_is_written(tmp_path: Path, spoil: Callable[[bytes], bytes], code: int) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            refused = await produced(client, 9, produce(topic, spoil(batch_of(b"a"))))
            assert (refused.error_code, refused.base_offset) == (code, -1)
            assert code != 2 or refused.log_start_offset == -1
            assert refused.error_message
            assert (await produced(client, 9, produce(topic, batch_of(b"b")))).base_offset == 0

    run(tmp_path, scenario)


def test_errors_of_a_request_are_answered_at_their_partitions(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            assert (await produced(client, 9, produce(topic, batch_of(b"a"), partition=9))).error_code == 3
            assert (await produced(client, 9, produce(topic, batch_of(b"a"), acks=2))).error_code == 21
            large = batch_of(b"x" * (2 << 20))
            assert (await produced(client, 9, produce(topic, large))).error_code == 10
            for request, answer in ((fetch(topic, 5), (1, None)), (fetch(topic, partition=9), (3, []))):
                data = await fetched(client, 12, request)
                assert (data.error_code, data.aborted_transactions) == answer  # null where the log was asked, as in Kafka
            gone = replace_id(topic)
            assert (await fetched(client, 13, fetch(gone))).error_code == 100
            assert (await produced(client, 13, produce(gone, batch_of(b"a")))).error_code == 100

    run(tmp_path, scenario)


def test_a_compacted_topic_takes_no_record_without_a_key(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        broker = cluster.brokers[0]
        compacted = await broker.create_topic("compacted", 1, settings={"cleanup.policy": "compact,delete"})
        keyed = encode_records([(b"key", b"value", (), TIMESTAMP_MS)])
        async with client_of(broker) as client:
            mixed = encode_records([(key, b"value", (), TIMESTAMP_MS) for key in (b"key", None, b"", None)])
            refused = await produced(client, 9, produce(compacted, mixed))
            assert (refused.error_code, refused.base_offset) == (87, -1)  # INVALID_RECORD
            assert [each.batch_index for each in refused.record_errors] == [1, 3]
            assert (await produced(client, 9, produce(compacted, keyed))).base_offset == 0

    run(tmp_path, scenario)


def test_a_producer_learns_the_log_append_time_also_where_another_broker_appends(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        stamped = await cluster.brokers[0].create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        partition = TopicPartition(stamped.id, Partition(0))
        await cluster.led(partition)
        leader = cluster.leader(partition)
        async with client_of(leader) as client:
            found: list[int] = []
            for broker in (leader, cluster.other(partition)):
                async with client_of(broker, "forward") as producer:
                    batch = sequenced_batch(7 + len(found), 0, b"a")
                    result = await produced(producer, 9, produce(stamped, batch))
                    assert result.error_code == 0
                    found.append(result.log_append_time_ms)
                    await asyncio.sleep(0.002)
                    again = await produced(producer, 9, produce(stamped, batch))
                    assert (again.base_offset, again.log_append_time_ms) == (result.base_offset, result.log_append_time_ms)
            data = records_of(await fetched(client, 12, fetch(stamped)))
            assert found == [parse_header(batch).max_timestamp for batch in split_batches(data)]
            assert min(found) > TIMESTAMP_MS
            async with client_of(leader, "forward") as producer:
                assert (await produced(producer, 9, produce(topic, batch_of(b"a")))).log_append_time_ms == -1

    run(tmp_path, scenario, count=2)


def test_a_client_whose_last_epoch_is_later_than_the_log_is_out_of_range(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        broker = cluster.brokers[0]
        await broker.delete_topic(topic.name)
        remade = await broker.create_topic(topic.name, 1)  # led in a later epoch than before
        async with client_of(broker) as client:
            await produced(client, 9, produce(remade, batch_of(b"a")))
            for epoch, error_code in ((0, 0), (1_000, 1)):  # OFFSET_OUT_OF_RANGE
                request = fetch(remade)
                request.topics[0].partitions[0].last_fetched_epoch = epoch
                data = await fetched(client, 12, request)
                assert (data.error_code, data.diverging_epoch) == (error_code, None), epoch

    run(tmp_path, scenario)


def replace_id(topic: Topic) -> Topic:
    return Topic(id=topic.id[::-1], name=topic.name, partition_count=1, settings={}, created_at_ms=0)  # type: ignore[arg-type]


def test_an_unknown_version_of_api_versions_is_answered_in_version_zero(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            client.send_bytes(struct.pack(">ihhih", 11, 18, 9, 5, -1) + b"\x00")
            correlation_id, answer = await client.receive("ApiVersions", 0)
            assert (correlation_id, answer.error_code) == (5, 35)
            assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(18, 4)]
            again = await client.ask("ApiVersions", 4, ApiVersionsRequest(client_software_name="t", client_software_version="1"))
            assert again.error_code == 0

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", -1) + bytes(20),
        struct.pack(">i", 4) + bytes(20),
        struct.pack(">i", 2**31 - 1) + bytes(20),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),  # an unknown API key
        struct.pack(">ihhih", 10, 0, 2, 1, -1),  # Produce in a version that is advertised and refused
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),  # more topics than bytes
    ],
)
def test_a_request_that_is_not_understood_closes_the_connection_alone(tmp_path: Path, frame: bytes) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client, client_of(cluster.brokers[0]) as other:
            client.send_bytes(frame)
            assert await client.is_closed()
            assert (await produced(other, 9, produce(topic, batch_of(b"a")))).error_code == 0

    run(tmp_path, scenario)


def test_another_leader_is_named_or_forwarded_to_by_the_kind_of_listener(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        partition = TopicPartition(topic.id, Partition(0))
        await cluster.led(partition)
        leader, other = cluster.leader(partition), cluster.other(partition)
        async with client_of(other) as direct, client_of(other, "forward") as forward:
            answer = await direct.ask("Produce", 10, produce(topic, batch_of(b"a")))
            result = answer.responses[0].partition_responses[0]
            [node] = answer.node_endpoints
            assert result.error_code == 6
            assert result.current_leader.leader_id == node.node_id
            assert f"{node.host}:{node.port}" == address(leader)
            assert (await fetched(direct, 12, fetch(topic))).error_code == 6
            assert (await produced(forward, 9, produce(topic, batch_of(b"a")))).base_offset == 0
            assert records_of(await fetched(forward, 12, fetch(topic, wait_ms=5_000)))

    run(tmp_path, scenario, count=2)


def test_metadata_names_brokers_by_the_address_of_the_listener_that_was_asked(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        for listener in ("direct", "forward"):
            async with client_of(cluster.brokers[0], listener) as client:
                for version in range(14):
                    answer = await client.ask("Metadata", version, MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]))
                    hosts = {f"{each.host}:{each.port}" for each in answer.brokers}
                    assert hosts == {address(broker, listener) for broker in cluster.brokers}
                    assert {each.leader_id for each in answer.topics[0].partitions} <= {each.node_id for each in answer.brokers}
                by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=bytes.fromhex(topic.id))])
                assert (await client.ask("Metadata", 12, by_id)).topics[0].name == TOPIC

    run(tmp_path, scenario, count=2, partitions=4)


def test_a_topic_that_is_asked_for_is_created_where_the_broker_does_that(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
            answer = await client.ask("Metadata", 9, request)
            assert (answer.topics[0].error_code, len(answer.topics[0].partitions)) == (0, 3)
            request = MetadataRequest(topics=[MetadataRequestTopic(name="other")], allow_auto_topic_creation=False)
            assert (await client.ask("Metadata", 9, request)).topics[0].error_code == 3

    run(tmp_path, scenario, gateway=AUTO_CREATE)


def test_offsets_are_listed_by_bound_and_by_time(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            await produced(client, 9, produce(topic, batch_of(b"a", b"b", b"c")))
            for version in range(1, 12):
                largest = (0, 2) if version >= 7 else UNSUPPORTED
                found_by = {EARLIEST: (0, 0), LATEST: (0, 3), LARGEST: largest, 2**60: (0, -1), 0: (0, 0), -99: UNSUPPORTED}
                for timestamp, answer in found_by.items():
                    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
                    [found] = (await client.ask("ListOffsets", version, request)).topics[0].partitions
                    assert (found.error_code, found.offset) == answer, (version, timestamp)

    run(tmp_path, scenario)


def test_a_client_that_hangs_up_does_not_stop_the_others(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as staying:
            cluster.bucket.hold()
            async with client_of(cluster.brokers[0]) as leaving:
                leaving.send("Produce", 9, produce(topic, batch_of(b"a")))
                staying.send("Produce", 9, produce(topic, batch_of(b"b")))
                leaving.send("Fetch", 12, fetch(topic, wait_ms=60_000))
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)
            cluster.bucket.let_go()
            _, answer = await staying.receive("Produce", 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
            await until(lambda: cluster.brokers[0].log.budget.bytes_used == 0)  # all memory was given back

    run(tmp_path, scenario)


def test_long_requests_are_received_as_they_fit_into_the_buffer(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            batch = batch_of(b"x" * 900_000)
            for _ in range(100):  # more than the buffer holds
                client.send("Produce", 9, produce(topic, batch))
            for number in range(100):
                _, answer = await client.receive("Produce", 9)
                assert answer.responses[0].partition_responses[0].base_offset == number
            await until(lambda: cluster.brokers[0].log.budget.bytes_used == 0)

    run(tmp_path, scenario)


LITTLE = replace(GatewaySettings(), request_bytes_max=256 << 10, message_bytes_max=128 << 10)


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_produce_above_the_bound_is_refused_and_the_connection_stays(tmp_path: Path, version: int) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            long = produce(topic, batch_of(b"x" * 3_000_000))
            long.topic_data[0].partition_data.append(PartitionProduceData(index=7, records=memoryview(batch_of(b"a"))))  # type: ignore[attr-defined]
            client.send("Produce", version, long)
            client.send("Produce", version, produce(topic, batch_of(b"a")))
            _, answer = await client.receive("Produce", version)
            codes = [each.error_code for each in answer.responses[0].partition_responses]
            assert codes == [10, 3], "MESSAGE_TOO_LARGE, and a partition that the topic does not have"
            if version >= 8:
                assert "the broker takes 262144" in answer.responses[0].partition_responses[0].error_message
            _, answer = await client.receive("Produce", version)
            assert answer.responses[0].partition_responses[0].base_offset == 0
            assert cluster.brokers[0].log.budget.bytes_used_peak < 1_000_000, "it took no memory of the log"

    run(tmp_path, scenario, gateway=LITTLE)


def test_an_idempotent_batch_behind_a_request_that_was_too_long_is_answered_as_behind_a_batch_that_is(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            given = await client.ask("InitProducerId", 4, InitProducerIdRequest(transactional_id=None))
            sent = [produce(topic, sequenced_batch(given.producer_id, 0, b"x" * 3_000_000))]
            sent += [produce(topic, sequenced_batch(given.producer_id, number)) for number in (1, 2)]
            codes = [(await produced(client, 9, request)).error_code for request in sent]
            whole = produce(topic, sequenced_batch(given.producer_id, 0, b"x" * 200_000))  # its request fits, its batch does not
            expected = [(await produced(client, 9, request)).error_code for request in (whole, *sent[1:])]
            assert codes == expected
            assert codes[0] == 10

    run(tmp_path, scenario, gateway=LITTLE)


def test_a_produce_above_the_bound_without_an_answer_closes_the_connection(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic) -> None:
        async with client_of(cluster.brokers[0]) as client:
            client.send("Produce", 9, produce(topic, batch_of(b"x" * 3_000_000), acks=0))
            assert await client.is_closed()

    run(tmp_path, scenario, gateway=LITTLE)
