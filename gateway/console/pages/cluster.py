"""Shows the brokers of the cluster, and drains one."""

from __future__ import annotations

from gateway.console.page import Answer, Redirect, Rendered, Routes, View, link


def cluster_routes(routes: Routes) -> None:
    """Adds the pages of the cluster."""
    routes.add("GET", "cluster", _show)
    routes.add("POST", "cluster/{broker_id}/drain", _drain)
    routes.add("POST", "cluster/{broker_id}/undrain", _undrain)


async def _show(view: View) -> Answer:
    cluster = await view.api.get("v1", "cluster")
    return Rendered("cluster.html", {"cluster": cluster})


async def _drain(view: View) -> Answer:
    await view.api.call("POST", "v1", "brokers", view.names["broker_id"], "drain")
    return Redirect(link("cluster"))


async def _undrain(view: View) -> Answer:
    await view.api.call("POST", "v1", "brokers", view.names["broker_id"], "undrain")
    return Redirect(link("cluster"))
