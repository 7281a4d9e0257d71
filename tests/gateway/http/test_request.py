from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.error_codes import BodyTooSlow, NotAcceptable, UnsupportedMediaType
from gateway.http.request import Disconnected, Message, Query, Request, request_id_of
from metadata.errors import InvalidArgument, Throttled, TooLarge
from segments.byte_budget import ByteBudget
from tests.simulation.virtual_loop import run as run_virtually

KNOWN = frozenset({"offset", "wait_ms", "acks", "timestamp"})


def request_with(chunks: Sequence[bytes | None] = (), **headers: str) -> Request:
    """`chunks` come one after the other; None hangs without end, and after the last comes a hang-up."""
    scope: dict[str, Any] = {
        "method": "POST",
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    coming = list(chunks)

    async def receive() -> Message:
        if not coming:
            return {"type": "http.disconnect"}
        chunk = coming.pop(0)
        if chunk is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunk, "more_body": bool(coming)}

    async def send(_: Message) -> None:
        raise AssertionError("nothing is answered here")

    return Request(scope, receive, send)


# ── query ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_parameters_are_read_with_their_bounds() -> None:
    query = Query(b"offset=7&wait_ms=0&acks=all", KNOWN)
    assert query.integer("offset", least=0, most=10) == 7
    assert query.integer("wait_ms", least=0, most=60_000) == 0
    assert query.choice("acks", {"all": 1, "none": 2}) == 1
    assert query.integer("timestamp", least=0, most=1) is None
    assert "offset" in query
    assert "timestamp" not in query


@pytest.mark.parametrize("text", ["11", "-1", "x", "", "1.5", "+1", "0x1", "1e3", "9" * 30, "\u0661", "%31%31"])
def test_a_number_out_of_bounds_or_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"whole number from 0 to 10|percent-encoded"):
        Query(f"offset={text}".encode(), KNOWN).integer("offset", least=0, most=10)


def test_an_unknown_parameter_is_refused_with_its_nearest() -> None:
    with pytest.raises(InvalidArgument, match="'wait' is not a query parameter") as refused:
        Query(b"wait=5", KNOWN)
    assert refused.value.hint == "Did you mean 'wait_ms'?"


@pytest.mark.parametrize("raw", [b"offset=1&offset=2", b"offset", b"offset=%ff", b"offset=\xff", b"&", b"%6fffset=1&offset=1"])
def test_a_query_that_is_malformed_or_says_things_twice_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Query(raw, KNOWN)


def test_a_choice_names_the_others() -> None:
    with pytest.raises(InvalidArgument, match="must be one of all, none"):
        Query(b"acks=some", KNOWN).choice("acks", {"all": 1, "none": 2})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1750000000000", 1_750_000_000_000),
        ("2025-06-15T15:06:40Z", 1_750_000_000_000),
        ("2025-06-15T17:06:40.5%2B02:00", 1_750_000_000_500),
        ("1901-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00%2B14:00", 0),
        ("9999-12-31T23:59:59-14:00", 253_402_351_199_000),
    ],
)
def test_moments_are_milliseconds_or_rfc_3339(text: str, expected: int) -> None:
    assert Query(f"timestamp={text}".encode(), KNOWN).timestamp_ms("timestamp") == expected


@pytest.mark.parametrize("text", ["yesterday", "2025-06-15T15:06:40", "2025-13-01T00:00:00Z", "-5", "1.5"])
def test_other_moments_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="timestamp"):
        Query(f"timestamp={text}".encode(), KNOWN).timestamp_ms("timestamp")


# ── headers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

JSON, NDJSON, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", JSON),
        ("text/event-stream", EVENTS),
        ("text/*", EVENTS),
        ("application/*", JSON),
        ("application/x-ndjson, application/json;q=0.5", NDJSON),
        ("application/json;q=0.5, */*;q=0.8", NDJSON),
        ("TEXT/EVENT-STREAM; charset=utf-8", EVENTS),
        ("text/html, application/json;q=nonsense, text/event-stream;q=0.1", EVENTS),
        ("text/html,*/*;q=0.1", JSON),
    ],
)
def test_accept_picks_what_the_client_likes_best(accept: str, expected: str) -> None:
    assert request_with(accept=accept).accepted((JSON, NDJSON, EVENTS)) == expected


