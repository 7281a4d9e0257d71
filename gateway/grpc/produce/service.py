"""Serves Produce over gRPC: reads a message when the budget has bytes for it, appends it at once, and answers in order of arrival.

    read (receive_budget.py) ─▶ log's buffer ─▶ appends (appender.py) ─▶ window ─▶ outcome ─▶ answer
    └ a turn reserves bytes for a message like those before                 └ full: the client does not read

A stream has one reader task and one writer task, and between them a window of unanswered messages. Invariants: a client that
disconnects, or never reads, stops only its own stream, and its appends remain. A message is in memory only while one of the two
budgets counts it: `Unanswered` keeps nothing of its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count, islice
from typing import Final, NamedTuple

import grpc.aio

from gateway.access.refusals import settle_topics
from gateway.api import BrokerApi
from gateway.concurrency.offload import BoundedExecutor, LoopYielder
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.calls import Context, is_forwarded, throttled_by
from gateway.grpc.produce.appender import MessageAppender, Taken
from gateway.grpc.produce.open_streams import ProducerStreams
from gateway.grpc.produce.receive_budget import FIRST_TURN_S, FOREVER_S, TURN_S, IncomingMessage, ReceiveBudget
from gateway.grpc.produce.request_decoder import ProduceRequestView, parse_produce
from gateway.proto import log_pb2
from gateway.proto.status import to_status
from gateway.records.append import Outcome, ProduceRequest, why_made_again
from gateway.records.partitioning import outcome_by_record
from metadata.errors import InvalidArgument, TidelogError, Unauthenticated, UnknownTopic
from metadata.model import Partition, TopicId, TopicPartition
from segments.deadline import Deadline
from segments.log.session_log import Acks, memory_bytes

# Results of more records than this are encoded in a thread.
RECORDS_AT_ONCE: Final = 500


class Unanswered(NamedTuple):
    """The state of a message until its answer: its pending appends, and nothing of its bytes."""

    correlation_id: int
    produce: ProduceRequest
    taken: list[Taken]
    message_bytes: int
    is_forwarded: bool = False


class GrpcProduce:
    """Serves the calls Produce and ProduceStream of one gRPC listener."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits, streams: ProducerStreams) -> None:
        self._broker = broker
        self._waits = waits
        self._streams = streams
        self._round_robin = count()
        self._incoming = ReceiveBudget(broker.settings.grpc_waiting_bytes_max, bytes_usual=broker.settings.message_bytes_max)
        self._threads = BoundedExecutor()

    async def produce(self, context: Context) -> bytes:
        """Serves the unary call. Raises InvalidArgument for a call without a request, and what refuses the message as a whole."""
        unanswered = await self._take_next(context, turn_timeout_s=self._broker.settings.produce_timeout_ms / 1000)
        if unanswered is None:
            raise InvalidArgument("the call carries no request")
        return await self._answer(unanswered, context)

    async def produce_stream(self, context: Context) -> None:
        """Serves a stream until the client ends it. Answers earlier messages before it raises.

        Raises InvalidArgument for a malformed message, Stopping at a stop, Unauthenticated after the first append for which the
        credentials no longer count, and other refusals of a whole message.
        """
        window: asyncio.Queue[Unanswered | None] = asyncio.Queue(self._broker.settings.grpc_stream_window)
        refusal: TidelogError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._answer_in_order(window, context))
                try:
                    with self._streams.open() as heard:
                        await self._read_all(context, window, heard)
                except TidelogError as error:
                    refusal = error.with_traceback(None)
                await window.put(None)
        except* grpc.aio.BaseError:
            refusal = None  # the client is gone
        if refusal is not None:
            raise refusal

    async def _read_all(self, context: Context, window: asyncio.Queue[Unanswered | None], heard: Callable[[], None]) -> None:
        bytes_expected, turn_s = None, FIRST_TURN_S
        while (unanswered := await self._take_next(context, bytes_expected=bytes_expected, turn_s=turn_s)) is not None:
            heard()
            bytes_expected, turn_s = max(unanswered.message_bytes, (bytes_expected or 0) // 4), TURN_S
            revoked = _unauthenticated(unanswered)
            await window.put(unanswered)
            if revoked is not None:
                raise revoked

    async def _answer_in_order(self, window: asyncio.Queue[Unanswered | None], context: Context) -> None:
        while (unanswered := await window.get()) is not None:
            await context.write(await self._answer(unanswered, context))

    # ── in ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take_next(
        self, context: Context, *, bytes_expected: int | None = None, turn_s: float = TURN_S, turn_timeout_s: float = FOREVER_S
    ) -> Unanswered | None:
        """Reads the next message and appends its entries; returns None at the end of the stream.

        Raises Stopping, Throttled if its turn does not come in time, InvalidArgument for a malformed message, and TooLarge for one
        with too many appends.
        """
        async with self._waits.until_stop():
            message = await self._incoming.next(
                context.read, bytes_expected=bytes_expected, turn_s=turn_s, timeout_s=turn_timeout_s
            )
        if message is None:
            return None
        with message:
            call = parse_produce(message.body)
            timeout_ms_max = self._broker.settings.produce_timeout_ms
            timeout_s = min(call.timeout_ms or timeout_ms_max, timeout_ms_max) / 1000
            forwarded = is_forwarded(context)
            log = self._broker.local_log if forwarded else self._broker.cluster_log
            produce = ProduceRequest(log, call.acks, Deadline.after(timeout_s))
            try:
                taken = await self._take(call, message, produce, forwarded=forwarded)
            except TidelogError as error:
                produce.pending = [error.with_traceback(None)] * len(call.appends)
                taken = [Taken(1)] * len(call.appends)
            return Unanswered(call.correlation_id, produce, taken, len(message.body), forwarded)

    async def _take(
        self, call: ProduceRequestView, message: IncomingMessage, produce: ProduceRequest, *, forwarded: bool
    ) -> list[Taken]:
        """Appends the entries of a message. Raises Throttled, TooLarge, NoLeader or Stopping if the log refuses it as a whole."""
        if not forwarded:
            await settle_topics(append.topic for append in call.appends)
        deadline = produce.deadline
        bytes_held = memory_bytes(len(message.body), batches=len(call.appends))
        message.hold(bytes_held)
        async with produce.log.admit(bytes_held, timeout_s=deadline.timeout_s) as admission:
            message.release()
            if forwarded:
                await self._broker.local_log.await_takeover(_destinations(call), deadline_s=deadline.at_s)
            appends = MessageAppender(
                self._broker, produce, admission, is_forwarded=forwarded, round_robin=self._round_robin, threads=self._threads
            )
            taken: list[Taken] = []
            yielder = LoopYielder()
            for at, request in enumerate(call.appends):
                taken.append(await appends.take(at, request))
                await yielder.step()
        return taken

    # ── out ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, unanswered: Unanswered, context: Context) -> bytes:
        response = log_pb2.ProduceResponse(correlation_id=unanswered.correlation_id)
        yielder = LoopYielder()
        produce = unanswered.produce
        outcomes = await self._of_present_topics(unanswered, await produce.outcomes())
        following = iter(outcomes)
        for taken in unanswered.taken:
            result = response.results.add()
            found = list(islice(following, taken.batch_count))
            if taken.plan is not None and len(taken.plan.partitions) > RECORDS_AT_ONCE:
                await self._threads.run(partial(_encode_result, result, taken, found, produce.acks))
            else:
                _encode_result(result, taken, found, produce.acks)
            await yielder.step()
        traffic = self._broker.metrics.traffic.over_grpc(is_forwarded=unanswered.is_forwarded)
        produce.observe(outcomes, traffic, size_bytes=unanswered.message_bytes)
        if (throttled := throttled_by(context)) is not None:
            response.throttled.CopyFrom(to_status(throttled))
        return response.SerializeToString()

    async def _of_present_topics(self, unanswered: Unanswered, outcomes: list[Outcome]) -> list[Outcome]:
        """Replaces UnknownTopic by a retryable error where a client named no id, and the topic was deleted and made again."""
        if not any(isinstance(each, UnknownTopic) for each in outcomes):
            return outcomes
        why: dict[TopicId, TidelogError | None] = {}
        found: list[Outcome] = []
        following = iter(outcomes)
        for taken in unanswered.taken:
            of_append = list(islice(following, taken.batch_count))
            former = taken.by_name
            if former is not None and any(isinstance(each, UnknownTopic) for each in of_append):
                if former.id not in why:
                    why[former.id] = await why_made_again(self._broker, former.name, former.id, unanswered.produce.deadline)
                error = why[former.id]
                if error is not None:
                    of_append = [error if isinstance(each, UnknownTopic) else each for each in of_append]
            found += of_append
        return found


