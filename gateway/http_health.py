"""Liveness, readiness and the start over HTTP, for probes and for people: what is wrong with a broker, and what to do.

Invariant: a broker that serves is ready, whatever else it has to tell: one bad partition, or a bucket or etcd that all brokers
share, must not take it out of a load balancer. Liveness asks nobody.

So a bucket that is unavailable (segments/bucket_health.py) makes no broker unready: it is away for all, and then a load balancer
would have nobody left to send readers to, who are served from memory; or for this broker alone, and then another ends its session
(bucket_reach.py), which does. It is told in the answer, in tidelog_bucket_state, and as an alert.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from gateway.access.caller import may_see_cluster
from gateway.doors import Broker
from metadata.errors import Corrupt, Stopping, TidelogError
from metadata.model import TopicPartition

REFUSED_MAX: Final = 100
"""So many refused partitions are told."""


class RefusedPartition(BaseModel):
    topic: str
    partition: int
    reason: str
    hint: str


class HealthAnswer(BaseModel):
    status: str = Field(description="ok, or what is wrong in two words.")
    reason: str | None = Field(default=None, description="Why it is not ok.")
    hint: str | None = Field(default=None, description="What to do.")
    refused_partitions: list[RefusedPartition] | None = Field(
        default=None, description="Those that this broker leads and does not serve, since they are damaged; the first hundred."
    )


def health_routes(app: FastAPI, broker: Broker) -> None:
    def answer(unwell: HealthAnswer | None, status_unwell: int = 503) -> JSONResponse:
        told = (unwell or HealthAnswer(status="ok")).model_dump(exclude_none=True)
        if not may_see_cluster():  # reasons name topics, objects, addresses
            told = {"status": told["status"]}
        return JSONResponse(told, 200 if unwell is None else status_unwell, {"cache-control": "no-store"})

    @app.get("/livez", tags=["health"], response_model=HealthAnswer)
    async def live() -> JSONResponse:
        """The process answers. Asks neither the bucket nor the metadata store."""
        return answer(None)

    @app.get("/readyz", tags=["health"], response_model=HealthAnswer)
    async def ready() -> JSONResponse:
        """Requests can succeed: there is a session, and the broker is not stopping. 503 says why not.

        A broker stays ready, and says so, while it is not at fault, or serves the rest: the bucket takes no writes (readers are
        served from memory), the metadata store is away (nothing can be changed), or partitions are damaged.
        """
        if not broker.serving:
            return answer(_why_not_serving(broker))
        return answer(_trouble(broker), 200)

    @app.get("/startupz", tags=["health"], response_model=HealthAnswer)
    async def started() -> JSONResponse:
        """The first session leads its partitions."""
        return answer(None if broker.started else _STARTING)


_STARTING: Final = HealthAnswer(
    status="starting",
    reason="the broker opens its first session on the bucket, and reads what the sessions before it wrote",
    hint="Wait. Where it takes minutes, look into the broker's log, and run: tidelog doctor",
)


def _why_not_serving(broker: Broker) -> HealthAnswer:
    try:
        _ = broker.log
    except TidelogError as error:
        if not broker.started and error.code != Stopping.code:
            return _STARTING
        return HealthAnswer(status="not serving", reason=error.message, hint=error.hint)
    return HealthAnswer(status="not serving", reason="the broker is shutting down", hint=Stopping.default_hint)


def _trouble(broker: Broker) -> HealthAnswer | None:
    """What an operator should know of a broker that serves: the worst of it, and damage in any case."""
    refused = [_refused(broker, partition, error) for partition, error in islice(sorted(broker.refused.items()), REFUSED_MAX)]
    for status, trouble in (("no writes", broker.bucket_trouble), ("no changes", broker.metadata_trouble)):
        if trouble is not None:
            return HealthAnswer(status=status, reason=trouble.message, hint=trouble.hint, refused_partitions=refused or None)
    if not refused:
        return None
    return HealthAnswer(
        status="damaged partitions",
        reason=f"{len(broker.refused)} partitions are refused, since what is stored of them is damaged; the others are served",
        hint="Restore the objects that are named from a backup, then restart this broker.",
        refused_partitions=refused,
    )


def _refused(broker: Broker, partition: TopicPartition, error: Corrupt) -> RefusedPartition:
    try:
        topic = broker.topic_cache.by_id(partition.topic_id).name
    except TidelogError:  # just deleted
        topic = partition.topic_id
    reason = error.message.replace(partition.topic_id, topic)
    return RefusedPartition(topic=topic, partition=partition.partition, reason=reason, hint=error.hint)
