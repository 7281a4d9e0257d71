"""Python clients from PyPI, driven as users drive them: confluent-kafka, aiokafka and kafka-python.

Each client writes and reads every codec, and reads as a group that commits and resumes. confluent-kafka also administrates.
"""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import aiokafka
import confluent_kafka
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ re-exports them without saying so
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.kafka_suites.target import Suite, Target, runner

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 200
PARTITIONS = 2
PATIENCE_S = 30.0


def new_topic(target: Target, partitions: int = PARTITIONS) -> str:
    """Creates a topic that no other test uses."""
    topic = f"probe-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for created in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        created.result(PATIENCE_S)
    return topic


def records() -> dict[bytes, bytes]:
    """Values by key: some repetitive, so that every codec compresses them."""
    return {b"key-%d" % n: b"value-%d " % n * (n % 20 + 1) for n in range(RECORDS)}


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {str(found)[:150]}, not {str(wanted)[:150]}")


def eventually(look: Callable[[], object], wanted: object, *, patience_s: float = PATIENCE_S) -> None:
    """Waits until `look` finds what is wanted: a broker may answer before it has heard of a change."""
    deadline = time.monotonic() + patience_s
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    expect(found, wanted)


# confluent-kafka

Found = dict[bytes | None, bytes | None]


def _poll(consumer: confluent_kafka.Consumer, count: int) -> Found:
    deadline = time.monotonic() + PATIENCE_S
    found: Found = {}
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            found[message.key()] = message.value()
    return found


def _confluent_produce(target: Target, topic: str, **settings: object) -> None:
    refused: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 20, **settings})
    for key, value in records().items():
        producer.produce(topic, value, key, on_delivery=lambda error, _: refused.append(error) if error else None)
    expect(producer.flush(PATIENCE_S), 0)
    expect(refused, [])


def _confluent_consumer(target: Target, group: str, **settings: object) -> confluent_kafka.Consumer:
    defaults = {"bootstrap.servers": target.bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return confluent_kafka.Consumer({**defaults, "group.id": group, **settings})


def confluent_codec(target: Target, codec: str) -> None:
    topic = new_topic(target)
    _confluent_produce(target, topic, **{"compression.type": codec, "enable.idempotence": True})
    with closing(_confluent_consumer(target, topic)) as consumer:
        consumer.subscribe([topic])
        expect(_poll(consumer, RECORDS), records())


def confluent_group(target: Target) -> None:
    topic = new_topic(target)
    _confluent_produce(target, topic)
    with closing(_confluent_consumer(target, topic)) as consumer:
        consumer.subscribe([topic])
        expect(len(_poll(consumer, RECORDS)), RECORDS)
        consumer.commit(asynchronous=False)
    _confluent_produce(target, topic)
    with closing(_confluent_consumer(target, topic)) as consumer:
        consumer.subscribe([topic])
        expect(_poll(consumer, RECORDS), records())
        partitions = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        expect(sum(each.offset for each in consumer.committed(partitions, PATIENCE_S)), RECORDS)
        expect(sum(consumer.get_watermark_offsets(each, PATIENCE_S)[1] for each in partitions), 2 * RECORDS)


def confluent_cooperative(target: Target) -> None:
    """Two members that share two partitions: each gets one, and together they read all."""
    topic = new_topic(target)
    settings = {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 6000}
    with (
        closing(_confluent_consumer(target, topic, **settings)) as first,
        closing(_confluent_consumer(target, topic, **settings)) as second,
    ):
        deadline = time.monotonic() + PATIENCE_S
        for consumer in (first, second):
            consumer.subscribe([topic])
        while [len(first.assignment()), len(second.assignment())] != [1, 1]:
            if time.monotonic() > deadline:
                raise AssertionError(f"assigned: {first.assignment()}, {second.assignment()}")
            first.poll(0.1)
            second.poll(0.1)
        _confluent_produce(target, topic)
        found: Found = {}
        while len(found) < RECORDS and time.monotonic() < deadline:
            for consumer in (first, second):
                message = consumer.poll(0.1)
                if message is not None:
                    found[message.key()] = message.value()
        expect(found, records())


def confluent_admin(target: Target) -> None:
    topic = new_topic(target)
    _confluent_produce(target, topic)
    admin = AdminClient({"bootstrap.servers": target.bootstrap})

    def answer(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(PATIENCE_S)

    answer(admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)]))
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "86400000"})
    answer(admin.alter_configs([resource]))

    def retention() -> object:
        return answer(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))["retention.ms"].value

    eventually(retention, "86400000")
    partition = confluent_kafka.TopicPartition(topic, 0)
    latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    end = answer(admin.list_offsets({partition: latest})).offset
    expect(answer(admin.delete_records([confluent_kafka.TopicPartition(topic, 0, end)])).low_watermark, end)
    expect(answer(admin.list_offsets({partition: earliest})).offset, end)
    expect(len(admin.describe_cluster().result(PATIENCE_S).nodes), target.brokers)
    with closing(_confluent_consumer(target, topic)) as consumer:
        consumer.subscribe([topic])
        _poll(consumer, 1)
        listed = [group.group_id for group in admin.list_consumer_groups().result(PATIENCE_S).valid]
        expect(topic in listed, True)
        expect(len(answer(admin.describe_consumer_groups([topic])).members), 1)
    answer(admin.delete_consumer_groups([topic]))
    answer(admin.delete_topics([topic]))
    eventually(lambda: topic in admin.list_topics(timeout=PATIENCE_S).topics, False)


