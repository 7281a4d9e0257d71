"""A reader of history through the broker, beside pyarrow that reads the same Parquet files from the same directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc.aio
import pyarrow.parquet as pq
import uvloop

from bench.compacted_history import TOPIC, compacted_history
from bench.figures import Figure, Target, median, spread
from bench.grpc_client import OPTIONS
from bench.run import ROUNDS, Run
from gateway.proto import log_pb2

MEGABYTES = 120
# Room for the row group that is read and the next: nothing is found in memory that was read in a round before.
POOLS = ("--tail-cache-bytes-max", "1MiB", "--read-cache-bytes-max", "40MiB")


def measure(run: Run) -> list[Figure]:
    peak_mib: list[float] = []
    with compacted_history(run, "history-reads", partitions=1, megabytes=MEGABYTES, flags=POOLS) as history:
        files = history.files()

        def through_the_broker() -> float:
            seconds = run.client.run(read_all, history.served.grpc_address, history.end_offsets[0])
            peak_mib.append(history.served.rss_mib())
            return seconds

        rounds = [
            (
                through_the_broker(),
                run.client.run(read_with_pyarrow, files, threads=False),
                run.client.run(read_with_pyarrow, files, threads=True),
            )
            for _ in range(1 + ROUNDS)
        ][1:]
    ours, one_thread, all_cores = zip(*rounds, strict=True)
    ratios = [their / our for our, their in zip(ours, one_thread, strict=True)]
    ratios_on_all_cores = [their / our for our, their in zip(ours, all_cores, strict=True)]
    megabytes = history.megabytes
    return [
        Figure("history through the broker, against pyarrow", round(median(ratios), 2), "×", Target(least=0.5), spread(ratios)),
        Figure(
            "the same, against pyarrow on all cores", round(median(ratios_on_all_cores), 2), "×", None, spread(ratios_on_all_cores)
        ),
        Figure("through the broker", megabytes / median(ours), "MB/s", note=f"{megabytes:,.0f} MB of keys and values"),
        Figure("with pyarrow", megabytes / median(one_thread), "MB/s", note="one thread"),
        Figure(
            "memory that it takes in the broker",
            max(peak_mib) - history.idle_mib,
            "MiB",
            note="after a reader: pools 41, reads in flight 96, answers on their way",
        ),
    ]


def read_all(address: str, end_offset: int) -> float:
    """Seconds that a reader takes which asks for 4 MiB at a time, as record batches. Runs in the client's process."""

    async def run() -> float:
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            await channel.channel_ready()
            fetch: Any = channel.unary_unary("/tidelog.v1.Log/Fetch", response_deserializer=log_pb2.FetchResponse.FromString)
            started_s = time.perf_counter()
            offset = 0
            while offset < end_offset:
                asked = log_pb2.FetchPartition(topic=TOPIC, partition=0, offset=offset, max_bytes=4 << 20)
                request = log_pb2.FetchRequest(partitions=[asked], max_bytes=4 << 20, min_bytes=1, max_wait_ms=1_000)
                [found] = (await fetch(request.SerializeToString(), timeout=30)).partitions
                if found.HasField("error") or found.next_offset <= offset:
                    raise RuntimeError(f"the broker answered at offset {offset}: {found.error.message or 'nothing'}")
                offset = found.next_offset
            return time.perf_counter() - started_s

    return uvloop.run(run())


def read_with_pyarrow(files: list[Path], *, threads: bool) -> float:
    """Seconds for all columns of all rows. Without `threads` it takes one, as the broker does to decode a history on two cores;
    `pyarrow.parquet.read_table` would take more, with any settings, to read ahead."""
    started_s = time.perf_counter()
    for file in files:
        with pq.ParquetFile(file, pre_buffer=threads) as parquet:
            parquet.read(use_threads=threads)
    return time.perf_counter() - started_s
