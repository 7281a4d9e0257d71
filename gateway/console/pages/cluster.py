"""Shows the brokers of the cluster and the health of its stores, and drains a broker."""

from __future__ import annotations

from typing import Any

from gateway.console.api_client import ApiRefused
from gateway.console.page import Answer, Redirect, Rendered, Routes, View, link


def cluster_routes(routes: Routes) -> None:
    """Adds the pages of the cluster."""
    routes.add("GET", "cluster", _show)
    routes.add("POST", "cluster/{broker_id}/drain", _drain)
    routes.add("POST", "cluster/{broker_id}/undrain", _undrain)


async def _show(view: View) -> Answer:
    cluster = await view.api.get("v1", "cluster")
    moving = [broker for broker in cluster["brokers"] if broker["draining"] and broker["partitions_led"]]
    return Rendered("cluster.html", {"cluster": cluster, "is_moving": bool(moving), **await _health(view)})


async def _health(view: View) -> dict[str, Any]:
    """Returns the health of the stores, or why it is unknown: the page of the brokers is shown without it as well."""
    try:
        return {"health": await view.api.get("v1", "cluster", "health"), "no_health": ""}
    except ApiRefused as error:
        if error.status == 401:
            raise
        return {"health": None, "no_health": error.message}


async def _drain(view: View) -> Answer:
    await view.api.call("POST", "v1", "brokers", view.names["broker_id"], "drain")
    return Redirect(link("cluster"))


async def _undrain(view: View) -> Answer:
    await view.api.call("POST", "v1", "brokers", view.names["broker_id"], "undrain")
    return Redirect(link("cluster"))
