"""Durable produce over gRPC streams with ready record batches of 1 MiB, beside the floor."""

from __future__ import annotations

from bench.batches import MESSAGE_BYTES_MAX, produce_request, record_batch, records_in
from bench.broker import broker
from bench.figures import Figure, Target, median, spread
from bench.floor import floor_server, produce_to_floor
from bench.grpc_client import produce
from bench.load import Load, Outcome
from bench.run import Run, alternate

PARTITIONS = 6
CONNECTIONS = 4
WINDOW = 8


def measure(run: Run) -> list[Figure]:
    record_count = records_in(MESSAGE_BYTES_MAX)
    batch = record_batch(record_count)
    requests = [produce_request("records", batch, range(partition, partition + 1)) for partition in range(PARTITIONS)]
    load = Load(CONNECTIONS, WINDOW, run.seconds)

    def on_the_floor() -> Outcome:
        with run.new_directory("floor") as directory, floor_server(directory) as port:
            return run.client.run(produce_to_floor, port, batch, load)

    with broker(run, "produce-grpc") as served:
        served.create_topic("records", PARTITIONS)
        floor_outcomes, broker_outcomes = alternate(
            on_the_floor, lambda: run.client.run(produce, served.grpc_address, requests, load)
        )
        rss_mib = served.rss_mib()
    floor_rates = [outcome.requests_per_second * len(batch) / 1e6 for outcome in floor_outcomes]
    broker_rates = [outcome.requests_per_second * len(batch) / 1e6 for outcome in broker_outcomes]
    ratios = [ours / floor for ours, floor in zip(broker_rates, floor_rates, strict=True)]
    records = median(outcome.requests_per_second for outcome in broker_outcomes) * record_count
    return [
        Figure("durable, beside the floor", median(ratios), "×", Target(least=0.5), spread(ratios)),
        Figure("records of 100 B", records, "records/s", Target(least=1_000_000), f"{record_count:,} per batch of 1 MiB"),
        Figure("broker", median(broker_rates), "MB/s", note=f"{spread(broker_rates)}; memory {rss_mib:.0f} MiB at the end"),
        Figure("floor: socket, buffer, file, fsync", median(floor_rates), "MB/s", note=spread(floor_rates)),
    ]
