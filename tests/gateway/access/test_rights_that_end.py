"""What becomes of calls that are under way when a key is revoked or expires, or a right is taken back; and of keys that are
narrowed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from gateway.proto import groups_pb2, log_pb2
from gateway.proto.status import from_status
from metadata.errors import NotAuthorized, TidelogError, Unauthenticated, Unavailable
from metadata.groups.consumer_protocol import encode_assignment
from tests.gateway.integration.test_both_listeners import append
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, reported, serve
from tests.kit.gateway.stubs import health_stub
from tests.kit.metadata.stores import until

pytestmark = pytest.mark.slow

LONG_POLL = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="orders", offset=0)], max_wait_ms=50_000, min_bytes=1)


async def reader(at: Guarded) -> str:
    """A key of who may read an empty topic, and be in a group."""
    await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
    await at.allow("billing", "read", "topic", "orders")
    await at.allow("billing", "read", "group", "g", pattern="prefix")
    return await at.key("billing")


async def revoke(at: Guarded, key: str) -> None:
    await at.as_admin("DELETE", f"/v1/keys/{key.split('_')[1]}")


async def until_lasting(at: Guarded, count: int) -> None:
    guard = at.broker.guard
    assert guard is not None
    await until(lambda: guard.lasting >= count)


async def streamed(at: Guarded, key: str, group: str = "g") -> Any:
    """A Consume stream of a member, that was assigned its partition."""
    stream: Any = at.channel.stream_stream("/tidelog.v1.Log/Consume")(metadata=(("authorization", f"Bearer {key}"),))
    start = log_pb2.ConsumeStart(topics=["orders"], group=group)
    await stream.write(log_pb2.ConsumeRequest(start=start, credit_bytes=1_000_000).SerializeToString())
    while not log_pb2.ConsumeResponse.FromString(await stream.read()).HasField("assigned"):
        pass
    return stream


async def end_of(stream: Any) -> TidelogError:
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return reported(error)
    raise AssertionError("it ended well")


def test_long_polls_and_streams_end_when_their_key_is_revoked(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        key, other = await reader(at), await at.key("billing")
        stays = await streamed(at, other, "g2")
        stream = await streamed(at, key)
        polling = asyncio.ensure_future(at.call("/tidelog.v1.Log/Fetch", LONG_POLL, key))
        path = "/v1/topics/orders/partitions/0/records"
        asking = asyncio.ensure_future(at.http.get(f"{path}?wait_ms=50000", **bearer(key)))
        async with at.http.session.get(path, headers={**bearer(key), "accept": "text/event-stream"}) as events:
            assert events.status == 200
            await until_lasting(at, 5)
            await revoke(at, key)
            with pytest.raises(Unauthenticated) as refused:
                await polling
            assert "was revoked" in refused.value.message
            answer = await asking
            assert (answer.status, answer.json["code"]) == (401, "UNAUTHENTICATED")
            with pytest.raises(aiohttp.ClientError):
                await events.read()
        assert isinstance(await end_of(stream), Unauthenticated)
        await at.as_admin("POST", "/v1/topics/orders/records", json={"records": [{"value": 1}]})
        while not log_pb2.ConsumeResponse.FromString(await stays.read()).HasField("data"):
            pass
        assert sum("was revoked" in line.get("reason", "") for line in await at.audited()) == 4

    serve(tmp_path, scenario)


def test_lasting_calls_end_and_none_begins_while_the_broker_cannot_read_the_acls(tmp_path: Path) -> None:
    """As when it is cut off from etcd for longer than access_max_age_ms; what comes of that is in test_stale_views.py."""

    async def scenario(at: Guarded) -> None:
        guard = at.broker.guard
        assert guard is not None
        key = await reader(at)
        await at.allow("billing", "write", "topic", "orders")
        stream = await streamed(at, key)
        producing: Any = at.channel.stream_stream("/tidelog.v1.Log/ProduceStream")(metadata=(("authorization", f"Bearer {key}"),))
        polling = asyncio.ensure_future(at.call("/tidelog.v1.Log/Fetch", LONG_POLL, key))
        path = "/v1/topics/orders/partitions/0/records"
        async with at.http.session.get(path, headers={**bearer(key), "accept": "text/event-stream"}) as events:
            await until_lasting(at, 3)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(guard.cache, "stale_error", lambda: Unavailable("not heard from etcd for 9 s"))
                guard._check_lasting()
                with pytest.raises(Unavailable, match="not heard from etcd"):
                    await polling
                with pytest.raises(aiohttp.ClientError):
                    await events.read()
                assert isinstance(await end_of(stream), Unavailable)
                await producing.write(append("orders").SerializeToString())
                answer = log_pb2.ProduceResponse.FromString(await producing.read())
                assert isinstance(from_status(answer.results[0].error), Unavailable)
                refused = await at.http.get("/v1/topics", **bearer(key))
                assert (refused.status, refused.json["code"], refused.json["retryable"]) == (503, "UNAVAILABLE", True)
                probed = await at.http.get("/readyz", **bearer(ADMIN_KEY))
                assert (probed.status, probed.json["status"]) == (503, "no access")
                assert "not heard from etcd" in probed.json["reason"]
                assert (await at.http.get("/livez")).status == 200
                health = await health_stub(at.channel).Check(health_pb2.HealthCheckRequest())
                scraped = await at.http.get("/metrics", **bearer(ADMIN_KEY))
                assert b"\ntidelog_ready 0" in scraped.body
                assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
                assert (await at.http.get("/v1/topics", **bearer(ADMIN_KEY))).status == 200
            await producing.write(append("orders").SerializeToString())
            assert log_pb2.ProduceResponse.FromString(await producing.read()).results[0].placements
            assert (await at.http.get("/v1/topics", **bearer(key))).status == 200

    serve(tmp_path, scenario)


def test_lasting_calls_end_when_their_right_is_revoked(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        key = await reader(at)
        polling = asyncio.ensure_future(at.call("/tidelog.v1.Log/Fetch", LONG_POLL, key))
        stream = await streamed(at, key)
        await until_lasting(at, 2)
        await at.allow("billing", "write", "topic", "orders", effect="deny")
        await asyncio.sleep(0)
        assert not polling.done()
        await at.allow("*", "read", "topic", "orders", effect="deny")
        with pytest.raises(NotAuthorized):
            await polling
        assert isinstance(await end_of(stream), NotAuthorized)

    serve(tmp_path, scenario)


def test_lasting_calls_end_when_their_key_expires(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await reader(at)
        key = await at.key("billing", expires_at_ms=time.time_ns() // 1_000_000 + 1_500)
        with pytest.raises(Unauthenticated) as refused:
            await at.call("/tidelog.v1.Log/Fetch", LONG_POLL, key)
        assert "has expired" in refused.value.message
        assert (await at.http.get("/v1/topics", **bearer(key))).status == 401

    serve(tmp_path, scenario)


def test_a_produce_stream_takes_nothing_more_once_its_key_is_revoked(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        key = await reader(at)
        await at.allow("billing", "write", "topic", "orders")
        stream: Any = at.channel.stream_stream("/tidelog.v1.Log/ProduceStream")(metadata=(("authorization", f"Bearer {key}"),))
        await stream.write(append("orders").SerializeToString())
        assert log_pb2.ProduceResponse.FromString(await stream.read()).results[0].placements
        await revoke(at, key)
        await stream.write(append("orders").SerializeToString())
        await stream.write(append("orders").SerializeToString())
        assert log_pb2.ProduceResponse.FromString(await stream.read()).results[0].error.code == 16
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        assert isinstance(reported(ended.value), Unauthenticated), "the stream ends once what was read is answered"
        found = (await at.http.get("/v1/topics/orders/partitions/0", **bearer(ADMIN_KEY))).json
        assert found["high_watermark"] == 1

    serve(tmp_path, scenario)


def test_a_scope_takes_away_and_never_adds(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await reader(at)
        await at.allow("billing", "write", "topic", "orders")
        scopes = [{"operation": "read", "resource": "topic", "name": "orders"}, {"operation": "all", "resource": "cluster"}]
        key = await at.key("billing", scopes=scopes)
        read, produce = "/v1/topics/orders/partitions/0/records", {"json": {"records": [{"value": 1}]}, "headers": bearer(key)}
        assert (await at.http.get(read, **bearer(key))).status == 200
        assert (await at.http.ask("POST", "/v1/topics/orders/records", **produce)).status == 403
        assert (await at.http.get("/v1/keys", **bearer(key))).status == 403

    serve(tmp_path, scenario)


def test_a_member_that_leads_its_group_assigns_itself_nothing_that_it_may_not_read(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        key = await reader(at)
        await at.as_admin("POST", "/v1/topics", json={"name": "secret", "partition_count": 1})
        await at.as_admin("POST", "/v1/topics/secret/records", json={"records": [{"value": "canary"}]})
        joined = groups_pb2.JoinGroupResponse()
        member_id = ""
        for _ in range(2):
            request = groups_pb2.JoinGroupRequest(
                group="g",
                member_id=member_id,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[groups_pb2.GroupProtocol(name="range", metadata=bytes(10))],
            )
            try:
                joined = groups_pb2.JoinGroupResponse.FromString(await at.call("/tidelog.v1.Groups/JoinGroup", request, key))
                break
            except TidelogError as error:
                member_id = str(error.details["member_id"])
        stolen = encode_assignment({"secret": [0], "orders": [0]})
        sync = groups_pb2.SyncGroupRequest(group="g", member_id=joined.member_id, generation=joined.generation)
        sync.assignments[joined.member_id] = stolen
        await at.call("/tidelog.v1.Groups/SyncGroup", sync, key)
        path = f"/v1/groups/g/members/{joined.member_id}/records?generation={joined.generation}"
        answer = await at.http.get(path, **bearer(key))
        assert b"canary" not in answer.body
        assert b"PERMISSION_DENIED" in answer.body

    serve(tmp_path, scenario)
