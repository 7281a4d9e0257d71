"""What the demo's Kafka client takes for the same rows, and what for others."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from metadata.errors import Unavailable
from tidelog.demo import kafka_client
from tidelog.demo.kafka_client import Comparison, Misread, read_with_kafka_client
from tidelog.records import Record

RECORDS = [
    Record("flights", 0, 0, 0, b"AA", b"a1"),
    Record("flights", 0, 1, 0, b"AA", b"a2"),
    Record("flights", 3, 0, 0, b"UA", b"u1"),
]


class Message(NamedTuple):
    """As confluent-kafka has them: the values are methods."""

    at: tuple[int, int]
    pair: tuple[bytes | None, bytes | None]
    fault: str | None = None

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]

    def key(self) -> bytes | None:
        return self.pair[0]

    def value(self) -> bytes | None:
        return self.pair[1]

    def error(self) -> str | None:
        return self.fault


A1, A2, U1 = (Message((record.partition, record.offset), (record.key, record.value)) for record in RECORDS)


def test_the_same_rows_pass_in_any_order_of_the_partitions() -> None:
    comparison = Comparison(RECORDS)
    messages: list[Any] = [U1, A1, A2]
    comparison.take(messages[:1])
    comparison.take(messages[1:])
    assert comparison.rows == comparison.rows_in_all == 3


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([A2], "in place of the row of offset 0 of partition 0 came offset 1"),
        ([A1, A1], "in place of the row of offset 1 of partition 0 came offset 0"),
        ([U1, U1], "in place of the end of partition 3 came offset 0"),
        ([A1, A2._replace(pair=(b"AA", b"a3"))], "offset 1: b'a3'"),
        ([A1._replace(pair=(b"UA", b"a1"))], "in place of the row of offset 0"),
        ([A1._replace(pair=(b"AA", None))], "offset 0: b''"),
        ([A1._replace(at=(7, 0))], "in place of the end of partition 7"),
        ([A1._replace(fault="_MAX_POLL_EXCEEDED")], "an error in place of a row: _MAX_POLL_EXCEEDED"),
    ],
)
def test_a_row_that_is_missing_doubled_changed_or_out_of_order_fails(messages: list[Any], said: str) -> None:
    with pytest.raises(Misread, match=said):
        Comparison(RECORDS).take(messages)


def test_where_no_kafka_client_is_installed_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kafka_client.missing() == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'tidelog[demo]'" in kafka_client.missing()


@pytest.mark.slow
def test_a_broker_that_does_not_answer_ends_it_with_what_the_client_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "TIMEOUT_S", 2.0)
    with unanswered_address() as address, pytest.raises(Unavailable, match=r"read 0 rows in 2 s; it said: .*refused"):
        asyncio.run(read_with_kafka_client(address, "flights", Comparison(RECORDS)))


@pytest.mark.slow
def test_a_read_that_is_cancelled_stops_the_client() -> None:
    async def cancelled(address: str) -> None:
        reading = asyncio.ensure_future(read_with_kafka_client(address, "flights", Comparison(RECORDS)))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    with unanswered_address() as address:
        started_s = time.monotonic()
        asyncio.run(cancelled(address))  # it waits for the thread
        assert time.monotonic() - started_s < kafka_client.TIMEOUT_S / 2


@contextmanager
def unanswered_address() -> Iterator[str]:
    with socket.socket() as unreachable:
        unreachable.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unreachable.getsockname()[1]}"
