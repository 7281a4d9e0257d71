"""Finds out for `tidelog doctor --kafka HOST:PORT`: does a Kafka listener answer there, and at each address that it advertises?

    connect ─▶ ApiVersions ─▶ Metadata ─▶ connect to each advertised address ─▶ ApiVersions

Clients connect to the advertised addresses, so one that they can't reach is the commonest fault. The checks go over TLS where the
listener speaks TLS; its certificate is not verified here.

Source: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import closing
from typing import Final, NamedTuple

from metadata.diagnosis import Diagnosis
from metadata.errors import InvalidArgument

TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 16 << 20
CHECK: Final = "Kafka"
_METADATA, _SASL_HANDSHAKE, _API_VERSIONS = 3, 17, 18
_CLIENT_ID: Final = b"tidelog-doctor"


class AdvertisedBroker(NamedTuple):
    """A broker as Metadata names it."""

    node_id: int
    host: str
    port: int


class NotKafka(Exception):
    """The server does not speak Kafka's protocol. The text says what it speaks instead."""


def check_kafka(address: str) -> list[Diagnosis]:
    """Returns what was found at HOST:PORT and at each advertised address."""
    host, _, number = address.rpartition(":")
    host = host.strip("[]")
    if not host or not number.isdecimal() or not 0 < int(number) < 65_536:
        error = InvalidArgument(f"--kafka is {address!r}, not HOST:PORT")
        return [Diagnosis(CHECK, "failed", error.message, "Give the address of a Kafka listener, such as localhost:9092.")]
    found, brokers = _check(host, int(number), asks_metadata=True)
    rest = [_check(broker.host, broker.port, node_id=broker.node_id)[0] for broker in brokers]
    return [found, *rest]


def _check(
    host: str, port: int, *, node_id: int | None = None, asks_metadata: bool = False
) -> tuple[Diagnosis, list[AdvertisedBroker]]:
    where = f"{host}:{port}" if node_id is None else f"node {node_id} advertises {host}:{port}"
    try:
        transport, keys = _transport(host, port)
    except NotKafka as error:
        return Diagnosis(CHECK, "failed", f"{where}: {error}", "Give the port of a Kafka listener (--kafka of the broker)."), []
    except OSError as error:
        remedy = "Is the broker running, and does this machine reach the address?"
        if node_id is not None:
            remedy = "Clients connect to this address: set advertise_kafka at that broker to one that they reach."
        return Diagnosis(CHECK, "failed", f"{where}: there is no connection ({error})", remedy), []
    if not asks_metadata:
        return Diagnosis(CHECK, "ok", f"{where}: answers over {transport}"), []
    try:
        brokers = _brokers(host, port, transport)
    except (OSError, NotKafka):
        if _SASL_HANDSHAKE in keys:
            return Diagnosis(
                CHECK,
                "warning",
                f"{where}: answers over {transport}, and needs authentication; the advertised addresses were not looked at",
                f"Clients set security.protocol to SASL_{'SSL' if transport == 'TLS' else 'PLAINTEXT'}.",
            ), []
        return Diagnosis(CHECK, "failed", f"{where}: answers over {transport}, but not to Metadata", "See the broker's log."), []
    if not brokers:
        return Diagnosis(CHECK, "failed", f"{where}: advertises no broker", "Wait until the brokers are ready."), []
    return Diagnosis(CHECK, "ok", f"{where}: answers over {transport}, and advertises {len(brokers)} broker(s)"), brokers


def _transport(host: str, port: int) -> tuple[str, set[int]]:
    """Returns how the listener speaks, and the keys of its APIs. Raises OSError; NotKafka."""
    try:
        with closing(_connect(host, port, "plain text")) as connection:
            return "plain text", _api_keys(_ask(connection, _API_VERSIONS, 0, b""))
    except (ConnectionRefusedError, TimeoutError, socket.gaierror):
        raise
    except (OSError, NotKafka) as plain:
        try:
            with closing(_connect(host, port, "TLS")) as connection:
                return "TLS", _api_keys(_ask(connection, _API_VERSIONS, 0, b""))
        except (OSError, NotKafka):
            if isinstance(plain, NotKafka):
                raise plain from None
            raise NotKafka("it closes the connection, over plain text and over TLS") from None


def _brokers(host: str, port: int, transport: str) -> list[AdvertisedBroker]:
    with closing(_connect(host, port, transport)) as connection:
        body = _ask(connection, _METADATA, 1, struct.pack(">i", 0))
    brokers = []
    try:
        (count,) = struct.unpack_from(">i", body, 0)
        at = 4
        for _ in range(count):
            node_id, length = struct.unpack_from(">ih", body, at)
            name = body[at + 6 : at + 6 + length].decode()
            (port_of_it, rack_length) = struct.unpack_from(">ih", body, at + 6 + length)
            at += 12 + length + max(0, rack_length)
            brokers.append(AdvertisedBroker(node_id, name, port_of_it))
    except (struct.error, UnicodeDecodeError) as error:
        raise NotKafka(f"its answer to Metadata can't be read ({error})") from None
    return brokers


def _connect(host: str, port: int, transport: str) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
    if transport != "TLS":
        return connection
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _ask(connection: socket.socket, key: int, version: int, body: bytes) -> bytes:
    """Returns the body of the answer. Raises OSError; NotKafka."""
    request = struct.pack(">hhih", key, version, 1, len(_CLIENT_ID)) + _CLIENT_ID + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    head = _read(connection, 4)
    if head == b"HTTP":
        raise NotKafka("it speaks HTTP")
    if head[:1] == b"\x15":
        raise NotKafka("it speaks TLS, but not Kafka's protocol")
    (length,) = struct.unpack(">i", head)
    if not 4 <= length <= ANSWER_BYTES_MAX:
        raise NotKafka("it does not speak Kafka's protocol")
    answer = _read(connection, length)
    if answer[:4] != struct.pack(">i", 1):
        raise NotKafka("it does not speak Kafka's protocol")
    return answer[4:]


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the connection was closed")
        data += part
    return bytes(data)


def _api_keys(body: bytes) -> set[int]:
    try:
        error_code, count = struct.unpack_from(">hi", body, 0)
        keys = {struct.unpack_from(">hhh", body, 6 + 6 * at)[0] for at in range(count)}
    except struct.error:
        raise NotKafka("its answer to ApiVersions can't be read") from None
    if error_code or not keys:
        raise NotKafka(f"it answers ApiVersions with the error {error_code}")
    return keys
