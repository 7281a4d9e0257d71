"""Streams batches one way to their leader, and receives the answers. Reconnects whenever the stream breaks.

    accumulator ──take──▶ encode ──▶ ProduceRequest ═══▶ broker
         ▲                                                 │
         └───── acknowledged / refused ◀═══ ProduceResponse, in the order of the requests

A stream begins with an empty request. Only when the broker has answered that, batches follow: so who refuses a stream, or never
takes it up, has certainly written nothing. When a stream breaks later, what is unanswered counts as refused with an unknown
outcome, and the queues send it again in order (partition_queue.py); before that, the broker is asked what became of their topics. A
batch counts as sent once it is encoded, so what can't be encoded fails alone.

A broker that hangs keeps its connections. So whenever it owes an answer and has said nothing for SILENCE_S, another one is asked
who leads by now: if that is another broker, the stream is given up; where it is still this one, it is slow, and is left alone.
A broker that said that it reads nothing for a while, because a quota is overdrawn, is not silent within that time.
A broker that may wait for a leader itself (`RoutePath.awaits`) has a stream of its own for that, and counts as hanging no
sooner: but who leads is asked sooner, so that the next leader is found.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

import grpc.aio

from gateway.proto import log_pb2
from gateway.proto.status import from_status
from metadata.errors import (
    Denied,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Rejected,
    Throttled,
    TidelogError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownProducer,
    UnknownTopic,
)
from segments.records.columns import encode_records
from segments.records.compression import Codec
from tidelog.producer.accumulator import RecordAccumulator
from tidelog.producer.batch import ProducerBatch
from tidelog.producer.outcomes import count_of_records
from tidelog.producer.topic_metadata import ProducerMetadata
from tidelog.settings import MIB, ClientSettings
from tidelog.tasks import first_completed
from tidelog.transport.connection import QUESTION_S, Connection, Stubs
from tidelog.transport.routes import RoutePath
from tidelog.transport.rpc_errors import NotImplementedHere, error_of_rpc
from tidelog.transport.wire_sizes import REQUEST_OVERHEAD_BYTES, append_bytes

APPEND_BYTES_PER_REQUEST: Final = 4 * MIB
TIMEOUT_MS_MAX: Final = 2**31 - 1
OUTAGE_LOG_EVERY_S = 10.0
# Longer than a commit on a store that is well, and far shorter than the session of a broker that hangs.
SILENCE_S = 1.0
# The same where the broker waits for a leader: who leads is asked so often.
AWAITED_S = 0.05
# A pause between two questions is so many times as long as the answer took, up to SILENCE_S: topics may have many partitions.
QUESTIONS_APART: Final = 10

_ACKS = {"all": log_pb2.ACKS_ALL, "leader": log_pb2.ACKS_LEADER, "none": log_pb2.ACKS_NONE}
# Answers that say that what is known of the topic is not true any more: its id, its partitions, its leaders, its limits.
_TOPIC_CHANGED = (NotFound, NotLeader, UnknownProducer, TooLarge)

log = logging.getLogger("tidelog")


class Sender:
    """Sends batches to one leader over a stream, and reconnects when it breaks."""

    def __init__(
        self,
        way: RoutePath,
        connection: Connection,
        accumulator: RecordAccumulator,
        settings: ClientSettings,
        *,
        topics: ProducerMetadata,
        answered: Callable[[], None],
    ) -> None:
        """`answered` is called when batches may have left the buffer."""
        self._way = way
        self._address = way.address
        self._connection = connection
        self._accumulator = accumulator
        self._settings = settings
        self._topics = topics
        self._answered = answered
        self._codec = Codec[settings.compression.upper()]
        self._work = asyncio.Event()
        # There are queues that need a producer id.
        self._unidentified = asyncio.Event()
        # Requests without an answer, the oldest first.
        self._sent: deque[tuple[int, list[ProducerBatch]]] = deque()
        self._correlation_id = 0
        self._answers = 0
        # The last stream broke, and the topics were not asked about since.
        self._broke = False
        self._overdue = asyncio.Event()
        # The `authorization` header that the present stream began with, and whether the broker refuses it while there is another.
        self._authorization: str | None = None
        self._is_outdated = False
        # Since when the broker owes something and has said nothing; None while it owes nothing.
        self._owes_since_s: float | None = None
        # Until when it reads nothing of the stream, as it said.
        self._throttled_until_s = 0.0
        # When another one was last asked what to think of its silence.
        self._asked_s = 0.0
        # Since when no stream can be opened; None while there is no trouble.
        self._away_since_s: float | None = None
        self._outage_logged_s = 0.0

    def wake(self) -> None:
        """Wakes the sender: there may be something to send."""
        self._work.set()

    def break_off(self) -> None:
        """Breaks off the stream of a silent broker: unanswered batches go again over a new one."""
        self._overdue.set()

    async def run(self) -> None:
        """Sends whatever the accumulator has for this leader, until cancelled."""
        pause_s = self._settings.retry_pause_ms / 1000
        while True:
            while not self._accumulator.busy(self._way):
                self._work.clear()
                await self._work.wait()
            answers, began_s, wait_s = self._answers, asyncio.get_running_loop().time(), 0.0
            try:
                await self._connection.until_connected(self._address)
                if self._broke:
                    await self._topics.learn_before_resending(self._accumulator.topics_of(self._way), self._address)
                    self._broke = False
                    continue  # its partitions may have moved
                with self._connection.held(self._address) as stubs:
                    await self._converse(stubs)
            except Unavailable as met:
                error = self._connection.naming_all_that_are_silent(met)
                self._accumulator.unreachable(self._way, error)
                self._log_outage(error)
                self._topics.learn_later(self._accumulator.topics_of(self._way))
                if isinstance(error, Throttled):
                    wait_s = error.retry_after_s * random.uniform(1.0, 1.5)  # many are refused at the same moment
            except Rejected as error:  # of the way there, as a key that is not to go in plain text: what others take goes on
                self._topics.learn_later(self._accumulator.topics_of(self._way))  # another may lead by the next record
                self._accumulator.abandon(self._accumulator.busy(self._way), error)
                self._answered()
            pause_s_max = self._settings.retry_pause_ms_max / 1000
            if self._answers > answers or asyncio.get_running_loop().time() - began_s > pause_s_max:
                pause_s = self._settings.retry_pause_ms / 1000
            else:
                await asyncio.sleep(max(wait_s, pause_s * random.uniform(0.5, 1.5)))
                pause_s = min(2 * pause_s, pause_s_max)

    def _log_outage(self, error: Unavailable) -> None:
        """Logs an outage at its beginning, and then now and then with what waits for its end."""
        now_s = asyncio.get_running_loop().time()
        if self._away_since_s is None:
            self._away_since_s = self._outage_logged_s = now_s
            log.warning("sending failed: %s; retrying", error)
        elif now_s - self._outage_logged_s >= OUTAGE_LOG_EVERY_S:
            self._outage_logged_s = now_s
            waiting = count_of_records(self._accumulator.unacknowledged_records(self._way))
            log.warning("sending fails for %.0f s: %s; %s not acknowledged; retrying", now_s - self._away_since_s, error, waiting)

    def _log_end_of_outage(self) -> None:
        if self._away_since_s is not None:
            log.warning("connected again broker=%s", self._address)
            self._away_since_s = None

    async def _converse(self, stubs: Stubs) -> None:
        """Runs one stream from its opening until it breaks. Raises Unavailable if the broker does not accept it."""
        self._overdue.clear()
        self._authorization, self._is_outdated = self._connection.authorization(), False
        call = stubs.log.ProduceStream()
        try:
            if await self._is_taken_up(call):
                await self._exchange(call)
        finally:
            call.cancel()

    async def _is_taken_up(self, call: Any) -> bool:
        """Returns whether batches may follow. If not, and a retry would not help, the batches have failed."""
        self._owes_since_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._settings.request_timeout_ms / 1000):
                answer = await first_completed(self._opened(call), self._watch())
        except TimeoutError:
            raise Unavailable(f"{self._address}: the broker does not take up a stream", address=self._address) from None
        except grpc.aio.AioRpcError as rpc_error:
            error = self._unless_replaced(error_of_rpc(rpc_error, address=self._address, writes=False))
            if isinstance(error, Denied | NotImplementedHere):
                self._accumulator.abandon(self._accumulator.busy(self._way), error)
                self._answered()
                return False
            if isinstance(error, Unavailable):
                raise error from rpc_error
            raise Unavailable(error.message, hint=error.hint, address=self._address) from rpc_error
        except OutcomeUnknown as silence:
            raise Unavailable(silence.message, address=self._address) from None  # nothing but the empty request went out
        finally:
            self._owes_since_s = None
        if answer is grpc.aio.EOF:
            raise Unavailable(f"{self._address}: the broker ended the stream", address=self._address)
        self._log_end_of_outage()
        return True

    @staticmethod
    async def _opened(call: Any) -> Any:
        with suppress(asyncio.InvalidStateError):  # it has ended already; reading says how
            await call.write(log_pb2.ProduceRequest())
        return await call.read()

    async def _exchange(self, call: Any) -> None:
        try:
            await first_completed(self._read(call), self._write(call), self._identify(), self._watch())
        except grpc.aio.AioRpcError as error:
            self._stream_broke(error_of_rpc(error, address=self._address, writes=True))
        except TidelogError as error:
            self._stream_broke(error)

    # ── silence ──

    async def _watch(self) -> NoReturn:
        """Raises OutcomeUnknown: an answer is overdue, or the broker keeps silent and another leads what it owes answers for."""
        clock = asyncio.get_running_loop()
        asked = 0
        least_s = pause_s = AWAITED_S if self._way.awaits else SILENCE_S
        while True:
            owed_since_s = clock.time() if self._owes_since_s is None else max(self._owes_since_s, self._asked_s)
            try:
                async with asyncio.timeout_at(owed_since_s + pause_s):
                    await self._overdue.wait()
            except TimeoutError:
                pass
            else:
                raise OutcomeUnknown(f"{self._address}: an answer is overdue")
            if self._owes_since_s is None or clock.time() - self._owes_since_s < least_s:
                pause_s = least_s
                continue
            topics = self._accumulator.in_flight(self._way) or sorted(self._accumulator.topics_of(self._way))
            began_s = clock.time()
            if topics:
                if began_s - max(self._owes_since_s, self._throttled_until_s) >= SILENCE_S:
                    await self._connection.kept_silent(self._address)
                await self._topics.learn_who_leads(topics[asked % len(topics)])
                asked += 1
            self._asked_s = clock.time()
            pause_s = min(max(least_s, QUESTIONS_APART * (self._asked_s - began_s)), SILENCE_S)
            if self._accumulator.is_deserted(self._way):
                self._topics.learn_later(self._accumulator.topics_of(self._way))
                raise OutcomeUnknown(f"{self._address}: no answer, and another broker leads by now")

    # ── out ──

    async def _write(self, call: Any) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            if self._is_outdated:  # the reader ends the stream once all answers are in
                await loop.create_future()
            self._work.clear()
            if self._accumulator.unidentified(self._way):
                self._unidentified.set()
            request = self._next_request(loop.time())
            if request is not None:
                try:
                    await call.write(request)
                except asyncio.InvalidStateError:  # the stream has ended; the reader knows how
                    await asyncio.get_running_loop().create_future()
                continue
            wakes_at_s = self._accumulator.wakes_at_s(self._way)
            try:
                async with asyncio.timeout_at(wakes_at_s):
                    await self._work.wait()
            except TimeoutError:
                pass

    def _next_request(self, now_s: float) -> log_pb2.ProduceRequest | None:
        """Returns the next request, and marks its batches as sent; None if there is nothing to send."""
        limit = self._connection.limits(self._address).request_bytes_max
        bytes_max = min(APPEND_BYTES_PER_REQUEST, self._settings.request_bytes_max, limit) - REQUEST_OVERHEAD_BYTES
        while taken := self._accumulator.take(self._way, now_s, bytes_max=bytes_max):
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
                if self._owes_since_s is None:
                    self._owes_since_s = now_s
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

    def _append(self, batch: ProducerBatch, request_bytes_max: int) -> log_pb2.Append:
        """Raises what the codec refuses, and TooLarge: a longer message would break the stream for all that is on it."""
        producer_id, producer_epoch = batch.queue.producer or (-1, -1)
        encoded = encode_records(
            batch.records,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=batch.base_sequence,
        )
        topic, partition = batch.queue.topic, batch.queue.partition
        if REQUEST_OVERHEAD_BYTES + append_bytes(topic, len(encoded)) > request_bytes_max:
            raise TooLarge(
                f"{self._address}: a batch of {len(encoded)} bytes for {topic}/{partition} does not fit a request there; "
                f"it takes {request_bytes_max} bytes",
                hint="Raise request_bytes_max of the broker, or send smaller records.",
                bytes_max=request_bytes_max,
            )
        return log_pb2.Append(topic=topic, topic_id=batch.queue.topic_id, partition=partition, record_batch=encoded)

    async def _identify(self) -> NoReturn:
        """Fetches a producer id whenever a queue needs one, beside what goes on in the others."""
        while True:
            await self._unidentified.wait()
            self._unidentified.clear()
            try:
                producer: log_pb2.InitProducerResponse = await self._connection.call(
                    _init_producer, writes=False, at=self._address, first_timeout_s=QUESTION_S
                )
            except Unavailable as error:
                self._accumulator.unreachable(self._way, error)
                await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)
            except TidelogError as error:
                self._accumulator.abandon(self._accumulator.unidentified(self._way), error)
                self._answered()
            else:
                self._accumulator.identify(producer.producer_id, producer.producer_epoch)
            self._work.set()

    # ── back ──

    async def _read(self, call: Any) -> None:
        """Takes answers in until the stream breaks. Returns once a stream with a replaced key has all of them."""
        loop = asyncio.get_running_loop()
        while (response := await call.read()) is not grpc.aio.EOF:
            expected, batches = self._sent[0] if self._sent else (0, [])
            if response.correlation_id != expected or len(response.results) != len(batches):
                raise OutcomeUnknown(f"{self._address}: the answer is not that of request {expected}")
            self._sent.popleft()
            self._owes_since_s = loop.time() if self._sent else None
            self._answers += 1
            if response.HasField("throttled"):
                self._note_throttled(from_status(response.throttled, address=self._address), loop.time())
            changed = {
                batch.queue.topic
                for batch, result in zip(batches, response.results, strict=True)
                if self._settle(batch, result, loop.time())
            }
            self._topics.learn_later(changed)
            self._answered()
            self._work.set()
            if self._is_outdated and not self._sent:
                return
        raise OutcomeUnknown(f"{self._address}: the broker ended the stream")

    def _note_throttled(self, error: TidelogError, now_s: float) -> None:
        """Notes for how long the broker reads nothing more of this stream, because the principal has overdrawn a quota."""
        if isinstance(error, Throttled):
            self._connection.note_throttled(error)
            self._throttled_until_s = now_s + error.retry_after_s

    def _settle(self, batch: ProducerBatch, result: log_pb2.AppendResult, now_s: float) -> bool:
        """Takes one answer in; True when the topic is not what we know of it."""
        placement = result.placements[0] if result.placements else None
        status = result.error if result.HasField("error") else None
        if status is None and placement is not None and placement.HasField("error"):
            status = placement.error
        if status is None:
            if placement is None:
                self._accumulator.acknowledged(batch, -1, now_s)
                return False
            self._accumulator.acknowledged(batch, placement.base_offset, now_s)
            is_led_elsewhere = placement.leader_epoch > batch.queue.leader_epoch
            self._connection.epochs.note(batch.queue.topic_id, batch.queue.partition, placement.leader_epoch)
            return is_led_elsewhere and self._topics.learnt_long_ago(batch.queue.topic)
        error = from_status(status, address=self._address)
        refusal = self._unless_replaced(error)
        self._is_outdated |= refusal is not error
        if isinstance(error, Throttled):
            self._connection.note_throttled(error)
        if isinstance(error, UnknownTopic) and "new_topic_id" in error.details:
            # Of the two, one is newer: this broker lags behind, or we do. The topic's route will tell, which is asked for now.
            pause_s = self._settings.retry_pause_ms_max / 1000
            refusal = Throttled(error.message, hint=error.hint, retry_after_s=pause_s)
        self._accumulator.refused(batch, refusal, now_s)
        return isinstance(error, _TOPIC_CHANGED)

    def _unless_replaced(self, error: TidelogError) -> TidelogError:
        """Returns Unavailable in place of Unauthenticated if the stream did not begin with the present key: a retry uses that."""
        if isinstance(error, Unauthenticated) and self._connection.authorization(newest=True) != self._authorization:
            return Unavailable(error.message, hint=error.hint, address=self._address)
        return error

    def _stream_broke(self, error: TidelogError) -> None:
        """Handles a broken stream. Unanswered batches may be in the log, unless the broker has refused the stream as such."""
        is_refused = isinstance(error, Denied | NotImplementedHere)
        error = self._unless_replaced(error) if is_refused else OutcomeUnknown(error.message)
        self._broke, self._owes_since_s = True, None
        now_s = asyncio.get_running_loop().time()
        while self._sent:
            _, batches = self._sent.popleft()
            for batch in batches:
                self._accumulator.refused(batch, error, now_s)
        self._answered()


def _init_producer(to: Stubs, timeout_s: float) -> Any:
    return to.log.InitProducer(log_pb2.InitProducerRequest(), timeout=timeout_s)
