"""What a principal may not see is not named to it: in lists, descriptions of groups, hints, and tokens of pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.proto import groups_pb2, log_pb2
from metadata.page_token import name_in
from tests.gateway.integration.test_both_listeners import append
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, serve


@pytest.mark.slow
def test_hidden_topics_are_omitted_from_descriptions_and_seeks_of_a_group(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        for topic in ("orders", "salaries"):
            await at.as_admin("POST", "/v1/topics", json={"name": topic, "partition_count": 1})
            await at.call("/tidelog.v1.Log/Produce", append(topic), ADMIN_KEY)
        commit = {"offsets": [{"topic": topic, "partition": 0, "offset": 1} for topic in ("orders", "salaries")]}
        await at.as_admin("POST", "/v1/groups/g/offsets", json=commit)
        key = await at.key("billing")
        await at.allow("billing", "all", "group", "g")
        await at.allow("billing", "read", "topic", "orders")
        over_http = await at.http.get("/v1/groups/g", **bearer(key))
        assert [lag["topic"] for lag in over_http.json["lags"]] == ["orders"]
        request = groups_pb2.DescribeGroupRequest(group="g")
        over_grpc = await at.call("/tidelog.v1.Groups/DescribeGroup", request, key)
        assert b"salaries" not in over_grpc
        assert b"salaries" in await at.call("/tidelog.v1.Groups/DescribeGroup", request, ADMIN_KEY)
        sought = await at.http.ask("POST", "/v1/groups/g/seek", headers=bearer(key), json={"to": "earliest"})
        assert sought.status == 200
        assert b"orders" in sought.body
        assert b"salaries" not in sought.body

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_a_mistyped_topic_is_met_with_no_name_that_may_not_be_seen(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "salaries", "partition_count": 1})
        key = await at.key("billing")
        await at.allow("billing", "all", "topic", "salarie")
        for method, path in (
            ("GET", "/v1/topics/salarie"),
            ("DELETE", "/v1/topics/salarie"),
            ("POST", "/v1/topics/salarie/records"),
        ):
            body = {"json": {"records": [{"value": "x"}]}} if method == "POST" else {}
            answer = await at.http.ask(method, path, headers=bearer(key), **body)
            assert (answer.status, answer.json["code"]) == (404, "UNKNOWN_TOPIC")
            assert b"salaries" not in answer.body
        fetched = await at.call("/tidelog.v1.Log/Fetch", _fetch("salarie"), key)
        assert b"salarie" in fetched
        assert b"salaries" not in fetched
        assert b"salaries" in (await at.http.get("/v1/topics/salarie", **bearer(ADMIN_KEY))).body

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_the_token_of_a_page_holds_a_name_of_that_page(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        commit = {"offsets": [{"topic": "orders", "partition": 0, "offset": 0}]}
        for group in ("a-mine", "b-secret", "c-mine"):
            await at.as_admin("POST", f"/v1/groups/{group}/offsets", json=commit)
        key = await at.key("billing")
        for group in ("a-mine", "c-mine"):
            await at.allow("billing", "describe", "group", group)
        page = (await at.http.get("/v1/groups?page_size=1", **bearer(key))).json
        assert [each["group"] for each in page["groups"]] == ["a-mine"]
        assert name_in(page["next_page_token"], of="groups") == "a-mine"
        rest = (await at.http.get(f"/v1/groups?page_token={page['next_page_token']}", **bearer(key))).json
        assert [each["group"] for each in rest["groups"]] == ["c-mine"]

    serve(tmp_path, scenario)


def _fetch(topic: str) -> log_pb2.FetchRequest:
    return log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic=topic)])
