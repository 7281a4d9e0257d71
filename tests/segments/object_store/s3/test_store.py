"""The S3 store beyond the contract: what it sends, and what every answer, silence and broken connection means."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from metadata.errors import (
    AlreadyExists,
    Denied,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Throttled,
    TidelogError,
    TooLarge,
    Unavailable,
)
from segments.object_store.s3.settings import S3Settings
from segments.object_store.s3.store import S3ObjectStore
from segments.object_store.store_clock import StoreClock
from tests.kit.segments.http_script import Answer, Handler, HangUp, HttpScript, Request, http_script

pytestmark = pytest.mark.slow

ACCESS_KEY, SECRET_KEY = "AKIAOFTHISTEST", "the-secret-of-this-test"


def settings_for(endpoint_url: str, **others: float) -> S3Settings:
    """Settings that lose no time between two tries."""
    return S3Settings(endpoint_url=endpoint_url, region="eu-central-1", **{"s3_retry_pause_ms": 0.0, **others})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def with_answers(handler: Handler, scenario: Callable[[S3ObjectStore, HttpScript], Awaitable[None]], **settings: float) -> None:
    async def main() -> None:
        async with http_script(handler) as server:
            store = await S3ObjectStore.open("bucket", "some/prefix", settings_for(server.endpoint_url, **settings))
            try:
                await scenario(store, server)
            finally:
                await store.close()

    asyncio.run(main())


def always(status: int, body: bytes = b"", **headers: str) -> Handler:
    async def answer(request: Request) -> Answer:
        return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return answer


MADE: Handler = always(200, ETag='"of what was made"')


def s3_error(status: int, code: str, **headers: str) -> Handler:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>what the store says</Message></Error>"
    return always(status, text.encode(), Content_Type="application/xml", **headers)


# What is sent


def test_a_create_is_conditional_unsigned_and_carries_its_checksum() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        await store.create("wal/0", [b"first ", memoryview(b"second"), bytearray(b"!" * 200_000)], crc32c=0x01020304)
        (put,) = server.requests
        assert (put.method, put.target) == ("PUT", "/bucket/some/prefix/wal/0")
        assert put.body == b"first second" + b"!" * 200_000
        assert put.headers["if-none-match"] == "*"
        assert put.headers["x-amz-checksum-crc32c"] == b64encode(b"\x01\x02\x03\x04").decode()
        assert put.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert put.headers["authorization"].startswith("AWS4-HMAC-SHA256")
        assert "if-none-match" in put.headers["authorization"]
        assert "expect" not in put.headers

    with_answers(MADE, scenario)


def test_a_create_without_a_checksum_computes_none() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        await store.create("wal/0", [b"body"])
        assert not any(name.startswith("x-amz-checksum") or name == "content-md5" for name in server.requests[0].headers)

    with_answers(MADE, scenario)


def test_the_bucket_is_in_the_path_only_where_an_endpoint_is_named_or_path_style_is_asked_for() -> None:
    async def host_of_a_request(path_style: bool | None) -> str:
        async with http_script(always(200)) as server:
            endpoint_url = server.endpoint_url.replace("127.0.0.1", "localhost")
            settings = S3Settings(endpoint_url=endpoint_url, region="eu-central-1", path_style=path_style)
            store = await S3ObjectStore.open("bucket", "", settings)
            try:
                await store.delete("a")
            except Unavailable:
                return "not found by name"  # bucket.localhost need not resolve
            finally:
                await store.close()
            return server.requests[0].headers["host"].partition(":")[0] + server.requests[0].target

    assert asyncio.run(host_of_a_request(None)) == "localhost/bucket/a"
    assert asyncio.run(host_of_a_request(True)) == "localhost/bucket/a"
    assert asyncio.run(host_of_a_request(False)) in {"localhost/bucket/a", "bucket.localhost/a", "not found by name"}


# What the answers mean


AFTER_A_CREATE: list[tuple[Handler, type[TidelogError]]] = [
    (s3_error(412, "PreconditionFailed"), AlreadyExists),
    (s3_error(409, "ConditionalRequestConflict"), OutcomeUnknown),
    (s3_error(409, "OperationAborted"), OutcomeUnknown),
    (s3_error(500, "InternalError"), OutcomeUnknown),
    (always(502, b"<html>Bad Gateway</html>"), OutcomeUnknown),
    (always(504), OutcomeUnknown),
    (always(503), OutcomeUnknown),
    (always(503, b"<html>from a proxy</html>"), OutcomeUnknown),
    (always(200, b"<Error><Code>InternalError</Code></Error>"), OutcomeUnknown),
    (s3_error(400, "RequestTimeout"), OutcomeUnknown),
    (s3_error(503, "SlowDown"), Throttled),
    (s3_error(503, "ServiceUnavailable"), Throttled),
    (always(429), Throttled),
    (s3_error(400, "BadDigest"), Unavailable),
    (s3_error(400, "XAmzContentChecksumMismatch"), Unavailable),
    (s3_error(400, "IncompleteBody"), Unavailable),
    (s3_error(404, "NoSuchBucket"), Denied),
    (s3_error(403, "AccessDenied"), Denied),
    (s3_error(403, "InvalidAccessKeyId"), Denied),
    (s3_error(403, "SignatureDoesNotMatch"), Denied),
    (s3_error(403, "RequestTimeTooSkewed"), Denied),
    (s3_error(400, "ExpiredToken"), Denied),
    (s3_error(400, "AuthorizationHeaderMalformed"), Denied),
    (s3_error(501, "NotImplemented"), Rejected),
    (s3_error(400, "InvalidArgument"), Rejected),
    (s3_error(405, "MethodNotAllowed"), Rejected),
    (s3_error(413, "EntityTooLarge"), TooLarge),
]


def test_each_answer_to_a_create_has_an_error_of_its_own() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        for handler, error in AFTER_A_CREATE:
            server.handler = handler
            server.requests.clear()
            with pytest.raises(TidelogError) as failure:
                await store.create("wal/7", [b"body"])
            assert type(failure.value) is error, failure.value
            assert "wal/7" in str(failure.value)
            assert "s3://bucket/some/prefix" in str(failure.value)
            assert [request.method for request in server.requests if request.method != "HEAD"] == ["PUT"], failure.value

    with_answers(always(200), scenario)


AFTER_A_READ: list[tuple[Handler, type[TidelogError], int]] = [
    (s3_error(404, "NoSuchKey"), NotFound, 1),
    (s3_error(404, "NoSuchBucket"), Denied, 1),
    (s3_error(403, "AccessDenied"), Denied, 1),
    (s3_error(500, "InternalError"), Unavailable, 3),
    (always(502), Unavailable, 3),
    (always(503), Unavailable, 3),
    (s3_error(503, "SlowDown", Retry_After="0"), Throttled, 3),
]


def test_each_answer_to_a_read_has_an_error_and_a_number_of_tries() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        for handler, error, tries in AFTER_A_READ:
            server.handler = handler
            for read in (store.get("wal/7"), store.tail("wal/7", 10), store.list("wal/7")):
                server.requests.clear()
                with pytest.raises(TidelogError) as failure:
                    await read
                assert type(failure.value) is error, failure.value
                assert "wal/7" in str(failure.value)
                assert len(server.requests) == tries, failure.value

    with_answers(always(200), scenario)


HINTS = [
    (404, "NoSuchBucket", "Make the bucket"),
    (403, "AccessDenied", "s3:PutObject"),
    (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
    (403, "RequestTimeTooSkewed", "clock"),
    (400, "AuthorizationHeaderMalformed", "region"),
]


def test_a_denial_has_a_hint_and_reveals_no_secret() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        for status, code, hint in HINTS:
            server.handler = s3_error(status, code)
            with pytest.raises(Denied, match="what the store says") as denied:
                await store.create("wal/7", [b"body"])
            assert hint in denied.value.hint
            shown = f"{denied.value} {denied.value.hint} {denied.value.details}"
            assert ACCESS_KEY not in shown
            assert SECRET_KEY not in shown

    with_answers(always(200), scenario)


def test_a_store_that_knows_no_conditional_put_is_named_as_such() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(Rejected) as rejected:
            await store.create("wal/7", [b"body"])
        assert "If-None-Match" in rejected.value.hint

    with_answers(s3_error(501, "NotImplemented"), scenario)


def test_a_store_that_asks_for_a_pause_is_heard() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        for retry_after, expected_s in [("3", 3.0), ("0", 0.0), ("86400", 5.0), ("Wed, 21 Oct 2026", 1.0)]:
            server.handler = s3_error(503, "SlowDown", Retry_After=retry_after)
            with pytest.raises(Throttled) as throttled:
                await store.create("wal/7", [b"body"])
            assert throttled.value.retry_after_s == expected_s

    with_answers(always(200), scenario)


# Broken connections


async def hang_up(request: Request) -> Answer:
    raise HangUp


async def never_answer(request: Request) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("handler", [hang_up, never_answer])
def test_a_create_that_is_not_answered_may_have_happened(handler: Handler) -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(OutcomeUnknown, match="wal/7") as unknown:
            await store.create("wal/7", [b"body" * 100_000])
        assert "same bytes" in unknown.value.hint
        assert len(server.requests) <= 1, "it is not tried again; a server that has no time to read does not see it once"

    with_answers(handler, scenario, s3_read_timeout_ms=300)


@pytest.mark.parametrize("handler", [hang_up, never_answer])
def test_a_read_that_is_not_answered_wrote_nothing_and_is_tried_again(handler: Handler) -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(Unavailable, match="wal/7"):
            await store.get("wal/7")
        assert len(server.requests) >= 3

    with_answers(handler, scenario, s3_read_timeout_ms=300)


def test_a_delete_that_is_not_answered_is_tried_again_and_may_have_happened() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(OutcomeUnknown, match="wal/7"):
            await store.delete("wal/7")
        assert len(server.requests) >= 3

    with_answers(s3_error(500, "InternalError"), scenario)


def test_a_connection_that_breaks_in_the_middle_of_a_create_leaves_it_unknown() -> None:
    async def main() -> None:
        async def take_some(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(100_000)
            writer.transport.abort()

        server = await asyncio.start_server(take_some, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = await S3ObjectStore.open("bucket", "", settings_for(f"http://127.0.0.1:{port}"))
        with pytest.raises(OutcomeUnknown):
            await store.create("wal/7", [b"x" * 8_000_000])
        await store.close()
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_a_server_that_takes_no_more_bytes_is_given_up_in_time() -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await done.wait()
            writer.transport.abort()

        server = await asyncio.start_server(take_nothing, "127.0.0.1", 0, limit=1024)
        port = server.sockets[0].getsockname()[1]
        store = await S3ObjectStore.open("bucket", "", settings_for(f"http://127.0.0.1:{port}", s3_request_timeout_ms=500))
        with pytest.raises(OutcomeUnknown, match="timed out"):
            await store.create("wal/7", [b"x" * 16_000_000])
        done.set()
        await store.close()
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_a_refused_connection_means_that_nothing_was_written() -> None:
    with socket.socket() as silent:  # bound, but not listening: connections are refused
        silent.bind(("127.0.0.1", 0))
        endpoint_url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        async def main() -> None:
            store = await S3ObjectStore.open("bucket", "", settings_for(endpoint_url))
            for call in (store.create("a", [b"x"]), store.get("a"), store.delete("a"), store.list("")):
                with pytest.raises(Unavailable, match="nothing was sent"):
                    await call
            await store.close()

        asyncio.run(main())


def test_without_credentials_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        for call in (store.create("a", [b"x"]), store.get("a")):
            with pytest.raises(Denied, match="credentials") as denied:
                await call
            assert "AWS_PROFILE" in denied.value.hint
        assert server.requests == []

    with_answers(always(200), scenario)


@pytest.mark.parametrize(("name", "value"), [("AWS_PROFILE", "missing"), ("AWS_CONFIG_FILE", __file__)])
def test_unreadable_credentials_are_refused_when_the_store_opens(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Denied, match="s3://bucket"):
        asyncio.run(S3ObjectStore.open("bucket"))


def test_a_create_that_is_cancelled_drops_its_connection_and_the_next_one_succeeds() -> None:
    async def first_is_slow(request: Request) -> Answer:
        if request.target.endswith("/slow"):
            arrived.set()
            await asyncio.Event().wait()
        return await MADE(request)

    arrived = asyncio.Event()

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        create = asyncio.ensure_future(store.create("slow", [b"x"]))
        await arrived.wait()
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
        await store.create("quick", [b"y"])
        assert server.connections == 2

    with_answers(first_is_slow, scenario)


# TLS


def certificate_for_the_loopback(directory: Path) -> Path:
    """A self-signed certificate and its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = directory / "certificate.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    return path


