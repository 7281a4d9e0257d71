"""Lists the topics, creates them, and deletes them once their name was typed again."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.console.api_client import ApiRefused
from gateway.console.page import Answer, Redirect, Rendered, Routes, View, link, whole_number
from gateway.console.pages.usage import REFRESH_S, retention, usage_of

PAGE_SIZE: Final = 100
# Partitions of one page, and of a topic at most.
PARTITIONS_PER_PAGE: Final = 200
PARTITIONS_MAX: Final = 10_000


def topic_routes(routes: Routes) -> None:
    """Adds the pages of topics."""
    routes.add("GET", "", _home)
    routes.add("GET", "topics", _list)
    routes.add("POST", "topics", _create)
    routes.add("GET", "topics/{topic}", _to_records)
    routes.add("GET", "topics/{topic}/partitions", _described)
    routes.add("GET", "topics/{topic}/groups", _readers)
    routes.add("POST", "topics/{topic}/delete", _delete)
    routes.add("GET", "topics/{topic}/settings", _settings)
    routes.add("POST", "topics/{topic}/settings", _alter)
    routes.add("POST", "topics/{topic}/grow", _grow)


async def _home(view: View) -> Answer:
    return Redirect(link("topics"))


async def _list(view: View) -> Answer:
    search = view.query.get("search", "").strip()
    page = await view.api.get("v1", "topics", page_size=PAGE_SIZE, page_token=view.query.get("page"), search=search or None)
    usage = await usage_of(view, [topic["name"] for topic in page["topics"]])
    values = {"page": page, "search": search, "usage": usage, "retention": retention, "refresh_s": REFRESH_S}
    return Rendered("topics.html", values, block="figures" if view.is_fragment else "")


async def _create(view: View) -> Answer:
    name = view.form.get("name", "").strip()
    body = {"name": name, "partition_count": _partition_count(view)}
    await view.api.call("POST", "v1", "topics", body=body)
    return Redirect(link("topics", name))


def _partition_count(view: View) -> int:
    """Returns the number of the form; 0, which the API refuses, where there is none."""
    return whole_number(view.form.get("partition_count", "")) or 0


async def _to_records(view: View) -> Answer:
    return Redirect(link("topics", view.names["topic"], "records"))


async def _described(view: View, **more: object) -> Rendered:
    name = view.names["topic"]
    start = min(whole_number(view.query.get("from", "").strip()) or 0, PARTITIONS_MAX)
    topic = await view.api.get("v1", "topics", name, start=start, limit=PARTITIONS_PER_PAGE)
    usage = await usage_of(view, [name])
    known = [each for each in topic["partitions"] if "error" not in each]
    records = sum(each["high_watermark"] - each["log_start_offset"] for each in known)
    values = {"topic": topic, "records": records, "start": start, "per_page": PARTITIONS_PER_PAGE, "usage": usage.get(name)}
    return Rendered("topic.html", {**values, **more})


async def _readers(view: View) -> Answer:
    topic = view.names["topic"]
    page = await view.api.get("v1", "topics", topic, "groups", page_size=PAGE_SIZE, page_token=view.query.get("page"))
    return Rendered("topic_groups.html", {"topic": topic, "page": page, "is_first": not view.query.get("page")})


async def _delete(view: View) -> Answer:
    name = view.names["topic"]
    if view.form.get("confirmation") != name:
        refused = await _described(view, refused="Nothing was deleted: the name that you typed is another one.")
        return replace(refused, status=409)
    await view.api.call("DELETE", "v1", "topics", name)
    return Redirect(link("topics"))


async def _settings(view: View, *, refused: str = "") -> Rendered:
    topic = view.names["topic"]
    described = await view.api.get("v1", "topics", topic, "settings")
    shape = await view.api.get("v1", "topics", topic, limit=0)
    values = {
        "topic": topic,
        "settings": [each for each in described["settings"] if not each["inert"]],
        "inert": [each for each in described["settings"] if each["inert"] and each["value"] != each["default"]],
        "partition_count": shape["partition_count"],
        "refused": refused,
    }
    return Rendered("topic_settings.html", values, status=400 if refused else 200)


async def _alter(view: View) -> Answer:
    """Sets one setting; an empty value resets it to its default."""
    name, value = view.form.get("name", ""), view.form.get("value", "").strip()
    try:
        await view.api.call("PATCH", "v1", "topics", view.names["topic"], body={"settings": {name: value or None}})
    except ApiRefused as error:
        return await _settings(view, refused=f"{error.message} {error.hint}".strip())
    return Redirect(link("topics", view.names["topic"], "settings"))


async def _grow(view: View) -> Answer:
    try:
        await view.api.call("PATCH", "v1", "topics", view.names["topic"], body={"partition_count": _partition_count(view)})
    except ApiRefused as error:
        return await _settings(view, refused=f"{error.message} {error.hint}".strip())
    return Redirect(link("topics", view.names["topic"], "partitions"))
