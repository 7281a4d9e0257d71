"""Requests over HTTP at a broker that has not heard yet of the topic that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.topics.cache import TopicCache
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow

PARTITION = "/v1/topics/single/partitions/0"


def test_a_read_or_an_operators_request_waits_until_the_broker_has_heard_of_the_topic(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/single/records", [{"value": 1}])
        cache, catch_up = broker.topic_cache, TopicCache.catch_up
        topic = cache.get("single")

        async def hear(self: TopicCache, name: str, *, timeout_s: float) -> None:
            cache._by_name["single"] = topic
            await catch_up(self, name, timeout_s=timeout_s)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(TopicCache, "catch_up", hear)
            for method, path, body in (
                ("GET", f"{PARTITION}/records", None),
                ("GET", f"{PARTITION}/offsets/0/explain", None),
                ("GET", f"{PARTITION}/leader-epochs/0", None),
                ("POST", f"{PARTITION}/delete-records", {"before_offset": 0}),
            ):
                del cache._by_name["single"]
                answer = await client.ask(method, path, json=body)
                assert answer.status == 200, (path, answer.body)
            del cache._by_name["single"]
            lines = await client.ask("GET", "/v1/topics/single/records?max_records=1", headers={"accept": "application/x-ndjson"})
            assert (lines.status, [line["value"] for line in lines.lines]) == (200, [1])

    serve(tmp_path, scenario)