def test_an_endpoint_is_believed_only_with_a_certificate_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = certificate_for_the_loopback(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)

    async def put() -> Request:
        async with http_script(MADE, tls=tls) as server:
            store = await S3ObjectStore.open("bucket", "", settings_for(server.endpoint_url))
            try:
                await store.create("a", [b"x" * 300_000])
            finally:
                await store.close()
            return server.requests[0]

    with pytest.raises(Denied, match="certificate") as denied:
        asyncio.run(put())
    assert "AWS_CA_BUNDLE" in denied.value.hint
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    sent = asyncio.run(put())
    assert (len(sent.body), sent.headers["x-amz-content-sha256"]) == (300_000, "UNSIGNED-PAYLOAD")


# Bounds


def test_creates_and_reads_have_bounds_of_their_own() -> None:
    at_once = {"PUT": 0, "GET": 0}
    most = {"PUT": 0, "GET": 0}
    everything_arrived, go_on = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Answer:
        at_once[request.method] += 1
        most[request.method] = max(most[request.method], at_once[request.method])
        if at_once == {"PUT": 3, "GET": 2}:
            everything_arrived.set()
        await go_on.wait()
        at_once[request.method] -= 1
        return await MADE(request)

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        calls = [asyncio.ensure_future(store.get(f"read/{number}")) for number in range(9)]
        creates = [asyncio.ensure_future(store.create(f"made/{number}", [b"x"])) for number in range(9)]
        await everything_arrived.wait()
        go_on.set()
        await asyncio.gather(*calls, *creates)
        assert most == {"PUT": 3, "GET": 2}
        assert server.connections <= 5

    bounds = {"creates_in_flight_max": 3, "reads_in_flight_max": 2}
    with_answers(wait, scenario, **bounds)


