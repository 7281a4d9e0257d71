"""Answers Produce: appends the batches of a request as they arrive, and answers once they are committed.

    request ─▶ targets ─▶ batches checked ─▶ appended, in order ─▶ one callback for each segment ─▶ answer
                             └▶ in a thread, where that takes long        └▶ or awaited: forwarded, or rejected and unverified
                             └▶ there is no memory: the connection is not read until there is

The usual request is handled within the call that received its last byte, without a task: so requests of one connection are
appended in the order of their arrival, although each of them waits for its commit. Where a request has to wait before its append,
its connection is not read meanwhile.

Invariants: the batches of a connection are appended in the order in which they arrived. A request is answered once, when the
outcome of each of its batches is known, or at its deadline. The log stores a view of the request's own frame, or a copy of the
batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from gateway.access.authorization import AuthorizedCall, acting, check_topic
from gateway.api import BrokerApi
from gateway.concurrency.offload import BoundedExecutor
from gateway.kafka.connection import Answer, Hold, KafkaConnection
from gateway.kafka.errors import (
    RETRIED_BY_PRODUCERS,
    ErrorCode,
    InvalidRequiredAcks,
    TransactionsUnsupported,
    UnsupportedCompression,
    cut_text,
    produce_code,
)
from gateway.kafka.frame_reader import Frame
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.listener_config import Route
from gateway.kafka.protocol.apis import RequestHeader
from gateway.kafka.protocol.hot_messages import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    TopicProduceResponse,
    encode_produce_response,
)
from gateway.records.append import (
    AppendTarget,
    LongBatch,
    OpeningBudget,
    Outcome,
    check_at_once,
    check_dates,
    check_long,
    target_named,
)
from gateway.records.append import ProduceRequest as AppendRequest
from gateway.records.oversized_requests import OVERSIZED_PAUSE_S, OversizedRequests
from gateway.records.partitioning import CheckedBatch
from gateway.records.refused_batches import RefusedBatches, SentBatch
from gateway.routing.forward_queue import NOT_AWAITED, ForwardedAppend
from gateway.routing.log_service import LogService, Pending
from gateway.topics.names import partition_of
from metadata.errors import InvalidRecord, TidelogError, TooLarge
from metadata.model import TopicId, TopicPartition
from segments.byte_budget import Admission
from segments.deadline import Deadline
from segments.log.append_result import UnverifiedRejection, late_commit
from segments.log.session_log import Acks, PendingAppend, memory_bytes
from segments.object_store.interface import Buffer
from segments.records.batch import KeylessRecords, parse_header
from segments.records.compression import Codec
from segments.records.header import BatchHeader

PRODUCE: Final = 0
# Kafka advertises versions from 0 and refuses 0 to 2: old clients turn compression off where they are missing (KAFKA-18659).
ADVERTISED: Final = (0, 13)
# From this version on topics are named by their ids.
BY_ID: Final = 13
ZSTD_SINCE: Final = 7
THREADS: Final = 2
# Kafka says nothing of the log beside these errors.
_START_UNKNOWN: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
_ACKS: Final = {-1: Acks.ALL, 1: Acks.LEADER, 0: Acks.NONE}


class Charge(Protocol):
    """Counts a request for its principal's quota; returns the seconds for which the client must wait."""

    def __call__(
        self, connection: KafkaConnection, authorized: AuthorizedCall | None, *, bytes_in: int, bytes_out: int
    ) -> float: ...


class _Batch:
    """One batch of a request, and where its outcome stands in the response."""

    __slots__ = ("batch", "checked", "is_refused", "pending", "result", "target", "topic_partition")

    def __init__(self, result: PartitionProduceResponse, target: AppendTarget, partition: TopicPartition, batch: Buffer) -> None:
        self.result = result
        self.target = target
        self.topic_partition = partition
        self.batch = batch
        self.checked: CheckedBatch | None = None
        self.pending: Pending | TidelogError | None = None
        # `pending` is the error to answer with.
        self.is_refused = False


