"""Sends the requests that a broker makes all the time, PUT and GET of an object, without botocore's 2 ms of Python for each.

    first request ─▶ botocore prepares one and does not send it ─▶ the URL of the bucket, region and user agent
    each request  ─▶ signature.py ─▶ the HTTP session of botocore's client ─▶ status, headers, body

botocore keeps what is rare: credentials, endpoints, the search for a bucket in another region, and the form of errors. Where it
does not sign with AWS4-HMAC-SHA256, `send` returns None, and the caller asks botocore.

Invariants: a request is sent once, and once more only where the store has refused it because the bucket is in another region. An
HTTP redirect is not followed: what another host answers proves nothing of the store.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import create_parser

from segments.object_store.s3.signature import S3Credentials, signed_headers
from segments.object_store.store_clock import StoreClock

# The key of the request that is prepared and never sent.
_PROBE_KEY: Final = "key"
_METHODS: Final = {"PutObject": "PUT", "GetObject": "GET"}
_UNQUOTED: Final = "/-._~"
_AUTHORIZATION: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=[^,]+/\d{8}/([^/,]+)/s3/aws4_request,")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# The header in which S3 names the region of a bucket.
_REGION: Final = "x-amz-bucket-region"
# Answers after which botocore may find another region or endpoint for the bucket.
_MOVED: Final = frozenset({301, 302, 307, 308})
# Errors of a request that was signed for another region than that of the bucket.
_SIGNED_FOR_ANOTHER_REGION: Final = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})


class S3Answer(NamedTuple):
    """Holds the answer to a request that succeeded. `headers` have names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BucketAddress(NamedTuple):
    """Holds what botocore knows of a bucket: where its objects are, and how requests to it are signed."""

    # Scheme, host and port.
    url: str
    # The percent-encoded path in front of each key.
    path: str
    host: str
    region: str
    user_agent: str


class _Prepared(Exception):
    """Carries a request that botocore has prepared, in place of sending it."""

    def __init__(self, request: Any) -> None:
        super().__init__("prepared, not sent")
        self.request = request


