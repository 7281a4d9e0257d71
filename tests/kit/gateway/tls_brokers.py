"""Brokers with TLS on the loopback, and clients of each kind for them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import uvloop

from gateway.access.settings import AccessSettings
from gateway.broker.broker import Broker
from gateway.net.tls.settings import TlsSettings
from gateway.settings import GatewaySettings
from tests.kit.certificates import Authority, Certificates, make_certificates
from tests.kit.gateway.broker_cluster import Cluster, broker_cluster
from tests.kit.gateway.small_broker import PATIENCE_S

# Files are looked at when the test says so.
NEVER_MS = 3_600_000.0
OWN_CHANNELS = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True)
class TlsCluster:
    cluster: Cluster
    authority: Authority
    files: Certificates
    client_auth: str

    @property
    def broker(self) -> Broker:
        return self.cluster.brokers[0]

    def context(self, *, shown: bool = True, ca: bytes | None = None) -> ssl.SSLContext:
        """A client's; `shown`: it shows its certificate."""
        context = ssl.create_default_context(cadata=(ca or self.authority.pem).decode())
        if shown:
            context.load_cert_chain(self.files.client_cert, self.files.client_key)
        return context

    def channel(self, *, shown: bool = True, ca: bytes | None = None, broker: Broker | None = None) -> grpc.aio.Channel:
        pair = (self.files.client_key.read_bytes(), self.files.client_cert.read_bytes()) if shown else (None, None)
        credentials = grpc.ssl_channel_credentials(ca or self.authority.pem, *pair)
        return grpc.aio.secure_channel((broker or self.broker).grpc_address, credentials, options=OWN_CHANNELS)

    @asynccontextmanager
    async def session(self, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(ssl=self.context(**options))
        async with aiohttp.ClientSession(f"https://{self.broker.http_address}", connector=connector) as session:
            yield session

    def credentials(self, *, shown: bool = True) -> Any:
        """Of the SDK."""
        files = {"cert_file": self.files.client_cert, "key_file": self.files.client_key} if shown else {}
        return {"ca_file": self.files.ca, **files}


def with_tls_cluster(
    tmp_path: Path,
    scenario: Callable[[TlsCluster], Awaitable[None]],
    *,
    count: int = 1,
    client_auth: str = "required",
    gateway: GatewaySettings | None = None,
    access: AccessSettings | Sequence[AccessSettings] | None = None,
) -> None:
    authority = Authority()
    files = make_certificates(tmp_path / "certificates", authority)
    settings = TlsSettings(
        tls_cert_file=files.cert,
        tls_key_file=files.key,
        tls_client_ca_file=files.ca,
        tls_client_auth=client_auth,
        tls_reload_ms=NEVER_MS,
    )

    async def run() -> None:
        made = broker_cluster(tmp_path, count, tls=settings, gateway=gateway, access=access)
        async with asyncio.timeout(PATIENCE_S), made as cluster:
            await scenario(TlsCluster(cluster, authority, files, client_auth))

    uvloop.run(run())
