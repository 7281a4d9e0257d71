"""Runs the demo: real rows over both listeners, a broker killed in the middle, everything read back and compared row by row.

    rows ─▶ tidelog dev ◀─ half over HTTP, half over gRPC ─▶ kill -9 ─▶ look at the bucket ─▶ tidelog dev again
                             └──────── both go on over it ────────────────────────────────┘
         ─▶ read back, by the SDK and by a Kafka client ─▶ the broker ends
         ─▶ compare ─▶ delays, records/s, latencies, PUTs, what the kill did
         ─▶ part becomes Parquet ─▶ Spark reads the bucket ─▶ compare ─▶ delays by the hour, a chart

It fails if one row is missing, doubled, changed or out of order within its key, if one acknowledgement named a wrong offset, if the
Kafka client reads other rows than the SDK, or if Spark's delays are not those of the rows that were read back. Without
confluent-kafka, Java or PySpark it leaves out what needs them, and says so.
However it ends, the broker's process is ended. Its directory is removed unless the user or a failure needs it, or Spark is
interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import uvloop
from rich.console import Console

from metadata.errors import InvalidArgument, TidelogError
from segments.object_store.interface import ObjectStore
from segments.object_store.open import open_store
from tidelog.client import connect
from tidelog.demo import kafka_client, report
from tidelog.demo.bucket import committed_ends, count_objects, kill_at_next_segment
from tidelog.demo.flights import Flights, load_flights, spread
from tidelog.demo.kafka_client import Comparison, KafkaRead, Misread, read_with_kafka_client
from tidelog.demo.producers import Half, produce_over_grpc, produce_over_http
from tidelog.demo.report import HourOfDay, Kill, Watch
from tidelog.demo.spark import NoSpark, SparkFailed, compact_part, delays_with_spark, missing, pipeline_command
from tidelog.records import Record
from tidelog.tasks import first_error
from tidelog.testing.broker_process import BrokerProcess

TOPIC = "flights"
PARTITIONS = 6
ROWS_LEAST = 1_000
CHART = Path("tidelog-demo-delays.png")
NEXT_SEGMENT_TIMEOUT_S = 2.0


class DemoFailed(TidelogError):
    """The demo failed to show what it promises."""

    code = "DEMO_FAILED"


def run_demo(
    rows: int | None = None, *, data_dir: Path | None = None, keep: bool = False, spark: bool = True, chart: Path = CHART
) -> None:
    """Raises DemoFailed when a row was lost, doubled, changed or misplaced; other TidelogErrors when it can't run at all.

    `rows`: the first so many, or all. `data_dir`: an empty directory, or a temporary one; `keep` leaves it there. `chart`: replaced
    by what Spark read.
    """
    if rows is not None and rows < ROWS_LEAST:
        raise InvalidArgument(f"the demo needs {ROWS_LEAST:,} rows or more; {rows:,} are asked for")
    if spark and not missing() and (chart.is_dir() or not os.access(chart.parent, os.W_OK)):
        raise InvalidArgument(
            f"the chart can't be written to {chart}", hint="Name another file: --chart FILE; or leave Spark out: --no-spark"
        )
    watch = Watch(Console(stderr=True, highlight=False))
    logging.getLogger("tidelog").setLevel(logging.ERROR)  # the SDK warns of a broker that is away, which is the point here
    flights = load_flights(rows)
    broker_flags = ("--compact", "false")  # what is counted at the end are segments
    with _directory(data_dir, keep, watch) as files, BrokerProcess(files.directory, flags=broker_flags) as broker:
        try:
            uvloop.run(_demo(flights, broker, watch, chart if spark else None, files))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # SIGTERM
        except BaseExceptionGroup as group:
            raise first_error(group) from group


async def _demo(flights: Flights, broker: BrokerProcess, watch: Watch, chart: Path | None, files: _Files) -> None:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    row_count = len(flights.values)

    watch.say("rows", f"{row_count:,} flights out of New York in 2013, for {PARTITIONS} partitions")
    await asyncio.to_thread(broker.start)
    watch.say("broker", f"process {broker.pid} at {broker.http_url}")
    watch.say("produce", "half of the rows over HTTP, half over gRPC, until they are acknowledged")
    async with connect(broker.http_url) as log:
        await log.topics.create(TOPIC, partitions=PARTITIONS)
        bucket = await open_store((await log.cluster()).bucket)
    try:
        sent, kill = await _produce(flights, broker, bucket, watch)
        started_s = time.perf_counter()
        read = await _read_back(broker, row_count, watch)
        read_s = time.perf_counter() - started_s
        by_kafka = await _with_kafka_client(broker, read, watch)
        await asyncio.to_thread(broker.stop)
        objects = await count_objects(bucket)
    finally:
        await bucket.close()

    check(flights, sent, read)
    flown = report.flown(record.value or b"" for record in read)
    console = report.results_console()
    watch.space()
    report.show(
        console,
        report.delays_table(flown, flights.airline_of, width=console.width),
        report.figures_table(sent, kill, read_rows=row_count, read_s=read_s),
        report.story(kill, objects, row_count, by_kafka),
    )
    if chart is None:
        return
    watch.space()
    try:
        hours = await _with_spark(broker, bucket.url, objects["segment_bytes"], chart, watch)
    except asyncio.CancelledError:  # a slow machine takes minutes for this step, and the user has seen what it needs
        files.keep = True
        watch.say("finish", pipeline_command(bucket.url, chart, python=sys.executable))
        raise
    if hours is not None:
        check_delays(report.delays_by_hour(flown), hours)
        watch.space()
        report.show(console, report.hours_table(hours), report.spark_line(chart))


# ── produce, and the kill ───────────────────────────────────────────────────────────────────────────────────────────────


async def _produce(flights: Flights, broker: BrokerProcess, bucket: ObjectStore, watch: Watch) -> tuple[list[Half], Kill]:
    """Sends the rows, each carrier through one listener, so that its rows are sent in one order."""
    half_way = asyncio.Event()
    names = ("HTTP, JSON", "gRPC, SDK")
    sent = [Half(name, flights.of(own), half_way) for name, own in zip(names, spread(flights.carriers, 2), strict=True)]
    over_http, over_grpc = sent
    with watch.bars({half.listener: (len(half.rows), partial(getattr, half, "acknowledged")) for half in sent}):
        async with asyncio.TaskGroup() as tasks:
            killing = tasks.create_task(_kill_in_the_middle(sent, broker, bucket, watch))
            tasks.create_task(produce_over_http(over_http, broker.http_url, TOPIC))
            tasks.create_task(produce_over_grpc(over_grpc, broker.grpc_address, TOPIC))
    return sent, killing.result()


async def _kill_in_the_middle(sent: Sequence[Half], broker: BrokerProcess, bucket: ObjectStore, watch: Watch) -> Kill:
    """Waits until both halves flow and one is half-way; kills the broker; sees what the bucket holds; starts it again."""
    await asyncio.gather(*(half.begun.wait() for half in sent), sent[0].half_way.wait())
    directory = Path(urlsplit(bucket.url).path)
    await asyncio.to_thread(kill_at_next_segment, broker.pid, directory, timeout_s=NEXT_SEGMENT_TIMEOUT_S)
    await asyncio.to_thread(broker.kill)
    killed_s = time.perf_counter()
    ends = await committed_ends(bucket)
    if lost := [position for half in sent for position in half.values if position[1] >= ends.get(position[0], 0)]:
        partition, offset = lost[0]
        raise DemoFailed(
            f"{len(lost):,} acknowledged records are not on the bucket, the first at partition {partition}, offset {offset}"
        )
    acknowledged = sum(half.acknowledged for half in sent)
    under_way = {half.listener: half.sent - half.acknowledged for half in sent}
    watch.say("kill -9", f"process {broker.pid}, at {acknowledged:,} acknowledged records; the producers go on", style="bold red")
    await asyncio.to_thread(broker.start)
    served_s = time.perf_counter()
    watch.say("broker", f"process {broker.pid} serves in its place, {served_s - killed_s:.1f} s later")
    return Kill(acknowledged, sum(ends.values()), under_way, killed_s, served_s)


# ── read back, and compare ──────────────────────────────────────────────────────────────────────────────────────────────


async def _read_back(broker: BrokerProcess, row_count: int, watch: Watch) -> list[Record]:
    records: list[Record] = []
    with watch.bars({"read back": (row_count, lambda: len(records))}):
        async with connect(broker.http_url) as log:
            consumer = log.consume(TOPIC, follow=False)
            while chunk := await consumer.chunk():
                records.extend(chunk)
    return records


async def _with_kafka_client(broker: BrokerProcess, read: Sequence[Record], watch: Watch) -> KafkaRead | None:
    """Returns None, and says why, where no Kafka client is installed."""
    if what := kafka_client.missing():
        watch.say("kafka", f"left out, since {what}")
        return None
    comparison = Comparison(read)
    with watch.bars({"kafka": (len(read), lambda: comparison.rows)}):
        try:
            return await read_with_kafka_client(broker.kafka_address, TOPIC, comparison)
        except Misread as misread:
            raise DemoFailed(f"the Kafka client did not read what the SDK read: {misread}") from misread


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, bytes]]:
    """Yields key and value in the order of the offsets. A carrier's records lie in one partition."""
    return (((record.key or b"").decode(errors="replace"), record.value or b"") for record in records)


