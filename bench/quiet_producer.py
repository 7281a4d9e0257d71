"""One quiet producer: how much later than the store's own PUT its acknowledgement comes."""

from __future__ import annotations

from bench.batches import produce_request, record_batch
from bench.broker import broker
from bench.figures import Figure, Target, median, percentile
from bench.grpc_client import acks_beside_puts
from bench.run import Run

PAUSE_S = 0.01
ROUNDS_PER_SECOND = 30
# A segment with one small batch is this much larger than the batch.
SEGMENT_OVERHEAD_BYTES = 200


def measure(run: Run) -> list[Figure]:
    batch = record_batch(1)
    with broker(run, "quiet-producer") as served, run.new_directory("quiet-producer-puts") as bucket:
        served.create_topic("records", 1)
        acks_s, puts_s = run.client.run(
            acks_beside_puts,
            served.grpc_address,
            produce_request("records", batch, range(1)),
            bucket,
            len(batch) + SEGMENT_OVERHEAD_BYTES,
            rounds=max(10, int(run.seconds * ROUNDS_PER_SECOND)),
            pause_s=PAUSE_S,
        )
    ack_ms, put_ms = median(acks_s) * 1000, median(puts_s) * 1000
    return [
        Figure("acknowledgement p50 above PUT p50", ack_ms - put_ms, "ms", Target(most=5), f"{len(acks_s)} rounds"),
        Figure("acknowledgement p50", ack_ms, "ms", note=f"p99 {percentile(acks_s, 99) * 1000:.1f} ms"),
        Figure("the store's own PUT p50", put_ms, "ms", note=f"p99 {percentile(puts_s, 99) * 1000:.1f} ms"),
    ]
