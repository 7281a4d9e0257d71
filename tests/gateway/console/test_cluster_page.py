"""The page of the cluster: the health of its stores, and a drain with its progress."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
import uvloop

from gateway.settings import GatewaySettings
from metadata.model import SessionId
from segments.object_store.health_tracking import StoreTrouble
from tests.gateway.console.test_access_pages import ON, signed_in
from tests.kit.gateway.access.guarded_broker import Guarded
from tests.kit.gateway.access.guarded_broker import serve as serve_guarded
from tests.kit.gateway.broker_cluster import broker_cluster
from tests.kit.gateway.console_reader import Reader
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import PATIENCE_S, SmallBroker, until

pytestmark = pytest.mark.slow


def test_the_health_of_the_stores_is_shown_with_what_to_do(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        reader = Reader(client)
        status, html = await reader.get("/console/cluster")
        assert status == 200
        assert "SQLite answers in" in html
        assert "can be listed and read" in html
        broker.bucket_trouble = StoreTrouble("the bucket takes no writes: <full>", "Make room.")
        _, html = await reader.get("/console/cluster")
        assert "the bucket takes no writes: &lt;full&gt;" in html
        assert "<strong>Make room.</strong>" in html
        checks = (await client.get("/v1/cluster/health")).json["checks"]
        assert [(check["check"], check["status"]) for check in checks] == [
            ("broker broker-1", "warning"),
            ("bucket", "ok"),
            ("metadata", "ok"),
        ]

    serve(tmp_path, scenario)


def test_a_reader_without_the_right_to_describe_the_cluster_sees_the_brokers_alone(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        reader = await signed_in(broker, await broker.key("ann"))
        status, html = await reader.get("/console/cluster")
        assert status == 200
        assert broker.broker.broker_id in html
        assert "The health of the stores is not shown: ann has no right to describe the cluster" in html
        assert str(tmp_path) not in html

    serve_guarded(tmp_path, scenario, gateway=ON)


def test_a_drain_is_followed_until_the_broker_may_be_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = GatewaySettings(console=True)
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, 2, gateway=settings) as cluster:
            shown, drained = cluster.brokers
            await shown.create_topic("orders", 8)
            await until(lambda: bool(shown.view.partitions.led_by(SessionId(drained.session or 0))))
            async with aiohttp.ClientSession(f"http://{shown.http_address}") as session:
                reader = Reader(Client(session))
                page = "/console/cluster"
                assert (await reader.post(page, f"{page}/{drained.broker_id}/drain", ""))[0] == 303
                _, html = await reader.get(page)
                if "is drained" not in html:
                    assert f"{drained.broker_id} drains: it hands over" in html
                    assert 'data-refresh-ms="' in html
                await until(lambda: not shown.view.partitions.led_by(SessionId(drained.session or 0)))
                _, html = await reader.get(page)
                assert f"{drained.broker_id} is drained: it leads no partition" in html
                assert 'data-refresh-ms="' not in html
                refused = await reader.post(page, f"{page}/{shown.broker_id}/drain", "")
                assert refused[0] == 400
                assert "no other broker could take over" in refused[1]
                assert (await reader.post(page, f"{page}/{drained.broker_id}/undrain", ""))[0] == 303
                assert "is drained" not in (await reader.get(page))[1]

    uvloop.run(scenario())
