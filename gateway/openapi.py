"""The OpenAPI document: what FastAPI knows of its own routes, and the fast routes beside it, which it does not. Pure.

Every operation answers errors as application/problem+json; FastAPI's own 422 is never sent, so it is not told either.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.access.calls import HTTP_CALLS
from gateway.openapi_groups import CLIENT_RACK, group_routes, group_schemas
from gateway.openapi_status import status_routes, status_schemas

JsonObject = dict[str, Any]

_PROBLEM: Final[JsonObject] = {
    "type": "object",
    "description": "RFC 9457. `code` is stable, and the same through every door; facts such as offsets stand beside the members.",
    "required": ["type", "title", "status", "detail", "code", "retryable", "nothing_was_written", "request_id"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:tidelog:error:THROTTLED"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "code": {"type": "string", "examples": ["THROTTLED"]},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
        "nothing_was_written": {"type": "boolean"},
        "hint": {"type": "string", "description": "What to do."},
        "request_id": {"type": "string"},
    },
    "additionalProperties": True,
}

_ANY: Final[JsonObject] = {
    "description": 'Any JSON. A string is stored as its UTF-8, {"type":"binary","data":"<base64>"} as its bytes, null as null, '
    "anything else as its own text without white space."
}

_HEADER_LIST: Final[JsonObject] = {
    "type": "array",
    "items": {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}, "value": _ANY}},
}

_SCHEMAS: Final[JsonObject] = {
    "Problem": _PROBLEM,
    "NewRecord": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "key": _ANY,
            "value": _ANY,
            "headers": {"oneOf": [{"type": "object", "additionalProperties": _ANY}, _HEADER_LIST]},
            "partition": {"type": "integer", "description": "Absent: by key; without a key, one for the whole request."},
            "timestamp": {"type": "integer", "description": "Milliseconds since 1970. Absent: now."},
        },
    },
    "NewRecords": {
        "type": "object",
        "additionalProperties": False,
        "required": ["records"],
        "properties": {"records": {"type": "array", "items": {"$ref": "#/components/schemas/NewRecord"}}},
    },
    "Result": {
        "type": "object",
        "description": "Of one record, in the order of the request; of a ready batch as a whole.",
        "required": ["partition"],
        "properties": {
            "partition": {"type": "integer"},
            "offset": {"type": "integer", "description": "Absent with acks=none, and where there is an error."},
            "count": {"type": "integer", "description": "Records of a ready batch."},
            "duplicate": {"type": "boolean", "description": "The repeat of an idempotent request: the offset of the first time."},
            "error": {
                "type": "object",
                "description": "This partition failed: code, detail, retryable, nothing_was_written, hint.",
            },
        },
    },
    "Results": {
        "type": "object",
        "required": ["results"],
        "properties": {"results": {"type": "array", "items": {"$ref": "#/components/schemas/Result"}}},
    },
    "Record": {
        "type": "object",
        "properties": {
            "partition": {"type": "integer"},
            "offset": {"type": "integer"},
            "timestamp": {"type": "integer", "description": "Milliseconds since 1970."},
            "key": _ANY,
            "value": _ANY,
            "headers": _HEADER_LIST,
        },
    },
    "Records": {
        "type": "object",
        "properties": {
            "records": {"type": "array", "items": {"$ref": "#/components/schemas/Record"}},
            "next_offset": {"type": "integer", "description": "Where to read on."},
            "high_watermark": {"type": "integer"},
            "log_start_offset": {"type": "integer"},
        },
    },
}

_SECURITY_SCHEMES: Final[JsonObject] = {
    "api_key": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "tlk_ID_SECRET, or a JWT",
        "description": "An API key (`tidelog key create`), or a token of the OpenID provider that the cluster trusts. Only where "
        "the broker's `authentication` is on.",
    },
    "basic": {"type": "http", "scheme": "basic", "description": "The id of an API key, and its secret as the password."},
    "certificate": {"type": "mutualTLS", "description": "A client certificate, whose name is the principal."},
}
_PROBLEM_BODY: Final[JsonObject] = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_REFUSALS: Final[JsonObject] = {
    "401": {"description": "It is not known who asks: UNAUTHENTICATED", "content": _PROBLEM_BODY},
    "403": {"description": "Who asks may not do this: PERMISSION_DENIED", "content": _PROBLEM_BODY},
}

_BINARY: Final[JsonObject] = {"schema": {"type": "string", "format": "binary"}}
_TEXT: Final[JsonObject] = {"schema": {"type": "string"}}


def document(app: FastAPI) -> JsonObject:
    """Made at the first call, and kept."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        made["paths"].update(_fast_routes() | group_routes() | status_routes())
        schemas = made["components"]["schemas"]
        schemas.update(_SCHEMAS | group_schemas() | status_schemas())
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        for path in made["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = {
                    "description": "An error",
                    "content": {"application/problem+json": _ref("Problem")},
                }
        _add_security(made)
        app.openapi_schema = made
    return app.openapi_schema


def _add_security(made: JsonObject) -> None:
    """How callers show who they are, where the broker asks. What is open to all says so by an empty list."""
    made["components"]["securitySchemes"] = _SECURITY_SCHEMES
    made["security"] = [{name: []} for name in _SECURITY_SCHEMES]
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            if HTTP_CALLS[method.upper(), path].open:
                operation["security"] = []
            else:
                operation["responses"] |= _REFUSALS


