"""Blocking clients of a broker process, which write down each attempt and each answer, and go on after its crash.

HTTP, ready record batches of an idempotent producer      sent again with the same sequence until acknowledged
gRPC, the same
HTTP, JSON under an Idempotency-Key                        sent again with the same key until acknowledged
HTTP, JSON                                                 an unanswered request is not sent again
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import grpc

from gateway.proto.log_pb2 import Append, ProduceRequest
from gateway.proto.log_pb2_grpc import LogStub
from segments.records.columns import encode_records
from tests.crash.crashing_broker import TOPIC, Ready
from tests.simulation.bucket_reader import parse_record_value, record_value
from tests.simulation.history_checker import Acknowledged, Event, Fetched, RecordId, Refused, Sent, Unknown

BATCHES = 5
RECORDS_PER_BATCH = 2
PADDING = 300
ATTEMPTS_MAX = 200
TIMEOUT_S = 60.0
TIMESTAMP_MS = 1_700_000_000_000


class BrokerGone(Exception):
    """The connection broke, or no broker listens."""


class NothingWritten(Exception):
    """The broker says that it wrote nothing."""


class Rejected(Exception):
    """The broker will never take this request."""


class OutcomeNotKnown(Exception):
    """The broker says that it does not know."""


@dataclass(slots=True)
class Diary:
    """What all clients of one broker sent and received, over its crashes."""

    events: list[Event] = field(default_factory=list)
    operations: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class Client(ABC):
    """Sends BATCHES batches, one after the other, to one partition. Runs in a thread of its own."""

    retries = True
    # Whether a record names the attempt that carried it. Under an Idempotency-Key a repeat must be the same to the byte.
    tags_attempts = True

    def __init__(self, diary: Diary, name: str, number: int, partition: int) -> None:
        self.name = name
        self.number = number
        self.partition = partition
        self._diary = diary
        self._settled = 0
        self._attempts = 0

    @property
    def done(self) -> bool:
        return self._settled == BATCHES

    def run(self, broker: Ready) -> None:
        """Until all is settled or the broker is gone; called again after a restart, it goes on where it was."""
        with closing(self.connect(broker)) as connection:
            for _ in range(ATTEMPTS_MAX):
                if self.done or not self._attempt(broker, connection):
                    return

    def _attempt(self, broker: Ready, connection: Any) -> bool:
        """False when it is no use to go on: the broker is gone, or won't take the batch."""
        self._attempts += 1
        first = self._settled * RECORDS_PER_BATCH
        tag = self._attempts if self.tags_attempts else 1
        records = tuple(RecordId(self.name, n, tag) for n in range(first, first + RECORDS_PER_BATCH))
        operation = next(self._diary.operations)
        events = self._diary.events
        events.append(Sent(operation, f"{broker.topic_id}/{self.partition}", records, idempotent=self.retries))
        try:
            base_offset = self.send(connection, first, records)
        except BrokerGone as error:
            events.append(Unknown(operation, str(error)))
            self._settled += not self.retries
            return False
        except Rejected as error:
            events.append(Refused(operation, str(error)))
            return False
        except OutcomeNotKnown as error:
            events.append(Unknown(operation, str(error)))
            self._settled += not self.retries
        except NothingWritten as error:
            events.append(Refused(operation, str(error)) if self.tags_attempts else Unknown(operation, str(error)))
        else:
            events.append(Acknowledged(operation, base_offset))
            self._settled += 1
        return True

    @abstractmethod
    def connect(self, broker: Ready) -> Any: ...

    @abstractmethod
    def send(self, connection: Any, first: int, records: Sequence[RecordId]) -> int:
        """The base offset that the broker acknowledged."""


class HttpClient(Client):
    def connect(self, broker: Ready) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(broker.http_address, timeout=TIMEOUT_S)

    def post(self, connection: http.client.HTTPConnection, body: bytes, query: str, headers: dict[str, str]) -> int:
        answer = ask(connection, "POST", f"/v1/topics/{TOPIC}/records{query}", body, headers)
        offset: int = answer["results"][0]["offset"]
        return offset


class ReadyBatches(HttpClient):
    def send(self, connection: http.client.HTTPConnection, first: int, records: Sequence[RecordId]) -> int:
        body = ready_batch(self.number, first, records)
        headers = {"content-type": "application/vnd.tidelog.record-batch"}
        return self.post(connection, body, f"?partition={self.partition}", headers)


