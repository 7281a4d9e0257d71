"""Who may create topics of some names may do so over HTTP and gRPC, and may neither see nor change them without other rights."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from gateway.proto import admin_pb2, log_pb2
from metadata.errors import NotAuthorized
from tests.kit.gateway.access.guarded_broker import Guarded, bearer, serve

pytestmark = pytest.mark.slow
_TOPICS = "/tidelog.v1.Topics/"


async def create_over_http(at: Guarded, key: str, name: str) -> int:
    return (await at.http.ask("POST", "/v1/topics", headers=bearer(key), json={"name": name, "partition_count": 1})).status


async def create_over_grpc(at: Guarded, key: str, name: str) -> None:
    await at.call(f"{_TOPICS}CreateTopic", admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name, partition_count=1)), key)


async def refused_changes(at: Guarded, key: str, name: str) -> None:
    path = f"/v1/topics/{name}"
    for method, route, body in (
        ("PATCH", path, {"partition_count": 2}),
        ("PATCH", path, {"settings": {"retention.ms": "1"}}),
        ("PUT", f"{path}/settings", {"settings": {}}),
        ("POST", f"{path}/partitions/0/delete-records", {"before_offset": -1}),
        ("DELETE", path, None),
    ):
        answer = await at.http.ask(method, route, headers=bearer(key), **({} if body is None else {"json": body}))
        assert (answer.status, answer.json["code"]) == (403, "PERMISSION_DENIED"), (method, route)
    grown = admin_pb2.Topic(name=name, partition_count=2)
    for call, request in (
        (f"{_TOPICS}UpdateTopic", admin_pb2.UpdateTopicRequest(topic=grown, update_mask=FieldMask(paths=["partition_count"]))),
        (f"{_TOPICS}DeleteTopic", admin_pb2.DeleteTopicRequest(name=name)),
        ("/tidelog.v1.Log/DeleteRecords", log_pb2.DeleteRecordsRequest(topic=name, before_offset=-1)),
    ):
        with pytest.raises(NotAuthorized):
            await at.call(call, request, key)


def test_a_right_to_create_is_one_to_its_names_over_every_listener(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        key = await at.key("team")
        await at.allow("team", "create", "topic", "team-", pattern="prefix")
        assert [await create_over_http(at, key, name) for name in ("team-a", "orders", "team-a")] == [201, 403, 409]
        await create_over_grpc(at, key, "team-b")
        with pytest.raises(NotAuthorized) as refused:
            await create_over_grpc(at, key, "orders")
        assert refused.value.hint.endswith("tidelog acl add team create --topic orders")
        await refused_changes(at, key, "team-a")
        assert (await at.http.get("/v1/topics/team-a", **bearer(key))).status == 403
        assert (await at.http.get("/v1/topics", **bearer(key))).json["topics"] == []

    serve(tmp_path, scenario)


def test_a_key_that_is_narrowed_to_create_creates_topics_and_changes_none(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.allow("team", "all", "topic")
        scope = {"operation": "create", "resource": "topic", "name": "team-", "pattern": "prefix"}
        key = await at.key("team", scopes=[scope])
        assert [await create_over_http(at, key, name) for name in ("team-a", "orders")] == [201, 403]
        await refused_changes(at, key, "team-a")

    serve(tmp_path, scenario)


def test_a_right_to_create_on_the_cluster_is_one_to_every_topic(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        key = await at.key("team")
        acl_id = await at.allow("team", "create", "cluster")
        await at.allow("team", "create", "topic", "secret", effect="deny")
        assert [await create_over_http(at, key, name) for name in ("orders", "secret")] == [201, 403]
        await create_over_grpc(at, key, "more")
        assert (await at.http.get("/v1/acls", **bearer(key))).status == 403
        await at.as_admin("DELETE", f"/v1/acls/{acl_id}")
        assert await create_over_http(at, key, "last") == 403

    serve(tmp_path, scenario)
