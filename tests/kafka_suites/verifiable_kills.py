"""Java's verifiable producer and consumers while brokers are killed, judged by the checkers of the chaos runs.

    VerifiableProducer ─▶ three brokers, each killed in turn ─▶ two VerifiableConsumers of one group
           │ acknowledgements                                        │ assignments, records, commits
           └──────────────────────▶ history ◀────────────────────────┘ ◀── what the brokers serve in the end

No record may be lost, stored twice or out of order; the group may leave none out, and may not begin before what it has committed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from typing import Any

import confluent_kafka

from tests.chaos.history import (
    Acknowledged,
    AnyEvent,
    Assigned,
    Committed,
    GaveUp,
    GroupEnd,
    HandedOut,
    Processed,
    Sent,
    Served,
    Unexpected,
    Unknown,
)
from tests.chaos.history_checker import check
from tests.kafka_suites.java import java
from tests.kafka_suites.process import Server, server
from tests.kafka_suites.python_probes import PATIENCE_S, expect, new_topic
from tests.kafka_suites.target import Skipped, Target
from tests.kafka_suites.tidelog_cluster import Broker, start_tidelog

PARTITIONS = 3
MESSAGES = 6_000
PER_SECOND = 150
# The value of record 17 is 1.17: the producer's prefix, and the number.
PREFIX = "1"
# Brokers and members are given up after this time without a word.
SESSION_MS = 3_000
CONSUMERS = 2
BEFORE_KILL_S = 5.0
DOWN_S = 4.0
END_TIMEOUT_S = 240.0
PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
# Without these the program neither repeats a send nor is idempotent, and a killed broker costs records that it was never promised.
PRODUCER_PROPERTIES = {"enable.idempotence": "true", "retries": "2147483647", "delivery.timeout.ms": "200000"}


def verifiable_kills(target: Target, *, protocol: str) -> None:
    """Each broker is killed while it serves, and started again."""
    if not target.startable or target.on_kafka:
        raise Skipped("it kills Tidelog brokers that the runner starts")
    brokers = target.directory / "brokers"
    brokers.mkdir()
    settings = {"session-timeout-ms": str(SESSION_MS)}
    with start_tidelog(brokers, brokers=3, settings=settings) as cluster, ExitStack() as programs:
        here = replace(target, bootstrap=cluster.bootstrap)
        topic, group = new_topic(here, PARTITIONS), f"kills-{uuid.uuid4().hex}"
        consumers = [programs.enter_context(_consumer(here, topic, group, protocol, number)) for number in range(CONSUMERS)]
        producer = programs.enter_context(_producer(here, topic))
        producer.await_value(lambda: _lines(producer) or None, "the first acknowledgement", PATIENCE_S)
        for broker in cluster.brokers:
            _kill_and_restart(broker)
        producer.process.wait(END_TIMEOUT_S)
        expect(producer.process.returncode, 0)
        served = _serve_all(here, topic)
        ends = {event.partition: event.records[-1][0] + 1 for event in served if event.records}
        committed = _await_commits(here, topic, group, ends)
        for consumer in consumers:
            consumer.process.terminate()
            consumer.process.wait(PATIENCE_S)
        logs = [_lines(each) for each in (producer, *consumers)]
    events = [*producer_events(logs[0]), *group_events(group, dict(enumerate(logs[1:]))), *served]
    lag = sum(ends.values()) - sum(committed.values())
    events.append(GroupEnd(events[-1].time_s, group, lag, tuple(sorted(committed.items()))))
    expect(sum(isinstance(event, Acknowledged) for event in events), MESSAGES)
    expect([str(each) for each in check(events)], [])


def _producer(target: Target, topic: str) -> AbstractContextManager[Server]:
    configuration = target.directory / "producer.properties"
    configuration.write_text("".join(f"{name}={value}\n" for name, value in PRODUCER_PROPERTIES.items()), encoding="utf-8")
    words = ["--bootstrap-server", target.bootstrap, "--topic", topic, "--acks", "-1", "--value-prefix", PREFIX]
    words += ["--max-messages", str(MESSAGES), "--throughput", str(PER_SECOND), "--command-config", str(configuration)]
    return server(java(PRODUCER, *words), target.directory / "producer.log")


def _consumer(target: Target, topic: str, group: str, protocol: str, number: int) -> AbstractContextManager[Server]:
    words = ["--bootstrap-server", target.bootstrap, "--topic", topic, "--group-id", group, "--verbose"]
    words += ["--reset-policy", "earliest", "--group-protocol", protocol]
    words += ["--session-timeout", str(2 * SESSION_MS)] if protocol == "classic" else []
    return server(java(CONSUMER, *words), target.directory / f"consumer-{number}.log")


def _kill_and_restart(broker: Broker) -> None:
    time.sleep(BEFORE_KILL_S)
    broker.kill()
    time.sleep(DOWN_S)
    broker.start()
    broker.await_ready()


def _lines(program: Server) -> list[dict[str, Any]]:
    """Returns the events that the program has printed. The last line may be a part of one."""
    whole, _, _ = program.said().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def _serve_all(target: Target, topic: str) -> list[Served]:
    """Reads the whole topic through the brokers."""
    settings = {
        "bootstrap.servers": target.bootstrap,
        "group.id": "judge",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    records: dict[int, list[tuple[int, str]]] = {number: [] for number in range(PARTITIONS)}
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in records])
        at_end: set[int | None] = set()
        deadline = time.monotonic() + END_TIMEOUT_S
        while len(at_end) < PARTITIONS:
            expect(time.monotonic() < deadline, True)
            message = consumer.poll(1.0)
            if message is None:
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            if message.error() is not None:
                expect(message.error().code(), confluent_kafka.KafkaError._PARTITION_EOF)  # type: ignore[union-attr]  # not None
                at_end.add(partition)
            elif partition is not None and offset is not None:
                records[partition].append((offset, _value((value or b"").decode())))
    return [Served(now_s(), number, tuple(found)) for number, found in records.items()]


def _await_commits(target: Target, topic: str, group: str, ends: Mapping[int, int]) -> dict[int, int]:
    """Returns what the group has committed once that is all, or after the time that it has for it."""
    settings = {"bootstrap.servers": target.bootstrap, "group.id": group, "enable.auto.commit": False}
    asked = [confluent_kafka.TopicPartition(topic, number) for number in ends]
    deadline = time.monotonic() + PATIENCE_S
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        while True:
            committed = {each.partition: max(each.offset, 0) for each in consumer.committed(asked, PATIENCE_S)}
            if committed == dict(ends) or time.monotonic() > deadline:
                return committed
            time.sleep(0.5)


def now_s() -> float:
    """The programs print the time of the system's clock, so the history has it too."""
    return time.time()