class _Request:
    """A Produce request from its receipt to its answer."""

    __slots__ = (
        "acks",
        "admission",
        "answer",
        "authorized",
        "batches",
        "connection",
        "context",
        "header",
        "nodes",
        "pause_s",
        "produced",
        "response",
        "segments_left",
        "size_bytes",
        "timer",
    )

    def __init__(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        message: ProduceRequest,
        *,
        authorized: AuthorizedCall | None,
        log: LogService,
        size_bytes: int,
        now_s: float,
        timeout_s_max: float,
    ) -> None:
        self.connection = connection
        self.header = header
        self.authorized = authorized
        self.size_bytes = size_bytes
        self.acks = _ACKS.get(message.acks, Acks.ALL)
        timeout_s = min(max(0, message.timeout_ms) / 1000, timeout_s_max)
        self.produced = AppendRequest(log, self.acks, Deadline(now_s + timeout_s, timeout_s))
        self.answer: Answer = connection.answer()
        self.admission: Admission | None = None
        self.batches: list[_Batch] = []
        self.response = ProduceResponse()
        # Leaders that the response names, by node id.
        self.nodes: dict[int, ProduceResponseNodeEndpoint] = {}
        # Segments that hold batches of this request and are not decided yet.
        self.segments_left = 0
        self.timer: asyncio.TimerHandle | None = None
        # Delay of the answer, so that the client does not repeat the request at once.
        self.pause_s = 0.0

    def release(self) -> None:
        """Releases the memory that the log has not taken over."""
        if self.admission is not None:
            self.admission.release()


