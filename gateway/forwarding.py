"""Batches for partitions that are not led here, on their way to whoever leads: one lane for each partition that has any.

    append ─▶ lane of the partition ─▶ who leads now? ─▶ another broker: all that waits, as one message ─▶ outcomes
                       ▲                               └▶ this one: appended here, and the lane ends
                       └──── refused since it leads no more, nothing written ─── nobody yet: wait for the metadata ──┘

One message of a lane is on its way at a time; what comes meanwhile goes with the next. So it costs a round trip and no queue of
small calls, and when the leader changes in the middle, nothing can overtake what has to be sent again.

Invariants: batches of a partition reach its leaders in the order of their coming, each at most once unless it was refused with
nothing written; after a batch was refused for good, none of its own message follows it, and those of others do; what waits is
charged to the buffer, and no broker that is slow takes more than a quarter of it, so that local work goes on; an outcome that was
lost on the way is told as unknown, never tried again here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.cluster_view import ClusterView
from gateway.grpc_status import error_of
from gateway.peers import Peers
from gateway.proto import log_pb2
from metadata.broker_registry import Registration
from metadata.errors import NoLeader, NotLeader, OutcomeUnknown, SessionFenced, Stopping, Throttled, TidelogError, UnknownTopic
from metadata.model import LeaderEpoch, Offset, TopicPartition
from segments.byte_budget import Admission, ByteBudget
from segments.log import Acks, Log, PendingAppend
from segments.object_store import Buffer
from segments.partition_log import Appended
from segments.record_batch import BatchHeader

NOT_LED: Final = (NoLeader, NotLeader, SessionFenced, Stopping)
"""Errors of a broker that does not lead, or leads no more: nothing was written, and another may lead by now."""
MESSAGE_BYTES: Final = 4 << 20
"""A message to a leader is no longer, but for a single batch that is."""
MESSAGE_APPENDS: Final = 1_000
PAUSE_LEAST_S: Final = 0.02
PAUSE_MOST_S: Final = 0.5
"""Before it is looked again who leads, unless the metadata tell of a change. Doubled from one look to the next."""
UNTOLD: Final = Appended(Offset(-1), Offset(-1), LeaderEpoch(-1))
"""What a producer learns that does not wait (acks=none)."""

_PRODUCE: Final = "/tidelog.v1.Log/Produce"


class LedMeanwhile(NamedTuple):
    """A batch that was appended here, since its partition came to be led here."""

    log: Log
    pending: PendingAppend


class ForwardedAppend:
    """A batch in its lane, and what becomes of it."""

    __slots__ = (
        "acks",
        "batch",
        "bytes_charged",
        "charged_to",
        "deadline_s",
        "expected_offset",
        "header",
        "log_append_time",
        "message",
        "outcome",
        "partition",
    )

    def __init__(
        self,
        partition: TopicPartition,
        batch: Buffer,
        header: BatchHeader,
        *,
        acks: Acks,
        deadline_s: float,
        expected_offset: int | None,
        log_append_time: bool,
        message: object,
        bytes_charged: int,
        charged_to: str,
    ) -> None:
        self.partition = partition
        self.batch = batch
        self.header = header
        self.acks = acks
        self.deadline_s = deadline_s
        self.expected_offset = expected_offset
        self.log_append_time = log_append_time
        self.message = message
        """Whatever is the same for batches of one message, and for no others."""
        self.bytes_charged = bytes_charged
        self.charged_to = charged_to
        self.outcome: asyncio.Future[Appended | LedMeanwhile | TidelogError] = asyncio.get_running_loop().create_future()


class Forwarding:
    """Its owner runs `run()` as a task, which owns the lanes."""

    def __init__(
        self,
        here: Callable[[], Log],
        view: ClusterView,
        peers: Peers,
        *,
        broker_id: str,
        budget: ByteBudget,
        is_stopping: Callable[[], bool],
    ) -> None:
        """`here`: the log of the present session; raises NoLeader or Stopping while there is none."""
        self._is_stopping = is_stopping
        self._here = here
        self._view = view
        self._peers = peers
        self._broker_id = broker_id
        self._budget = budget
        self._lanes: dict[TopicPartition, deque[ForwardedAppend]] = {}
        self._bytes_waiting: dict[str, int] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        view.partitions.subscribe(lambda _: self._tell_of_change())
        view.brokers.subscribe(self._tell_of_change)

    async def run(self) -> None:
        """Delivers what is appended, until it is cancelled; then nothing waits any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    while True:
                        changed = self._changed
                        await self._peers.drop_others({broker.grpc_address for broker in self._view.brokers.brokers.values()})
                        await changed.wait()
                finally:
                    self._tasks = None
        finally:
            for lane in self._lanes.values():
                for waiting in lane:
                    self._settle(waiting, Stopping("this broker is shutting down"))
            self._lanes.clear()
            await self._peers.close()

    def holds(self, partition: TopicPartition) -> bool:
        """Whether batches of the partition are on their way, so that others have to stay behind them."""
        return partition in self._lanes

    async def changed(self, *, timeout_s: float) -> None:
        """Returns when brokers or leaders have changed, at the latest after `timeout_s`."""
        changing = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changing.wait()
        except TimeoutError:
            return

    def append(
        self,
        partition: TopicPartition,
        batch: Buffer,
        header: BatchHeader,
        admission: Admission,
        *,
        acks: Acks,
        deadline_s: float,
        expected_offset: int | None,
        log_append_time: bool,
    ) -> ForwardedAppend:
        """Takes a checked batch, and its bytes over from the admission, which stands for its message. Throttled, Stopping."""
        if self._tasks is None:
            raise Stopping("this broker is shutting down")
        leader = self._view.leader(partition)
        charged_to = leader.broker_id if leader is not None else ""
        bytes_charged = Log.memory_bytes(header.size)
        self._check_room(charged_to, bytes_charged)
        admission.take(bytes_charged)
        self._bytes_waiting[charged_to] = self._bytes_waiting.get(charged_to, 0) + bytes_charged
        waiting = ForwardedAppend(
            partition,
            batch,
            header,
            acks=acks,
            deadline_s=deadline_s,
            expected_offset=expected_offset,
            log_append_time=log_append_time,
            message=admission,
            bytes_charged=bytes_charged,
            charged_to=charged_to,
        )
        lane = self._lanes.get(partition)
        if lane is not None:
            lane.append(waiting)
        else:
            lane = self._lanes[partition] = deque([waiting])
            self._tasks.create_task(self._deliver(partition, lane), name=f"lane of {partition}")
        return waiting

    async def decided(self, waiting: ForwardedAppend, *, timeout_s: float) -> Appended | LedMeanwhile:
        """What the leader answered. A waiter that is cancelled disturbs nothing; one that was not sent in time is taken back.

        Raises the leader's error, NoLeader where there was none in time, OutcomeUnknown where its answer was lost, or is late.
        """
        if not waiting.outcome.done():
            await asyncio.wait((waiting.outcome,), timeout=timeout_s)
        if not waiting.outcome.done():
            lane = self._lanes.get(waiting.partition, deque())
            if waiting not in lane:
                raise _lost(waiting)
            self._refuse(waiting, _overdue(waiting), lane)
        found = waiting.outcome.result()
        if isinstance(found, TidelogError):
            raise found
        return found

    # ── one lane ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _deliver(self, partition: TopicPartition, lane: deque[ForwardedAppend]) -> None:
        pause_s = PAUSE_LEAST_S
        refusal: TidelogError | None = None
        while self._without_overdue(lane, refusal):
            leader = self._view.leader(partition)
            if (final := self._why_never(partition)) is not None:
                while lane:
                    self._refuse(lane[0], final, lane)
                refusal = None
            elif leader is None:
                refusal = NoLeader(f"nobody leads {partition} at the moment")
            elif leader.broker_id == self._broker_id:
                refusal = self._append_here(lane)
            else:
                refusal = await self._send(leader, partition, lane)
            if refusal is None:
                pause_s = PAUSE_LEAST_S
            else:
                await self.changed(timeout_s=pause_s)
                pause_s = min(2 * pause_s, PAUSE_MOST_S)
        del self._lanes[partition]

    def _why_never(self, partition: TopicPartition) -> TidelogError | None:
        """Why it makes no sense to wait for a leader: the topic was deleted, or this broker stops and is the only one."""
        try:
            self._view.topics.by_id(partition.topic_id)
        except UnknownTopic as error:
            return error
        return self.why_nobody()

    def why_nobody(self) -> Stopping | None:
        """That this broker stops, where there is no other that could lead."""
        if not self._is_stopping() or any(broker_id != self._broker_id for broker_id in self._view.brokers.brokers):
            return None
        return Stopping("this broker is shutting down")

    def _without_overdue(self, lane: deque[ForwardedAppend], refusal: TidelogError | None) -> bool:
        """Whether anything waits still."""
        now_s = asyncio.get_running_loop().time()
        for waiting in [waiting for waiting in lane if waiting.outcome.done() or waiting.deadline_s <= now_s]:
            self._settle(waiting, refusal or _overdue(waiting))
            lane.remove(waiting)
        return bool(lane)

    def _append_here(self, lane: deque[ForwardedAppend]) -> TidelogError | None:
        """Appends all that waits, at once; or says why this broker does not lead after all."""
        try:
            log = self._here()
            while lane:
                waiting = lane[0]
                try:
                    pending = log.append(
                        waiting.partition,
                        waiting.batch,
                        waiting.header,
                        Admission(self._budget, waiting.bytes_charged, timeout_s=0),
                        expected_offset=waiting.expected_offset,
                        log_append_time=waiting.log_append_time,
                    )
                except NOT_LED:
                    raise
                except TidelogError as error:
                    self._refuse(waiting, error.with_traceback(None), lane)
                    continue
                lane.popleft()
                if not pending.appended.duplicate:
                    self._hand_over(waiting)
                self._settle(waiting, LedMeanwhile(log, pending))
        except NOT_LED as error:
            return error.with_traceback(None)
        return None

    async def _send(self, leader: Registration, partition: TopicPartition, lane: deque[ForwardedAppend]) -> TidelogError | None:
        """Sends what waits, as much as fits a message, and settles it. Why it has to be sent again, where it has."""
        message = _first_of(lane)
        for _ in message:
            lane.popleft()
        try:
            outcomes = await self._sent(leader, partition, message)
        except BaseException:
            for waiting in message:
                self._settle(waiting, _lost(waiting))
            raise
        again: list[ForwardedAppend] = []
        refused: ForwardedAppend | None = None
        refusal: TidelogError | None = None
        for waiting, outcome in zip(message, outcomes, strict=True):
            if not isinstance(outcome, TidelogError) or not outcome.nothing_was_written:
                self._settle(waiting, outcome)
            elif isinstance(outcome, NOT_LED):
                refusal = outcome
                again.append(waiting)
            elif refused is None:
                refused = waiting
                self._settle(waiting, outcome)
            else:
                again.append(waiting)  # it was not looked at, since the one before it was refused
        lane.extendleft(reversed(again))
        if refused is not None:
            found = refused.outcome.result()
            assert isinstance(found, TidelogError), "it was refused"
            self._refuse(refused, found, lane)
        return refusal

    async def _sent(
        self, leader: Registration, partition: TopicPartition, message: list[ForwardedAppend]
    ) -> list[Appended | TidelogError]:
        left_s = max(waiting.deadline_s for waiting in message) - asyncio.get_running_loop().time()
        try:
            topic = self._view.topics.by_id(partition.topic_id)
            request = log_pb2.ProduceRequest(
                acks=log_pb2.ACKS_ALL if message[0].acks is Acks.ALL else log_pb2.ACKS_LEADER,
                timeout_ms=max(1, round(1000 * left_s)),
                appends=[
                    log_pb2.Append(
                        topic=topic.name,
                        topic_id=topic.id,
                        partition=partition.partition,
                        record_batch=bytes(waiting.batch),
                        expected_offset=waiting.expected_offset,
                    )
                    for waiting in message
                ],
            )
            answer = await self._peers.call(
                leader, _PRODUCE, request, log_pb2.ProduceResponse, timeout_s=left_s + 1.0, is_write=True
            )
        except TidelogError as error:
            return [error.with_traceback(None)] * len(message)
        if len(answer.results) != len(message):
            return [_lost(waiting) for waiting in message]
        return [_outcome(result) for result in answer.results]

    # ── what becomes of a batch ─────────────────────────────────────────────────────────────────────────────────────────

    def _refuse(self, refused: ForwardedAppend, error: TidelogError, lane: deque[ForwardedAppend]) -> None:
        """Refuses the batch for good, and with it those of its message that wait behind it."""
        self._settle(refused, error)
        for waiting in [waiting for waiting in lane if waiting.message is refused.message]:
            self._settle(waiting, error)
            lane.remove(waiting)

    def _settle(self, waiting: ForwardedAppend, outcome: Appended | LedMeanwhile | TidelogError) -> None:
        self._budget.release(waiting.bytes_charged)
        self._hand_over(waiting)
        if not waiting.outcome.done():
            waiting.outcome.set_result(outcome)

    def _hand_over(self, waiting: ForwardedAppend) -> None:
        """The bytes are no longer ours: they are the log's, or were given back."""
        left = self._bytes_waiting.get(waiting.charged_to, 0) - waiting.bytes_charged
        waiting.bytes_charged = 0
        if left:
            self._bytes_waiting[waiting.charged_to] = left
        else:
            self._bytes_waiting.pop(waiting.charged_to, None)

    def _check_room(self, leader: str, bytes_count: int) -> None:
        """A batch finds room where nothing else waits for this leader, whatever its size."""
        there = self._bytes_waiting.get(leader, 0)
        in_all = sum(self._bytes_waiting.values())
        if there and (there + bytes_count > self._budget.bytes_max // 4 or in_all + bytes_count > self._budget.bytes_max // 2):
            raise Throttled(
                f"{in_all} bytes wait to be forwarded, {there} of them to {leader or 'partitions that nobody leads'}",
                hint="Retry with back-off.",
            )

    def _tell_of_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _first_of(lane: deque[ForwardedAppend]) -> list[ForwardedAppend]:
    """As many as make one message: at least one, and all to be answered at the same time."""
    message: list[ForwardedAppend] = []
    bytes_left = MESSAGE_BYTES
    waits = lane[0].acks is Acks.ALL
    for waiting in lane:
        bytes_left -= waiting.header.size
        if message and (bytes_left < 0 or len(message) == MESSAGE_APPENDS or (waiting.acks is Acks.ALL) != waits):
            break
        message.append(waiting)
    return message


def _outcome(result: log_pb2.AppendResult) -> Appended | TidelogError:
    if result.HasField("error"):
        return error_of(result.error)
    if len(result.placements) != 1:
        return OutcomeUnknown("the leader's answer names no offset")
    placed = result.placements[0]
    if placed.HasField("error"):
        return error_of(placed.error)
    last_offset = Offset(placed.base_offset + placed.count - 1)
    return Appended(Offset(placed.base_offset), last_offset, LeaderEpoch(placed.leader_epoch), placed.duplicate)


def _lost(waiting: ForwardedAppend) -> OutcomeUnknown:
    return OutcomeUnknown(f"records for {waiting.partition} were forwarded to its leader, which has not answered in time")


def _overdue(waiting: ForwardedAppend) -> NoLeader:
    return NoLeader(f"no leader of {waiting.partition} took the records in time")
