"""Groups over HTTP where brokers are several: any of them answers any request, and they come and go."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.broker.broker import Broker
from tests.gateway.http.groups.test_routes import ORDERS
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.http_members import HttpMember

pytestmark = pytest.mark.slow


def bases_of(cluster: Cluster) -> tuple[str, ...]:
    return tuple(f"http://{broker.http_address}" for broker in cluster.brokers)


@asynccontextmanager
async def anywhere(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of whole URLs, and the topic `orders` with a record in each partition."""
    async with aiohttp.ClientSession() as session:
        client = Client(session)
        first = bases_of(cluster)[0]
        assert (await client.ask("POST", f"{first}/v1/topics", json={"name": "orders", "partition_count": 3})).status == 201
        await produce(client, first, 3)
        yield client


async def produce(client: Client, base: str, count: int, *, first: int = 0) -> None:
    records = [{"value": first + at, "partition": at % 3} for at in range(count)]
    assert (await client.produce(f"{base}/v1/topics/orders/records", records)).status == 200


def coordinator_of(cluster: Cluster, group: str) -> Broker:
    found = cluster.brokers[0].groups.coordinator(group)
    return next(broker for broker in cluster.brokers if broker.broker_id == found.broker_id)


def test_three_brokers_answer_in_turn(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with anywhere(cluster) as client:
            members = [
                HttpMember(client, "g", bases=bases_of(cluster)[number:] + bases_of(cluster)[:number]) for number in range(2)
            ]
            assert {answer.status for answer in await asyncio.gather(*(member.join() for member in members))} == {201}
            assert sorted(partition for member in members for partition in member.assignment) == ORDERS
            for turn in range(3):
                for member in members:
                    assert (await member.read(commit="true")).status == 200
                    assert (await member.heartbeat()).status == 204
                await produce(client, bases_of(cluster)[turn], 3, first=3 + 3 * turn)
            for member in members:
                assert (await member.read()).status == 200
                assert (await member.commit()).status == 200
            assert sorted(value for member in members for value in member.values) == list(range(12))
            for base in bases_of(cluster):
                offsets = (await client.get(f"{base}/v1/groups/g/offsets")).json["offsets"]
                assert [offset["offset"] for offset in offsets] == [4, 4, 4]
                reported = (await client.get(f"{base}/v1/groups/g")).json
                assert (reported["state"], reported["lag_records"], len(reported["members"])) == ("Stable", 0, 2)
                assert reported["coordinator"] == coordinator_of(cluster, "g").broker_id
            for member in members:
                assert (await member.leave()).status == 204

    with_cluster(tmp_path, scenario, count=3)


def test_when_its_coordinator_stops_a_member_reads_on_in_the_same_generation(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with anywhere(cluster) as client:
            coordinator = coordinator_of(cluster, "g")
            others = tuple(f"http://{broker.http_address}" for broker in cluster.brokers if broker is not coordinator)
            member = HttpMember(client, "g", bases=others)
            await member.join()
            await member.read()
            await member.commit()
            reading = asyncio.create_task(member.read(wait_ms=30_000))
            coordinator.stop()
            while len(cluster.brokers[0 if cluster.brokers[0] is not coordinator else 1].view.brokers.brokers) == 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await produce(client, others[0], 3, first=3)
            answer = await reading
            assert answer.status == 200, answer
            while len(member.records) < 6:
                assert (await member.read(wait_ms=1_000)).status == 200
            assert (await member.commit()).status == 200
            assert member.generation == 1
            assert sorted(member.values) == list(range(6))

    with_cluster(tmp_path, scenario, count=3)


def test_a_script_needs_nothing_but_http(tmp_path: Path) -> None:
    """What the guide shows for curl, with the standard library alone, at whichever broker."""

    def ask(address: str, method: str, path: str, body: Any = None) -> Any:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        headers = {"content-type": "application/json"} if body is not None else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status < 300, (answer.status, text)
        return json.loads(text) if text else None

    def script(addresses: list[str]) -> list[int]:
        one, two, three = addresses
        me = ask(one, "POST", "/v1/groups/billing/members", {"topics": ["orders"]})
        path = f"/v1/groups/billing/members/{me['member_id']}"
        query = f"generation={me['generation']}&wait_ms=1000"
        page = ask(two, "GET", f"{path}/records?{query}")
        values = [record["value"] for record in page["records"]]
        while page["records"] or len(values) < 3:  # on a busy machine a page may be empty before the last
            page = ask(three, "GET", f"{path}/records?{query}&cursor={page['cursor']}&commit=true")
            values += [record["value"] for record in page["records"]]
        ask(one, "DELETE", path)
        assert ask(two, "GET", "/v1/groups/billing")["lag_records"] == 0
        return values

    async def scenario(cluster: Cluster) -> None:
        async with anywhere(cluster):
            values = await asyncio.to_thread(script, [broker.http_address for broker in cluster.brokers])
            assert sorted(values) == [0, 1, 2]

    with_cluster(tmp_path, scenario, count=3)


def test_scripts_that_come_and_go_miss_nothing_while_a_broker_stops(tmp_path: Path) -> None:
    """Every record reaches the group at least once, and what is committed in the end is all of it."""

    async def scenario(cluster: Cluster) -> None:
        async with anywhere(cluster) as client:
            stopping = coordinator_of(cluster, "g")
            bases = [f"http://{broker.http_address}" for broker in cluster.brokers if broker is not stopping]
            seen: set[int] = set()
            produced = 3

            async def script(client_id: str, polls: int) -> None:
                """Polls `polls` times, and leaves. A refused member joins again, as the answer asks."""
                member = HttpMember(client, "g", bases=tuple(bases), client_id=client_id, session_timeout_ms=20_000)
                refusals = 0
                while (await member.join()).status != 201:
                    refusals += 1
                    assert refusals < 100
                while polls > 0:
                    answer = await member.read(wait_ms=50, commit="true", max_records=20)
                    if answer.status == 200:
                        seen.update(record["value"] for record in answer.json["records"])
                        polls -= 1
                        continue
                    assert answer.status in (409, 503), answer
                    if answer.status == 409:
                        if answer.json["code"] == "UNKNOWN_MEMBER":
                            member.member_id = ""
                        else:
                            await member.commit()
                        await member.join()
                await member.commit()
                await member.leave()

            async def in_rotation(client_id: str) -> None:
                for polls in (3, 6, 2, 5):
                    await script(client_id, polls)

            async with asyncio.TaskGroup() as tasks:
                scripts = [tasks.create_task(in_rotation(f"script-{number}")) for number in range(4)]
                for turn in range(20):
                    await produce(client, bases[turn % 2], 30, first=produced)
                    produced += 30
                    if turn == 8:
                        stopping.stop()
                    await asyncio.sleep(0.05)
                await asyncio.wait(scripts)
            await script("the last", 60)
            assert seen == set(range(produced))
            reported = (await client.get(f"{bases[0]}/v1/groups/g")).json
            assert (reported["state"], reported["lag_records"]) == ("Empty", 0)

    with_cluster(tmp_path, scenario, count=3)
