"""Calls that one broker forwards to another: checked where they come in, and accepted only with a token of another broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import uvloop

from gateway.access.bootstrap import NO_ACCESS, BrokerAccess, open_access, prepare_access
from gateway.access.peer_tokens import PeerTokens
from gateway.access.settings import AccessSettings
from gateway.broker.broker import wall_clock_ms
from gateway.proto import admin_pb2, groups_pb2, log_pb2
from gateway.proto.status import from_status
from gateway.topics.names import partition_of
from metadata.access.acl import Acl
from metadata.errors import Denied, NotAuthorized, TidelogError, Unauthenticated
from metadata.secret import Secret
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from tests.gateway.integration.test_both_listeners import append
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, reported, serve
from tests.kit.gateway.broker_cluster import broker_cluster
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.small_broker import PATIENCE_S, until
from tests.kit.gateway.tls_brokers import TlsCluster, with_tls_cluster
from tests.kit.segments.batches import batch_of

FORWARDED = ("tidelog-forwarded-by", "broker-2")


@pytest.mark.slow
def test_a_broker_without_etcd_has_no_secret_of_peers_and_takes_no_forwarded_calls(tmp_path: Path) -> None:
    """Anybody who can read the metadata of such a broker, or a copy of it, would otherwise be an administrator."""
    layout, old = KeyLayout(), "5e" * 32

    async def leave_a_secret() -> None:
        (tmp_path / "broker").mkdir()
        store = SqliteStore(tmp_path / "broker" / "metadata.sqlite")
        await store.transact([], [Put(layout.peer_secret, old.encode())])
        await store.close()

    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        assert await at.broker._metadata.get(layout.peer_secret) is None
        tokens = PeerTokens(Secret(old), cluster_id=at.broker.cluster_id, broker_id="broker-2", now_ms=wall_clock_ms)
        produce, seen = "/tidelog.v1.Log/Produce", "/tidelog.v1.Groups/SeenBrokers"
        shown = [(FORWARDED,), (FORWARDED, ("tidelog-peer", old)), (("tidelog-peer", ""),)]
        shown += [(FORWARDED, ("tidelog-peer", tokens.sign(at.broker.broker_id, method, ()))) for method in (produce, seen)]
        for metadata in shown:
            for key in ("", ADMIN_KEY):
                with pytest.raises(Unauthenticated, match="without etcd"):
                    await at.call(produce, append("orders"), key, *metadata)
        with pytest.raises(Unauthenticated):
            await at.call(seen, groups_pb2.SeenBrokersRequest(), "", *shown[-1])
        with pytest.raises(Unauthenticated):
            await at.call("/tidelog.v1.Access/CreateKey", admin_pb2.CreateKeyRequest(principal="admin"), "", *shown[1])
        for method, request in (
            (seen, groups_pb2.SeenBrokersRequest()),
            ("/tidelog.v1.Log/FindWrittenOnce", log_pb2.FindWrittenOnceRequest(topic="orders", producer_id=1 << 62)),
        ):
            with pytest.raises(NotAuthorized):
                await at.call(method, request, ADMIN_KEY)
        outcomes = [line["outcome"] for line in await at.audited() if line["outcome"] != "ok"]
        assert outcomes == ["UNAUTHENTICATED"] * 12 + ["PERMISSION_DENIED"] * 2
        assert old not in at.audit_file.read_text()

    asyncio.run(leave_a_secret())
    serve(tmp_path, scenario)


@pytest.mark.slow
def test_through_any_broker_a_principal_may_do_the_same(tmp_path: Path) -> None:
    key_file = tmp_path / "admin.key"
    key_file.write_text(ADMIN_KEY)
    audit_files = [tmp_path / "audit-0", tmp_path / "audit-1"]
    access = [AccessSettings(authentication=True, admin_key_file=key_file, audit_log=str(file)) for file in audit_files]

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
                assert await second.guard.cache.wait_for("key", made_key.revision, 60)
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
                await first.create_topic("salaries", 1)
                commit = {"offsets": [{"topic": topic, "partition": 0, "offset": 0} for topic in ("orders", "salaries")]}
                await clients[0].ask("POST", "/v1/groups/g/offsets", json=commit, headers=bearer(ADMIN_KEY))
                for broker in cluster.brokers:
                    await assert_offsets_of_salaries_are_hidden(broker.grpc_address, key)
                led_by_second = next(number for number in range(4) if cluster.leader(partition_of(topic, number)) is second)
                deleting = f"/v1/topics/orders/partitions/{led_by_second}/delete-records"
                deleted = await clients[0].ask("POST", deleting, json={"before_offset": 1}, headers=bearer(ADMIN_KEY))
                assert deleted.status == 200, deleted
                await until(lambda: "DeleteRecords" in audit_files[1].read_text())
        applied = [line for line in map(json.loads, audit_files[1].read_text().splitlines()) if "DeleteRecords" in line["call"]]
        reported_here = [(line["outcome"], line["principal"], line["credential"], line["forwarded_by"]) for line in applied]
        assert reported_here == [("ok", "admin", "peer", "broker-0")]
        assert applied[0]["resources"] == ["topic:orders"]
        assert "delete-records" in audit_files[0].read_text(), "the broker that the client called logs it, too"

    uvloop.run(scenario())


async def refuses_a_forged_hop(address: str, key: str) -> None:
    request = log_pb2.ProduceRequest(appends=[log_pb2.Append(topic="orders", partition=0, record_batch=batch_of(b"a"))])
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/tidelog.v1.Log/Produce")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request.SerializeToString(), metadata=(("authorization", f"Bearer {key}"), FORWARDED))
        found: TidelogError = reported(refused.value)
        assert isinstance(found, Unauthenticated)


async def assert_offsets_of_salaries_are_hidden(address: str, key: str) -> None:
    """One of the brokers coordinates the group, and the other forwards to it."""
    shown = (("authorization", f"Bearer {key}"),)
    async with grpc.aio.insecure_channel(address) as channel:
        fetch: Any = channel.unary_unary("/tidelog.v1.Groups/OffsetFetch")
        request = groups_pb2.OffsetFetchRequest(group="g")
        reported_all = groups_pb2.OffsetFetchResponse.FromString(await fetch(request.SerializeToString(), metadata=shown))
        assert {each.topic for each in reported_all.offsets} == {"orders"}
        request.topics.add(topic="salaries", partitions=[0])
        reported_one = groups_pb2.OffsetFetchResponse.FromString(await fetch(request.SerializeToString(), metadata=shown))
        assert [from_status(each.error).code for each in reported_one.offsets] == ["PERMISSION_DENIED"]
        commit: Any = channel.unary_unary("/tidelog.v1.Groups/OffsetCommit")
        asked = groups_pb2.OffsetCommitRequest(group="g", generation=-1)
        asked.offsets.add(topic="salaries", partition=0, offset=7)
        answer = groups_pb2.OffsetCommitResponse.FromString(await commit(asked.SerializeToString(), metadata=shown))
        assert [from_status(each).code for each in answer.errors] == ["PERMISSION_DENIED"]


@pytest.mark.slow
def test_authentication_is_switched_on_broker_by_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests to the broker without authentication succeed everywhere; the one with it refuses unauthenticated clients."""
    key_file, audit_file = tmp_path / "admin.key", tmp_path / "audit.jsonl"
    key_file.write_text(ADMIN_KEY)
    asking = AccessSettings(authentication=True, admin_key_file=key_file, audit_log=str(audit_file))

    async def scenario(served: TlsCluster) -> None:
        before, after = served.cluster.brokers
        topic = await before.create_topic("orders", 4)
        partitions = [partition_of(topic, number) for number in range(4)]
        for partition in partitions:
            await served.cluster.led(partition)
        led_by_the_other = next(each for each in partitions if served.cluster.leader(each) is after)
        appends = [log_pb2.Append(topic="orders", partition=number, record_batch=batch_of(b"a")) for number in range(4)]
        delete = log_pb2.DeleteRecordsRequest(topic="orders", partition=led_by_the_other.partition, before_offset=1)
        async with served.channel(shown=False, broker=before) as channel, served.channel(shown=False, broker=after) as other:
            produce: Any = channel.unary_unary("/tidelog.v1.Log/Produce")
            refused: Any = other.unary_unary("/tidelog.v1.Log/Produce")
            delete_records: Any = channel.unary_unary("/tidelog.v1.Log/DeleteRecords")
            request = log_pb2.ProduceRequest(appends=appends).SerializeToString()
            for _ in range(2):
                answer = log_pb2.ProduceResponse.FromString(await produce(request))
                assert [bool(each.placements) for each in answer.results] == [True] * 4
            await delete_records(delete.SerializeToString())
            for forged in ((), (FORWARDED, ("tidelog-unchecked", "true")), (("tidelog-unchecked", "true"),)):
                with pytest.raises(grpc.aio.AioRpcError) as why:
                    await refused(request, metadata=forged)
                assert isinstance(reported(why.value), Denied)
        await until(lambda: "DeleteRecords" in audit_file.read_text())
        (deleted,) = [line for line in map(json.loads, audit_file.read_text().splitlines()) if line["outcome"] == "ok"]
        assert (deleted["credential"], "principal" in deleted) == ("broker without authentication", False)
        assert deleted["forwarded_by"] == "broker-0"

    with_tls_cluster(tmp_path, scenario, count=2, client_auth="optional", access=(AccessSettings(), asking))
    warnings = [line for line in caplog.messages if "every client may do everything" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("forwarded calls of unauthenticated clients broker=broker-0")


@pytest.mark.slow
def test_a_leader_that_knows_of_a_revocation_refuses_what_another_forwards_and_no_append_beside_it(tmp_path: Path) -> None:
    """The broker that the clients have asked has not heard of the revocation yet; both clients' batches go with one message."""
    key_file = tmp_path / "admin.key"
    key_file.write_text(ADMIN_KEY)
    access = AccessSettings(authentication=True, admin_key_file=key_file, audit_log="off")

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, 2, access=access) as cluster:
            lagging = cluster.brokers[0]
            await lagging.create_topic("orders", 4)
            topic = lagging.topic_cache.get("orders")
            partitions = [partition_of(topic, number) for number in range(4)]
            for partition in partitions:
                await cluster.led(partition)
            led_by_the_other = next(each for each in partitions if cluster.leader(each) is not lagging)
            leader = cluster.leader(led_by_the_other)
            await lagging.access.add_acl(
                Acl(principal="billing", operation="all", resource="topic", name="orders"), validate_only=False
            )
            made = [
                await lagging.access.create_key("billing", expires_at_ms=0, scopes=(), description="", validate_only=False)
                for _ in range(2)
            ]
            assert lagging.guard is not None
            assert leader.guard is not None
            for broker in (lagging, leader):
                assert broker.guard is not None
                assert await broker.guard.cache.wait_for("key", made[1].revision, 60)
            seen = {each.key.key_id: lagging.guard.cache.key(each.key.key_id) for each in made}
            async with grpc.aio.insecure_channel(lagging.grpc_address) as channel:
                produce: Any = channel.unary_unary("/tidelog.v1.Log/Produce")
                request = log_pb2.ProduceRequest(
                    appends=[log_pb2.Append(topic="orders", partition=led_by_the_other.partition, record_batch=batch_of(b"a"))]
                )

                async def produced(key: str) -> log_pb2.AppendResult:
                    answer = await produce(request.SerializeToString(), metadata=(("authorization", f"Bearer {key}"),))
                    return log_pb2.ProduceResponse.FromString(answer).results[0]

                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(lagging.guard.cache, "key", seen.get)
                    _, revision = await leader.access._records.revoke_key(made[0].key.key_id)
                    assert await leader.guard.cache.wait_for("key", revision, 60)
                    results = await asyncio.gather(*(produced(each.text.reveal()) for each in (*made, *made)))
            assert [from_status(each.error).code if each.HasField("error") else "" for each in results] == [
                "UNAUTHENTICATED",
                "",
            ] * 2

    uvloop.run(scenario())


