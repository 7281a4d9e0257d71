"""Which requests go without botocore, with which credentials, and when botocore takes over."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from metadata.errors import Denied, OutcomeUnknown, Unavailable
from segments.object_store.s3.requests import ObjectRequests
from segments.object_store.s3.settings import S3Settings
from segments.object_store.s3.store import S3ObjectStore
from tests.kit.segments.http_script import Answer, Handler, HttpScript, Request, http_script

pytestmark = pytest.mark.slow
MADE = {"ETag": '"etag"'}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHISTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-of-this-test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def with_store(handler: Handler, scenario: Callable[[S3ObjectStore, HttpScript], Awaitable[None]]) -> None:
    async def main() -> None:
        async with http_script(handler) as server:
            store = await S3ObjectStore.open(
                "bucket", "prefix", S3Settings(endpoint_url=server.endpoint_url, region="eu-central-1")
            )
            try:
                await scenario(store, server)
            finally:
                await store.close()

    asyncio.run(main())


async def accepts(request: Request) -> Answer:
    return Answer(200, b"" if request.method == "PUT" else b"body", MADE)


def scope(request: Request) -> str:
    """The region that a request is signed for."""
    return request.headers["authorization"].split("/")[2]


def test_nothing_is_sent_to_learn_the_address_and_objects_need_no_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("botocore was asked")

        for operation in ("put_object", "get_object"):
            monkeypatch.setattr(store._client, operation, refuse, raising=False)
        await store.create("wal/a=1_b.seg", [b"body"])
        assert await store.get("wal/a=1_b.seg", start=0) == b"body"
        assert [(request.method, request.target) for request in server.requests] == [
            ("PUT", "/bucket/prefix/wal/a%3D1_b.seg"),
            ("GET", "/bucket/prefix/wal/a%3D1_b.seg"),
        ]
        assert {scope(request) for request in server.requests} == {"eu-central-1"}
        assert all("tidelog" in request.headers["user-agent"] for request in server.requests)

    with_store(accepts, scenario)


class Temporary(NamedTuple):
    access_key: str
    secret_key: str
    token: str


class Renewed:
    """Credentials that are new at each request, as those of a role."""

    def __init__(self) -> None:
        self.count = 0

    async def get_frozen_credentials(self) -> Temporary:
        self.count += 1
        return Temporary(f"AKIA{self.count}", "secret", f"token-{self.count}")


def test_each_request_has_the_credentials_of_its_time() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        await store.get("first")
        store._requests._credentials = Renewed()
        for _ in range(2):
            await store.get("later")
        assert [request.headers.get("x-amz-security-token") for request in server.requests] == [None, "token-1", "token-2"]
        assert "AKIA2/" in server.requests[2].headers["authorization"]

    with_store(accepts, scenario)


def test_where_botocore_signs_in_another_way_it_sends_everything() -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        store._client.meta.events.register("choose-signer.s3", lambda **_: "s3")  # signature version 2
        await store.create("wal/a", [b"body"])
        assert await store.get("wal/a") == b"body"
        assert [request.headers["authorization"][:8] for request in server.requests] == ["AWS AKIA", "AWS AKIA"]
        assert [request.body for request in server.requests] == [b"body", b""]

    with_store(accepts, scenario)


def test_a_bucket_in_another_region_is_found_by_botocore_and_then_addressed_there() -> None:
    async def handler(request: Request) -> Answer:
        if request.method == "HEAD":
            return Answer(200 if scope(request) == "us-west-2" else 301, b"", {"x-amz-bucket-region": "us-west-2"})
        if scope(request) != "us-west-2":
            body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>us-west-2</Region></Error>"
            return Answer(400, body, {})
        return await accepts(request)

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        await store.create("wal/a", [b"body"])
        server.requests.clear()
        await store.create("wal/b", [b"body"])
        assert await store.get("wal/b") == b"body"
        assert [(request.method, scope(request)) for request in server.requests] == [("PUT", "us-west-2"), ("GET", "us-west-2")]

    with_store(handler, scenario)


@pytest.mark.parametrize("head", [{"x-amz-bucket-region": "us-west-2"}, {}], ids=["region named", "region unknown"])
def test_a_permanent_redirect_of_a_put_lets_botocore_find_the_region_or_names_what_to_correct(head: dict[str, str]) -> None:
    async def handler(request: Request) -> Answer:
        if request.method == "HEAD":
            return Answer(200 if scope(request) == "us-west-2" else 301, b"", head)
        if scope(request) != "us-west-2":
            return Answer(301, b"<Error><Code>PermanentRedirect</Code></Error>", {})
        return await accepts(request)

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        if head:
            await store.create("wal/a", [b"body"])
            assert [request.method for request in server.requests].count("PUT") == 2
            return
        with pytest.raises(Denied) as failure:
            await store.create("wal/a", [b"body"])
        assert failure.value.hint == "Name the region of the bucket."
        assert [request.method for request in server.requests] == ["PUT", "HEAD"]

    with_store(handler, scenario)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_what_is_elsewhere_is_not_taken_for_the_store(status: int) -> None:
    async def handler(request: Request) -> Answer:
        if request.target == "/portal":
            return Answer(200, b"Log in first.", MADE)
        return Answer(status, b"" if request.method == "HEAD" else b"See elsewhere.", {"Location": "/portal"})

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(OutcomeUnknown):
            await store.create("wal/a", [b"body"])
        with pytest.raises(Unavailable):
            await store.get("wal/a")
        with pytest.raises(Unavailable):
            await store.list("wal/")
        assert "/portal" not in {request.target for request in server.requests}

    with_store(handler, scenario)


@pytest.mark.parametrize(
    "body", [b"<Error><Code>InternalError</Code></Error>", b'<?xml version="1.0"?><Err'], ids=["error", "cut off"]
)
def test_a_put_that_is_answered_with_200_and_an_error_is_not_taken_for_written(body: bytes) -> None:
    async def handler(request: Request) -> Answer:
        return Answer(200, body, MADE)

    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        with pytest.raises(OutcomeUnknown):
            await store.create("wal/a", [b"body"])
        assert await store.get("wal/a") == body, "an object may hold anything"

    with_store(handler, scenario)


def test_credentials_that_are_missing_are_named_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        store._requests._credentials = None
        store._requests._address = await store._requests._learn()
        with pytest.raises(Denied) as failure:
            await store.create("wal/a", [b"body"])
        assert "AWS_ACCESS_KEY_ID" in failure.value.hint
        assert server.requests == []

    with_store(accepts, scenario)


def test_many_first_requests_learn_the_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: S3ObjectStore, server: HttpScript) -> None:
        learned: list[None] = []
        head_object = store._client.head_object

        async def counted(**named: object) -> None:
            learned.append(None)
            await head_object(**named)

        monkeypatch.setattr(store._client, "head_object", counted, raising=False)
        await asyncio.gather(*(store.get(f"key-{number}") for number in range(8)))
        assert len(learned) == 1
        assert isinstance(store._requests, ObjectRequests)

    with_store(accepts, scenario)
