"""A Kafka client that costs next to nothing: requests that were encoded before, answers of which it reads only offsets and errors.

    produce_all   one connection, a window of Produce requests with a batch for each partition     ─▶ when all are acknowledged
    read_all      one connection, a fetch session, one Fetch after the other                       ─▶ at the end of all partitions

Functions here run in the clients' process. As Apache Kafka's consumer, they ask for at most 1 MiB of a partition, 50 MiB in all,
and the answer may come with the first byte.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from typing import Any

from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED

KEYS = {definition.name: key for key, definition in DEFINITIONS.items()}
PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, HEARTBEAT_VERSION, COMMIT_VERSION = 9, 12, 7, 4, 8
TIMEOUT_S = 120.0
WINDOW = 5
# As Apache Kafka's consumer: fetch.max.bytes, max.partition.fetch.bytes, fetch.min.bytes, fetch.max.wait.ms.
BYTES_MAX, PARTITION_BYTES_MAX, BYTES_MIN, WAIT_MS = 50 << 20, 1 << 20, 1, 500
LATEST = -1
# Base offset, length, leader epoch, magic, CRC, attributes and last offset delta of a record batch.
BATCH_HEAD = Struct(">qiibIhi")
BATCH_LENGTH_BYTES = 12


@dataclass(frozen=True, slots=True)
class Received:
    """Counts what a reader received."""

    payload_bytes: int
    records: int
    requests: int


class KafkaConnection:
    """One connection; requests are answered in order."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 20)
        self._sent = 0

    def close(self) -> None:
        self._socket.close()

    def send(self, name: str, version: int, message: Any) -> None:
        self._sent += 1
        self._socket.sendall(INSTALLED.encode_request_frame(KEYS[name], message, version, self._sent, "bench"))

    def send_frame(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive_frame(self) -> memoryview:
        """The next answer without its length, valid until the next call."""
        (size,) = Struct(">i").unpack(self._received(4))
        return self._received(size)

    def receive(self, name: str, version: int) -> Any:
        return INSTALLED.decode_response(KEYS[name], self.receive_frame(), version)[1]

    def ask(self, name: str, version: int, message: Any) -> Any:
        self.send(name, version, message)
        return self.receive(name, version)

    def _received(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view, at = memoryview(self._buffer)[:size], 0
        while at < size:
            count = self._socket.recv_into(view[at:])
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            at += count
        return view


@contextmanager
def connection(address: str) -> Iterator[KafkaConnection]:
    opened = KafkaConnection(address)
    try:
        yield opened
    finally:
        opened.close()


def message(kind: str, /, **fields: Any) -> Any:
    return INSTALLED.names[kind](**fields)


def produce_frame(topic: str, batch: bytes, partitions: int) -> bytes:
    """A Produce request with the batch for each partition, whole."""
    data = [message("PartitionProduceData", index=index, records=batch) for index in range(partitions)]
    named = [message("TopicProduceData", name=topic, partition_data=data)]
    request = message("ProduceRequest", acks=-1, timeout_ms=30_000, topic_data=named)
    return INSTALLED.encode_request_frame(KEYS["Produce"], request, PRODUCE_VERSION, 1, "bench")


def produce_all(address: str, topic: str, batch: bytes, partitions: int, requests: int) -> None:
    """Returns when all requests are acknowledged. Raises RuntimeError for a batch that was refused."""
    frame = produce_frame(topic, batch, partitions)
    with connection(address) as broker:
        sent = answered = 0
        while answered < requests:
            while sent < min(requests, answered + WINDOW):
                broker.send_frame(frame)
                sent += 1
            answer = broker.receive("Produce", PRODUCE_VERSION)
            answered += 1
            for found in answer.responses[0].partition_responses:
                if found.error_code:
                    raise RuntimeError(f"the broker refused a batch with error {found.error_code}")


def end_offsets(address: str, topic: str, partitions: int) -> list[int]:
    with connection(address) as broker:
        asked = [message("ListOffsetsPartition", partition_index=index, timestamp=LATEST) for index in range(partitions)]
        request = message("ListOffsetsRequest", topics=[message("ListOffsetsTopic", name=topic, partitions=asked)])
        answer = broker.ask("ListOffsets", LIST_OFFSETS_VERSION, request)
        found = sorted((each.partition_index, each.offset) for each in answer.topics[0].partitions)
        return [offset for _, offset in found]


def read_all(address: str, topic: str, begins: Sequence[int], ends: Sequence[int], *, rounds: int = 1) -> Received:
    """Reads all partitions from `begins` up to `ends`, `rounds` times, each with a fetch session of its own."""
    payload_bytes = records = requests = 0
    with connection(address) as broker:
        for _ in range(rounds):
            offsets = list(begins)
            session_id, epoch = 0, 0
            left = {index for index, end in enumerate(ends) if offsets[index] < end}
            changed = sorted(left)
            forgotten: list[int] = []
            while left:
                asked = [
                    message("FetchPartition", partition=index, fetch_offset=offsets[index], partition_max_bytes=PARTITION_BYTES_MAX)
                    for index in changed
                ]
                request = message(
                    "FetchRequest",
                    max_wait_ms=WAIT_MS,
                    min_bytes=BYTES_MIN,
                    max_bytes=BYTES_MAX,
                    session_id=session_id,
                    session_epoch=epoch,
                    topics=[message("FetchTopic", topic=topic, partitions=asked)] if asked else [],
                    forgotten_topics_data=[message("ForgottenTopic", topic=topic, partitions=forgotten)] if forgotten else [],
                )
                answer = broker.ask("Fetch", FETCH_VERSION, request)
                requests += 1
                if answer.error_code or not answer.session_id:
                    raise RuntimeError(f"the broker answered a fetch with error {answer.error_code}, session {answer.session_id}")
                session_id, epoch = answer.session_id, epoch + 1
                changed, forgotten = [], []
                for found in answer.responses[0].partitions if answer.responses else ():
                    if found.error_code:
                        raise RuntimeError(f"the broker answered partition {found.partition_index} with error {found.error_code}")
                    index = found.partition_index
                    size_bytes, next_offset = read_batches(found.records)
                    if not size_bytes:
                        continue
                    payload_bytes += size_bytes
                    records += next_offset - offsets[index]
                    offsets[index] = next_offset
                    if next_offset < ends[index]:
                        changed.append(index)
                    else:
                        left.discard(index)
                        forgotten.append(index)
    return Received(payload_bytes, records, requests)


def read_batches(buffers: Sequence[Any] | None) -> tuple[int, int]:
    """The bytes of whole batches, and the offset behind them. Each buffer begins with a batch."""
    size_bytes = next_offset = 0
    for buffer in buffers or ():
        view = memoryview(buffer)
        at = 0
        while len(view) - at >= BATCH_HEAD.size:
            base_offset, length, _, _, _, _, last_delta = BATCH_HEAD.unpack_from(view, at)
            if length > len(view) - at - BATCH_LENGTH_BYTES:  # the answer ends within a batch
                break
            at += BATCH_LENGTH_BYTES + length
            next_offset = base_offset + last_delta + 1
        size_bytes += at
    return size_bytes, next_offset
