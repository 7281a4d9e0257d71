"""How addresses are written, and how one leads to the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import tidelog
from metadata.errors import InvalidArgument, Rejected, Unavailable
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.transport.addresses import Address, cluster_over_http, grpc_target, parse_address, parse_addresses

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://localhost:8080", "http://localhost:8080"),
        ("http://broker", "http://broker:8080"),
        ("http://broker/", "http://broker:8080"),
        ("broker", "http://broker:8080"),
        ("broker:81", "http://broker:81"),
        ("grpc://broker", "grpc://broker:9090"),
        ("grpc://[::1]:91", "grpc://[::1]:91"),
        ("https://broker", "https://broker:8080"),
        ("grpcs://broker", "grpcs://broker:9090"),
    ],
)
def test_each_way_to_write_one(text: str, address: str) -> None:
    assert str(parse_address(text)) == address


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "http://", "http://x:port", "http://x:99999", "http://x/path", "http://u@x", "https://"]
)
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_address(text)
    assert "http://HOST:8080" in raised.value.hint


def test_several_stand_beside_each_other_or_behind_commas() -> None:
    assert [str(a) for a in parse_addresses(["a, grpc://b", "c"])] == ["http://a:8080", "grpc://b:9090", "http://c:8080"]
    assert [str(a) for a in parse_addresses([])] == ["http://localhost:8080"]


def test_all_have_tls_or_none_has() -> None:
    assert [a.tls for a in parse_addresses(["https://a,grpcs://b"])] == [True, True]
    with pytest.raises(InvalidArgument, match="some with TLS, and some without"):
        parse_addresses(["https://a,http://b"])


def test_a_wildcard_that_a_broker_advertises_becomes_the_host_that_was_reached() -> None:
    reached = Address("http", "gateway.example", 8080)
    assert grpc_target("0.0.0.0:9090", reached=reached) == "gateway.example:9090"
    assert grpc_target("[::]:9090", reached=reached) == "gateway.example:9090"
    assert grpc_target("10.0.0.7:9090", reached=reached) == "10.0.0.7:9090"


@contextmanager
def answering(status: int, body: bytes) -> Iterator[Address]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Address("http", "127.0.0.1", server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_cluster_is_read_over_http_with_fields_that_we_do_not_know_left_out() -> None:
    body = b'{"cluster_id":"c","brokers":[{"broker_id":"b1","grpc_address":"h:9","session":null,"draining":false,"moon":1}],"x":2}'
    with answering(200, body) as address:
        cluster = asyncio.run(cluster_over_http(address, timeout_s=60))
    assert [(broker.broker_id, broker.grpc_address) for broker in cluster.brokers] == [("b1", "h:9")]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"<html>", Rejected),
        (200, b"[]", Rejected),
        (200, b'{"x":1}', Rejected),
        (404, b"", Rejected),
        (503, b"", Unavailable),
    ],
)
def test_an_endpoint_that_does_not_answer_as_a_broker_is_reported_with_its_address(
    status: int, body: bytes, kind: type[Exception]
) -> None:
    with answering(status, body) as address, pytest.raises(kind, match=f"127.0.0.1:{address.port}"):
        asyncio.run(cluster_over_http(address, timeout_s=60))


def test_an_http_port_in_a_grpc_address_is_rejected_with_the_right_address() -> None:
    async def run(address: Address) -> None:
        async with tidelog.connect(f"grpc://{address.host_port}"):
            pass

    with answering(404, b"") as address, pytest.raises(Rejected, match="speaks HTTP") as raised:
        asyncio.run(run(address))
    assert f"http://{address.host_port}" in raised.value.hint


def test_a_grpc_port_in_an_http_address_is_rejected_without_its_raw_bytes() -> None:
    async def run() -> None:
        async with running(SmallBroker()) as broker:
            await cluster_over_http(Address("http", "127.0.0.1", broker.port), timeout_s=60)

    with pytest.raises(Rejected, match="does not speak HTTP") as raised:
        asyncio.run(run())
    assert raised.value.message.isprintable()
    assert "grpc://127.0.0.1:" in raised.value.hint