def test_a_create_that_finds_no_free_connection_in_time_is_throttled() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        creates = (store.create(f"wal/{number}", [b"x"]) for number in range(3))
        outcomes = await asyncio.gather(*creates, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Throttled)]
        assert refused, "the second may still get the connection of the first, the third never"
        assert all("nothing was sent" in str(outcome) for outcome in refused)
        sent = [outcome for outcome in outcomes if isinstance(outcome, OutcomeUnknown)]
        assert len(sent) == 3 - len(refused) >= len(server.requests), "a server that has no time to read sees fewer"

    with_answers(never_answer, scenario, creates_in_flight_max=1, s3_request_timeout_ms=300)


# Odd stores


def test_a_store_that_ignores_ranges_is_read_right_all_the_same() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        assert await store.get("a", start=2, end=5) == b"234"
        assert await store.get("a", start=7) == b"789"
        tail = await store.tail("a", 3)
        assert (tail.body, tail.size) == (b"789", 10)
        with pytest.raises(InvalidArgument, match="past the end"):
            await store.get("a", start=10)

    with_answers(always(200, b"0123456789", ETag='"its"'), scenario)


def test_a_range_without_the_size_of_the_object_is_not_believed() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(Unavailable, match="without its size"):
            await store.tail("a", 3)

    with_answers(always(206, b"789", Content_Range="bytes 7-9/*"), scenario)


