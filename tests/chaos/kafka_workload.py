"""Producers and a reader of a chaos run that are stock Kafka clients, confluent-kafka, at the brokers' Kafka listeners.

Their calls never wait: each client is polled in turn, and librdkafka does the rest in threads of its own. Producers are idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.history import Acknowledged, History, Polled, Unexpected, Unknown
from tests.chaos.workload import IN_FLIGHT_MAX, KEYS, PARTITIONS, TOPIC, stored_value, value_of

# That of librdkafka itself, longer than any outage. When a record times out, an idempotent producer takes a new producer id and
# sends again what it holds. What was written and not acknowledged lies there twice then, with any broker.
DELIVERY_TIMEOUT_MS: Final = 300_000
POLL_S: Final = 0.02
MESSAGES_PER_TURN: Final = 200
# Of a client that finds out about a new leader within the outages of a run, and says nothing on stderr.
SETTINGS: Final[Mapping[str, Any]] = {
    "log_level": 0,
    "topic.metadata.refresh.interval.ms": 10_000,
    "reconnect.backoff.max.ms": 1_000,
    "socket.timeout.ms": 10_000,
}


class KafkaProducer:
    """`run` until `enough`, then until all that was sent has its outcome. Idempotent, acks=all."""

    def __init__(
        self, name: str, bootstrap: str, history: History, *, keyed: bool, per_second: float, compression: str = "none"
    ) -> None:
        self.name = name
        self._history = history
        self._keyed = keyed
        self._pause_s = 1 / per_second
        self._unanswered = 0
        own = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": compression,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "error_cb": self._error,
        }
        self._settings = {**SETTINGS, **own}

    async def run(self, enough: asyncio.Event) -> None:
        producer = Producer(self._settings)
        number = 0
        while not enough.is_set() or self._unanswered:
            if not enough.is_set() and self._unanswered < IN_FLIGHT_MAX:
                self._send(producer, number)
                number += 1
            producer.poll(0)
            await asyncio.sleep(POLL_S if enough.is_set() else self._pause_s)

    def _send(self, producer: Producer, number: int) -> None:
        value = f"{self.name}#{number}"
        key = f"k{number % KEYS}" if self._keyed else None
        operation = self._history.sent(value, ordered=True)
        self._unanswered += 1
        producer.produce(TOPIC, stored_value(value), key=key, on_delivery=partial(self._delivered, operation))

    def _delivered(self, operation: int, error: KafkaError | None, message: Message) -> None:
        self._unanswered -= 1
        now_s = self._history.now_s
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self._history.add(Acknowledged(now_s, operation, ((partition, offset),)))
        elif error.code() == KafkaError._MSG_TIMED_OUT:
            self._history.add(Unknown(now_s, operation, str(error)))
        else:
            self._history.add(Unexpected(now_s, self.name, str(error)))

    def _error(self, error: KafkaError) -> None:
        """Of no record. A client that can't reach brokers says so, and goes on; what is fatal ends it."""
        if error.fatal():
            self._history.add(Unexpected(self._history.now_s, self.name, f"fatal: {error}"))


class KafkaReader:
    """Reads all partitions, in no group. `run` until it is cancelled."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        self.name = name
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self._history = history
        own = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        self._settings = {**SETTINGS, **own}

    async def run(self) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
            while True:
                self._take(polled(consumer))
                await asyncio.sleep(POLL_S)
        finally:
            await asyncio.to_thread(consumer.close)

    def _take(self, messages: Sequence[Message]) -> None:
        for partition, records in runs(messages):
            self._history.add(Polled(self._history.now_s, self.name, partition, self.positions[partition], records))
            self.positions[partition] = records[-1][0] + 1
        for why in errors(messages):
            self._history.add(Unexpected(self._history.now_s, self.name, why))


def polled(consumer: Consumer) -> list[Message]:
    """Returns what the client has ready, one message after the other: its callbacks run between two of them."""
    found: list[Message] = []
    while len(found) < MESSAGES_PER_TURN and (message := consumer.poll(0)) is not None:
        found.append(message)
    return found


def runs(messages: Sequence[Message]) -> list[tuple[int, tuple[tuple[int, str], ...]]]:
    """Returns partition and records of the messages, one item for as long as the partition stays the same. Errors are left out."""
    found: list[tuple[int, list[tuple[int, str]]]] = []
    for message in messages:
        if message.error() is not None:
            continue
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if not found or found[-1][0] != partition:
            found.append((partition, []))
        found[-1][1].append((offset, value_of(bytes(message.value() or b""))))
    return [(partition, tuple(records)) for partition, records in found]


def errors(messages: Sequence[Message]) -> list[str]:
    """Returns the errors among the messages that no fault of the cluster excuses."""
    found = [error for message in messages if (error := message.error()) is not None]
    return [str(error) for error in found if not excused(error)]


def excused(error: KafkaError | KafkaException) -> bool:
    """Returns whether brokers that die, stand still or can't reach etcd explain this."""
    known: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return known.code() in _OF_AN_OUTAGE


_OF_AN_OUTAGE: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
