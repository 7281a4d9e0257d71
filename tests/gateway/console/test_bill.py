"""The page of the bucket and its bill, and the figures of topics, over the real routes of a small broker."""

from __future__ import annotations

import time
from bisect import insort
from pathlib import Path

import pytest

from gateway.console.pages.usage import retention
from gateway.settings import GatewaySettings
from gateway.topics.usage.topic_rates import TICK_S
from gateway.topics.usage.verification import Verification
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded
from tests.kit.gateway.access.guarded_broker import serve as serve_guarded
from tests.kit.gateway.console_reader import Reader
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker, until

slow = pytest.mark.slow

HOSTILE = "<script>alert(1)</script>"
FRAGMENT = {"hx-request": "true"}


def pass_minutes(broker: SmallBroker, count: int) -> None:
    """Ends ticks of the rates as if so many minutes had passed."""
    rates = broker.usage.here._rates
    assert rates is not None
    known = {topic.id for topic in broker.topic_cache.topics()}
    for _ in range(count):
        rates.tick(known, now_s=rates._ticked_at_s + TICK_S)
    broker.usage.cluster._kept = None


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, "7 d"),
        ({"retention.ms": "-1"}, "no limit"),
        ({"retention.ms": "5400000"}, "1.5 h"),
        ({"retention.ms": "5"}, "5 ms"),
        ({"retention.ms": "0"}, "0 ms"),
        ({"retention.bytes": "10"}, "7 d, or by bytes"),
        ({"cleanup.policy": "compact"}, "newest of each key"),
        ({"cleanup.policy": "compact,delete"}, "7 d"),
    ],
)
def test_the_retention_of_a_topic_is_said_in_words(settings: dict[str, str], shown: str) -> None:
    assert retention(settings) == shown


@slow
def test_topics_show_their_size_rates_retention_and_cost(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/orders/records", [{"value": "x" * 100_000}])
        pass_minutes(broker, 3)
        reader = Reader(client)
        _, html = await reader.get("/console/topics")
        assert "97" in html.split("topic-orders")[1].split("topic-single")[0], "kibibytes, about"
        assert "<polyline" in html
        assert "7 d" in html
        answer = await client.ask("GET", "/console/topics", headers=FRAGMENT)
        assert answer.body.decode().lstrip().startswith("<table>"), "htmx gets the table alone"
        _, html = await reader.get("/console/topics/orders/partitions")
        assert "Where the bytes are" in html
        assert "data-values" in html

    serve(tmp_path, scenario)


@slow
def test_the_bill_has_its_tables_and_takes_other_prices(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for _ in range(3):
            await client.produce("/v1/topics/orders/records", [{"value": "x" * 1_000}])
        reader = Reader(client)
        status, html = await reader.get("/console/bill")
        assert status == 200
        for heading in ("By kind", "By topic", "By request", "What would change it", "Prices", "Verify the bucket"):
            assert heading in html
        assert "S3 Standard" in html
        _, html = await reader.get("/console/bill?price_1000_writes=0&price_1000_reads=0&price_gib_month=0")
        assert "<dd>$0.00</dd>" in html
        status, html = await reader.get(f"/console/bill?price_gib_month={HOSTILE.replace('<', '%3C').replace('>', '%3E')}")
        assert status == 200
        assert HOSTILE not in html
        assert 'role="alert"' in html

    serve(tmp_path, scenario)


@slow
def test_the_bill_of_an_empty_bucket_is_a_page(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for name in ("orders", "single"):
            await broker.delete_topic(name)
        status, html = await Reader(client).get("/console/bill")
        assert status == 200
        assert "There is no topic that you may see" in html

    serve(tmp_path, scenario)


@slow
def test_a_bucket_is_verified_from_the_page_and_hostile_names_are_text(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.store._objects[f"wal/{HOSTILE}"] = b"x"  # as somebody else may have put it there
        insort(broker.store._keys, f"wal/{HOSTILE}")
        reader = Reader(client)
        assert await reader.post("/console/bill", "/console/bill/verify", "") == (303, "/console/bill#verification")
        await until(lambda: broker.usage.verifier.state.state != "running")
        _, html = await reader.get("/console/bill")
        assert HOSTILE not in html
        assert "&lt;script&gt;" in html
        broker.usage.verifier.state = Verification(state="running", begun_by="ann")
        part = (await client.ask("GET", "/console/bill", headers=FRAGMENT)).body.decode()
        assert "<h1>" not in part
        assert 'hx-trigger="every 2s"' in part
        status, html = await reader.post("/console/bill", "/console/bill/verify", "")
        assert status == 200
        assert "is running at this broker" in html
        assert (await reader.post("/console/bill", "/console/bill/verify/cancel", ""))[0] == 303
        assert "It was cancelled." in (await reader.get("/console/bill"))[1]

    serve(tmp_path, scenario)


@slow
def test_a_reader_without_the_cluster_sees_the_topics_of_the_bill_alone(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        for name in ("orders", "salaries"):
            await broker.as_admin("POST", "/v1/topics", json={"name": name, "partition_count": 1})
        await broker.allow("ann", "read", "topic", "orders")
        reader = Reader(broker.http)
        await reader.post("/console/sign-in", "/console/sign-in", f"key={await broker.key('ann')}")
        status, html = await reader.get("/console/bill")
        assert status == 200
        assert "orders" in html
        assert "salaries" not in html
        assert "By request" not in html
        assert (await reader.post("/console/bill", "/console/bill/verify", ""))[0] in {200, 403}
        assert broker.broker.usage.verifier.state.state == "none"
        admin = Reader(broker.http)
        await admin.post("/console/sign-in", "/console/sign-in", f"key={ADMIN_KEY}")
        assert "By request" in (await admin.get("/console/bill"))[1]

    serve_guarded(tmp_path, scenario, gateway=GatewaySettings(console=True))


@slow
def test_a_part_of_a_page_whose_reader_is_signed_out_stays_as_it_is(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        answer = await broker.http.ask("GET", "/console/bill", headers=FRAGMENT, allow_redirects=False)
        assert answer.status >= 400, "htmx shows no part of such an answer"

    serve_guarded(tmp_path, scenario, gateway=GatewaySettings(console=True))


@slow
def test_pages_of_ten_thousand_partitions_take_less_than_half_a_second_of_a_core(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for number in range(50):
            await broker.create_topic(f"many-{number:03d}", 200)
        await client.produce("/v1/topics/many-000/records", [{"value": "x"}] * 200)
        for path in ("/console/topics", "/console/bill"):
            took = []
            for _ in range(5):
                broker.usage.cluster._kept = None
                began_s = time.process_time()
                assert (await client.get(path)).status == 200
                took.append(time.process_time() - began_s)
            assert min(took) < 0.5, f"{path}: {took}"

    serve(tmp_path, scenario)
