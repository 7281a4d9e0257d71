"""The stream of batches to one leader, and of its answers back. It connects again whenever it breaks.

    accumulator ──take──▶ encode ──▶ ProduceRequest ═══▶ broker
         ▲                                                 │
         └───── acknowledged / refused ◀═══ ProduceResponse, in the order of the requests

When the stream breaks, what is unanswered counts as refused with an unknown outcome, and the lanes send it again in order
(lane.py). Whether anything went out is known exactly: a stream is only opened on a connection that stands.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc.aio

from gateway.proto import log_pb2
from metadata.errors import Denied, NotLeader, OutcomeUnknown, TidelogError, Unavailable
from segments.compression import Codec
from segments.record_columns import encode_records
from tidelog.accumulator import Accumulator
from tidelog.batch import Batch
from tidelog.connection import Connection, Stubs
from tidelog.outcomes import count_of_records
from tidelog.owned_tasks import first_error
from tidelog.rpc_errors import NotImplementedHere, error_of_rpc, error_of_status
from tidelog.settings import MIB, ClientSettings

APPEND_BYTES_PER_REQUEST = 4 * MIB

OUTAGE_TOLD_EVERY_S = 10.0

_ACKS = {"all": log_pb2.ACKS_ALL, "leader": log_pb2.ACKS_LEADER, "none": log_pb2.ACKS_NONE}

log = logging.getLogger("tidelog")


class ProduceStream:
    def __init__(
        self,
        address: str,
        connection: Connection,
        accumulator: Accumulator,
        settings: ClientSettings,
        *,
        answered: Callable[[], None],
        leaders_changed: Callable[[set[str]], None],
    ) -> None:
        """`answered`: batches may have left the buffer. `leaders_changed`: who leads these topics has to be learnt again."""
        self._address = address
        self._connection = connection
        self._accumulator = accumulator
        self._settings = settings
        self._answered = answered
        self._leaders_changed = leaders_changed
        self._codec = Codec[settings.compression.upper()]
        self._work = asyncio.Event()
        self._sent: deque[tuple[int, list[Batch]]] = deque()
        """Requests without an answer, the oldest first."""
        self._correlation_id = 0
        self._overdue = asyncio.Event()
        self._away_since_s: float | None = None
        """Since when no connection can be made; None while there is no trouble."""
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
            while not self._accumulator.is_busy(self._address):
                self._work.clear()
                await self._work.wait()
            try:
                await self._connection.until_connected(self._address)
            except Unavailable as error:
                self._accumulator.unreachable(self._address, error)
                self._tell_outage(error)
                self._leaders_changed(self._accumulator.topics_of(self._address))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, self._settings.retry_pause_ms_max / 1000)
            else:
                pause_s = self._settings.retry_pause_ms / 1000
                self._tell_end_of_outage()
                await self._converse(self._connection.stubs(self._address))

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
        """One stream, from its opening until it breaks."""
        self._overdue.clear()
        call = stubs.log.ProduceStream()
        error: TidelogError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(call), name=f"write to {self._address}")
                tasks.create_task(self._read(call), name=f"read from {self._address}")
                tasks.create_task(self._until_overdue(), name=f"watch {self._address}")
        except* grpc.aio.AioRpcError as group:
            error = error_of_rpc(first_error(group), address=self._address, writes=True)
        except* TidelogError as group:
            error = first_error(group)
        finally:
            call.cancel()
        assert error is not None
        self._stream_broke(error)

    async def _write(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._work.clear()
            if lanes := self._accumulator.unidentified(self._address):
                producer: log_pb2.InitProducerResponse = await self._connection.call(_init_producer, writes=False)
                for lane in lanes:
                    if lane.producer is None:
                        lane.identify(producer.producer_id, producer.producer_epoch)
            now_s = loop.time()
            batches = self._accumulator.take(self._address, now_s, bytes_max=APPEND_BYTES_PER_REQUEST)
            if batches:
                self._correlation_id += 1
                self._sent.append((self._correlation_id, batches))
                try:
                    await call.write(self._request(batches, now_s))
                except asyncio.InvalidStateError:
                    return  # the stream has ended; the reader knows how
                continue
            wakes_at_s = self._accumulator.wakes_at_s(self._address)
            try:
                async with asyncio.timeout_at(wakes_at_s):
                    await self._work.wait()
            except TimeoutError:
                pass

    def _request(self, batches: list[Batch], now_s: float) -> log_pb2.ProduceRequest:
        remaining_s = min(batch.deadline_s for batch in batches) - now_s
        return log_pb2.ProduceRequest(
            correlation_id=self._correlation_id,
            acks=_ACKS[self._settings.acks],
            timeout_ms=max(1, int(remaining_s * 1000)),
            appends=[
                log_pb2.Append(topic=batch.lane.topic, partition=batch.lane.partition, record_batch=self._encode(batch))
                for batch in batches
            ],
        )

    def _encode(self, batch: Batch) -> bytes:
        producer_id, producer_epoch = batch.lane.producer or (-1, -1)
        return encode_records(
            batch.records,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=batch.base_sequence,
        )

    async def _read(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        while (response := await call.read()) is not grpc.aio.EOF:
            expected, batches = self._sent[0] if self._sent else (0, [])
            if response.correlation_id != expected or len(response.results) != len(batches):
                raise OutcomeUnknown(f"{self._address}: the answer is not that of request {expected}")
            self._sent.popleft()
            moved: set[str] = set()
            for batch, result in zip(batches, response.results, strict=True):
                if self._settle(batch, result, loop.time()):
                    moved.add(batch.lane.topic)
            self._leaders_changed(moved)
            self._answered()
            self._work.set()
        raise OutcomeUnknown(f"{self._address}: the broker ended the stream")

    async def _until_overdue(self) -> None:
        await self._overdue.wait()
        raise OutcomeUnknown(f"{self._address}: an answer is overdue")

    def _settle(self, batch: Batch, result: log_pb2.AppendResult, now_s: float) -> bool:
        """Takes one answer in; True when another broker leads the partition."""
        placement = result.placements[0] if result.placements else None
        status = result.error if result.HasField("error") else None
        if status is None and placement is not None and placement.HasField("error"):
            status = placement.error
        if status is None:
            self._accumulator.acknowledged(batch, placement.base_offset if placement is not None else -1, now_s)
            return False
        error = error_of_status(status, address=self._address)
        self._accumulator.refused(batch, error, now_s)
        return isinstance(error, NotLeader)

    def _stream_broke(self, error: TidelogError) -> None:
        """What is unanswered may be in the log, unless the broker has refused the stream as such."""
        if not isinstance(error, Denied | NotImplementedHere):
            error = OutcomeUnknown(error.message)
        now_s = asyncio.get_running_loop().time()
        while self._sent:
            _, batches = self._sent.popleft()
            for batch in batches:
                self._accumulator.refused(batch, error, now_s)
        self._answered()


def _init_producer(to: Stubs, timeout_s: float) -> Any:
    return to.log.InitProducer(log_pb2.InitProducerRequest(), timeout=timeout_s)
