"""Clients that go through the listeners of any broker, repeat their requests through others, and write down what they are answered.

keyed       POST of several records under one Idempotency-Key, which go to several partitions; repeated with the same key until it
            is acknowledged, and now and then once more later
sequenced   gRPC Produce of several batches of one partition, with a producer id and sequences; repeated with the same sequences
plain       POST of records without idempotence, some too long to share a batch with others; never repeated

A broker whose own view of the topics has a partition may not answer that the partition does not exist. Clients write down where one
does (`denied`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from gateway.proto import log_pb2
from gateway.proto.status import from_status
from metadata.errors import NotAuthorized, NotFound, OutcomeUnknown, TidelogError, Unauthenticated
from metadata.model import Partition, TopicId, TopicPartition
from metadata.topics.topic import Topic
from segments.records.columns import encode_records
from tests.simulation.bucket_reader import record_value
from tests.simulation.history_checker import Acknowledged, AnsweredTogether, Event, RecordId, Refused, Sent, SentTogether, Unknown
from tests.simulation.listener_calls import HttpCall, Metadata
from tests.simulation.routed_broker import RoutedBroker, ended
from tests.simulation.virtual_loop import virtual_loop

T = TypeVar("T")
PRODUCE = "/tidelog.v1.Log/Produce"
JSON_BODY = (b"content-type", b"application/json")
DENIALS = frozenset({Unauthenticated.code, NotAuthorized.code})
# Of a record that fills a batch of a plain request, and more than a broker's share of the buffer where that is small.
LONG_BYTES = 3_000


def authorization(shown: str) -> Metadata:
    """Returns the metadata of a gRPC call that shows this; empty: none."""
    return (("authorization", shown),) if shown else ()


@dataclass(slots=True)
class RouteClients:
    """What the clients of one world share."""

    seed: int
    any_broker: Callable[[random.Random], RoutedBroker]
    # The topic as its owner made it last, which brokers may not have heard of.
    topic: Callable[[str], Topic | None]
    note: Callable[[str], None]
    # What they show in `authorization`: of a principal that may do everything to topics all the time. Empty: nothing.
    shown: str = ""
    # Answers of brokers that refused it.
    turned_away: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    operations: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    producer_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    # No new requests: clients end once everything that they sent is decided.
    finishing: bool = False
    in_a_hurry: int = 0
    deleted: set[TopicId] = field(default_factory=set)
    # Answers that something does not exist, of brokers that knew it themselves.
    denied: list[str] = field(default_factory=list)
    acknowledged: int = 0
    repeats: int = 0
    refused: int = 0
    unknown: int = 0
    # Batches of Kafka producers; those with acks=0 have no answer.
    kafka_acknowledged: int = 0
    kafka_unanswered: int = 0
    kafka_epochs_raised: int = 0
    # Partitions that Kafka readers were sent on to a broker of their rack for.
    kafka_sent_to_rack: int = 0

    def record(self, event: Event) -> None:
        self.events.append(event)
        self.note(repr(event))

    def lives(self, topic: Topic) -> bool:
        return topic.id not in self.deleted

    @property
    def metadata(self) -> Metadata:
        """What they show over gRPC."""
        return authorization(self.shown)

    def judge_denial(self, code: str, broker: RoutedBroker) -> None:
        """Notes a refusal of the credentials that hold all the time."""
        if code in DENIALS:
            self.turned_away.append(f"{broker.name} answered {code} at {virtual_loop().time():.3f} s")

    def refuse(self, operation: int, error: TidelogError) -> None:
        if error.nothing_was_written:
            self.refused += 1
            self.record(Refused(operation, error.code))
        else:
            self.unknown += 1
            self.record(Unknown(operation, error.code))

    def judge_refusal(self, error: TidelogError, broker: RoutedBroker, known: list[TopicPartition]) -> None:
        """`known`: those of the request's partitions that the broker knew when it was asked."""
        self.judge_denial(error.code, broker)
        if isinstance(error, NotFound) and any(map(broker.knows, known)):
            there = next(partition for partition in known if broker.knows(partition))
            if there.topic_id not in self.deleted:
                self.denied.append(f"{broker.name}, which knows {there}, answered {error.code}: {error.message}")


