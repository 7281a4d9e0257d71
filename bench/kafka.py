"""Tidelog's Kafka listener and Apache Kafka side by side, with Apache Kafka's measuring clients: records per second of broker CPU.

    ProducerPerformance, ConsumerPerformance ──▶ Tidelog, Apache Kafka in turn; CPU from /proc of the broker's process

Brokers and clients share the machine, so elapsed time says what all of them do together. The CPU time of the broker is compared.
Apache Kafka compiles as it runs, so both brokers are warmed first: by default with 15 million records (`--kafka-warm-up`), a tenth
of which are read. Each measurement moves `--kafka-records`. Tidelog does not compact meanwhile (bench/compaction.py measures that).
Consumers read records of two kinds:

    tail       TAIL_RECORDS that were just written, TAIL_READS times: Tidelog's tail cache holds them, Apache Kafka's page cache
    history    a topic, after NEWER_RECORDS were written to another: Tidelog reads them from segments on its bucket

What one producer reaches by the clock is printed too: it has five requests in flight, and waits for commits most of the time.

A consumer that starts costs its broker as much as megabytes that it reads. The client of `kafka-fetch` keeps its connection, so the
figures there are higher.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import psutil

from bench.broker import broker
from bench.figures import Figure, median, spread
from bench.run import Run
from tests.kafka_suites.java import tool
from tests.kafka_suites.reference_broker import reference_broker

RECORD_BYTES = 100
PARTITIONS = 6
BATCH_BYTES = (64 << 10, 16 << 10)
CODECS = ("none", "lz4")
ROUNDS = 3
# 44 MB; Tidelog's tail cache has 64 MiB.
TAIL_RECORDS, TAIL_READS = 400_000, 5
# Written to another topic before history is read: 77 MB.
NEWER_RECORDS = 700_000
CLIENT_TIMEOUT_S = 600.0
KAFKA, TIDELOG = "Apache Kafka", "Tidelog"


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    bootstrap: str
    process: psutil.Process
    # For the configuration of clients.
    directory: Path

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Case:
    batch_bytes: int
    codec: str

    def __str__(self) -> str:
        return f"batches of {self.batch_bytes >> 10} KiB, {self.codec}"


def measure(run: Run) -> list[Figure]:
    """Tidelog's bucket is a local directory: each segment takes two calls of fsync, which Apache Kafka leaves to the system."""
    with _kafka(run) as kafka, _tidelog(run) as tidelog:
        return _measure(run, [kafka, tidelog])


def measure_on_s3(run: Run) -> list[Figure]:
    """Tidelog's bucket is on an S3 server of this machine."""
    with _kafka(run) as kafka, _tidelog(run, on_s3=True) as tidelog:
        return _measure(run, [kafka, tidelog])


def measure_tidelog_alone(run: Run) -> list[Figure]:
    """Tidelog's figures on this machine."""
    with _tidelog(run) as tidelog:
        return _measure(run, [tidelog])


def measure_kafka_alone(run: Run) -> list[Figure]:
    """Apache Kafka's figures on this machine."""
    with _kafka(run) as kafka:
        return _measure(run, [kafka])


