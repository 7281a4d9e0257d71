"""Readers that stream a whole topic through any broker, over gRPC or HTTP, and go on elsewhere when their stream ends.

    gRPC    Consume, without a group; begins again where it stood in each partition
    HTTP    server-sent events over all partitions; begins again with the id of the last event

A stream that reports that a partition does not exist, though the topic has it, has given it up.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence

from gateway.proto import log_pb2
from gateway.proto.status import from_status
from metadata.errors import NotFound, TidelogError, UnknownPartition, UnknownTopic
from metadata.topics.topic import Topic
from segments.records.batch import split_batches
from tests.simulation.bucket_reader import parse_record_value, records_of
from tests.simulation.history_checker import Fetched, GaveUp, RecordId
from tests.simulation.listener_calls import HttpCall, streamed
from tests.simulation.route_clients import RouteClients, authorization
from tests.simulation.routed_broker import RoutedBroker

CONSUME = "/tidelog.v1.Log/Consume"
EVENTS = (b"accept", b"text/event-stream")
CREDIT_BYTES = 1 << 30
# Longer than a world has trouble.
LIFE_S = 100.0
NOT_THERE = frozenset({UnknownTopic.code, UnknownPartition.code})


class RouteStream:
    def __init__(self, clients: RouteClients, name: str, topic_name: str) -> None:
        self._clients = clients
        self.name = name
        self._topic_name = topic_name
        self._chance = random.Random(f"{clients.seed}/{name}")
        self.positions: dict[int, int] = {}
        """Where to read on, by partition."""
        self.begun = 0
        """Streams that were opened."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            topic = self._clients.topic(self._topic_name)
            if topic is not None:
                broker = self._clients.any_broker(self._chance)
                self.begun += 1
                try:
                    await self._stream(broker, topic)
                except TidelogError as error:
                    self._clients.note(f"{self.name} was answered {error.code} by {broker.name}")
                    self._refused(error, broker)
            await asyncio.sleep(self._chance.choice((0.02, 0.2, 1.0)))

    async def _stream(self, broker: RoutedBroker, topic: Topic) -> None:
        raise NotImplementedError

    @property
    def _shown(self) -> str:
        return self._clients.shown

    def _refused(self, error: TidelogError, broker: RoutedBroker) -> None:
        """Judges the end of a stream."""
        self._clients.judge_denial(error.code, broker)

    async def _ask(self, broker: RoutedBroker, serve: Callable[[], Awaitable[None]]) -> None:
        await broker.ask(serve, latency_s=0.002, timeout_s=LIFE_S, hang_up=True)

    def _deliver(self, topic: Topic, partition: int, records: Sequence[tuple[int, RecordId]]) -> None:
        position = self.positions.get(partition, 0)
        new = tuple(record for record in records if record[0] >= position)
        if new:
            self.positions[partition] = new[-1][0] + 1
            reported = Fetched(self.name, f"{topic.id}/{partition}", position, new, self.positions[partition])
            self._clients.record(reported)

    def _failed(self, topic: Topic, partition: int, code: str, message: str) -> None:
        """The stream reported that it reads the partition no more."""
        self._clients.note(f"{self.name} got {code} for {topic.name}/{partition}")
        if code in NOT_THERE and topic.id not in self._clients.deleted:
            self._clients.record(GaveUp(self.name, f"{topic.id}/{partition}", f"{code}: {message}"))


class ConsumeStream(RouteStream):
    async def _stream(self, broker: RoutedBroker, topic: Topic) -> None:
        starts = [
            log_pb2.ConsumeFrom(topic=topic.name, partition=number, offset=offset, topic_id=topic.id)
            for number, offset in self.positions.items()
            if _knows(broker, topic, number)
        ]
        start = log_pb2.ConsumeStart(
            topics=[topic.name],
            starts=starts,
            auto_offset_reset=log_pb2.AUTO_OFFSET_RESET_EARLIEST,
            heartbeat_interval_ms=500,
        )
        first = log_pb2.ConsumeRequest(start=start, credit_bytes=CREDIT_BYTES)
        messages = [first.SerializeToString()]

        async def read() -> object:
            if messages:
                return messages.pop()
            return await asyncio.get_running_loop().create_future()

        async def write(message: bytes) -> None:
            await asyncio.sleep(0.001)
            if broker.alive and not broker.unreachable:
                self._take(topic, log_pb2.ConsumeResponse.FromString(message))

        async def serve() -> None:
            end = await streamed(broker.methods[CONSUME], read, write, authorization(self._shown))
            if end.bug is not None:
                broker.ended_by(end.bug)
            if end.answer is None:
                raise end.error

        await self._ask(broker, serve)

    def _take(self, topic: Topic, response: log_pb2.ConsumeResponse) -> None:
        for partition in response.data.partitions:
            if partition.HasField("error"):
                error = from_status(partition.error)
                self._failed(topic, partition.partition, error.code, error.message)
            else:
                self._deliver(topic, partition.partition, records_of(split_batches(memoryview(partition.record_batches))))


class EventStream(RouteStream):
    def __init__(self, clients: RouteClients, name: str, topic_name: str) -> None:
        super().__init__(clients, name, topic_name)
        self._last_id = b""
        self._rest = b""

    async def _stream(self, broker: RoutedBroker, topic: Topic) -> None:
        headers = [EVENTS]
        if self._last_id:
            headers.append((b"last-event-id", self._last_id))
        self._rest = b""

        def sink(piece: bytes) -> None:
            if broker.alive and not broker.unreachable:
                *events, self._rest = (self._rest + piece).split(b"\n\n")
                for event in events:
                    self._take(topic, event)

        async def serve() -> None:
            shown = [(b"authorization", self._shown.encode())] if self._shown else []
            call = HttpCall("GET", "", [*headers, *shown], sink=sink)
            await broker.read_topic(call, topic.name)

        knew_all = all(_knows(broker, topic, number) for number in range(topic.partition_count))
        try:
            await self._ask(broker, serve)
        except NotFound as error:
            if knew_all:
                self._failed(topic, 0, error.code, error.message)
            raise

    def _take(self, topic: Topic, event: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and not line.startswith(b":"))
        if b"id" in fields:
            self._last_id = fields[b"id"]
        if b"data" not in fields:
            return
        data = json.loads(fields[b"data"])
        if fields.get(b"event") == b"error":
            self._failed(topic, 0, str(data["code"]), str(data.get("detail", data)))
            return
        self._deliver(topic, int(data["partition"]), [(int(data["offset"]), parse_record_value(str(data["value"]).encode()))])


def _knows(broker: RoutedBroker, topic: Topic, number: int) -> bool:
    try:
        return number < broker.view.topics.by_id(topic.id).partition_count
    except TidelogError:
        return False
