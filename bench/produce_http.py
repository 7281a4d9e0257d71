"""Produce over HTTP: JSON as scripts send it, and Arrow bodies as data tools do."""

from __future__ import annotations

import io

import msgspec
import pyarrow as pa

from bench.batches import VALUE_BYTES, values
from bench.broker import Served, broker
from bench.figures import Figure, Target, median, spread
from bench.http_client import post, post_request
from bench.load import Load, Outcome
from bench.run import ROUNDS, Run

PARTITIONS = 6
JSON_RECORDS = 100
JSON_CONNECTIONS = 48
ARROW_RECORDS = 10_000
ARROW_CONNECTIONS = 12


def measure_json(run: Run) -> list[Figure]:
    """100 records of 100 B in a request. A request waits for its commit, so many are under way at the same time."""
    texts = [bytes(value).decode() for value in values(JSON_RECORDS).to_pylist()]
    keyless = msgspec.json.encode({"records": [{"value": text} for text in texts]})
    keyed = msgspec.json.encode({"records": [{"key": f"key-{i}", "value": text} for i, text in enumerate(texts)]})
    with broker(run, "produce-http-json") as served:
        keyless_rates = _rates(run, served, "keyless", keyless, "application/json", JSON_CONNECTIONS, JSON_RECORDS)
        keyed_rates = _rates(run, served, "keyed", keyed, "application/json", JSON_CONNECTIONS, JSON_RECORDS)
    return [
        Figure("100 records of 100 B a request", median(keyless_rates), "records/s", Target(least=150_000), spread(keyless_rates)),
        Figure("the same with keys, to all partitions", median(keyed_rates), "records/s", note=spread(keyed_rates)),
    ]


def measure_arrow(run: Run) -> list[Figure]:
    column = values(ARROW_RECORDS)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("value", pa.binary())])) as stream:
        stream.write_batch(pa.record_batch([column], names=["value"]))
    with broker(run, "produce-http-arrow") as served:
        rates = _rates(
            run, served, "arrow", sink.getvalue(), "application/vnd.apache.arrow.stream", ARROW_CONNECTIONS, ARROW_RECORDS
        )
    note = f"{ARROW_RECORDS:,} records of {VALUE_BYTES} B a request; {spread(rates)}"
    return [Figure("Arrow bodies", median(rates), "records/s", Target(least=1_000_000), note)]


def _rates(
    run: Run, served: Served, topic: str, body: bytes, media_type: str, connections: int, records_per_request: int
) -> list[float]:
    """Records per second of some rounds, after one that warms up."""
    served.create_topic(topic, PARTITIONS)
    request = post_request(served.http_url, f"/v1/topics/{topic}/records", body, media_type)
    load = Load(connections, 1, run.seconds)
    outcomes: list[Outcome] = [run.client.run(post, served.http_url, request, load) for _ in range(1 + ROUNDS)]
    answered = sum(outcome.requests for outcome in outcomes) * records_per_request
    committed = served.records_in(topic)
    if committed != answered:
        raise RuntimeError(f"{answered} records were acknowledged, and {committed} are in the log")
    return [outcome.requests_per_second * records_per_request for outcome in outcomes[1:]]