def test_the_range_of_an_empty_object_may_end_before_it_begins() -> None:
    """MinIO answers so."""

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        tail = await store.tail("a", 3)
        assert (tail.body, tail.size) == (b"", 0)

    with_answers(always(206, Content_Range="bytes 0--1/0"), scenario)


def test_a_body_that_is_shorter_than_announced_is_not_taken_for_the_object() -> None:
    async def main() -> None:
        async def cut_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")
            writer.close()

        server = await asyncio.start_server(cut_short, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = await S3ObjectStore.open("bucket", "", settings_for(f"http://127.0.0.1:{port}"))
        with pytest.raises(Unavailable):
            await store.get("a")
        await store.close()
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_a_listing_passes_over_what_others_put_into_the_bucket_and_reads_on_for_more() -> None:
    pages = {
        None: (["wal/", "wal/0"], "t1"),
        "t1": (["wal/two words", "wal/1"], "t2"),
        "t2": (["wal/2", "wal/3"], None),
    }

    async def page(request: Request) -> Answer:
        arguments = dict(part.partition("=")[::2] for part in request.target.partition("?")[2].split("&"))
        keys, next_token = pages[arguments.get("continuation-token")]
        contents = "".join(f"<Contents><Key>some/prefix/{key}</Key><Size>3</Size></Contents>" for key in keys)
        more = f"<NextContinuationToken>{next_token}</NextContinuationToken>" if next_token else ""
        text = f"<ListBucketResult><IsTruncated>{str(bool(next_token)).lower()}</IsTruncated>{more}{contents}</ListBucketResult>"
        return Answer(body=text.encode())

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        listed = await store.list("wal/", limit=4)
        assert [found.key for found in listed.objects] == ["wal/0", "wal/1", "wal/2", "wal/3"]
        assert not listed.more

    with_answers(page, scenario)


PAGE_OF_A_FIREWALL = b"<html><body>The requested URL was rejected. Please consult with your administrator.</body></html>"


@pytest.mark.parametrize("body", [b"", PAGE_OF_A_FIREWALL])
def test_a_200_that_no_store_has_given_is_no_create_no_empty_listing_and_no_object(body: bytes) -> None:
    """Some firewalls say 200 OK of what they have refused. Taken for an object it would be a damaged one, and that is final."""

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(OutcomeUnknown, match="firewall"):
            await store.create("wal/7", [b"body"])
        for read in (store.list("wal/"), store.get("wal/7"), store.get("wal/7", start=1, end=3), store.tail("wal/7", 3)):
            server.requests.clear()
            with pytest.raises(Unavailable, match="firewall"):
                await read
            assert len(server.requests) == 3

    with_answers(always(200, body), scenario)


@pytest.mark.parametrize(("listed", "start_after"), [(["wal/0", "wal/2", "wal/1"], ""), (["wal/0", "wal/1"], "wal/0")])
def test_a_store_that_does_not_list_in_the_order_of_keys_is_refused(listed: list[str], start_after: str) -> None:
    """A directory bucket of S3 does so: a gap in a session would be taken for its end."""
    contents = "".join(f"<Contents><Key>some/prefix/{key}</Key><Size>3</Size></Contents>" for key in listed)
    text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(Rejected, match="order of keys") as refused:
            await store.list("wal/", start_after=start_after)
        assert "directory bucket" in refused.value.hint

    with_answers(always(200, text.encode()), scenario)


# Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint_url": "127.0.0.1:9000"},
        {"endpoint_url": "ftp://host"},
        {"endpoint_url": "http://"},
        {"endpoint_url": "http://host/bucket"},
        {"endpoint_url": "http://host:99999"},
        {"endpoint_url": "http://host?x=1"},
        {"region": "eu central"},
        {"region": ""},
        {"s3_connect_timeout_ms": 0},
        {"s3_read_timeout_ms": -1},
        {"s3_request_timeout_ms": float("nan")},
        {"creates_in_flight_max": 0},
        {"reads_in_flight_max": 0},
        {"read_tries_max": 0},
        {"s3_retry_pause_ms": -0.1},
    ],
    ids=str,
)
def test_settings_that_can_not_be_right_are_refused(wrong: dict[str, str | float]) -> None:
    with pytest.raises(InvalidArgument):
        S3Settings(**wrong)  # type: ignore[arg-type]


