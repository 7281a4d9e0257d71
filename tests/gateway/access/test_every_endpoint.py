"""Every route and every method, by the rows of gateway/access/permissions.py: refused without, with wrong, expired, revoked and too
narrow credentials; an answer with nothing but the refusal; each refusal in the audit log; and no secret anywhere."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from gateway.access.permissions import GRPC_CALLS, HTTP_CALLS, NO_ROUTE, RequiredAccess, http_route
from gateway.grpc.health import SERVICE as HEALTH
from gateway.grpc.reflection import SERVICE as REFLECTION
from gateway.grpc.server import GrpcServer
from gateway.proto import admin_pb2, groups_pb2, log_pb2
from metadata.access.registry import AccessRegistry
from metadata.errors import NotAuthorized, TidelogError, Unauthenticated
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, guarded, reported
from tests.kit.gateway.otlp_receiver import Receiver, receiving
from tests.kit.gateway.small_broker import SmallBroker, with_broker
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow

# In every name, value and key that no answer may contain.
CANARY = "canary-7f3a"
TOPIC, GROUP = f"t-{CANARY}", f"g-{CANARY}"
WRONG_KEY = "tlk_" + "00" * 8 + "_" + "c0" * 32

PATHS = {"topic": TOPIC, "group": GROUP, "partition": "0", "offset": "0", "leader_epoch": "0", "member_id": "m", "broker_id": "b"}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/topics"): {"name": TOPIC},
    ("POST", "/v1/keys"): {"principal": "intruder"},
    ("POST", "/v1/acls"): {"principal": "intruder", "operation": "all", "resource": "topic", "name": "*"},
    ("POST", "/v1/quotas"): {"principal": "intruder", "requests_per_second": 1},
    ("POST", "/v1/topics/{topic}/records"): {"records": [{"value": CANARY}]},
    ("PATCH", "/v1/topics/{topic}"): {"partition_count": 3},
    ("PUT", "/v1/topics/{topic}/settings"): {"settings": {}},
    ("POST", "/v1/topics/{topic}/partitions/{partition}/delete-records"): {"before_offset": -1},
}
_LOG, _TOPICS, _CLUSTER, _GROUPS, _ACCESS = (f"/tidelog.v1.{name}/" for name in ("Log", "Topics", "Cluster", "Groups", "Access"))
_APPEND = log_pb2.Append(topic=TOPIC, partition=0, record_batch=batch_of(CANARY.encode()))
_NAMED = groups_pb2.TopicPartitions(topic=TOPIC)
REQUESTS: dict[str, Any] = {
    f"{_LOG}InitProducer": log_pb2.InitProducerRequest(),
    f"{_LOG}Produce": log_pb2.ProduceRequest(appends=[_APPEND]),
    f"{_LOG}ProduceStream": log_pb2.ProduceRequest(appends=[_APPEND]),
    f"{_LOG}Fetch": log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic=TOPIC)]),
    f"{_LOG}Consume": log_pb2.ConsumeRequest(start=log_pb2.ConsumeStart(topics=[TOPIC], group=GROUP), credit_bytes=1000),
    f"{_LOG}ListOffsets": log_pb2.ListOffsetsRequest(queries=[log_pb2.OffsetQuery(topic=TOPIC, timestamp_ms=0)]),
    f"{_LOG}OffsetForLeaderEpoch": log_pb2.OffsetForLeaderEpochRequest(queries=[log_pb2.LeaderEpochQuery(topic=TOPIC)]),
    f"{_LOG}DeleteRecords": log_pb2.DeleteRecordsRequest(topic=TOPIC, before_offset=-1),
    f"{_LOG}FindWrittenOnce": log_pb2.FindWrittenOnceRequest(topic=TOPIC, producer_id=1 << 62, partitions=[0]),
    f"{_TOPICS}CreateTopic": admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=TOPIC, partition_count=1)),
    f"{_TOPICS}GetTopic": admin_pb2.GetTopicRequest(name=TOPIC),
    f"{_TOPICS}ListTopics": admin_pb2.ListTopicsRequest(),
    f"{_TOPICS}UpdateTopic": admin_pb2.UpdateTopicRequest(
        topic=admin_pb2.Topic(name=TOPIC, partition_count=2), update_mask=FieldMask(paths=["partition_count"])
    ),
    f"{_TOPICS}DeleteTopic": admin_pb2.DeleteTopicRequest(name=TOPIC),
    f"{_CLUSTER}GetCluster": admin_pb2.GetClusterRequest(),
    f"{_CLUSTER}ListBrokers": admin_pb2.ListBrokersRequest(),
    f"{_CLUSTER}DrainBroker": admin_pb2.DrainBrokerRequest(broker_id="broker-1"),
    f"{_CLUSTER}UndrainBroker": admin_pb2.UndrainBrokerRequest(broker_id="broker-1"),
    f"{_CLUSTER}ExplainOffset": admin_pb2.ExplainOffsetRequest(topic=TOPIC),
    f"{_CLUSTER}DescribeUsage": admin_pb2.DescribeUsageRequest(),
    f"{_GROUPS}FindCoordinator": groups_pb2.FindCoordinatorRequest(group=GROUP),
    f"{_GROUPS}JoinGroup": groups_pb2.JoinGroupRequest(group=GROUP),
    f"{_GROUPS}SyncGroup": groups_pb2.SyncGroupRequest(group=GROUP),
    f"{_GROUPS}Heartbeat": groups_pb2.HeartbeatRequest(group=GROUP),
    f"{_GROUPS}ConsumerHeartbeat": groups_pb2.ConsumerHeartbeatRequest(group=GROUP),
    f"{_GROUPS}LeaveGroup": groups_pb2.LeaveGroupRequest(group=GROUP, members=[groups_pb2.LeavingMember(member_id="m")]),
    f"{_GROUPS}OffsetCommit": groups_pb2.OffsetCommitRequest(
        group=GROUP, generation=-1, offsets=[groups_pb2.CommittedOffset(topic=TOPIC, offset=1)]
    ),
    f"{_GROUPS}OffsetFetch": groups_pb2.OffsetFetchRequest(group=GROUP, topics=[_NAMED]),
    f"{_GROUPS}ListGroups": groups_pb2.ListGroupsRequest(),
    f"{_GROUPS}DescribeGroup": groups_pb2.DescribeGroupRequest(group=GROUP),
    f"{_GROUPS}DeleteGroup": groups_pb2.DeleteGroupRequest(group=GROUP),
    f"{_GROUPS}DeleteOffsets": groups_pb2.DeleteOffsetsRequest(group=GROUP, topics=[_NAMED]),
    f"{_GROUPS}SeekGroup": groups_pb2.SeekGroupRequest(group=GROUP, topics=[_NAMED], earliest=True),
    f"{_GROUPS}SeenBrokers": groups_pb2.SeenBrokersRequest(),
    f"{_GROUPS}ListLagSamples": groups_pb2.ListLagSamplesRequest(groups=[groups_pb2.WatchedGroup(group=GROUP)]),
    f"{_ACCESS}CreateKey": admin_pb2.CreateKeyRequest(principal="intruder"),
    f"{_ACCESS}ListKeys": admin_pb2.ListKeysRequest(),
    f"{_ACCESS}RevokeKey": admin_pb2.RevokeKeyRequest(key_id="ad" * 8),
    f"{_ACCESS}CreateAcl": admin_pb2.CreateAclRequest(
        acl=admin_pb2.Acl(principal="intruder", operation="all", resource="topic", name="*")
    ),
    f"{_ACCESS}ListAcls": admin_pb2.ListAclsRequest(),
    f"{_ACCESS}DeleteAcl": admin_pb2.DeleteAclRequest(acl_id="00" * 8),
    f"{_ACCESS}SetQuota": admin_pb2.SetQuotaRequest(quota=admin_pb2.Quota(principal="intruder", requests_per_second=1)),
    f"{_ACCESS}ListQuotas": admin_pb2.ListQuotasRequest(),
    f"{_ACCESS}DeleteQuota": admin_pb2.DeleteQuotaRequest(principal="intruder"),
}
STREAMS = {f"{_LOG}ProduceStream", f"{_LOG}Consume"}
# By what a call needs: all operations that its refused caller is allowed.
LACKING = {
    "describe": ("create",),
    "read": ("write", "create", "admin"),
    "write": ("read", "create", "admin"),
    "create": ("read", "write"),
    "admin": ("read", "write", "create"),
}


def without_names(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_every_route_has_a_row_and_every_row_a_route(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        from gateway.http.admin.api import admin_api

        paths = admin_api(broker).openapi()["paths"]
        routes = {(method.upper(), without_names(path)) for path, operations in paths.items() for method in operations}
        rows = {(method, without_names(path)) for method, path in HTTP_CALLS}
        assert rows == routes | {("GET", "/openapi.json")}
        services = GrpcServer(broker)._services()
        guarded = services.keys() - {HEALTH, REFLECTION}
        assert GRPC_CALLS.keys() == {f"/{service}/{method}" for service in guarded for method in services[service]}
        assert GRPC_CALLS.keys() == REQUESTS.keys()

    with_broker(tmp_path, scenario)


@pytest.mark.parametrize(("method", "template"), HTTP_CALLS)
def test_a_path_is_found_by_its_row(method: str, template: str) -> None:
    path = template.format(**PATHS, key_id="0", acl_id="0")
    assert http_route(method, path.split("/")).action == f"{method} {template}"
    assert http_route("BREW", path.split("/")) is NO_ROUTE


async def with_records(at: Guarded) -> None:
    await at.as_admin("POST", "/v1/topics", json={"name": TOPIC, "partition_count": 1})
    await at.as_admin("POST", f"/v1/topics/{TOPIC}/records", json={"records": [{"key": CANARY, "value": CANARY}]})
    await at.as_admin("POST", f"/v1/groups/{GROUP}/offsets", json={"offsets": [{"topic": TOPIC, "partition": 0, "offset": 1}]})


async def bad_keys(at: Guarded) -> dict[str, str]:
    """By what is wrong with it."""
    revoked = await at.key("administrator")
    await at.as_admin("DELETE", f"/v1/keys/{revoked.split('_')[1]}")
    long_ago = AccessRegistry(at.broker._metadata, at.broker._layout, now_ms=lambda: 1_000)
    expired = await long_ago.create_key("administrator", expires_at_ms=2_000)
    cache = at.broker.guard.cache if at.broker.guard is not None else None
    assert cache is not None
    assert await cache.wait_for("key", expired.revision, 60)
    return {"none": "", "wrong": WRONG_KEY, "revoked": revoked, "expired": expired.text.reveal()}


async def http_answer(at: Guarded, method: str, template: str, key: str) -> tuple[int, bytes]:
    path = template.format(**PATHS, key_id="ad" * 8, acl_id="00" * 8)
    if (method, template) == ("DELETE", "/v1/quotas"):
        path += "?principal=intruder"
    arguments: dict[str, Any] = {"json": BODIES[method, template]} if (method, template) in BODIES else {}
    answer = await at.http.ask(method, path, headers=bearer(key) if key else {}, **arguments)
    assert answer.status not in {401, 403} or answer.headers["content-type"] == "application/problem+json"
    return answer.status, answer.body


async def grpc_answer(at: Guarded, path: str, key: str) -> bytes | TidelogError:
    try:
        if path not in STREAMS:
            return await at.call(path, REQUESTS[path], key)
        metadata = (("authorization", f"Bearer {key}"),) if key else ()
        stream: Any = at.channel.stream_stream(path)(metadata=metadata, timeout=60)
        await stream.write(REQUESTS[path].SerializeToString())
        answer: bytes = await stream.read()
        stream.cancel()
    except grpc.aio.AioRpcError as error:
        if "SendMessageOperation" in str(error.debug_error_string()):  # refused before gRPC had sent the message: no reason came
            return await grpc_answer(at, path, key)
        return reported(error)
    except TidelogError as error:
        return error
    return answer


def names_a_topic(row: tuple[str, str] | str) -> bool:
    """Whether the request of this row does: those of members name groups alone."""
    return "{topic}" in row[1] or row == ("POST", "/v1/topics") if isinstance(row, tuple) else TOPIC in str(REQUESTS[row])


@asynccontextmanager
async def with_canary(folder: Path, *, otlp_endpoint: str = "") -> AsyncIterator[Guarded]:
    async with guarded(folder, otlp_endpoint=otlp_endpoint, admin_principals="administrator") as at:
        await with_records(at)
        yield at


def refusals(lines: list[dict[str, Any]], outcome: str) -> set[str]:
    return {line["call"] for line in lines if line["outcome"] == outcome}


@pytest.fixture
def all_that_is_logged() -> Iterator[io.StringIO]:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.setLevel(level)
    root.removeHandler(handler)


def test_credentials_that_count_for_nothing_open_nothing(tmp_path: Path, all_that_is_logged: io.StringIO) -> None:
    async def scenario(traces: Receiver) -> list[str]:
        """The secrets, all of which were shown."""
        async with with_canary(tmp_path, otlp_endpoint=traces.endpoint) as at:
            keys = await bad_keys(at)
            for key in keys.values():
                for (method, template), needs in HTTP_CALLS.items():
                    status, body = await http_answer(at, method, template, key)
                    assert (status == 200) if needs.open else (status == 401), (method, template, body)
                    assert CANARY.encode() not in body.replace(f"/{TOPIC}".encode(), b"").replace(f"/{GROUP}".encode(), b"")
                    assert key.encode() not in body or not key
                for path in GRPC_CALLS:
                    found = await grpc_answer(at, path, key)
                    assert isinstance(found, Unauthenticated), (path, found)
                    assert CANARY not in found.message
            lines = await at.audited()
            closed = {f"{method} {template}" for (method, template), needs in HTTP_CALLS.items() if not needs.open}
            assert refusals(lines, "UNAUTHENTICATED") == closed | GRPC_CALLS.keys()
            per_call = len(keys)
            assert sum(line["call"] == "GET /v1/topics" and line["outcome"] != "ok" for line in lines) == per_call
            assert (await at.http.get(f"/v1/topics/{TOPIC}", **bearer(ADMIN_KEY))).json["partitions"][0]["high_watermark"] == 1
            metrics = (await at.http.get("/metrics", **bearer(ADMIN_KEY))).body.decode()
            everything = all_that_is_logged.getvalue() + at.audit_file.read_text() + metrics
            assert at.broker.guard is not None
            secrets = [key.split("_")[2] for key in (ADMIN_KEY, *keys.values()) if key]
            assert not [secret for secret in secrets if secret in everything]
            return secrets

    async def traced() -> None:
        async with receiving() as traces:
            secrets = await scenario(traces)
        codes = [each.value.string_value for span in traces.spans for each in span.attributes if each.key == "error.type"]
        assert codes.count("UNAUTHENTICATED") > len(GRPC_CALLS), "refused calls are traced, too"
        assert traces.named("produce")
        assert not [secret for secret in secrets for body in traces.bodies if secret.encode() in body]

    asyncio.run(traced())


def test_a_caller_without_the_one_right_that_a_call_needs_may_not_make_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_canary(tmp_path) as at:
            keys: dict[tuple[str, str], str] = {}
            for kind, name in (("topic", TOPIC), ("group", GROUP)):
                for needed, allowed in LACKING.items():
                    principal = f"{kind}-without-{needed}"
                    for operation in allowed if kind == "topic" else set(allowed) - {"create"}:
                        await at.allow(principal, operation, kind, name)
                    other, other_name = ("group", GROUP) if kind == "topic" else ("topic", TOPIC)
                    await at.allow(principal, "all", other, other_name)
                    keys[kind, needed] = await at.key(principal)
            everything_but_the_cluster = await at.key("user")
            await at.allow("user", "all", "topic")
            await at.allow("user", "all", "group")
            expected: set[str] = set()
            rows: list[tuple[tuple[str, str] | str, RequiredAccess]] = [*HTTP_CALLS.items(), *GRPC_CALLS.items()]
            for row, needs in rows:
                lacking = [everything_but_the_cluster] if needs.cluster or needs.peer else []
                if needs.topic and names_a_topic(row):
                    lacking.append(keys["topic", needs.topic])
                lacking += [keys["group", needs.group]] if needs.group else []
                for key in lacking:
                    if isinstance(row, tuple):
                        status, body = await http_answer(at, *row, key)
                        assert status == 403, (row, body)
                        assert b"PERMISSION_DENIED" in body
                        expected.add(" ".join(row))
                    else:
                        found = await grpc_answer(at, row, key)
                        if isinstance(found, bytes):
                            assert b"PERMISSION_DENIED" in found, row
                        else:
                            assert isinstance(found, NotAuthorized), (row, found)
                        expected.add(row)
            assert refusals(await at.audited(), "PERMISSION_DENIED") == expected
            reported_of = (await at.http.get(f"/v1/topics/{TOPIC}", **bearer(ADMIN_KEY))).json
            assert reported_of["partition_count"] == 1
            assert reported_of["partitions"][0]["high_watermark"] == 1
            principals = {acl["principal"] for acl in (await at.as_admin("GET", "/v1/acls"))["acls"]}
            assert "intruder" not in principals

    asyncio.run(scenario())


def test_lists_leave_out_what_may_not_be_seen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_canary(tmp_path) as at:
            key = await at.key("powerless")
            for path in ("/v1/topics", "/v1/groups", "/v1/cluster", "/v1/brokers"):
                body = (await at.http.get(path, **bearer(key))).body
                assert CANARY.encode() not in body
                assert str(tmp_path).encode() not in body
            for path in (f"{_TOPICS}ListTopics", f"{_GROUPS}ListGroups", f"{_CLUSTER}GetCluster"):
                found = await grpc_answer(at, path, key)
                assert isinstance(found, bytes)
                assert CANARY.encode() not in found
                assert str(tmp_path).encode() not in found

    asyncio.run(scenario())
