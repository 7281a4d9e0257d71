"""The stream of batches to one leader, and of its answers back. It connects again whenever it breaks.

    accumulator ──take──▶ encode ──▶ ProduceRequest ═══▶ broker
         ▲                                                 │
         └───── acknowledged / refused ◀═══ ProduceResponse, in the order of the requests

A stream begins with an empty request. Only when the broker has answered that, batches follow: so who refuses a stream, or never
takes it up, has certainly written nothing. When a stream breaks later, what is unanswered counts as refused with an unknown
outcome, and the lanes send it again in order (lane.py); before that, the broker is asked what became of their topics. A batch
counts as sent once it is encoded, so what can't be encoded fails alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import grpc.aio

from gateway.proto import log_pb2
from metadata.errors import (
    Denied,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Throttled,
    TidelogError,
    TooLarge,
    Unavailable,
    UnknownProducer,
)
from segments.compression import Codec
from segments.record_columns import encode_records
from tidelog.accumulator import Accumulator
from tidelog.batch import Batch
from tidelog.connection import Connection, Stubs
from tidelog.outcomes import count_of_records
from tidelog.owned_tasks import first_error
from tidelog.producer_topics import ProducerTopics
from tidelog.rpc_errors import NotImplementedHere, error_of_rpc, error_of_status
from tidelog.settings import MIB, ClientSettings
from tidelog.wire_sizes import REQUEST_OVERHEAD_BYTES, append_bytes

APPEND_BYTES_PER_REQUEST: Final = 4 * MIB
TIMEOUT_MS_MAX: Final = 2**31 - 1
OUTAGE_TOLD_EVERY_S = 10.0

_ACKS = {"all": log_pb2.ACKS_ALL, "leader": log_pb2.ACKS_LEADER, "none": log_pb2.ACKS_NONE}
_TOPIC_CHANGED = (NotFound, NotLeader, UnknownProducer, TooLarge)
"""Answers that say that what is known of the topic is not true any more: its id, its partitions, its leaders, its limits."""

log = logging.getLogger("tidelog")


class ProduceStream:
    def __init__(
        self,
        address: str,
        connection: Connection,
        accumulator: Accumulator,
        settings: ClientSettings,
        *,
        topics: ProducerTopics,
        answered: Callable[[], None],
    ) -> None:
        """`answered`: batches may have left the buffer."""
        self._address = address
        self._connection = connection
        self._accumulator = accumulator
        self._settings = settings
        self._topics = topics
        self._answered = answered
        self._codec = Codec[settings.compression.upper()]
        self._work = asyncio.Event()
        self._unidentified = asyncio.Event()
        """There are lanes that need a producer id."""
        self._sent: deque[tuple[int, list[Batch]]] = deque()
        """Requests without an answer, the oldest first."""
        self._correlation_id = 0
        self._answers = 0
        self._broke = False
        """The last stream broke, and the topics were not asked about since."""
        self._overdue = asyncio.Event()
        self._away_since_s: float | None = None
        """Since when no stream can be opened; None while there is no trouble."""
        self._outage_told_s = 0.0

    def wake(self) -> None:
        """There may be something to send."""
        self._work.set()

    def break_off(self) -> None:
        """The broker owes an answer for too long: what is unanswered goes again over a new stream."""
        self._overdue.set()

    async def run(self) -> None:
        """Sends whatever the accumulator has for this leader, until cancelled."""
        pause_s = self._settings.retry_pause_ms / 1000
        while True:
            while not self._accumulator.busy(self._address):
                self._work.clear()
                await self._work.wait()
            answers, began_s, wait_s = self._answers, asyncio.get_running_loop().time(), 0.0
            try:
                await self._connection.until_connected(self._address)
                if self._broke:
                    await self._topics.learn_before_resending(self._accumulator.topics_of(self._address), self._address)
                    self._broke = False
                    continue  # its partitions may have moved
                await self._converse(self._connection.stubs(self._address))
            except Unavailable as error:
                self._accumulator.unreachable(self._address, error)
                self._tell_outage(error)
                self._topics.learn_later(self._accumulator.topics_of(self._address))
                wait_s = error.retry_after_s if isinstance(error, Throttled) else 0.0
            pause_s_max = self._settings.retry_pause_ms_max / 1000
            if self._answers > answers or asyncio.get_running_loop().time() - began_s > pause_s_max:
                pause_s = self._settings.retry_pause_ms / 1000
            else:
                await asyncio.sleep(max(wait_s, pause_s * random.uniform(0.5, 1.5)))
                pause_s = min(2 * pause_s, pause_s_max)

    def _tell_outage(self, error: Unavailable) -> None:
        """Once at its beginning, and then now and then with what waits for its end."""
        now_s = asyncio.get_running_loop().time()
        if self._away_since_s is None:
            self._away_since_s = self._outage_told_s = now_s
            log.warning("%s; trying again", error)
        elif now_s - self._outage_told_s >= OUTAGE_TOLD_EVERY_S:
            self._outage_told_s = now_s
            waiting = count_of_records(self._accumulator.unacknowledged_records(self._address))
            log.warning("%s; for %.0f s now, %s not acknowledged; trying again", error, now_s - self._away_since_s, waiting)

    def _tell_end_of_outage(self) -> None:
        if self._away_since_s is not None:
            log.warning("%s: connected again", self._address)
            self._away_since_s = None

    async def _converse(self, stubs: Stubs) -> None:
        """One stream, from its opening until it breaks. Raises Unavailable where the broker does not take it up."""
        self._overdue.clear()
        call = stubs.log.ProduceStream()
        try:
            if await self._is_taken_up(call):
                await self._exchange(call)
        finally:
            call.cancel()

    async def _is_taken_up(self, call: Any) -> bool:
        """Whether batches may follow; where not, and no other attempt would help, they have failed."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_ms / 1000):
                with suppress(asyncio.InvalidStateError):  # it has ended already; reading says how
                    await call.write(log_pb2.ProduceRequest())
                answer = await call.read()
        except TimeoutError:
            raise Unavailable(f"{self._address}: the broker does not take up a stream") from None
        except grpc.aio.AioRpcError as rpc_error:
            error = error_of_rpc(rpc_error, address=self._address, writes=False)
            if isinstance(error, Denied | NotImplementedHere):
                self._accumulator.abandon(self._accumulator.busy(self._address), error)
                self._answered()
                return False
            raise error if isinstance(error, Unavailable) else Unavailable(error.message, hint=error.hint) from rpc_error
        if answer is grpc.aio.EOF:
            raise Unavailable(f"{self._address}: the broker ended the stream")
        self._tell_end_of_outage()
        return True

    async def _exchange(self, call: Any) -> None:
        error: TidelogError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(call), name=f"write to {self._address}")
                tasks.create_task(self._read(call), name=f"read from {self._address}")
                tasks.create_task(self._identify(), name=f"producer ids from {self._address}")
                tasks.create_task(self._until_overdue(), name=f"watch {self._address}")
        except* grpc.aio.AioRpcError as group:
            error = error_of_rpc(first_error(group), address=self._address, writes=True)
        except* TidelogError as group:
            error = first_error(group)
        assert error is not None
        self._stream_broke(error)

    # ── out ──

    async def _write(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._work.clear()
            if self._accumulator.unidentified(self._address):
                self._unidentified.set()
            request = self._next_request(loop.time())
            if request is not None:
                try:
                    await call.write(request)
                except asyncio.InvalidStateError:
                    return  # the stream has ended; the reader knows how
                continue
            wakes_at_s = self._accumulator.wakes_at_s(self._address)
            try:
                async with asyncio.timeout_at(wakes_at_s):
                    await self._work.wait()
            except TimeoutError:
                pass

    def _next_request(self, now_s: float) -> log_pb2.ProduceRequest | None:
        """What leaves now, encoded, and remembered as sent; None where there is nothing."""
        limit = self._connection.limits(self._address).request_bytes_max
        bytes_max = min(APPEND_BYTES_PER_REQUEST, self._settings.request_bytes_max, limit) - REQUEST_OVERHEAD_BYTES
        while taken := self._accumulator.take(self._address, now_s, bytes_max=bytes_max):
            sent, appends = [], []
            for batch in taken:
                try:
                    append = self._append(batch, limit)
                except TidelogError as error:
                    self._accumulator.refused(batch, error, now_s)
                else:
                    sent.append(batch)
                    appends.append(append)
            if len(sent) < len(taken):
                self._answered()
            if sent:
                self._correlation_id += 1
                self._sent.append((self._correlation_id, sent))
                remaining_s = min(batch.deadline_s for batch in sent) - now_s
                return log_pb2.ProduceRequest(
                    correlation_id=self._correlation_id,
                    acks=_ACKS[self._settings.acks],
                    timeout_ms=max(1, min(int(remaining_s * 1000), TIMEOUT_MS_MAX)),
                    appends=appends,
                )
        return None

    def _append(self, batch: Batch, request_bytes_max: int) -> log_pb2.Append:
        """Raises what the codec refuses, and TooLarge: a longer message would break the stream for all that is on it."""
        producer_id, producer_epoch = batch.lane.producer or (-1, -1)
        encoded = encode_records(
            batch.records,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=batch.base_sequence,
        )
        topic, partition = batch.lane.topic, batch.lane.partition
        if REQUEST_OVERHEAD_BYTES + append_bytes(topic, len(encoded)) > request_bytes_max:
            raise TooLarge(
                f"{self._address}: a batch of {len(encoded)} bytes for {topic}/{partition} does not fit a request there; "
                f"it takes {request_bytes_max} bytes",
                hint="Raise request_bytes_max of the broker, or send smaller records.",
                bytes_max=request_bytes_max,
            )
        return log_pb2.Append(topic=topic, partition=partition, record_batch=encoded)

    async def _identify(self) -> None:
        """Fetches a producer id whenever a lane needs one, beside what goes on in the others."""
        while True:
            await self._unidentified.wait()
            self._unidentified.clear()
            try:
                producer: log_pb2.InitProducerResponse = await self._connection.call(_init_producer, writes=False, at=self._address)
            except Unavailable as error:
                self._accumulator.unreachable(self._address, error)
                await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)
            except TidelogError as error:
                self._accumulator.abandon(self._accumulator.unidentified(self._address), error)
                self._answered()
            else:
                self._accumulator.identify(producer.producer_id, producer.producer_epoch)
            self._work.set()

    # ── back ──

    async def _read(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        while (response := await call.read()) is not grpc.aio.EOF:
            expected, batches = self._sent[0] if self._sent else (0, [])
            if response.correlation_id != expected or len(response.results) != len(batches):
                raise OutcomeUnknown(f"{self._address}: the answer is not that of request {expected}")
            self._sent.popleft()
            self._answers += 1
            changed = {
                batch.lane.topic
                for batch, result in zip(batches, response.results, strict=True)
                if self._settle(batch, result, loop.time())
            }
            self._topics.learn_later(changed)
            self._answered()
            self._work.set()
        raise OutcomeUnknown(f"{self._address}: the broker ended the stream")

    async def _until_overdue(self) -> None:
        await self._overdue.wait()
        raise OutcomeUnknown(f"{self._address}: an answer is overdue")

    def _settle(self, batch: Batch, result: log_pb2.AppendResult, now_s: float) -> bool:
        """Takes one answer in; True when the topic is not what we know of it."""
        placement = result.placements[0] if result.placements else None
        status = result.error if result.HasField("error") else None
        if status is None and placement is not None and placement.HasField("error"):
            status = placement.error
        if status is None:
            self._accumulator.acknowledged(batch, placement.base_offset if placement is not None else -1, now_s)
            return False
        error = error_of_status(status, address=self._address)
        self._accumulator.refused(batch, error, now_s)
        return isinstance(error, _TOPIC_CHANGED)

    def _stream_broke(self, error: TidelogError) -> None:
        """What is unanswered may be in the log, unless the broker has refused the stream as such."""
        if not isinstance(error, Denied | NotImplementedHere):
            error = OutcomeUnknown(error.message)
        self._broke = True
        now_s = asyncio.get_running_loop().time()
        while self._sent:
            _, batches = self._sent.popleft()
            for batch in batches:
                self._accumulator.refused(batch, error, now_s)
        self._answered()


def _init_producer(to: Stubs, timeout_s: float) -> Any:
    return to.log.InitProducer(log_pb2.InitProducerRequest(), timeout=timeout_s)
