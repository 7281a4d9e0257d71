"""Kafka Streams by the programs of its system tests: an application that counts, joins and restores its state from changelogs."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # re-exported without saying so

from tests.kafka_suites.java import jars, tool
from tests.kafka_suites.python_probes import PATIENCE_S, expect
from tests.kafka_suites.target import Suite, Target, runner

COMPATIBILITY_TOPICS = ("brokerCompatibilitySourceTopic", "brokerCompatibilitySinkTopic")


def compatibility(target: Target) -> None:
    """An application counts records with a state store, and its result is read from the sink topic."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    # The names are fixed; a former run's records would be counted as well.
    former = [name for name in COMPATIBILITY_TOPICS if name in admin.list_topics(timeout=PATIENCE_S).topics]
    for deleted in admin.delete_topics(former).values() if former else ():
        deleted.result(PATIENCE_S)
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in COMPATIBILITY_TOPICS]).values():
        created.result(PATIENCE_S)
    configuration = target.directory / "streams.properties"
    settings = {"bootstrap.servers": target.bootstrap, "state.dir": str(target.directory / "state")}
    configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    said = tool("org.apache.kafka.streams.tests.BrokerCompatibilityTest", str(configuration), "at_least_once")
    # The program says so after it has read the expected count; it ends with an error otherwise.
    expect("close Kafka Streams" in said, True)


TESTS: dict[str, Callable[[Target], None]] = {"broker-compatibility": compatibility}
SUITE = Suite(jars, runner(TESTS))
