"""What a cluster answers while its etcd is away: all but changes."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.etcd_server import EtcdMember, running_etcd
from tests.tidelog.cli.broker.test_serve_cluster import ServedCluster
from tidelog.client import connect
from tidelog.records import Record

pytestmark = pytest.mark.slow

# On a busy machine; a question to etcd that is away takes ten.
AT_ONCE_S = 7.0
# Within this, a broker that knows of its partitions serves them, and another has connected to it.
SERVED_S = 60.0


class Asking:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def __call__(self, path: str, body: object = None, *, within_s: float = AT_ONCE_S) -> tuple[int, Any]:
        method = "GET" if body is None else "POST"
        async with asyncio.timeout(within_s), self._session.request(method, self._url + path, json=body) as answer:
            return answer.status, await answer.json()


async def described(ask: Asking) -> list[dict[str, Any]]:
    """Returns the partitions of `orders`, as soon as both brokers lead some and report their bounds."""
    deadline_s = time.monotonic() + SERVED_S
    while True:
        partitions: list[dict[str, Any]] = (await ask("/v1/topics/orders"))[1]["partitions"]
        if not any("error" in each for each in partitions) and {each["leader"] for each in partitions} == {"b1", "b2"}:
            return partitions
        assert time.monotonic() < deadline_s, partitions


async def settled(urls: list[str]) -> None:
    """Returns once each broker knows both, which of them is the controller, and what each leads and serves.

    What a broker has not heard of when etcd goes away, it does not hear before etcd is back.
    """
    async with aiohttp.ClientSession() as session:
        for url in urls:
            ask = Asking(session, url)
            deadline_s = time.monotonic() + SERVED_S
            brokers: list[dict[str, Any]] = []
            while sorted(broker["controller"] for broker in brokers) != [False, True]:
                assert time.monotonic() < deadline_s, brokers
                brokers = (await ask("/v1/cluster"))[1]["brokers"]
            await described(ask)


def test_a_new_client_connects_produces_and_reads_and_everything_is_described_but_nothing_changes(tmp_path: Path) -> None:
    async def before(urls: list[str]) -> None:
        async with connect(*urls) as log:
            await log.topics.create("orders", partitions=4)
            await log.produce("orders", "before", partition=0)
        await settled(urls)

    async def away(urls: list[str]) -> None:
        async with aiohttp.ClientSession() as session:
            for url in urls:
                ask = Asking(session, url)
                status, cluster = await ask("/v1/cluster")
                assert status == 200
                assert sorted(broker["broker_id"] for broker in cluster["brokers"]) == ["b1", "b2"]
                assert sum(broker["controller"] for broker in cluster["brokers"]) == 1
                assert (await ask("/v1/topics"))[1]["topics"][0]["name"] == "orders"
                assert sum(partition["high_watermark"] for partition in await described(ask)) == 1
                assert (await ask("/v1/topics/orders/settings"))[0] == 200
                status, problem = await ask("/v1/topics/order")
                assert (status, problem["code"], problem["retryable"]) == (503, "UNAVAILABLE", True)
            status, problem = await ask("/v1/topics", {"name": "more", "partition_count": 1}, within_s=60)
            assert (status, problem["nothing_was_written"]) == (503, True)
            assert (await ask("/v1/cluster"))[1]["metadata_age_ms"] > 5_000
            assert (await ask("/readyz"))[1]["status"] in {"ok", "no changes"}
        async with asyncio.timeout(60), connect(urls[0]) as log:
            acks = [await log.produce("orders", "away", partition=partition) for partition in range(4)]
            assert [ack.offset for ack in acks] == [1, 0, 0, 0]
            read: list[Record] = [record async for record in log.consume("orders", until="end")]
            assert len(read) == 5

    async def back(urls: list[str]) -> None:
        async with aiohttp.ClientSession() as session:
            ask = Asking(session, urls[0])
            deadline_s = time.monotonic() + 60
            later = {"name": "later", "partition_count": 1}
            while (answer := await ask("/v1/topics", later, within_s=60))[0] not in {
                201,
                409,
            }:  # 409: the outcome of an earlier try was unknown
                assert time.monotonic() < deadline_s, answer
            while (age_ms := (await ask("/v1/cluster"))[1]["metadata_age_ms"]) >= 5_000:
                assert time.monotonic() < deadline_s, age_ms

    with running_etcd(tmp_path) as etcd, ExitStack() as processes:
        cluster = ServedCluster(tmp_path, etcd.url, processes)
        urls = [broker.url for broker in cluster.running("b1", "b2")]
        asyncio.run(before(urls))
        etcd.kill()
        asyncio.run(away(urls))
        etcd.start()
        asyncio.run(back(urls))


def test_members_of_groups_keep_what_they_read_for_much_longer_than_their_sessions(tmp_path: Path) -> None:
    """Heartbeats ask etcd for nothing; brokers that hear nothing of it confirm to each other that they see the same brokers."""

    async def consumes(urls: list[str], etcd: EtcdMember) -> None:
        async with connect(*urls) as log:
            await log.topics.create("orders", partitions=4)
            lost: list[object] = []
            async with log.consume("orders", group="g", session_timeout_ms=10_000, on_lost=lost.append) as consumer:
                await log.produce("orders", "before")
                assert [record.value for record in await consumer.chunk()] == [b"before"]
                await consumer.commit()
                await settled(urls)
                etcd.kill()
                for number in range(15):
                    await asyncio.sleep(1)
                    await log.produce("orders", f"away {number}")
                    async with asyncio.timeout(60):
                        assert [record.value for record in await consumer.chunk()] == [b"away %d" % number]
                assert not lost
                etcd.start()
                async with asyncio.timeout(60):
                    await consumer.commit()

    with running_etcd(tmp_path) as etcd, ExitStack() as processes:
        cluster = ServedCluster(tmp_path, etcd.url, processes)
        asyncio.run(consumes([broker.url for broker in cluster.running("b1", "b2")], etcd))


def test_with_authentication_a_broker_serves_keys_of_the_cluster_no_longer_than_its_view_of_them_may_age(tmp_path: Path) -> None:
    admin_key = "tlk_" + "ad" * 8 + "_" + "5e" * 32
    key_file = tmp_path / "admin.key"
    key_file.write_text(admin_key)
    produced = {"records": [{"value": 1}]}

    async def asked(method: str, path: str, key: str = admin_key, body: object = None) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session,
            session.request(method, f"{broker.url}{path}", json=body) as answer,
        ):
            return answer.status, await answer.json()

    async def until_answered(status: int, method: str, path: str, key: str = admin_key, body: object = None) -> Any:
        async with asyncio.timeout(60):
            while True:
                found, reported = await asked(method, path, key, body)
                if found == status:
                    return reported
                await asyncio.sleep(0.1)

    async def before() -> str:
        assert (await asked("POST", "/v1/topics", body={"name": "orders", "partition_count": 1}))[0] == 201
        acl = {"principal": "billing", "operation": "write", "resource": "topic", "name": "orders"}
        assert (await asked("POST", "/v1/acls", body=acl))[0] == 200
        key: str = (await asked("POST", "/v1/keys", body={"principal": "billing"}))[1]["text"]
        assert (await asked("POST", "/v1/topics/orders/records", key, produced))[0] == 200
        return key

    async def away(key: str) -> None:
        reported = await until_answered(503, "POST", "/v1/topics/orders/records", key, produced)
        assert (reported["code"], reported["retryable"], reported["nothing_was_written"]) == ("UNAVAILABLE", True, True)
        assert "cannot tell whether API keys and rights still hold" in reported["detail"]
        status, reported = await asked("GET", "/readyz")
        assert (status, reported["status"]) == (503, "no access")
        assert (await asked("GET", "/livez", key))[0] == 200
        assert (await asked("POST", "/v1/topics/orders/records", body=produced))[0] == 200  # the admin key of the file

    async def back(key: str) -> None:
        await until_answered(200, "POST", "/v1/topics/orders/records", key, produced)
        await until_answered(200, "GET", "/readyz")

    with running_etcd(tmp_path) as etcd, ExitStack() as processes:
        cluster = ServedCluster(tmp_path, etcd.url, processes)
        flags = {"authentication": "true", "admin-key-file": str(key_file), "access-max-age-ms": "3000", "audit-log": "off"}
        broker = cluster.start("b1", *(part for name, value in flags.items() for part in (f"--{name}", value)))
        broker.until_said("others reach it at")
        key = asyncio.run(before())
        etcd.kill()
        asyncio.run(away(key))
        etcd.start()
        asyncio.run(back(key))
