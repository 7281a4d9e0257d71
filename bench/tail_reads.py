"""A reader at the tail: whether it keeps pace with a producer at full speed, and what it could read on its own."""

from __future__ import annotations

from bench.batches import produce_request, record_batch, records_in
from bench.broker import broker
from bench.figures import Figure, Target, median, spread
from bench.grpc_client import produce
from bench.load import Load, client_process
from bench.readers import follow_all
from bench.run import ROUNDS, Run

PARTITIONS = 6
BATCH_BYTES = 256 << 10
CONNECTIONS = 2
WINDOW = 8
QUIET_S = 0.5


def measure(run: Run) -> list[Figure]:
    batch = record_batch(records_in(BATCH_BYTES))
    load = Load(CONNECTIONS, WINDOW, run.seconds)
    ratios: list[float] = []
    rates_in: list[float] = []
    behind_ms: list[float] = []
    with broker(run, "tail-reads") as served, client_process() as reader:
        for round_ in range(1 + ROUNDS):
            topic = f"records-{round_}"
            requests = [produce_request(topic, batch, range(partition, partition + 1)) for partition in range(PARTITIONS)]
            served.create_topic(topic, PARTITIONS)
            reading = reader.start(follow_all, served.grpc_address, topic, PARTITIONS, 1, quiet_s=QUIET_S)
            produced = run.client.run(produce, served.grpc_address, requests, load)
            (followed,) = reading.result()
            bytes_read = followed.size_bytes
            if bytes_read != produced.requests * len(batch):
                raise RuntimeError(f"{produced.requests * len(batch)} bytes went in, and {bytes_read} came out")
            # The same bytes both ways, each from its first arrival to its last: so the rates stand as the times do.
            seconds_in = produced.last_answer_s - produced.first_answer_s
            seconds_out = followed.last_answer_s - followed.first_answer_s
            ratios.append(seconds_in / seconds_out)
            rates_in.append(bytes_read / seconds_in / 1e6)
            behind_ms.append((followed.last_answer_s - produced.last_answer_s) * 1000)
    return [
        Figure("a reader at the tail, out against in", round(median(ratios[1:]), 2), "×", Target(least=1.0), spread(ratios[1:])),
        Figure("in, while it is read", median(rates_in[1:]), "MB/s", note=spread(rates_in[1:])),
        Figure("last record read after its acknowledgement", median(behind_ms[1:]), "ms", note=spread(behind_ms[1:])),
    ]
