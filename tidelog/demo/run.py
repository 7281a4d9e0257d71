"""The demo: real rows over both doors, a broker killed in the middle, everything read back and compared row by row.

    rows ─▶ tidelog dev ◀─ half over HTTP, half over gRPC ─▶ kill -9 ─▶ look at the bucket ─▶ tidelog dev again
                             └──────── both ride over it ─────────────────────────────────┘
         ─▶ read back ─▶ the broker ends ─▶ compare ─▶ delays, records/s, latencies, PUTs, what the kill did
         ─▶ part becomes Parquet ─▶ Spark reads the bucket ─▶ compare ─▶ delays by the hour, a chart

It fails if one row is missing, doubled, changed or out of order within its key, if one acknowledgement told a wrong place, or if
Spark's delays are not those that are reckoned here. Without Java or PySpark it does without the last step, and says so.
What the kill did is shown before Spark starts, which may take long, and fail. However it ends, the broker's process is ended; its
directory is removed unless it is to be kept, or is needed to see what went wrong, or to finish without the demo.
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
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop
from rich.console import Console

from metadata.errors import InvalidArgument, TidelogError
from segments.object_store.interface import ObjectStore
from segments.object_store.open import open_store
from tidelog.client import connect
from tidelog.demo.bucket import Objects, committed_ends, count_objects, kill_at_next_segment
from tidelog.demo.comparison import compare
from tidelog.demo.delays import HourOfDay, delays_by_hour, differences, hours_table
from tidelog.demo.flights import Flights, halves, load_flights
from tidelog.demo.producers import Half, produce_over_grpc, produce_over_http
from tidelog.demo.report import (
    Kill,
    Watch,
    delays_table,
    figures_table,
    results_console,
    show,
    spark_line,
    story,
)
from tidelog.demo.spark import Delays, NoSpark, SparkFailed, compact_part, delays_with_spark, missing, pipeline_command
from tidelog.records import Record
from tidelog.tasks import first_error
from tidelog.testing.broker_process import BrokerProcess

TOPIC = "flights"
PARTITIONS = 6
ROWS_LEAST = 1_000
NEXT_SEGMENT_TIMEOUT_S = 2.0


class DemoFailed(TidelogError):
    """What the demo is there to show did not hold."""

    code = "DEMO_FAILED"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    rows: int | None = None
    """The first so many rows of the data set; None: all of them."""
    data_dir: Path | None = None
    """An empty directory for the broker's files; None: a temporary one."""
    keep: bool = False
    """Leave the directory there in the end."""
    spark: bool = True
    """Read the bucket with Spark in the end."""
    chart: Path = Path("tidelog-demo-delays.png")
    """What Spark read, as PNG. It stays, and replaces the one of the last time."""


def run_demo(options: DemoOptions) -> None:
    """Raises DemoFailed when a row was lost, doubled, changed or misplaced; other TidelogErrors when it can't run at all."""
    if options.rows is not None and options.rows < ROWS_LEAST:
        raise InvalidArgument(f"the demo needs {ROWS_LEAST:,} rows or more; {options.rows:,} are asked for")
    if options.spark and not missing() and (options.chart.is_dir() or not os.access(options.chart.parent, os.W_OK)):
        raise InvalidArgument(
            f"the chart can't be written to {options.chart}", hint="Name another file: --chart FILE; or leave Spark out: --no-spark"
        )
    watch = Watch(Console(stderr=True, highlight=False))
    logging.getLogger("tidelog").setLevel(logging.ERROR)  # the SDK warns of a broker that is away, which is the point here
    flights = load_flights(options.rows)
    broker_flags = ("--compact", "false")  # what is counted at the end are segments
    with _directory(options, watch) as directory, BrokerProcess(directory, flags=broker_flags) as broker:
        try:
            uvloop.run(_demo(flights, broker, watch, options))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # SIGTERM
        except BaseExceptionGroup as group:
            raise first_error(group) from group