def test_without_accept_the_first_is_answered() -> None:
    assert request_with().accepted((NDJSON, JSON)) == NDJSON


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", ""])
def test_a_request_that_accepts_no_known_type_is_not_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        request_with(accept=accept).accepted((JSON, NDJSON))


def test_a_body_is_read_by_its_type() -> None:
    assert request_with(content_type="Application/JSON; charset=utf-8").media_type((JSON, NDJSON)) == JSON
    for refused in (
        request_with(),
        request_with(content_type="text/plain"),
        request_with(content_type=JSON, content_encoding="gzip"),
    ):
        with pytest.raises(UnsupportedMediaType):
            refused.media_type((JSON, NDJSON))


def test_an_announced_length_is_refused_before_a_byte_is_read() -> None:
    assert request_with(content_length="100").content_length(bytes_max=100) == 100
    assert request_with(transfer_encoding="chunked").content_length(bytes_max=100) is None
    assert request_with().content_length(bytes_max=100) == 0
    with pytest.raises(TooLarge, match="larger than request_bytes_max"):
        request_with(content_length="101").content_length(bytes_max=100)


@pytest.mark.parametrize("given", ["abc-1", "7f1c:9/x=+_.", "x" * 128])
def test_a_sane_request_id_is_kept(given: str) -> None:
    assert request_id_of({"headers": [(b"x-request-id", given.encode())]}) == given


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b"\xff", b"a\r\nset-cookie: x"])
def test_any_other_gets_a_new_one(given: bytes) -> None:
    made = request_id_of({"headers": [(b"x-request-id", given)]})
    assert len(made) == 32
    assert made != request_id_of({"headers": []})


# ── body ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_body_comes_whole_from_its_pieces() -> None:
    async def scenario() -> None:
        request = request_with([b"ab", b"", b"cd"])
        assert await request.body(None, length=4, bytes_max=10, timeout_s=1) == b"abcd"

    asyncio.run(scenario())


def test_a_chunked_body_takes_room_as_it_comes_and_is_cut_at_the_limit() -> None:
    async def scenario() -> None:
        budget = ByteBudget(100)
        async with budget.admit(0, timeout_s=1) as admission:
            await request_with([b"x" * 30, b"x" * 30]).body(admission, length=None, bytes_max=60, timeout_s=1)
            assert budget.bytes_used == 60
            with pytest.raises(TooLarge):
                await request_with([b"x" * 30, b"x" * 31]).body(admission, length=None, bytes_max=60, timeout_s=1)
        assert budget.bytes_used == 0

    asyncio.run(scenario())


def test_a_chunked_body_that_finds_no_room_is_throttled() -> None:
    async def scenario() -> None:
        budget = ByteBudget(100)
        async with budget.admit(90, timeout_s=1), budget.admit(0, timeout_s=0.01) as admission:
            with pytest.raises(Throttled):
                await request_with([b"x" * 30]).body(admission, length=None, bytes_max=60, timeout_s=1)

    asyncio.run(scenario())


def test_a_body_that_stops_coming_is_cut() -> None:
    async def scenario() -> None:
        with pytest.raises(BodyTooSlow, match="only 2 bytes"):
            await request_with([b"ab", None]).body(None, length=4, bytes_max=10, timeout_s=0.01)

    run_virtually(scenario())


def test_a_client_that_hangs_up_in_its_body_is_noticed() -> None:
    async def scenario() -> None:
        with pytest.raises(Disconnected):
            await request_with([]).body(None, length=4, bytes_max=10, timeout_s=1)

    asyncio.run(scenario())


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_work_goes_on_while_the_client_listens_and_ends_when_it_hangs_up() -> None:
    async def scenario() -> None:
        cancelled = asyncio.Event()

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        with pytest.raises(Disconnected):
            await request_with().run_while_connected(endless())
        assert cancelled.is_set()
        assert await request_with([None]).run_while_connected(asyncio.sleep(0, "done")) == "done"

    asyncio.run(scenario())


def test_an_error_of_the_work_comes_out_as_it_is() -> None:
    async def scenario() -> None:
        async def refused() -> None:
            raise InvalidArgument("no")

        with pytest.raises(InvalidArgument):
            await request_with([None]).run_while_connected(refused())

    asyncio.run(scenario())