def _value(printed: str) -> str:
    """Returns the value as the checkers name it: PRODUCER#NUMBER."""
    return printed.replace(".", "#", 1)


def producer_events(lines: Sequence[Mapping[str, Any]]) -> Iterator[AnyEvent]:
    """What the producer was promised. Pure."""
    for operation, line in enumerate(lines):
        time_s = line["timestamp"] / 1000
        if line["name"] == "producer_send_success":
            yield Sent(time_s, operation, (_value(line["value"]),), ordered=True)
            yield Acknowledged(time_s, operation, ((line["partition"], line["offset"]),))
        elif line["name"] == "producer_send_error":
            yield Sent(time_s, operation, (_value(line["value"]),), ordered=True)
            yield Unknown(time_s, operation, line["message"])


def group_events(group: str, lines_by_member: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[AnyEvent]:
    """What the members did, in the order of time. A member prints an event before it asks for the next change. Pure."""
    events = [event for number, lines in lines_by_member.items() for event in _member_events(group, f"member-{number}", lines)]
    return sorted(events, key=lambda event: event.time_s)


def _member_events(group: str, member: str, lines: Sequence[Mapping[str, Any]]) -> Iterator[AnyEvent]:
    for line in lines:
        time_s = line["timestamp"] / 1000
        match line["name"]:
            case "partitions_assigned":
                # The program does not print its generation.
                yield Assigned(time_s, group, member, -1, tuple(each["partition"] for each in line["partitions"]))
            case "partitions_revoked":
                yield GaveUp(time_s, group, member, tuple(each["partition"] for each in line["partitions"]))
            case "record_data":
                records = ((line["offset"], _value(line["value"])),)
                yield HandedOut(time_s, group, member, -1, line["partition"], records)
            case "records_consumed":
                for each in line["partitions"]:
                    yield Processed(time_s, group, member, each["partition"], each["maxOffset"] + 1)
            case "offsets_committed":
                if line["success"]:
                    yield Committed(time_s, group, member, tuple((each["partition"], each["offset"]) for each in line["offsets"]))
            case "startup_complete" | "shutdown_requested" | "shutdown_complete":
                pass
            case other:
                yield Unexpected(time_s, member, f"it printed {other}")
