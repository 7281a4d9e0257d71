"""Answers Fetch: whole record batches from an offset on, with a long poll that ends when the next request arrives.

    partitions ─▶ targets ─▶ committed batches ─▶ enough? ─▶ answer
                                  └ no: wait without memory ─▶ memory for the answer ─▶ read ─▶ answer

Clients advance only by batches: the next offset is the last one of a batch + 1. So if the log's answer only passes a gap, an empty
batch covers the gap (FetchResult.batches_from).

fetch_sessions.py decides which partitions a fetch reads, and which of them its answer names (KIP-227). The answer to a full fetch
has all partitions, in the order of the request. Of a session whose partitions this broker leads, only those are looked up that may
have news:

    partitions that are due ─▶ look up ─▶ enough? ─▶ answer
             ▲                              ├ no, all are at their end: wait for news of any partition of the session ─┐
             └──────────────────────────────┼──────────────────────────────────────────────────────────────────────────┘
                                            └ no, some have too few records, or are being read: as without a session

Invariants: no offset at or above the high watermark is answered. An error of one partition delays no other. The buffers of an
answer are counted until the client has received them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.api import BrokerApi
from gateway.cluster.view import partitions_of
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, fetch_code
from gateway.kafka.fetch_sessions import SESSION_ID_MAX, AskedPartition, FetchPlan, FetchSessions, Owner, SessionWatch, key_of
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.listener_config import Route
from gateway.kafka.protocol.hot_messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    PartitionData,
)
from gateway.records.append import topic_named
from gateway.records.response_budget import Reservation, ResponseBudget
from gateway.routing.log_service import EpochQuestion, LogService
from gateway.topics.names import BOUNDS_WAIT_S, partition_of
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NotLeader, Stopping, Throttled, TidelogError, UnknownLeaderEpoch
from metadata.model import Offset, TopicId, TopicPartition
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult
from segments.read.reader_notifier import ReaderNotifier
from segments.wal.run_index import NO_EPOCH_END, EpochEnd

# From this version on topics are named by their ids.
BY_ID: Final = 13
# From this version on a client can be sent to a broker of its rack (KIP-392).
RACK_SINCE: Final = 11
# The isolation level of a client that reads aborted records as well, and needs no list of them.
READ_UNCOMMITTED: Final = 0

Found = FetchResult | TidelogError


class _Asked(NamedTuple):
    """One partition of a request."""

    request: FetchPartition
    # The range to read, or the error of the partition.
    target: FetchTarget | TidelogError
    partition: TopicPartition | None = None
    # The broker of the client's rack to read from instead.
    preferred: BrokerRegistration | None = None


class KafkaFetch:
    """Answers Fetch for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi, leaders: KafkaLeaders, waits: InterruptibleWaits) -> None:
        self._broker = broker
        self._leaders = leaders
        self._waits = waits
        self._traffic = broker.metrics.traffic.kafka
        self.sessions = FetchSessions(lambda: 1 + secrets.randbelow(SESSION_ID_MAX))
        broker.metrics.register(lambda: (self.sessions.figures,))
        broker.topic_cache.subscribe(self._topic_changed)
        self.room = ResponseBudget(broker.settings, waits)

    async def fetch(self, call: KafkaCall, request: FetchRequest) -> FetchResponse:
        """Answers each partition with batches, or with its error; within a session, each partition that has news."""
        caller = call.connection.authenticated
        owner = Owner(call.connection.listener.name, caller.principal if caller is not None else "")
        now_s = asyncio.get_running_loop().time()
        plan = self.sessions.begin(request, owner=owner, by_id=call.version >= BY_ID, now_s=now_s)
        if isinstance(plan, ErrorCode):
            return FetchResponse(error_code=plan)
        try:
            return await self._fetched(call, request, plan, began_s=now_s)
        except BaseException:
            plan.abandon()
            raise

    async def _fetched(self, call: KafkaCall, request: FetchRequest, plan: FetchPlan, *, began_s: float) -> FetchResponse:
        log = self._broker.cluster_log
        ends_s = began_s + max(0, min(request.max_wait_ms, self._broker.settings.fetch_wait_ms_max)) / 1000
        reservation = self.room.reserve()
        call.release = lambda: reservation.keep(0)
        watch = self._watch(call, request, plan)
        due = await self._found_of_due(call, request, plan, watch, reservation, ends_s) if watch is not None else None
        if due is None:
            asked = self._asked_of(call, request, plan.take_all(), watch)
            answers = await self._found(call, request, asked, reservation, log, ends_s)
        else:
            asked, answers = due
        diverging = await self._diverging(asked, answers, log)
        nodes: dict[int, FetchResponseNodeEndpoint] = {}
        data = [
            self._data(call, request, each, answer, diverging.get(at), nodes)
            for at, (each, answer) in enumerate(zip(asked, answers, strict=True))
        ]
        self._count(answers, asked, began_s=began_s, could_wait=request.max_wait_ms > 0)
        at_rest = [
            each.preferred is None and at not in diverging and _is_at_end(each.request.fetch_offset, answer)
            for at, (each, answer) in enumerate(zip(asked, answers, strict=True))
        ]
        response = plan.answer(data, now_s=asyncio.get_running_loop().time(), at_rest=at_rest)
        response.node_endpoints = list(nodes.values())
        return response

    def _asked_of(
        self, call: KafkaCall, request: FetchRequest, partitions: Sequence[AskedPartition], watch: SessionWatch | None
    ) -> list[_Asked]:
        """Returns the ranges to read. The watch follows the partitions, so that it misses no news after this."""
        log = self._broker.cluster_log
        asked = [self._asked(call, each, request, log) for each in partitions]
        if watch is not None:
            for each, found in zip(partitions, asked, strict=True):
                watch.follow(key_of(each), found.partition)
            if call.authorized is not None:
                watch.granted |= call.authorized.granted
        return asked

    def _asked(self, call: KafkaCall, asked: AskedPartition, request: FetchRequest, log: LogService) -> _Asked:
        name, topic_id, partition = asked
        at: TopicPartition | None = None
        try:
            if call.version >= BY_ID:
                name = self._broker.topic_cache.by_id(TopicId(topic_id.hex())).name
            at = partition_of(topic_named(self._broker, name), partition.partition)
            locations_bytes_min = log.locations_bytes_min(request.rack_id) if request.rack_id else None
            if locations_bytes_min is None and not self._leaders.is_served_here(at, call.connection.listener):
                raise NotLeader(f"another broker leads partition {partition.partition} of topic {name}")
        except TidelogError as error:
            return _Asked(partition, error.with_traceback(None), at)
        epoch = partition.current_leader_epoch if partition.current_leader_epoch >= 0 else None
        bytes_max = max(1, min(partition.partition_max_bytes, self._broker.settings.fetch_bytes_max))
        preferred = log.preferred_broker(at, request.rack_id) if request.rack_id and call.version >= RACK_SINCE else None
        return _Asked(partition, FetchTarget(at, partition.fetch_offset, bytes_max, epoch, locations_bytes_min), at, preferred)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _found(
        self,
        call: KafkaCall,
        request: FetchRequest,
        asked: Sequence[_Asked],
        reservation: Reservation,
        log: LogService,
        ends_s: float,
    ) -> list[Found]:
        """Returns an answer for each partition, as far as there is memory; `reservation` then holds the memory of the batches."""
        sent_on = [each.target for each in asked if each.preferred is not None and isinstance(each.target, FetchTarget)]
        reads = [each.target for each in asked if each.preferred is None and isinstance(each.target, FetchTarget)]
        is_local = call.connection.listener.route is Route.DIRECT and all(each.locations_bytes_min is None for each in reads)
        source = self._broker.local_log if is_local else log
        has_news = len(reads) < len(asked)  # an error, or another broker to read from: the client learns it at once
        bounds = iter(await self._bounds(sent_on, log))
        try:
            found = iter(await self._read(call, request, reads, reservation, source, ends_s, has_news=has_news) if reads else ())
        except TidelogError as error:
            found = iter([error.with_traceback(None)] * len(reads))
        return [
            each.target if isinstance(each.target, TidelogError) else next(bounds if each.preferred is not None else found)
            for each in asked
        ]

    async def _read(
        self,
        call: KafkaCall,
        request: FetchRequest,
        targets: Sequence[FetchTarget],
        reservation: Reservation,
        log: LogService,
        ends_s: float,
        *,
        has_news: bool,
    ) -> list[Found]:
        settings = self._broker.settings
        bytes_max = max(1, min(request.max_bytes, settings.fetch_bytes_max))
        bytes_min = max(1, min(request.min_bytes, bytes_max))
        loop = asyncio.get_running_loop()
        wait_ms = max(0.0, 1000 * (ends_s - loop.time())) if request.max_wait_ms > 0 else 0
        if reservation.ask_now(bytes_max, bytes_least=settings.message_bytes_max):
            found = await log.fetch(targets, bytes_max=reservation.bytes_held, bytes_min=0)
            if has_news or not wait_ms or call.connection.others_wait or _is_enough(targets, found, bytes_min):
                reservation.keep(_bytes_in(found))
                return found
            reservation.keep(0)
            del found  # a client that waits holds no memory
        if wait_ms and not has_news:
            try:
                async with self._waits.until_stop(), asyncio.timeout(None) as poll:
                    with call.connection.polling(poll):
                        seen_max = bytes_max if bytes_min > 1 else 1
                        await log.fetch(targets, bytes_max=seen_max, bytes_min=bytes_min, wait_ms_max=wait_ms)
            except (TimeoutError, Stopping):
                pass  # another request arrived behind this one, or the broker stops: answer now
        try:
            await reservation.ask(bytes_max, bytes_least=settings.message_bytes_max, timeout_s=ends_s - loop.time())
        except Throttled:
            found = await log.fetch(targets, bytes_max=1, bytes_min=0)
            return [_without_records(target, each) for target, each in zip(targets, found, strict=True)]
        found = await log.fetch(targets, bytes_max=reservation.bytes_held, bytes_min=0)
        reservation.keep(_bytes_in(found))
        return found

    async def _found_of_due(
        self,
        call: KafkaCall,
        request: FetchRequest,
        plan: FetchPlan,
        watch: SessionWatch,
        reservation: Reservation,
        ends_s: float,
    ) -> tuple[list[_Asked], list[Found]] | None:
        """Returns what a fetch within a session looked up, and the answers; None if all partitions of it must be looked up."""
        settings = self._broker.settings
        bytes_max = max(1, min(request.max_bytes, settings.fetch_bytes_max))
        bytes_min = max(1, min(request.min_bytes, bytes_max))
        must_answer = request.max_wait_ms <= 0
        while self._notifier() is watch.notifier and not watch.is_closed:
            asked = self._asked_of(call, request, plan.take_due(watch), watch)
            reads = [each.target for each in asked if isinstance(each.target, FetchTarget)]
            found: list[Found] = []
            try:
                if not reads:
                    await self._broker.log.leadership.verify()
                elif not reservation.ask_now(bytes_max, bytes_least=settings.message_bytes_max):
                    return None
                else:
                    found = await self._broker.local_log.fetch(reads, bytes_max=reservation.bytes_held, bytes_min=0)
            except TidelogError:
                reservation.keep(0)
                return None  # all partitions have this error
            must_answer |= len(reads) < len(asked) or call.connection.others_wait or _is_enough(reads, found, bytes_min)
            if must_answer:
                reservation.keep(_bytes_in(found))
                results = iter(found)
                return asked, [next(results) if isinstance(each.target, FetchTarget) else each.target for each in asked]
            reservation.keep(0)
            if not all(_is_at_end(target.offset, each) for target, each in zip(reads, found, strict=True)):
                return None
            del found
            try:
                async with self._waits.until_stop(), asyncio.timeout_at(ends_s) as poll:
                    with call.connection.polling(poll):
                        await watch.woken()
            except (TimeoutError, Stopping):
                must_answer = True
        return None

    def _watch(self, call: KafkaCall, request: FetchRequest, plan: FetchPlan) -> SessionWatch | None:
        """Returns the watch of the fetch's session. None without a session, or if other brokers may answer for this one."""
        session, guard = plan.session, self._broker.guard
        if session is None:
            return None
        notifier = self._notifier()
        if notifier is None or request.rack_id or call.connection.listener.route is not Route.DIRECT:
            session.replace_watch(None)
            return None
        stamp = () if guard is None or call.authorized is None else (call.authorized.caller, guard.cache.version)
        if session.watch is None or not session.watch.is_good(notifier, stamp, partitions=len(session.partitions)):
            session.replace_watch(SessionWatch(notifier, session.partitions, stamp=stamp))
        assert session.watch is not None
        if call.authorized is not None:
            call.authorized.granted |= session.watch.granted
        return session.watch

    def _topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        """Wakes the sessions that watch partitions of a deleted topic. Its leader may drop them later, or never."""
        if before is None or after is not None:
            return
        notifier = self._notifier()
        if notifier is not None:
            for partition in partitions_of(before):
                notifier.wake(partition)

    def _notifier(self) -> ReaderNotifier | None:
        """Returns the notifier of the broker's present session; None while it has none."""
        try:
            return self._broker.log.reads.notifier
        except TidelogError:
            return None

    async def _bounds(self, targets: Sequence[FetchTarget], log: LogService) -> list[Found]:
        """Returns answers without records, for partitions that the client should read from another broker."""
        if not targets:
            return []
        partitions = [target.partition for target in targets]
        found: list[Found] = []
        for target, bounds in zip(targets, await log.bounds_of(partitions, wait_s=BOUNDS_WAIT_S), strict=True):
            if isinstance(bounds, TidelogError):
                found.append(bounds)
            else:
                offset = Offset(target.offset)
                found.append(FetchResult([], 0, offset, bounds.high_watermark, bounds.log_start_offset, bounds.leader_epoch))
        return found

    async def _diverging(self, asked: Sequence[_Asked], found: Sequence[Found], log: LogService) -> dict[int, EpochEnd]:
        """Returns, by the index of its partition, where the log of a client's last epoch ends if the client has more of it:
        its log differs from the leader's, as after a restore (KIP-595). NO_EPOCH_END where the log has no epoch to compare."""
        questions = {
            at: EpochQuestion(each.partition, each.request.last_fetched_epoch)
            for at, (each, answer) in enumerate(zip(asked, found, strict=True))
            if isinstance(answer, FetchResult) and 0 <= each.request.last_fetched_epoch != answer.leader_epoch and each.partition
        }
        ends = await log.ends_of_epochs(list(questions.values()), wait_s=BOUNDS_WAIT_S) if questions else ()
        # The leader does not know an epoch above its own either.
        known = [NO_EPOCH_END if isinstance(end, UnknownLeaderEpoch) else end for end in ends]
        return {
            at: end
            for at, end in zip(questions, known, strict=True)
            if isinstance(end, EpochEnd)
            and end.diverges(last_fetched_epoch=asked[at].request.last_fetched_epoch, fetch_offset=asked[at].request.fetch_offset)
        }

    # ── the answer ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _data(
        self,
        call: KafkaCall,
        request: FetchRequest,
        asked: _Asked,
        found: Found,
        diverging: EpochEnd | None,
        nodes: dict[int, FetchResponseNodeEndpoint],
    ) -> PartitionData:
        data = PartitionData(partition_index=asked.request.partition, high_watermark=-1, records=())
        if request.isolation_level == READ_UNCOMMITTED and asked.partition is not None:
            data.aborted_transactions = None
        if diverging == NO_EPOCH_END:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE  # as Kafka: there is no end that the client could go back to
            return data
        if isinstance(found, TidelogError):
            data.error_code = fetch_code(found, call.version, by_id=call.version >= BY_ID)
            if data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and isinstance(asked.target, FetchTarget | NotLeader):
                self._name_leader(call, asked, data, nodes)
            return data
        data.high_watermark = data.last_stable_offset = found.high_watermark
        data.log_start_offset = found.log_start_offset
        if diverging is not None:
            data.diverging_epoch = FetchResponseEpochEndOffset(epoch=diverging.leader_epoch, end_offset=diverging.end_offset)
        elif asked.preferred is not None:
            data.preferred_read_replica = asked.preferred.node_id
        elif batches := found.batches_from(asked.request.fetch_offset):
            data.records = batches
            if batches is found.batches:
                data.records_size_bytes = found.size_bytes
        return data

    def _name_leader(
        self, call: KafkaCall, asked: _Asked, data: PartitionData, nodes: dict[int, FetchResponseNodeEndpoint]
    ) -> None:
        """Names the leader, so that the client need not ask for metadata (KIP-951)."""
        if asked.partition is None or (leader := self._leaders.leader(asked.partition, call.connection.listener)) is None:
            return
        node = leader.node
        data.current_leader = FetchResponseLeaderIdAndEpoch(leader_id=node.node_id, leader_epoch=leader.leader_epoch)
        nodes[node.node_id] = FetchResponseNodeEndpoint(
            node_id=node.node_id, host=node.host, port=node.port, rack=node.rack or None
        )

    def _count(self, answers: Sequence[Found], asked: Sequence[_Asked], *, began_s: float, could_wait: bool) -> None:
        records = bytes_count = 0
        for each, found in zip(asked, answers, strict=True):
            if isinstance(found, TidelogError):
                self._traffic.refused(found)
            elif found.size_bytes:
                records += found.next_offset - each.request.fetch_offset
                bytes_count += found.size_bytes
        self._traffic.fetched(records=records, answer_bytes=bytes_count)
        self._traffic.fetch_took(answers, began_s=began_s, could_wait=could_wait)


def _bytes_in(found: Sequence[Found]) -> int:
    return sum(each.size_bytes for each in found if isinstance(each, FetchResult))


def _is_enough(targets: Sequence[FetchTarget], found: Sequence[Found], bytes_min: int) -> bool:
    """Returns whether to answer at once: enough records, an error, or a gap that the client must pass."""
    if _bytes_in(found) >= bytes_min:
        return True
    return any(
        isinstance(each, TidelogError) or each.passes_gap(target.offset) for target, each in zip(targets, found, strict=True)
    )


def _is_at_end(offset: int, found: Found) -> bool:
    """Returns whether the partition has nothing behind the offset, so that only news of it can change the answer."""
    return isinstance(found, FetchResult) and found.high_watermark == offset


def _without_records(target: FetchTarget, found: Found) -> Found:
    if isinstance(found, TidelogError):
        return found
    return found._replace(batches=[], size_bytes=0, next_offset=Offset(target.offset))