# aiokafka


async def _aiokafka_produce(target: Target, topic: str, codec: str) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=target.bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        linger_ms=20,
    )
    async with asyncio.timeout(PATIENCE_S), producer:
        sent = [await producer.send(topic, value, key) for key, value in records().items()]
        await asyncio.gather(*sent)


async def _aiokafka_consume(target: Target, topic: str) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=target.bootstrap, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
    )
    async with asyncio.timeout(PATIENCE_S), consumer:
        while len(found) < RECORDS:
            message = await consumer.getone()
            found[message.key] = message.value
        await consumer.commit()
    return found


def aiokafka_codec(target: Target, codec: str) -> None:
    topic = new_topic(target)

    async def probe() -> None:
        await _aiokafka_produce(target, topic, codec)
        expect(await _aiokafka_consume(target, topic), records())

    asyncio.run(probe())


def aiokafka_group(target: Target) -> None:
    topic = new_topic(target)

    async def probe() -> None:
        for _ in range(2):  # the second reader resumes, and sees only what is new
            await _aiokafka_produce(target, topic, "none")
            expect(await _aiokafka_consume(target, topic), records())
        tail = aiokafka.AIOKafkaConsumer(bootstrap_servers=target.bootstrap, group_id=topic)
        async with asyncio.timeout(PATIENCE_S), tail:
            partitions = [aiokafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
            expect(sum([await tail.committed(each) or 0 for each in partitions]), 2 * RECORDS)
            expect(sum((await tail.end_offsets(partitions)).values()), 2 * RECORDS)

    asyncio.run(probe())


# kafka-python


def _kafka_python_produce(target: Target, topic: str, codec: str) -> None:
    import kafka  # here and below, for it reads all its message definitions at once, and with a deprecated function

    with closing(
        kafka.KafkaProducer(
            bootstrap_servers=target.bootstrap, compression_type=None if codec == "none" else codec, acks="all", linger_ms=20
        )
    ) as producer:
        sent = [producer.send(topic, value=value, key=key) for key, value in records().items()]
        for each in sent:
            each.get(PATIENCE_S)


def _kafka_python_consume(target: Target, topic: str) -> dict[bytes, bytes]:
    import kafka

    found: dict[bytes, bytes] = {}
    with closing(
        kafka.KafkaConsumer(
            topic,
            bootstrap_servers=target.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=int(PATIENCE_S * 1000),
        )
    ) as consumer:
        for message in consumer:
            found[message.key] = message.value
            if len(found) == RECORDS:
                break
        consumer.commit()
    return found


def kafka_python_codec(target: Target, codec: str) -> None:
    topic = new_topic(target)
    _kafka_python_produce(target, topic, codec)
    expect(_kafka_python_consume(target, topic), records())


def kafka_python_group(target: Target) -> None:
    topic = new_topic(target)
    for _ in range(2):
        _kafka_python_produce(target, topic, "none")
        expect(_kafka_python_consume(target, topic), records())


PROBES: dict[str, Callable[[Target], None]] = {
    "confluent-kafka/group": confluent_group,
    "confluent-kafka/cooperative": confluent_cooperative,
    "confluent-kafka/admin": confluent_admin,
    "aiokafka/group": aiokafka_group,
    "kafka-python/group": kafka_python_group,
    **{f"confluent-kafka/{codec}": functools.partial(confluent_codec, codec=codec) for codec in CODECS},
    **{f"aiokafka/{codec}": functools.partial(aiokafka_codec, codec=codec) for codec in CODECS},
    **{f"kafka-python/{codec}": functools.partial(kafka_python_codec, codec=codec) for codec in CODECS},
}
SUITE = Suite(lambda: None, runner(PROBES))
