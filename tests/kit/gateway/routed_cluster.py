"""Brokers of one cluster under virtual time, with the handlers of their listeners and no socket; their views lag by choice.

A client calls `http` or `produce`; what one broker forwards to another passes through the messages and statuses of the wire.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import Message

from gateway.api import BrokerApi as ServedBroker
from gateway.cluster.identity import identify_cluster
from gateway.cluster.session_manager import SessionManager
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.view import ClusterView
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.calls import Context
from gateway.grpc.produce.open_streams import ProducerStreams
from gateway.grpc.services.log import GrpcLogService
from gateway.http.records.produce import HttpProduce
from gateway.http.request import Request
from gateway.proto import log_pb2
from gateway.proto.status import from_status, to_status
from gateway.records.response_budget import ResponseBudget
from gateway.routing.cluster_log import ClusterLog
from gateway.routing.forwarder import ProduceForwarder
from gateway.routing.local_log import LocalLog
from gateway.routing.peer_channels import FORWARDED_BY, PeerChannels
from gateway.routing.peer_reader import PeerReader
from gateway.settings import GatewaySettings
from gateway.telemetry.registry import MetricsRegistry
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import OutcomeUnknown, TidelogError
from metadata.model import Partition, Revision, SessionId, TopicPartition
from metadata.store.interface import MetadataStore, WatchBatch
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.read.log_reader import FetchResult
from segments.settings import SegmentSettings
from tests.kit.segments.batches import TIMESTAMP_MS, records_in
from tests.simulation.virtual_loop import run

LAYOUT = KeyLayout()
READY_S = 60.0
SETTINGS = GatewaySettings()
SEGMENTS = SegmentSettings(linger_ms=0)


class HeldMetadata:
    """The store as one broker reaches it. While `topics` is cleared its watch of the topics tells nothing."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.topics = asyncio.Event()
        self.topics.set()
        self.topics_read = 0
        self.why_silent: TidelogError | None = None
        """Raised by each `get` of a topic, where it is set."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> Any:
        self.topics_read += key.startswith(LAYOUT.topics)
        if self.why_silent is not None and key.startswith(LAYOUT.topics):
            raise self.why_silent
        return await self._store.get(key)

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        async for batch in self._store.watch(prefix, from_revision):
            if prefix == LAYOUT.topics:
                await self.topics.wait()
            yield batch


class Broker:
    """Stands for the broker of gateway/broker/broker.py: it has the parts that the listeners call."""

    def __init__(self, cluster: Cluster, broker_id: str) -> None:
        self.broker_id = broker_id
        self.metadata = HeldMetadata(cluster.metadata)
        self.settings = SETTINGS
        self.metrics = MetricsRegistry()
        self.tracing = None
        self.bucket_trouble = None
        self.guard = None
        metadata = cast(MetadataStore, self.metadata)
        self.view = ClusterView(metadata, LAYOUT)
        self.topic_cache = self.view.topics
        self.leadership = SessionManager(
            HealthTrackingObjectStore(cluster.bucket),
            metadata,
            self.view,
            SEGMENTS,
            ClusterSettings(session_timeout_ms=3000, drain_timeout_ms=2000),
            layout=LAYOUT,
            registration=BrokerRegistration(broker_id=broker_id, session=SessionId(0)),
            new_writer=lambda: next(cluster.writers).to_bytes(16, "big"),
            now_ms=lambda: TIMESTAMP_MS,
        )
        self.peers = InProcessPeers(cluster, broker_id)
        peers = cast(PeerChannels, self.peers)
        self.forwarding = ProduceForwarder(
            lambda: self.leadership.log,
            self.view,
            peers,
            broker_id=broker_id,
            budget=self.leadership.budget,
            is_stopping=lambda: False,
        )
        self.leadership.subscribe(self.forwarding.on_takeover)
        self.local_log = LocalLog(lambda: self.leadership.log, self.view, self.leadership.await_takeover)
        self.cluster_log = ClusterLog(
            self.local_log,
            self.view,
            self.forwarding,
            PeerReader(peers),
            broker_id=broker_id,
            settings=SEGMENTS,
            budget=self.leadership.budget,
            leader_wait_s=10.0,
        )
        served, waits = cast(ServedBroker, self), InterruptibleWaits()
        self.service = GrpcLogService(served, waits, ProducerStreams())
        self._http = HttpProduce(served, ResponseBudget(SETTINGS, waits))

    def is_proven(self, partition: TopicPartition) -> bool:
        """Returns whether this broker leads the partition and takes keyed requests for it."""
        log = self.leadership.log
        led = log.partitions.get(partition)
        return led is not None and log.routing.is_proven(partition, led.log.leader_epoch)

    def hear_no_topics(self) -> None:
        self.metadata.topics.clear()

    def hear_topics(self) -> None:
        self.metadata.topics.set()

    async def http(self, records: Sequence[object], *, key: str | None = None, topic: str = "orders", query: str = "") -> Any:
        """The answer to POST /v1/topics/{topic}/records. Raises what the listener would answer with as an error."""
        keys = [] if key is None else [key]
        return await self.http_with_headers(records, [(b"idempotency-key", each.encode()) for each in keys], topic, query)

    async def http_with_headers(
        self, records: Sequence[object], headers: list[tuple[bytes, bytes]], topic: str = "orders", query: str = ""
    ) -> Any:
        body = json.dumps({"records": records}).encode()
        given = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0) if messages else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"method": "POST", "headers": given, "query_string": query.encode()}
        await self._http.produce(Request(scope, receive, send), topic)
        return json.loads(b"".join(message.get("body", b"") for message in sent))["results"]

    async def produce(self, *appends: log_pb2.Append, forwarded_by: str = "", timeout_ms: int = 5000) -> list[Any]:
        """The offset of each append, or its error, as a gRPC client is answered."""
        request = log_pb2.ProduceRequest(appends=appends, timeout_ms=timeout_ms)
        answer = await self.answer("/tidelog.v1.Log/Produce", request, forwarded_by)
        return [_outcome(result) for result in log_pb2.ProduceResponse.FromString(answer).results]

    async def answer(self, method: str, request: Message, forwarded_by: str) -> bytes:
        if method.endswith("/Produce"):
            return await self.service._produce.produce(cast(Context, _Call(request.SerializeToString(), forwarded_by)))
        assert method.endswith("/FindWrittenOnce"), f"{method} is not called here"
        return (await self.service.find_written_once(cast(log_pb2.FindWrittenOnceRequest, request))).SerializeToString()


def _outcome(result: log_pb2.AppendResult) -> int | TidelogError:
    if result.HasField("error"):
        return from_status(result.error)
    [placement] = result.placements
    return from_status(placement.error) if placement.HasField("error") else placement.base_offset


class _Call:
    """A unary gRPC call, as the handler meets it."""

    def __init__(self, message: bytes, forwarded_by: str) -> None:
        self._message = message
        self._metadata = ((FORWARDED_BY, forwarded_by),) if forwarded_by else ()

    async def read(self) -> bytes:
        return self._message

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


class InProcessPeers:
    """The other brokers as one of them calls them. `before` is called with each method and may wait, or fail the call."""

    def __init__(self, cluster: Cluster, broker_id: str) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self.called: list[str] = []
        self.before: Callable[[str], Awaitable[None]] = _at_once
        self.answered: Callable[[str], Awaitable[None]] = _at_once
        """Called before an answer comes back."""

    async def call(
        self, peer: BrokerRegistration, method: str, request: Message, answer_type: Any, *, timeout_s: float, **_: object
    ) -> Any:
        self.called.append(method)
        [broker] = [broker for broker in self._cluster.brokers if broker.broker_id == peer.broker_id]
        try:
            async with asyncio.timeout(timeout_s):
                await self.before(method)
                answer = await broker.answer(method, request, self._broker_id)
                await self.answered(method)
        except TimeoutError:
            raise OutcomeUnknown("no answer in time") from None
        except TidelogError as error:
            raise from_status(to_status(error)) from None
        return answer_type.FromString(answer)

    async def drop_others(self, _: object) -> None: ...

    async def close(self) -> None: ...


async def _at_once(_: str) -> None: ...


class Cluster:
    def __init__(self, metadata: SqliteStore) -> None:
        self.metadata = metadata
        self.bucket = MemoryObjectStore()
        self.writers = iter(range(1, 1_000_000))
        self.brokers: list[Broker] = []
        self._running: dict[Broker, list[asyncio.Task[None]]] = {}

    @property
    def topics(self) -> TopicRegistry:
        return TopicRegistry(self.metadata, LAYOUT)

    async def create(self, name: str = "orders", partition_count: int = 4) -> Topic:
        return await self.served(await self.topics.create(name, partition_count))

    async def grow(self, name: str, partition_count: int) -> Topic:
        """Returns when all brokers that hear of topics know it, and lead the partitions."""
        return await self.served(await self.topics.alter(name, partition_count=partition_count))

    async def served(self, topic: Topic) -> Topic:
        for broker in self.brokers:
            if broker.metadata.topics.is_set():
                await broker.topic_cache.wait_for(topic.revision, timeout_s=READY_S)
        await until(lambda: all(self._is_served(TopicPartition(topic.id, Partition(p))) for p in range(topic.partition_count)))
        return topic

    def _is_served(self, partition: TopicPartition) -> bool:
        leader = self.brokers[0].view.leader(partition)
        if leader is None or any(broker.view.leader(partition) != leader for broker in self.brokers):
            return False
        broker = self.named(leader.broker_id)
        is_heard = broker.metadata.topics.is_set()
        return not is_heard or broker.is_proven(partition)

    def named(self, broker_id: str) -> Broker:
        [broker] = [broker for broker in self.brokers if broker.broker_id == broker_id]
        return broker

    def leader(self, partition: TopicPartition) -> Broker:
        leader = self.brokers[0].view.leader(partition)
        assert leader is not None, f"{partition} has no leader"
        return self.named(leader.broker_id)

    def led_by(self, broker: Broker, topic: Topic) -> list[int]:
        """Which partitions of the topic the broker leads."""
        return [p for p in range(topic.partition_count) if self.leader(TopicPartition(topic.id, Partition(p))) is broker]

    async def values(self, topic: Topic) -> list[tuple[int, bytes | None]]:
        """All records, with their partitions."""
        found = []
        for number in range(topic.partition_count):
            partition = TopicPartition(topic.id, Partition(number))
            target = FetchTarget(partition, 0, 1 << 24)
            [fetched] = await self.leader(partition).leadership.log.reads.fetch([target], bytes_max=1 << 24, bytes_min=0)
            assert isinstance(fetched, FetchResult), fetched
            found += [(number, value) for _, value in records_in(fetched.batches)]
        return found

    async def start(self, broker_id: str) -> Broker:
        broker = Broker(self, broker_id)
        self.brokers.append(broker)
        self._running[broker] = [
            asyncio.ensure_future(broker.view.run()),
            asyncio.ensure_future(broker.forwarding.run()),
            asyncio.ensure_future(broker.leadership.run()),
        ]
        await broker.view.read(timeout_s=READY_S)
        await broker.leadership.first_session(READY_S)
        return broker

    async def stop(self, broker: Broker) -> None:
        """Stops in order: what it leads is handed over."""
        broker.leadership.stop()
        await asyncio.wait((self._running[broker][-1],))
        self.brokers.remove(broker)
        await self._end(broker)

    async def _end(self, broker: Broker) -> None:
        tasks = self._running.pop(broker)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def end(self) -> None:
        for broker in list(self._running):
            await self._end(broker)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(READY_S):
        while not holds():  # noqa: ASYNC110  # no event shows it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def routed_cluster(brokers: int = 2) -> AsyncIterator[Cluster]:
    metadata = SqliteStore(Path(":memory:"))
    cluster = Cluster(metadata)
    await identify_cluster(cluster.bucket, metadata, LAYOUT, new_id="the-cluster-under-test", now_ms=TIMESTAMP_MS)
    housekeeping = asyncio.ensure_future(metadata.run())
    try:
        for number in range(brokers):
            await cluster.start(f"broker-{number}")
        await until(lambda: all(len(broker.view.brokers.brokers) == brokers for broker in cluster.brokers))
        yield cluster
    finally:
        await cluster.end()
        housekeeping.cancel()
        await asyncio.wait((housekeeping,))
        await metadata.close()


def with_routed_cluster(scenario: Callable[[Cluster], Awaitable[None]], *, brokers: int = 2) -> None:
    async def main() -> None:
        async with routed_cluster(brokers) as cluster:
            await scenario(cluster)

    run(main())
