"""Measures what a Fetch of the Kafka listener costs a broker, by where the records are. Its client needs no Java.

    tail       the newest records, which the tail cache holds: read several times
    segments   older records, which are in segments on the bucket and no longer in memory: read once
    Parquet    compacted records, after a restart: read once

Six partitions, records of 100 B. CPU is user and system time of the broker's process, so other work on the machine shows little.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.batches import record_batch, records_in
from bench.broker import Served, broker
from bench.compacted_history import TOPIC, compacted_history
from bench.figures import Figure, median, spread
from bench.kafka_client import Received, end_offsets, produce_all, read_all
from bench.run import Run

PARTITIONS = 6
BATCH_BYTES = (64 << 10, 16 << 10, 1 << 20)
ROUNDS = 3
TAIL_MEGABYTES, TAIL_READS = 40.0, 10
# More than the tail cache holds, so that nothing of the first part is in memory.
SEGMENT_MEGABYTES, NEWER_MEGABYTES = 100.0, 75.0
HISTORY_MEGABYTES = 120
MB = 1e6


def measure(run: Run) -> list[Figure]:
    """A bucket in a local directory."""
    return list(_measured(run, on_s3=False))


def measure_on_s3(run: Run) -> list[Figure]:
    """A bucket of an S3 server on this machine."""
    return list(_measured(run, on_s3=True))


def _measured(run: Run, *, on_s3: bool) -> Iterator[Figure]:
    with broker(run, "kafka-fetch", flags=("--compact", "false"), on_s3=on_s3) as served:
        for batch_bytes in BATCH_BYTES:
            yield from _of_batches(run, served, batch_bytes)
    with compacted_history(
        run, "kafka-fetch-history", partitions=PARTITIONS, megabytes=HISTORY_MEGABYTES, flags=(), on_s3=on_s3
    ) as history:
        rates, notes = [], ""
        for _ in range(ROUNDS):
            rate, received = _rate(run, history.served, TOPIC, [0] * PARTITIONS, history.end_offsets)
            rates.append(rate)
            notes = _shape(received)
        yield Figure("Parquet", median(rates), "MB/CPU-s", note=f"{spread(rates)}; {notes}")


def _of_batches(run: Run, served: Served, batch_bytes: int) -> Iterator[Figure]:
    batch = record_batch(records_in(batch_bytes))
    name = f"batches of {batch_bytes >> 10} KiB"
    produced, tails, segments = [], [], []
    tail_shape = segment_shape = ""
    for turn in range(ROUNDS):
        topic = f"kafka-fetch-{batch_bytes}-{turn}"
        served.create_topic(topic, PARTITIONS)
        write = partial(_write, run, served, topic, batch)
        begun_s = served.cpu_seconds()
        written = write(SEGMENT_MEGABYTES)
        produced.append(written / MB / (served.cpu_seconds() - begun_s))
        behind = run.client.run(end_offsets, served.kafka_address, topic, PARTITIONS)
        write(NEWER_MEGABYTES - TAIL_MEGABYTES)
        tail = run.client.run(end_offsets, served.kafka_address, topic, PARTITIONS)
        write(TAIL_MEGABYTES)
        ends = run.client.run(end_offsets, served.kafka_address, topic, PARTITIONS)
        rate, received = _rate(run, served, topic, tail, ends, rounds=TAIL_READS)
        tails.append(rate)
        tail_shape = _shape(received)
        rate, received = _rate(run, served, topic, [0] * PARTITIONS, behind)
        segments.append(rate)
        segment_shape = _shape(received)
    yield Figure(f"produce, {name}", median(produced), "MB/CPU-s", note=spread(produced))
    yield Figure(f"tail, {name}", median(tails), "MB/CPU-s", note=f"{spread(tails)}; {tail_shape}")
    yield Figure(f"segments, {name}", median(segments), "MB/CPU-s", note=f"{spread(segments)}; {segment_shape}")


def _write(run: Run, served: Served, topic: str, batch: bytes, megabytes: float) -> int:
    """Writes about so many megabytes, and returns the bytes."""
    requests = max(1, round(megabytes * MB / len(batch) / PARTITIONS))
    run.client.run(produce_all, served.kafka_address, topic, batch, PARTITIONS, requests)
    return requests * len(batch) * PARTITIONS


def _rate(run: Run, served: Served, topic: str, begins: list[int], ends: list[int], *, rounds: int = 1) -> tuple[float, Received]:
    """Megabytes of batches that were read for a second of the broker's CPU."""
    begun_s = served.cpu_seconds()
    received = run.client.run(read_all, served.kafka_address, topic, begins, ends, rounds=rounds)
    return received.payload_bytes / MB / (served.cpu_seconds() - begun_s), received


def _shape(received: Received) -> str:
    return f"{received.payload_bytes / received.requests / (1 << 10):,.0f} KiB an answer"
