"""Serves /v1/cluster/health: how one broker is, and the bucket and the metadata store as it sees them."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI
from msgspec import Meta, Struct

from gateway.api import BrokerApi
from gateway.readiness import readiness


class CheckAnswer(Struct):
    """Describes the result of one check, as `tidelog doctor` shows it."""

    check: str
    status: Annotated[str, Meta(description="ok, warning, failed or skipped.")]
    detail: str
    remedy: Annotated[str, Meta(description="What to do; empty if there is nothing to do.")] = ""


class ClusterHealthAnswer(Struct):
    """Describes the health of a broker and its stores."""

    broker_id: Annotated[str, Meta(description="The broker that has checked. Another one may see its stores otherwise.")]
    checked_at_ms: Annotated[int, Meta(description="When the stores were checked, some seconds ago at most.")]
    checks: list[CheckAnswer]


def cluster_health_routes(app: FastAPI, broker: BrokerApi) -> None:
    """Adds the route to the application."""

    @app.get("/v1/cluster/health", tags=["cluster"])
    async def check_cluster() -> ClusterHealthAnswer:
        """Checks the bucket and the metadata store from this broker. It only reads, at most once in five seconds."""
        checked = await broker.check_stores()
        found = [CheckAnswer(each.check, each.status, each.detail, each.remedy) for each in checked.diagnoses]
        return ClusterHealthAnswer(broker.broker_id, checked.checked_at_ms, [_own(broker), *found])


def _own(broker: BrokerApi) -> CheckAnswer:
    probed = readiness(broker)
    name = f"broker {broker.broker_id}"
    if probed.answer.status == "ok":
        return CheckAnswer(name, "ok", "it serves")
    answer = probed.answer
    return CheckAnswer(name, "warning" if probed.is_well else "failed", f"{answer.status}: {answer.reason}", answer.hint)
