"""Reads the demo's topic as an application of Kafka does: by confluent-kafka, as a member of a consumer group.

Only the address, the group and where it begins differ from the settings of librdkafka. The client polls in a thread of its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from metadata.errors import Unavailable
from tidelog.records import Record

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

PACKAGE: Final = "confluent_kafka"
GROUP: Final = "tidelog-demo"
MESSAGES_PER_POLL: Final = 10_000
POLL_TIMEOUT_S: Final = 0.2
# For the whole topic, with the group's first rebalance.
TIMEOUT_S: Final = 60.0


class KafkaRead(NamedTuple):
    """Names the Kafka client, and how many rows it read."""

    client: str
    rows: int


class Misread(Exception):
    """Says how what the Kafka client read differs from what the SDK read."""


def missing() -> str:
    """Returns how to install the client; empty if it is there."""
    return "" if importlib.util.find_spec(PACKAGE) else "confluent-kafka is not installed: pip install 'tidelog[demo]'"


class Comparison:
    """Compares messages with the records of their partitions, which both come in the order of their offsets. `rows`: those seen."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._expected: dict[int | None, list[Record]] = {}
        for record in records:
            self._expected.setdefault(record.partition, []).append(record)
        self._seen = dict.fromkeys(self._expected, 0)
        self.rows = 0
        self.rows_in_all = len(records)

    def take(self, messages: Sequence[Message]) -> None:
        """Raises Misread at the first message that is not the next record of its partition, and at an error in place of one."""
        for message in messages:
            if error := message.error():
                raise Misread(f"an error in place of a row: {error}")
            partition = message.partition()
            seen, records = self._seen.get(partition, 0), self._expected.get(partition, [])
            found = (message.offset(), message.key(), message.value())
            if seen == len(records) or found != (records[seen].offset, records[seen].key, records[seen].value):
                expected = f"the row of offset {records[seen].offset}" if seen < len(records) else "the end"
                raise Misread(f"in place of {expected} of partition {partition} came offset {found[0]}: {(found[2] or b'')[:80]!r}")
            self._seen[partition] = seen + 1
            self.rows += 1


async def read_with_kafka_client(address: str, topic: str, comparison: Comparison) -> KafkaRead:
    """Consumes the topic until `comparison` has seen each of its rows.

    Raises Misread if a message is missing, doubled, changed or out of order; Unavailable if the broker does not deliver in time.
    """
    stopped = threading.Event()
    try:
        return await asyncio.to_thread(_read, address, topic, comparison, stopped)
    finally:
        stopped.set()


def _read(address: str, topic: str, comparison: Comparison, stopped: threading.Event) -> KafkaRead:
    import confluent_kafka

    client = f"confluent-kafka {confluent_kafka.__version__}"
    errors: list[KafkaError] = []
    settings = {"bootstrap.servers": address, "group.id": GROUP, "auto.offset.reset": "earliest", "error_cb": errors.append}
    started_s = time.perf_counter()
    consumer: Consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.subscribe([topic])
        while comparison.rows < comparison.rows_in_all:
            if stopped.is_set() or time.perf_counter() - started_s > TIMEOUT_S:
                said = f"; it said: {errors[-1]}" if errors else ""
                raise Unavailable(f"{client} read {comparison.rows:,} rows in {TIMEOUT_S:.0f} s{said}")
            comparison.take(consumer.consume(MESSAGES_PER_POLL, POLL_TIMEOUT_S))
        return KafkaRead(client, comparison.rows)
    finally:
        consumer.close()
