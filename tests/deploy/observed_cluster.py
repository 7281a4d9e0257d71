"""What Prometheus has of a real cluster under a real load: two brokers with TLS on an etcd, and a compactor, scraped twice."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import aiohttp
import uvloop
from prometheus_client.parser import text_string_to_metric_families

import tidelog
from gateway.broker.broker import Broker
from gateway.process.broker_process import run_broker
from gateway.process.compactor_process import run_compactor
from gateway.settings import BrokerSettings, load_settings
from metadata.errors import NotFound, TidelogError
from tests.kit.certificates import Certificates, make_certificates
from tests.kit.etcd_server import SHARED, in_thread
from tests.kit.gateway.small_broker import until

RECORDS = 40


class Series(NamedTuple):
    name: str
    labels: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.name}{{{', '.join(f'{name}={value!r}' for name, value in self.labels)}}}".replace("'", '"')


Scrape = dict[Series, float]


def observed(directory: Path) -> tuple[Scrape, Scrape]:
    """Two scrapes of all three processes, with what Prometheus adds to them; between them everything happens that is counted."""

    async def run() -> tuple[Scrape, Scrape]:
        etcd = await in_thread(lambda: SHARED.member.url)
        async with asyncio.timeout(240):
            return await _observed(directory, etcd)

    return uvloop.run(run())


def _often_measured(settings: BrokerSettings) -> BrokerSettings:
    return replace(settings, groups=replace(settings.groups, group_metrics_interval_ms=100))


async def _observed(directory: Path, etcd: str) -> tuple[Scrape, Scrape]:
    certificates = make_certificates(directory / "tls")
    tls = ssl.create_default_context(cafile=str(certificates.ca))
    common = {
        "etcd": etcd,
        "cluster": directory.name,
        "bucket": f"file://{directory / 'bucket'}",
        "http": "127.0.0.1:0",
        "grpc": "127.0.0.1:0",
        "compaction_due_age_ms": 1,
        "compaction_interval_ms": 100,
    }
    files = {"tls_cert_file": certificates.cert, "tls_key_file": certificates.key, "tls_peer_ca_file": certificates.ca}
    async with AsyncExitStack() as parts:
        brokers = [
            await parts.enter_async_context(
                run_broker(_often_measured(load_settings({**common, **files, "broker_id": f"b{n}"}, {})))
            )
            for n in (1, 2)
        ]
        await until(lambda: all(len(broker.brokers()) == len(brokers) for broker in brokers))
        service, endpoint = await parts.enter_async_context(
            run_compactor(load_settings({**common, "broker_id": "c1"}, {}), report=lambda _: None)
        )
        compactor_url = f"http://{await endpoint.start('127.0.0.1:0')}"
        parts.push_async_callback(endpoint.stop)
        http = await parts.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)))
        urls = {f"b{n}": f"https://{broker.http_address}" for n, broker in enumerate(brokers, 1)} | {"c1": compactor_url}
        await _load(brokers, http, certificates)
        await service.once(everything=True)
        first = await _scraped(http, urls)
        await _load(brokers, http, certificates)
        await service.once(everything=True)
        return first, await _scraped(http, urls)


def _is_refreshed(scrape: Scrape) -> bool:
    """Whether the coordinator has measured the group's lag since its commit, and a broker has asked etcd for its state."""
    return {"tidelog_group_lag_seconds", "tidelog_etcd_database_bytes"} <= {series.name for series in scrape}


async def _load(brokers: Sequence[Broker], http: aiohttp.ClientSession, certificates: Certificates) -> None:
    url = f"https://{brokers[0].http_address}"
    async with tidelog.connect(url, ca_file=str(certificates.ca)) as log:
        with suppress(TidelogError):  # the second time it is there
            await log.topics.create("orders", partitions=4)
        for n in range(RECORDS):
            await log.produce("orders", {"n": n}, key=f"k{n}")
        read = [record async for record in log.consume("orders", from_="earliest", until="end")]
        assert len(read) >= RECORDS
        with suppress(NotFound):
            await log.topics.delete("nothing")
        async with log.consume("orders", group="billing") as consumer:
            async for _ in consumer:
                break
            await consumer.commit()
    for broker in brokers:  # each listener, that of the leader and that which forwards
        base = f"https://{broker.http_address}/v1/topics/orders"
        for partition in range(4):
            await _tail_read(http, f"{base}/partitions/{partition}/records", base)
        async with http.post(f"{base}/records", json={"records": [{"value": n} for n in range(8)]}) as answer:
            assert answer.status == 200, await answer.text()
        async with http.get(f"https://{broker.http_address}/v1/topics/nothing/records") as answer:
            assert answer.status == 404


async def _tail_read(http: aiohttp.ClientSession, path: str, base: str) -> None:
    """A reader that waits at the tail, and gets a record there."""
    async with http.get(path, params={"offset": "latest", "max_records": "1"}) as answer:
        tail = answer.headers["tidelog-high-watermark"]

    async def read() -> None:
        async with http.get(path, params={"offset": tail, "wait_ms": "20000"}) as answer:
            assert (await answer.json())["records"]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        await asyncio.sleep(0.1)
        partition = int(path.split("/")[-2])
        record = {"value": "tail", "partition": partition}
        async with http.post(f"{base}/records", json={"records": [record]}) as answer:
            assert answer.status == 200, await answer.text()


async def _scraped(http: aiohttp.ClientSession, urls: dict[str, str]) -> Scrape:
    while not _is_refreshed(scrape := await _scraped_once(http, urls)):  # noqa: ASYNC110  # it is another process, as it were
        await asyncio.sleep(0.05)
    return scrape


async def _scraped_once(http: aiohttp.ClientSession, urls: dict[str, str]) -> Scrape:
    found: Scrape = {}
    for instance, url in urls.items():
        is_broker = instance.startswith("b")
        of_target = {"cluster": "prod", "job": "tidelog" if is_broker else "tidelog-compactor", "instance": instance}
        for page in ("/metrics", "/metrics/detail") if is_broker else ("/metrics",):
            async with http.get(url + page) as answer:
                assert answer.status == 200
                text = await answer.text()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = {**sample.labels, **of_target}
                    found[Series(sample.name, tuple(sorted(labels.items())))] = sample.value
    return found
