"""Writes docs/reference/grpc.md from the comments of the .proto files: `python -m docs.grpc_page`. A test compares them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from docs.page_broker import cell, shown_rights
from gateway.access.permissions import GRPC_CALLS

PAGE = Path(__file__).parent / "reference" / "grpc.md"
PROTOS = ("log.proto", "groups.proto", "admin.proto")
FOLDER = Path(__file__).parents[1] / "gateway" / "proto"
PACKAGE = "tidelog.v1"

_BLOCK = re.compile(r"(service|message|enum|oneof) (\w+) \{(.*)")
_RPC = re.compile(r"rpc (\w+)\((stream )?([\w.]+)\) returns \((stream )?([\w.]+)\)")
_FIELD = re.compile(r"((?:repeated |optional )?[\w.<>, ]+?) (\w+) = (\d+)(?: \[.*\])?;")
_VALUE = re.compile(r"(\w+) = (\d+);")

_INTRODUCTION = """\
# gRPC API

This page lists every service, message and enum of the package `tidelog.v1`. `python -m docs.grpc_page` generates it from
[gateway/proto](../../gateway/proto/log.proto), whose files are the source of truth for every client.

Errors are `google.rpc.Status` with `ErrorInfo` and `RetryInfo` in the details: [errors.md](errors.md). A broker serves
`grpc.health.v1` and server reflection as well.
"""


@dataclass
class Block:
    """One service, message or enum of a .proto file: its comment, and its rows of name, type and comment."""

    kind: str
    name: str
    comment: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)


def page() -> str:
    """Returns the text of docs/reference/grpc.md."""
    blocks = [block for name in PROTOS for block in parsed((FOLDER / name).read_text(encoding="utf-8"))]
    parts = [_INTRODUCTION]
    for block in [block for block in blocks if block.kind == "service"]:
        parts.append(f"\n## {PACKAGE}.{block.name}\n\n{_paragraph(block.comment)}| method | request, answer | meaning | rights |\n")
        parts.append("| --- | --- | --- | --- |\n")
        for name, kinds, comment in block.rows:
            rights = shown_rights(GRPC_CALLS[f"/{PACKAGE}.{block.name}/{name}"])
            parts.append(f"| `{name}` | {kinds} | {cell(comment)} | {rights} |\n")
    for kind, title, head in (("message", "Messages", "field | type"), ("enum", "Enums", "value | number")):
        parts.append(f"\n## {title}\n")
        for block in [block for block in blocks if block.kind == kind]:
            parts.append(f"\n### {block.name}\n\n{_paragraph(block.comment)}")
            if not block.rows:
                parts.append("It has no fields.\n")
                continue
            parts.append(f"| {head} | meaning |\n| --- | --- | --- |\n")
            parts += [f"| `{name}` | {shown} | {cell(comment)} |\n" for name, shown, comment in block.rows]
    return "".join(parts)


def parsed(text: str) -> Iterator[Block]:
    """Yields the blocks of a .proto file. A comment belongs to what follows it, or to what stands before it on its line."""
    open_blocks: list[Block] = []
    above: list[str] = []
    for line in text.splitlines():
        code, _, comment = (part.strip() for part in line.partition("//"))
        if not code:
            above = [*above, comment] if comment else []
            continue
        said = " ".join([*above, comment]).strip()
        above = []
        if opened := _BLOCK.match(code):
            block = Block(opened[1], opened[2], said)
            if block.kind == "oneof":
                open_blocks.append(open_blocks[-1])  # its fields are those of the message
                continue
            if open_blocks:
                block.name = f"{open_blocks[-1].name}.{block.name}"
            if not opened[3].strip().endswith("}"):
                open_blocks.append(block)
            yield block
        elif code == "}":
            open_blocks.pop()
        elif open_blocks:
            _take(open_blocks[-1], code, said)


def _take(block: Block, code: str, comment: str) -> None:
    """Adds one row to the block."""
    if found := _RPC.match(code):
        request, answer = (_stream(found[at], found[at + 1]) for at in (2, 4))
        block.rows.append((found[1], f"{request}, {answer}", comment))
    elif block.kind == "enum" and (found := _VALUE.match(code)):
        block.rows.append((found[1], found[2], comment))
    elif found := _FIELD.match(code):
        block.rows.append((found[2], f"{found[1]}, {found[3]}", comment))


def _stream(stream: str | None, name: str) -> str:
    linked = f"[{name}](#{name.lower()})" if "." not in name else name
    return f"stream of {linked}" if stream else linked


def _paragraph(comment: str) -> str:
    return f"{' '.join(comment.split())}\n\n" if comment else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
