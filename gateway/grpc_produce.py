"""Produce over gRPC: a message is read when there is room for it, appended at once, and answered in the order of its coming.

    gate: room for a message like the last ─▶ read ─▶ check, append ─▶ window ─▶ outcome ─▶ answer
          └ the buffer is full: the message waits at the client        └ full: the client does not read its answers

A stream has one reader and one writer, and between them a window of unanswered requests. Invariants: a client that hangs up, or
never reads, stops only itself, and what it had appended remains; an idle stream holds no room in the buffer; of messages that
were read but found no room there is at most one per stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from itertools import count
from typing import Final, NamedTuple

import grpc.aio

from gateway.doors import Broker, partition_of
from gateway.grpc_calls import Context
from gateway.grpc_status import status_of
from gateway.long_waits import LongWaits
from gateway.produce import Outcome, ReadyBatch, Target, append, check_ready_batch, outcomes, target_named
from gateway.produce_wire import AppendRequest, ProduceCall, parse_produce
from gateway.proto import log_pb2
from gateway.record_routing import Plan, outcome_by_record, plan_records, route, single_partition
from metadata.errors import InvalidArgument, TidelogError, TooLarge
from segments.batch_kernel import NewRecordTuple
from segments.byte_budget import Admission
from segments.log import Acks, Log, PendingAppend
from segments.object_store import Buffer
from segments.record_batch import parse_header

FIRST_MESSAGE_BYTES: Final = 64 << 10
"""The room that the first message of a stream is read into."""
GATE_HOLD_S: Final = 0.02
"""How long room is held for a message that may be on its way; whoever waited for room has sent his already."""
GATE_TIMEOUT_S: Final = 24 * 3600.0


class Taken(NamedTuple):
    """One append of a request whose batches were appended, or refused one by one."""

    log: Log
    pending: list[PendingAppend | TidelogError]
    partition: int
    """Of a ready batch."""
    plan: Plan | None
    """Of structured records."""


class Unanswered(NamedTuple):
    call: ProduceCall
    taken: list[Taken | TidelogError]
    deadline_s: float
    message_bytes: int


class GrpcProduce:
    def __init__(self, broker: Broker, waits: LongWaits) -> None:
        self._broker = broker
        self._waits = waits
        self._turns = count()

    async def produce(self, context: Context) -> bytes:
        """The unary call."""
        unanswered = await self._take_next(context, FIRST_MESSAGE_BYTES)
        if unanswered is None:
            raise InvalidArgument("the call carries no request")
        return await self._answer(unanswered)

    async def produce_stream(self, context: Context) -> None:
        """Raises InvalidArgument for a malformed message and Stopping at a stop, after what was taken before is answered."""
        window: asyncio.Queue[Unanswered | None] = asyncio.Queue(self._broker.settings.grpc_stream_window)
        refusal: TidelogError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._answer_in_order(window, context))
                try:
                    await self._read_all(context, window)
                except TidelogError as error:
                    refusal = error
                await window.put(None)
        except* grpc.aio.BaseError:
            refusal = None  # the client is gone
        if refusal is not None:
            raise refusal

    async def _read_all(self, context: Context, window: asyncio.Queue[Unanswered | None]) -> None:
        bytes_expected = FIRST_MESSAGE_BYTES
        while (unanswered := await self._take_next(context, bytes_expected)) is not None:
            bytes_expected = unanswered.message_bytes
            await window.put(unanswered)

    async def _answer_in_order(self, window: asyncio.Queue[Unanswered | None], context: Context) -> None:
        while (unanswered := await window.get()) is not None:
            await context.write(await self._answer(unanswered))

    # ── in ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take_next(self, context: Context, bytes_expected: int) -> Unanswered | None:
        """Reads a message and appends what it carries; None when the client has no more. Raises Stopping, InvalidArgument."""
        async with AsyncExitStack() as room:
            async with self._waits.until_stop():
                admission = await self._gate(room, bytes_expected)
                message, kept_room = await self._read(context, room)
            if message is None:
                return None
            call = parse_produce(message)
            timeout_ms_max = self._broker.settings.produce_timeout_ms
            timeout_s = min(call.timeout_ms or timeout_ms_max, timeout_ms_max) / 1000
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            try:
                if admission is None or not kept_room or len(message) > bytes_expected:
                    await room.aclose()
                    admission = await room.enter_async_context(self._broker.log.admit(len(message), timeout_s=timeout_s))
            except TidelogError as error:
                return Unanswered(call, [error] * len(call.appends), deadline_s, len(message))
            taken = [await self._take(request, admission, at) for at, request in enumerate(call.appends)]
            return Unanswered(call, taken, deadline_s, len(message))

    async def _gate(self, room: AsyncExitStack, bytes_expected: int) -> Admission | None:
        """Waits for room; None where there is no session, so that the request is read and its answer can say so."""
        try:
            return await room.enter_async_context(self._broker.log.admit(bytes_expected, timeout_s=GATE_TIMEOUT_S))
        except TidelogError:
            return None

    async def _read(self, context: Context, room: AsyncExitStack) -> tuple[bytes | None, bool]:
        """(the next message or None at the end, whether the room was kept): who does not send soon gives it back."""
        reading = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait((reading,), timeout=GATE_HOLD_S)
            kept_room = reading.done()
            if not kept_room:
                await room.aclose()
                await asyncio.wait((reading,))
            message: object = reading.result()
        finally:
            reading.cancel()
        return message if isinstance(message, bytes) else None, kept_room

    async def _take(self, request: AppendRequest, admission: Admission, at: int) -> Taken | TidelogError:
        try:
            log = self._broker.log
            target = target_named(self._broker, request.topic)
            if request.record_batch is not None:
                batch = await self._ready_batch(request, target, log, at)
                plan, batches = None, [batch]
            elif request.records is not None:
                plan = self._plan(request, target, at)
                batches = [
                    ReadyBatch(partition_of(target.topic, planned.partition), planned.batch, parse_header(planned.batch))
                    for planned in plan.batches
                ]
            else:
                raise InvalidArgument(f"append {at} carries neither a record batch nor records", field=f"appends[{at}].payload")
            pending = append(log, target, batches, admission, expected_offset=request.expected_offset)
            return Taken(log, pending, batches[0].partition.partition, plan)
        except TidelogError as error:
            return error

    async def _ready_batch(self, request: AppendRequest, target: Target, log: Log, at: int) -> ReadyBatch:
        if request.partition is None:
            raise InvalidArgument(f"append {at} is a record batch without its partition", field=f"appends[{at}].partition")
        assert request.record_batch is not None
        partition = partition_of(target.topic, request.partition)
        header = await check_ready_batch(
            request.record_batch,
            batch_bytes_max=target.batch_bytes_max,
            decompressed_bytes_max=log.settings.decompressed_bytes_max,
        )
        return ReadyBatch(partition, alone_in_memory(request.record_batch), header)

    def _plan(self, request: AppendRequest, target: Target, at: int) -> Plan:
        assert request.records is not None
        records, own_partitions = self._tuples(request.records, request.partition, at)
        partition_count = target.topic.partition_count
        routes = route(
            records, own_partitions, partition_count=partition_count, keyless_partition=next(self._turns) % partition_count
        )
        if request.expected_offset is not None:
            single_partition(list(routes.records), because="expected_offset")
        return plan_records(routes, batch_bytes_max=target.batch_bytes_max, request_bytes=request.records.ByteSize(), producer=None)

    def _tuples(self, records: log_pb2.RecordList, partition: int | None, at: int) -> tuple[list[NewRecordTuple], list[int | None]]:
        """The records as the encoder takes them, and the partition that each asks for."""
        now_ms = time.time_ns() // 1_000_000
        headers_max = self._broker.settings.record_headers_max
        tuples: list[NewRecordTuple] = []
        own_partitions: list[int | None] = []
        for record in records.records:
            field = f"appends[{at}].records[{len(tuples)}]"
            if len(record.headers) > headers_max:
                raise TooLarge(f"{field} has {len(record.headers)} headers; {headers_max} are taken")
            own = record.partition if record.HasField("partition") else partition
            if partition is not None and own != partition:
                raise InvalidArgument(f"{field} asks for partition {own}, its append for {partition}", field=f"{field}.partition")
            own_partitions.append(own)
            headers = [(header.key, header.value if header.HasField("value") else None) for header in record.headers]
            key = record.key if record.HasField("key") else None
            value = record.value if record.HasField("value") else None
            tuples.append((key, value, headers, record.timestamp_ms if record.HasField("timestamp_ms") else now_ms))
        if not tuples:
            raise InvalidArgument(f"append {at} has no records", field=f"appends[{at}].records")
        return tuples, own_partitions

    # ── out ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, unanswered: Unanswered) -> bytes:
        call = unanswered.call
        response = log_pb2.ProduceResponse(correlation_id=call.correlation_id)
        for taken in unanswered.taken:
            if isinstance(taken, TidelogError):
                response.results.add().error.CopyFrom(status_of(taken))
            else:
                found = await outcomes(taken.log, taken.pending, acks=call.acks, deadline_s=unanswered.deadline_s)
                _tell(response.results.add(), taken, found, call.acks)
        return response.SerializeToString()


def alone_in_memory(batch: memoryview) -> Buffer:
    """The batch, copied where it is the lesser part of its message, which would be kept as long as the batch is."""
    return bytes(batch) if 2 * len(batch) < memoryview(batch.obj).nbytes else batch


def _tell(result: log_pb2.AppendResult, taken: Taken, found: list[Outcome], acks: Acks) -> None:
    errors = [outcome for outcome in found if isinstance(outcome, TidelogError)]
    if len(errors) == len(found) and len({type(error) for error in errors}) == 1:
        result.error.CopyFrom(status_of(errors[0]))
    elif acks is Acks.NONE and not errors:
        return
    elif taken.plan is None:
        result.placements.append(_placement(taken.partition, found[0], 0, 1 + _last_place(found[0])))
    else:
        result.placements.extend(_placements(outcome_by_record(taken.plan, found)))


def _placements(records: Iterable[tuple[int, Outcome, int]]) -> Iterable[log_pb2.Placement]:
    """Runs of records that lie one after the other, in the order of the request."""
    run: tuple[int, Outcome, int] | None = None
    length = 0
    for partition, outcome, place in records:
        if run is not None and run[0] == partition and run[1] is outcome and run[2] + length == place:
            length += 1
            continue
        if run is not None:
            yield _placement(*run, length)
        run, length = (partition, outcome, place), 1
    if run is not None:
        yield _placement(*run, length)


def _placement(partition: int, outcome: Outcome, place: int, length: int) -> log_pb2.Placement:
    if isinstance(outcome, TidelogError):
        return log_pb2.Placement(partition=partition, base_offset=-1, count=length, error=status_of(outcome))
    return log_pb2.Placement(
        partition=partition,
        base_offset=outcome.base_offset + place,
        count=length,
        leader_epoch=outcome.leader_epoch,
        duplicate=outcome.duplicate,
    )


def _last_place(outcome: Outcome) -> int:
    return 0 if isinstance(outcome, TidelogError) else outcome.last_offset - outcome.base_offset
