"""Shows API keys, ACLs and quotas, and changes them."""

from __future__ import annotations

from typing import Any, Final

from gateway.console.api_client import ApiRefused
from gateway.console.page import Answer, Redirect, Rendered, Routes, View, link, whole_number

PAGE_SIZE: Final = 500
RATES: Final = ("bytes_in_per_second", "bytes_out_per_second", "requests_per_second")
OPERATIONS: Final = ("describe", "read", "write", "create", "admin", "all")


def access_routes(routes: Routes) -> None:
    """Adds the pages of access control."""
    routes.add("GET", "access", _described)
    routes.add("POST", "access/keys", _create_key)
    routes.add("POST", "access/keys/{key_id}/revoke", _revoke_key)
    routes.add("POST", "access/acls", _add_acl)
    routes.add("POST", "access/acls/{acl_id}/delete", _delete_acl)
    routes.add("POST", "access/quotas", _set_quota)


async def _described(view: View, **more: Any) -> Rendered:
    keys = await view.api.get("v1", "keys", page_size=PAGE_SIZE)
    acls = await view.api.get("v1", "acls", page_size=PAGE_SIZE)
    quotas = await view.api.get("v1", "quotas", page_size=PAGE_SIZE)
    values = {
        "keys": keys,
        "acls": acls,
        "quotas": quotas,
        "page_size": PAGE_SIZE,
        "operations": OPERATIONS,
        "made": None,
        "refused": "",
    }
    return Rendered("access.html", values | more)


async def _create_key(view: View) -> Answer:
    body = {"principal": view.form.get("principal", "").strip(), "description": view.form.get("description", "").strip()}
    try:
        made = await view.api.call("POST", "v1", "keys", body=body)
    except ApiRefused as error:
        return await _described(view, refused=error.message)
    return await _described(view, made=made)


async def _revoke_key(view: View) -> Answer:
    await view.api.call("DELETE", "v1", "keys", view.names["key_id"])
    return Redirect(link("access"))


async def _add_acl(view: View) -> Answer:
    form = view.form
    names = ("principal", "operation", "resource", "name", "pattern", "effect")
    body = {name: form[name].strip() for name in names if form.get(name)}
    try:
        await view.api.call("POST", "v1", "acls", body=body)
    except ApiRefused as error:
        return await _described(view, refused=error.message)
    return Redirect(link("access"))


async def _delete_acl(view: View) -> Answer:
    await view.api.call("DELETE", "v1", "acls", view.names["acl_id"])
    return Redirect(link("access"))


async def _set_quota(view: View) -> Answer:
    """Sets the quota of a principal; three empty rates remove it."""
    principal = view.form.get("principal", "").strip()
    rates = {name: whole_number(view.form.get(name, "").strip() or "0") for name in RATES}
    if None in rates.values():
        return await _described(view, refused="Enter whole numbers for the rates of a quota.")
    try:
        if any(rates.values()):
            await view.api.call("POST", "v1", "quotas", body={"principal": principal, **rates})
        else:
            await view.api.call("DELETE", "v1", "quotas", query={"principal": principal})
    except ApiRefused as error:
        return await _described(view, refused=error.message)
    return Redirect(link("access"))
