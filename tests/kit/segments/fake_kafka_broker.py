"""As much of a Kafka broker as it takes to see the bytes that librdkafka writes, and to have it read ours.

One topic of one partition. Produced record batches are kept as they came; a fetch from offset 0 gets the batches in `served`.
Versions that are offered: the newest ones without flexible encoding (https://kafka.apache.org/protocol).
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TOPIC: Final = "flights"
PRODUCER_ID: Final = 4711
PRODUCER_EPOCH: Final = 3

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _FIND_COORDINATOR, _API_VERSIONS, _INIT_PRODUCER_ID = 0, 1, 2, 3, 10, 18, 22
_OFFERED = {
    _PRODUCE: (3, 7),
    _FETCH: (4, 11),
    _LIST_OFFSETS: (1, 1),
    _METADATA: (4, 4),
    _FIND_COORDINATOR: (0, 0),
    _API_VERSIONS: (0, 0),
    _INIT_PRODUCER_ID: (0, 0),
}
_UNSUPPORTED_VERSION = 35


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(*items: bytes) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


class _Request:
    """Reads the fields of a request one after the other."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(">" + code, self._body, self._at)
        self._at += struct.calcsize(code)
        return int(value)

    def bytes_(self, length: int) -> bytes:
        """Null counts as empty."""
        self._at += max(length, 0)
        return self._body[self._at - max(length, 0) : self._at]

    def string(self) -> str:
        return self.bytes_(self.number("h")).decode()


class FakeKafkaBroker:
    def __init__(self, address: str, served: bytes) -> None:
        self.address = address
        self.produced: list[bytes] = []
        self._served = served

    def answer(self, frame: bytes) -> bytes | None:
        """The response to one request, with its correlation id; None where the client wants none."""
        request = _Request(frame)
        key, version, correlation_id = request.number("h"), request.number("h"), request.number("i")
        request.string()  # the client id
        least, most = _OFFERED[key]
        if key == _API_VERSIONS and version > most:
            body = struct.pack(">h", _UNSUPPORTED_VERSION) + self._offered()
        else:
            assert least <= version <= most, f"request {key} came in version {version}"
            answered = self._answers(key, request, version)
            if answered is None:
                return None
            body = answered
        return struct.pack(">i", correlation_id) + body

    def _answers(self, key: int, request: _Request, version: int) -> bytes | None:
        host, port = self.address.split(":")
        node = struct.pack(">i", 1) + _string(host) + struct.pack(">i", int(port))
        if key == _API_VERSIONS:
            return struct.pack(">h", 0) + self._offered()
        if key == _METADATA:
            partition = struct.pack(">hii", 0, 0, 1) + _array(struct.pack(">i", 1)) + _array(struct.pack(">i", 1))
            topic = struct.pack(">h", 0) + _string(TOPIC) + b"\0" + _array(partition)
            no_rack = struct.pack(">h", -1)
            return struct.pack(">i", 0) + _array(node + no_rack) + _string("fake") + struct.pack(">i", 1) + _array(topic)
        if key == _FIND_COORDINATOR:
            return struct.pack(">h", 0) + node
        if key == _INIT_PRODUCER_ID:
            return struct.pack(">ihqh", 0, 0, PRODUCER_ID, PRODUCER_EPOCH)
        if key == _LIST_OFFSETS:
            return _array(_string(TOPIC) + _array(struct.pack(">ihqq", 0, 0, -1, 0)))
        return self._produce(request, version) if key == _PRODUCE else self._fetch(request, version)

    @staticmethod
    def _offered() -> bytes:
        return _array(*(struct.pack(">hhh", key, *versions) for key, versions in _OFFERED.items()))

    def _produce(self, request: _Request, version: int) -> bytes | None:
        request.string()  # the transactional id
        acks, _timeout_ms, topics = request.number("h"), request.number("i"), request.number("i")
        assert topics == 1
        request.string()
        partitions = request.number("i")
        assert partitions == 1
        request.number("i")
        self.produced.append(request.bytes_(request.number("i")))
        log_start_offset = struct.pack(">q", 0) if version >= 5 else b""
        result = struct.pack(">ihqq", 0, 0, 0, -1) + log_start_offset
        return _array(_string(TOPIC) + _array(result)) + struct.pack(">i", 0) if acks else None

    def _fetch(self, request: _Request, version: int) -> bytes:
        request.bytes_(4 + 4 + 4 + 4 + 1)  # replica, max wait, min and max bytes, isolation level
        if version >= 7:
            request.bytes_(4 + 4)  # session
        topics = request.number("i")
        results = []
        for _ in range(topics):
            request.string()
            assert request.number("i") == 1
            request.number("i")
            if version >= 9:
                request.number("i")  # the leader epoch that the client knows
            records = self._served if request.number("q") == 0 else b""
            if version >= 5:
                request.number("q")
            request.number("i")
            log_start_offset = struct.pack(">q", 0) if version >= 5 else b""
            replica = struct.pack(">i", -1) if version >= 11 else b""
            result = struct.pack(">ihqq", 0, 0, 1000, 1000) + log_start_offset + struct.pack(">i", -1) + replica
            results.append(_string(TOPIC) + _array(result + struct.pack(">i", len(records)) + records))
        session = struct.pack(">hi", 0, 0) if version >= 7 else b""
        return struct.pack(">i", 0) + session + _array(*results)


@contextmanager
def fake_kafka_broker(*, served: bytes = b"") -> Iterator[FakeKafkaBroker]:
    connections: list[socket.socket] = []

    class Connection(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            connections.append(self.request)
            while size := self.rfile.read(4):
                response = broker.answer(self.rfile.read(int.from_bytes(size)))
                if response is not None:
                    self.wfile.write(struct.pack(">i", len(response)) + response)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Connection) as server:
        broker = FakeKafkaBroker(f"127.0.0.1:{server.server_address[1]}", served)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield broker
        finally:
            server.shutdown()
            serving.join()
            for connection in connections:
                connection.close()
