"""/v1/storage, /v1/costs and /v1/verification over the real routes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway.access.guarded_broker import Guarded, bearer
from tests.kit.gateway.access.guarded_broker import serve as serve_guarded
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow


async def verified(ask: Any) -> Any:
    while (found := await ask())["state"] == "running":  # noqa: ASYNC110  # a client has no event for it
        await asyncio.sleep(0.01)
    return found


def test_storage_says_where_the_bytes_are_by_topic_and_by_kind(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/orders/records", [{"value": "x" * 1_000}] * 20)
        await client.get("/v1/topics/orders/partitions/0/records?offset=0")
        found = (await client.get("/v1/storage")).json
        orders, single = found["topics"]
        assert (orders["name"], orders["partition_count"], orders["partitions_known"]) == ("orders", 3, 3)
        assert orders["segment_bytes"] > 0
        assert orders["bytes"] == orders["segment_bytes"] + orders["parquet_bytes"]
        assert orders["bytes_in_per_second"] > 0
        assert single["bytes"] == 0
        bucket = found["bucket"]
        kinds = {each["kind"]: each for each in bucket["kinds"]}
        assert kinds["segments"]["bytes"] >= orders["segment_bytes"]
        assert kinds["segments"]["bytes"] == orders["segment_bytes"] + bucket["unowned_segment_bytes"]
        assert bucket["bytes"] == sum(each["bytes"] for each in bucket["kinds"])
        assert (bucket["sessions"], bucket["sealed_sessions"], bucket["cut"]) == (1, 0, [])
        assert found["silent_brokers"] == {}
        assert found["bytes_in_per_second"] == pytest.approx(orders["bytes_in_per_second"], rel=0.5)

    serve(tmp_path, scenario)


def test_topics_come_by_pages_or_the_largest_first(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/single/records", [{"value": "x" * 100}])
        for route in ("storage", "costs"):
            first = (await client.get(f"/v1/{route}?page_size=1")).json
            assert [each["name"] for each in first["topics"]] == ["orders"]
            second = (await client.get(f"/v1/{route}?page_size=1&page_token={first['next_page_token']}")).json
            assert ([each["name"] for each in second["topics"]], second["next_page_token"]) == (["single"], "")
            largest = (await client.get(f"/v1/{route}?page_size=1&order=bytes")).json
            assert [each["name"] for each in largest["topics"]] == ["single"]
            assert [each["name"] for each in (await client.get(f"/v1/{route}?topics=single")).json["topics"]] == ["single"]
            both = (await client.get(f"/v1/{route}?topics=single,orders,none")).json["topics"]
            assert [each["name"] for each in both] == ["orders", "single"]
            for query in ("order=size", "order=bytes&page_token=x", "page_size=1001", "topic=x"):
                assert (await client.get(f"/v1/{route}?{query}")).status == 400

    serve(tmp_path, scenario)


def test_costs_follow_from_the_requests_so_far_and_the_prices(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for _ in range(5):
            await client.produce("/v1/topics/orders/records", [{"value": "x" * 1_000}])
        found = (await client.get("/v1/costs")).json
        cluster = found["cluster"]
        assert cluster["dollars"] == pytest.approx(cluster["request_dollars"] + cluster["storage_dollars"])
        [writes] = [each for each in cluster["requests"] if (each["operation"], each["kind"]) == ("create", "segments")]
        assert writes["measured"]
        assert writes["requests"] > 0
        assert any(not each["measured"] for each in cluster["requests"]), "this broker runs no compactor"
        orders = found["topics"][0]
        assert orders["dollars"] == pytest.approx(orders["storage_dollars"] + orders["request_dollars"])
        assert found["prices"]["note"].startswith("The bucket is a local directory"), "or memory, in this test"
        free = (await client.get("/v1/costs?price_1000_writes=0&price_1000_reads=0&price_gib_month=0")).json
        assert free["cluster"]["dollars"] == 0
        broker.bucket_url = "s3://bucket/prefix"
        assert (await client.get("/v1/costs")).json["prices"]["note"].startswith("S3 Standard")
        assert "S3 Standard" not in (await client.get("/v1/costs?price_gib_month=0")).json["prices"]["note"]
        for wrong in ("-1", "nan", "inf", "x"):
            assert (await client.get(f"/v1/costs?price_gib_month={wrong}")).status == 400

    serve(tmp_path, scenario)


def test_a_bucket_is_verified_in_the_background(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async def state() -> Any:
            return (await client.get("/v1/verification")).json

        assert (await state())["state"] == "none"
        assert (await client.refused(client.ask("DELETE", "/v1/verification"))) == (404, "NOT_FOUND")
        await client.produce("/v1/topics/orders/records", [{"value": "x"}])
        begun = await client.ask("POST", "/v1/verification")
        assert (begun.status, begun.json["state"]) == (202, "running")
        found = await verified(state)
        assert (found["state"], found["sessions"], found["records"]) == ("done", 1, 1)
        assert found["segments_read"] == found["segments"] == 1

    serve(tmp_path, scenario)


def test_readers_see_their_topics_and_nothing_of_the_whole_bucket(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        for name in ("orders", "salaries"):
            await broker.as_admin("POST", "/v1/topics", json={"name": name, "partition_count": 1})
        await broker.allow("ann", "read", "topic", "orders")
        key = bearer(await broker.key("ann"))
        for route in ("storage", "costs"):
            found = (await broker.http.ask("GET", f"/v1/{route}", headers=key)).json
            assert [each["name"] for each in found["topics"]] == ["orders"]
            assert found.get("bucket") is None
            assert found.get("cluster") is None
            assert (await broker.http.ask("GET", f"/v1/{route}?topics=salaries", headers=key)).json["topics"] == []
            assert (await broker.http.ask("GET", f"/v1/{route}")).status == 401
        for method in ("GET", "POST", "DELETE"):
            assert (await broker.http.ask(method, "/v1/verification", headers=key)).status == 403
        begun = await broker.as_admin("POST", "/v1/verification")
        assert begun["begun_by"]
        assert (await verified(lambda: broker.as_admin("GET", "/v1/verification")))["state"] == "done"
        assert any("POST /v1/verification" in line.values() and "ok" in line.values() for line in await broker.audited())

    serve_guarded(tmp_path, scenario)