def test_a_broker_without_authentication_signs_its_calls_over_tls_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, layout = SqliteStore(Path(":memory:")), KeyLayout()

        async def opened(*, has_peers: bool, peers_speak_tls: bool) -> BrokerAccess:
            prepared = await prepare_access(AccessSettings(), broker_id="b", now_ms=lambda: 0)
            return await open_access(
                AccessSettings(),
                prepared,
                store,
                layout,
                cluster_id="c",
                broker_id="b",
                now_ms=lambda: 0,
                has_peers=has_peers,
                peers_speak_tls=peers_speak_tls,
            )

        assert await opened(has_peers=True, peers_speak_tls=False) == NO_ACCESS
        assert await store.get(layout.peer_secret) is None
        over_tls = await opened(has_peers=True, peers_speak_tls=True)
        kept = await store.get(layout.peer_secret)
        assert (over_tls.guard, kept is not None, over_tls.peer_metadata is not None) == (None, True, True)
        assert kept is not None
        assert over_tls.peer_metadata is not None
        others_reported = over_tls.peer_metadata("a", "/tidelog.v1.Log/Produce")
        assert [name for name, _ in others_reported] == ["tidelog-unchecked", "tidelog-peer"]
        assert kept.value.decode() not in repr(others_reported)
        assert await opened(has_peers=False, peers_speak_tls=True) == NO_ACCESS
        assert await store.get(layout.peer_secret) is None, "an earlier version made it"
        await store.close()

    asyncio.run(scenario())
