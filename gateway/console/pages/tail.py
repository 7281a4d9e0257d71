"""Shows records as they are committed, no faster than people read, and says how many it leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import msgspec

from gateway.console.api_client import ApiRefused
from gateway.console.page import Answer, Rendered, Routes, Stream, View, whole_number
from gateway.console.record_view import RecordFilter, filter_of, raw_record, shown_record
from gateway.console.rendering import Templates

# One event of the page holds the records of this time, at most so many. The rest is counted.
EVENT_S: Final = 0.25
RECORDS_PER_EVENT: Final = 15
# With so many records in one event the topic is faster than the page, which then goes on at the end of the topic.
BATCH_RECORDS_MAX: Final = 500
# Bytes of records that the broker reads at once.
READ_BYTES: Final = 256 << 10
# An event without records, so that a proxy keeps the connection.
KEEP_ALIVE_S: Final = 15.0
# Bytes of one event of the API; a longer line is no event of ours.
LINE_BYTES_MAX: Final = 32 << 20


def tail_routes(routes: Routes, templates: Templates) -> None:
    """Adds the page of the live tail, and its events."""

    async def show(view: View) -> Answer:
        described = await view.api.get("v1", "topics", view.names["topic"], limit=0)
        values = {"topic": view.names["topic"], "partition_count": described["partition_count"], "wanted": filter_of(view.query)}
        return Rendered("tail.html", values)

    async def events(view: View) -> Answer:
        return Stream("text/event-stream", _tail(view, templates))

    routes.add("GET", "topics/{topic}/tail", show)
    routes.add("GET", "topics/{topic}/tail/events", events)


async def _tail(view: View, templates: Templates) -> AsyncGenerator[bytes, None]:
    """Yields events for the page: rendered rows, and the count of records that were left out."""
    topic = view.names["topic"]
    wanted = filter_of(view.query) if view.shows_values else RecordFilter()
    path = ["v1", "topics", topic]
    if (partition := whole_number(view.query.get("partition", ""))) is not None:
        path += ["partitions", str(partition)]
    positions = _Positions()
    where: dict[str, str | int | None] = {"offset": "latest"}
    while True:
        stream = view.api.stream(
            *path,
            "records",
            accept="text/event-stream",
            max_bytes=READ_BYTES,
            key_format="base64",
            value_format="base64",
            **where,
        )
        async with stream as parts, aclosing(_batches(sse_data(parts))) as batches:
            yield b": open\n\n"
            async for batch in batches:
                is_faster = len(batch) >= BATCH_RECORDS_MAX
                if batch:
                    skipped = positions.passed_over(batch)
                    matching = [record for record in map(raw_record, batch) if wanted.matches(record)]
                    shown = [shown_record(each, hidden=not view.shows_values) for each in reversed(matching[-RECORDS_PER_EVENT:])]
                    html = templates.render("record_rows.html", {"topic": topic, "records": shown}).decode()
                    left_out = len(matching) - len(shown) + skipped
                    yield _event("rows", {"html": html, "seen": len(batch) + skipped, "left_out": left_out})
                else:
                    yield b": waiting\n\n"
                if is_faster:
                    break
            else:
                return
        await asyncio.sleep(EVENT_S)
        where = {"tail": RECORDS_PER_EVENT}


class _Positions:
    """Counts the records that a stream passed over when it began again near the end."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def passed_over(self, batch: list[Any]) -> int:
        """Returns how many records are missing before those of the batch, and removes from it those that came before."""
        skipped = 0
        batch[:] = [record for record in batch if record["offset"] >= self._next.get(record["partition"], 0)]
        for record in batch:
            partition, offset = record["partition"], record["offset"]
            skipped += max(0, offset - self._next.get(partition, offset))
            self._next[partition] = offset + 1
        return skipped


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode("ascii"), msgspec.json.encode(data))


async def sse_data(parts: AsyncIterator[bytes]) -> AsyncGenerator[Any, None]:
    """Yields the JSON of each event with data, over the borders of parts."""
    rest = b""
    async for part in parts:
        *events, rest = (rest + part).split(b"\n\n")
        if len(rest) > LINE_BYTES_MAX:
            return
        for event in events:
            data = b"\n".join(line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                yield msgspec.json.decode(data)


async def _batches(events: AsyncGenerator[Any, None]) -> AsyncGenerator[list[Any], None]:
    """Yields the records that came in EVENT_S; an empty list after KEEP_ALIVE_S without any. Raises ApiRefused."""
    loop = asyncio.get_running_loop()
    batch: list[Any] = []
    ends_s = 0.0
    reading = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            timeout_s = max(0.0, ends_s - loop.time()) if batch else KEEP_ALIVE_S
            done, _ = await asyncio.wait((reading,), timeout=timeout_s)
            if done:
                record = reading.result()
                if record is None:
                    break
                if not batch:
                    ends_s = loop.time() + EVENT_S
                if "offset" not in record:  # the error that ends the stream
                    raise ApiRefused(int(record.get("status", 500)), record)
                batch.append(record)
                reading = asyncio.ensure_future(anext(events, None))
            if not done or (batch and (loop.time() >= ends_s or len(batch) >= BATCH_RECORDS_MAX)):
                yield batch
                batch = []
        if batch:
            yield batch
    finally:
        reading.cancel()
        await asyncio.wait((reading,))  # a generator that still runs can't be closed
        await events.aclose()
