"""A broker without requests: no request to the bucket, hardly any CPU, little memory."""

from __future__ import annotations

import time

from bench.batches import produce_request, record_batch
from bench.broker import broker
from bench.figures import Figure, Target
from bench.grpc_client import produce
from bench.load import Load
from bench.run import Run

PARTITIONS = 100
SETTLE_S = 2.0
# Idle seconds that are watched for each second of a measurement: CPU below 1 % needs time to be seen.
WATCHED_PER_SECOND = 4.0


def measure(run: Run) -> list[Figure]:
    """After it has served something, since a broker that never did has everything still to load."""
    requests = [produce_request("records", record_batch(10), range(partition, partition + 1)) for partition in range(PARTITIONS)]
    with broker(run, "idle") as served:
        served.create_topic("records", PARTITIONS)
        run.client.run(produce, served.grpc_address, requests, Load(1, 8, 0.5))
        time.sleep(SETTLE_S)
        puts, cpu_s, started_s = served.put_count(), served.cpu_seconds(), time.perf_counter()
        time.sleep(run.seconds * WATCHED_PER_SECOND)
        seconds = time.perf_counter() - started_s
        return [
            Figure("PUTs", served.put_count() - puts, "", Target(most=0), f"in {seconds:.0f} s"),
            Figure("CPU", (served.cpu_seconds() - cpu_s) / seconds * 100, "% of a core", Target(most=1)),
            Figure("memory (RSS)", served.rss_mib(), "MiB", Target(most=200), f"{PARTITIONS} partitions, after some records"),
        ]
