"""Health, metrics and the cluster in the OpenAPI document. Their answers are described where they are made. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.http_health import HealthAnswer
from gateway.http_status import BrokersAnswer, ClusterAnswer

JsonObject = dict[str, Any]

_TEMPLATE: Final = "#/components/schemas/{name}"


def status_schemas() -> JsonObject:
    _, schemas = msgspec.json.schema_components([HealthAnswer, ClusterAnswer, BrokersAnswer], ref_template=_TEMPLATE)
    return schemas


def status_routes() -> JsonObject:
    return {
        "/livez": _probe("live", "Live", "The process answers. Asks neither the bucket nor the metadata store."),
        "/readyz": _probe(
            "ready",
            "Ready",
            "Requests can succeed: there is a session, and the broker is not stopping. 503 says why not.\n\n"
            "A broker stays ready, and says so, while it is not at fault, or serves the rest: the bucket takes no writes (readers "
            "are served from memory), the metadata store is away (nothing can be changed), or partitions are damaged.",
        ),
        "/startupz": _probe("started", "Started", "The first session leads its partitions."),
        "/metrics": _exposition(
            "metrics",
            "Metrics",
            "For Prometheus: brokers, doors, the log, the bucket, the metadata store, groups, the process. See docs/metrics.md.",
        ),
        "/metrics/detail": _exposition(
            "metrics_detail",
            "Metrics of partitions",
            "For Prometheus: what there is one of for each partition, also under the names that boards made for Kafka know.",
        ),
        "/v1/cluster": _get("cluster", "get_cluster", "Get the cluster", "", {"200": _told(ClusterAnswer, "The cluster")}),
        "/v1/brokers": _get("cluster", "list_brokers", "List brokers", "", {"200": _told(BrokersAnswer, "The brokers")}),
    }


def _probe(operation_id: str, summary: str, description: str) -> JsonObject:
    told = {"200": _told(HealthAnswer, "It is so"), "503": _told(HealthAnswer, "It is not so")}
    if operation_id == "live":
        del told["503"]
    return _get("health", operation_id, summary, description, told)


def _exposition(operation_id: str, summary: str, description: str) -> JsonObject:
    text: JsonObject = {"schema": {"type": "string"}}
    content = {"text/plain": text, "application/openmetrics-text": text}
    return _get("metrics", operation_id, summary, description, {"200": {"description": "Metrics", "content": content}})


def _get(tag: str, operation_id: str, summary: str, description: str, responses: JsonObject) -> JsonObject:
    operation: JsonObject = {"tags": [tag], "summary": summary, "operationId": operation_id, "responses": responses}
    return {"get": operation | ({"description": description} if description else {})}


def _told(answer: type[msgspec.Struct], description: str) -> JsonObject:
    schema = {"$ref": _TEMPLATE.format(name=answer.__name__)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
