"""A topic whose records all lie in Parquet, in a broker that has next to none of them in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bench.batches import produce_request
from bench.broker import Served, broker
from bench.grpc_client import produce
from bench.load import Load
from bench.run import Run
from segments.bucket.layout import parse_topic_key
from segments.history.manifest import Manifest, decode_manifest
from segments.records.columns import encode_batch
from tidelog import connect_sync

TOPIC = "history"
RECORDS = 2_400
VALUE_BYTES = 100
COMPACTED_WITHIN_S = 60.0
# At least, beyond that.
COMPACTED_MB_PER_S = 20.0
_AT_ONCE = ("--compaction-interval-ms", "500", "--compaction-due-age-ms", "500")


class History(NamedTuple):
    served: Served
    # Of each partition.
    manifests: list[Manifest]
    # What the broker takes that has not read anything yet.
    idle_mib: float

    @property
    def end_offsets(self) -> list[int]:
        return [manifest.compacted_to for manifest in self.manifests]

    @property
    def megabytes(self) -> float:
        """Of keys and values."""
        return sum(file.record_bytes for manifest in self.manifests for file in manifest.files) / 1e6

    def files(self) -> list[Path]:
        folder = next(self.served.bucket.glob(f"topics/{TOPIC}/*"))
        return [folder / f"partition={each.partition}" / file.name for each in self.manifests for file in each.files]


@contextmanager
def compacted_history(
    run: Run, name: str, *, partitions: int, megabytes: float, flags: tuple[str, ...], on_s3: bool = False
) -> Iterator[History]:
    """Yields a broker that was restarted after at least `megabytes` of values had been compacted."""
    requests = [produce_request(TOPIC, _record_batch(seed), range(seed % partitions, seed % partitions + 1)) for seed in range(16)]
    with broker(run, name, flags=(*flags, *_AT_ONCE), on_s3=on_s3) as served:
        served.create_topic(TOPIC, partitions)
        while served.records_in(TOPIC) * VALUE_BYTES < megabytes * 1e6:
            run.client.run(produce, served.grpc_address, requests, Load(1, 8, seconds=0.5))
        manifests = _manifests(served, within_s=COMPACTED_WITHIN_S + megabytes / COMPACTED_MB_PER_S)
        served.restart(flags=("--compact", "false"))  # neither what it took to write all this, nor merges, are what is measured
        os.sync()  # nor what the disk has still to write of it, behind which each fsync would wait
        yield History(served, manifests, served.rss_mib())


def _record_batch(seed: int) -> bytes:
    """Records of now (older ones would go by retention), with keys that come again, and values of which zstd saves about half."""
    random = np.random.default_rng(seed)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[random.integers(0, 16, (RECORDS, VALUE_BYTES))]
    ends = np.arange(RECORDS + 1, dtype=np.int32) * VALUE_BYTES
    values = pa.Array.from_buffers(pa.binary(), RECORDS, [None, pa.py_buffer(ends), pa.py_buffer(digits)])
    keys = pa.array([b"customer-%05d" % number for number in random.integers(0, 10_000, RECORDS)], pa.binary())
    return encode_batch(keys, values, timestamps_ms=np.full(RECORDS, int(time.time() * 1000), np.int64))


def _manifests(served: Served, *, within_s: float) -> list[Manifest]:
    """Those that have all of the topic's records, in the order of the partitions."""
    with connect_sync(served.http_url) as log:
        ends = {partition: offsets.high_watermark for partition, offsets in log.offsets(TOPIC).items()}
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        found: dict[int, Manifest] = {}
        for path in sorted(served.bucket.glob(f"topics/{TOPIC}/*/_log/*/*")):
            key = str(path.relative_to(served.bucket))
            parsed = parse_topic_key(key)
            if parsed is not None and parsed.manifest is not None:
                found[parsed.manifest.partition] = decode_manifest(path.read_bytes(), key=key)
        if {partition: manifest.compacted_to for partition, manifest in found.items()} == ends:
            return [found[partition] for partition in sorted(found)]
        time.sleep(0.2)
    raise RuntimeError(f"{sum(ends.values())} records were not compacted within {within_s:g} s")