def _by_carrier(rows: Iterator[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for carrier, value in rows:
        found.setdefault(carrier, []).append(value)
    return found


def check(flights: Flights, sent: Sequence[Half], records: Sequence[Record]) -> None:
    """Raises DemoFailed unless each row is there once, unchanged, in order within its key, and where its acknowledgement said."""
    rows, read = _by_carrier(zip(flights.carriers, flights.values, strict=True)), _by_carrier(_rows(records))
    if different := [carrier for carrier in sorted({*rows, *read}) if rows.get(carrier) != read.get(carrier)]:
        raise DemoFailed(
            "what was read back is not what was sent\n" + "\n".join(_difference(carrier, rows, read) for carrier in different),
            hint="Look into the directory, which is kept, with `tidelog bucket verify`.",
        )
    found = {(record.partition, record.offset): record.value for record in records}
    if misplaced := [position for half in sent for position, value in half.values.items() if found.get(position) != value]:
        raise DemoFailed(f"{len(misplaced):,} acknowledgements named another offset than that of their record")
    if sum(len(half.values) for half in sent) != len(records):
        raise DemoFailed("two acknowledgements named the same offset")


def _difference(carrier: str, rows: Mapping[str, list[bytes]], read: Mapping[str, list[bytes]]) -> str:
    sent, found = Counter(rows.get(carrier, ())), Counter(read.get(carrier, ()))
    missing, more = (sent - found).total(), (found - sent).total()
    what = f"{missing:,} missing or changed, {more:,} doubled or changed" if missing or more else "out of order"
    return f"{carrier}: {sent.total():,} rows sent, {found.total():,} read: {what}"


# ── Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _with_spark(
    broker: BrokerProcess, bucket_url: str, segment_bytes: int, chart: Path, watch: Watch
) -> list[HourOfDay] | None:
    """Returns None, and says why, if Spark can't be run here. If it fails, names the command that finishes without the demo."""
    if what := missing():
        watch.say("spark", f"left out, since {what}")
        return None
    try:
        with watch.elapsed("compact"):
            partitions = await compact_part(broker.data_dir, segment_bytes=segment_bytes)
        watch.say(
            "compact",
            f"{partitions} of {PARTITIONS} partitions are Parquet now, the rest are segments: Spark reads both, without a broker",
        )
        watch.say("spark", f"runs now, for one to ten minutes: {pipeline_command(bucket_url, chart)}")
        started_s = time.perf_counter()
        with watch.elapsed("spark"):
            hours = await delays_with_spark(bucket_url, chart, scratch=broker.data_dir / "spark")
    except NoSpark as missing_java:
        watch.say("spark", f"left out: {missing_java}")
        return None
    except (SparkFailed, OSError) as error:
        watch.say("finish", pipeline_command(bucket_url, chart, python=sys.executable))
        if isinstance(error, SparkFailed):
            raise
        raise SparkFailed(f"Spark could not be run: {error}") from error
    rows = sum(hour["flights"] for hour in hours)
    watch.say("spark", f"read {rows:,} rows and drew {chart}, in {time.perf_counter() - started_s:.0f} s with its start")
    return hours


def check_delays(read_back: Sequence[HourOfDay], by_spark: Sequence[HourOfDay]) -> None:
    """Raises DemoFailed unless Spark read from the bucket what was read through the broker."""
    if different := [row for row in (*read_back, *by_spark) if (row in read_back) != (row in by_spark)]:
        raise DemoFailed(
            "the delays that Spark computed from the bucket are not those of the rows that were read back",
            hint=f"They differ at {different[0]['hour']}:00.",
        )
    if len(read_back) != len(by_spark):
        raise DemoFailed("Spark has an hour twice")


# ── its directory ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Files:
    """The directory of the broker's files, and whether it stays."""

    directory: Path
    keep: bool


@contextmanager
def _directory(data_dir: Path | None, keep: bool, watch: Watch) -> Iterator[_Files]:
    """Makes the directory of the broker's files, which stays if the demo fails. InvalidArgument if the chosen one is not empty."""
    if data_dir is None:
        directory = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    else:
        directory = data_dir
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise InvalidArgument(f"{directory} is not empty", hint="Name an empty directory, or leave --data-dir out.")
    files = _Files(directory, keep)
    try:
        yield files
    except (DemoFailed, SparkFailed):
        files.keep = True
        raise
    finally:
        if files.keep:
            watch.say("kept", f"{directory}; look into it: tidelog bucket verify --deep --data-dir {directory / 'data'}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
            watch.say("removed", f"{directory}, and the log in it; to look into one: tidelog demo --keep")
