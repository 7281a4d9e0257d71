"""Compaction's CPU work alone: record batches to verified Parquet beside Parquet's bare writer, and back to record batches.

The records are the demo's flights (JSON of about 300 B, keyed by carrier), in batches as a producer sends them: not compressed,
which is the SDK's default, and zstd. Figures are of CPU time, so those of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import Figure, Target, median, rates, spread
from bench.run import Run, alternate
from metadata.model import LeaderEpoch, Offset
from segments.history.manifest import EpochStart
from segments.history.parquet_file import HistoryWriter, ParquetSettings, WrittenFile, read_columns, verify_history
from segments.history.row_group_batches import encode_row_group
from segments.records.checksum import as_text, checksum_of_opened
from segments.records.columns import decode_batches, decode_opened, encode_batch, open_batches
from segments.records.compression import Codec
from tidelog.demo.flights import load_flights

# In a batch.
RECORDS = 1000
# Decoded in one call: as many as the compactor takes (compaction/conversion/partition_file.py, DECODED_AT_ONCE).
BATCHES = {Codec.NONE: 7, Codec.ZSTD: 12}
# Of all the flights, one way and the other: half a second each.
PAIRS = 3
BOUND = 1 << 26
TIMESTAMP_MS = 1_735_689_600_000
RATIO = Target(least=0.5)
SIZE = Target(most=0.6)
EPOCHS = [EpochStart(LeaderEpoch(0), Offset(0))]


def measure(run: Run) -> list[Figure]:
    plain = _flights(Codec.NONE)
    columns = pa.Table.from_batches([decode_batches(batches, decompressed_bytes_max=BOUND) for batches in plain]).combine_chunks()
    written = _compact(plain, {})
    figures = []
    for codec, calls in ((Codec.NONE, plain), (Codec.ZSTD, _flights(Codec.ZSTD))):
        figures += _compared(codec, calls, columns, written)
    figures.append(
        Figure(
            "Parquet, to the uncompressed records",
            written.file.size_bytes / written.file.record_bytes,
            "×",
            SIZE,
            f"bare pyarrow: {len(_bare(columns)) / written.file.record_bytes:.2f} ×; {len(written.file.row_groups)} row groups",
        )
    )
    return [*figures, *_read_back(written)]


def _flights(codec: Codec) -> list[list[bytes]]:
    flights = load_flights()
    keys = pa.array([carrier.encode() for carrier in flights.carriers], pa.binary())
    values = pa.array(flights.values, pa.binary())
    times = np.arange(TIMESTAMP_MS, TIMESTAMP_MS + len(values))
    starts = range(0, len(values), RECORDS)
    batches = [
        encode_batch(
            keys.slice(start, RECORDS),
            values.slice(start, RECORDS),
            timestamps_ms=times[start : start + RECORDS],
            base_offset=start,
            codec=codec,
        )
        for start in starts
    ]
    return [batches[start : start + BATCHES[codec]] for start in range(0, len(batches), BATCHES[codec])]


def _compared(codec: Codec, calls: Sequence[Sequence[bytes]], columns: pa.Table, written: WrittenFile) -> list[Figure]:
    spent: dict[str, float] = {}
    ours, bare = alternate(lambda: _cpu_s(lambda: _compact(calls, spent)), lambda: _cpu_s(lambda: _bare(columns)), rounds=PAIRS)
    megabytes = written.file.record_bytes / 1e6
    form = "batches" if codec is Codec.NONE else f"{codec.name.lower()} batches"
    shares = ", ".join(f"{part} {100 * seconds / sum(spent.values()):.0f} %" for part, seconds in spent.items())
    found = rates(megabytes, ours)
    ratio = median(theirs / mine for mine, theirs in zip(ours, bare, strict=True))
    return [
        Figure(f"{form} to verified Parquet", median(found), "MB/s per core", note=f"{shares}; {spread(found)}"),
        Figure(
            f"{form} to verified Parquet: to bare write_table of the columns",
            ratio,
            "×",
            RATIO if codec is Codec.NONE else None,
            f"{median(rates(megabytes, bare)):.0f} MB/s per core",
        ),
    ]


def _compact(calls: Sequence[Sequence[bytes]], spent: dict[str, float]) -> WrittenFile:
    """What a compactor does of the batches of one partition; the CPU seconds of each part are added to `spent`."""

    def timed(part: str, started_s: float) -> float:
        now_s = time.process_time()
        spent[part] = spent.get(part, 0.0) + now_s - started_s
        return now_s

    writer = HistoryWriter("flights", 0, ParquetSettings())
    total = 0
    now_s = time.process_time()
    for batches in calls:
        opened = open_batches(batches, decompressed_bytes_max=BOUND)
        now_s = timed("decompress", now_s)
        _, checksum = checksum_of_opened(opened)
        total += checksum
        now_s = timed("checksum", now_s)
        columns = decode_opened(opened)
        now_s = timed("columns", now_s)
        writer.append(columns, checksum=checksum)
        now_s = timed("Parquet", now_s)
    written = writer.finish("flights.parquet")
    now_s = timed("Parquet", now_s)
    verify_history(written.body, written.file)
    timed("verify", now_s)
    assert written.file.checksum == as_text(total)
    return written


def _bare(columns: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(columns, sink, compression="zstd")
    return sink.getvalue()


def _read_back(written: WrittenFile) -> list[Figure]:
    def ours() -> None:
        for columns in read_columns(written.body, written.file):
            encode_row_group(columns, end_offset=written.file.last_offset + 1, epochs=EPOCHS)

    def bare() -> None:
        file = pq.ParquetFile(pa.BufferReader(written.body))
        for index in range(file.num_row_groups):
            file.read_row_group(index, use_threads=False)

    found, theirs = alternate(lambda: _cpu_s(ours), lambda: _cpu_s(bare), rounds=PAIRS)
    megabytes = written.file.record_bytes / 1e6
    ratio = median(other / mine for mine, other in zip(found, theirs, strict=True))
    note = f"{median(rates(megabytes, theirs)):.0f} MB/s per core"
    return [
        Figure("Parquet to record batches", median(rates(megabytes, found)), "MB/s per core", note=spread(rates(megabytes, found))),
        Figure("Parquet to record batches: to pyarrow's reading", ratio, "×", RATIO, note),
    ]


def _cpu_s(call: Callable[[], object]) -> float:
    started_s = time.process_time()
    call()
    return time.process_time() - started_s