class JsonUnderKey(HttpClient):
    tags_attempts = False

    def send(self, connection: http.client.HTTPConnection, first: int, records: Sequence[RecordId]) -> int:
        headers = {"content-type": "application/json", "idempotency-key": f"{self.name}-{first}"}
        return self.post(connection, as_json(self.partition, records), "", headers)


class PlainJson(HttpClient):
    retries = False

    def send(self, connection: http.client.HTTPConnection, first: int, records: Sequence[RecordId]) -> int:
        return self.post(connection, as_json(self.partition, records), "", {"content-type": "application/json"})


class GrpcReadyBatches(Client):
    def connect(self, broker: Ready) -> grpc.Channel:
        return grpc.insecure_channel(broker.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)])

    def send(self, connection: grpc.Channel, first: int, records: Sequence[RecordId]) -> int:
        batch = ready_batch(self.number, first, records)
        request = ProduceRequest(appends=[Append(topic=TOPIC, partition=self.partition, record_batch=batch)])
        try:
            response = LogStub(connection).Produce(request, timeout=TIMEOUT_S)  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            raise BrokerGone(str(error.code())) from None
        (result,) = response.results
        if result.HasField("error"):
            raise OutcomeNotKnown(result.error.message)
        base_offset: int = result.placements[0].base_offset
        return base_offset


def clients(diary: Diary) -> list[Client]:
    kinds: list[type[Client]] = [ReadyBatches, ReadyBatches, GrpcReadyBatches, JsonUnderKey, PlainJson]
    return [kind(diary, f"{kind.__name__}{number}", 1000 + number, number % 2) for number, kind in enumerate(kinds)]


def read_partition(broker: Ready, partition: int) -> list[tuple[int, RecordId]]:
    """Every record, as the broker serves it over HTTP."""
    records: list[tuple[int, RecordId]] = []
    with closing(http.client.HTTPConnection(broker.http_address, timeout=TIMEOUT_S)) as connection:
        while True:
            offset = records[-1][0] + 1 if records else 0
            path = f"/v1/topics/{TOPIC}/partitions/{partition}/records?offset={offset}&value_format=text"
            answer = ask(connection, "GET", path)
            records += records_in(answer)
            if answer["next_offset"] >= answer["high_watermark"]:
                return records


class Reader:
    """Reads one partition as it grows. Begins again where it was when the broker is back."""

    def __init__(self, diary: Diary, name: str, partition: int) -> None:
        self._diary = diary
        self._name = name
        self._partition = partition
        self._offset = 0

    def run(self, broker: Ready, enough: threading.Event) -> None:
        with closing(http.client.HTTPConnection(broker.http_address, timeout=TIMEOUT_S)) as connection:
            while not enough.is_set():
                path = f"/v1/topics/{TOPIC}/partitions/{self._partition}/records?offset={self._offset}&value_format=text&wait_ms=20"
                try:
                    answer = ask(connection, "GET", path)
                except BrokerGone:
                    return
                except NothingWritten:
                    continue
                where = f"{broker.topic_id}/{self._partition}"
                self._diary.events.append(Fetched(self._name, where, self._offset, records_in(answer), answer["high_watermark"]))
                self._offset = answer["next_offset"]


def records_in(answer: Any) -> tuple[tuple[int, RecordId], ...]:
    return tuple((record["offset"], parse_record_value(record["value"].encode())) for record in answer["records"])


def ask(
    connection: http.client.HTTPConnection, verb: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> Any:
    try:
        connection.request(verb, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
    except (http.client.HTTPException, OSError) as error:
        connection.close()
        raise BrokerGone(type(error).__name__) from None
    answer = json.loads(content)
    if response.status == 200:
        return answer
    if answer["nothing_was_written"] and answer["retryable"]:
        raise NothingWritten(answer["code"])
    if not answer["nothing_was_written"]:
        raise OutcomeNotKnown(answer["code"])
    raise Rejected(answer["code"])


def ready_batch(producer_id: int, first: int, records: Sequence[RecordId]) -> bytes:
    rows = [(None, record_value(record, PADDING), (), TIMESTAMP_MS) for record in records]
    return encode_records(rows, producer_id=producer_id, producer_epoch=0, base_sequence=first)


def as_json(partition: int, records: Sequence[RecordId]) -> bytes:
    rows = [{"value": record_value(record, PADDING).decode(), "partition": partition} for record in records]
    return json.dumps({"records": rows}).encode()
