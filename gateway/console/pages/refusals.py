"""Explains to administrators why a call is refused, and shows the newest lines of the audit log of this broker."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from gateway.console.api_client import ApiRefused
from gateway.console.page import Answer, Rendered, Routes, View
from gateway.console.pages.access import OPERATIONS

LINES_MAX: Final = 200
ASKED: Final = ("principal", "key_id", "operation", "resource", "name")


def refusal_routes(routes: Routes) -> None:
    """Adds the pages of refusals."""
    routes.add("GET", "access/explain", _explain)
    routes.add("GET", "access/audit", _show_audited)


async def _explain(view: View) -> Answer:
    """Shows the form, and the explanation of what its address asks for."""
    asked = {name: view.query.get(name, "").strip() for name in ASKED}
    explained, refused = None, ""
    if asked["principal"] or asked["key_id"]:
        try:
            explained = await view.api.get("v1", "access", "explain", **{name: value for name, value in asked.items() if value})
        except ApiRefused as error:
            if error.status != 400:
                raise
            refused = f"{error.message}. {error.hint}".strip()
    operations = [each for each in OPERATIONS if each != "all"]
    return Rendered("access_explain.html", {"asked": asked, "explained": explained, "refused": refused, "operations": operations})


async def _show_audited(view: View) -> Answer:
    principal, refused = view.query.get("principal", "").strip(), view.query.get("refused") == "true"
    query = {"limit": LINES_MAX, "principal": principal or None, "refused": "true" if refused else None}
    tail = await view.api.get("v1", "access", "audit", **query)
    for line in tail["lines"]:
        line["at_ms"] = _ms_of(line["time"])
        line["explained"] = _explained_by(line)
    return Rendered("access_audit.html", {"tail": tail, "principal": principal, "refused_only": refused})


def _ms_of(time: str) -> int:
    """Returns a time of the audit log in milliseconds since 1970."""
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def _explained_by(line: dict[str, Any]) -> dict[str, str] | None:
    """Returns the query of the page that explains a refusal; None for other lines. The operation is not in the line."""
    if line["outcome"] != "PERMISSION_DENIED" or not line["principal"] or len(line["resources"]) != 1:
        return None
    resource, _, name = line["resources"][0].partition(":")
    if resource not in {"topic", "group", "cluster"}:
        return None
    credential = line["credential"]
    key_id = credential.removeprefix("API key ") if credential.startswith("API key ") else ""
    words = line["reason"].split()
    operation = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "to" and words[at + 1] in OPERATIONS), "")
    return {"principal": line["principal"], "key_id": key_id, "operation": operation, "resource": resource, "name": name}