async def _demo(flights: Flights, broker: BrokerProcess, watch: Watch, options: DemoOptions) -> None:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    row_count = len(flights.values)

    watch.say("rows", f"{row_count:,} flights out of New York in 2013, for {PARTITIONS} partitions")
    await asyncio.to_thread(broker.start)
    watch.say("broker", f"process {broker.pid} at {broker.http_url}")
    watch.say("produce", "half of the rows over each door, until they are acknowledged")
    async with connect(broker.http_url) as log:
        await log.topics.create(TOPIC, partitions=PARTITIONS)
        bucket = await open_store((await log.cluster()).bucket)
    try:
        sent, kill = await _produce(flights, broker, bucket, watch)
        started_s = time.perf_counter()
        read = await _read_back(broker, row_count, watch)
        read_s = time.perf_counter() - started_s
        await asyncio.to_thread(broker.stop)
        objects = await count_objects(bucket)
    finally:
        await bucket.close()

    check(flights, sent, read)
    console = results_console()
    watch.space()
    show(
        console,
        delays_table(_values_by_carrier(read), flights.airline_of, width=console.width),
        figures_table(sent, kill, read_rows=row_count, read_s=read_s),
        story(kill, objects, row_count),
    )
    if not options.spark:
        return
    watch.space()
    delays = await _with_spark(broker, bucket.url, objects, options, watch)
    if delays is not None:
        check_delays(delays_by_hour(record.value or b"" for record in read), delays.hours)
        watch.space()
        show(console, hours_table(delays.hours), spark_line(delays.chart))


# ── produce, and the kill ───────────────────────────────────────────────────────────────────────────────────────────────


async def _produce(flights: Flights, broker: BrokerProcess, bucket: ObjectStore, watch: Watch) -> tuple[list[Half], Kill]:
    """Each carrier goes through one door, so that its rows are sent in one order."""
    carriers_over_http, carriers_over_grpc = halves(Counter(flights.carriers))
    over_http = Half("HTTP, JSON", flights.of(carriers_over_http))
    over_grpc = Half("gRPC, SDK", flights.of(carriers_over_grpc))
    sent = [over_http, over_grpc]
    with watch.bars({half.door: (len(half.rows), partial(getattr, half, "acknowledged")) for half in sent}):
        async with asyncio.TaskGroup() as tasks:
            killing = tasks.create_task(_kill_in_the_middle(sent, broker, bucket, watch))
            tasks.create_task(_timed(over_http, produce_over_http(over_http, broker.http_url, TOPIC)))
            tasks.create_task(_timed(over_grpc, produce_over_grpc(over_grpc, broker.grpc_address, TOPIC)))
    return sent, killing.result()


async def _timed(half: Half, producing: Coroutine[Any, Any, None]) -> None:
    started_s = time.perf_counter()
    await producing
    half.seconds = time.perf_counter() - started_s


async def _kill_in_the_middle(sent: Sequence[Half], broker: BrokerProcess, bucket: ObjectStore, watch: Watch) -> Kill:
    """Waits until both halves flow and one is half-way; kills the broker; sees what the bucket holds; starts it again."""
    await asyncio.gather(*(half.begun.wait() for half in sent))
    await _first_of(half.half_way.wait() for half in sent)
    await asyncio.to_thread(_kill_before_the_answer, broker, Path(urlsplit(bucket.url).path))
    killed_s = time.perf_counter()
    ends = await committed_ends(bucket)
    lost = [place for half in sent for place in half.places if place[1] >= ends.get(place[0], 0)]
    if lost:
        partition, offset = lost[0]
        raise DemoFailed(
            f"{len(lost):,} acknowledged records are not on the bucket, the first at partition {partition}, offset {offset}"
        )
    kill = Kill(
        acknowledged=sum(half.acknowledged for half in sent),
        on_bucket=sum(ends.values()),
        under_way={half.door: half.under_way for half in sent},
        killed_s=killed_s,
        served_s=killed_s,
    )
    watch.say(
        "kill -9", f"process {broker.pid}, at {kill.acknowledged:,} acknowledged records; the producers go on", style="bold red"
    )
    await asyncio.to_thread(broker.start)
    served = replace(kill, served_s=time.perf_counter())
    watch.say("broker", f"process {broker.pid} serves in its place, {served.outage_s:.1f} s later")
    return served


