"""Writes docs/reference/http.md from the OpenAPI document of a broker: `python -m docs.http_page`. A test compares them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.page_broker import cell, described_broker, shown_rights
from gateway.access.permissions import HTTP_CALLS
from gateway.http.admin.api import admin_api

PAGE = Path(__file__).parent / "reference" / "http.md"
JsonObject = Mapping[str, Any]
# Titles by the tag of an operation.
TITLES = {"records": "Records", "groups": "Consumer groups", "topics": "Topics", "cluster": "The cluster", "access": "Access"}

_INTRODUCTION = """\
# HTTP API

This page lists every route of a broker with its parameters, bodies and rights. `python -m docs.http_page` generates it from the
OpenAPI document, which `GET /openapi.json` of a broker returns.

An error is a problem document (RFC 9457): [errors.md](errors.md). Unknown fields and query parameters are refused. With
`authentication` on, a request carries `Authorization: Bearer KEY`, or its client presents a certificate.
"""


async def page() -> str:
    """Returns the text of docs/reference/http.md."""
    async with described_broker() as broker:
        document = admin_api(broker).openapi()
    by_tag: dict[str, list[str]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["cluster"])[0]
            by_tag[tag].append("".join(_operation(document, method.upper(), path, operation)))
    parts = [_INTRODUCTION]
    for tag in sorted(by_tag, key=lambda tag: (list(TITLES).index(tag) if tag in TITLES else len(TITLES), tag)):
        parts += [f"\n## {TITLES.get(tag, tag.capitalize())}\n", *by_tag[tag]]
    parts.append("\n## Bodies\n")
    parts += ["".join(_schema(name, schema)) for name, schema in sorted(document["components"]["schemas"].items())]
    return "".join(parts)


def _operation(document: JsonObject, method: str, path: str, operation: JsonObject) -> Iterator[str]:
    yield f"\n### {method} {path}\n\n"
    said = [_sentence(operation.get("summary", "")), operation.get("description", "")]
    yield " ".join(" ".join(filter(None, said)).split()) + "\n\n"
    yield f"Rights: {shown_rights(HTTP_CALLS[method, path])}.\n"
    parameters = [_resolved(document, parameter) for parameter in operation.get("parameters", [])]
    if parameters:
        yield "\n| parameter | in | type | meaning |\n| --- | --- | --- | --- |\n"
    for parameter in parameters:
        required = ", required" if parameter.get("required") and parameter["in"] != "path" else ""
        meaning = cell(parameter.get("description", ""))
        yield f"| `{parameter['name']}` | {parameter['in']}{required} | {_type(parameter['schema'])} | {meaning} |\n"
    if "requestBody" in operation:
        yield f"\nBody: {_content(operation['requestBody'])}.\n"
    answers = [
        f"{status}: {_content(answer) or answer.get('description', '')}"
        for status, answer in ((status, _resolved(document, answer)) for status, answer in operation["responses"].items())
        if status.startswith("2")
    ]
    yield f"\nAnswer: {'; '.join(answers)}.\n"


def _sentence(text: str) -> str:
    return text if not text or text.endswith(".") else f"{text}."


def _resolved(document: JsonObject, node: JsonObject) -> JsonObject:
    """Returns what a `$ref` to a component names, or the node itself."""
    if "$ref" not in node:
        return node
    found: Any = document
    for step in node["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return dict(found)


def _content(body: JsonObject) -> str:
    return ", ".join(
        f"`{media}` {_type(described.get('schema', {}))}".rstrip() for media, described in body.get("content", {}).items()
    )


def _type(schema: JsonObject) -> str:
    """Returns a type in few words: `integer from 0`, a list of names, or a link to another body."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower().replace('.', '')})"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(_type(each) for each in schema[choice])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"]) + _default(schema)
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    bounds = "".join(
        f" {word} {schema[key]:,}"
        for key, word in (("minimum", "from"), ("maximum", "to"), ("exclusiveMaximum", "below"))
        if key in schema
    )
    return f"{kind}{bounds}{_default(schema)}"


def _default(schema: JsonObject) -> str:
    default = schema.get("default")
    return "" if default is None or default == "" else f", default `{default}`"


def _schema(name: str, schema: JsonObject) -> Iterator[str]:
    yield f"\n### {name}\n\n"
    described = " ".join(schema.get("description", "").split())
    if described:
        yield f"{described}\n\n"
    fields = schema.get("properties", {})
    if not fields:
        yield f"Type: {_type(schema)}.\n"
        return
    yield "| field | type | meaning |\n| --- | --- | --- |\n"
    for field, described_field in fields.items():
        required = ", required" if field in schema.get("required", ()) else ""
        yield f"| `{field}` | {_type(described_field)}{required} | {cell(described_field.get('description', ''))} |\n"


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(page()), encoding="utf-8")
