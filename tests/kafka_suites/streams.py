"""Kafka Streams by the programs of its system tests: an application that counts, joins and restores its state from changelogs."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # re-exported without saying so

from tests.kafka_suites.java import jars, tool
from tests.kafka_suites.python_probes import PATIENCE_S, eventually, expect
from tests.kafka_suites.target import Suite, Target, runner

COMPATIBILITY_TOPICS = ("brokerCompatibilitySourceTopic", "brokerCompatibilitySinkTopic")
APPLICATION = "kafka-streams-system-test-broker-compatibility"
# Streams does not leave its group when it ends; its session has to time out.
GROUP_ENDS_AFTER_S = 90.0


def compatibility(target: Target) -> None:
    """An application counts records with a state store, and its result is read from the sink topic."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    # The names are fixed; a former run's records would be counted as well.
    former = [name for name in admin.list_topics(timeout=PATIENCE_S).topics if name in COMPATIBILITY_TOPICS or APPLICATION in name]
    if former:
        eventually(lambda: _group_deleted(admin), True, patience_s=GROUP_ENDS_AFTER_S)
        for deleted in admin.delete_topics(former).values():
            deleted.result(PATIENCE_S)
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in COMPATIBILITY_TOPICS]).values():
        created.result(PATIENCE_S)
    configuration = target.directory / "streams.properties"
    settings = {"bootstrap.servers": target.bootstrap, "state.dir": str(target.directory / "state")}
    configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    said = tool("org.apache.kafka.streams.tests.BrokerCompatibilityTest", str(configuration), "at_least_once")
    # The program says so after it has read the expected count; it ends with an error otherwise.
    expect("close Kafka Streams" in said, True)


def _group_deleted(admin: AdminClient) -> bool:
    (deleted,) = admin.delete_consumer_groups([APPLICATION]).values()
    try:
        deleted.result(PATIENCE_S)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND)
    return True


TESTS: dict[str, Callable[[Target], None]] = {"broker-compatibility": compatibility}
SUITE = Suite(jars, runner(TESTS))