class KafkaProduce:
    """Answers Produce for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi, leaders: KafkaLeaders, charge: Charge) -> None:
        self._broker = broker
        self._charge = charge
        self._leaders = leaders
        self._threads = BoundedExecutor(THREADS)
        self._traffic = broker.metrics.traffic.kafka
        self._oversized = OversizedRequests(broker.settings.request_bytes_max)

    def begin(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        message: ProduceRequest,
        frame: Frame,
        admission: Admission | None,
        authorized: AuthorizedCall | None,
    ) -> None:
        """Appends the batches of a request, or arranges for it. `admission` holds the memory of a frame that was announced.

        Raises TidelogError if the connection must be closed; the caller then keeps the admission.
        """
        log = self._broker.local_log if connection.listener.route is Route.DIRECT else self._broker.cluster_log
        now_s = asyncio.get_running_loop().time()
        request = _Request(
            connection,
            header,
            message,
            authorized=authorized,
            log=log,
            size_bytes=frame.cut_from or len(frame.data),
            now_s=now_s,
            timeout_s_max=self._broker.settings.produce_timeout_ms / 1000,
        )
        if frame.cut_from:
            self._oversized.warn(
                frame.cut_from,
                host=connection.client_host,
                client_id=header.client_id or "",
                listener=connection.listener.name,
                now_s=now_s,
            )
        with acting(authorized):
            self._resolve(request, message, frame)
        if not request.batches:
            request.admission = admission
            self._append(request)
            return
        request.admission = admission or self._broker.cluster_log.admit_now(_memory_of(request))
        budget = OpeningBudget()
        takes_long = [batch for batch in request.batches if not self._check(batch, header.api_version, budget)]
        if request.admission is not None and not takes_long:
            self._append(request)
            return
        request.answer.release = request.release  # where the connection is lost before the append
        connection.hold(Hold.ADMISSION)
        connection.run(lambda: self._append_later(request, takes_long))

    # ── before the append ───────────────────────────────────────────────────────────────────────────────────────────────

    def _resolve(self, request: _Request, message: ProduceRequest, frame: Frame) -> None:
        """Finds the target of each batch, and lays out the response, with the errors of refused batches."""
        by_id = request.header.api_version >= BY_ID
        records_bytes = sum(len(each.records or b"") for topic in message.topic_data for each in topic.partition_data)
        is_kept = frame.is_owned and 2 * records_bytes > len(frame.data)
        responses = []
        for topic in message.topic_data:
            named = topic.topic_id.hex() if by_id else topic.name
            results = [PartitionProduceResponse(index=each.index, base_offset=-1) for each in topic.partition_data]
            responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results))
            try:
                if message.acks not in _ACKS:
                    raise InvalidRequiredAcks(f"acks is {message.acks}; -1, 0 and 1 are taken")
                if message.transactional_id is not None:
                    raise TransactionsUnsupported("the producer has a transactional id, and transactions are not supported yet")
                name = self._broker.topic_cache.by_id(TopicId(named)).name if by_id else topic.name
                target = target_named(self._broker, name)
            except TidelogError as error:
                for each, result in zip(topic.partition_data, results, strict=True):
                    self._refuse(request, result, error)
                    _refused(request, named, each.index, _header_of(each.records), error)
                continue
            for each, result in zip(topic.partition_data, results, strict=True):
                try:
                    partition = partition_of(target.topic, each.index)
                    if frame.cut_from:
                        if frame.largest_batch_bytes <= target.batch_bytes_max:
                            request.pause_s = OVERSIZED_PAUSE_S
                        raise self._oversized.error(frame.cut_from)
                    batch = _stored(each.records, is_kept=is_kept)
                    if len(batch) > target.batch_bytes_max:
                        raise _too_large(batch, target)
                except TidelogError as error:
                    self._refuse(request, result, error)
                    _refused(request, named, each.index, _header_of(each.records), error)
                else:
                    request.batches.append(_Batch(result, target, partition, batch))
        request.response.responses = responses

    def _check(self, batch: _Batch, version: int, budget: OpeningBudget) -> bool:
        """Checks the batch, and keeps its header or the error. Returns False, and does nothing, if that would take long."""
        try:
            if version < ZSTD_SINCE and parse_header(batch.batch).codec is Codec.ZSTD:
                raise UnsupportedCompression(f"version {version} of Produce takes no zstd; version {ZSTD_SINCE} does")
            header = check_at_once(
                batch.batch,
                batch_bytes_max=batch.target.batch_bytes_max,
                decompressed_bytes_max=self._broker.cluster_log.settings.decompressed_bytes_max,
                keyed=batch.target.is_compacted,
                budget=budget,
            )
        except TidelogError as error:
            batch.pending = error
            return True
        if header is not None:
            batch.checked = CheckedBatch(batch.topic_partition, batch.batch, header)
        return header is not None

    async def _check_in_thread(self, batches: Sequence[_Batch]) -> None:
        """Checks batches in a thread, as many at a time as take about as long as one large one."""
        while batches:
            work = partial(
                check_long,
                [LongBatch(each.batch, each.target.batch_bytes_max, each.target.is_compacted) for each in batches],
                decompressed_bytes_max=self._broker.cluster_log.settings.decompressed_bytes_max,
            )
            found = await self._threads.run(work)
            for batch, result in zip(batches, found, strict=False):
                if isinstance(result, TidelogError):
                    batch.pending = result
                else:
                    batch.checked = CheckedBatch(batch.topic_partition, batch.batch, result)
            batches = batches[len(found) :]

    async def _append_later(self, request: _Request, takes_long: Sequence[_Batch]) -> None:
        """Waits for memory, checks large batches in a thread, and appends. The connection is not read meanwhile."""
        if request.admission is None:
            admission = self._broker.cluster_log.admit(_memory_of(request), timeout_s=request.produced.deadline.left_s())
            try:
                request.admission = await admission.__aenter__()
            except TidelogError as error:
                for batch in request.batches:
                    batch.pending = error.with_traceback(None)
        if request.admission is not None:
            await self._check_in_thread(takes_long)
            self._check_rights(request)
        self._append(request)
        request.connection.go_on(Hold.ADMISSION)

    def _check_rights(self, request: _Request) -> None:
        """Refuses the batches whose topics the client may not write any more: a right or key may have been revoked meanwhile."""
        with acting(request.authorized):
            for batch in request.batches:
                try:
                    check_topic(batch.target.topic.name)
                except TidelogError as error:
                    batch.checked, batch.pending = None, error.with_traceback(None)

    # ── the append ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _append(self, request: _Request) -> None:
        """Appends the batches that were checked, and answers as soon as their outcome is known."""
        if request.admission is not None:
            with acting(request.authorized):
                for target, batches in _by_target(request.batches):
                    self._append_to(request, target, batches, request.admission)
            request.release()
        for each in request.batches:
            if isinstance(each.pending, TidelogError) and not isinstance(each.pending, UnverifiedRejection):
                each.pending, each.is_refused = _refused_batch(request, each, each.pending), True
        request.produced.pending = [each.pending for each in request.batches if each.pending is not None]
        if request.acks is Acks.NONE:
            self._finish_unanswered(request)
            return
        if request.pause_s:
            request.connection.run(lambda: self._finish_later(request))
            return
        if any(isinstance(each.pending, UnverifiedRejection | ForwardedAppend) for each in request.batches):
            request.connection.run(lambda: self._await_outcomes(request))
            return
        if request.acks is Acks.ALL:
            self._await_segments(request)
        if not request.segments_left:
            self._finish(request)

    def _append_to(self, request: _Request, target: AppendTarget, batches: Sequence[_Batch], admission: Admission) -> None:
        """Appends batches to the partitions of one topic, in order."""
        checked = [each.checked for each in batches if each.checked is not None]
        try:
            check_dates(checked, target)
        except TidelogError as error:
            appended: Sequence[Pending | TidelogError] = [error] * len(checked)
        else:
            appended = request.produced.append(target, checked, admission)
        for batch, pending in zip((each for each in batches if each.checked is not None), appended, strict=True):
            batch.pending = pending

    def _await_segments(self, request: _Request) -> None:
        decided = partial(self._segment_decided, request)
        segments = {
            each.pending.segment for each in request.batches if isinstance(each.pending, PendingAppend) and each.pending.segment
        }
        for segment in segments:
            if not segment.outcome.done():
                request.segments_left += 1
                segment.outcome.add_done_callback(decided)
        if request.segments_left:
            request.timer = asyncio.get_running_loop().call_at(request.produced.deadline.at_s, self._deadline_reached, request)

    def _segment_decided(self, request: _Request, outcome: asyncio.Future[TidelogError | None]) -> None:
        if request.answer.is_decided:
            return  # its deadline came first
        request.segments_left -= 1
        if not request.segments_left:
            self._finish(request)

    def _deadline_reached(self, request: _Request) -> None:
        if not request.answer.is_decided:
            self._finish(request)

    async def _finish_later(self, request: _Request) -> None:
        await asyncio.sleep(request.pause_s)
        self._finish(request)

    async def _await_outcomes(self, request: _Request) -> None:
        """Waits for batches whose outcome only another broker or the bucket knows."""
        self._answer(request, await request.produced.outcomes())

    # ── the answer ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, request: _Request) -> None:
        """Answers with the outcomes known now. A batch whose segment is undecided may still be written."""
        self._answer(request, [_outcome(each.pending, request) for each in request.batches])

    def _answer(self, request: _Request, outcomes: Sequence[Outcome]) -> None:
        if request.timer is not None:
            request.timer.cancel()
        outcomes = [_decided(request, batch, outcome) for batch, outcome in zip(request.batches, outcomes, strict=True)]
        for batch, outcome in zip(request.batches, outcomes, strict=True):
            if isinstance(outcome, TidelogError):
                self._refuse(request, batch.result, outcome, batch=batch)
            else:
                batch.result.base_offset = outcome.base_offset
                batch.result.log_append_time_ms = outcome.log_append_time_ms
                batch.result.log_start_offset = self._leaders.log_start_offset(batch.topic_partition)
        self._count(request, outcomes)
        request.response.node_endpoints = list(request.nodes.values())
        version, correlation_id = request.header.api_version, request.header.correlation_id
        buffers = encode_produce_response(request.response, version, correlation_id)
        wait_s = self._charge(request.connection, request.authorized, bytes_in=request.size_bytes, bytes_out=len(buffers[0]))
        if wait_s > 0:
            request.response.throttle_time_ms = round(1000 * wait_s)
            buffers = encode_produce_response(request.response, version, correlation_id)
        request.connection.decide(request.answer, buffers)

    def _finish_unanswered(self, request: _Request) -> None:
        """Ends a request with acks=0, which has no answer. After an error the broker closes the connection, as Kafka does."""
        refused = next((each.pending for each in request.batches if isinstance(each.pending, TidelogError)), None)
        failed = any(result.error_code for topic in request.response.responses for result in topic.partition_responses)
        self._count(request, [_outcome(each.pending, request) for each in request.batches])
        self._charge(request.connection, request.authorized, bytes_in=request.size_bytes, bytes_out=0)
        request.connection.decide(request.answer, ())
        if refused is not None or failed:
            request.connection.refuse(refused or InvalidRecord("a Produce request with acks=0 was refused"))

    def _refuse(
        self,
        request: _Request,
        result: PartitionProduceResponse,
        error: TidelogError,
        *,
        batch: _Batch | None = None,
    ) -> None:
        """Puts the error of a batch into its place in the response."""
        version = request.header.api_version
        result.error_code = produce_code(error, version, by_id=version >= BY_ID)
        result.error_message = cut_text(error.message)
        if isinstance(error, KeylessRecords):  # the client may send the other records again (KIP-467)
            result.record_errors = [
                BatchIndexAndErrorMessage(batch_index=row, batch_index_error_message="the record has no key") for row in error.rows
            ]
        if batch is not None and result.error_code not in _START_UNKNOWN:
            result.log_start_offset = self._leaders.log_start_offset(batch.topic_partition)
        if batch is not None and result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._name_leader(request, result, batch.topic_partition)

    def _name_leader(self, request: _Request, result: PartitionProduceResponse, partition: TopicPartition) -> None:
        """Names the leader, so that the client need not ask for metadata (KIP-951)."""
        leader = self._leaders.leader(partition, request.connection.listener)
        if leader is not None:
            result.current_leader = ProduceResponseLeaderIdAndEpoch(leader_id=leader.node.node_id, leader_epoch=leader.leader_epoch)
            request.nodes[leader.node.node_id] = ProduceResponseNodeEndpoint(
                node_id=leader.node.node_id, host=leader.node.host, port=leader.node.port, rack=leader.node.rack or None
            )

    def _count(self, request: _Request, outcomes: Sequence[Outcome]) -> None:
        self._traffic.calls += 1
        request.produced.observe(outcomes, self._traffic, size_bytes=request.size_bytes)


def _by_target(batches: Sequence[_Batch]) -> list[tuple[AppendTarget, list[_Batch]]]:
    """Returns the batches of each topic, in the order of the request."""
    by_topic: dict[TopicId, tuple[AppendTarget, list[_Batch]]] = {}
    for batch in batches:
        by_topic.setdefault(batch.target.topic.id, (batch.target, []))[1].append(batch)
    return list(by_topic.values())


def _outcome(pending: Pending | TidelogError | None, request: _Request) -> Outcome:
    """Returns the outcome of a batch as known now."""
    if isinstance(pending, TidelogError):
        return pending
    if not isinstance(pending, PendingAppend):
        return NOT_AWAITED
    if request.acks is not Acks.ALL or pending.segment is None:
        return pending.appended
    if not pending.segment.outcome.done():
        return late_commit(request.produced.deadline)
    return pending.segment.outcome.result() or pending.appended


def _decided(request: _Request, batch: _Batch, outcome: Outcome) -> Outcome:
    """Returns the outcome to answer with: a batch behind a refused one is refused like that one."""
    if batch.is_refused:
        return outcome
    if isinstance(outcome, TidelogError):
        return _refused_batch(request, batch, outcome)
    refused_batches = request.connection.refused_batches
    if refused_batches is not None and batch.checked is not None and batch.checked.header.producer_id >= 0:
        named, partition, header = _name_of(request, batch), batch.topic_partition.partition, batch.checked.header
        refused_batches.appended(SentBatch(named, partition, header.producer_id, header.producer_epoch, header.base_sequence))
    return outcome


def _refused_batch(request: _Request, batch: _Batch, error: TidelogError) -> TidelogError:
    header = _header_of(batch.batch) if batch.checked is None else batch.checked.header
    return _refused(request, _name_of(request, batch), batch.topic_partition.partition, header, error)


def _refused(request: _Request, topic: str, partition: int, header: BatchHeader | None, error: TidelogError) -> TidelogError:
    """Notes the refusal of a batch, and returns the error to answer with. `topic` is the name or id that the request has."""
    if header is None or header.producer_id < 0:
        return error
    connection = request.connection
    if connection.refused_batches is None:
        connection.refused_batches = RefusedBatches()
    return connection.refused_batches.refused(
        SentBatch(topic, partition, header.producer_id, header.producer_epoch, header.base_sequence),
        error,
        is_retried=produce_code(error, request.header.api_version) in RETRIED_BY_PRODUCERS,
        now_s=asyncio.get_running_loop().time(),
    )


def _name_of(request: _Request, batch: _Batch) -> str:
    """Returns the topic as the request names it."""
    topic = batch.target.topic
    return topic.id if request.header.api_version >= BY_ID else topic.name


def _header_of(batch: Buffer | None) -> BatchHeader | None:
    """Returns the header of a batch that was refused before its checks; None where it is damaged."""
    try:
        return parse_header(batch or b"")
    except TidelogError:
        return None


def _memory_of(request: _Request) -> int:
    """Returns the bytes that the batches of a request take of the log's buffer."""
    return sum(memory_bytes(len(each.batch)) for each in request.batches)


def _stored(records: memoryview | None, *, is_kept: bool) -> Buffer:
    """Returns the batch as it is stored: a view where its frame is kept, else a copy. InvalidRecord where there is none."""
    if not records:
        raise InvalidRecord("the request names a partition, and has no batch for it")
    return records if is_kept else bytes(records)


def _too_large(batch: Buffer, target: AppendTarget) -> TooLarge:
    return TooLarge(
        f"the record batch has {len(batch)} bytes; the topic takes {target.batch_bytes_max}",
        hint=target.larger_batches_hint,
        size=len(batch),
        bytes_max=target.batch_bytes_max,
    )
