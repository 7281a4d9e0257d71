"""The registry: every suite by its name, in the order in which they run. A list of the same name says which tests run."""

from __future__ import annotations

from pathlib import Path

from tests.kafka_suites import (
    apicurio,
    connect,
    differential,
    java_clients,
    java_tools,
    kafka_python,
    kafkajs,
    kgo,
    librdkafka,
    python_probes,
    spark_kafka,
    streams,
)
from tests.kafka_suites.results import Listed, parse_list
from tests.kafka_suites.target import Suite

LISTS = Path(__file__).with_name("lists")
SUITES: dict[str, Suite] = {
    "java-clients": java_clients.SUITE,
    "java-tools": java_tools.SUITE,
    "python-probes": python_probes.SUITE,
    "kafkajs": kafkajs.SUITE,
    "librdkafka": librdkafka.SUITE,
    "kgo": kgo.SUITE,
    "kafka-python": kafka_python.SUITE,
    "streams": streams.SUITE,
    "connect": connect.SUITE,
    "apicurio": apicurio.SUITE,
    "spark": spark_kafka.SUITE,
    "differential": differential.SUITE,
}


def listed(suite: str) -> list[Listed]:
    try:
        return parse_list((LISTS / f"{suite}.txt").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{suite}.txt: {error}") from None
