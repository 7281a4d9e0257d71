"""The addresses of brokers: how they are written, and how one leads to the others.

    http://HOST[:8080]    any broker's HTTP door: /v1/cluster names the gRPC addresses
    grpc://HOST[:9090]    a broker's gRPC door
    HOST[:PORT]           http

A broker that listens on every interface can't say by which of them a client reaches it: its wildcard address is replaced by the
host that was reached.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from google.protobuf import json_format

from gateway.proto import admin_pb2
from metadata.errors import InvalidArgument, Rejected, TidelogError
from tidelog.rpc_errors import unreachable

DEFAULT_URL = "http://localhost:8080"
DEFAULT_PORTS = {"http": 8080, "grpc": 9090}
CLUSTER_BYTES_MAX = 16 << 20
_WILDCARDS = {"0.0.0.0", "::", "[::]", ""}


class Address(NamedTuple):
    scheme: str
    """http or grpc."""
    host: str
    """An IPv6 address stands in brackets."""
    port: int

    @property
    def host_port(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_port}"


def parse_addresses(texts: Iterable[str]) -> list[Address]:
    """Every address of every text, in order; a text may hold several, separated by commas. Raises InvalidArgument."""
    found = [parse_address(part) for text in texts for part in text.split(",") if part.strip()]
    return found or [parse_address(DEFAULT_URL)]


def parse_address(text: str) -> Address:
    text = text.strip()
    url = text if "://" in text else f"http://{text}"
    hint = "Write http://HOST:8080 or grpc://HOST:9090."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"{text!r} is not an address: {error}", hint=hint) from error
    if parts.scheme in {"https", "grpcs"}:
        raise InvalidArgument(f"{text!r}: brokers do not speak TLS yet", hint=hint)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise InvalidArgument(f"{text!r} is not an address", hint=hint)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(parts.scheme, host, DEFAULT_PORTS[parts.scheme] if port is None else port)


def grpc_target(advertised: str, *, reached: Address) -> str:
    """Where a client finds the gRPC door that a broker advertises as HOST:PORT."""
    host, _, port = advertised.rpartition(":")
    return f"{reached.host}:{port}" if host in _WILDCARDS else advertised


async def cluster_over_http(address: Address, *, timeout_s: float) -> admin_pb2.ClusterDescription:
    """GET /v1/cluster. Raises Unavailable where nobody answers, Rejected where it is no broker's answer."""
    return await asyncio.to_thread(_get_cluster, address, timeout_s)


async def speaks_http(address: Address, *, timeout_s: float) -> bool:
    """Whether something at this host and port answers HTTP, were it with a refusal."""
    try:
        await cluster_over_http(address._replace(scheme="http"), timeout_s=timeout_s)
    except TidelogError as error:
        return isinstance(error.__cause__, urllib.error.HTTPError | ValueError)
    return True


def _get_cluster(address: Address, timeout_s: float) -> admin_pb2.ClusterDescription:
    try:
        with urllib.request.urlopen(f"{address}/v1/cluster", timeout=timeout_s) as response:
            body = response.read(CLUSTER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(address, error) from error
    except (OSError, http.client.IncompleteRead) as error:
        raise unreachable(str(address), getattr(error, "reason", error)) from error
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
            hint="Check the port: 8080 is a broker's default for HTTP, grpc://HOST:9090 its gRPC door.",
            address=str(address),
        ) from error


def _refused(address: Address, error: urllib.error.HTTPError) -> TidelogError:
    said = f"{address}/v1/cluster answered {error.code} {error.reason}"
    if error.code >= 500:
        return unreachable(str(address), said)
    return Rejected(said, hint="Check the address: no Tidelog broker seems to answer there.", address=str(address))
