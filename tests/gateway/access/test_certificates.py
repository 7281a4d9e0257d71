"""A client certificate names its principal at both listeners."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from gateway.access.settings import AccessSettings
from gateway.net.tls.settings import TlsSettings
from gateway.process.broker_process import run_broker
from gateway.proto import admin_pb2
from gateway.settings import BrokerSettings
from metadata.access.acl import Acl
from metadata.errors import NotAuthorized
from tests.kit.certificates import Authority, make_certificates
from tests.kit.gateway.access.guarded_broker import FAST, bearer, reported
from tests.kit.gateway.http_client import Client

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("tls_principal", "principal"), [("cn", "billing"), ("subject", "CN=billing")])
def test_a_certificate_opens_what_an_acl_allows_its_name(tmp_path: Path, tls_principal: str, principal: str) -> None:
    async def scenario() -> None:
        authority = Authority()
        made = make_certificates(tmp_path / "tls", authority, client="billing")
        settings = BrokerSettings(
            data_dir=tmp_path / "broker",
            http="127.0.0.1:0",
            grpc="127.0.0.1:0",
            segments=FAST,
            tls=TlsSettings(tls_cert_file=made.cert, tls_key_file=made.key, tls_client_ca_file=made.ca, tls_client_auth="required"),
            access=AccessSettings(authentication=True, tls_principal=tls_principal, audit_log="off"),
        )
        context = ssl.create_default_context(cafile=str(made.ca))
        context.load_cert_chain(made.client_cert, made.client_key)
        credentials = grpc.ssl_channel_credentials(
            made.ca.read_bytes(), made.client_key.read_bytes(), made.client_cert.read_bytes()
        )
        async with (
            run_broker(settings) as broker,
            aiohttp.ClientSession(f"https://{broker.http_address}", connector=aiohttp.TCPConnector(ssl=context)) as session,
            grpc.aio.secure_channel(broker.grpc_address, credentials) as channel,
        ):
            client = Client(session)
            await broker.create_topic("orders", 1)
            assert await client.refused(client.get("/v1/topics/orders")) == (403, "PERMISSION_DENIED")
            get: Any = channel.unary_unary("/tidelog.v1.Topics/GetTopic")
            request = admin_pb2.GetTopicRequest(name="orders").SerializeToString()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await get(request)
            assert isinstance(reported(refused.value), NotAuthorized)
            acl = Acl(principal=principal, operation="describe", resource="topic", name="orders")
            await broker.access.add_acl(acl, validate_only=False)
            assert (await client.get("/v1/topics/orders")).status == 200
            assert admin_pb2.Topic.FromString(await get(request)).name == "orders"
            assert (await client.get("/v1/topics/orders", **bearer("tlk_wrong"))).status == 401

    asyncio.run(asyncio.wait_for(scenario(), 60))