def _fast_routes() -> JsonObject:
    topic = _parameter("topic", "path", {"type": "string"}, "The topic's name.")
    partition = _parameter("partition", "path", {"type": "integer", "minimum": 0}, "")
    return {
        "/v1/topics/{topic}/records": {
            "post": _produce(topic),
            "get": {
                "tags": ["records"],
                "summary": "Read all partitions, as a stream",
                "description": "Goes on until the client hangs up, max_records were sent, or nothing new came for wait_ms. "
                "Within a partition the order is kept.",
                "operationId": "read_topic",
                "parameters": [topic, *_reading(), _LAST_EVENT_ID],
                "responses": _answers({"application/x-ndjson": _ref("Record"), "text/event-stream": _TEXT}, "Records as they come"),
            },
        },
        "/v1/topics/{topic}/partitions/{partition}/records": {
            "get": {
                "tags": ["records"],
                "summary": "Read a partition",
                "description": "One answer, or with `Accept: text/event-stream` a stream. Reading changes nothing. "
                "416 tells the valid range of offsets.",
                "operationId": "read_partition",
                "parameters": [topic, partition, *_reading(), _CURRENT_LEADER_EPOCH, _LAST_EVENT_ID],
                "responses": _answers(
                    {
                        "application/json": _ref("Records"),
                        "application/x-ndjson": _ref("Record"),
                        "application/vnd.apache.arrow.stream": _BINARY,
                        "text/event-stream": _TEXT,
                    },
                    "Records from the asked place on",
                ),
            }
        },
    }


def _produce(topic: JsonObject) -> JsonObject:
    integer = {"type": "integer", "minimum": 0}
    results = {
        "application/json": _ref("Results"),
        "application/x-ndjson": _ref("Result"),
        "application/vnd.apache.arrow.stream": _BINARY,
    }
    return {
        "tags": ["records"],
        "summary": "Produce records",
        "description": "A record that can't be taken refuses the whole request before anything is written. Where one partition "
        "of several fails, its records carry the error in their places.",
        "operationId": "produce",
        "parameters": [
            topic,
            _parameter(
                "acks",
                "query",
                {"enum": ["all", "leader", "none"], "default": "all"},
                "When to answer: at the commit on the bucket, when the leader holds the records, at once (202).",
            ),
            _parameter(
                "timeout_ms",
                "query",
                {"type": "integer", "minimum": 1},
                "How long to wait for the commit: then 504, and the records may still be committed.",
            ),
            _parameter("partition", "query", integer, "For records that ask for none; needed with a record batch."),
            _parameter("expected_offset", "query", integer, "Append only if the partition ends here, else 412."),
            _parameter("producer_id", "query", integer, "Of POST /v1/producers: idempotent produce to one partition."),
            _parameter("producer_epoch", "query", integer, ""),
            _parameter("base_sequence", "query", integer, "Records that this producer has sent to the partition before."),
            _parameter(
                "Idempotency-Key",
                "header",
                {"type": "string", "maxLength": 255},
                "A repeat is answered as the first time, partitions and offsets, and writes what is still missing, also after a "
                "restart or when the topic has grown. The same key with another body, Content-Type, partition or "
                "expected_offset is 422. Remembered for a day.",
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": _ref("NewRecords"),
                "application/x-ndjson": _ref("NewRecord"),
                "application/vnd.apache.arrow.stream": _BINARY,
                "application/vnd.tidelog.record-batch": _BINARY,
            },
        },
        "responses": {
            **_answers(results, "Where the records lie"),
            "202": {
                "description": "Taken without an acknowledgement (acks=none)",
                "content": {"application/json": _ref("Results")},
            },
        },
    }


def _reading() -> list[JsonObject]:
    formats = {"enum": ["auto", "json", "text", "base64"], "default": "auto"}
    count = {"type": "integer", "minimum": 1}
    return [
        _parameter("offset", "query", {"type": "string"}, "earliest (the default), latest, or a number (of one partition)."),
        _parameter("timestamp", "query", {"type": "string"}, "From the first record at or after it: milliseconds, or RFC 3339."),
        _parameter("tail", "query", {"type": "integer", "minimum": 0}, "The last N records of each partition."),
        _parameter("max_records", "query", count, ""),
        _parameter(
            "max_bytes",
            "query",
            count,
            "Of stored bytes in one answer, but at least one batch, or one record where they are opened.",
        ),
        _parameter(
            "wait_ms",
            "query",
            {"type": "integer", "minimum": 0},
            "How long to wait for the first record; of a stream, for the next.",
        ),
        _parameter("key_format", "query", formats, "How keys are given: auto is JSON, else text, else binary."),
        _parameter("value_format", "query", formats, "The same for values."),
        _parameter("client_rack", "query", {"type": "string", "maxLength": 255}, CLIENT_RACK),
    ]


def _parameter(name: str, place: str, schema: JsonObject, description: str) -> JsonObject:
    parameter: JsonObject = {"name": name, "in": place, "required": place == "path", "schema": schema}
    return parameter | {"description": description} if description else parameter


_CURRENT_LEADER_EPOCH: Final = _parameter(
    "current_leader_epoch",
    "query",
    {"type": "integer", "minimum": 0},
    "Answer only as the leader of this epoch, which the header tidelog-leader-epoch of an answer tells: else 503, "
    "FENCED_LEADER_EPOCH where there is a later leader, UNKNOWN_LEADER_EPOCH where this one is of before. Not for events.",
)
_LAST_EVENT_ID: Final = _parameter("Last-Event-ID", "header", {"type": "string"}, "Resumes a stream of events behind this one.")


def _ref(schema: str) -> JsonObject:
    return {"schema": {"$ref": f"#/components/schemas/{schema}"}}


def _answers(content: JsonObject, description: str) -> JsonObject:
    return {"200": {"description": description, "content": content}}
