"""Calls that one broker forwards to another: checked where they come in, and believed only of who knows the cluster's secret."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import uvloop

from gateway.access.caller import begin
from gateway.access.opening import peer_metadata
from gateway.access.settings import AccessSettings
from gateway.doors import partition_of
from gateway.proto import groups_pb2, log_pb2
from metadata.acl import Acl
from metadata.errors import NotAuthorized, TidelogError
from metadata.secret import Secret
from tests.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, serve, told
from tests.gateway.access.test_both_doors import append
from tests.gateway.broker_cluster import broker_cluster
from tests.gateway.http_client import Client
from tests.gateway.small_broker import PATIENCE_S
from tests.segments.batches import batch_of

FORWARDED = ("tidelog-forwarded-by", "broker-2")


@pytest.mark.slow
def test_only_who_knows_the_secret_of_the_cluster_may_say_that_it_forwards(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        assert at.broker.guard is not None
        secret = at.broker.guard._peer_secret.decode()
        for metadata in ((FORWARDED,), (FORWARDED, ("tidelog-peer", "0" * 64)), (("tidelog-peer", ""),)):
            for key in ("", ADMIN_KEY):
                with pytest.raises(NotAuthorized):
                    await at.call("/tidelog.v1.Log/Produce", append("orders"), key, *metadata)
        answer = await at.call("/tidelog.v1.Log/Produce", append("orders"), "", FORWARDED, ("tidelog-peer", secret))
        assert log_pb2.ProduceResponse.FromString(answer).results[0].placements
        for method, request in (
            ("/tidelog.v1.Groups/SeenBrokers", groups_pb2.SeenBrokersRequest()),
            ("/tidelog.v1.Log/FindWrittenOnce", log_pb2.FindWrittenOnceRequest(topic="orders", producer_id=1 << 62)),
        ):
            with pytest.raises(NotAuthorized):
                await at.call(method, request, ADMIN_KEY)
            await at.call(method, request, "", FORWARDED, ("tidelog-peer", secret))
        refusals = [line for line in await at.audited() if line["outcome"] == "PERMISSION_DENIED"]
        assert len(refusals) == 8
        assert secret not in at.audit_file.read_text()

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_through_any_broker_a_principal_may_do_the_same(tmp_path: Path) -> None:
    key_file = tmp_path / "admin.key"
    key_file.write_text(ADMIN_KEY)
    access = AccessSettings(authentication=True, admin_key_file=key_file, audit_log="off")

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, 2, access=access) as cluster:
            first, second = cluster.brokers
            async with (
                aiohttp.ClientSession(f"http://{first.http_address}") as one,
                aiohttp.ClientSession(f"http://{second.http_address}") as two,
            ):
                clients = [Client(one), Client(two)]
                made = await clients[0].ask(
                    "POST", "/v1/topics", json={"name": "orders", "partition_count": 4}, headers=bearer(ADMIN_KEY)
                )
                assert made.status == 201
                for operation in ("read", "write"):
                    await first.access.add_acl(
                        Acl(principal="billing", operation=operation, resource="topic", name="orders"), validate_only=False
                    )
                await first.access.add_acl(
                    Acl(principal="billing", operation="all", resource="group", name="g"), validate_only=False
                )
                made_key = await first.access.create_key("billing", expires_at_ms=0, scopes=(), description="", validate_only=False)
                key = made_key.text.reveal()
                assert second.guard is not None
                assert await second.guard.cache.wait_for(made_key.revision, 30)
                topic = first.topic_cache.get("orders")
                for number in range(4):
                    await cluster.led(partition_of(topic, number))
                for client in clients:
                    records = [{"value": number, "partition": number} for number in range(4)]
                    answer = await client.produce("/v1/topics/orders/records", records, **bearer(key))
                    assert [("error" in result) for result in answer.json["results"]] == [False] * 4, answer
                    for number in range(4):
                        read = await client.get(f"/v1/topics/orders/partitions/{number}/records", **bearer(key))
                        assert read.json["records"], read
                    commit = {"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]}
                    committed = await client.ask("POST", "/v1/groups/g/offsets", json=commit, headers=bearer(key))
                    assert committed.status == 200, committed
                    described = await client.get("/v1/groups/g", **bearer(key))
                    assert described.status == 200, described
                    assert (await client.get("/v1/groups/other", **bearer(key))).status == 403
                assert {cluster.leader(partition_of(topic, number)).broker_id for number in range(4)} == {"broker-0", "broker-1"}
                await refuses_a_forged_hop(second.grpc_address, key)

    uvloop.run(scenario())


async def refuses_a_forged_hop(address: str, key: str) -> None:
    request = log_pb2.ProduceRequest(appends=[log_pb2.Append(topic="orders", partition=0, record_batch=batch_of(b"a"))])
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/tidelog.v1.Log/Produce")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request.SerializeToString(), metadata=(("authorization", f"Bearer {key}"), FORWARDED))
        found: TidelogError = told(refused.value)
        assert isinstance(found, NotAuthorized)


def test_the_principal_goes_along_where_it_is_one_and_can_be_written() -> None:
    metadata = peer_metadata(Secret("s"))

    def asked_as(principal: str) -> tuple[tuple[str, str], ...]:
        begin(_Call(principal))  # type: ignore[arg-type]  # as much of a call as is looked at
        return metadata()

    async def scenario() -> None:
        assert metadata() == (("tidelog-peer", "s"),)
        assert asked_as("billing") == (("tidelog-peer", "s"), ("tidelog-principal", "billing"))
        assert asked_as("Jürgen") == (("tidelog-peer", "s"),)

    asyncio.run(scenario())


class _Call:
    def __init__(self, principal: str) -> None:
        self.principal = principal
