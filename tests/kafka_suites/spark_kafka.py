"""Spark's own source and sink for Kafka, `format("kafka")`, with every flight out of New York in 2013.

    flights ─▶ confluent-kafka ─▶ broker ─▶ format("kafka"), PySpark 4.2 ─▶ Parquet ┐
                                    └─bucket─▶ format("tidelog"), PySpark 4.3 ─▶ Parquet ┴─▶ equal, and what was acknowledged

Tidelog's source needs a newer PySpark than the newest for which Maven has a Kafka source. So the jobs run in two environments.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from tests.kafka_suites.cache import cached, python_source
from tests.kafka_suites.java import copy_jars
from tests.kafka_suites.python_probes import expect, new_topic
from tests.kafka_suites.results import Result
from tests.kafka_suites.target import Suite, Target, timed
from tests.kit.servers import ROOT
from tidelog.demo.flights import Flights, load_flights

VERSION = "4.2.0"
SHA256 = "5ad689d53570ee1674193fd4f9bda065f0db3be9363a27d2a3406cc457b70b61"
ARTEFACTS = (("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION, ""),)
HASHES = Path(__file__).with_name("spark_jars.sha256")
# What Spark does not have itself.
JARS = ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-")
JOB = Path(__file__).with_name("spark_job.py")
JOB_TIMEOUT_S = 400.0
PARTITIONS = 4
DELIVERY_TIMEOUT_S = 120.0
# A stream takes several batches, so that offsets of the checkpoint count.
OFFSETS_PER_BATCH = 60_000
CREATE_TIME = 0


def environment() -> Path:
    """Returns the folder of PySpark's source distribution, which has the jars of Spark below `deps`."""
    return cached(f"pyspark-{VERSION}", lambda folder: python_source("pyspark", VERSION, SHA256, folder)) / f"pyspark-{VERSION}"


def jars() -> Path:
    return cached(f"spark-kafka-{VERSION}", lambda folder: copy_jars(ARTEFACTS, HASHES, folder))


def prepare() -> None:
    environment()
    jars()