class RouteClient:
    def __init__(self, clients: RouteClients, name: str, topic_name: str) -> None:
        self._clients = clients
        self._name = name
        self._topic_name = topic_name
        self._chance = random.Random(f"{clients.seed}/{name}")
        self._is_done = False
        self._pace_s = self._chance.choice((0.05, 0.15, 0.4))
        self._numbers = itertools.count()

    async def run(self) -> None:
        while not self._clients.finishing and not self._is_done:
            topic = self._clients.topic(self._topic_name)
            if topic is not None and self._clients.lives(topic):
                await self._one(topic)
            await asyncio.sleep(self._chance.expovariate(1 / (0.02 if self._clients.in_a_hurry else self._pace_s)))

    async def _one(self, topic: Topic) -> None:
        raise NotImplementedError

    async def _post(self, broker: RoutedBroker, topic: Topic, query: str, headers: dict[bytes, bytes], body: bytes) -> Any:
        """The answer to a POST of records, as JSON. Raises what the listener tells, and OutcomeUnknown where nothing came."""

        async def serve() -> bytes:
            shown = {b"authorization": self._clients.shown.encode()} if self._clients.shown else {}
            call = HttpCall("POST", query, [JSON_BODY, *(shown | headers).items()], body)
            await broker.post(call, topic.name)
            return call.answer

        return json.loads(await self._ask(broker, serve))

    async def _ask(self, broker: RoutedBroker, serve: Callable[[], Any]) -> Any:
        patience_s = self._chance.choice((0.3, 2.0, 6.0))
        latency_s = self._chance.uniform(0.0005, 0.005)
        return await broker.ask(serve, latency_s=latency_s, timeout_s=patience_s, hang_up=self._chance.random() < 0.5)

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.choice((0.02, 0.1, 0.5)) * self._chance.random())


class _Request(NamedTuple):
    key: str
    topic: Topic
    body: bytes
    records: tuple[RecordId, ...]
    # Those that its records name.
    partitions: list[TopicPartition]
    timeout_ms: int


class KeyedClient(RouteClient):
    """Sends a request under a key until it is acknowledged; `again` sends acknowledged ones once more."""

    def __init__(self, clients: RouteClients, name: str, topic_name: str, *, requests_max: int | None = None) -> None:
        super().__init__(clients, name, topic_name)
        self._settled: list[_Request] = []
        self._requests_max = requests_max

    async def _one(self, topic: Topic) -> None:
        if self._settled and self._chance.random() < 0.3:
            request = self._chance.choice(self._settled)
            if self._clients.lives(request.topic):
                self._clients.repeats += 1
                await self._attempt(request)
            return
        request = self._new_request(topic)
        while self._clients.lives(topic) and not await self._attempted(request):
            await self._pause()
        self._settled.append(request)
        self._is_done = self._requests_max is not None and len(self._settled) >= self._requests_max

    async def _attempted(self, request: _Request) -> bool:
        """Whether it is decided. An impatient client asks a second broker while the first has yet to answer."""
        async with asyncio.TaskGroup() as attempts:
            running = [attempts.create_task(self._attempt(request))]
            if self._chance.random() < 0.3:
                await asyncio.sleep(self._chance.choice((0.0, 0.01, 0.1, 0.3)))
                running.append(attempts.create_task(self._attempt(request)))
        return any(attempt.result() for attempt in running)

    def _new_request(self, topic: Topic) -> _Request:
        key = f"{self._name}-{next(self._numbers)}"
        records = tuple(RecordId(f"{key}/{at}", 0, 1) for at in range(self._chance.randint(1, 4)))
        reported: list[dict[str, object]] = []
        partitions: list[TopicPartition] = []
        for record in records:
            entry: dict[str, object] = {"value": record_value(record).decode()}
            match self._chance.choice(("key", "key", "keyless", "partition")):
                case "key":
                    entry["key"] = f"k{self._chance.randrange(20)}"
                case "partition":
                    number = self._chance.randrange(topic.partition_count)
                    entry["partition"] = number
                    partitions.append(TopicPartition(topic.id, Partition(number)))
            reported.append(entry)
        body = json.dumps({"records": reported}).encode()
        return _Request(key, topic, body, records, partitions, self._chance.choice((500, 2000, 5000)))

    async def _attempt(self, request: _Request) -> bool:
        """Whether it is decided."""
        clients = self._clients
        broker = clients.any_broker(self._chance)
        known = list(request.partitions) if all(map(broker.knows, request.partitions)) else []
        operation = next(clients.operations)
        clients.record(SentTogether(operation, request.topic.name, request.key, request.records))
        headers = {b"idempotency-key": request.key.encode()}
        try:
            answer = await self._post(broker, request.topic, f"timeout_ms={request.timeout_ms}", headers, request.body)
        except TidelogError as error:
            clients.judge_refusal(error, broker, known)
            clients.refuse(operation, error)
            return False
        results = answer["results"]
        positions = [None if "error" in each else (int(each["partition"]), int(each["offset"])) for each in results]
        for each in results:
            clients.judge_denial(each["error"]["code"] if "error" in each else "", broker)
        clients.record(AnsweredTogether(operation, tuple(positions)))
        is_whole = None not in positions
        clients.acknowledged += is_whole
        clients.unknown += not is_whole
        return is_whole


