"""A broker of one process and no bucket, for the client's tests: real record batches, Kafka's sequence rules, and faults on demand.

It keeps what it accepted when it is stopped and started again at the same port, as a broker on a bucket does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from gateway.error_codes import wire_codes
from gateway.proto import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc
from gateway.proto.status import DETAILS_TRAILER, to_status
from metadata.errors import (
    FencedLeaderEpoch,
    NoLeader,
    NotAuthorized,
    NotLeader,
    OutOfRange,
    Throttled,
    TidelogError,
    Unavailable,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownTopic,
)
from metadata.model import Offset, ProducerId
from segments.partition.producer_state import ProducerStates, SequencedBatch
from segments.records.batch import check_produced, parse_header, stamp
from segments.records.columns import iterate_records
from segments.records.header import BatchHeader
from tests.kit.servers import free_port

BYTES_MAX = 64 << 20


class BreakStream(Exception):
    """Raised by a fault: the stream ends here, without an answer, or with the error that it is given."""

    def __init__(self, error: TidelogError | None = None) -> None:
        super().__init__()
        self.error = error


@dataclass
class PartitionOfSmallBroker:
    # Stamped with their offsets.
    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    start: int = 0
    producers: ProducerStates = field(default_factory=lambda: ProducerStates(producers_max=1000, expiry_ms=10**12))

    def append(self, batch: bytes, batch_bytes_max: int = 1 << 20) -> int:
        header = check_produced(batch, message_bytes_max=batch_bytes_max, decompressed_bytes_max=BYTES_MAX)
        repeated = self.producers.check(
            producer_id=ProducerId(header.producer_id),
            epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            last_sequence=header.last_sequence,
            now_ms=0,
            high_watermark=self.end,
        )
        if repeated is not None:
            return repeated.base_offset
        base_offset = self.end
        self.batches.append(stamp(batch, base_offset=base_offset, leader_epoch=0) + batch[16:])
        self.end += header.record_count
        taken = SequencedBatch(
            ProducerId(header.producer_id),
            header.producer_epoch,
            header.base_sequence,
            header.last_sequence,
            Offset(base_offset),
            Offset(self.end - 1),
        )
        self.producers.remember(taken, now_ms=0)
        return base_offset

    def values(self) -> list[bytes | None]:
        return [record[3] for batch in self.batches for record in iterate_records(batch, decompressed_bytes_max=BYTES_MAX)]


# Called for each append with topic, partition and the batch; raises what the broker shall answer, or BreakStream.
Fault = Callable[[str, int, BatchHeader], None]


class SmallBroker:
    def __init__(self, name: str = "small") -> None:
        self.name = name
        self.brokers = {name: self}
        self.leaders: dict[tuple[str, int], str] = {}
        """By topic and partition: the broker's name; this one where nothing is said."""
        self.leader_epochs: dict[tuple[str, int], int] = defaultdict(int)
        self.forwards = False
        """It takes what is for others, as a broker does that forwards."""
        self.advertised = ""
        """The gRPC address that the cluster tells of it, where that is not its own."""
        self.running = asyncio.Event()
        """While it is clear, the process hangs: connections stay, and nothing is said on them."""
        self.running.set()
        self.topics: dict[str, admin_pb2.Topic] = {}
        self.topics_made = 0
        self.partitions: dict[tuple[str, int], PartitionOfSmallBroker] = defaultdict(PartitionOfSmallBroker)
        self.before_append: Fault = lambda topic, partition, header: None
        self.after_append: Fault = lambda topic, partition, header: None
        self.answering = asyncio.Event()
        """While it is clear, appends are accepted and not answered."""
        self.answering.set()
        self.led: dict[tuple[str, int], asyncio.Event] = {}
        """By topic and partition: appends wait for it, as at a broker that waits for a leader, or for the end of its takeover."""
        self.bounds_reported = asyncio.Event()
        """While it is clear, GetTopic waits for a leader to tell its offsets, unless who leads is all that is asked."""
        self.bounds_reported.set()
        self.reading = asyncio.Event()
        """While it is clear, nothing more is read from streams: what is sent fills the connection and waits."""
        self.reading.set()
        # Without it, fetches get no answer.
        self.fetching = asyncio.Event()
        self.fetching.set()
        # Topics that the client may neither read nor look up.
        self.denied: set[str] = set()
        # The quota that answers of streams say is overdrawn.
        self.throttled: Throttled | None = None
        self.taking_up = asyncio.Event()
        """While it is clear, the empty request that begins a stream is not answered."""
        self.taking_up.set()
        self.limits = admin_pb2.BrokerLimits()
        """As it tells them. What it holds to: request_bytes_max as gRPC does, and batch_bytes_max of its topics."""
        self.reports_limits = True
        self.metadata_age_ms = 0
        """Since when it has heard nothing of etcd, as it tells it."""
        self.calls_max: int | None = None
        """Calls that may be open at the same time; gRPC refuses the next."""
        self.before_call: Callable[[str], None] = lambda method: None
        """Called for each call but Fetch with its method; raises what the broker shall answer."""
        self.asked_for_topics: list[admin_pb2.GetTopicRequest] = []
        self.requests: list[log_pb2.ProduceRequest] = []
        """With something to append."""
        self.rack = ""
        self.preferred: dict[tuple[str, int], str] = {}
        """By topic and partition: the broker that readers of other racks are sent to."""
        self.fetched_for: list[tuple[str, list[int]]] = []
        """Of each fetch: the rack that it named, and its partitions."""
        self.fetches = 0
        self.fetch_faults: list[Exception] = []
        """What the next fetches meet as a whole."""
        self.read_faults: dict[tuple[str, int], TidelogError] = {}
        """By topic and partition: what every fetch and every question for offsets meets there."""
        self.fetch_refusals: dict[tuple[str, int], TidelogError] = {}
        """The same of fetches alone."""
        self.producer_ids = 0
        self.interceptors: list[grpc.aio.ServerInterceptor] = []
        """Of a test's own, set before it starts."""
        self.services: list[Callable[[grpc.aio.Server], None]] = []
        """Called before it starts, to add services of a test's own."""
        self.port = 0
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Condition()

    def join(self, other: SmallBroker) -> None:
        """Becomes a broker of the other's cluster: what is on the bucket and who leads is the same for both."""
        self.topics, self.partitions, self.leaders, self.brokers = other.topics, other.partitions, other.leaders, other.brokers
        self.leader_epochs = other.leader_epochs
        self.brokers[self.name] = self

    def move(self, topic: str, partition: int, leader: str) -> None:
        """Another broker of the cluster leads it from now on."""
        self.leaders[topic, partition] = leader
        self.leader_epochs[topic, partition] += 1

    def check_leader(self, topic: str, partition: int) -> None:
        leader = self.leaders.get((topic, partition), self.name)
        if leader != self.name and not self.forwards:
            raise NotLeader(f"{leader} leads {topic}/{partition}")

    def check_readable(self, asked: log_pb2.FetchPartition, ids: dict[str, str]) -> None:
        topic, partition = asked.topic, asked.partition
        if topic in self.denied:
            raise NotAuthorized(f"no right to read {topic}")
        if topic not in ids:
            raise UnknownTopic(f"there is no topic {topic}")
        if asked.topic_id and asked.topic_id != ids[topic]:
            raise UnknownTopic(f"topic {topic} was deleted and made again")
        if topic not in self.topics or self.topics[topic].id != ids[topic]:
            raise NoLeader(f"this broker does not lead {topic}/{partition}")
        self.check_leader(topic, partition)
        self.check_epoch(asked)
        if (fault := self.read_faults.get((topic, partition)) or self.fetch_refusals.get((topic, partition))) is not None:
            raise fault

    def check_epoch(self, asked: log_pb2.FetchPartition | log_pb2.OffsetQuery) -> None:
        if asked.HasField("current_leader_epoch"):
            held = self.leader_epochs[asked.topic, asked.partition]
            if asked.current_leader_epoch < held:
                raise FencedLeaderEpoch("another leads by now", leader_epoch=held)
            if asked.current_leader_epoch > held:
                raise UnknownLeaderEpoch("not heard of yet", leader_epoch=held)

    def partition(self, topic: str, partition: int) -> PartitionOfSmallBroker:
        """An empty one where nothing was ever written."""
        return self.partitions.get((topic, partition)) or PartitionOfSmallBroker()

    def create_topic(self, name: str, partition_count: int, **settings: str) -> None:
        self.topics_made += 1
        self.topics[name] = admin_pb2.Topic(
            name=name,
            id=f"{self.topics_made:032x}",
            partition_count=partition_count,
            settings={key.replace("_", "."): value for key, value in settings.items()},
        )

    def delete_topic(self, name: str) -> None:
        for partition in range(self.topics.pop(name).partition_count):
            self.partitions.pop((name, partition), None)

    def batch_bytes_max(self, topic: str) -> int:
        return int(self.topics[topic].settings.get("max.message.bytes", 1 << 20))

    def values(self, topic: str) -> list[bytes | None]:
        """Of all partitions, one after the other."""
        count = self.topics[topic].partition_count
        return [value for partition in range(count) for value in self.partitions[topic, partition].values()]

    @property
    def address(self) -> str:
        return f"grpc://{self.host_port}"

    @property
    def host_port(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        request_bytes_max = self.limits.request_bytes_max or BYTES_MAX
        server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", request_bytes_max)],
            maximum_concurrent_rpcs=self.calls_max,
            interceptors=self.interceptors,
        )
        log_pb2_grpc.add_LogServicer_to_server(_Log(self), server)  # type: ignore[no-untyped-call]
        admin_pb2_grpc.add_TopicsServicer_to_server(_Topics(self), server)  # type: ignore[no-untyped-call]
        admin_pb2_grpc.add_ClusterServicer_to_server(_Cluster(self), server)  # type: ignore[no-untyped-call]
        for add_service in self.services:
            add_service(server)
        self.port = self.port or free_port()  # kept for it, while it is stopped
        server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """At once: what is under way is cut off."""
        assert self._server is not None
        await self._server.stop(grace=None)

    async def appended(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until_longer(self, timeout_s: float) -> None:
        async with self._changed:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return


@asynccontextmanager
async def running(broker: SmallBroker) -> AsyncIterator[SmallBroker]:
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def _abort(context: Any, error: TidelogError) -> None:
    await context.abort(wire_codes(error).grpc, error.message, ((DETAILS_TRAILER, to_status(error).SerializeToString()),))


async def _refuse(broker: SmallBroker, method: str, context: Any) -> None:
    await broker.running.wait()
    try:
        broker.before_call(method)
    except TidelogError as error:
        await _abort(context, error)


class _Log(log_pb2_grpc.LogServicer):
    def __init__(self, broker: SmallBroker) -> None:
        self._broker = broker

    async def InitProducer(self, request: Any, context: Any) -> Any:  # noqa: N802
        await _refuse(self._broker, "InitProducer", context)
        self._broker.producer_ids += 1
        return log_pb2.InitProducerResponse(producer_id=self._broker.producer_ids, producer_epoch=0)

    async def ProduceStream(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await _refuse(self._broker, "ProduceStream", context)
        async for request in requests:
            await self._broker.running.wait()
            if not request.appends:
                await self._broker.taking_up.wait()
                yield log_pb2.ProduceResponse(correlation_id=request.correlation_id)
                await self._broker.reading.wait()
                continue
            self._broker.requests.append(request)
            for append in request.appends:
                if (led := self._broker.led.get((append.topic, append.partition))) is not None:
                    await led.wait()
            try:
                results = [self._append(append) for append in request.appends]
            except BreakStream as broken:
                await self._broker.appended()
                if broken.error is not None:
                    await _abort(context, broken.error)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken on purpose")
            await self._broker.appended()
            await self._broker.answering.wait()
            await self._broker.running.wait()
            throttled = to_status(self._broker.throttled) if self._broker.throttled is not None else None
            yield log_pb2.ProduceResponse(correlation_id=request.correlation_id, results=results, throttled=throttled)
            await self._broker.reading.wait()

    def _append(self, append: log_pb2.Append) -> log_pb2.AppendResult:
        broker, header = self._broker, parse_header(append.record_batch)
        try:
            if append.topic not in broker.topics:
                raise UnknownTopic(f"there is no topic {append.topic}")
            if append.topic_id and append.topic_id != broker.topics[append.topic].id:
                new_topic_id = broker.topics[append.topic].id
                raise UnknownTopic("another topic", topic_id=append.topic_id, new_topic_id=new_topic_id)
            if append.partition >= broker.topics[append.topic].partition_count:
                raise UnknownPartition(f"there is no partition {append.partition}")
            broker.check_leader(append.topic, append.partition)
            broker.before_append(append.topic, append.partition, header)
            base_offset = broker.partitions[append.topic, append.partition].append(
                append.record_batch, broker.batch_bytes_max(append.topic)
            )
            broker.after_append(append.topic, append.partition, header)
        except TidelogError as error:
            return log_pb2.AppendResult(error=to_status(error))
        placement = log_pb2.Placement(
            partition=append.partition,
            base_offset=base_offset,
            count=header.record_count,
            leader_epoch=broker.leader_epochs[append.topic, append.partition],
        )
        return log_pb2.AppendResult(placements=[placement])

    async def Fetch(self, request: Any, context: Any) -> Any:  # noqa: N802
        broker = self._broker
        broker.fetches += 1
        broker.fetched_for.append((request.client_rack, [asked.partition for asked in request.partitions]))
        await broker.running.wait()
        await broker.fetching.wait()
        if broker.fetch_faults:
            fault = broker.fetch_faults.pop(0)
            if isinstance(fault, TidelogError):
                await _abort(context, fault)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken on purpose")
        ids = {name: topic.id for name, topic in broker.topics.items()}
        answer = self._fetch(request, ids)
        is_reported = any(found.HasField("error") or found.HasField("preferred_broker") for found in answer.partitions)
        if not is_reported and not any(found.record_batches for found in answer.partitions):
            await broker.until_longer(request.max_wait_ms / 1000)
            await broker.running.wait()
            answer = self._fetch(request, ids)
        return answer

    def _fetch(self, request: log_pb2.FetchRequest, ids: dict[str, str]) -> log_pb2.FetchResponse:
        """`ids`: of the topics, when the request came."""
        answer, room = log_pb2.FetchResponse(), request.max_bytes
        for asked in request.partitions:
            held = self._broker.partition(asked.topic, asked.partition)
            found = answer.partitions.add(
                topic=asked.topic,
                partition=asked.partition,
                high_watermark=held.end,
                log_start_offset=held.start,
                next_offset=asked.offset,
                leader_epoch=self._broker.leader_epochs[asked.topic, asked.partition],
            )
            try:
                self._broker.check_readable(asked, ids)
            except TidelogError as error:
                found.error.CopyFrom(to_status(error))
                continue
            if not held.start <= asked.offset <= held.end:
                gone = OutOfRange(f"offset {asked.offset} is gone", log_start_offset=held.start, high_watermark=held.end)
                found.error.CopyFrom(to_status(gone))
                continue
            preferred = self._broker.preferred.get((asked.topic, asked.partition))
            if preferred and request.client_rack not in {"", self._broker.rack}:
                found.preferred_broker.broker_id = preferred
                found.preferred_broker.grpc_address = self._broker.brokers[preferred].host_port
                continue
            for batch in held.batches:
                header = parse_header(batch)
                if header.last_offset >= asked.offset and (room >= len(batch) or room == request.max_bytes):
                    found.record_batches += batch
                    found.next_offset = header.last_offset + 1
                    room -= len(batch)
                elif header.last_offset >= asked.offset:
                    break
        return answer

    async def ListOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        await _refuse(self._broker, "ListOffsets", context)
        return log_pb2.ListOffsetsResponse(results=[self._offset(query) for query in request.queries])

    def _offset(self, query: log_pb2.OffsetQuery) -> log_pb2.OffsetResult:
        broker, held = self._broker, self._broker.partition(query.topic, query.partition)
        if (fault := broker.read_faults.get((query.topic, query.partition))) is not None:
            return log_pb2.OffsetResult(error=to_status(fault))
        try:
            if query.partition >= broker.topics[query.topic].partition_count:
                raise UnknownPartition(f"there is no partition {query.partition}")
            broker.check_epoch(query)
        except TidelogError as error:
            return log_pb2.OffsetResult(error=to_status(error))
        leader_epoch = broker.leader_epochs[query.topic, query.partition]
        if query.HasField("timestamp_ms"):
            rows = [row for batch in held.batches for row in iterate_records(batch, decompressed_bytes_max=BYTES_MAX)]
            found = next((row[0] for row in rows if row[1] >= query.timestamp_ms), -1)
        else:
            found = held.start if query.HasField("earliest") else held.end
        return log_pb2.OffsetResult(offset=found, leader_epoch=leader_epoch)


class _Topics(admin_pb2_grpc.TopicsServicer):
    def __init__(self, broker: SmallBroker) -> None:
        self._broker = broker

    async def GetTopic(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._broker.asked_for_topics.append(request)
        await _refuse(self._broker, "GetTopic", context)
        if not request.leaders_only:
            await self._broker.bounds_reported.wait()
        topic = self._broker.topics.get(request.name)
        if request.name in self._broker.denied:
            await _abort(context, NotAuthorized(f"no right to describe {request.name}"))
        if topic is None:
            await _abort(context, UnknownTopic(f"there is no topic {request.name}"))
        assert topic is not None
        answer = admin_pb2.Topic()
        answer.CopyFrom(topic)
        if self._broker.reports_limits:
            answer.batch_bytes_max = self._broker.batch_bytes_max(topic.name)
        for partition in range(topic.partition_count):
            leader = self._broker.leaders.get((topic.name, partition), self._broker.name)
            end = self._broker.partitions[topic.name, partition].end
            epoch = self._broker.leader_epochs[topic.name, partition]
            answer.partitions.add(partition=partition, leader=leader, leader_epoch=epoch, high_watermark=end)
        return answer

    async def ListTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        await _refuse(self._broker, "ListTopics", context)
        return admin_pb2.ListTopicsResponse(topics=self._broker.topics.values())

    async def CreateTopic(self, request: Any, context: Any) -> Any:  # noqa: N802
        await _refuse(self._broker, "CreateTopic", context)
        await _abort(context, Unavailable("this broker creates no topics"))


class _Cluster(admin_pb2_grpc.ClusterServicer):
    def __init__(self, broker: SmallBroker) -> None:
        self._broker = broker

    async def GetCluster(self, request: Any, context: Any) -> Any:  # noqa: N802
        await _refuse(self._broker, "GetCluster", context)
        brokers = [
            admin_pb2.Broker(
                broker_id=name,
                grpc_address=broker.advertised or broker.host_port,
                limits=broker.limits if broker.reports_limits else None,
            )
            for name, broker in self._broker.brokers.items()
        ]
        return admin_pb2.ClusterDescription(
            cluster_id="c", version="0", bucket="memory://", brokers=brokers, metadata_age_ms=self._broker.metadata_age_ms
        )