async def _first_of(waiting: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Returns when one of them does, and ends the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _kill_before_the_answer(broker: BrokerProcess, bucket: Path) -> None:
    kill_at_next_segment(broker.pid, bucket, timeout_s=NEXT_SEGMENT_TIMEOUT_S)
    broker.kill()


# ── read back, and compare ──────────────────────────────────────────────────────────────────────────────────────────────


async def _read_back(broker: BrokerProcess, row_count: int, watch: Watch) -> list[Record]:
    records: list[Record] = []
    with watch.bars({"read back": (row_count, lambda: len(records))}):
        async with connect(broker.http_url) as log:
            consumer = log.consume(TOPIC, follow=False)
            while chunk := await consumer.chunk():
                records.extend(chunk)
    return records


def _values_by_carrier(records: Sequence[Record]) -> dict[str, list[bytes]]:
    """In the order of the offsets: a carrier's records lie in one partition."""
    found: dict[str, list[bytes]] = {}
    for record in records:
        found.setdefault((record.key or b"").decode(errors="replace"), []).append(record.value or b"")
    return found


def check(flights: Flights, sent: Sequence[Half], records: Sequence[Record]) -> None:
    """Raises DemoFailed unless each row is there once, unchanged, in order within its key, and where its acknowledgement said."""
    comparison = compare(flights.by_carrier(), _values_by_carrier(records))
    if not comparison.equal:
        raise DemoFailed(
            f"what was read back is not what was sent: {comparison}\n" + "\n".join(comparison.examples),
            hint="Look into the directory, which is kept, with `tidelog bucket verify`.",
        )
    read = {(record.partition, record.offset): record.value for record in records}
    misplaced = [place for half in sent for place, value in half.places.items() if read.get(place) != value]
    if misplaced:
        raise DemoFailed(f"{len(misplaced):,} acknowledgements told another place than that of their record")
    if sum(len(half.places) for half in sent) != len(records):
        raise DemoFailed("two acknowledgements told the same place")


# ── Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _with_spark(
    broker: BrokerProcess, bucket_url: str, objects: Objects, options: DemoOptions, watch: Watch
) -> Delays | None:
    """None where it can't be run here, which is told. Where it fails, tells the command that needs no demo round it."""
    if what := missing():
        watch.say("spark", f"left out, since {what}")
        return None
    try:
        with watch.elapsed("compact"):
            partitions = await compact_part(broker.data_dir, segment_bytes=objects.segment_bytes)
        watch.say(
            "compact",
            f"{partitions} of {PARTITIONS} partitions are Parquet now, the rest stays in segments; no broker runs any more",
        )
        watch.say("spark", pipeline_command(bucket_url, options.chart))
        started_s = time.perf_counter()
        with watch.elapsed("spark"):
            delays = await delays_with_spark(bucket_url, options.chart, scratch=broker.data_dir / "spark")
    except NoSpark as missing_java:
        watch.say("spark", f"left out: {missing_java}")
        return None
    except (SparkFailed, OSError) as error:
        watch.say("finish", pipeline_command(bucket_url, options.chart, python=sys.executable))
        if isinstance(error, SparkFailed):
            raise
        raise SparkFailed(f"Spark could not be run: {error}") from error
    rows = sum(hour.flights for hour in delays.hours)
    watch.say("spark", f"read {rows:,} rows and drew {delays.chart}, in {time.perf_counter() - started_s:.0f} s with its start")
    return delays


def check_delays(reckoned: Sequence[HourOfDay], by_spark: Sequence[HourOfDay]) -> None:
    """Raises DemoFailed unless Spark read from the bucket what was read through the broker."""
    if found := differences(reckoned, by_spark):
        raise DemoFailed(
            "the delays that Spark reckoned from the bucket are not those of the rows that were read back", hint=found[0]
        )


# ── its directory ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _directory(options: DemoOptions, watch: Watch) -> Iterator[Path]:
    """For the broker's files; they stay where the demo failed. InvalidArgument where the chosen one has files in it already."""
    if options.data_dir is None:
        directory = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    else:
        directory = options.data_dir
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise InvalidArgument(f"{directory} is not empty", hint="Name an empty directory, or leave --data-dir out.")
        except OSError as error:
            raise InvalidArgument(f"{directory} can't be used: {error.strerror}", hint="Name another directory.") from error
    keep = options.keep
    try:
        yield directory
    except (DemoFailed, SparkFailed):
        keep = True
        raise
    finally:
        if keep:
            watch.say("kept", f"{directory}; look into it: tidelog bucket verify --deep --data-dir {directory / 'data'}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
            watch.say("removed", f"{directory}, and the log in it; to look into one: tidelog demo --keep")
