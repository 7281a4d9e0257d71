"""Traces of a real broker, at a receiver of OTLP in this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
import uvloop
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import gateway.telemetry.otlp
import tidelog
from gateway.broker.broker import Broker
from gateway.process.broker_process import run_broker
from gateway.settings import load_settings
from gateway.telemetry.otlp import OtlpTracer
from gateway.telemetry.settings import TelemetrySettings
from tests.kit.gateway.otlp_receiver import Receiver, receiving

pytestmark = pytest.mark.slow

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CLIENT_SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{CLIENT_SPAN}-01"
NOT_SAMPLED = f"00-{TRACE_ID}-{CLIENT_SPAN}-00"
CANARY = "a-payload-that-must-not-show"


def traced(tmp_path: Path, scenario: Callable[[Broker], Awaitable[None]], **settings: object) -> Receiver:
    """What a collector has got when the broker has ended."""

    async def run() -> Receiver:
        async with asyncio.timeout(120), receiving() as receiver:
            given = {"data_dir": str(tmp_path), "http": "127.0.0.1:0", "grpc": "127.0.0.1:0", **settings}
            async with run_broker(load_settings(given | {"otlp_endpoint": receiver.endpoint}, {})) as broker:
                await broker.create_topic("orders", 2)
                await scenario(broker)
        return receiver

    return uvloop.run(run())


async def produce(broker: Broker, **headers: str) -> None:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
        records = {"records": [{"value": CANARY, "partition": 0}, {"value": CANARY, "partition": 1}]}
        async with session.post("/v1/topics/orders/records", json=records, headers=headers) as answer:
            assert answer.status == 200


def test_a_produce_over_http_is_a_child_of_the_clients_span_and_has_spans_of_its_waits(tmp_path: Path) -> None:
    found = traced(tmp_path, lambda broker: produce(broker, traceparent=TRACEPARENT))
    assert {span.trace_id.hex() for span in found.spans} == {TRACE_ID}
    [call], [produced] = found.named("POST"), found.named("produce")
    assert call.parent_span_id.hex() == CLIENT_SPAN
    assert produced.parent_span_id == call.span_id
    parts = [*found.named("buffer"), *found.named("put"), *found.named("commit")]
    assert [part.name for part in parts] == ["buffer", "put", "commit"]
    assert all(part.parent_span_id == produced.span_id for part in parts)
    for before, behind in pairwise(parts):
        assert abs(behind.start_time_unix_nano - before.end_time_unix_nano) < 2_000_000, "one begins where the other ends"
    assert produced.start_time_unix_nano <= parts[0].start_time_unix_nano
    assert parts[-1].end_time_unix_nano <= produced.end_time_unix_nano + 2_000_000
    names = {attribute.key: attribute.value for attribute in produced.attributes}
    assert names["messaging.destination.name"].string_value == "orders"
    assert names["messaging.batch.message_count"].int_value == 2


def test_the_sdk_is_traced_over_grpc_and_no_payload_leaves(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with tidelog.connect(f"http://{broker.http_address}") as log:
            await log.produce("orders", CANARY, key=CANARY)
        await produce(broker, traceparent=TRACEPARENT, x_note=CANARY)

    found = traced(tmp_path, scenario)
    assert len(found.named("produce")) == 2
    assert len({span.trace_id for span in found.named("produce")}) == 2
    assert not any(CANARY.encode() in body for body in found.bodies)


def test_a_request_that_is_marked_as_not_sampled_is_not_traced(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await produce(broker, traceparent=NOT_SAMPLED)
        await produce(broker)

    assert traced(tmp_path, scenario, otlp_sample=0).spans == []


def test_a_traceparent_that_is_none_begins_a_trace_of_its_own(tmp_path: Path) -> None:
    found = traced(tmp_path, lambda broker: produce(broker, traceparent="00-nonsense-01"))
    assert found.named("produce")
    assert all(span.trace_id.hex() != TRACE_ID for span in found.spans)


def test_the_span_of_a_refused_call_has_its_error_code(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with (
            aiohttp.ClientSession(f"http://{broker.http_address}") as session,
            session.get("/v1/topics/nothing/records", headers={"traceparent": TRACEPARENT}) as answer,
        ):
            assert answer.status == 404

    [span] = traced(tmp_path, scenario).named("GET")
    assert {attribute.key: attribute.value.string_value for attribute in span.attributes}["error.type"] == "UNKNOWN_TOPIC"


def test_the_sdk_gives_records_the_span_in_which_they_were_sent(tmp_path: Path) -> None:
    span = NonRecordingSpan(SpanContext(int(TRACE_ID, 16), int(CLIENT_SPAN, 16), False, TraceFlags(1)))
    headers: list[tuple[tuple[str, bytes | None], ...]] = []

    async def scenario(broker: Broker) -> None:
        async with tidelog.connect(f"http://{broker.http_address}", trace_headers=True) as log:
            with use_span(span):
                await log.produce("orders", "traced", headers={"a": b"1"}, partition=0)
            await log.produce("orders", "not", partition=0)
            headers.extend([record.headers async for record in log.consume("orders", from_="earliest", until="end")])

    traced(tmp_path, scenario)
    assert headers == [(("a", b"1"), ("traceparent", TRACEPARENT.encode())), ()]


def test_a_collector_that_never_answers_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.telemetry.otlp, "CLOSE_TIMEOUT_S", 0.0)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            settings = TelemetrySettings(otlp_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
            tracing = OtlpTracer(settings, broker_id="b1", cluster="c", version="1")
            trace = tracing.begin("GET", "", request_id="r")
            assert trace is not None
            trace.end()
            threading.Thread(target=tracing._provider.force_flush, daemon=True).start()
            silent.settimeout(60)
            asked, _ = await asyncio.to_thread(silent.accept)  # it is asked by now, and answers nothing
            with asked:
                await tracing.close()
            assert not any(thread.name == "last traces" and not thread.daemon for thread in threading.enumerate())

    asyncio.run(main())
