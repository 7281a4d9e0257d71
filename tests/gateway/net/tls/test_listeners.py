"""TLS at both listeners and between brokers: which clients are let in, as whom, and how others are refused."""

from __future__ import annotations

import asyncio
import json
import ssl
import warnings
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from gateway.access.permissions import METRICS_PATHS
from gateway.access.settings import AccessSettings
from gateway.http.app import HttpApp
from gateway.http.request import Receive, Scope, Send
from gateway.net.tls.client_subject import ClientSubject, grpc_subject, http_subject
from gateway.net.tls.identity import TlsReloader
from gateway.net.tls.settings import TlsSettings
from gateway.proto import admin_pb2, admin_pb2_grpc
from gateway.routing.peer_channels import PeerChannels, Unreachable
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.model import SessionId
from tests.kit.certificates import make_certificates
from tests.kit.gateway.small_broker import until
from tests.kit.gateway.tls_brokers import TlsCluster, with_tls_cluster

pytestmark = pytest.mark.slow


async def ask_grpc(channel: grpc.aio.Channel) -> str:
    stub: admin_pb2_grpc.ClusterStub = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
    answer: admin_pb2.ClusterDescription = await stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=60)
    return answer.cluster_id


async def ask_http(session: aiohttp.ClientSession) -> str:
    async with session.get("/v1/cluster") as answer:
        assert answer.status == 200
        return str((await answer.json())["cluster_id"])


