"""Shows consumer groups with their lag, and moves their offsets: first as a table of what would change, then for good."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.console.api_client import ApiRefused
from gateway.console.page import Answer, Redirect, Rendered, Routes, View, link, whole_number
from gateway.console.pages.lag import REFRESH_S, known_topics, lag_charts, lag_history, present_lag

PAGE_SIZE: Final = 100
# Groups of a page whose lag is read with it.
LAGS_MAX: Final = 25
# Groups that are asked for at the same time.
LAGS_AT_ONCE: Final = 8
# Rows of one page of a group: partitions, and members.
ROWS_MAX: Final = 200
STATES: Final = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Reconciling")


def group_routes(routes: Routes) -> None:
    """Adds the pages of groups."""
    routes.add("GET", "groups", _list)
    routes.add("GET", "groups/{group}", _show)
    routes.add("POST", "groups/{group}/seek", _seek)
    routes.add("POST", "groups/{group}/delete", _delete)


async def _list(view: View) -> Answer:
    asked = {name: view.query.get(name, "").strip() for name in ("search", "state")}
    given = {name: text for name, text in asked.items() if text}
    page = await view.api.get("v1", "groups", page_size=PAGE_SIZE, page_token=view.query.get("page"), **given)
    names = [group["group"] for group in page["groups"][:LAGS_MAX]]
    lags = dict(zip(names, await _lags(view, names), strict=True))
    values = {"page": page, "lags": lags, "asked": asked, "states": STATES, "refresh_s": REFRESH_S}
    return Rendered("groups.html", values, block="figures" if view.is_fragment else "")


async def _lags(view: View, names: Sequence[str]) -> list[dict[str, Any]]:
    room = asyncio.Semaphore(LAGS_AT_ONCE)

    async def lag(name: str) -> dict[str, Any]:
        async with room:
            return await _lag(view, name)

    return await asyncio.gather(*map(lag, names))


async def _lag(view: View, name: str) -> dict[str, Any]:
    """Returns the lag of a group with its history: of the newest sample, or as of now where there is none.

    A page that refreshes itself takes samples alone: the lag as of now reads a record of each partition that is behind. A
    coordinator that is silent is not asked for it after the history: the page would wait for it twice.
    """
    try:
        history = await lag_history(view, name, raises_unavailable=True)
        present = present_lag(history)
        if present is None and not view.is_fragment and not (history or {}).get("silent_brokers"):
            present = await view.api.get("v1", "groups", name)
    except ApiRefused as error:
        return {"refused": error.message}
    return {"history": history, **(present or {"refused": "there is no sample yet"})}


async def _show(view: View) -> Answer:
    if view.is_fragment:  # the page follows the history alone
        history = await lag_history(view, view.names["group"])
        return Rendered("group.html", {"name": view.names["group"], **_history_values(history)}, block="history")
    return await _described(view)


def _history_values(history: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "history": history,
        "charts": {} if history is None else lag_charts(history),
        "topics": [] if history is None else known_topics(history),
        "refresh_s": REFRESH_S,
    }


async def _described(view: View, **more: Any) -> Rendered:
    group = await view.api.get("v1", "groups", view.names["group"])
    history = await lag_history(view, view.names["group"])
    topic = view.query.get("topic", "").strip()
    lags = [lag for lag in group["lags"] if topic.lower() in lag["topic"].lower()]
    start = min(whole_number(view.query.get("from", "").strip()) or 0, max(0, len(lags) - 1))
    values = {
        "group": group,
        "lags": lags[start : start + ROWS_MAX],
        "lags_count": len(lags),
        "start": start,
        "rows_max": ROWS_MAX,
        "topic": topic,
        "form": view.form,
        "moved": None,
        "refused": "",
        "moved_for_good": False,
        "name": view.names["group"],
        **_history_values(history),
    }
    return Rendered("group.html", values | more)


async def _seek(view: View) -> Answer:
    """Shows what a seek would change. With `confirmed` it moves the offsets."""
    try:
        body = seek_body(view.form)
    except ValueError as error:
        return await _described(view, refused=str(error))
    confirmed = view.form.get("confirmed") == "true"
    query = {} if confirmed else {"validate_only": "true"}
    try:
        answer = await view.api.call("POST", "v1", "groups", view.names["group"], "seek", query=query, body=body)
    except ApiRefused as error:
        return await _described(view, refused=f"{error.message} {error.hint}".strip())
    return await _described(view, moved=answer["moved"], moved_for_good=confirmed)


def seek_body(form: Mapping[str, str]) -> dict[str, Any]:
    """Returns the body of a seek that the form asks for. Raises ValueError with a sentence for the reader. Pure."""
    where = form.get("to", "")
    point = form.get("point", "").strip()
    number, shift = whole_number(point), whole_number(point[1:] if point[:1] in {"-", "+"} else point)
    to: Any
    match where:
        case "earliest" | "latest":
            to = where
        case "offset" if number is not None:
            to = {"offset": number}
        case "shift" if shift is not None:
            to = {"shift": -shift if point.startswith("-") else shift}
        case "time" if point:
            to = {"timestamp": _zoned(point) if number is None else number}
        case "offset" | "shift":
            raise ValueError("Enter a whole number: the offset, or by how many records to move.")
        case _:
            raise ValueError("Enter a time as 2026-01-31T12:00:00Z, or milliseconds since 1970.")
    body: dict[str, Any] = {"to": to}
    topic = form.get("topic", "").strip()
    if topic:
        entered = form.get("partition", "").strip()
        partition = whole_number(entered)
        if entered and partition is None:
            raise ValueError("Enter the number of one partition, or leave it empty for all.")
        body["topics"] = [topic if partition is None else {"topic": topic, "partitions": [partition]}]
    return body


def _zoned(point: str) -> str:
    """Adds UTC to a time without a zone, as browsers send it."""
    date, _, time_of_day = point.partition("T")
    if not time_of_day or point.endswith("Z") or "+" in time_of_day or "-" in time_of_day:
        return point
    return f"{date}T{time_of_day}{':00' if time_of_day.count(':') == 1 else ''}Z"


async def _delete(view: View) -> Answer:
    name = view.names["group"]
    if view.form.get("confirmation") != name:
        return await _described(view, refused="Nothing was deleted: the name that you typed is another one.")
    await view.api.call("DELETE", "v1", "groups", name)
    return Redirect(link("groups"))
