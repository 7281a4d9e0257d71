"""Writes docs/settings.md from the settings' own docstrings: `python -m docs.settings_page`. A test sees that the page is fresh."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

from gateway.settings import BrokerSettings, GatewaySettings
from segments.s3_settings import S3Settings
from segments.settings import MIB, SegmentSettings

PAGE = Path(__file__).with_name("settings.md")
SECTIONS = {"The broker": BrokerSettings, "The log": SegmentSettings, "The doors": GatewaySettings, "S3": S3Settings}

_INTRODUCTION = """\
# Settings

Every setting has one name: as a flag (`--linger-ms 250`), as a variable (`TIDELOG_LINGER_MS=250`) and in a TOML file
(`linger_ms = 250`, read with `--settings FILE`). Flags win over variables, variables over the file. An unknown name is refused.
Bytes may be written as `8MiB`. Where the bucket is a local directory, `linger_ms` is 5 and `puts_per_second_max` 400 by default.
"""


def page() -> str:
    return _INTRODUCTION + "".join(f"\n## {title}\n\n{_table(settings)}" for title, settings in SECTIONS.items())


def _table(settings: type[Any]) -> str:
    docs = _field_docs(settings)
    rows = [
        f"| `{field.name}` | {_shown(field)} | {docs.get(field.name, '')} |"
        for field in dataclasses.fields(settings)
        if not dataclasses.is_dataclass(field.default_factory)
    ]
    return "\n".join(["| name | default | what it does |", "| --- | --- | --- |", *rows]) + "\n"


def _shown(field: dataclasses.Field[Any]) -> str:
    if field.default in (dataclasses.MISSING, None, ""):
        return ""
    if "bytes" in field.name and field.default % MIB == 0:
        return f"`{field.default // MIB}MiB`"
    return f"`{field.default}`"


def _field_docs(settings: type[Any]) -> dict[str, str]:
    """The strings below a class's fields, which Python keeps only in the source."""
    body = ast.parse(inspect.getsource(settings)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
