"""Builds the OpenAPI document of a broker.

    FastAPI's own routes ─┐
    openapi.yaml ─────────┼─▶ document ─▶ error answers and credentials on each operation
    schemas of structs ───┘

FastAPI describes its own routes. The other routes are plain ASGI and stand in openapi.yaml. The schemas of most bodies come from
the msgspec structs that encode and decode them. Every operation answers errors as application/problem+json, so FastAPI's own 422
is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec
import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.access.permissions import HTTP_CALLS
from gateway.http.admin.struct_route import StructRoute
from gateway.http.groups import bodies
from gateway.http.status import BrokersAnswer, ClusterAnswer
from gateway.http.struct_body import Body
from gateway.readiness import HealthAnswer

JsonObject = dict[str, Any]

_BODIES: Final = (bodies.NewMember, bodies.Heartbeat, bodies.MemberCommit, bodies.Commit, bodies.Seek)
_ANSWERS: Final = {
    bodies.MemberAnswer: "The member and its assignment",
    bodies.CommitAnswer: "The committed offsets",
    bodies.OffsetsAnswer: "The committed offsets",
    bodies.DeletedAnswer: "The deleted offsets",
    bodies.SeekAnswer: "The offsets before and after the seek",
    bodies.GroupPageAnswer: "A page of groups",
    bodies.GroupAnswer: "The group",
    bodies.LagHistoryAnswer: "The lag of the group over the last hour",
    HealthAnswer: "The state of the broker",
    ClusterAnswer: "The cluster",
    BrokersAnswer: "The brokers",
}
_PROBLEM_BODY: Final[JsonObject] = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_ERROR: Final[JsonObject] = {"description": "An error", "content": _PROBLEM_BODY}
_REFUSALS: Final[JsonObject] = {
    "401": {"description": "The request has no valid credentials: UNAUTHENTICATED", "content": _PROBLEM_BODY},
    "403": {"description": "The principal may not do this: PERMISSION_DENIED", "content": _PROBLEM_BODY},
}


def document(app: FastAPI) -> JsonObject:
    """Returns the document. The first call builds it and keeps it in `app.openapi_schema`."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        plain = yaml.safe_load(files("gateway.http.admin").joinpath("openapi.yaml").read_text(encoding="utf-8"))
        made["paths"] |= plain["paths"]
        components = made["components"]
        for kind, described in plain["components"].items():
            components[kind] = components.get(kind, {}) | described
        components["schemas"] |= _struct_schemas([route for route in app.routes if isinstance(route, StructRoute)])
        components["responses"] |= _struct_responses()
        for unused in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(unused, None)
        made["security"] = [{name: []} for name in components["securitySchemes"]]
        for path, operations in made["paths"].items():
            shared = operations.pop("parameters", [])
            for method, operation in operations.items():
                operation["parameters"] = shared + operation.get("parameters", [])
                _complete(operation, is_open=HTTP_CALLS[method.upper(), path].open)
        app.openapi_schema = made
    return app.openapi_schema


def _complete(operation: JsonObject, *, is_open: bool) -> None:
    """Adds the error answers. An open operation has an empty list of credentials."""
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = _ERROR
    if is_open:
        operation["security"] = []
    else:
        operation["responses"] |= _REFUSALS


def _struct_schemas(routes: Sequence[StructRoute]) -> JsonObject:
    request_bodies: set[type[Body]] = {*_BODIES, *(route.body for route in routes if route.body is not None)}
    answers = {*_ANSWERS, *(route.answer for route in routes if route.answer is not None)}
    _, schemas = msgspec.json.schema_components(request_bodies | answers, ref_template="#/components/schemas/{name}")
    for body in request_bodies:
        schemas[body.__name__]["examples"] = [msgspec.json.decode(body.example)]
    for schema in schemas.values():
        for described in schema.get("properties", {}).values():
            if described.get("default") == "" and described.get("type") == "string":
                del described["default"]  # an empty string means the same as no string
    return schemas


def _struct_responses() -> JsonObject:
    return {
        answer.__name__: {
            "description": description,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{answer.__name__}"}}},
        }
        for answer, description in _ANSWERS.items()
    }
