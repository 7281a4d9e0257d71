"""Shows the records of a topic: a list that can be searched, one record in full, a download, and a form to produce."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.console.api_client import ApiRefused
from gateway.console.page import Answer, Redirect, Rendered, Routes, Stream, View, link, whole_number
from gateway.console.record_search import PARTITIONS_MAX, STEP_BYTES, STEP_RECORDS, Found, RecordSearch, Start
from gateway.console.record_view import RawRecord, RecordFilter, filter_of, raw_record, shown_record

COUNTS: Final = (25, 50, 100, 500)
COUNT_DEFAULT: Final = 50
# Records of one download, as the page of the list says. A client reads more.
DOWNLOAD_RECORDS: Final = 100_000
_ORDERS: Final = ("newest", "earliest", "offset", "time")


def record_routes(routes: Routes) -> None:
    """Adds the pages of records."""
    routes.add("GET", "topics/{topic}/records", _browse)
    routes.add("GET", "topics/{topic}/records/{partition}/{offset}", _show)
    routes.add("GET", "topics/{topic}/records/{partition}/{offset}/value", _value)
    routes.add("GET", "topics/{topic}/download", _download)
    routes.add("GET", "topics/{topic}/produce", _ask_to_produce)
    routes.add("POST", "topics/{topic}/produce", _produce)


class _Asked(msgspec.Struct, frozen=True):
    """Holds what the form of the list requests."""

    partition: int | None
    order: str
    start: Start
    count: int
    wanted: RecordFilter
    # By partition, where a former page ended.
    go_on: dict[int, int] | None
    # Why the form can't be followed.
    refused: str = ""


def asked_of(query: Mapping[str, str]) -> _Asked:
    """Reads the form of the list. Pure."""
    refused = ""
    partition = whole_number(query.get("partition", ""))
    order = query.get("order", "newest")
    if order not in _ORDERS:
        order, refused = "newest", "This order is not known."
    count = whole_number(query.get("count", ""))
    start = Start(newest=order == "newest")
    if order == "offset":
        offset = whole_number(query.get("offset", "").strip())
        if offset is None or partition is None:
            refused = "Choose a partition and a whole number: an offset belongs to one partition."
        else:
            start = Start(newest=False, offset=offset)
    elif order == "time":
        moment = _ms(query.get("time", ""))
        if moment is None:
            refused = "Enter a time as 2026-01-31T12:00 in UTC, or milliseconds since 1970."
        else:
            start = Start(newest=False, timestamp_ms=moment)
    return _Asked(
        partition,
        order,
        start,
        count if count in COUNTS else COUNT_DEFAULT,
        filter_of(query),
        _positions(query.get("go_on", "")),
        refused,
    )


def _ms(given: str) -> int | None:
    text = given.strip()
    number = whole_number(text)
    if number is not None:
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _positions(text: str) -> dict[int, int] | None:
    """Reads `partition-offset` pairs; None where there are none, or they are not well formed."""
    positions: dict[int, int] = {}
    for pair in text.split("_"):
        partition, offset = (whole_number(part) for part in (*pair.split("-"), "")[:2])
        if partition is None or offset is None:
            return None
        positions[partition] = offset
    return positions


async def _browse(view: View) -> Answer:
    name = view.names["topic"]
    described = await view.api.get("v1", "topics", name, limit=0)
    count = described["partition_count"]
    asked = asked_of(view.query)
    partitions = list(range(count)) if asked.partition is None else [asked.partition]
    left_out = max(0, len(partitions) - PARTITIONS_MAX)
    found = Found([], 0, {}, {})
    if not asked.refused:
        found = await _search(view, name, partitions[:PARTITIONS_MAX], asked)
    return Rendered(
        "records.html",
        {
            "topic": name,
            "partition_count": count,
            "asked": asked,
            "counts": COUNTS,
            "found": found,
            "left_out": left_out,
            "partitions_max": PARTITIONS_MAX,
            "download_records": DOWNLOAD_RECORDS,
            "go_on": "_".join(f"{partition}-{offset}" for partition, offset in sorted(found.go_on.items())),
        },
        prepare=lambda: {"records": [shown_record(record, hidden=not view.shows_values) for record in found.records]},
    )


async def _search(view: View, topic: str, partitions: list[int], asked: _Asked) -> Found:
    # A search would tell what values hold.
    search = RecordSearch(view.api, topic, asked.wanted if view.shows_values else RecordFilter())
    if asked.order == "newest":
        return await search.newest(partitions, count=asked.count, below=asked.go_on)
    return await search.onward(partitions, asked.start, count=asked.count, from_=asked.go_on)


async def _record(view: View) -> RawRecord | None:
    """Returns the record that the address names; None if it is not there any more, or not yet."""
    page = await view.api.get(
        "v1",
        "topics",
        view.names["topic"],
        "partitions",
        view.names["partition"],
        "records",
        offset=view.names["offset"],
        max_records=1,
        key_format="base64",
        value_format="base64",
    )
    records = [raw_record(each) for each in page["records"]]
    return records[0] if records and str(records[0].offset) == view.names["offset"] else None


async def _show(view: View) -> Answer:
    topic, partition, offset = (view.names[name] for name in ("topic", "partition", "offset"))
    record = await _record(view)
    if record is None:
        return _no_record(view)
    try:
        location = await view.api.get("v1", "topics", topic, "partitions", partition, "offsets", offset, "explain")
    except ApiRefused as error:
        location = {"refused": error.message}
    return Rendered(
        "record.html",
        {"topic": topic, "location": location},
        prepare=lambda: {"record": shown_record(record, whole=True, hidden=not view.shows_values)},
    )


async def _value(view: View) -> Answer:
    """Sends the bytes of a value as a file. A browser never interprets them."""
    if not view.shows_values:
        return _values_are_off()
    record = await _record(view)
    if record is None:
        return _no_record(view)
    content = record.value or b""

    async def parts() -> AsyncGenerator[bytes, None]:
        yield content

    return Stream("application/octet-stream", parts(), filename=f"{view.names['partition']}-{view.names['offset']}.bin")


def _no_record(view: View) -> Rendered:
    topic, partition, offset = (view.names[name] for name in ("topic", "partition", "offset"))
    values = {
        "title": f"There is no record at offset {offset}",
        "message": f"Partition {partition} of {topic} has none there: it was deleted, compacted, or is not written yet.",
        "hint": "",
    }
    return Rendered("error.html", values, status=404)


def _values_are_off() -> Rendered:
    values = {
        "title": "Values are not shown here",
        "message": "The console of this broker shows no keys, values and headers (console_values = false).",
        "hint": "Read the records with the API or a client.",
    }
    return Rendered("error.html", values, status=403)


# ── downloads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _download(view: View) -> Answer:
    """Sends the records from a position on, as NDJSON or CSV."""
    if not view.shows_values:
        return _values_are_off()
    topic = view.names["topic"]
    asked = asked_of(view.query)
    if asked.refused:
        return Redirect(link("topics", topic, "records", **view.query))
    described = await view.api.get("v1", "topics", topic, limit=0)
    partitions = list(range(described["partition_count"])) if asked.partition is None else [asked.partition]
    as_csv = view.query.get("as") == "csv"
    return Stream(
        "text/csv; charset=utf-8" if as_csv else "application/x-ndjson",
        _downloaded(view, topic, partitions, asked, as_csv=as_csv),
        filename=f"{topic}.{'csv' if as_csv else 'ndjson'}",
    )


async def _downloaded(view: View, topic: str, partitions: list[int], asked: _Asked, *, as_csv: bool) -> AsyncGenerator[bytes, None]:
    left = DOWNLOAD_RECORDS
    yield _csv([["partition", "offset", "timestamp_ms", "key", "value", "headers"]]) if as_csv else b""
    for partition in partitions:
        where: dict[str, str | int | None] = {"offset": "earliest"}
        if asked.start.offset is not None:
            where = {"offset": asked.start.offset}
        elif asked.start.timestamp_ms is not None:
            where = {"timestamp": asked.start.timestamp_ms}
        while left > 0:
            page = await view.api.get(
                "v1",
                "topics",
                topic,
                "partitions",
                str(partition),
                "records",
                max_records=min(left, STEP_RECORDS),
                max_bytes=STEP_BYTES,
                key_format="base64",
                value_format="base64",
                **where,
            )
            records = [each for each in map(raw_record, page["records"]) if asked.wanted.matches(each)]
            left -= len(records)
            yield _csv(_rows(records)) if as_csv else _lines(records)
            where = {"offset": page["next_offset"]}
            if page["next_offset"] >= page["high_watermark"]:
                break


def _lines(records: Iterable[RawRecord]) -> bytes:
    return b"".join(
        msgspec.json.encode(
            {
                "partition": record.partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": _plain(record.key),
                "value": _plain(record.value),
                "headers": [{"key": name, "value": _plain(value)} for name, value in record.headers],
            }
        )
        + b"\n"
        for record in records
    )


def _rows(records: Iterable[RawRecord]) -> Iterable[list[Any]]:
    for record in records:
        headers = [[name, _plain(value)] for name, value in record.headers]
        yield [
            record.partition,
            record.offset,
            record.timestamp_ms,
            _cell(record.key),
            _cell(record.value),
            msgspec.json.encode(headers).decode() if headers else "",
        ]


def _csv(rows: Iterable[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(data: bytes | None) -> str:
    """Returns a cell that no spreadsheet takes for a formula."""
    plain = _plain(data)
    text = plain if isinstance(plain, str) else "" if plain is None else msgspec.json.encode(plain).decode()
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and text else text


def _plain(data: bytes | None) -> Any:
    """Returns text as it is, and other bytes in the form that the API takes."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"type": "binary", "data": data}


