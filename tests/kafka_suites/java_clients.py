"""Java's own clients, by the programs that Apache Kafka's system tests drive: compatibility, verifiable and measuring clients."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from tests.kafka_suites.java import jars, tool
from tests.kafka_suites.python_probes import CODECS, expect, new_topic
from tests.kafka_suites.target import Suite, Target, runner
from tests.kafka_suites.verifiable_kills import verifiable_kills

RECORDS = 500


def compatibility(target: Target) -> None:
    """Asks for every feature that a Java client of this release expects of a broker of this release."""
    # The program creates this topic and leaves it; a second run against the same broker would fail.
    leftover = tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", target.bootstrap, "--list").split()
    if "newtopic" in leftover:
        tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", target.bootstrap, "--delete", "--topic", "newtopic")
    features = {
        "offsets-for-times-supported": "True",
        "cluster-id-supported": "True",
        "expect-record-too-large-exception": "False",
        "num-cluster-nodes": str(target.brokers),
        "create-topics-supported": "True",
        "describe-acls-supported": "True",
        "describe-configs-supported": "True",
        "idempotent-producer-supported": "True",
    }
    flags = [word for name, value in features.items() for word in (f"--{name}", value)]
    said = tool(
        "org.apache.kafka.tools.ClientCompatibilityTest",
        "--bootstrap-server",
        target.bootstrap,
        "--topic",
        new_topic(target),
        *flags,
    )
    expect("SUCCESS" in said, True)


def verifiable(target: Target) -> None:
    """Every record that the producer was acknowledged reaches the group once, and its offsets are committed."""
    topic, group = new_topic(target), f"verifiable-{uuid.uuid4().hex}"
    main = "org.apache.kafka.tools.VerifiableProducer"
    acknowledged = [
        (event["partition"], event["offset"], event["value"])
        for event in _events(
            tool(main, "--bootstrap-server", target.bootstrap, "--topic", topic, "--max-messages", str(RECORDS), "--acks", "-1")
        )
        if event["name"] == "producer_send_success"
    ]
    expect(len(acknowledged), RECORDS)
    main = "org.apache.kafka.tools.VerifiableConsumer"
    flags = ["--topic", topic, "--group-id", group, "--reset-policy", "earliest", "--max-messages", str(RECORDS), "--verbose"]
    consumed, committed = [], 0
    for event in _events(tool(main, "--bootstrap-server", target.bootstrap, *flags)):
        if event["name"] == "record_data":
            consumed.append((event["partition"], event["offset"], event["value"]))
        elif event["name"] == "offsets_committed":
            expect(event["success"], True)
            committed = sum(each["offset"] for each in event["offsets"])
    expect(sorted(consumed), sorted(acknowledged))
    expect(committed > 0, True)


def console(target: Target, codec: str) -> None:
    """The console producer writes lines with keys in one codec, and the console consumer reads them back."""
    topic = new_topic(target)
    lines = [f"key-{n}\tvalue-{n} {'x' * (n % 50)}" for n in range(RECORDS)]
    tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", target.bootstrap, "--topic", topic, "--compression-codec", codec),
        *("--reader-property", "parse.key=true"),
        stdin="".join(f"{line}\n" for line in lines),
    )
    said = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", target.bootstrap, "--topic", topic, "--group", topic, "--from-beginning"),
        *("--formatter-property", "print.key=true", "--max-messages", str(RECORDS), "--timeout-ms", "60000"),
    )
    expect(sorted(said.splitlines()), sorted(lines))


def performance(target: Target) -> None:
    """The measuring clients end without an error and count every record."""
    topic = new_topic(target)
    configuration = target.directory / "performance.properties"
    configuration.write_text(f"bootstrap.servers={target.bootstrap}\nacks=all\n", encoding="utf-8")
    wanted = 20 * RECORDS
    said = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", target.bootstrap, "--topic", topic, "--num-records", str(wanted)),
        *("--record-size", "100", "--throughput", "-1", "--command-config", str(configuration)),
    )
    expect(said.strip().splitlines()[-1].split()[0], str(wanted))
    said = tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", target.bootstrap, "--topic", topic, "--num-records", str(wanted), "--timeout", "60000"),
    )
    expect(int(said.strip().splitlines()[-1].split(", ")[4]) >= wanted, True)


def _events(said: str) -> Iterator[dict[str, Any]]:
    yield from (json.loads(line) for line in said.splitlines() if line.startswith("{"))


CLIENTS: dict[str, Callable[[Target], None]] = {
    "compatibility": compatibility,
    "verifiable": verifiable,
    "performance": performance,
    **{f"kills/{protocol}": functools.partial(verifiable_kills, protocol=protocol) for protocol in ("classic", "consumer")},
    **{f"console/{codec}": functools.partial(console, codec=codec) for codec in CODECS},
}
SUITE = Suite(jars, runner(CLIENTS))