def _unauthenticated(unanswered: Unanswered) -> Unauthenticated | None:
    """Returns why the stream's credentials are no longer accepted. A forwarded stream carries appends of many clients."""
    if unanswered.is_forwarded:
        return None
    return next((each for each in unanswered.produce.pending if isinstance(each, Unauthenticated)), None)


def _destinations(call: ProduceRequestView) -> set[TopicPartition]:
    """Returns the partitions of a forwarded message, which names topics by their ids."""
    return {
        TopicPartition(TopicId(append.topic_id), Partition(append.partition))
        for append in call.appends
        if append.partition is not None
    }


def _encode_result(result: log_pb2.AppendResult, taken: Taken, found: list[Outcome], acks: Acks) -> None:
    errors = [outcome for outcome in found if isinstance(outcome, TidelogError)]
    if len(errors) == len(found) and len({type(error) for error in errors}) == 1:
        result.error.CopyFrom(to_status(errors[0]))
    elif acks is Acks.NONE and not errors:
        return
    elif taken.plan is None:
        result.placements.append(_placement(taken.partition, found[0], 0, 1 + _last_index(found[0])))
    else:
        result.placements.extend(_placements(outcome_by_record(taken.plan, found)))


def _placements(records: Iterable[tuple[int, Outcome, int]]) -> Iterable[log_pb2.Placement]:
    """Yields a placement for each run of records with consecutive offsets, in the order of the request."""
    run: tuple[int, Outcome, int] | None = None
    length = 0
    for partition, outcome, index in records:
        if run is not None and run[0] == partition and run[1] is outcome and run[2] + length == index:
            length += 1
            continue
        if run is not None:
            yield _placement(*run, length)
        run, length = (partition, outcome, index), 1
    if run is not None:
        yield _placement(*run, length)


def _placement(partition: int, outcome: Outcome, index: int, length: int) -> log_pb2.Placement:
    if isinstance(outcome, TidelogError):
        return log_pb2.Placement(partition=partition, base_offset=-1, count=length, error=to_status(outcome))
    return log_pb2.Placement(
        partition=partition,
        base_offset=outcome.base_offset + index,
        count=length,
        leader_epoch=outcome.leader_epoch,
        duplicate=outcome.duplicate,
        log_append_time_ms=None if outcome.log_append_time_ms < 0 else outcome.log_append_time_ms,
    )


def _last_index(outcome: Outcome) -> int:
    return 0 if isinstance(outcome, TidelogError) else outcome.last_offset - outcome.base_offset
