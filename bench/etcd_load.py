"""What a cluster asks of etcd, and of the bucket: at rest, and while it is produced to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from bench.bucket_reads import bucket_reads
from bench.cluster import BROKERS, ServedCluster, cluster
from bench.figures import Figure, Target, number
from bench.run import Run
from bench.sdk_client import produce_for

PARTITIONS = 100
VALUE_BYTES = 1_000
SETTLE_S = 3.0
# Seconds that are watched for each second of a measurement: a lease is renewed every three.
WATCHED_PER_SECOND = 8.0
# A renewal more or less falls into the time of load; a request for each produce would be 1, for each segment 0.01.
PER_PRODUCE_MAX = 0.001
# A second: each broker renews its lease and reads its key every three; looks whether etcd lives and is the same every two.
AT_REST_MAX = 6.0


def measure(run: Run) -> list[Figure]:
    watched_s = run.seconds * WATCHED_PER_SECOND
    with cluster(run, "etcd-load") as served:
        served.create_topic("records", PARTITIONS)
        run.client.run(produce_for, served.urls, "records", PARTITIONS, value_bytes=VALUE_BYTES, seconds=0.5)
        time.sleep(SETTLE_S)
        objects = _objects(served)
        with bucket_reads(served.bucket) as reads:
            at_rest, rest_s = _asked(served, lambda: time.sleep(watched_s))
            reads.look()
        puts = _objects(served) - objects
        records = 0

        def load() -> None:
            nonlocal records
            sent = run.client.run(produce_for, served.urls, "records", PARTITIONS, value_bytes=VALUE_BYTES, seconds=watched_s)
            records = sent.records

        objects = _objects(served)
        under_load, load_s = _asked(served, load)
        segments = _objects(served) - objects
    more = under_load.total() - at_rest.total() / rest_s * load_s
    per_second = at_rest.total() / rest_s
    return [
        Figure(
            "requests to etcd for each record, beyond rest",
            max(0.0, more) / records,
            "",
            Target(most=PER_PRODUCE_MAX),
            f"{under_load.total():,} in {load_s:.0f} s with {records:,} records, {segments:,} objects: {_by_method(under_load)}",
        ),
        Figure(
            f"requests to etcd at rest, of {len(BROKERS)} brokers",
            per_second,
            "1/s",
            Target(most=AT_REST_MAX),
            f"{at_rest.total():,} in {rest_s:.0f} s: {_by_method(at_rest)}",
        ),
        Figure("PUTs at rest", puts, "", Target(most=0), f"in {rest_s:.0f} s"),
        Figure("GETs and listings at rest", reads.gets + reads.listings, "", Target(most=0), f"{number(reads.gets)} of them GETs"),
    ]


def _asked(served: ServedCluster, work: Callable[[], object]) -> tuple[Counter[str], float]:
    """What etcd was asked meanwhile, and how long that was."""
    before, started_s = served.etcd.requests(), time.monotonic()
    work()
    return served.etcd.requests() - before, time.monotonic() - started_s


def _by_method(asked: Counter[str]) -> str:
    return ", ".join(f"{method} {count:,}" for method, count in asked.most_common()) or "none"


def _objects(served: ServedCluster) -> int:
    return sum(path.is_file() for path in served.bucket.rglob("*") if ".tmp" not in path.parts)
