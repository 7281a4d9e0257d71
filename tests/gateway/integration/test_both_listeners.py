"""One principal, one key, one ACL, through a real broker: what it may do at both listeners, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.proto import admin_pb2, log_pb2
from metadata.errors import NotAuthorized, Unauthenticated
from tests.kit.gateway.access.guarded_broker import Guarded, bearer, serve
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow


def append(topic: str) -> log_pb2.ProduceRequest:
    return log_pb2.ProduceRequest(appends=[log_pb2.Append(topic=topic, partition=0, record_batch=batch_of(b"a"))])


def test_a_key_opens_what_an_acl_allows_its_principal_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        for name in ("orders", "invoices"):
            await at.as_admin("POST", "/v1/topics", json={"name": name, "partition_count": 1})
        key = await at.key("billing")
        produce = {"json": {"records": [{"value": 1}]}, "headers": bearer(key)}
        assert await at.http.refused(at.http.ask("POST", "/v1/topics/orders/records", **produce)) == (403, "PERMISSION_DENIED")
        await at.allow("billing", "write", "topic", "orders")
        assert (await at.http.ask("POST", "/v1/topics/orders/records", **produce)).status == 200
        answer = log_pb2.ProduceResponse.FromString(await at.call("/tidelog.v1.Log/Produce", append("orders"), key))
        assert answer.results[0].placements[0].base_offset == 1
        assert await at.http.refused(at.http.ask("POST", "/v1/topics/invoices/records", **produce)) == (403, "PERMISSION_DENIED")
        refused = log_pb2.ProduceResponse.FromString(await at.call("/tidelog.v1.Log/Produce", append("invoices"), key))
        assert refused.results[0].error.code == 7
        read = "/v1/topics/orders/partitions/0/records"
        assert await at.http.refused(at.http.get(read, **bearer(key))) == (403, "PERMISSION_DENIED")
        await at.allow("billing", "read", "topic", "orders")
        assert len((await at.http.get(read, **bearer(key))).json["records"]) == 2

    serve(tmp_path, scenario)


def test_missing_or_wrong_credentials_are_refused_over_http_and_grpc(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        wrong = "tlk_" + "00" * 8 + "_" + "00" * 32
        for headers in ({}, bearer(wrong), bearer("nonsense"), {"authorization": "Basic bm9ib2R5Om5vdGhpbmc="}):
            answer = await at.http.ask("GET", "/v1/topics", headers=headers)
            assert (answer.status, answer.json["code"]) == (401, "UNAUTHENTICATED")
            assert "Bearer" in answer.headers["www-authenticate"]
        for key in ("", wrong, "nonsense"):
            with pytest.raises(Unauthenticated) as refused:
                await at.call("/tidelog.v1.Topics/ListTopics", admin_pb2.ListTopicsRequest(), key)
            assert refused.value.__notes__ == ["UNAUTHENTICATED"]

    serve(tmp_path, scenario)


def test_a_caller_without_rights_cannot_learn_whether_a_topic_exists(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "secret"})
        await at.as_admin("POST", "/v1/topics", json={"name": "shown"})
        key = await at.key("billing")
        await at.allow("billing", "describe", "topic", "sho", pattern="prefix")
        there = await at.http.get("/v1/topics/secret", **bearer(key))
        not_there = await at.http.get("/v1/topics/nothing", **bearer(key))
        assert there.status == not_there.status == 403
        assert there.json["detail"].replace("secret", "nothing") == not_there.json["detail"]
        found = []
        for name in ("secret", "nothing"):
            with pytest.raises(NotAuthorized) as refused:
                await at.call("/tidelog.v1.Topics/GetTopic", admin_pb2.GetTopicRequest(name=name), key)
            found.append(refused.value.message.replace(name, ""))
        assert found[0] == found[1]
        assert [topic["name"] for topic in (await at.http.get("/v1/topics", **bearer(key))).json["topics"]] == ["shown"]
        page = await at.call("/tidelog.v1.Topics/ListTopics", admin_pb2.ListTopicsRequest(), key)
        assert [topic.name for topic in admin_pb2.ListTopicsResponse.FromString(page).topics] == ["shown"]

    serve(tmp_path, scenario)
