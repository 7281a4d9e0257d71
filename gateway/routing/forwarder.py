"""Forwards batches to the leaders of their partitions, with one queue for each partition that has any.

    append ─▶ queue of the partition ─▶ leader? ─▶ another broker: its sender ─▶ outcomes
                       ▲                        └▶ this one: appended here, and the queue ends
                       ├──── refused because it no longer leads, nothing written; or no leader yet: wait for metadata ───┤
                       └──── another leads, and FORMER_LEADER_S later the former has not answered: lost ─────────────────┘

forward_queue.py decides for one queue. forward_sender.py composes messages and sends them.

Invariants: batches of a partition reach its leaders in the order of their arrival. After a batch was refused for good, no later
batch of its client's message is written; those of other clients are. Waiting batches are charged to the buffer, and one slow leader
gets at most a quarter of it. A batch waits for a leader that does not answer only until the next one is appointed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Set
from contextvars import Context
from typing import Final

from gateway.access.authorization import present_key_id
from gateway.cluster.view import ClusterView
from gateway.routing.forward_queue import NOT_LED, ForwardedAppend, ForwardQueue, Outcome
from gateway.routing.forward_sender import ForwardSender, Load, send_forwarded
from gateway.routing.leader_lookup import PAUSE_S_MAX, PAUSE_S_MIN
from gateway.routing.peer_channels import PeerChannels
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoLeader, OutcomeUnknown, Stopping, Throttled, TidelogError, UnknownTopic
from metadata.model import SessionId, TopicPartition
from segments.byte_budget import Admission, ByteBudget
from segments.deadline import Deadline
from segments.log.session_log import Acks, PendingAppend, SessionLog, memory_bytes
from segments.object_store.interface import Buffer
from segments.partition.partition_log import Appended, TimestampPolicy
from segments.records.header import BatchHeader

# How long a former leader may still answer; a planned handover answers earlier. Then the answer counts as lost.
FORMER_LEADER_S: Final = 1.0


class ProduceForwarder:
    """Forwards appends, and delivers their outcomes. Its owner runs `run()` as a task, which owns all senders."""

    def __init__(
        self,
        here: Callable[[], SessionLog],
        view: ClusterView,
        peers: PeerChannels,
        *,
        broker_id: str,
        budget: ByteBudget,
        is_stopping: Callable[[], bool],
    ) -> None:
        """`here` returns the log of the present session; it raises NoLeader or Stopping while there is none."""
        self._is_stopping = is_stopping
        self._here = here
        self._view = view
        self._peers = peers
        self._broker_id = broker_id
        self._budget = budget
        self._queues: dict[TopicPartition, ForwardQueue] = {}
        self._paused: dict[TopicPartition, ForwardQueue] = {}
        # Queues whose message is at a former leader, and when its answer counts as lost.
        self._at_former_leader: dict[TopicPartition, float] = {}
        self._senders: dict[SessionId, ForwardSender] = {}
        self._bytes_waiting: dict[str, int] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._appended_s = -math.inf
        self._wakeup = asyncio.Event()
        self._brokers_changed = asyncio.Event()
        view.partitions.subscribe(self._on_leaders_changed)
        view.brokers.subscribe(self._on_brokers_changed)

    async def run(self) -> None:
        """Delivers appended batches until cancelled; then settles all that wait."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._retry_paused(), name="paused queues")
                try:
                    while True:
                        self._brokers_changed.clear()
                        self._wake(list(self._paused.values()))
                        await self._peers.drop_others({broker.grpc_address for broker in self._view.brokers.brokers.values()})
                        await self._brokers_changed.wait()
                finally:
                    self._tasks = None
        finally:
            for queue in self._queues.values():
                for append in queue.sent:
                    queue.settle(append, append.lost())
                queue.refuse_all(Stopping("this broker is shutting down"))
            self._queues.clear()
            await self._peers.close()

    def has_queued(self, partition: TopicPartition) -> bool:
        """Returns whether batches of the partition are queued, so that later ones must queue behind them."""
        return partition in self._queues

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
        dates: TimestampPolicy,
        continues: bool = False,
    ) -> ForwardedAppend:
        """Queues a checked batch, and takes over its bytes from the admission, which identifies its client's message.

        Raises Throttled, Stopping.
        """
        if self._tasks is None:
            raise Stopping("this broker is shutting down")
        leader = self._view.leader(partition)
        self._appended_s = asyncio.get_running_loop().time()
        charged_to = leader.broker_id if leader is not None else ""
        bytes_charged = memory_bytes(header.size)
        self._check_budget(charged_to, bytes_charged)
        admission.take(bytes_charged)
        self._bytes_waiting[charged_to] = self._bytes_waiting.get(charged_to, 0) + bytes_charged
        append = ForwardedAppend(
            partition,
            batch,
            header,
            acks=acks,
            deadline_s=deadline_s,
            expected_offset=expected_offset,
            dates=dates,
            continues=continues,
            bytes_charged=bytes_charged,
            charged_to=charged_to,
            key_id=present_key_id(),
        )
        queue = self._queues.get(partition)
        if queue is not None:
            queue.add(append, admission)
        else:
            queue = self._queues[partition] = ForwardQueue(partition, self._settle)
            queue.add(append, admission)
            self._advance(queue)
        return append

    async def outcome(self, append: ForwardedAppend, deadline: Deadline) -> Appended | PendingAppend:
        """Returns the leader's answer, or the append at this broker if it became the leader.

        A batch that was not sent before the deadline is withdrawn. Cancelling a waiter affects no other.
        Raises the leader's error, NoLeader without a leader in time, OutcomeUnknown if the answer was lost or is late.
        """
        if not append.outcome.done():
            await asyncio.wait((append.outcome,), timeout=deadline.left_s())
        if not append.outcome.done():
            if append.is_sent:
                raise append.lost()
            self._queues[append.partition].refuse(append, append.overdue())
        found = append.outcome.result()
        if isinstance(found, TidelogError):
            raise found
        return found

    async def wait_until_quiet(self, *, quiet_s: float, timeout_s: float) -> None:
        """Waits until no queue is left and no batch has come for `quiet_s`. Returns at once if no other broker could lead.

        Producers learn the leader from the answers to forwarded batches and connect to it; a broken connection would cost them
        more.
        """
        clock = asyncio.get_running_loop().time
        began_s = clock()
        while self.no_leader_reason() is None and clock() < began_s + timeout_s:
            quiet_at_s = max(began_s, self._appended_s) + quiet_s
            if not self._queues and clock() >= quiet_at_s:
                return
            await asyncio.sleep(max(quiet_at_s - clock(), PAUSE_S_MIN))

    def no_leader_reason(self) -> Stopping | None:
        """Returns Stopping if this broker stops and no other is registered, so that no partition will get a leader."""
        if not self._is_stopping() or any(broker_id != self._broker_id for broker_id in self._view.brokers.brokers):
            return None
        return Stopping("this broker is shutting down")

    # ── the next step of a queue ──────────────────────────────────────────────────────────────────────────────────────

    def _advance(self, queue: ForwardQueue, refusal: TidelogError | None = None) -> None:
        """Passes a queue without a message in flight to its leader. After a `refusal` the queue pauses instead."""
        assert not queue.sent, "one message at a time"
        if self._tasks is None:
            return  # run() settles all that wait
        self._paused.pop(queue.partition, None)
        if queue.first(asyncio.get_running_loop().time()) is not None and (final := self._final_error(queue.partition)) is not None:
            queue.refuse_all(final)
        if queue.first(asyncio.get_running_loop().time()) is None:
            self._queues.pop(queue.partition, None)
            return
        if refusal is not None:
            self._pause(queue, refusal)
            return
        leader = self._view.leader(queue.partition)
        if leader is None:
            self._pause(queue, NoLeader(f"{queue.partition} has no leader at the moment"))
        elif leader.broker_id == self._broker_id:
            not_led = self._append_locally(queue)
            if not_led is not None:
                self._pause(queue, not_led)
            else:
                del self._queues[queue.partition]
        else:
            self._sender_to(leader).add(queue)

    def _pause(self, queue: ForwardQueue, refusal: TidelogError) -> None:
        queue.refusal = refusal
        queue.pause_s = min(2 * queue.pause_s, PAUSE_S_MAX) or PAUSE_S_MIN
        queue.retry_at_s = asyncio.get_running_loop().time() + queue.pause_s
        self._paused[queue.partition] = queue
        self._wakeup.set()

    def _final_error(self, partition: TopicPartition) -> TidelogError | None:
        """Returns the error if no leader will take the partition: the topic was deleted, or the only broker stops."""
        try:
            self._view.topics.by_id(partition.topic_id)
        except UnknownTopic as error:
            return error.with_traceback(None)
        return self.no_leader_reason()

    def _append_locally(self, queue: ForwardQueue) -> TidelogError | None:
        """Appends all waiting batches to the log of this broker; returns the error if it does not lead after all."""
        now_s = asyncio.get_running_loop().time()
        try:
            log = self._here()
            while (append := queue.first(now_s)) is not None:
                try:
                    pending = log.append(
                        append.partition,
                        append.batch,
                        append.header,
                        Admission(self._budget, append.bytes_charged, timeout_s=0),
                        expected_offset=append.expected_offset,
                        dates=append.dates,
                        continues=append.continues,
                    )
                except NOT_LED:
                    raise
                except TidelogError as error:
                    queue.refuse(append, append.lost() if append.in_doubt else error.with_traceback(None))
                    continue
                queue.pop()
                if not pending.appended.duplicate:
                    self._release_charge(append)
                queue.settle(append, pending)
        except NOT_LED as error:
            return error.with_traceback(None)
        return None

    # ── to another broker ─────────────────────────────────────────────────────────────────────────────────────────────

    def _sender_to(self, leader: BrokerRegistration) -> ForwardSender:
        sender = self._senders.get(leader.session)
        if sender is None or sender.ended:
            assert self._tasks is not None, "nothing is appended after the end"
            self._senders = {session: open_ for session, open_ in self._senders.items() if not open_.ended}
            sender = self._senders[leader.session] = ForwardSender(leader, self._send, self._leads, self._advance)
            name = f"sender for {leader.broker_id}"
            self._tasks.create_task(
                self._run(sender), name=name, context=Context()
            )  # without the context of one call, since it sends the batches of many
        return sender

    async def _run(self, sender: ForwardSender) -> None:
        await asyncio.sleep(0)  # batches of this step of the loop go with the first message
        await sender.run()

    def _leads(self, partition: TopicPartition, leader: BrokerRegistration) -> bool:
        now = self._view.leader(partition)
        return now is not None and now.session == leader.session

    async def _send(self, leader: BrokerRegistration, load: Load) -> None:
        """Sends a message, and gives each queue its answers, unless they counted as lost meanwhile."""
        appends = [append for _, sent in load for append in sent]
        found = await send_forwarded(self._peers, self._view.topics, leader, appends)
        at = 0
        for queue, sent in load:
            answers = slice(at, at + len(sent))
            at += len(sent)
            if queue.sent is sent:
                self._at_former_leader.pop(queue.partition, None)
                self._on_answers(queue, queue.lost(found) if isinstance(found, OutcomeUnknown) else queue.answered(found[answers]))

    def _on_answers(self, queue: ForwardQueue, refusal: TidelogError | None) -> None:
        if refusal is None:
            queue.pause_s, queue.refusal = 0.0, None
        self._advance(queue, refusal)

    # ── changes of metadata ───────────────────────────────────────────────────────────────────────────────────────────

    def _on_leaders_changed(self, changed: Set[TopicPartition]) -> None:
        if not self._queues or self._tasks is None:
            return
        both = [
            partition for partition in self._queues if partition in changed
        ]  # in the order of the queues, which no hash decides, so that simulations repeat
        now_s = asyncio.get_running_loop().time()
        for partition in both:
            queue = self._queues[partition]
            leader = self._view.partitions.get(partition)
            if queue.sent and leader is not None and leader.leader_session != queue.sent_to:
                self._at_former_leader.setdefault(partition, now_s + FORMER_LEADER_S)
                self._wakeup.set()
            else:
                self._at_former_leader.pop(partition, None)
            queue.pause_s = 0.0  # the new leader will serve soon, however long the partition had none
        self._wake([self._paused[partition] for partition in both if partition in self._paused])

    def on_takeover(self) -> None:
        """Appends the batches that wait for partitions which this broker has taken over."""
        mine = [queue for partition, queue in self._paused.items() if self._is_local(partition)]
        self._wake(mine)

    def _is_local(self, partition: TopicPartition) -> bool:
        leader = self._view.leader(partition)
        return leader is not None and leader.broker_id == self._broker_id

    def _on_brokers_changed(self) -> None:
        self._brokers_changed.set()

    def _wake(self, queues: Iterable[ForwardQueue]) -> None:
        for queue in queues:
            self._advance(queue)

    async def _retry_paused(self) -> None:
        """Retries paused queues when due, and settles answers of former leaders as lost after FORMER_LEADER_S."""
        clock = asyncio.get_running_loop().time
        while True:
            if not self._paused and not self._at_former_leader:
                self._wakeup.clear()
                await self._wakeup.wait()
            await asyncio.sleep(PAUSE_S_MIN)
            now_s = clock()
            self._wake([queue for queue in self._paused.values() if queue.retry_at_s <= now_s])
            late = [partition for partition, until_s in self._at_former_leader.items() if until_s <= now_s]
            for partition in late:
                del self._at_former_leader[partition]
                queue = self._queues[partition]
                error = OutcomeUnknown(
                    f"records for {partition} were forwarded to a leader that has not answered, and has been replaced"
                )
                queue.lost(error)
                self._on_answers(queue, None)
            if late:
                for sender in self._senders.values():
                    sender.cancel_abandoned_calls()

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, append: ForwardedAppend, outcome: Outcome) -> None:
        self._budget.release(append.bytes_charged)
        self._release_charge(append)
        append.outcome.set_result(outcome)

    def _release_charge(self, append: ForwardedAppend) -> None:
        """Uncharges the leader: the log holds the bytes now, or they were released."""
        left = self._bytes_waiting.get(append.charged_to, 0) - append.bytes_charged
        append.bytes_charged = 0
        if left:
            self._bytes_waiting[append.charged_to] = left
        else:
            self._bytes_waiting.pop(append.charged_to, None)

    def _check_budget(self, leader: str, bytes_count: int) -> None:
        """Raises Throttled if this leader's or the total share is used up; the first batch for a leader always passes."""
        there = self._bytes_waiting.get(leader, 0)
        in_all = sum(self._bytes_waiting.values())
        if there and (there + bytes_count > self._budget.bytes_max // 4 or in_all + bytes_count > self._budget.bytes_max // 2):
            raise Throttled(
                f"{in_all} bytes wait to be forwarded, {there} of them to {leader or 'partitions without a leader'}",
                hint="Retry with back-off.",
            )
