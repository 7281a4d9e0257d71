"""Answers the frequent requests about a broker: of probes, Prometheus, and clients that look for brokers.

    /livez  /readyz  /startupz      health: gateway/readiness.py
    /metrics  /metrics/detail       telemetry/registry.py
    /v1/cluster  /v1/brokers        the brokers and their addresses

Plain ASGI, as the fast routes, so that a broker that has just started need not load FastAPI for them (app.py).
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
    """Describes one broker."""

    broker_id: str
    http_address: str
    grpc_address: str
    session: int | None
    draining: bool
    rack: str
    version: str
    partitions_led: int
    controller: Annotated[bool, Meta(description="Whether it is the controller, which appoints leaders.")]


class BrokersAnswer(Struct):
    """Lists the registered brokers."""

    brokers: list[BrokerAnswer]


class ClusterAnswer(Struct):
    """Describes the cluster, as the answering broker sees it."""

    cluster_id: str
    version: str
    bucket: str
    brokers: list[BrokerAnswer]
    metadata_age_ms: Annotated[
        int,
        Meta(
            description="Time since this broker last received anything from the metadata store: its view of brokers, topics and "
            "leaders may be as old. A few seconds are usual. After more, no change is possible until the store is back."
        ),
    ]


class HttpStatus:
    """Answers the routes of health, metrics and the cluster."""

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
        """Returns the handler of GET for a path without its first slash; None if there is no such path."""
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
    answer = (
        probed.answer if may_see_cluster() else HealthAnswer(probed.answer.status)
    )  # reasons name topics, objects and addresses
    await request.answer(200 if probed.is_well else 503, msgspec.json.encode(answer), [_JSON, _NO_STORE])
