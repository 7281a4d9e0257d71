"""What counting for /metrics costs: processor time of a broker for a request, beside that of one that counts nothing.

Processor time and not throughput, which says less on a busy machine. The worst case is one record in a JSON request: all that is
counted is counted for a single record then.
"""

from __future__ import annotations

import msgspec

from bench.batches import MESSAGE_BYTES_MAX, produce_request, record_batch, records_in
from bench.broker import Served, broker
from bench.figures import Figure, Target, median, spread
from bench.grpc_client import produce
from bench.http_client import post, post_request
from bench.load import Load
from bench.run import Run, alternate

PARTITIONS = 6
CONNECTIONS = 16
STREAMS, WINDOW = 4, 8


def measure(run: Run) -> list[Figure]:
    body = msgspec.json.encode({"records": [{"value": "x" * 100}]})
    batch = record_batch(records_in(MESSAGE_BYTES_MAX))
    batches = [produce_request("batches", batch, range(partition, partition + 1)) for partition in range(PARTITIONS)]

    def small(served: Served) -> float:
        request = post_request(served.http_url, "/v1/topics/small/records", body, "application/json")
        began_s = served.cpu_seconds()
        outcome = run.client.run(post, served.http_url, request, Load(CONNECTIONS, 1, run.seconds))
        return (served.cpu_seconds() - began_s) / outcome.requests

    def large(served: Served) -> float:
        began_s = served.cpu_seconds()
        outcome = run.client.run(produce, served.grpc_address, batches, Load(STREAMS, WINDOW, run.seconds))
        return (served.cpu_seconds() - began_s) / outcome.requests

    with broker(run, "counts") as counts, broker(run, "counts-nothing", module="bench.uncounted_broker") as counts_nothing:
        for served in (counts, counts_nothing):
            served.create_topic("small", PARTITIONS)
            served.create_topic("batches", PARTITIONS)
        with_small, without_small = alternate(lambda: small(counts), lambda: small(counts_nothing))
        with_large, without_large = alternate(lambda: large(counts), lambda: large(counts_nothing))
    figures = []
    for name, ours, bare in (
        ("one record in a JSON request", with_small, without_small),
        ("batches of 1 MiB over gRPC", with_large, without_large),
    ):
        ratios = [a / b for a, b in zip(ours, bare, strict=True)]
        note = f"{spread(ratios)}; {median(ours) * 1e6:.0f} µs of the processor beside {median(bare) * 1e6:.0f}"
        figures.append(Figure(name, median(ratios), "×", Target(most=1.02), note))
    return figures