def test_both_listeners_speak_tls_and_http_identifies_the_client_by_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ClientSubject | None] = []
    answered = HttpApp.__call__

    async def hearing(self: HttpApp, scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(http_subject(scope))
        await answered(self, scope, receive, send)

    monkeypatch.setattr(HttpApp, "__call__", hearing)

    async def scenario(served: TlsCluster) -> None:
        async with served.session() as session, served.channel() as channel:
            assert await ask_http(session) == await ask_grpc(channel)
        assert heard == [ClientSubject("CN=client", "client")]

    with_tls_cluster(tmp_path, scenario)


def test_grpc_knows_the_client_by_its_certificate(tmp_path: Path) -> None:
    async def reported(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return str(grpc_subject(context)).encode()

    async def main() -> None:
        made = make_certificates(tmp_path)
        pair = TlsSettings(tls_cert_file=made.cert, tls_key_file=made.key, tls_client_ca_file=made.ca, tls_client_auth="required")
        server = grpc.aio.server()
        port = server.add_secure_port("127.0.0.1:0", TlsReloader(pair).server_credentials())
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(reported)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Who": handler}),))
        await server.start()
        shown = grpc.ssl_channel_credentials(*(path.read_bytes() for path in (made.ca, made.client_key, made.client_cert)))
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", shown) as channel:
            who: Any = channel.unary_unary("/test/Who")
            assert await who(b"") == str(ClientSubject("CN=client", "client")).encode()
        await server.stop(None)

    asyncio.run(main())


def test_a_page_of_another_site_calls_nothing_over_grpc_through_a_browser_that_shows_its_certificate(tmp_path: Path) -> None:
    """gRPC takes a POST of text/plain, which needs no preflight, from browsers that add `te: trailers`."""

    async def scenario(served: TlsCluster) -> None:
        async with served.channel() as channel:
            listing: Any = channel.unary_unary("/tidelog.v1.Topics/ListTopics")
            await listing(b"")
            await listing(b"", metadata=(("origin", "https://localhost:8080"),))
            for origin in ("https://evil.example", "null"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await listing(b"", metadata=(("origin", origin),))
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

    with_tls_cluster(tmp_path, scenario)


def test_clients_without_a_certificate_or_with_one_of_another_authority_are_refused(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        outsiders = make_certificates(tmp_path / "outsiders")
        outsider = served.context(shown=False)
        outsider.load_cert_chain(outsiders.client_cert, outsiders.client_key)
        async with served.session(shown=False) as session:
            for path in ("/v1/cluster", "/v1/topics/orders/records", "/metrics", "/openapi.json", "/livez/"):
                async with session.get(path) as answer:
                    assert answer.status == 401
                    assert (await answer.json(content_type=None))["code"] == "UNAUTHENTICATED"
            for probe in ("/livez", "/readyz", "/startupz"):
                async with session.get(probe) as answer:
                    assert (answer.status, await answer.read()) == (200, b""), "a kubelet has no certificate to show"
            with pytest.raises(aiohttp.ClientError):
                await session.get("/livez", ssl=outsider)
        async with served.channel(shown=False) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await ask_grpc(channel)
        async with served.session() as session, served.channel() as channel:
            assert await ask_http(session) == await ask_grpc(channel)

    with_tls_cluster(tmp_path, scenario)


def test_certificates_that_are_optional_are_verified_all_the_same(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        outsiders = make_certificates(tmp_path / "outsiders")
        outsider = served.context(shown=False)
        outsider.load_cert_chain(outsiders.client_cert, outsiders.client_key)
        async with served.session(shown=False) as session:
            await ask_http(session)
            with pytest.raises(aiohttp.ClientError):
                await session.get("/v1/cluster", ssl=outsider)
        async with served.channel(shown=False) as channel:
            await ask_grpc(channel)

    with_tls_cluster(tmp_path, scenario, client_auth="optional")


def test_versions_of_tls_that_are_broken_are_not_spoken(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        for address in (served.broker.http_address, served.broker.grpc_address):
            old = served.context()
            with warnings.catch_warnings(action="ignore"):
                old.minimum_version = ssl.TLSVersion.TLSv1
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            old.set_ciphers("ALL:@SECLEVEL=0")
            host, port = address.split(":")
            with pytest.raises((ssl.SSLError, OSError)):
                await asyncio.open_connection(host, int(port), ssl=old)

    with_tls_cluster(tmp_path, scenario)


def test_plain_http_at_a_tls_port_gets_400_with_an_https_url(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        reader, writer = await asyncio.open_connection(*served.broker.http_address.split(":"))
        writer.write(b"GET /v1/cluster HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"https://" in answer
        writer.close()
        assert served.broker._http.connections.count == 0

    with_tls_cluster(tmp_path, scenario)


def test_requests_reach_the_leader_over_tls_and_not_where_its_name_is_another(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        async with served.session() as session:
            async with session.post("/v1/topics", json={"name": "orders", "partition_count": 4}) as made:
                assert made.status == 201, await made.text()
            for partition in range(4):
                async with session.post(
                    f"/v1/topics/orders/records?partition={partition}", json={"records": [{"value": 1}]}
                ) as took:
                    assert took.status == 200, await took.text()
                async with session.get(f"/v1/topics/orders/partitions/{partition}/records?offset=0") as read:
                    assert len((await read.json())["records"]) == 1, "from the other broker as well"
            cert, key = served.authority.sign("server", hosts=("elsewhere.example",))
            served.files.cert.write_bytes(cert)
            served.files.key.write_bytes(key)
            for broker in served.cluster.brokers:
                assert broker.tls is not None
                assert await broker.tls.reload()
            other = served.cluster.brokers[1]
            registration = BrokerRegistration(broker_id="broker-1", session=SessionId(2), grpc_address=other.grpc_address)
            peers = PeerChannels("broker-0", served.broker.tls)
            asked = admin_pb2.GetClusterRequest()
            with pytest.raises(Unreachable) as refused:
                await peers.call(registration, "/tidelog.v1.Cluster/GetCluster", asked, admin_pb2.ClusterDescription, timeout_s=60)
            assert "tls_peer_name" in refused.value.hint
            await peers.close()

    with_tls_cluster(tmp_path, scenario, count=2)


def test_metrics_that_are_open_are_open_to_who_shows_no_certificate(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        server = served.broker._http
        async with served.session(shown=False) as session, session.get("/metrics") as refused:
            assert refused.status == 401
        server._open_paths = METRICS_PATHS
        async with served.session(shown=False) as session:
            async with session.get("/metrics") as reported:
                assert reported.status == 200
                assert b"tidelog_" in await reported.read()
            async with session.get("/v1/topics") as refused:
                assert refused.status == 401

    with_tls_cluster(tmp_path, scenario)


def test_a_client_without_a_certificate_is_recorded_in_the_audit_log(tmp_path: Path) -> None:
    file, key = tmp_path / "audit.jsonl", tmp_path / "admin.key"
    key.write_text(f"tlk_{'0' * 16}_{'0' * 64}\n")

    async def scenario(served: TlsCluster) -> None:
        async with served.session(shown=False) as session, session.get("/v1/topics/secrets/records") as refused:
            assert refused.status == 401
            reported = await refused.json(content_type=None)
        await until(lambda: file.exists() and bool(file.read_text()))
        line = json.loads(file.read_text())
        assert (line["outcome"], line["listener"], line["address"]) == ("UNAUTHENTICATED", "http", "127.0.0.1")
        assert (line["call"], line["request_id"]) == ("GET /v1/topics/{topic}/records", reported["request_id"])

    access = AccessSettings(authentication=True, admin_key_file=key, audit_log=str(file))
    with_tls_cluster(tmp_path, scenario, access=access)