class PlainClient(RouteClient):
    """Sends each request once. After a batch of it was refused, nothing later of the same partition may be written."""

    async def _one(self, topic: Topic) -> None:
        clients, chance = self._clients, self._chance
        number = next(self._numbers)
        partition = TopicPartition(topic.id, Partition(chance.randrange(topic.partition_count)))
        records = tuple(RecordId(f"{self._name}-{number}", at, 1) for at in range(chance.randint(1, 6)))
        padding = [chance.choice((0, LONG_BYTES)) for _ in records]
        reported = [{"value": record_value(*each).decode()} for each in zip(records, padding, strict=True)]
        broker = clients.any_broker(chance)
        known = [partition] if broker.knows(partition) else []
        operation = next(clients.operations)
        clients.record(SentTogether(operation, topic.name, "", records))
        query = f"partition={partition.partition}&timeout_ms={chance.choice((500, 2000, 5000))}"
        try:
            answer = await self._post(broker, topic, query, {}, json.dumps({"records": reported}).encode())
        except TidelogError as error:
            clients.judge_refusal(error, broker, known)
            clients.refuse(operation, error)
            return
        results = answer["results"]
        positions = tuple(None if "error" in result else (int(result["partition"]), int(result["offset"])) for result in results)
        codes = [result["error"]["code"] if "error" in result else "" for result in results]
        for code in codes:
            clients.judge_denial(code, broker)
        refused = tuple(at for at, code in enumerate(codes) if code and code != OutcomeUnknown.code)
        clients.record(AnsweredTogether(operation, positions, refused))


class _Batch(NamedTuple):
    base_sequence: int
    records: list[tuple[str, int]]


class SequencedClient(RouteClient):
    """Several batches of one partition in a message. What is not acknowledged is sent again, with what is behind it, in order."""

    def __init__(self, clients: RouteClients, name: str, topic_name: str) -> None:
        super().__init__(clients, name, topic_name)
        self._topic: Topic | None = None
        self._attempts = itertools.count(1)

    async def _one(self, topic: Topic) -> None:
        """One life of it: another producer id for each partition."""
        chance, clients = self._chance, self._clients
        partition = TopicPartition(topic.id, Partition(chance.randrange(topic.partition_count)))
        producer_id = next(clients.producer_ids)
        name = f"{self._name}-{next(self._numbers)}"
        sequence, window = 0, list[_Batch]()
        until_s = virtual_loop().time() + chance.uniform(0.5, 3.0)
        while clients.lives(topic):
            more = virtual_loop().time() < until_s and not clients.finishing
            while more and len(window) < 3 and chance.random() < 0.7:
                count = chance.randint(1, 3)
                window.append(_Batch(sequence, [(name, sequence + at) for at in range(count)]))
                sequence += count
            if window:
                decided = await self._message(topic, partition, producer_id, window)
                window = [batch for batch in window if batch.base_sequence not in decided]
            elif not more:
                return
            await self._pause()

    async def _message(self, topic: Topic, partition: TopicPartition, producer_id: int, window: list[_Batch]) -> set[int]:
        """The base sequences of the batches that were acknowledged."""
        clients, attempt = self._clients, next(self._attempts)
        broker = clients.any_broker(self._chance)
        known = [partition] if broker.knows(partition) else []
        request = log_pb2.ProduceRequest(acks=log_pb2.ACKS_ALL, timeout_ms=self._chance.choice((500, 2000, 5000)))
        operations = []
        for batch in window:
            records = tuple(RecordId(producer, number, attempt) for producer, number in batch.records)
            contents = [(None, record_value(record), (), virtual_loop().now_ms()) for record in records]
            request.appends.add(
                topic=topic.name,
                topic_id=topic.id,
                partition=partition.partition,
                record_batch=encode_records(contents, producer_id=producer_id, producer_epoch=0, base_sequence=batch.base_sequence),
            )
            operations.append(next(clients.operations))
            clients.record(Sent(operations[-1], str(partition), records, idempotent=True))
        message = request.SerializeToString()
        try:
            end = await self._ask(broker, lambda: ended(broker, PRODUCE, message, clients.metadata, 10.0))
            if end.answer is None:
                clients.judge_denial(end.error.code, broker)
                raise OutcomeUnknown(end.details)
            results = log_pb2.ProduceResponse.FromString(end.answer).results
        except TidelogError as error:
            for operation in operations:
                clients.refuse(operation, error)
            return set()
        decided = set()
        for batch, operation, result in zip(window, operations, results, strict=True):
            if result.HasField("error"):
                reported = from_status(result.error)
                clients.judge_refusal(reported, broker, known)
                clients.refuse(operation, reported)
            else:
                clients.acknowledged += 1
                clients.record(Acknowledged(operation, result.placements[0].base_offset))
                decided.add(batch.base_sequence)
        return decided