def test_a_large_object_has_longer_to_get_there() -> None:
    settings = S3Settings(s3_request_timeout_ms=30_000.0)
    assert settings.create_timeout_s(100) < 30.1
    assert settings.create_timeout_s(512 << 20) == 94.0, "the largest file that a merge makes, over a line of 50 Mbit/s"


def test_credentials_in_an_endpoint_are_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgument) as refused:
        S3Settings(endpoint_url=f"http://{ACCESS_KEY}:{SECRET_KEY}@host:9000")
    assert SECRET_KEY not in str(refused.value)


@pytest.mark.parametrize("bucket", ["", "ab", "Bucket", "a_b", "-ab", "a" * 64, "../etc", "a/b"])
def test_a_name_that_no_bucket_has_is_refused(bucket: str) -> None:
    with pytest.raises(InvalidArgument, match="bucket"):
        asyncio.run(S3ObjectStore.open(bucket))


@pytest.mark.parametrize("prefix", ["/a", "a/", "a//b", "../a", "ä", "a" * 301])
def test_a_prefix_that_no_key_can_have_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidArgument, match="prefix"):
        asyncio.run(S3ObjectStore.open("bucket", prefix))


# Time from answers


def test_the_clock_hears_the_date_of_answers_and_of_refusals_and_costs_no_request() -> None:
    dates = iter(
        [
            (200, "Thu, 01 Jan 2026 00:00:00 GMT"),
            (404, "Fri, 02 Jan 2026 00:00:00 GMT"),
            (502, "Sat, 03 Jan 2026 00:00:00 GMT"),
        ]
    )

    async def answer(request: Request) -> Answer:
        status, date = next(dates)
        return Answer(status, b"", {"ETag": '"of what was made"', "Date": date})

    async def main() -> None:
        passed_s = itertools.count(0.0, 10.0)
        clock = StoreClock(lambda: 0, steady=lambda: next(passed_s))
        heard: list[str] = []

        async def ask(call: Awaitable[object]) -> None:
            with contextlib.suppress(TidelogError):
                await call
            store_time = clock.reading().store
            assert store_time is not None
            assert store_time.latest_ms - store_time.earliest_ms > 10_000, "from the asking to the answer"
            heard.append(datetime.fromtimestamp(store_time.earliest_ms / 1000, UTC).strftime("%d"))

        async with http_script(answer) as server:
            settings = settings_for(server.endpoint_url, read_tries_max=1)
            store = await S3ObjectStore.open("bucket", "", settings, clock=clock)
            try:
                for call in (store.create("a", [b""]), store.get("b"), store.get("c")):
                    await ask(call)
            finally:
                await store.close()
            assert heard == ["01", "02", "02"], "an answer of a proxy says nothing about the store"
            assert len(server.requests) == 3

    asyncio.run(main())
