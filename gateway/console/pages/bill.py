"""Shows where the bytes of the bucket are, what they cost, what would change it, and verifies the bucket."""

from __future__ import annotations

from typing import Any, Final

from gateway.console.api_client import ApiRefused
from gateway.console.page import Answer, Redirect, Rendered, Routes, View, link

TOPICS_SHOWN: Final = 50
PRICES: Final = ("price_1000_writes", "price_1000_reads", "price_gib_month")
# What the API names a kind, and what it is.
KINDS: Final = {
    "segments": "Segments: batches as producers sent them",
    "parquet": "Parquet: compacted records",
    "manifests": "Manifests: which Parquet files count",
    "topic_notes": "Notes of topics: created, changed, deleted",
    "wal_notes": "Notes of sessions: claims, indexes, trim markers",
    "metadata": "Copies of the metadata, appointments of leaders",
    "staged": "Rows of Spark that are on their way into topics",
    "other": "Others",
}


def bill_routes(routes: Routes) -> None:
    """Adds the page of the bucket and its bill."""
    routes.add("GET", "bill", _show)
    routes.add("POST", "bill/verify", _verify)
    routes.add("POST", "bill/verify/cancel", _cancel)


async def _show(view: View, *, refused: str = "") -> Answer:
    verification = await _verification(view)
    if view.is_fragment:
        return Rendered("bill.html", {"verification": verification, "refused": refused}, block="verification")
    storage = await view.api.get("v1", "storage", order="bytes", page_size=TOPICS_SHOWN)
    prices = {name: text for name in PRICES if (text := view.query.get(name, "").strip())}
    try:
        costs = await view.api.get("v1", "costs", order="bytes", page_size=TOPICS_SHOWN, **prices)
    except ApiRefused as error:
        if error.status != 400:
            raise
        refused = error.message
        costs = await view.api.get("v1", "costs", order="bytes", page_size=TOPICS_SHOWN)
    values = {
        "storage": storage,
        "bucket": storage["bucket"],
        "costs": costs,
        "cluster": costs["cluster"],
        "dollars": {each["name"]: each["dollars"] for each in costs["topics"]},
        "kinds": KINDS,
        "topics_shown": TOPICS_SHOWN,
        "verification": verification,
        "refused": refused,
    }
    return Rendered("bill.html", values)


async def _verification(view: View) -> dict[str, Any] | None:
    """Returns the verification that this broker has begun last; None for a reader who may not see it."""
    try:
        found: dict[str, Any] = await view.api.get("v1", "verification")
    except ApiRefused as error:
        if error.status != 403:
            raise
        return None
    return found


async def _verify(view: View) -> Answer:
    try:
        await view.api.call("POST", "v1", "verification")
    except ApiRefused as error:
        return await _show(view, refused=f"{error.message}. {error.hint}")
    return Redirect(link("bill") + "#verification")


async def _cancel(view: View) -> Answer:
    try:
        await view.api.call("DELETE", "v1", "verification")
    except ApiRefused as error:
        return await _show(view, refused=f"{error.message}. {error.hint}")
    return Redirect(link("bill") + "#verification")
