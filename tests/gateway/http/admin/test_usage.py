"""/v1/storage, /v1/costs and /v1/verification over the real routes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.concurrency import offload
from gateway.http.admin import usage
from gateway.topics.usage import cluster_usage, service
from gateway.topics.usage.cost_forecast import CostBasis, Forecast, forecast
from gateway.topics.usage.service import FORECASTS_MAX
from gateway.topics.usage.storage_report import NO_FIGURES, StoredTopic
from metadata.model import TopicId
from metadata.topics.topic import Topic
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


def test_requests_share_a_forecast_until_the_figures_or_the_prices_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CostBasis] = []

    def counted(basis: CostBasis) -> Forecast:
        made.append(basis)
        return forecast(basis)

    monkeypatch.setattr(service, "forecast", counted)
    monkeypatch.setattr(cluster_usage, "KEPT_S", 3_600.0)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        while (await client.get("/v1/storage")).json["bucket"] is None:  # noqa: ASYNC110  # a client has no event for it
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*(client.get("/v1/costs") for _ in range(5)))
        assert len(made) == 1
        assert len({answer.json["cluster"]["dollars"] for answer in answers}) == 1
        for price in range(2 * FORECASTS_MAX):
            found = (await client.get(f"/v1/costs?price_1000_writes={price}")).json
            assert found["prices"]["price_1000_writes"] == price
        assert [basis.prices.thousand_writes for basis in made[1:]] == [*map(float, range(2 * FORECASTS_MAX))]
        await client.ask("POST", "/v1/topics", json={"name": "more", "partition_count": 1})
        assert "more" in [each["name"] for each in (await client.get("/v1/costs")).json["topics"]]

    serve(tmp_path, scenario)


def test_others_get_their_turn_while_many_topics_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "TURN_S", 0.0)

    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        others = asyncio.create_task(count())
        ids = [TopicId(f"{number:032x}") for number in range(10_000)]
        topics = [Topic(id=each, name=each, partition_count=1, settings={}, created_at_ms=0) for each in ids]
        stored = [StoredTopic(topic, NO_FIGURES, None, None) for topic in topics]
        assert await usage._visible(stored) == stored
        assert turns >= len(topics) / usage._AT_ONCE
        turns = 0
        assert await usage._history([(1.0, 2.0), (3.0,)] * 5_000) == (5_000.0, 25_000.0)
        assert turns >= len(topics) / usage._AT_ONCE
        others.cancel()

    asyncio.run(main())


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
