"""/metrics of real brokers after real requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

import tidelog
from gateway.broker.broker import Broker
from gateway.process.broker_process import run_broker
from gateway.settings import load_settings
from gateway.telemetry.registry import MetricsRegistry
from metadata.errors import Unavailable, UnknownTopic
from segments.object_store.instrumented import InstrumentedObjectStore
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.small_broker import HeldStore, until

pytestmark = pytest.mark.slow

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(metrics: MetricsRegistry, *, detailed: bool = False) -> Samples:
    text = (await metrics.exposition(detailed=detailed)).body.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a series stands twice in one exposition"
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@asynccontextmanager
async def http_client(broker: Broker) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
        yield Client(session)


def with_broker(tmp_path: Path, scenario: Callable[[Broker], Awaitable[None]], **settings: object) -> None:
    async def run() -> None:
        given = {"data_dir": str(tmp_path), "http": "127.0.0.1:0", "grpc": "127.0.0.1:0", **settings}
        async with asyncio.timeout(60), run_broker(load_settings(given, {})) as broker:
            await until(lambda: bool(broker.brokers()))
            await scenario(broker)

    uvloop.run(run())


def test_calls_of_the_listeners_are_counted_by_listener(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with tidelog.connect(f"http://{broker.http_address}") as log, http_client(broker) as http:
            await log.topics.create("orders", partitions=1)
            for n in range(3):
                await log.produce("orders", {"n": n})
            body = b'{"records": [{"value": 1}, {"value": 2}]}'
            assert (await http.post("/v1/topics/orders/records", body)).status == 200
            assert (await http.get("/v1/topics/orders/partitions/0/records?offset=0")).status == 200
            read = [record async for record in log.consume("orders", from_="earliest", until="end")]
            assert len(read) == 5
        reported = await scraped(broker.metrics)
        assert value(reported, "tidelog_produced_records_total", listener="grpc") == 3
        assert value(reported, "tidelog_produced_records_total", listener="http") == 2
        assert value(reported, "tidelog_produced_bytes_total", listener="http") == len(body)
        assert value(reported, "tidelog_fetched_records_total", listener="grpc") == 5
        assert value(reported, "tidelog_fetched_records_total", listener="http") == 5
        assert value(reported, "tidelog_fetched_bytes_total", listener="http") > 100
        assert value(reported, "tidelog_produce_seconds_count", listener="grpc") == 3
        assert value(reported, "tidelog_fetch_seconds_count", listener="http") == 1
        assert value(reported, "tidelog_committed_records_total") == 5
        assert value(reported, "tidelog_produced_records_total", listener="peer") == 0, "there is no other broker"
        assert value(reported, "tidelog_open_calls", listener="http") == 0

    with_broker(tmp_path, scenario)


def test_refusals_are_counted_by_their_code(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with tidelog.connect(f"http://{broker.http_address}") as log, http_client(broker) as http:
            assert (await http.get("/v1/topics/nothing/partitions/0/records")).status == 404
            assert (await http.post("/v1/topics/nothing/records", b'{"records": [{"value": 1}]}')).status == 404
            with pytest.raises(UnknownTopic):
                await log.topics.delete("nothing")
        reported = await scraped(broker.metrics)
        assert value(reported, "tidelog_errors_total", listener="http", code="UNKNOWN_TOPIC") == 2
        assert value(reported, "tidelog_errors_total", listener="grpc", code="UNKNOWN_TOPIC") == 1
        assert value(reported, "tidelog_errors_total", listener="grpc", code="THROTTLED") == 0, "there before the first"

    with_broker(tmp_path, scenario)


def test_the_delivery_time_from_a_producer_to_a_waiting_reader_is_exported(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with tidelog.connect(f"http://{broker.http_address}") as log, http_client(broker) as http:
            await log.topics.create("orders", partitions=1)
            now_s = asyncio.get_running_loop().time
            path = "/v1/topics/orders/partitions/0/records?offset=0&wait_ms=30000"
            reading = asyncio.ensure_future(http.get(path))
            began_s = now_s()
            await until(lambda: bool(broker.log.reads.readers_waiting))
            waits_since_s = now_s()
            await asyncio.sleep(0.2)
            waited_s = now_s() - waits_since_s
            async with http_client(broker) as other:
                assert (await other.post("/v1/topics/orders/records", b'{"records": [{"value": 1}]}')).status == 200
            assert (await reading).status == 200
            took_s = now_s() - began_s
        reported = await scraped(broker.metrics)
        assert value(reported, "tidelog_delivery_seconds_count") == 1
        assert value(reported, "tidelog_fetch_seconds_count", listener="http") == 1
        assert value(reported, "tidelog_fetch_seconds_sum", listener="http") <= took_s - waited_s + 0.002, (
            "the wait is not in there"
        )

    with_broker(tmp_path, scenario)


def test_bucket_requests_are_exported_by_operation_with_their_cost(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with tidelog.connect(f"http://{broker.http_address}") as log:
            await log.topics.create("orders", partitions=1)
            before = await scraped(broker.metrics)
            await log.produce("orders", "x" * 1000)
            reported = await scraped(broker.metrics)
        created = ("tidelog_bucket_request_seconds_count", {"operation": "create"})
        assert value(reported, created[0], **created[1]) == value(before, created[0], **created[1]) + 1
        assert value(reported, "tidelog_bucket_written_bytes_total") >= value(before, "tidelog_bucket_written_bytes_total") + 1000
        dollars = "tidelog_bucket_request_dollars_total"
        assert value(reported, dollars) == pytest.approx(value(before, dollars) + 2.0)
        assert value(reported, "tidelog_bucket_state", state="healthy") == 1
        assert value(reported, "tidelog_bucket_state", state="unavailable") == 0
        assert value(reported, "tidelog_stored_bytes", form="segments") > 1000

    with_broker(tmp_path, scenario, price_1000_writes=2000)


def test_each_partition_has_its_offsets_on_the_detailed_page_also_as_kafka_exporter_calls_them(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with tidelog.connect(f"http://{broker.http_address}") as log:
            await log.topics.create("orders", partitions=2)
            await log.produce("orders", "one", partition=1)
        while not value(await scraped(broker.metrics), "tidelog_controller"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        reported = await scraped(broker.metrics, detailed=True)
        assert value(reported, "kafka_topic_partition_current_offset", topic="orders", partition="1") == 1
        assert value(reported, "kafka_topic_partition_oldest_offset", topic="orders", partition="1") == 0
        assert value(reported, "kafka_topic_partition_current_offset", topic="orders", partition="0") == 0
        assert value(reported, "kafka_topic_partitions", topic="orders") == 2
        assert value(reported, "kafka_brokers") == 1
        assert value(reported, "tidelog_partition_high_watermark", topic="orders", partition="1") == 1

    with_broker(tmp_path, scenario)


def test_metrics_of_brokers_leases_and_partitions_are_exported(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with tidelog.connect(f"http://{broker.http_address}") as log:
            await log.topics.create("orders", partitions=7)
        reported = await scraped(broker.metrics)
        for name, expected in {
            "tidelog_ready": 1,
            "tidelog_lease_held": 1,
            "tidelog_draining": 0,
            "tidelog_sessions_total": 1,
            "tidelog_partitions_led": 7,
            "tidelog_partitions": 7,
            "tidelog_partitions_without_leader": 0,
            "tidelog_partitions_damaged": 0,
            "tidelog_oldest_uncommitted_seconds": 0,
            "tidelog_disk_tier_failed": 0,
        }.items():
            assert value(reported, name) == expected, name
        assert value(reported, "tidelog_brokers", state="serving") == 1
        assert value(reported, "tidelog_metadata_request_seconds_count", operation="transact") > 0
        assert value(reported, "process_resident_memory_bytes") > 0
        assert not any(name.startswith("tidelog_etcd_") for name, _ in reported), "there is no etcd"

    with_broker(tmp_path, scenario)


def test_calls_to_the_bucket_that_fail_are_counted_by_their_code(tmp_path: Path) -> None:
    class Failing(HeldStore):
        async def delete(self, key: str) -> None:
            raise Unavailable("no")

    async def scenario() -> None:
        store = InstrumentedObjectStore(Failing())
        with pytest.raises(Unavailable):
            await store.delete("a")
        await store.create("b", [b"four"])
        assert +store.meter.errors == {("delete", "UNAVAILABLE"): 1}
        assert store.meter.seconds["delete"].count == store.meter.seconds["create"].count == 1
        assert store.meter.bytes_written == 4

    asyncio.run(scenario())


def test_a_broker_that_is_asked_to_stop_says_at_once_that_it_is_not_ready(tmp_path: Path) -> None:
    """As at SIGTERM: /readyz and gRPC's health say the same, while what is under way still ends well."""

    async def scenario(broker: Broker) -> None:
        assert value(await scraped(broker.metrics), "tidelog_ready") == 1
        broker.stop()
        await until(lambda: not broker.serving)
        assert value(await scraped(broker.metrics), "tidelog_ready") == 0

    with_broker(tmp_path, scenario)


def test_an_invalid_accept_header_still_gets_an_exposition() -> None:
    async def main() -> None:
        for accept in ("application/openmetrics-text; version=abc", "application/openmetrics-text; version=; q=", "\x00;;=,"):
            assert (await MetricsRegistry().exposition(accept)).media_type

    asyncio.run(main())


def test_connections_that_are_refused_are_counted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async with http_client(broker) as first, http_client(broker) as second:
            assert (await first.get("/livez")).status == 200
            assert (await second.get("/v1/topics")).status == 429
            reported = await scraped(broker.metrics)
            assert value(reported, "tidelog_http_connections") == 1
            assert value(reported, "tidelog_http_connections_refused_total") == 1
            assert value(reported, "tidelog_tls_files_refused_total") == 0

    with_broker(tmp_path, scenario, http_connections_max=1)
