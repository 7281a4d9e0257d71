"""Bodies go out piece by piece at a least rate, in virtual time, to a reader that takes them as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.http import paced_response
from gateway.http.paced_response import PIECE_BYTES
from gateway.http.request import Disconnected, Message, Request
from gateway.records.response_budget import BYTES_PER_SECOND_MIN
from tests.simulation.virtual_loop import run

PAUSE_S = 10.0


class Reader:
    """Takes each message after as many seconds as `delay_s` says for the bytes that it has so far."""

    def __init__(self, delay_s: Callable[[int], float]) -> None:
        self.messages: list[Message] = []
        self._delay_s = delay_s

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    async def send(self, message: Message) -> None:
        await asyncio.sleep(self._delay_s(len(self.body)))
        self.messages.append(message)

    async def receive(self) -> Message:
        return {"type": "http.disconnect"}

    @property
    def request(self) -> Request:
        return Request({"method": "GET", "headers": [], "query_string": b""}, self.receive, self.send)


def answer(reader: Reader, body: bytes) -> float:
    """When the whole answer was taken."""

    async def scenario() -> float:
        await paced_response.send_paced(reader.request, body, [(b"content-type", b"text/plain")], pause_s=PAUSE_S)
        return asyncio.get_running_loop().time()

    return run(scenario())


def test_a_body_goes_out_whole_in_pieces() -> None:
    body = bytes(range(256)) * 1000
    reader = Reader(lambda _: 0)
    answer(reader, body)
    start, *pieces, end = reader.messages
    assert start["headers"] == [(b"content-type", b"text/plain"), (b"content-length", b"256000")]
    assert [len(piece["body"]) for piece in pieces] == [PIECE_BYTES] * 3 + [len(body) - 3 * PIECE_BYTES]
    assert all(piece["more_body"] for piece in pieces)
    assert (end["body"], end["more_body"]) == (b"", False)
    assert reader.body == body


def test_an_empty_body_is_an_answer_too() -> None:
    reader = Reader(lambda _: 0)
    answer(reader, b"")
    assert [message["type"] for message in reader.messages] == ["http.response.start", "http.response.body"]


def test_a_chunk_of_a_stream_counts_as_taken_when_its_last_piece_was() -> None:
    reader = Reader(lambda _: 1)

    async def scenario() -> float:
        await paced_response.stream_paced(reader.request, b"x" * (PIECE_BYTES + 1), pause_s=PAUSE_S)
        return asyncio.get_running_loop().time()

    assert run(scenario()) == 3
    assert [len(message["body"]) for message in reader.messages] == [PIECE_BYTES, 1, 0]
    assert all(message["more_body"] for message in reader.messages)


def test_a_reader_at_the_least_rate_gets_the_longest_answer() -> None:
    reader = Reader(lambda _: PIECE_BYTES / BYTES_PER_SECOND_MIN)
    assert answer(reader, b"x" * 100 * PIECE_BYTES) > 100
    assert len(reader.body) == 100 * PIECE_BYTES


@pytest.mark.parametrize("stops_after_bytes", [0, 50 * PIECE_BYTES])
def test_a_reader_that_stops_is_cut_off_after_the_pause_however_much_it_took_before(stops_after_bytes: int) -> None:
    reader = Reader(lambda bytes_taken: 0 if bytes_taken < stops_after_bytes else 1e9)

    async def scenario() -> float:
        with pytest.raises(Disconnected):
            await paced_response.send_paced(reader.request, b"x" * 100 * PIECE_BYTES, [], pause_s=PAUSE_S)
        return asyncio.get_running_loop().time()

    assert run(scenario()) == PAUSE_S
    assert len(reader.body) == stops_after_bytes


def test_a_reader_below_the_least_rate_is_cut_off_though_it_never_pauses() -> None:
    reader = Reader(lambda _: 4 * PIECE_BYTES / BYTES_PER_SECOND_MIN)

    async def scenario() -> float:
        with pytest.raises(Disconnected):
            await paced_response.stream_paced(reader.request, b"x" * 1000 * PIECE_BYTES, pause_s=PAUSE_S)
        return asyncio.get_running_loop().time()

    assert PAUSE_S <= run(scenario()) <= 2 * PAUSE_S


def test_a_cancelled_response_is_not_mistaken_for_a_slow_reader() -> None:
    reader = Reader(lambda _: 1e9)

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await paced_response.send_paced(reader.request, b"x", [], pause_s=PAUSE_S)

    run(scenario())
