"""An object store in a bucket of S3, or of a store that speaks its protocol and honours `If-None-Match: *` on PUT.

The payload is not signed: its SHA-256 costs four times what all else of a PUT does. The CRC-32C that the caller knows travels
in `x-amz-checksum-crc32c` instead, and the store checks what it received against it.

A create is sent once: an outcome that is unknown must be seen by the commit protocol, not hidden by a retry. Reads and deletes
are repeated a few times. Creates and everything else have bounds of their own, so that catching-up readers never take the
connections of the writers.

Of an answer that says 200 it is asked whether a store can have given it: a proxy, or a firewall, may say 200 as well.
A StoreClock, where one is given, hears the date of each answer.

The body of a PUT as the buffers that it is made of, handed to the socket without joining them all.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from metadata.errors import InvalidArgument, OutcomeUnknown, Rejected, Throttled, Unavailable
from metadata.retry import RetryPauses, retry
from segments.object_store.interface import Buffer, ListPage, ObjectInfo, Tail
from segments.object_store.s3.errors import http_status, translate
from segments.object_store.s3.requests import ObjectRequests, S3Answer, SharedHttpSession
from segments.object_store.s3.settings import S3Settings
from segments.object_store.store_clock import StoreClock
from segments.object_store.validation import check_key, check_list, check_range, check_tail, is_key, past_the_end

_Answer = TypeVar("_Answer")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_PAGE_KEYS_MAX = 1000
_PREFIX_LENGTH_MAX = 300
_ORDER = "Use a store that lists in the order of UTF-8 bytes, and not a directory bucket (S3 Express One Zone)."
_NOT_A_STORE = "the answer was 200 OK, and not that of an object store; perhaps of a proxy or firewall on the way to it"
_ERRORS = (
    BotoCoreError,
    ClientError,
    ResponseParserError,
    aiohttp.ClientError,
    OSError,  # TimeoutError too
    RuntimeError,  # botocore's, for credentials that are out of date after they were renewed
)


class S3ObjectStore:
    """Made by `S3ObjectStore.open`. Use and close it in one event loop. The buffers of a create may be reused once it has ended."""

    def __init__(
        self,
        client: Any,
        requests: ObjectRequests,
        closing: AsyncExitStack,
        bucket: str,
        prefix: str,
        settings: S3Settings,
    ) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._client = client
        self._requests = requests
        self._closing = closing
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._settings = settings
        self._creates = asyncio.Semaphore(settings.creates_in_flight_max)
        self._reads = asyncio.Semaphore(settings.reads_in_flight_max)

    @classmethod
    async def open(
        cls, bucket: str, prefix: str = "", settings: S3Settings | None = None, *, clock: StoreClock | None = None
    ) -> S3ObjectStore:
        """Opens a client of the bucket. Sends nothing to it yet: `check_conditional_put` does, and says what is wrong.

        `prefix` has no "/" at its ends. InvalidArgument for names that can't be right, Denied where no credentials can be read.
        """
        settings = settings or S3Settings()
        if not _BUCKET.fullmatch(bucket):
            raise InvalidArgument(f"{bucket[:80]!r} is not the name of a bucket", hint="3 to 63 of a-z 0-9 . and -")
        if prefix and (not is_key(prefix) or len(prefix) > _PREFIX_LENGTH_MAX):
            raise InvalidArgument(f"{prefix[:80]!r} is not a prefix in a bucket", hint="A path of A-Z a-z 0-9 . _ = - , up to 300.")
        path_style = settings.path_style if settings.path_style is not None else settings.endpoint_url is not None
        http: list[SharedHttpSession] = []

        class HttpSession(SharedHttpSession):
            """Makes itself known, as botocore's client keeps it to itself."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                http.append(self)

        config = AioConfig(
            http_session_cls=HttpSession,
            connect_timeout=settings.s3_connect_timeout_ms / 1000,
            read_timeout=settings.s3_read_timeout_ms / 1000,
            max_pool_connections=settings.creates_in_flight_max + settings.reads_in_flight_max,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": "path" if path_style else "auto", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            parameter_validation=False,  # it knows no VectoredBody
            user_agent_extra="tidelog",
        )
        session = get_session()
        async with AsyncExitStack() as closing:
            try:
                client = await closing.enter_async_context(
                    session.create_client("s3", region_name=settings.region, endpoint_url=settings.endpoint_url, config=config)
                )
                credentials = await session.get_credentials()
            except _ERRORS as error:
                raise translate(error, doing="open", url=f"s3://{bucket}", key="", writes=False) from error
            pass_body_by_the_signer(client)
            if clock is not None:
                _observe_dates(client, clock)
            requests = ObjectRequests(client, credentials, http[0], bucket, clock=clock)
            return cls(client, requests, closing.pop_all(), bucket, prefix, settings)

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        check_key(key)
        checksum = None if crc32c is None else b64encode(crc32c.to_bytes(4, "big")).decode()
        headers = {"if-none-match": "*"} if checksum is None else {"if-none-match": "*", "x-amz-checksum-crc32c": checksum}
        bytes_count = sum(map(len, body))

        async def put() -> None:
            answer = await self._requests.send("PutObject", self._prefix + key, headers, lambda: VectoredBody(body))
            if answer is None:
                answer = _answer_in(
                    await self._client.put_object(
                        **self._object(key),
                        Body=VectoredBody(body),
                        ContentLength=bytes_count,
                        IfNoneMatch="*",
                        **({} if checksum is None else {"ChecksumCRC32C": checksum}),
                    )
                )
            if not answer.headers.get("etag"):
                raise OutcomeUnknown(f"{self.url} did not say which object it made of {key}: {_NOT_A_STORE}", key=key)

        timeout_s = self._settings.create_timeout_s(bytes_count)
        await self._once("create", key, put, self._creates, writes=True, timeout_s=timeout_s)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        check_range(key, start, end)
        whole = start == 0 and end is None
        wanted = None if whole else f"bytes={start}-{'' if end is None else end - 1}"

        async def read() -> bytes:
            try:
                answer = await self._read(key, wanted)
            except ClientError as error:
                if http_status(error) != 416:
                    raise
                if start == 0:  # the object is empty
                    return b""
                raise past_the_end(self.url, key, start, _size_in(error)) from None
            body = answer.body
            if whole or answer.status == 206:
                return body
            if start >= len(body) and start > 0:
                raise past_the_end(self.url, key, start, len(body))
            return body[start:end]  # the store does not know ranges

        return await self._repeated("read", key, read)

    async def tail(self, key: str, bytes_max: int) -> Tail:
        check_key(key)
        check_tail(key, bytes_max)

        async def read() -> Tail:
            try:
                answer = await self._read(key, f"bytes=-{bytes_max}")
            except ClientError as error:
                if http_status(error) != 416:
                    raise
                return Tail(b"", 0)
            body = answer.body
            if answer.status != 206:
                return Tail(body[-bytes_max:], len(body))
            size = re.fullmatch(r"bytes \d+-(?:\d+|-1)/(\d+)", answer.headers.get("content-range", ""))  # -1: MinIO, of nothing
            if size is None:
                raise Unavailable(f"{self.url} sent a range of {key} without its size", key=key)
            return Tail(body, int(size[1]))

        return await self._repeated("read", key, read)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        check_list(prefix, start_after, limit)
        objects: list[ObjectInfo] = []
        begin: dict[str, str] = {"StartAfter": self._prefix + start_after} if start_after else {}
        last = start_after
        while True:
            page = await self._list_page(prefix, begin, min(limit - len(objects), _PAGE_KEYS_MAX))
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._prefix)
                if is_key(key):  # else others put it there, such as the empty "folders" of consoles
                    if key <= last:  # what is taken to be missing between two keys would come later, or never
                        raise Rejected(f"{self.url} lists {key} behind {last}, not in the order of keys", hint=_ORDER, key=key)
                    last = key
                    objects.append(ObjectInfo(key, found["Size"]))
            more = page.get("IsTruncated", False)
            if len(objects) >= limit or not more:
                return ListPage(tuple(objects), more=more)
            begin = {"ContinuationToken": page["NextContinuationToken"]}

    async def delete(self, key: str) -> None:
        """Deletes the object. Raises OutcomeUnknown where the last try was not answered: it may still be deleted."""
        check_key(key)

        async def remove() -> None:
            await self._client.delete_object(**self._object(key))

        await self._repeated("delete", key, remove, writes=True)

    async def close(self) -> None:
        """Drops the connections; what is still under way fails."""
        await self._closing.aclose()

    async def _list_page(self, prefix: str, begin: dict[str, str], keys_max: int) -> dict[str, Any]:
        async def read() -> dict[str, Any]:
            page: dict[str, Any] = await self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix + prefix, MaxKeys=keys_max, **begin
            )
            if "IsTruncated" not in page:  # else it would be taken for one of an empty bucket
                raise Unavailable(f"{self.url} sent no listing of {prefix}: {_NOT_A_STORE}", key=prefix)
            return page

        return await self._repeated("list", prefix, read)

    async def _repeated(self, doing: str, key: str, send: Callable[[], Awaitable[_Answer]], *, writes: bool = False) -> _Answer:
        return await retry(
            lambda: self._once(doing, key, send, self._reads, writes=writes),
            on=(Unavailable, OutcomeUnknown),
            pauses=RetryPauses(self._settings.s3_retry_pause_ms / 1000),
            attempts_max=self._settings.read_tries_max,
        )

    async def _once(
        self,
        doing: str,
        key: str,
        send: Callable[[], Awaitable[_Answer]],
        slots: asyncio.Semaphore,
        *,
        writes: bool,
        timeout_s: float | None = None,
    ) -> _Answer:
        async with self._slot(slots, doing, key):
            try:
                async with asyncio.timeout(timeout_s or self._settings.s3_request_timeout_ms / 1000):
                    return await send()
            except _ERRORS as error:
                raise translate(error, doing=doing, url=self.url, key=key, writes=writes) from error

    @asynccontextmanager
    async def _slot(self, slots: asyncio.Semaphore, doing: str, key: str) -> AsyncIterator[None]:
        """Takes one of the connections, or raises Throttled when none is free in time."""
        try:
            async with asyncio.timeout(self._settings.s3_request_timeout_ms / 1000):
                await slots.acquire()
        except TimeoutError:
            message = f"can't {doing} {key} in {self.url}: no connection fell free; nothing was sent"
            raise Throttled(message, hint="Retry later, or add brokers.", key=key) from None
        try:
            yield
        finally:
            slots.release()

    async def _read(self, key: str, wanted: str | None) -> S3Answer:
        """Reads an object, or the range of it that `wanted` names."""
        answer = await self._requests.send("GetObject", self._prefix + key, {} if wanted is None else {"range": wanted})
        if answer is None:
            response = await self._client.get_object(**self._object(key), **({} if wanted is None else {"Range": wanted}))
            async with response["Body"] as stream:  # drops the connection where it is left early
                answer = _answer_in(response, await stream.read())
        # else a proxy's page would be taken for what is stored, and that for damaged
        if answer.status == 200 and not answer.headers.get("etag"):
            raise Unavailable(f"{self.url} did not say of which object it sent {key}: {_NOT_A_STORE}", key=key)
        return answer

    def _object(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}