# ── producing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _ask_to_produce(view: View) -> Answer:
    return await _form(view, {})


async def _produce(view: View) -> Answer:
    form = view.form
    record: dict[str, Any] = {"value": None if form.get("tombstone") else form.get("value", "")}
    if form.get("key"):
        record["key"] = form["key"]
    if (partition := whole_number(form.get("partition", ""))) is not None:
        record["partition"] = partition
    headers = [line.partition(":") for line in form.get("headers", "").splitlines() if line.strip()]
    if headers:
        record["headers"] = [{"key": name.strip(), "value": value.strip()} for name, _, value in headers]
    try:
        answer = await view.api.call("POST", "v1", "topics", view.names["topic"], "records", body={"records": [record]})
    except ApiRefused as error:
        return await _form(view, form, refused=error.message)
    [written] = answer["results"]
    if "error" in written:
        return await _form(view, form, refused=str(written["error"].get("detail", written["error"])))
    return Redirect(link("topics", view.names["topic"], "records", str(written["partition"]), str(written["offset"])))


async def _form(view: View, form: Mapping[str, str], *, refused: str = "") -> Answer:
    described = await view.api.get("v1", "topics", view.names["topic"], limit=0)
    values = {"topic": view.names["topic"], "partition_count": described["partition_count"], "form": form, "refused": refused}
    return Rendered("produce.html", values, status=400 if refused else 200)
