"""Three brokers on this machine beside one: what a producer gets through the SDK.

Each broker writes as often as it would to S3. On a disk without that bound, three write three times as often as one, in segments of
a third of the size, and the figure is the disk's.
"""

from __future__ import annotations

from bench.cluster import BROKERS, LIKE_S3, ServedCluster, cluster
from bench.etcd_server import etcd
from bench.figures import Figure, Target, median, spread
from bench.run import Run, alternate
from bench.sdk_client import produce_for

PARTITIONS = 12
VALUE_BYTES = 1_000


def measure(run: Run) -> list[Figure]:
    def rate(served: ServedCluster) -> tuple[float, float]:
        """MB/s of values, all of which are acknowledged, and milliseconds of the brokers' CPU for each MB."""
        cpu_s = served.cpu_seconds()
        sent = run.client.run(produce_for, served.urls, "records", PARTITIONS, value_bytes=VALUE_BYTES, seconds=run.seconds)
        megabytes_per_second = sent.records_per_second * VALUE_BYTES / 1e6
        return megabytes_per_second, (served.cpu_seconds() - cpu_s) * 1000 / (sent.records * VALUE_BYTES / 1e6)

    with (
        run.new_directory("three-brokers-etcd") as directory,
        etcd(directory) as shared,
        cluster(run, "one", broker_ids=BROKERS[:1], shared=shared, flags=LIKE_S3) as one,
        cluster(run, "three", shared=shared, flags=LIKE_S3) as three,
    ):
        for served in (one, three):
            served.create_topic("records", PARTITIONS)
        measured = alternate(lambda: rate(one), lambda: rate(three))
    by_one, by_three = ([megabytes_per_second for megabytes_per_second, _ in side] for side in measured)
    cpu_of_one, cpu_of_three = (median(cpu_ms for _, cpu_ms in side) for side in measured)
    ratios = [of_three / of_one for of_one, of_three in zip(by_one, by_three, strict=True)]
    return [
        Figure("three brokers against one", median(ratios), "×", Target(least=1.0), spread(ratios)),
        Figure("three brokers", median(by_three), "MB/s", note=f"{spread(by_three)}; values of {VALUE_BYTES:,} B, one client"),
        Figure("one broker", median(by_one), "MB/s", note=spread(by_one)),
        Figure("CPU of three brokers", cpu_of_three, "ms/MB", note=f"of one {cpu_of_one:.2f} ms/MB"),
    ]