def _measure(run: Run, brokers: Sequence[Measured]) -> list[Figure]:
    for each in brokers:
        topic = _new_topic(each)
        _write(each, Case(BATCH_BYTES[0], CODECS[0]), topic, run.kafka_warm_up)
        _read(each, topic, max(1, run.kafka_warm_up // 10))
    rates: dict[str, dict[tuple[Case, str], list[float]]] = {"produce": {}, "consume the tail": {}, "consume history": {}}
    by_the_clock: dict[tuple[Case, str], list[float]] = {}
    cases = [Case(*values) for values in product(BATCH_BYTES, CODECS)]
    records = run.kafka_records
    for case, _, each in product(cases, range(ROUNDS), brokers):
        history = _new_topic(each)
        key = case, each.name

        def produce(each: Measured = each, case: Case = case, topic: str = history, key: tuple[Case, str] = key) -> None:
            by_the_clock.setdefault(key, []).append(_write(each, case, topic, records))

        rates["produce"].setdefault(key, []).append(_rate(each, records, produce))
        _write(each, case, _new_topic(each), NEWER_RECORDS)
        rates["consume history"].setdefault(key, []).append(_rate(each, records, partial(_read, each, history, records)))
        tail = _new_topic(each)
        _write(each, case, tail, TAIL_RECORDS)
        rates["consume the tail"].setdefault(key, []).append(
            _rate(each, TAIL_READS * TAIL_RECORDS, partial(_read_tail, each, tail))
        )
    of_the_clock = figures("one producer", cases, by_the_clock, unit="records/s")
    return [*of_the_clock, *(figure for act, found in rates.items() for figure in figures(act, cases, found))]


def figures(
    act: str, cases: Sequence[Case], rates: dict[tuple[Case, str], list[float]], *, unit: str = "records/CPU-s"
) -> Iterator[Figure]:
    """A figure for each case and broker, and Tidelog's ratio to Apache Kafka where both were measured. Pure."""
    for case in cases:
        for name in (KAFKA, TIDELOG):
            if (case, name) in rates:
                found = rates[case, name]
                yield Figure(f"{act}, {case}: {name}", round(median(found)), unit, note=spread([round(each) for each in found]))
        if (case, TIDELOG) in rates and (case, KAFKA) in rates:
            ratio = median(rates[case, TIDELOG]) / median(rates[case, KAFKA])
            yield Figure(f"{act}, {case}: {TIDELOG} to {KAFKA}", ratio, "×")


@contextmanager
def _kafka(run: Run) -> Iterator[Measured]:
    with ExitStack() as ending:
        directory = ending.enter_context(run.new_directory("kafka"))
        served = ending.enter_context(reference_broker(directory, {"num.partitions": str(PARTITIONS)}, heap="1g"))
        yield Measured(KAFKA, served.bootstrap, psutil.Process(served.pid), directory)


@contextmanager
def _tidelog(run: Run, *, on_s3: bool = False) -> Iterator[Measured]:
    with ExitStack() as ending:
        served = ending.enter_context(broker(run, "tidelog", flags=("--compact", "false"), on_s3=on_s3))
        directory = ending.enter_context(run.new_directory("tidelog-clients"))
        yield Measured(TIDELOG, served.kafka_address, psutil.Process(served.pid), directory)


def _new_topic(measured: Measured) -> str:
    topic = f"bench-{uuid.uuid4().hex}"
    where = ("--bootstrap-server", measured.bootstrap)
    tool("org.apache.kafka.tools.TopicCommand", *where, "--create", "--topic", topic, "--partitions", str(PARTITIONS))
    return topic


def _rate(measured: Measured, records: int, work: Callable[[], None]) -> float:
    """Records per second of the broker's CPU while `work` moves so many."""
    begun_s = measured.cpu_seconds()
    work()
    return records / (measured.cpu_seconds() - begun_s)


def _write(measured: Measured, case: Case, topic: str, records: int) -> float:
    """Writes with one producer, and returns its records per second."""
    configuration = measured.directory / "producer.properties"
    settings = {
        "bootstrap.servers": measured.bootstrap,
        "acks": "all",
        "batch.size": case.batch_bytes,
        "compression.type": case.codec,
        "linger.ms": 5,
    }
    configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    printed = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
        *("--command-config", str(configuration)),
        timeout_s=CLIENT_TIMEOUT_S,
        warm=True,
    )
    return records_per_second(printed)


def records_per_second(printed: str) -> float:
    """Returns the rate in the last line that ProducerPerformance prints. Pure."""
    return float(re.findall(r"records sent, ([0-9.]+) records/sec", printed)[-1])


def _read(measured: Measured, topic: str, records: int) -> None:
    tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", measured.bootstrap, "--topic", topic, "--num-records", str(records), "--timeout", "60000"),
        timeout_s=CLIENT_TIMEOUT_S,
        warm=True,
    )


def _read_tail(measured: Measured, topic: str) -> None:
    for _ in range(TAIL_READS):
        _read(measured, topic, TAIL_RECORDS)
