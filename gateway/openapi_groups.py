"""The routes of consumer groups in the OpenAPI document. Their bodies are described where they are checked. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway import http_group_bodies as bodies

JsonObject = dict[str, Any]

CLIENT_RACK: Final = (
    "Where the reader is. A broker of this rack reads from the bucket what leaders in other racks have: no records cross zones."
)
_TEMPLATE: Final = "#/components/schemas/{name}"
_REQUESTS: Final = tuple(bodies.EXAMPLES)
_ANSWERS: Final = (
    bodies.MemberAnswer,
    bodies.CommitAnswer,
    bodies.OffsetsAnswer,
    bodies.DeletedAnswer,
    bodies.SeekAnswer,
    bodies.GroupPageAnswer,
    bodies.GroupAnswer,
)
_PLACE: Final[JsonObject] = {"topic": {"type": "string"}, "partition": {"type": "integer"}}
_RECORDS: Final[JsonObject] = {
    "type": "object",
    "required": ["records", "cursor"],
    "properties": {
        "records": {
            "type": "array",
            "items": {
                "allOf": [{"$ref": "#/components/schemas/Record"}, {"type": "object", "properties": {"topic": {"type": "string"}}}]
            },
        },
        "cursor": {"type": "string", "description": "To read on with, or to commit. It holds for this generation."},
        "commit_needed": {
            "type": "boolean",
            "description": "More than the cursor can hold was read and not committed: what else there is comes after a commit.",
        },
        "resets": {
            "type": "array",
            "description": "Where the place was no longer in the log, and reading began anew.",
            "items": {
                "type": "object",
                "properties": _PLACE | {"before": {"type": "integer"}, "after": {"type": "integer"}},
            },
        },
        "errors": {
            "type": "array",
            "description": "Partitions that can't be read at the moment; the others were.",
            "items": {"type": "object", "properties": _PLACE | {"error": {"type": "object"}}},
        },
    },
}


def group_schemas() -> JsonObject:
    _, schemas = msgspec.json.schema_components([*_REQUESTS, *_ANSWERS], ref_template=_TEMPLATE)
    for body, example in bodies.EXAMPLES.items():
        schemas[body.__name__]["examples"] = [msgspec.json.decode(example)]
    for schema in schemas.values():
        for name, described in schema.get("properties", {}).items():
            if described.get("default") == "" and described.get("type") == "string":
                del schema["properties"][name]["default"]  # empty is as left out, which is what the description tells
    return {**schemas, "MemberRecords": _RECORDS}


def group_routes() -> JsonObject:
    group = _parameter("group", "path", {"type": "string"}, "The group's name, percent-encoded; a slash is %2F.")
    member = _parameter("member_id", "path", {"type": "string"}, "The id that the join has told, percent-encoded.")
    return {
        "/v1/groups": {
            "get": _operation(
                "list_groups",
                "List groups",
                "As they were stored last.",
                [
                    _parameter("page_size", "query", {"type": "integer", "minimum": 0, "maximum": 1000, "default": 0}, "0: 100."),
                    _parameter("page_token", "query", {"type": "string"}),
                    _parameter("state", "query", {"type": "string"}, "Only these, separated by commas: Empty, Stable, …"),
                ],
                bodies.GroupPageAnswer,
            )
        },
        "/v1/groups/{group}": {
            "get": _operation(
                "get_group",
                "Describe a group",
                "Its members, and how far it is behind, in records and in seconds.",
                [group],
                bodies.GroupAnswer,
            ),
            "delete": _operation(
                "delete_group", "Delete a group and its offsets", "409 while it has members.", [group, _VALIDATE_ONLY], None
            ),
        },
        "/v1/groups/{group}/seek": {
            "post": _operation(
                "seek_group",
                "Move the committed offsets of a group",
                "Of a group without members: all that it has committed, or the topics that are named. What is asked for is brought "
                "within the log. With validate_only the answer is what would move.",
                [group, _VALIDATE_ONLY],
                bodies.SeekAnswer,
                body=bodies.Seek,
            )
        },
        "/v1/groups/{group}/members": {
            "post": _operation(
                "join_group",
                "Join a group",
                "Waits for the other members to join, and for the assignment: as long as the slowest may take (their "
                "rebalance_timeout_ms). Who joins again brings its member_id. A client that hangs up before it is answered "
                "is no member.",
                [group],
                bodies.MemberAnswer,
                body=bodies.NewMember,
                status="201",
            )
        },
        "/v1/groups/{group}/members/{member_id}": {
            "delete": _operation(
                "leave_group", "Leave a group", "The others get its partitions at once.", [group, member, _INSTANCE_ID], None
            )
        },
        "/v1/groups/{group}/members/{member_id}/heartbeat": {
            "post": _operation(
                "heartbeat",
                "Say that a member lives",
                "Needed only where a member does nothing else for session_timeout_ms: reading and committing say so, too.",
                [group, member],
                None,
                body=bodies.Heartbeat,
            )
        },
        "/v1/groups/{group}/members/{member_id}/records": {
            "get": _operation(
                "read_as_member",
                "Read the partitions of a member",
                "From where the cursor is; without one, from what is committed. Reading changes nothing unless commit=true. "
                "409 tells to join again: REBALANCE_IN_PROGRESS, STALE_GENERATION, UNKNOWN_MEMBER.",
                [group, member, *_reading()],
                None,
                content={"schema": {"$ref": "#/components/schemas/MemberRecords"}},
            )
        },
        "/v1/groups/{group}/members/{member_id}/offsets": {
            "post": _operation(
                "commit_as_member",
                "Commit offsets as a member",
                "Counts until the next generation begins, also while the group rebalances.",
                [group, member],
                bodies.CommitAnswer,
                body=bodies.MemberCommit,
            )
        },
        "/v1/groups/{group}/offsets": {
            "get": _operation(
                "get_offsets",
                "Get the committed offsets of a group",
                "Of topics that are there.",
                [group, _parameter("topic", "query", {"type": "string"}, "Of this topic only.")],
                bodies.OffsetsAnswer,
            ),
            "post": _operation(
                "commit_by_hand",
                "Commit offsets by hand",
                "Of a group without members, for readers that choose their partitions themselves.",
                [group],
                bodies.CommitAnswer,
                body=bodies.Commit,
            ),
            "delete": _operation(
                "delete_offsets",
                "Forget the committed offsets of a topic",
                "Of a group without members.",
                [
                    group,
                    _parameter("topic", "query", {"type": "string"}, "Whose offsets to forget.", required=True),
                    _parameter("partitions", "query", {"type": "string"}, "Only these: 0,1,2."),
                    _VALIDATE_ONLY,
                ],
                bodies.DeletedAnswer,
            ),
        },
    }


def _operation(
    operation_id: str,
    summary: str,
    description: str,
    parameters: list[JsonObject],
    answer: type[msgspec.Struct] | None,
    *,
    body: type[msgspec.Struct] | None = None,
    content: JsonObject | None = None,
    status: str = "200",
) -> JsonObject:
    operation: JsonObject = {
        "tags": ["groups"],
        "summary": summary,
        "description": description,
        "operationId": operation_id,
        "parameters": parameters,
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": _ref(body)}}
    told = content if answer is None else _ref(answer)
    if told is None:
        operation["responses"] = {"204": {"description": "Done"}}
    else:
        operation["responses"] = {status: {"description": summary, "content": {"application/json": told}}}
    return operation


def _ref(body: type[msgspec.Struct]) -> JsonObject:
    return {"schema": {"$ref": _TEMPLATE.format(name=body.__name__)}}


def _parameter(name: str, place: str, schema: JsonObject, description: str = "", *, required: bool = False) -> JsonObject:
    parameter: JsonObject = {"name": name, "in": place, "required": required or place == "path", "schema": schema}
    return parameter | {"description": description} if description else parameter


_VALIDATE_ONLY: Final = _parameter(
    "validate_only", "query", {"type": "boolean", "default": False}, "Check everything, change nothing."
)
_INSTANCE_ID: Final = _parameter(
    "instance_id", "query", {"type": "string"}, "Of a static member: it is told (INSTANCE_FENCED) when another took its place."
)


def _reading() -> list[JsonObject]:
    formats: JsonObject = {"enum": ["auto", "json", "text", "base64"], "default": "auto"}
    count: JsonObject = {"type": "integer", "minimum": 1}
    return [
        _parameter("generation", "query", {"type": "integer", "minimum": 0}, "That the join has told.", required=True),
        _parameter("cursor", "query", {"type": "string"}, "Of the last answer in this generation."),
        _parameter("commit", "query", {"type": "boolean", "default": False}, "Commit what the cursor has read, then read on."),
        _parameter(
            "auto_offset_reset",
            "query",
            {"enum": ["earliest", "latest"], "default": "earliest"},
            "Where to begin in a partition that nothing is committed of, or whose committed offset is no longer in the log.",
        ),
        _parameter("max_records", "query", count),
        _parameter("max_bytes", "query", count, "Of stored bytes in the answer, but at least one record."),
        _parameter("wait_ms", "query", {"type": "integer", "minimum": 0, "default": 0}, "How long to wait for the first record."),
        _parameter("key_format", "query", formats, "How keys are given: auto is JSON, else text, else binary."),
        _parameter("value_format", "query", formats, "The same for values."),
        _parameter("client_rack", "query", {"type": "string", "maxLength": 255}, CLIENT_RACK),
        _INSTANCE_ID,
    ]
