"""A Kafka consumer of a world of routes that reads all partitions of a topic, with fetch sessions (KIP-227).

    a new partition ─▶ ListOffsets: the earliest offset ─▶ Fetch, one at a time for each node ─▶ delivered
                                    ▲                        │
    another leader epoch ─▶ OffsetForLeaderEpoch ────────────┘ 6, 74, 75, a lost connection: the metadata are read again

It does what Java's consumer does: a session for each node, which is opened again after an error of the session or a lost connection
(KIP-227), and a position that is validated when the leader epoch changes (KIP-320). Nothing in these worlds ends a log, so a
position that does not hold is a promise that was broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gateway.kafka.errors import ErrorCode
from gateway.kafka.protocol.admin_messages import OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic
from gateway.kafka.protocol.client_messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from gateway.kafka.protocol.hot_messages import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from metadata.errors import TidelogError
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from segments.records.batch import parse_header, split_batches
from tests.simulation.bucket_reader import records_of
from tests.simulation.history_checker import Fetched, GaveUp
from tests.simulation.kafka_clients import NOT_THERE, KafkaClient, KnownLeader
from tests.simulation.kafka_line import Asked, KafkaLine
from tests.simulation.route_clients import RouteClients
from tests.simulation.route_streams import RouteStream
from tests.simulation.routed_broker import RoutedBroker
from tests.simulation.virtual_loop import virtual_loop

FETCH_VERSIONS: Final = (7, 12, 13, 17)
# From here on Fetch names the client's rack.
RACK_SINCE: Final = 11
# From here on Fetch names topics by their ids.
FETCH_BY_ID: Final = 13
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
# Codes after which a consumer reads the metadata again, and fetches again.
FETCHED_AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        *NOT_THERE,
    }
)
EARLIEST: Final = -2
WAIT_MS: Final = 500
PARTITION_BYTES_MAX: Final = 8_000
# metadata.max.age.ms
METADATA_S: Final = 1.0


@dataclass(eq=False, slots=True)
class _Position:
    """Where the consumer stands in one partition."""

    offset: int = -1
    # Of the last batch that it has read; -1 before the first.
    epoch: int = -1
    # The leader epoch for which the position holds; None where it has to be found or validated.
    holds_for: int | None = None


@dataclass(eq=False, slots=True)
class _Session:
    """The fetch session with one node. Epoch 0: the next fetch has all partitions."""

    session_id: int = 0
    epoch: int = 0
    # What the broker knows of each partition: offset, leader epoch, epoch of the last batch.
    asked: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def restart(self, *, keeps_id: bool) -> None:
        """`keeps_id`: so that the broker closes the session that it may still have."""
        self.epoch = 0
        self.asked = {}
        if not keeps_id:
            self.session_id = 0


class _Fetch(NamedTuple):
    """What one fetch asks for."""

    wanted: Mapping[int, tuple[int, int, int]]
    is_full: bool
    # The partitions that the node is asked for as the broker of the reader's rack.
    from_rack: frozenset[int]


class KafkaReader(RouteStream):
    def __init__(
        self,
        clients: RouteClients,
        at_address: Callable[[str], RoutedBroker | None],
        name: str,
        topic_name: str,
        *,
        rack: str = "",
    ) -> None:
        super().__init__(clients, name, topic_name)
        self._client = KafkaClient(clients, at_address, name, topic_name, self._chance)
        self._version: int = self._chance.choice(FETCH_VERSIONS)
        # Whether it names the epoch of the last batch in each Fetch (KIP-595).
        self._names_epochs = self._chance.random() < 0.5
        # client.rack: that of a broker, or none.
        self._rack = rack if self._version >= RACK_SINCE else ""
        # The broker of its rack that a leader sent it to, by partition, until the metadata are read again.
        self._preferred: dict[int, int] = {}
        # The node that is asked for a partition now.
        self._asked_of: dict[int, int] = {}
        self._partitions: dict[int, _Position] = {}
        self._sessions: dict[int, _Session] = {}
        self._fetching: set[int] = set()
        self._refreshed_s = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        topic = self._clients.topic(self._topic_name)
        assert topic is not None, "the topic stays as long as the world"
        try:
            async with asyncio.TaskGroup() as fetches:
                while True:
                    try:
                        await self._step(topic, fetches)
                    except TidelogError as error:
                        self._clients.note(f"{self.name}: {error.message}")
                        self._client.is_stale = True
                        await asyncio.sleep(self._chance.choice((0.02, 0.1, 0.5)))
                    await asyncio.sleep(0.02)
        finally:
            self._client.close()

    async def _step(self, topic: Topic, fetches: asyncio.TaskGroup) -> None:
        client, now_s = self._client, virtual_loop().time()
        if client.is_stale or now_s > self._refreshed_s + METADATA_S:
            await client.refresh()
            self._refreshed_s = now_s
            self._preferred.clear()
        by_node: dict[int, list[int]] = {}
        from_rack = set()
        for partition in sorted(client.leaders):
            self._partitions.setdefault(partition, _Position())
            node_id = self._node_of(partition)
            by_node.setdefault(node_id, []).append(partition)
            if self._preferred.get(partition) == node_id:
                from_rack.add(partition)
        for node_id, partitions in by_node.items():
            if node_id in self._fetching:
                continue
            await self._find_positions(topic, node_id, partitions)
            ready = [partition for partition in partitions if self._is_ready(partition) and partition not in self._asked_of]
            try:
                line = await client.line_to(node_id)
            except TidelogError:
                self._leave_rack(partitions)
                raise
            if not ready or node_id in self._fetching:
                continue
            fetch = self._next_fetch(node_id, ready, from_rack)
            asked = line.send("Fetch", self._version, self._request(topic, node_id, fetch))
            self._fetching.add(node_id)
            if self._rack:
                self._asked_of |= dict.fromkeys(ready, node_id)
            fetches.create_task(self._take(topic, node_id, line, asked, fetch))

    def _node_of(self, partition: int) -> int:
        """Returns the node to read from: the leader, until the position is known and the leader sends the reader on."""
        leader = self._client.node_of(partition)
        return self._preferred.get(partition, leader) if self._is_ready(partition) else leader

    def _leave_rack(self, partitions: Iterable[int]) -> None:
        """Reads these partitions from their leaders again."""
        for partition in partitions:
            self._preferred.pop(partition, None)

    def _is_ready(self, partition: int) -> bool:
        position = self._partitions[partition]
        return position.offset >= 0 and position.holds_for == self._client.leaders[partition].leader_epoch

    # ── positions ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _find_positions(self, topic: Topic, node_id: int, partitions: Sequence[int]) -> None:
        leaders = dict(self._client.leaders)
        held = {partition: self._partitions[partition] for partition in partitions}
        new = [partition for partition, position in held.items() if position.offset < 0]
        moved = [partition for partition, position in held.items() if not self._is_ready(partition) and position.offset >= 0]
        for partition in [partition for partition in moved if held[partition].epoch < 0]:
            held[partition].holds_for = leaders[partition].leader_epoch  # there is nothing to validate
            moved.remove(partition)
        if new:
            await self._reset(topic, node_id, new, leaders)
        if moved:
            await self._validate(topic, node_id, moved, leaders)

    async def _reset(self, topic: Topic, node_id: int, partitions: Sequence[int], leaders: Mapping[int, KnownLeader]) -> None:
        line = await self._client.line_to(node_id)
        asked = [
            ListOffsetsPartition(partition_index=each, current_leader_epoch=leaders[each].leader_epoch, timestamp=EARLIEST)
            for each in partitions
        ]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=asked)])
        with self._judging(topic, line, partitions) as judge:
            answer = await line.ask("ListOffsets", 7, request, timeout_s=self._client.timeout_s)
            for each in answer.topics[0].partitions:
                if each.error_code:
                    judge(each.partition_index, each.error_code)
                    continue
                position = self._partitions[each.partition_index]
                position.offset, position.holds_for = each.offset, leaders[each.partition_index].leader_epoch
                self.positions[each.partition_index] = each.offset
                if each.offset != 0:
                    self._gave_up(topic, each.partition_index, f"its log begins at {each.offset}")

    async def _validate(self, topic: Topic, node_id: int, partitions: Sequence[int], leaders: Mapping[int, KnownLeader]) -> None:
        line = await self._client.line_to(node_id)
        asked = [
            OffsetForLeaderPartition(
                partition=each, current_leader_epoch=leaders[each].leader_epoch, leader_epoch=self._partitions[each].epoch
            )
            for each in partitions
        ]
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic.name, partitions=asked)])
        with self._judging(topic, line, partitions) as judge:
            answer = await line.ask("OffsetForLeaderEpoch", 4, request, timeout_s=self._client.timeout_s)
            for each in answer.topics[0].partitions:
                if each.error_code:
                    judge(each.partition, each.error_code)
                    continue
                position = self._partitions[each.partition]
                if each.end_offset < position.offset or each.leader_epoch < position.epoch:
                    reported = f"epoch {each.leader_epoch} ends at {each.end_offset}"
                    self._gave_up(topic, each.partition, f"{reported}, and it has read epoch {position.epoch} to {position.offset}")
                position.holds_for = leaders[each.partition].leader_epoch

    # ── fetches ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _next_fetch(self, node_id: int, ready: Sequence[int], from_rack: Collection[int]) -> _Fetch:
        session = self._sessions.setdefault(node_id, _Session())
        wanted = {}
        for partition in ready:
            position = self._partitions[partition]
            leader_epoch = self._client.leaders[partition].leader_epoch
            wanted[partition] = (position.offset, leader_epoch, position.epoch if self._names_epochs else -1)
        return _Fetch(wanted, session.epoch == 0, frozenset(ready).intersection(from_rack))

    def _request(self, topic: Topic, node_id: int, fetch: _Fetch) -> FetchRequest:
        session = self._sessions[node_id]
        changed = [partition for partition, how in fetch.wanted.items() if fetch.is_full or session.asked.get(partition) != how]
        forgotten = [] if fetch.is_full else sorted(session.asked.keys() - fetch.wanted.keys())
        asked = []
        for partition in changed:
            offset, leader_epoch, last_epoch = fetch.wanted[partition]
            asked.append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=last_epoch,
                    partition_max_bytes=PARTITION_BYTES_MAX,
                )
            )
        session.asked = dict(fetch.wanted)
        named = {"topic": topic.name, "topic_id": bytes.fromhex(topic.id)}
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=2 * PARTITION_BYTES_MAX,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=[FetchTopic(**named, partitions=asked)] if asked else (),  # type: ignore[arg-type]  # name or id
            forgotten_topics_data=[ForgottenTopic(**named, partitions=forgotten)] if forgotten else (),  # type: ignore[arg-type]  # name or id
            rack_id=self._rack,
        )

    async def _take(self, topic: Topic, node_id: int, line: KafkaLine, asked: Asked, fetch: _Fetch) -> None:
        session = self._sessions[node_id]
        self.begun += fetch.is_full
        try:
            with self._judging(topic, line, [*fetch.wanted]) as judge:
                answer = await line.answer(asked, timeout_s=self._client.timeout_s + WAIT_MS / 1000)
                if answer.error_code:
                    self._session_failed(session, answer.error_code)
                    return
                if not fetch.is_full:
                    session.epoch += 1
                elif answer.session_id:
                    session.session_id, session.epoch = answer.session_id, 1
                for node in answer.node_endpoints:
                    self._client.learn_node(node.node_id, node.host)
                for named in answer.responses:
                    for data in named.partitions:
                        self._take_partition(topic, data, fetch, judge)
        except TidelogError as error:
            self._clients.note(f"{self.name}: {error.message}")
            session.restart(keeps_id=True)
            self._client.is_stale = True
            self._leave_rack(fetch.wanted)
        finally:
            self._fetching.discard(node_id)
            for partition in fetch.wanted:
                self._asked_of.pop(partition, None)

    def _session_failed(self, session: _Session, code: int) -> None:
        self._clients.note(f"{self.name} was answered {code} for its session {session.session_id} in epoch {session.epoch}")
        session.restart(keeps_id=code == ErrorCode.INVALID_FETCH_SESSION_EPOCH)

    def _take_partition(self, topic: Topic, data: Any, fetch: _Fetch, judge: Callable[[int, int], None]) -> None:
        partition = data.partition_index
        position = self._partitions[partition]
        offset = fetch.wanted[partition][0]
        if data.error_code:
            if (leader := data.current_leader) is not None and leader.leader_id >= 0:
                self._client.learn_leader(partition, KnownLeader(leader.leader_id, leader.leader_epoch))
            self._leave_rack([partition])
            judge(partition, data.error_code)
            return
        if data.preferred_read_replica >= 0:
            self._preferred[partition] = data.preferred_read_replica
            self._clients.kafka_sent_to_rack += 1
            return
        if data.diverging_epoch is not None and data.diverging_epoch.epoch >= 0:
            self._gave_up(topic, partition, f"its log has another end: {data.diverging_epoch.end_offset} at offset {offset}")
            return
        batches = split_batches(memoryview(b"".join(data.records))) if data.records else []
        if position.offset != offset:
            return
        records = tuple(record for record in records_of(batches) if record[0] >= offset)
        for batch in batches:
            header = parse_header(batch)
            position.offset = max(position.offset, header.base_offset + header.last_offset_delta + 1)
            position.epoch = header.leader_epoch
        self.positions[partition] = position.offset
        self._clients.record(
            Fetched(
                self.name,
                f"{topic.id}/{partition}",
                offset,
                records,
                data.high_watermark,
                next_offset=position.offset,
                log_start_offset=data.log_start_offset,
                may_be_old=partition in fetch.from_rack,
            )
        )

    # ── the judge ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _judging(self, topic: Topic, line: KafkaLine, partitions: Sequence[int]) -> Iterator[Callable[[int, int], None]]:
        """Gives a function that takes the error of a partition. A broker that knows it may not answer that it does not exist."""
        known = {
            each
            for each in partitions
            if isinstance(line.host, RoutedBroker) and line.host.knows(TopicPartition(topic.id, Partition(each)))
        }

        def judge(partition: int, code: int) -> None:
            self._client.is_stale = True
            self._clients.note(f"{self.name} was answered {code} for {topic.name}/{partition} by {line.host.name}")
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                self._client.turned_away(line)
            elif code not in FETCHED_AGAIN or (code in NOT_THERE and partition in known):
                self._gave_up(topic, partition, f"{line.host.name} answered {code}")

        yield judge

    def _gave_up(self, topic: Topic, partition: int, why: str) -> None:
        self._clients.record(GaveUp(self.name, f"{topic.id}/{partition}", why))
