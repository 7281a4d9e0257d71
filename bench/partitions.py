"""Many partitions cost no more than few: one object per flush, whatever it holds."""

from __future__ import annotations

import time

from bench.batches import produce_request, record_batch, records_in
from bench.broker import Served, broker
from bench.figures import Figure, Target, median, number, spread
from bench.grpc_client import produce
from bench.load import Load
from bench.run import Run, alternate

FEW, MANY = 10, 1_000
BATCH_BYTES = 16 << 10
BATCHES_PER_REQUEST = 10
CONNECTIONS = 4
WINDOW = 8
# More and shorter ones than elsewhere: what is compared lies close together.
ROUNDS = 9
PACED_MB_PER_SECOND = 20.0


def measure(run: Run) -> list[Figure]:
    batch = record_batch(records_in(BATCH_BYTES))
    request_mb = len(batch) * BATCHES_PER_REQUEST / 1e6

    with broker(run, "partitions") as served:

        def side(partitions: int) -> list[bytes]:
            topic = f"over-{partitions}"
            served.create_topic(topic, partitions)
            starts = range(0, partitions, BATCHES_PER_REQUEST)
            return [produce_request(topic, batch, range(start, start + BATCHES_PER_REQUEST)) for start in starts]

        few, many = side(FEW), side(MANY)
        flat_out = [
            [outcome[0] * request_mb for outcome in outcomes]
            for outcomes in alternate(
                lambda: _produce(run, served, few, 0.0), lambda: _produce(run, served, many, 0.0), rounds=ROUNDS
            )
        ]
        pace = PACED_MB_PER_SECOND / request_mb
        paced = alternate(lambda: _produce(run, served, few, pace), lambda: _produce(run, served, many, pace))
    throughputs = [with_many / with_few for with_few, with_many in zip(*flat_out, strict=True)]
    puts = [with_many[1] / with_few[1] for with_few, with_many in zip(*paced, strict=True)]
    megabytes = [median(outcome[0] for outcome in outcomes) * request_mb for outcomes in paced]
    puts_per_second = [median(outcome[1] for outcome in outcomes) for outcomes in paced]
    return [
        Figure(f"throughput, {MANY:,} partitions against {FEW}", median(throughputs), "×", Target(least=0.9), spread(throughputs)),
        Figure(f"PUTs/s, {MANY:,} partitions against {FEW}", median(puts), "×", Target(0.9, 1.1), spread(puts)),
        Figure(
            f"throughput with {MANY:,} partitions", median(flat_out[1]), "MB/s", note=f"{number(median(flat_out[0]))} with {FEW}"
        ),
        Figure(
            f"PUTs with {MANY:,} partitions",
            puts_per_second[1],
            "1/s",
            note=f"{number(puts_per_second[0])} with {FEW}; at {number(megabytes[0])} and {number(megabytes[1])} MB/s",
        ),
    ]


def _produce(run: Run, served: Served, requests: list[bytes], requests_per_second: float) -> tuple[float, float]:
    """(requests per second, PUTs per second)."""
    puts, started_s = served.put_count(), time.perf_counter()
    load = Load(CONNECTIONS, WINDOW, run.seconds / 2)
    outcome = run.client.run(produce, served.grpc_address, requests, load, requests_per_second=requests_per_second)
    return outcome.requests_per_second, (served.put_count() - puts) / (time.perf_counter() - started_s)
