"""Parses addresses of brokers, and finds all brokers from one of them.

    http://HOST[:8080]    any broker's HTTP listener: /v1/cluster names the gRPC addresses
    grpc://HOST[:9090]    a broker's gRPC listener
    HOST[:PORT]           http
    https:// grpcs://     the same with TLS, at both listeners of all brokers

A broker that listens on every interface can't say by which of them a client reaches it: its wildcard address is replaced by the
host that was reached.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from google.protobuf import json_format

from gateway.proto import admin_pb2
from metadata.errors import InvalidArgument, NotAuthorized, Rejected, TidelogError, Unauthenticated, Unavailable
from tidelog.transport.credentials import Credentials
from tidelog.transport.rpc_errors import unreachable
from tidelog.transport.tls_diagnosis import TlsProblem, diagnose_tls, peer_certificate, trouble_of

DEFAULT_URL = "http://localhost:8080"
DEFAULT_PORTS = {"http": 8080, "grpc": 9090, "https": 8080, "grpcs": 9090}
CLUSTER_BYTES_MAX = 16 << 20
_WILDCARDS = {"0.0.0.0", "::", "[::]", ""}


class Address(NamedTuple):
    """The address of a broker's listener."""

    # http or grpc; https or grpcs.
    scheme: str
    # An IPv6 address stands in brackets.
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme in {"https", "grpcs"}

    @property
    def is_grpc(self) -> bool:
        return self.scheme in {"grpc", "grpcs"}

    @property
    def host_port(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_port}"


def parse_addresses(texts: Iterable[str]) -> list[Address]:
    """Parses all addresses in order; a text may hold several, separated by commas. Raises InvalidArgument."""
    found = [parse_address(part) for text in texts for part in text.split(",") if part.strip()]
    if len({address.tls for address in found}) > 1:
        raise InvalidArgument(
            f"{', '.join(map(str, found))}: some with TLS, and some without", hint="Write https:// or grpcs:// in all of them."
        )
    return found or [parse_address(DEFAULT_URL)]


def with_tls(texts: Iterable[str]) -> bool:
    """Returns whether an address asks for TLS. The addresses may be invalid."""
    return any(part.strip().startswith(("https://", "grpcs://")) for text in texts for part in text.split(","))


def parse_address(text: str) -> Address:
    text = text.strip()
    url = text if "://" in text else f"http://{text}"
    hint = "Write http://HOST:8080 or grpc://HOST:9090; with TLS https:// or grpcs://."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"{text!r} is not an address: {error}", hint=hint) from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise InvalidArgument(f"{text!r} is not an address", hint=hint)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(parts.scheme, host, DEFAULT_PORTS[parts.scheme] if port is None else port)


def grpc_target(advertised: str, *, reached: Address) -> str:
    """Returns the gRPC address for a client, from the HOST:PORT that a broker advertises."""
    host, _, port = advertised.rpartition(":")
    return f"{reached.host}:{port}" if host in _WILDCARDS else advertised


async def cluster_over_http(
    address: Address, credentials: Credentials | None = None, *, timeout_s: float
) -> admin_pb2.ClusterDescription:
    """Sends GET /v1/cluster. Raises Unavailable without an answer or TLS, Denied without the right credentials, and Rejected
    for an answer that is not a broker's."""
    if credentials is not None:
        credentials.check_way(address.host)
    return await asyncio.to_thread(_get_cluster, address, credentials, timeout_s)


async def speaks_http(address: Address, credentials: Credentials, *, timeout_s: float) -> bool:
    """Returns whether something at this host and port answers HTTP, even with a refusal. Sends no key."""
    try:
        http_address = address._replace(scheme="https" if address.tls else "http")
        await asyncio.to_thread(_get_cluster, http_address, credentials, timeout_s, False)
    except TidelogError as error:
        return isinstance(error.__cause__, urllib.error.HTTPError | ValueError)
    return True


