"""Writes and reads records with confluent-kafka's Avro serializers. It runs in a process of its own, for the packages they need.

python avro_probe.py BOOTSTRAP REGISTRY_URL TOPIC SCHEMA
"""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

RECORDS = 200
PATIENCE_S = 60.0


def main() -> None:
    bootstrap, url, topic, schema = sys.argv[1:]
    rows = [{"carrier": "UA" if number % 2 else "AA", "distance": number} for number in range(RECORDS)]
    context = SerializationContext(topic, MessageField.VALUE)
    serialize = AvroSerializer(SchemaRegistryClient({"url": url}), schema)
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    for row in rows:
        producer.produce(topic, serialize(row, context), str(row["carrier"]), on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert not any(refused), refused
    # A registry client of its own, which has cached nothing.
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": url}))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < RECORDS and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(deserialize(message.value(), context))
    consumer.close()
    assert sorted(found, key=lambda row: row["distance"]) == rows, found[:3]


if __name__ == "__main__":
    main()
