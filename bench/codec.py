"""The codec alone: record batches to Arrow columns and to tuples, and back, beside aiokafka's compiled codec in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from bench.figures import Figure, Target, median, spread
from bench.run import Run, alternate
from segments.records.batch import check_produced
from segments.records.batch_kernel import COMPILED
from segments.records.columns import decode_batches, encode_batch, encode_records, iterate_records
from segments.records.compression import Codec

# In a batch.
RECORDS = 1000
# In one call of the decoder.
BATCHES = 8
# Million records of 100 B a second, each way between batches and columns.
TARGET = Target(least=5.0)
BOUND = 1 << 24
TIMESTAMP_MS = 1_735_689_600_000
# One measurement of a few seconds is cut into so many: there are many pairs to compare.
SLICES_PER_RUN = 40


def measure(run: Run) -> list[Figure]:
    seconds = run.seconds / SLICES_PER_RUN
    return [*_figures("100 B", 100, seconds, TARGET), *_figures("1 KiB", 1024, seconds, None)]


def _figures(size: str, value_bytes: int, seconds: float, target: Target | None) -> list[Figure]:
    keys = pa.nulls(RECORDS, pa.binary())
    values = pa.array([b"%0*d" % (value_bytes, row) for row in range(RECORDS)], pa.binary())
    times = np.arange(TIMESTAMP_MS, TIMESTAMP_MS + RECORDS)
    batch = encode_batch(keys, values, timestamps_ms=times)
    batches = [batch] * BATCHES
    records = [
        (key, value, headers, time_ms) for _, time_ms, key, value, headers in iterate_records(batch, decompressed_bytes_max=BOUND)
    ]

    def rate(records_per_call: int, call: Callable[[], object]) -> Callable[[], float]:
        return lambda: _millions_per_second(records_per_call, call, seconds)

    def compared(what: str, ours: Callable[[], float], theirs: Callable[[], float], bound: Target | None) -> list[Figure]:
        found, aiokafka = alternate(ours, theirs)
        ratio = median(mine / other for mine, other in zip(found, aiokafka, strict=True))
        form = "" if COMPILED else " · the kernel is not compiled"
        return [
            Figure(f"{what}, {size}", median(found), "M records/s", bound, spread(found) + form),
            Figure(f"{what}, {size}: to aiokafka", ratio, "×", note=f"{median(aiokafka):.2f} M records/s"),
        ]

    aiokafka_reads = rate(RECORDS, lambda: list(DefaultRecordBatch(batch)))
    aiokafka_writes = rate(RECORDS, lambda: _aiokafka_encode(records))
    checks = rate(RECORDS, lambda: check_produced(batch, message_bytes_max=BOUND, decompressed_bytes_max=BOUND))
    return [
        *compared(
            "batches to columns",
            rate(RECORDS * BATCHES, lambda: decode_batches(batches, decompressed_bytes_max=BOUND)),
            aiokafka_reads,
            target,
        ),
        *compared(
            "columns to a batch", rate(RECORDS, lambda: encode_batch(keys, values, timestamps_ms=times)), aiokafka_writes, target
        ),
        *compared(
            "a batch to tuples", rate(RECORDS, lambda: iterate_records(batch, decompressed_bytes_max=BOUND)), aiokafka_reads, None
        ),
        *compared("tuples to a batch", rate(RECORDS, lambda: encode_records(records, codec=Codec.NONE)), aiokafka_writes, None),
        Figure(f"a produced batch checked, {size}", median(checks() for _ in range(3)), "M records/s"),
    ]


def _aiokafka_encode(records: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]]) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=BOUND,
    )
    for row, (key, value, _, time_ms) in enumerate(records):
        builder.append(row, timestamp=time_ms, key=key, value=value, headers=[])
    return bytes(builder.build())


def _millions_per_second(records_per_call: int, call: Callable[[], object], seconds: float) -> float:
    calls = 0
    started_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started_s) < seconds:
        call()
        calls += 1
    return calls * records_per_call / elapsed_s / 1e6
