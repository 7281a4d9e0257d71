"""A real broker with authentication on, and clients that show who they are: by raw headers, as any client could."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
from google.rpc.status_pb2 import Status

from gateway.access.settings import AccessSettings
from gateway.broker.broker import Broker
from gateway.net.tls.settings import TlsSettings
from gateway.process.broker_process import run_broker
from gateway.proto.status import DETAILS_TRAILER, from_status
from gateway.settings import BrokerSettings, GatewaySettings
from gateway.telemetry.settings import TelemetrySettings
from metadata.errors import TidelogError
from metadata.groups.settings import GroupSettings
from segments.settings import SegmentSettings
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.small_broker import PATIENCE_S, patient
from tests.kit.metadata.stores import until

ADMIN_KEY = "tlk_" + "ad" * 8 + "_" + "5e" * 32
FAST = SegmentSettings(linger_ms=1.0, puts_per_second_max=400.0)


@dataclass
class Guarded:
    """The broker, and what was made at it."""

    broker: Broker
    http: Client
    channel: grpc.aio.Channel
    audit_file: Path

    async def as_admin(self, method: str, path: str, **arguments: Any) -> Any:
        answer = await self.http.ask(method, path, headers=bearer(ADMIN_KEY), **arguments)
        assert answer.status < 300, answer
        return answer.json if answer.body else None

    async def key(self, principal: str, **terms: Any) -> str:
        """The text of a new key."""
        text: str = (await self.as_admin("POST", "/v1/keys", json={"principal": principal, **terms}))["text"]
        return text

    async def allow(self, principal: str, operation: str, resource: str, name: str = "*", **more: str) -> str:
        """The id of a new ACL."""
        body = {"principal": principal, "operation": operation, "resource": resource, "name": name, **more}
        acl_id: str = (await self.as_admin("POST", "/v1/acls", json=body))["acl_id"]
        return acl_id

    async def call(self, method: str, request: Any, key: str = "", *metadata: tuple[str, str]) -> bytes:
        """A unary call by its path. Raises the error that the broker answered."""
        shown = (("authorization", f"Bearer {key}"),) if key else ()
        multi: Any = self.channel.unary_unary(method)
        try:
            answer: bytes = await multi(request.SerializeToString(), metadata=(*shown, *metadata), timeout=60)
        except grpc.aio.AioRpcError as error:
            raise reported(error) from None
        return answer

    async def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log, once all of it is written."""
        assert self.broker.guard is not None
        audit = self.broker.guard.audit
        assert audit is not None
        await until(lambda: not audit.waiting)
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]


def reported(error: grpc.aio.AioRpcError) -> TidelogError:
    trailers: Any = dict(error.trailing_metadata() or ())
    assert DETAILS_TRAILER in trailers, error
    found = from_status(Status.FromString(trailers[DETAILS_TRAILER]))
    found.add_note(error.code().name)
    return found


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@asynccontextmanager
async def guarded(
    folder: Path,
    *,
    otlp_endpoint: str = "",
    kafka: str = "",
    gateway: GatewaySettings | None = None,
    tls: TlsSettings | None = None,
    groups: GroupSettings | None = None,
    **access: Any,
) -> AsyncIterator[Guarded]:
    key_file, audit_file = folder / "admin.key", folder / "audit.jsonl"
    key_file.write_text(ADMIN_KEY + "\n")
    settings = BrokerSettings(
        data_dir=folder / "broker",
        http="127.0.0.1:0",
        grpc="127.0.0.1:0",
        kafka=kafka,
        segments=FAST,
        gateway=patient(gateway),
        groups=groups or GroupSettings(),
        tls=tls or TlsSettings(),
        observability=TelemetrySettings(otlp_endpoint=otlp_endpoint),
        access=AccessSettings(**{"authentication": True, "admin_key_file": key_file, "audit_log": str(audit_file), **access}),
    )
    async with (
        run_broker(settings) as broker,
        aiohttp.ClientSession(f"http://{broker.http_address}") as session,
        grpc.aio.insecure_channel(broker.grpc_address) as channel,
    ):
        yield Guarded(broker, Client(session), channel, audit_file)


def serve(folder: Path, scenario: Callable[[Guarded], Awaitable[None]], **access: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S), guarded(folder, **access) as broker:
            await scenario(broker)

    asyncio.run(whole())
