"""A hundred readers of the same tail: each gets all of it, and the bucket is asked no more often than by one.

At the tail they read what one producer sends at a steady pace. Then the broker restarts, with nothing in memory, and they read a
topic from its beginning, all at once: the kernel counts what the broker reads for one reader and for a hundred.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from bench.batches import produce_request, record_batch, records_in
from bench.broker import Served, broker
from bench.bucket_reads import bucket_reads
from bench.figures import Figure, Target, number
from bench.grpc_client import produce
from bench.load import ClientProcess, Load, client_process
from bench.readers import Read, follow_all
from bench.run import Run

READERS = (1, 10, 100)
PARTITIONS = 6
BATCH_BYTES = 64 << 10
# In: so a hundred readers get 50 MB/s.
MB_PER_SECOND = 0.5
# That are produced for each second of a measurement.
SECONDS_PER_SECOND = 4.0
OUT_OF_IN_MIN = 0.95
# Of all cores: then a rate that falls short is the machine's.
FULL = 0.9
CONNECTIONS, WINDOW = 1, 8
QUIET_S = 1.0


# Batches: 10 MB/s, in some hundred objects.
HISTORY_PER_SECOND = 160.0
# Footers, and what else a broker reads by the clock, come in once for all.
READ_MAX = 1.1


@dataclass(frozen=True, slots=True)
class Tail:
    readers: int
    mb_in_per_second: float
    # What the slowest reader got, of what came in meanwhile.
    out_of_in: float
    # The last reader's last byte after the last acknowledgement.
    behind_ms: float
    gets: int
    broker_cores: float
    # Of all cores, what was busy, by any process.
    machine: float


@dataclass(frozen=True, slots=True)
class History:
    gets: int
    # By the broker, of files.
    read_mb: float
    # To all readers together.
    mb_out_per_second: float


def measure(run: Run) -> list[Figure]:
    batch = record_batch(records_in(BATCH_BYTES))
    with broker(run, "tail-fan-out") as served, client_process() as reader:
        tails = [_tail(run, served, reader, batch, readers) for readers in READERS]
        load = Load(CONNECTIONS, WINDOW, run.seconds)
        served.create_topic("history", PARTITIONS)
        produced = run.client.run(
            produce, served.grpc_address, _requests("history", batch), load, requests_per_second=HISTORY_PER_SECOND
        )
        size_bytes = produced.requests * len(batch)
        one, many = (_history(served, reader, size_bytes, readers) for readers in (READERS[0], READERS[-1]))
    return [
        *(_out_of_in(tail) for tail in tails),
        Figure("GETs meanwhile", sum(tail.gets for tail in tails), "", Target(most=0), "the tail is read from memory"),
        Figure(
            f"GETs for {READERS[-1]} readers of what is in the bucket, against 1",
            many.gets / one.gets,
            "×",
            Target(most=1.0),
            f"{many.gets} and {one.gets} for {number(size_bytes / 1e6)} MB; {number(many.mb_out_per_second)} and "
            f"{number(one.mb_out_per_second)} MB/s out",
        ),
        Figure(
            "bytes that the broker read for them, likewise",
            round(many.read_mb / one.read_mb, 2),
            "×",
            Target(most=READ_MAX),
            f"{number(many.read_mb)} and {number(one.read_mb)} MB, by the kernel's count of each read",
        ),
    ]


def _out_of_in(tail: Tail) -> Figure:
    target = Target(least=OUT_OF_IN_MIN)
    is_full = tail.machine >= FULL and not target.holds(tail.out_of_in)
    note = (
        f"{number(tail.mb_in_per_second)} MB/s in; the last {number(tail.behind_ms)} ms after its acknowledgement; the broker "
        f"{number(tail.broker_cores)} cores, the machine {100 * tail.machine:.0f} % busy"
    )
    return Figure(
        f"{tail.readers} at the tail: out of the slowest against in",
        tail.out_of_in,
        "×",
        None if is_full else target,
        note,
    )


def _tail(run: Run, served: Served, reader: ClientProcess, batch: bytes, readers: int) -> Tail:
    topic = f"records-{readers}"
    served.create_topic(topic, PARTITIONS)
    load = Load(CONNECTIONS, WINDOW, run.seconds * SECONDS_PER_SECOND)
    pace = MB_PER_SECOND * 1e6 / len(batch)
    with bucket_reads(served.bucket) as reads:
        reading = reader.start(follow_all, served.grpc_address, topic, PARTITIONS, readers, quiet_s=QUIET_S)
        psutil.cpu_percent()
        cpu_s, started_s = served.cpu_seconds(), time.perf_counter()
        produced = run.client.run(produce, served.grpc_address, _requests(topic, batch), load, requests_per_second=pace)
        machine = psutil.cpu_percent() / 100
        broker_cores = (served.cpu_seconds() - cpu_s) / (time.perf_counter() - started_s)
        read = reading.result()
        reads.look()
    size_bytes = produced.requests * len(batch)
    _check(read, size_bytes)
    seconds_in = produced.last_answer_s - produced.first_answer_s
    slowest_s = max(each.last_answer_s - each.first_answer_s for each in read)
    behind_ms = (max(each.last_answer_s for each in read) - produced.last_answer_s) * 1000
    return Tail(
        readers, size_bytes / seconds_in / 1e6, round(seconds_in / slowest_s, 2), behind_ms, reads.gets, broker_cores, machine
    )


def _history(served: Served, reader: ClientProcess, size_bytes: int, readers: int) -> History:
    served.restart()
    before = served.read_bytes()
    with bucket_reads(served.bucket) as reads:
        read = reader.run(follow_all, served.grpc_address, "history", PARTITIONS, readers, quiet_s=QUIET_S)
        reads.look()
    _check(read, size_bytes)
    seconds = max(each.last_answer_s for each in read) - min(each.first_answer_s for each in read)
    return History(reads.gets, (served.read_bytes() - before) / 1e6, readers * size_bytes / seconds / 1e6)


def _check(read: list[Read], size_bytes: int) -> None:
    for each in read:
        if each.size_bytes != size_bytes:
            raise RuntimeError(f"{size_bytes} bytes went in, and {each.size_bytes} came out")


def _requests(topic: str, batch: bytes) -> list[bytes]:
    return [produce_request(topic, batch, range(partition, partition + 1)) for partition in range(PARTITIONS)]
