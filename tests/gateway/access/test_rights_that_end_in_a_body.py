"""A request whose right is taken back while its body comes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.access.authorization import AuthorizedCall, CallOrigin, Principal, begin
from gateway.access.permissions import HTTP_CALLS
from gateway.http.request import Request
from metadata.access.acl import Acl, Rights
from metadata.errors import NotAuthorized
from tests.gateway.access.test_denials import Book
from tests.kit.gateway.routed_cluster import Cluster, with_routed_cluster

WRITE = Acl(principal="billing", operation="write", resource="topic", name="orders")
ROUTE = ("POST", "/v1/topics/{topic}/records")


def test_nothing_is_written_for_a_right_that_was_taken_back_while_the_body_came() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=1)
        book = Book(WRITE)
        body = json.dumps({"records": [{"value": "v"}]}).encode()
        sent: list[Any] = []

        async def receive() -> Any:
            book._rights, book.version = Rights([]), 2
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async def produce() -> None:
            caller = Principal("billing", book, lambda: 0, credential="API key")
            begin(AuthorizedCall(caller, HTTP_CALLS[ROUTE], CallOrigin("http", "", ""), refusal=lambda *_: None))
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            request = Request({"method": "POST", "headers": headers, "query_string": b""}, receive, send)
            await cluster.brokers[0]._http.produce(request, "orders")

        with pytest.raises(NotAuthorized, match="write topic orders"):
            await asyncio.ensure_future(produce())
        assert (sent, await cluster.values(topic)) == ([], [])

    with_routed_cluster(scenario)
