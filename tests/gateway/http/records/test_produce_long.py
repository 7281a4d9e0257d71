"""Bodies that take long to take apart, by their bytes or by what is in them: in a thread, so that others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.concurrency.offload import THREADS_MAX
from gateway.http.records import produce as records_produce
from gateway.http.records.produce import ARROW, JSON, NDJSON, THREAD_BYTES, THREAD_RECORDS, takes_long
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker, until

HEADERS = b",".join(b'"%d":""' % number for number in range(900))


@pytest.mark.parametrize(
    ("media_type", "body", "long"),
    [
        (NDJSON, b"{}\n" * THREAD_RECORDS, False),
        (NDJSON, b"{}\n" * (THREAD_RECORDS + 1), True),
        (NDJSON, b"\n" * 100_000, True),
        (NDJSON, b'{"headers":{%s}}\n' % HEADERS, False),
        (NDJSON, b'{"headers":{%s}}\n' % HEADERS * 5, True),
        (JSON, b'{"records":[%s]}' % b",".join([b'{"value":"a"}'] * (THREAD_RECORDS - 1)), False),
        (JSON, b'{"records":[%s]}' % b",".join([b'{"value":"a"}'] * THREAD_RECORDS), True),
        (JSON, b'{"records":[{"value":"%s"}]}' % (b"x" * (THREAD_BYTES - 100)), False),
        (JSON, b'{"records":[{"value":"%s"}]}' % (b"x" * THREAD_BYTES), True),
        (ARROW, b"", True),
    ],
)
def test_a_body_takes_long_by_its_bytes_or_by_its_records_headers_and_lines(media_type: str, body: bytes, long: bool) -> None:
    assert takes_long(media_type, body) is long


@pytest.mark.slow
def test_while_short_bodies_of_many_records_are_taken_apart_others_are_served_and_only_so_many_threads_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = 0
    may_go_on = threading.Event()
    plan_body = records_produce.plan_body

    def slow(*arguments: Any, **named: Any) -> Any:
        nonlocal busy
        if threading.current_thread() is not threading.main_thread():
            busy += 1
            assert may_go_on.wait(60)
        return plan_body(*arguments, **named)

    monkeypatch.setattr(records_produce, "plan_body", slow)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        many: list[Any] = [{}] * 2 * THREAD_RECORDS
        path = "/v1/topics/orders/records"
        taking_long = [asyncio.ensure_future(client.produce(path, many)) for _ in range(5)]
        await until(lambda: busy == THREADS_MAX)
        assert (await client.produce(path, [{"value": "a"}])).status == 200
        assert busy == THREADS_MAX
        may_go_on.set()
        assert [(await answer).status for answer in taking_long] == [200] * 5

    serve(tmp_path, scenario)