def _observe_dates(client: Any, clock: StoreClock) -> None:
    """Tells `clock` the date of each answer below 500, those of refusals as well. Events: botocore's before-call and after-call."""

    def asks(context: dict[str, Any], **_: Any) -> None:
        context["tidelog_asked_s"] = clock.steady_s()

    def answered(http_response: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        asked_s = context.get("tidelog_asked_s")
        if asked_s is not None and http_response.status_code < 500:  # 500 and above may come from a proxy
            clock.heard_headers(parsed.get("ResponseMetadata", {}).get("HTTPHeaders", {}), asked_s=asked_s)

    client.meta.events.register("before-call.s3", asks)
    client.meta.events.register("after-call.s3", answered)


def _answer_in(response: dict[str, Any], body: bytes = b"") -> S3Answer:
    """Returns what botocore has parsed as the answer that it came from."""
    metadata = response["ResponseMetadata"]
    return S3Answer(int(metadata["HTTPStatusCode"]), metadata["HTTPHeaders"], body)


def _size_in(error: ClientError) -> int | None:
    size = str(error.response.get("Error", {}).get("ActualObjectSize", ""))
    return int(size) if size.isdecimal() else None


# Smaller buffers are joined up to this size: each write may be a system call.
WRITE_BYTES_MIN = 1 << 16


class VectoredBody(Payload):
    """A request body of aiohttp's type over several buffers, which botocore passes on unchanged.

    It has no `read`, so that botocore does not send Expect: 100-continue, which costs one more round trip. It counts as consumed
    once it is being written, so that aiohttp does not repeat it by itself when a connection breaks.
    """

    _autoclose = True

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        super().__init__(buffers)
        self._buffers = buffers
        self._size = self.bytes_count = sum(map(len, buffers))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._buffers).decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"".join(self._buffers)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Writes all of it: the length in the request's head is that of the body."""
        self._consumed = True
        for part in _parts(self._buffers):
            await writer.write(part)


def pass_body_by_the_signer(client: Any) -> None:
    """Keeps bodies out of sight while `client` signs its PUTs: the payload is not signed, but signers take a copy of it.

    The request must come with its ContentLength. Events: botocore's before-sign and before-send.
    """
    client.meta.events.register("before-sign.s3.PutObject", _take_out)
    client.meta.events.register("before-send.s3.PutObject", _put_back)


def _take_out(request: Any, **_: Any) -> None:
    request.context["body"], request.data = request.data, b""


def _put_back(request: Any, **_: Any) -> None:
    request.body = request.context.pop("body")


def _parts(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yields the same bytes in buffers that are large enough for a write of their own."""
    small: list[Buffer] = []
    small_bytes = 0
    for buffer in buffers:
        if small_bytes and small_bytes + len(buffer) > WRITE_BYTES_MIN:
            yield b"".join(small)
            small, small_bytes = [], 0
        if len(buffer) >= WRITE_BYTES_MIN:
            yield buffer
        else:
            small.append(buffer)
            small_bytes += len(buffer)
    if small_bytes:
        yield b"".join(small)
