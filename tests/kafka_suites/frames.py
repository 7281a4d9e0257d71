"""A client of single frames: it sends one request in one version and returns the decoded answer, with no retry and no cache.

kafka-python's message classes encode and decode; sockets and correlation ids are handled here.
"""

from __future__ import annotations

import socket
import struct
import warnings
from typing import Any

ANSWER_TIMEOUT_S = 30.0
CLIENT_ID = "frames"
_SIZE = struct.Struct(">i")

Answer = dict[str, Any]


def request_class(api: str) -> Any:
    """Returns kafka-python's class of the requests of this API, such as "Metadata"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its message definitions with a deprecated function
        from kafka.protocol import admin, consumer, metadata, producer
    for package in (metadata, producer, consumer, admin):
        if hasattr(package, f"{api}Request"):
            return getattr(package, f"{api}Request")
    raise LookupError(f"kafka-python knows no {api}Request")


# Which broker of a cluster answers an API; any of them answers the others.
LEADER_APIS = frozenset({"Produce", "Fetch", "ListOffsets"})
COORDINATOR_APIS = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", "DescribeGroups"})


class ClusterFrames:
    """Connections to the brokers of a cluster: any of them, the leader of one partition, and the coordinator of one group.

    As long as the leader or the coordinator is not known, the first broker is asked.
    """

    def __init__(self, host: str, port: int) -> None:
        self._any = self._leader = self._coordinator = Frames(host, port)
        self._open = {(host, port): self._any}

    def close(self) -> None:
        for each in self._open.values():
            each.close()

    def lead(self, host: str, port: int) -> None:
        """The broker at this address leads the partition."""
        self._leader = self._connected(host, port)

    def coordinate(self, host: str, port: int) -> None:
        """The broker at this address coordinates the group."""
        self._coordinator = self._connected(host, port)

    def ask(self, api: str, version: int, **fields: object) -> Answer:
        """As Frames.ask, of the broker that answers this API."""
        broker = self._leader if api in LEADER_APIS else self._coordinator if api in COORDINATOR_APIS else self._any
        return broker.ask(api, version, **fields)

    def _connected(self, host: str, port: int) -> Frames:
        if (host, port) not in self._open:
            self._open[host, port] = Frames(host, port)
        return self._open[host, port]


class Frames:
    """One connection to one broker."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_S)
        self._correlation_id = 0

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: str, version: int, **fields: object) -> Answer:
        """Returns the answer as a dictionary of Kafka's field names. Raises ConnectionError where the broker closes instead."""
        self._correlation_id += 1
        request = _filled(request_class(api)[version], fields)
        request.with_header(correlation_id=self._correlation_id, client_id=CLIENT_ID)
        self._socket.sendall(request.encode(header=True, framed=True))
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        frame = self._read(size)
        answer = request.header.get_response_class().decode(frame, header=True)
        if answer.header.correlation_id != self._correlation_id:
            raise AssertionError(f"correlation id {answer.header.correlation_id}, not {self._correlation_id}")
        return dict(answer.to_dict(json=False))

    def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            part = self._socket.recv(size - len(read))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            read += part
        return bytes(read)


def _filled(message: Any, fields: dict[str, Any]) -> Any:
    """Returns the message with these fields; dictionaries become its structs, and fields of other versions are left out."""
    version: int = message._class_version
    return message(**{name: _value(message._struct.fields[name], value, version) for name, value in fields.items()})


def _value(field: Any, value: Any, version: int) -> Any:
    if isinstance(value, list) and field.is_struct_array():
        return [_value_of(field, each, version) for each in value]
    return _value_of(field, value, version) if isinstance(value, dict) else value


def _value_of(field: Any, values: dict[str, Any], version: int) -> Any:
    fields = field.data_class._struct.fields
    return field.data_class(version=version, **{name: _value(fields[name], value, version) for name, value in values.items()})
