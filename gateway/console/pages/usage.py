"""Reads what topics take and cost, for the pages that show it. A page is shown without it where the broker does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.console.api_client import ApiRefused
from gateway.console.page import View

# The default of retention.ms: the API lists only settings that differ.
RETENTION_MS: Final = 604_800_000
# How often a page reads its figures again; hidden pages are slowed by the browser.
REFRESH_S: Final = 15


async def usage_of(view: View, topics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the figures of these topics by name: storage, rates and costs. Empty if they are not known."""
    if not topics:
        return {}
    names, count = ",".join(topics), len(topics)
    try:
        storage = await view.api.get("v1", "storage", topics=names, page_size=count)
        costs = await view.api.get("v1", "costs", topics=names, page_size=count)
    except ApiRefused:
        return {}
    dollars = {each["name"]: each for each in costs["topics"]}
    return {each["name"]: each | {"cost": dollars.get(each["name"])} for each in storage["topics"]}


def retention(settings: Mapping[str, str]) -> str:
    """Says how long a topic with these settings keeps its records. Pure."""
    if settings.get("cleanup.policy") == "compact":
        return "newest of each key"
    ms = int(settings.get("retention.ms", RETENTION_MS))
    kept = "no limit" if ms < 0 else _span(ms)
    limit = int(settings.get("retention.bytes", -1))
    return kept if limit < 0 else f"{kept}, or by bytes"


def _span(ms: int) -> str:
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms} ms"
