"""An HTTP client for tests: whole answers, with their JSON."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from gateway.settings import GatewaySettings
from segments.settings import SegmentSettings
from tests.kit.gateway.small_broker import FAST, SmallBroker, with_broker


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def lines(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.body.splitlines()]


class Client:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def ask(self, method: str, path: str | URL, **arguments: Any) -> Answer:
        async with self.session.request(method, path, **arguments) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, headers, await response.read())

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, headers=_dashed(headers))

    async def produce(self, path: str, records: list[Any], **headers: str) -> Answer:
        return await self.ask("POST", path, json={"records": records}, headers=_dashed(headers))

    async def post(self, path: str, body: bytes, content_type: str = "application/json", **headers: str) -> Answer:
        return await self.ask("POST", path, data=io.BytesIO(body), headers={"content-type": content_type, **_dashed(headers)})

    async def refused(self, answer: Awaitable[Answer]) -> tuple[int, str]:
        """Status and code of an answer that must be a problem with all its members."""
        reported = await answer
        assert reported.headers["content-type"] == "application/problem+json", reported
        problem = reported.json
        assert problem["status"] == reported.status
        assert problem["request_id"] == reported.headers["x-request-id"]
        assert {"type", "title", "detail", "retryable", "nothing_was_written", "hint"} <= problem.keys()
        return reported.status, problem["code"]


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def client_of(broker: SmallBroker) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(broker.url) as session:
        yield Client(session)


def serve(
    tmp_path: Path,
    scenario: Callable[[SmallBroker, Client], Awaitable[None]],
    *,
    settings: GatewaySettings | None = None,
    segments: SegmentSettings = FAST,
) -> None:
    async def with_client(broker: SmallBroker) -> None:
        async with client_of(broker) as client:
            await scenario(broker, client)

    with_broker(tmp_path, with_client, settings=settings, segments=segments)