async def speaks_tls(address: Address, credentials: Credentials, *, timeout_s: float) -> bool:
    """Returns whether the address speaks TLS, after a failed attempt without."""
    return (await asyncio.to_thread(peer_certificate, address.host, address.port, credentials, timeout_s=timeout_s)) is not None


def wants_tls(address: Address) -> Rejected:
    scheme = "grpcs" if address.is_grpc else "https"
    return Rejected(f"{address}: what answers there speaks TLS", hint=f"Write {scheme}://{address.host_port}", address=str(address))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: their target must not receive the key."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _get_cluster(
    address: Address, credentials: Credentials | None, timeout_s: float, with_key: bool = True
) -> admin_pb2.ClusterDescription:
    request = urllib.request.Request(f"{address}/v1/cluster")
    handlers: list[urllib.request.BaseHandler] = []
    if address.tls and credentials is not None:
        handlers.append(urllib.request.HTTPSHandler(context=credentials.ssl_context()))
    if with_key and credentials is not None and (authorization := credentials.authorization()):
        request.add_unredirected_header("Authorization", authorization)
        handlers.append(_NoRedirect())
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as response:
            body = response.read(CLUSTER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(address, error) from error
    except (OSError, http.client.IncompleteRead) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, ssl.SSLError):  # its `reason` is a word of OpenSSL
            reason = error
        if (trouble := _trouble(reason, address, credentials, timeout_s)) is not None:
            raise Unavailable(f"{address}: can't connect: {trouble.cause}", hint=trouble.remedy, address=str(address)) from error
        raise unreachable(str(address), reason) from error
    except http.client.HTTPException as error:  # its text is what came, which may be anything
        raise Rejected(
            f"{address}: what answers there does not speak HTTP: it is not the HTTP port of a broker",
            hint=f"Give the broker's HTTP port (8080 by default), or grpc://{address.host_port} if this is its gRPC port.",
            address=str(address),
        ) from error
    try:
        cluster = json_format.ParseDict(json.loads(body), admin_pb2.ClusterDescription(), ignore_unknown_fields=True)
        if not cluster.cluster_id:
            raise ValueError("it names no cluster_id")
        return cluster
    except (ValueError, AttributeError, json_format.ParseError) as error:
        raise Rejected(
            f"{address}/v1/cluster did not answer as a broker does: {error}",
            hint="Check the port: 8080 is a broker's default for HTTP, grpc://HOST:9090 its gRPC listener.",
            address=str(address),
        ) from error


def _trouble(reason: object, address: Address, credentials: Credentials | None, timeout_s: float) -> TlsProblem | None:
    """Returns the TLS problem that may be the reason, if any."""
    if credentials is None or not address.tls:
        return None
    if isinstance(reason, ssl.SSLError):
        return trouble_of(reason, address.host, address.port, credentials)
    if isinstance(reason, ConnectionResetError):  # it hung up, as some do who want a certificate
        return diagnose_tls(address.host, address.port, credentials, protocol="http/1.1", timeout_s=timeout_s)
    return None


def _refused(address: Address, error: urllib.error.HTTPError) -> TidelogError:
    said = f"{address}/v1/cluster answered {error.code} {error.reason}"
    if error.code in {401, 403}:
        problem = _problem(error)
        kind = Unauthenticated if error.code == 401 else NotAuthorized
        return kind(
            f"{address}: {problem.get('detail') or f'{error.code} {error.reason}'}",
            hint=str(problem.get("hint") or "Show an API key (api_key, TIDELOG_API_KEY) or a certificate."),
            address=str(address),
        )
    if error.code >= 500:
        return unreachable(str(address), said)
    return Rejected(said, hint="Check the address: no Tidelog broker seems to answer there.", address=str(address))


def _problem(error: urllib.error.HTTPError) -> dict[str, Any]:
    try:
        body = json.loads(error.read(1 << 16))
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return body if isinstance(body, dict) else {}
