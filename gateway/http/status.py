"""What is asked of every broker again and again: by probes, by Prometheus, and by clients that look for brokers.

    /livez  /readyz  /startupz      how it is: gateway/readiness.py
    /metrics  /metrics/detail       telemetry/registry.py
    /v1/cluster  /v1/brokers        which brokers there are, and how to reach them

Bare ASGI, as the fast routes: a broker that has just started answers these, and need not load FastAPI for it (app.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from gateway.access.authorization import may_see_cluster
from gateway.api import BrokerApi
from gateway.http.request import Request
from gateway.readiness import WELL, HealthAnswer, Probed, readiness, startup

Handler = Callable[[Request], Awaitable[None]]
_NO_PARAMETERS: Final[frozenset[str]] = frozenset()
_NO_STORE: Final = (b"cache-control", b"no-store")
_JSON: Final = (b"content-type", b"application/json")


class BrokerAnswer(Struct):
    broker_id: str
    http_address: str
    grpc_address: str
    session: int | None
    draining: bool
    rack: str
    version: str
    partitions_led: int
    controller: Annotated[bool, Meta(description="It appoints the leaders.")]


class BrokersAnswer(Struct):
    brokers: list[BrokerAnswer]


class ClusterAnswer(Struct):
    cluster_id: str
    version: str
    bucket: str
    brokers: list[BrokerAnswer]
    metadata_age_ms: Annotated[
        int,
        Meta(
            description="For so long this broker has heard nothing from the metadata store: what it tells of brokers, topics and "
            "leaders may be as old. A few seconds are usual; more, and nothing can be changed until the store is back."
        ),
    ]


class HttpStatus:
    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker
        self._handlers: dict[str, Handler] = {
            "livez": self._live,
            "readyz": self._ready,
            "startupz": self._started,
            "metrics": self._metrics,
            "metrics/detail": self._detail,
            "v1/cluster": self._cluster,
            "v1/brokers": self._brokers,
        }

    def handler(self, path: str) -> Handler | None:
        """Of GET, for a path without its first slash. None where there is no such path."""
        return self._handlers.get(path)

    async def _live(self, request: Request) -> None:
        await _answer_probe(request, WELL)

    async def _ready(self, request: Request) -> None:
        await _answer_probe(request, readiness(self._broker))

    async def _started(self, request: Request) -> None:
        await _answer_probe(request, startup(self._broker))

    async def _metrics(self, request: Request) -> None:
        await self._expose(request, detailed=False)

    async def _detail(self, request: Request) -> None:
        await self._expose(request, detailed=True)

    async def _expose(self, request: Request, *, detailed: bool) -> None:
        request.query(_NO_PARAMETERS)
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        answer = await self._broker.metrics.exposition(accept, detailed=detailed)
        await request.answer(200, answer.body, [(b"content-type", answer.media_type.encode()), _NO_STORE])

    async def _cluster(self, request: Request) -> None:
        request.query(_NO_PARAMETERS)
        broker = self._broker
        answer = ClusterAnswer(
            cluster_id=broker.cluster_id,
            version=broker.version,
            bucket=broker.bucket_url if may_see_cluster() else "",
            brokers=self._broker_answers(),
            metadata_age_ms=broker.metadata_age_ms,
        )
        await request.answer(200, msgspec.json.encode(answer), [_JSON])

    async def _brokers(self, request: Request) -> None:
        request.query(_NO_PARAMETERS)
        await request.answer(200, msgspec.json.encode(BrokersAnswer(self._broker_answers())), [_JSON])

    def _broker_answers(self) -> list[BrokerAnswer]:
        return [BrokerAnswer(**answer.without_kafka()) for answer in self._broker.brokers()]


async def _answer_probe(request: Request, probed: Probed) -> None:
    request.query(_NO_PARAMETERS)
    answer = probed.answer if may_see_cluster() else HealthAnswer(probed.answer.status)  # reasons name topics, objects, addresses
    await request.answer(200 if probed.is_well else 503, msgspec.json.encode(answer), [_JSON, _NO_STORE])