class SharedHttpSession(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
    """The HTTP session of botocore's client: with its proxies, certificates, time limits and connections.

    Like botocore's own and unlike aiobotocore's, it follows no redirect. botocore finds a bucket by the redirect itself.
    """

    async def send(self, request: Any) -> Any:
        response = await super().send(request)
        if request.method == "HEAD" and 300 <= response.status_code < 400 and _REGION not in response.headers:
            response.status_code = 503  # for a redirect that names no region, botocore asks again and again
        return response

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _WithoutRedirects(await super()._get_session(proxy_url))


class _WithoutRedirects:
    """Offers what aiobotocore uses of an aiohttp session, and returns a redirect as the answer."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **named: Any) -> aiohttp.ClientResponse:
        return await self._session.request(method, allow_redirects=False, **named)


class ObjectRequests:
    """Signs and sends requests for single objects of one bucket. Use it in one event loop."""

    def __init__(
        self, client: Any, credentials: Any, http: SharedHttpSession, bucket: str, *, clock: StoreClock | None = None
    ) -> None:
        """`credentials`: those of the client's session, which renew themselves; None where there are none."""
        self._client = client
        self._credentials = credentials
        self._http = http
        self._bucket = bucket
        self._clock = clock
        self._address: BucketAddress | None = None
        self._is_botocores = False
        self._learning = asyncio.Lock()
        self._parser = create_parser("rest-xml")
        client.meta.events.register("before-send.s3.HeadObject", _do_not_send)

    async def send(
        self, operation: str, key: str, headers: Mapping[str, str], body: Callable[[], Any] | None = None
    ) -> S3Answer | None:
        """Returns the answer. Returns None, and sends nothing, where botocore has to send the request.

        `operation` is PutObject or GetObject. `headers` have names in lower case. `body` makes the body of one request. Raises
        ClientError for what the store refuses, and the errors of botocore's HTTP session.
        """
        address = self._address or await self._learn()
        if address is None:
            return None
        try:
            return await self._sent(address, operation, key, headers, body)
        except ClientError as error:
            if not _may_have_moved(error):
                raise
            found = await self._find_again()
            if found is None or found == address:
                raise
        return await self._sent(found, operation, key, headers, body)

    async def _sent(
        self, address: BucketAddress, operation: str, key: str, headers: Mapping[str, str], body: Callable[[], Any] | None
    ) -> S3Answer:
        path = address.path + quote(key, safe=_UNQUOTED)
        signed = signed_headers(
            _METHODS[operation],
            path,
            {**headers, "host": address.host},
            region=address.region,
            credentials=await self._current_credentials(),
            now=datetime.now(UTC),
        )
        signed["user-agent"] = address.user_agent
        asked_s = 0.0 if self._clock is None else self._clock.steady_s()
        prepared = AWSPreparedRequest(
            _METHODS[operation], address.url + path, signed, None if body is None else body(), stream_output=False
        )
        response = await self._http.send(prepared)
        status, answered = int(response.status_code), response.headers
        if self._clock is not None and status < 500:  # 500 and above may come from a proxy
            self._clock.heard_headers(answered, asked_s=asked_s)
        content = await response.content
        if operation == "PutObject" and status == 200 and _is_an_error(content):
            status = 500
        if status >= 300:
            raise ClientError(self._parsed(operation, status, answered, content), operation)
        return S3Answer(status, answered, content)

    async def _find_again(self) -> BucketAddress | None:
        """Lets botocore look for the region of the bucket, and returns where it is now."""
        with suppress(ClientError, BotoCoreError):
            await self._client.head_bucket(Bucket=self._bucket)
        self._address = None
        return await self._learn()

    async def _learn(self) -> BucketAddress | None:
        """Asks botocore for a request to the bucket. None where botocore signs in another way, and so has to send all of them."""
        async with self._learning:
            if self._address is None and not self._is_botocores:
                try:
                    await self._client.head_object(Bucket=self._bucket, Key=_PROBE_KEY)
                except _Prepared as prepared:
                    self._address = _address_in(prepared.request)
                self._is_botocores = self._address is None
            return self._address

    async def _current_credentials(self) -> S3Credentials:
        if self._credentials is None:
            raise NoCredentialsError
        now = await self._credentials.get_frozen_credentials()
        return S3Credentials(now.access_key, now.secret_key, now.token)

    def _parsed(self, operation: str, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        shape = self._client.meta.service_model.operation_model(operation).output_shape
        parsed: dict[str, Any] = self._parser.parse({"status_code": status, "headers": headers, "body": body}, shape)
        return parsed


def _do_not_send(request: Any, **_: Any) -> None:
    raise _Prepared(request)


def _address_in(request: Any) -> BucketAddress | None:
    """Returns the address of the bucket in a request for `_PROBE_KEY`; None where the request is signed in another way."""
    parts = urlsplit(request.url)
    authorization, user_agent = (_text(request.headers.get(name, "")) for name in ("Authorization", "User-Agent"))
    scope = _AUTHORIZATION.match(authorization)
    if scope is None or parts.query or parts.hostname is None or not parts.path.endswith(f"/{_PROBE_KEY}"):
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.port is not None and parts.port != _DEFAULT_PORTS.get(parts.scheme):
        host = f"{host}:{parts.port}"
    return BucketAddress(f"{parts.scheme}://{parts.netloc}", parts.path.removesuffix(_PROBE_KEY), host, scope[1], user_agent)


def _is_an_error(body: bytes) -> bool:
    """Returns whether the body of an answer that says 200 is an error of the store, or XML that was cut off. botocore asks the same
    of each answer that is not an object.
    """
    if not body:
        return False
    try:
        return ElementTree.fromstring(body).tag == "Error"
    except ElementTree.ParseError:
        return True


def _may_have_moved(error: ClientError) -> bool:
    """Returns whether the bucket may be in another region than the one that the request was signed for."""
    if error.response.get("Error", {}).get("Code") in _SIGNED_FOR_ANOTHER_REGION:
        return True
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) in _MOVED


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
