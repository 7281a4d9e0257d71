"""Tests how the Kafka clients of a chaos run record the answers of librdkafka."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.chaos import group_kafka_members
from tests.chaos.group_kafka_members import GROUP, generation_of
from tests.chaos.history import (
    Acknowledged,
    AnyEvent,
    Assigned,
    Committed,
    GaveUp,
    HandedOut,
    History,
    Processed,
    Unexpected,
    Unknown,
)
from tests.chaos.kafka_workload import KafkaProducer, KafkaReader, errors, runs
from tests.chaos.workload import TOPIC, stored_value

NOWHERE = "127.0.0.1:1"
TIMED_OUT, FENCED = KafkaError(KafkaError._MSG_TIMED_OUT), KafkaError(KafkaError.INVALID_PRODUCER_EPOCH)
AWAY, BROKEN = KafkaError(KafkaError._TRANSPORT), KafkaError(KafkaError.OFFSET_OUT_OF_RANGE)


class Message(NamedTuple):
    """As confluent-kafka has them: the values are methods."""

    at: tuple[int, int]
    text: str = ""
    fault: KafkaError | None = None

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]

    def value(self) -> bytes:
        return stored_value(self.text)

    def error(self) -> KafkaError | None:
        return self.fault


def messages(*some: Message) -> list[Any]:
    return list(some)


def unlike_time(events: list[AnyEvent]) -> list[tuple[object, ...]]:
    """The events as tuples of their kind and what they say, without the time."""
    return [
        (type(event), *(getattr(event, name) for name in event.__struct_fields__ if name not in {"time_s", "group"}))
        for event in events
    ]


def test_messages_of_one_partition_are_one_run_until_another_comes_between() -> None:
    found = runs(messages(Message((0, 5), "a#0"), Message((0, 6), "a#1"), Message((1, 0), "a#2"), Message((0, 7), "a#3")))
    assert found == [(0, ((5, "a#0"), (6, "a#1"))), (1, ((0, "a#2"),)), (0, ((7, "a#3"),))]


def test_only_errors_that_no_outage_explains_count() -> None:
    some = messages(Message((0, 5), "a#0"), Message((0, 0), fault=AWAY), Message((0, 0), fault=BROKEN))
    assert errors(some) == [str(BROKEN)]
    assert runs(some) == [(0, ((5, "a#0"),))]


def test_a_producer_writes_down_what_became_of_each_record(tmp_path: Path) -> None:
    with History(tmp_path / "history") as history:
        producer = KafkaProducer("kafka", NOWHERE, history, keyed=True, per_second=1)
        sent = [history.sent(f"kafka#{number}", ordered=True) for number in range(3)]
        for operation, error in zip(sent, (None, TIMED_OUT, FENCED), strict=True):
            producer._delivered(operation, error, cast(Any, Message((2, 9))))
        assert unlike_time(history.events)[3:] == [
            (Acknowledged, sent[0], ((2, 9),)),
            (Unknown, sent[1], str(TIMED_OUT)),
            (Unexpected, "kafka", str(FENCED)),
        ]


def test_a_reader_goes_on_behind_what_it_got(tmp_path: Path) -> None:
    with History(tmp_path / "history") as history:
        reader = KafkaReader("kafka-reader", NOWHERE, history)
        reader._take(messages(Message((3, 0), "a#0"), Message((3, 1), "a#1"), Message((3, 0), fault=BROKEN)))
        assert reader.positions[3] == 2
        assert [kind for kind, *_ in unlike_time(history.events)][1:] == [Unexpected]


@pytest.fixture
def consumer() -> Consumer:
    return Consumer({"bootstrap.servers": NOWHERE, "group.id": GROUP, "log_level": 0})


def test_the_generation_of_a_member_is_read_from_the_metadata_of_librdkafka(consumer: Consumer) -> None:
    assert generation_of(consumer) == -1

    class Joined:
        def consumer_group_metadata(self) -> bytes:
            return group_kafka_members.METADATA_MAGIC + (7).to_bytes(4, "little") + b"group\0\0"

    assert generation_of(cast(Consumer, Joined())) == 7


def test_a_member_works_on_what_it_has_polled_before_it_gives_a_partition_up(tmp_path: Path, consumer: Consumer) -> None:
    with History(tmp_path / "history") as history:
        life = group_kafka_members._Life(
            "m.0", {"bootstrap.servers": NOWHERE, "group.id": GROUP, "log_level": 0}, history, random.Random(1)
        )
        life._assigned(consumer, [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])
        life._polled = messages(Message((1, 4), "a#0"))
        life._gave_up(consumer, [TopicPartition(TOPIC, 1)])
        asyncio.run(life.turn())
        life._committed(None, [TopicPartition(TOPIC, 1, 5)])
        life._committed(KafkaError(KafkaError.ILLEGAL_GENERATION), [])
        life._committed(AWAY, [])
        life._committed(BROKEN, [])
        life.end()
        assert unlike_time(history.events) == [
            (Assigned, "m.0", -1, (0, 1)),
            (HandedOut, "m.0", -1, 1, ((4, "a#0"),)),
            (Processed, "m.0", 1, 5),
            (GaveUp, "m.0", (1,)),
            (Committed, "m.0", ((1, 5),)),
            (Unexpected, "m.0", f"commit: {BROKEN}"),
            (GaveUp, "m.0", (0,)),
        ]


def test_a_refused_commit_of_partitions_that_a_member_keeps_is_made_again(tmp_path: Path, consumer: Consumer) -> None:
    with History(tmp_path / "history") as history:
        life = group_kafka_members._Life(
            "m.0", {"bootstrap.servers": NOWHERE, "group.id": GROUP, "log_level": 0}, history, random.Random(1)
        )
        life._assigned(consumer, [TopicPartition(TOPIC, number) for number in range(3)])
        life._gave_up(consumer, [TopicPartition(TOPIC, 2)])
        life._uncommitted = {1: 9}
        offsets = [TopicPartition(TOPIC, 0, 5), TopicPartition(TOPIC, 1, 6), TopicPartition(TOPIC, 2, 7)]
        life._committed(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), offsets)
        assert life._uncommitted == {0: 5, 1: 9}
        life.end()
