"""Kafka clients of a world of routes: what producers and consumers share, and a producer.

    Metadata, at any broker ─▶ leaders ─▶ a connection to each ─▶ Produce, up to five at a time
         ▲                                                          │
         └──── 3, 6, 7, 56, a lost connection: the same batch again, with the same sequence ◀┘

A producer with acks=all is idempotent. With acks=1 and acks=0 it has neither an id nor sequences: a repeat is a batch of its own.

They do what Java's clients and librdkafka do. A client of the listener `direct` connects to the leaders that Metadata names, and
takes no leader with an older epoch than it knows. A client of `balanced` has one address for all brokers, and connects to any.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gateway.kafka.errors import ErrorCode
from gateway.kafka.listener_config import ListenerConfig, Route
from gateway.kafka.protocol.admin_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from gateway.kafka.protocol.client_messages import InitProducerIdRequest
from gateway.kafka.protocol.hot_messages import (
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from metadata.errors import TidelogError, Unavailable
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from segments.records.batch import NO_PRODUCER_ID
from segments.records.columns import encode_records
from tests.simulation.bucket_reader import record_value
from tests.simulation.history_checker import Acknowledged, RecordId, Refused, Sent, Unknown
from tests.simulation.kafka_line import Asked, KafkaLine
from tests.simulation.route_clients import RouteClient, RouteClients
from tests.simulation.routed_broker import KAFKA_LISTENERS, RoutedBroker
from tests.simulation.virtual_loop import virtual_loop

# Codes after which clients send the same batch again: nothing of it was written.
SENT_AGAIN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
# Of a batch behind one that is not in the log. Clients send it again once those before it are acknowledged, in the same epoch, or
# begin again with sequence 0 in the next one: Java's after UNKNOWN_PRODUCER_ID, librdkafka for any gap.
OUT_OF_ORDER: Final = frozenset({45, 59})
# DUPLICATE_SEQUENCE_NUMBER, of a batch that is in the log. Clients take it for an acknowledgement without an offset.
ALREADY_WRITTEN: Final = 46
NOT_THERE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
ALL, LEADER, NONE = -1, 1, 0
# max.in.flight.requests.per.connection
IN_FLIGHT_MAX: Final = 5
# Of a batch of a producer that raises its epoch, at most, in place of delivery.timeout.ms.
ATTEMPTS_MAX: Final = 3
# The node of a client that has one address for all brokers.
ANY_NODE: Final = -1
METADATA_VERSION: Final = 12
PRODUCE_VERSIONS: Final = (9, 12, 13)
# From here on Produce names topics by their ids.
PRODUCE_BY_ID: Final = 13


class KnownLeader(NamedTuple):
    node_id: int
    leader_epoch: int


class KafkaClient:
    """The metadata and the connections of one client that uses one topic."""

    def __init__(
        self,
        clients: RouteClients,
        at_address: Callable[[str], RoutedBroker | None],
        name: str,
        topic_name: str,
        chance: random.Random,
    ) -> None:
        self._clients = clients
        self._at_address = at_address
        self._name = name
        self._topic_name = topic_name
        self._chance = chance
        self._listener: ListenerConfig = chance.choice(KAFKA_LISTENERS)
        # request.timeout.ms
        self.timeout_s = chance.choice((1.0, 3.0, 6.0))
        self._nodes: dict[int, str] = {}
        self._lines: dict[int, KafkaLine] = {}
        self._opening = asyncio.Lock()
        self.topic_id = ""
        self.leaders: dict[int, KnownLeader] = {}
        # Whether the metadata have to be read again before anything else is sent.
        self.is_stale = True

    def node_of(self, partition: int) -> int:
        """Returns the node to which requests for the partition go."""
        return ANY_NODE if self._listener.route is Route.FORWARD else self.leaders[partition].node_id

    async def refresh(self) -> None:
        """Reads the metadata at a broker that it is connected to, or at any. Raises TidelogError."""
        open_lines = [line for line in self._lines.values() if line.broken is None]
        line = self._chance.choice(open_lines) if open_lines else await self.line_to(ANY_NODE)
        topics = [MetadataRequestTopic(name=self._topic_name)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = await line.ask("Metadata", METADATA_VERSION, request, timeout_s=self.timeout_s)
        self._nodes |= {node.node_id: node.host for node in answer.brokers}
        [topic] = answer.topics
        if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self.turned_away(line)
        if topic.error_code:
            raise Unavailable(f"{line.host.name} answered {topic.error_code} for {self._topic_name}")
        if topic.topic_id.hex() != self.topic_id:
            self.topic_id = topic.topic_id.hex()
            self.leaders = {}
        for each in topic.partitions:
            self.learn_leader(each.partition_index, KnownLeader(each.leader_id, each.leader_epoch))
        self.is_stale = False

    def learn_leader(self, partition: int, leader: KnownLeader) -> None:
        """Notes a leader, unless one of a later epoch is known."""
        known = self.leaders.get(partition)
        if leader.node_id >= 0 and (known is None or leader.leader_epoch >= known.leader_epoch):
            self.leaders[partition] = leader

    def learn_node(self, node_id: int, host: str) -> None:
        self._nodes[node_id] = host

    async def line_to(self, node_id: int) -> KafkaLine:
        """Returns a connection to a node; ANY_NODE: to any broker. Raises TidelogError where none can be opened."""
        async with self._opening:
            line = self._lines.get(node_id)
            if line is not None and line.broken is None:
                return line
            host = self._clients.any_broker(self._chance) if node_id == ANY_NODE else self._at_address(self._nodes.get(node_id, ""))
            latency_s = self._chance.uniform(0.0005, 0.005)
            await asyncio.sleep(latency_s)
            if host is None or not host.takes_connections:
                raise Unavailable(f"node {node_id} takes no connection")
            line = KafkaLine(host, self._listener, client_id=self._name, latency_s=latency_s)
            if self._clients.shown:
                await self._authenticate(line)
            self._lines[node_id] = line
            return line

    async def _authenticate(self, line: KafkaLine) -> None:
        """By SASL PLAIN, with the API key of the clients."""
        key = self._clients.shown.removeprefix("Bearer ").encode()
        await line.ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="PLAIN"), timeout_s=self.timeout_s)
        request = SaslAuthenticateRequest(auth_bytes=b"\0steady\0" + key)
        answer = await line.ask("SaslAuthenticate", 2, request, timeout_s=self.timeout_s)
        if answer.error_code:
            self.turned_away(line)
            raise Unavailable(f"{line.host.name} does not accept the key")

    async def producer_id(self) -> int:
        """InitProducerId, at any broker. Raises TidelogError."""
        line = await self.line_to(ANY_NODE)
        answer = await line.ask("InitProducerId", 4, InitProducerIdRequest(transactional_id=None), timeout_s=self.timeout_s)
        if answer.error_code:
            raise Unavailable(f"{line.host.name} answered {answer.error_code} to InitProducerId")
        found: int = answer.producer_id
        return found

    def turned_away(self, line: KafkaLine) -> None:
        """Notes a refusal of the key that holds all the time."""
        self._clients.turned_away.append(f"{line.host.name} refused a Kafka client at {virtual_loop().time():.3f} s")

    def close(self) -> None:
        for line in self._lines.values():
            line.close_by_client("the client has ended")


@dataclass(eq=False, slots=True)
class _Batch:
    base_sequence: int
    count: int
    attempts: int = 0
    in_flight: bool = False
    again_s: float = 0.0


@dataclass(eq=False, slots=True)
class _Queue:
    """The batches of one partition that are not acknowledged, in order."""

    next_sequence: int = 0
    batches: list[_Batch] = field(default_factory=list)
    epoch: int = 0
    # The epoch is raised once no batch is in flight.
    is_raising: bool = False

    def raised_epoch(self) -> bool:
        """Begins the next epoch if that is due. Returns whether it did: all batches are sent again, from sequence 0 on."""
        if not self.is_raising or any(batch.in_flight for batch in self.batches):
            return False
        self.is_raising = False
        self.epoch += 1
        self.next_sequence = 0
        for batch in self.batches:
            batch.base_sequence, batch.attempts = self.next_sequence, 0
            self.next_sequence += batch.count
        return True

    def sendable(self, now_s: float) -> _Batch | None:
        """Returns the batch to send next. One that was sent before goes out only once all before it are acknowledged."""
        if self.is_raising:
            return None
        for at, batch in enumerate(self.batches[:IN_FLIGHT_MAX]):
            if batch.in_flight:
                continue
            return batch if batch.again_s <= now_s and (not batch.attempts or at == 0) else None
        return None


class _Attempt(NamedTuple):
    operation: int
    partition: int
    batch: _Batch
    # Whether all batches before it were acknowledged when it was sent.
    comes_next: bool
    # Whether the broker knew the partition then.
    known: bool
    epoch: int


class KafkaProducer(RouteClient):
    """A producer: with acks=all one producer id in each life, and a sequence for each partition."""

    def __init__(
        self,
        clients: RouteClients,
        at_address: Callable[[str], RoutedBroker | None],
        name: str,
        topic_name: str,
        *,
        by_id: bool,
        acks: int = ALL,
        raises_epoch: bool = False,
    ) -> None:
        """`by_id`: it names the topic by its id, so that its batches never go to another life of the topic. `raises_epoch`: it
        begins a new epoch of a partition for a batch that was refused as out of order, or that it gives up."""
        super().__init__(clients, name, topic_name)
        self._at_address = at_address
        self._version = PRODUCE_BY_ID if by_id else self._chance.choice(PRODUCE_VERSIONS)
        self._attempts = itertools.count(1)
        self._acks = acks
        self._raises_epoch = raises_epoch
        self._patience = random.Random(f"{clients.seed}/{name}/patience")

    async def _one(self, topic: Topic) -> None:
        """One life of it."""
        life = f"{self._name}-{next(self._numbers)}"
        client = KafkaClient(self._clients, self._at_address, life, topic.name, self._chance)
        try:
            await self._produce(life, topic, client)
        finally:
            client.close()

    async def _produce(self, life: str, topic: Topic, client: KafkaClient) -> None:
        chance, clients = self._chance, self._clients
        until_s = virtual_loop().time() + chance.uniform(1.0, 4.0)
        queues: dict[int, _Queue] = {}
        producer_id: int | None = None if self._acks == ALL else NO_PRODUCER_ID
        async with asyncio.TaskGroup() as answers:
            while clients.lives(topic):
                more = virtual_loop().time() < until_s and not clients.finishing
                waiting = any(queue.batches for queue in queues.values())
                if not more and not waiting:
                    return
                try:
                    if client.is_stale:
                        await client.refresh()
                    if producer_id is None:
                        producer_id = await client.producer_id()
                except TidelogError as error:
                    clients.note(f"{life}: {error.message}")
                    await self._pause()
                    continue
                if client.topic_id != topic.id or not client.leaders:  # the broker has not heard of it yet
                    client.is_stale = True
                    await self._pause()
                    continue
                if more and chance.random() < 0.7:
                    queue = queues.setdefault(chance.choice(sorted(client.leaders)), _Queue())
                    batch = _Batch(queue.next_sequence, chance.randint(1, 3))
                    queue.next_sequence += batch.count
                    queue.batches.append(batch)
                await self._send(life, topic, client, producer_id, queues, answers)
                await asyncio.sleep(chance.choice((0.01, 0.05, 0.1)))

    async def _send(
        self,
        life: str,
        topic: Topic,
        client: KafkaClient,
        producer_id: int,
        queues: dict[int, _Queue],
        answers: asyncio.TaskGroup,
    ) -> None:
        """Sends what can be sent, in one request for each node."""
        now_s = virtual_loop().time()
        by_node: dict[int, list[tuple[int, _Batch]]] = {}
        for partition, queue in sorted(queues.items()):
            if queue.raised_epoch():
                self._clients.kafka_epochs_raised += 1
            if (batch := queue.sendable(now_s)) is not None:
                by_node.setdefault(client.node_of(partition), []).append((partition, batch))
        for node_id, batches in by_node.items():
            try:
                line = await client.line_to(node_id)
            except TidelogError:
                client.is_stale = True
                continue
            if line.waiting >= IN_FLIGHT_MAX or line.broken is not None:
                continue
            attempts = []
            data = []
            for partition, batch in batches:
                at = TopicPartition(topic.id, Partition(partition))
                known = isinstance(line.host, RoutedBroker) and line.host.knows(at)
                queue = queues[partition]
                attempt = _Attempt(next(self._clients.operations), partition, batch, queue.batches[0] is batch, known, queue.epoch)
                attempts.append(attempt)
                batch.in_flight = True
                batch.attempts += 1
                number = next(self._attempts)
                producer = f"{life}/{queue.epoch}" if queue.epoch else life
                records = tuple(RecordId(producer, batch.base_sequence + each, number) for each in range(batch.count))
                contents = [(None, record_value(record), (), virtual_loop().now_ms()) for record in records]
                is_idempotent = self._acks == ALL
                encoded = (
                    encode_records(contents, producer_id=producer_id, producer_epoch=queue.epoch, base_sequence=batch.base_sequence)
                    if is_idempotent
                    else encode_records(contents)
                )
                data.append(PartitionProduceData(index=partition, records=memoryview(encoded)))
                self._clients.record(
                    Sent(attempt.operation, str(at), records, idempotent=is_idempotent, acks_all=self._acks == ALL)
                )
            named = TopicProduceData(name=topic.name, topic_id=bytes.fromhex(topic.id), partition_data=data)
            request = ProduceRequest(acks=self._acks, timeout_ms=self._chance.choice((500, 2000, 5000)), topic_data=[named])
            if self._acks == NONE:
                line.send_unanswered("Produce", self._version, request)
                for attempt in attempts:
                    queues[attempt.partition].batches.remove(attempt.batch)
                    self._clients.kafka_unanswered += 1
                    self._clients.record(Unknown(attempt.operation, "acks=0"))
                continue
            asked = line.send("Produce", self._version, request)
            answers.create_task(self._take(client, line, asked, attempts, queues))

    async def _take(
        self, client: KafkaClient, line: KafkaLine, asked: Asked, attempts: list[_Attempt], queues: dict[int, _Queue]
    ) -> None:
        results: dict[int, Any] = {}
        lost: TidelogError | None = None
        try:
            answer = await line.answer(asked, timeout_s=client.timeout_s)
            for node in answer.node_endpoints:
                client.learn_node(node.node_id, node.host)
            results = {each.index: each for each in answer.responses[0].partition_responses}
        except TidelogError as error:
            lost = error
            client.is_stale = True
        for attempt in attempts:
            queue = queues[attempt.partition]
            attempt.batch.in_flight = False
            attempt.batch.again_s = virtual_loop().time() + self._chance.choice((0.02, 0.1, 0.5)) * self._chance.random()
            if lost is not None:
                self._clients.refuse(attempt.operation, lost)
                self._give_up_late(attempt, queue)
                continue
            result = results[attempt.partition]
            if result.error_code not in {0, ALREADY_WRITTEN}:
                self._refused(client, line, attempt, queue, result)
                self._give_up_late(attempt, queue)
                continue
            queue.batches.remove(attempt.batch)
            self._clients.acknowledged += 1
            self._clients.kafka_acknowledged += 1
            self._clients.record(Acknowledged(attempt.operation, None if result.error_code else result.base_offset))

    def _give_up_late(self, attempt: _Attempt, queue: _Queue) -> None:
        """Gives up a batch as at its delivery timeout. Whether it is in the log is not known, so that the next epoch begins."""
        is_first = attempt.epoch == queue.epoch and queue.batches[0] is attempt.batch
        if self._raises_epoch and is_first and attempt.batch.attempts >= self._patience.randint(1, ATTEMPTS_MAX):
            queue.batches.remove(attempt.batch)
            queue.is_raising = True

    def _refused(self, client: KafkaClient, line: KafkaLine, attempt: _Attempt, queue: _Queue, result: Any) -> None:
        """Notes a batch that is to be sent again."""
        clients, code = self._clients, result.error_code
        client.is_stale = True
        if (leader := result.current_leader) is not None and leader.leader_id >= 0:
            client.learn_leader(attempt.partition, KnownLeader(leader.leader_id, leader.leader_epoch))
        if code == ErrorCode.REQUEST_TIMED_OUT:
            clients.unknown += 1
            clients.record(Unknown(attempt.operation, str(code)))
            return
        clients.refused += 1
        got_gap_error = code in OUT_OF_ORDER and attempt.comes_next
        clients.record(Refused(attempt.operation, str(code), got_gap_error))
        queue.is_raising |= self._raises_epoch and code in OUT_OF_ORDER and attempt.epoch == queue.epoch
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            client.turned_away(line)
        elif code in NOT_THERE and attempt.known and client.topic_id not in clients.deleted:
            at = f"{client.topic_id}/{attempt.partition}"
            clients.denied.append(f"{line.host.name}, which knows {at}, answered {code} to a Kafka producer")
        elif code not in SENT_AGAIN | OUT_OF_ORDER:
            clients.denied.append(f"{line.host.name} answered {code} to a Kafka producer, which then gives up")