@dataclass
class Written:
    """A topic with the first rows of the flights, and what the broker acknowledged of each: a row of `acknowledged`."""

    target: Target
    topic: str
    acknowledged: list[tuple[bytes, bytes, int, int, int]] = field(default_factory=list)

    def fill(self, count: int) -> None:
        """Produces rows until there are `count`."""
        refused: list[object] = []

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                refused.append(error)
                return
            key, value, partition, offset = message.key(), message.value(), message.partition(), message.offset()
            assert key is not None and value is not None and partition is not None and offset is not None  # noqa: PT018  # a delivered record has all
            self.acknowledged.append((bytes(key), bytes(value), partition, offset, message.timestamp()[1]))

        flights = _flights()
        settings = {"bootstrap.servers": self.target.bootstrap, "enable.idempotence": True, "compression.type": "lz4"}
        producer = confluent_kafka.Producer(settings)
        for number in range(len(self.acknowledged), count):
            while True:
                try:
                    producer.produce(self.topic, flights.values[number], flights.carriers[number], on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        expect(producer.flush(DELIVERY_TIMEOUT_S), 0)
        expect(refused, [])

    def rows(self) -> pa.Table:
        """What a source has to return, by partition and offset."""
        keys, values, partitions, offsets, stamps = zip(*self.acknowledged, strict=True)
        count = len(keys)
        columns = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array([self.topic] * count),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(stamps, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
            "timestampType": pa.array([CREATE_TIME] * count, pa.int32()),
        }
        return _by_position(pa.table(columns))


@functools.cache
def _flights() -> Flights:
    return load_flights()


def _by_position(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()


def read_rows(folder: Path) -> pa.Table:
    """Returns what a job wrote, by partition and offset."""
    return _by_position(pa.concat_tables([pyarrow.parquet.read_table(file) for file in sorted(folder.glob("*.parquet"))]))


def expect_rows(found: pa.Table, wanted: pa.Table, what: str) -> None:
    """Raises AssertionError that names the first column and row that differ."""
    expect(found.num_rows, wanted.num_rows)
    for name in wanted.column_names:
        # A null is equal to nothing here: no column of these rows has one.
        same = pyarrow.compute.fill_null(pyarrow.compute.equal(found[name].cast(wanted[name].type), wanted[name]), False)
        if not pyarrow.compute.all(same).as_py():
            row = pyarrow.compute.index(same, False).as_py()
            raise AssertionError(f"{what}: {name} of row {row} is {found[name][row]}, not {wanted[name][row]}")


def run_job(target: Target, source: str, options: dict[str, str], *, stream: bool, sink: str, sink_options: dict[str, str]) -> None:
    """Runs the job where its source can be had. Raises AssertionError with the last of what it said unless it ends well."""
    scratch = target.directory / f"scratch-{uuid.uuid4().hex}"
    kafka = source == "kafka"
    needed = [str(jar) for jar in sorted(jars().glob("*.jar")) if jar.name.startswith(JARS)] if kafka else []
    job = {
        "source": source,
        "options": options,
        "stream": stream,
        "sink": sink,
        "sink_options": sink_options,
        "jars": ",".join(needed),
        "scratch": str(scratch),
    }
    inherited = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH")}
    here = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
    # The folder of PySpark comes before the packages of this environment, whose PySpark is another one.
    paths = {"SPARK_HOME": str(environment() / "deps"), "PYTHONPATH": str(environment())} if kafka else {"PYTHONPATH": str(ROOT)}
    log = target.directory / f"{source}.log"
    with log.open("ab") as said:
        done = subprocess.run(
            [sys.executable, str(JOB), json.dumps(job)],
            cwd=target.directory,
            env={**inherited, **target.environment, **here, **paths},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            timeout=JOB_TIMEOUT_S,
        )
    if done.returncode != 0:
        raise AssertionError(f"the job ended with {done.returncode}: {log.read_text(errors='replace')[-1500:]}")


class Comparison:
    """Tests that share a topic: the first rows, then all."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._written: Written | None = None

    def batch(self) -> None:
        """A batch read returns every record with its place and time, as `format("tidelog")` does."""
        written = self._topic()
        written.fill(len(_flights().values))
        folder = self._target.directory / "batch"
        self._kafka_to_parquet(written, folder, stream=False)
        expect_rows(read_rows(folder), written.rows(), "format(kafka) and acknowledgements")
        if self._target.bucket:
            other = self._target.directory / "batch-tidelog"
            self._tidelog_to_parquet(written, other, stream=False)
            expect_rows(read_rows(folder), read_rows(other), "format(kafka) and format(tidelog)")

    def stream(self) -> None:
        """A stream that goes on from its checkpoint returns every record once, as one of `format("tidelog")` does."""
        written, names = self._topic(), ["kafka", *(["tidelog"] if self._target.bucket else [])]
        folders = {name: self._target.directory / f"stream-{name}" for name in names}
        for count in (len(_flights().values) // 2, len(_flights().values)):
            written.fill(count)
            self._kafka_to_parquet(written, folders["kafka"], stream=True)
            if self._target.bucket:
                self._tidelog_to_parquet(written, folders["tidelog"], stream=True)
        expect_rows(read_rows(folders["kafka"]), written.rows(), "format(kafka) and acknowledgements")
        if self._target.bucket:
            expect_rows(read_rows(folders["kafka"]), read_rows(folders["tidelog"]), "format(kafka) and format(tidelog)")

    def sink(self) -> None:
        """A stream writes to another topic by `format("kafka")`; each key and value arrives once."""
        written = self._topic()
        written.fill(len(_flights().values))
        copy = Written(self._target, new_topic(self._target, PARTITIONS))
        folder = self._target.directory / "sink"
        to = {
            "kafka.bootstrap.servers": self._target.bootstrap,
            "topic": copy.topic,
            "checkpointLocation": f"{folder}-checkpoint",
        }
        run_job(self._target, "kafka", self._kafka_options(written), stream=True, sink="kafka", sink_options=to)
        self._kafka_to_parquet(copy, folder, stream=False)
        order = [("key", "ascending"), ("value", "ascending")]
        found, wanted = (rows.select(["key", "value"]).sort_by(order) for rows in (read_rows(folder), written.rows()))
        expect_rows(found, wanted, "the copy")

    def _topic(self) -> Written:
        if self._written is None:
            self._written = Written(self._target, new_topic(self._target, PARTITIONS))
        return self._written

    def _kafka_options(self, written: Written) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._target.bootstrap,
            "subscribe": written.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(OFFSETS_PER_BATCH),
        }

    def _kafka_to_parquet(self, written: Written, folder: Path, *, stream: bool) -> None:
        self._to_parquet("kafka", self._kafka_options(written), folder, stream=stream)

    def _tidelog_to_parquet(self, written: Written, folder: Path, *, stream: bool) -> None:
        options = {"bucket": self._target.bucket, "subscribe": written.topic, "startingOffsets": "earliest"}
        self._to_parquet("tidelog", options, folder, stream=stream)

    def _to_parquet(self, source: str, options: dict[str, str], folder: Path, *, stream: bool) -> None:
        where = {"path": str(folder), **({"checkpointLocation": f"{folder}-checkpoint"} if stream else {})}
        run_job(self._target, source, options, stream=stream, sink="parquet", sink_options=where)


def run_tests(target: Target, tests: Sequence[str]) -> Iterator[Result]:
    comparison = Comparison(target)
    by_name = {"batch": comparison.batch, "stream": comparison.stream, "sink": comparison.sink}
    for test in tests:
        yield timed(test, by_name[test])


SUITE = Suite(prepare, run_tests)
