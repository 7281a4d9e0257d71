"""Batches for partitions that are not led here, on their way to whoever leads: one lane for each partition that has any.

    append ─▶ lane of the partition ─▶ who leads now? ─▶ another broker: its outbox ─▶ outcomes
                       ▲                               └▶ this one: appended here, and the lane ends
                       ├──── refused since it leads no more, nothing written ─── nobody yet: wait for the metadata ──┤
                       └──── another leads, and OVERTAKEN_S later there is no answer yet: lost ──────────────────────┘

What is decided for one lane is in forward_queue.py, what goes with one message in forward_sender.py, its wire form in
forward_sender.py.

Invariants: batches of a partition reach its leaders in the order of their coming; after a batch was refused for good, none of its
own message follows it, and those of others do; what waits is charged to the buffer, and no broker that is slow takes more than a
quarter of it, so that local work goes on; nobody waits longer for a leader that does not answer than for the next one.
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

PAUSE_LEAST_S: Final = 0.02
# Before it is looked again who leads, unless the metadata tell of a change. Doubled from one look to the next.
PAUSE_MOST_S: Final = 0.5
# A leader that hands over has answered before; one that was slow has so long. Then its answer is taken for lost.
OVERTAKEN_S: Final = 1.0


class ProduceForwarder:
    """Its owner runs `run()` as a task, which owns all that is on its way."""

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
        """`here`: the log of the present session; raises NoLeader or Stopping while there is none."""
        self._is_stopping = is_stopping
        self._here = here
        self._view = view
        self._peers = peers
        self._broker_id = broker_id
        self._budget = budget
        self._lanes: dict[TopicPartition, ForwardQueue] = {}
        self._paused: dict[TopicPartition, ForwardQueue] = {}
        self._overtaken: dict[TopicPartition, float] = {}
        """Lanes whose message is at a former leader, and when its answer is taken for lost."""
        self._outboxes: dict[SessionId, ForwardSender] = {}
        self._bytes_waiting: dict[str, int] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._appended_s = -math.inf
        self._attention = asyncio.Event()
        self._brokers_changed = asyncio.Event()
        view.partitions.subscribe(self._leaders_changed)
        view.brokers.subscribe(self._tell_of_brokers)

    async def run(self) -> None:
        """Delivers what is appended, until it is cancelled; then nothing waits any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._look_again(), name="lanes that wait")
                try:
                    while True:
                        self._brokers_changed.clear()
                        self._wake(list(self._paused.values()))
                        await self._peers.drop_others({broker.grpc_address for broker in self._view.brokers.brokers.values()})
                        await self._brokers_changed.wait()
                finally:
                    self._tasks = None
        finally:
            for lane in self._lanes.values():
                for append in lane.sent:
                    lane.settle(append, append.lost())
                lane.refuse_all(Stopping("this broker is shutting down"))
            self._lanes.clear()
            await self._peers.close()

    def holds(self, partition: TopicPartition) -> bool:
        """Whether batches of the partition are on their way, so that others have to stay behind them."""
        return partition in self._lanes

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
        """Takes a checked batch, and its bytes over from the admission, which stands for its message. Throttled, Stopping."""
        if self._tasks is None:
            raise Stopping("this broker is shutting down")
        leader = self._view.leader(partition)
        self._appended_s = asyncio.get_running_loop().time()
        charged_to = leader.broker_id if leader is not None else ""
        bytes_charged = memory_bytes(header.size)
        self._check_room(charged_to, bytes_charged)
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
        lane = self._lanes.get(partition)
        if lane is not None:
            lane.add(append, admission)
        else:
            lane = self._lanes[partition] = ForwardQueue(partition, self._settle)
            lane.add(append, admission)
            self._advance(lane)
        return append

    async def decided(self, append: ForwardedAppend, deadline: Deadline) -> Appended | PendingAppend:
        """Returns the leader's answer, or the append of this broker where it leads meanwhile.

        A batch that was not sent in time is taken back. Cancelling a waiter affects no other.

        Raises the leader's error, NoLeader where there was none in time, OutcomeUnknown where its answer was lost, or is late.
        """
        if not append.outcome.done():
            await asyncio.wait((append.outcome,), timeout=deadline.left_s())
        if not append.outcome.done():
            if append.is_sent:
                raise append.lost()
            self._lanes[append.partition].refuse(append, append.overdue())
        found = append.outcome.result()
        if isinstance(found, TidelogError):
            raise found
        return found

    async def until_quiet(self, *, quiet_s: float, timeout_s: float) -> None:
        """Until nothing is on its way, and nothing has come for `quiet_s`. Returns at once where nobody else could lead.

        Producers learn who leads from the answers to what is forwarded, and go there. To break their connections costs them more.
        """
        clock = asyncio.get_running_loop().time
        began_s = clock()
        while self.no_leader_reason() is None and clock() < began_s + timeout_s:
            quiet_at_s = max(began_s, self._appended_s) + quiet_s
            if not self._lanes and clock() >= quiet_at_s:
                return
            await asyncio.sleep(max(quiet_at_s - clock(), PAUSE_LEAST_S))

    def no_leader_reason(self) -> Stopping | None:
        """That this broker stops, where there is no other that could lead."""
        if not self._is_stopping() or any(broker_id != self._broker_id for broker_id in self._view.brokers.brokers):
            return None
        return Stopping("this broker is shutting down")

    # ── a lane's next step ──────────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self, lane: ForwardQueue, refusal: TidelogError | None = None) -> None:
        """Of a lane that has no message on its way: to whoever leads. `refusal`: why it comes back, where it was not taken."""
        assert not lane.sent, "it is in order"
        if self._tasks is None:
            return  # what waits is told so at the end
        self._paused.pop(lane.partition, None)
        if lane.first(asyncio.get_running_loop().time()) is not None and (final := self._why_never(lane.partition)) is not None:
            lane.refuse_all(final)
        if lane.first(asyncio.get_running_loop().time()) is None:
            self._lanes.pop(lane.partition, None)
            return
        if refusal is not None:
            self._pause(lane, refusal)
            return
        leader = self._view.leader(lane.partition)
        if leader is None:
            self._pause(lane, NoLeader(f"nobody leads {lane.partition} at the moment"))
        elif leader.broker_id == self._broker_id:
            not_led = self._append_here(lane)
            if not_led is not None:
                self._pause(lane, not_led)
            else:
                del self._lanes[lane.partition]
        else:
            self._outbox(leader).add(lane)

    def _pause(self, lane: ForwardQueue, refusal: TidelogError) -> None:
        lane.refusal = refusal
        lane.pause_s = min(2 * lane.pause_s, PAUSE_MOST_S) or PAUSE_LEAST_S
        lane.look_at_s = asyncio.get_running_loop().time() + lane.pause_s
        self._paused[lane.partition] = lane
        self._attention.set()

    def _why_never(self, partition: TopicPartition) -> TidelogError | None:
        """Why it makes no sense to wait for a leader: the topic was deleted, or this broker stops and is the only one."""
        try:
            self._view.topics.by_id(partition.topic_id)
        except UnknownTopic as error:
            return error.with_traceback(None)
        return self.no_leader_reason()

    def _append_here(self, lane: ForwardQueue) -> TidelogError | None:
        """Appends all that waits, at once; or says why this broker does not lead after all."""
        now_s = asyncio.get_running_loop().time()
        try:
            log = self._here()
            while (append := lane.first(now_s)) is not None:
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
                    lane.refuse(append, append.lost() if append.in_doubt else error.with_traceback(None))
                    continue
                lane.pop()
                if not pending.appended.duplicate:
                    self._hand_over(append)
                lane.settle(append, pending)
        except NOT_LED as error:
            return error.with_traceback(None)
        return None

    # ── to another broker ───────────────────────────────────────────────────────────────────────────────────────────────

    def _outbox(self, leader: BrokerRegistration) -> ForwardSender:
        outbox = self._outboxes.get(leader.session)
        if outbox is None or outbox.ended:
            assert self._tasks is not None, "nothing is appended after the end"
            self._outboxes = {session: open_ for session, open_ in self._outboxes.items() if not open_.ended}
            outbox = self._outboxes[leader.session] = ForwardSender(leader, self._send, self._leads, self._advance)
            name = f"outbox for {leader.broker_id}"
            self._tasks.create_task(self._run(outbox), name=name, context=Context())  # it is nobody's call: it sends those of many
        return outbox

    async def _run(self, outbox: ForwardSender) -> None:
        await asyncio.sleep(0)  # what is appended in this step goes with the first message
        await outbox.run()

    def _leads(self, partition: TopicPartition, leader: BrokerRegistration) -> bool:
        now = self._view.leader(partition)
        return now is not None and now.session == leader.session

    async def _send(self, leader: BrokerRegistration, load: Load) -> None:
        """Sends a message, and gives each lane its answers, unless they were taken for lost meanwhile."""
        appends = [append for _, sent in load for append in sent]
        found = await send_forwarded(self._peers, self._view.topics, leader, appends)
        at = 0
        for lane, sent in load:
            answers = slice(at, at + len(sent))
            at += len(sent)
            if lane.sent is sent:
                self._overtaken.pop(lane.partition, None)
                self._came_back(lane, lane.lost(found) if isinstance(found, OutcomeUnknown) else lane.answered(found[answers]))

    def _came_back(self, lane: ForwardQueue, refusal: TidelogError | None) -> None:
        if refusal is None:
            lane.pause_s, lane.refusal = 0.0, None
        self._advance(lane, refusal)

    # ── what changes meanwhile ──────────────────────────────────────────────────────────────────────────────────────────

    def _leaders_changed(self, changed: Set[TopicPartition]) -> None:
        if not self._lanes or self._tasks is None:
            return
        both = [partition for partition in self._lanes if partition in changed]  # in the order of the lanes, which no hash decides
        now_s = asyncio.get_running_loop().time()
        for partition in both:
            lane = self._lanes[partition]
            leader = self._view.partitions.get(partition)
            if lane.sent and leader is not None and leader.leader_session != lane.sent_to:
                self._overtaken.setdefault(partition, now_s + OVERTAKEN_S)
                self._attention.set()
            else:
                self._overtaken.pop(partition, None)
            lane.pause_s = 0.0  # the next leader serves in a moment, however long there was none
        self._wake([self._paused[partition] for partition in both if partition in self._paused])

    def local_log(self) -> None:
        """This broker has taken partitions over: what waits here for that is appended at once."""
        mine = [lane for partition, lane in self._paused.items() if self._is_here(partition)]
        self._wake(mine)

    def _is_here(self, partition: TopicPartition) -> bool:
        leader = self._view.leader(partition)
        return leader is not None and leader.broker_id == self._broker_id

    def _tell_of_brokers(self) -> None:
        self._brokers_changed.set()

    def _wake(self, lanes: Iterable[ForwardQueue]) -> None:
        for lane in lanes:
            self._advance(lane)

    async def _look_again(self) -> None:
        """Looks at what nobody has taken yet, and takes answers for lost that did not come in time."""
        clock = asyncio.get_running_loop().time
        while True:
            if not self._paused and not self._overtaken:
                self._attention.clear()
                await self._attention.wait()
            await asyncio.sleep(PAUSE_LEAST_S)
            now_s = clock()
            self._wake([lane for lane in self._paused.values() if lane.look_at_s <= now_s])
            late = [partition for partition, until_s in self._overtaken.items() if until_s <= now_s]
            for partition in late:
                del self._overtaken[partition]
                lane = self._lanes[partition]
                error = OutcomeUnknown(
                    f"records for {partition} were forwarded to a leader that has not answered; another leads by now"
                )
                lane.lost(error)
                self._came_back(lane, None)
            if late:
                for outbox in self._outboxes.values():
                    outbox.give_up_calls()

    # ── room ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, append: ForwardedAppend, outcome: Outcome) -> None:
        self._budget.release(append.bytes_charged)
        self._hand_over(append)
        append.outcome.set_result(outcome)

    def _hand_over(self, append: ForwardedAppend) -> None:
        """The bytes are no longer ours: they are the log's, or were given back."""
        left = self._bytes_waiting.get(append.charged_to, 0) - append.bytes_charged
        append.bytes_charged = 0
        if left:
            self._bytes_waiting[append.charged_to] = left
        else:
            self._bytes_waiting.pop(append.charged_to, None)

    def _check_room(self, leader: str, bytes_count: int) -> None:
        """A batch finds room where nothing else waits for this leader, whatever its size."""
        there = self._bytes_waiting.get(leader, 0)
        in_all = sum(self._bytes_waiting.values())
        if there and (there + bytes_count > self._budget.bytes_max // 4 or in_all + bytes_count > self._budget.bytes_max // 2):
            raise Throttled(
                f"{in_all} bytes wait to be forwarded, {there} of them to {leader or 'partitions that nobody leads'}",
                hint="Retry with back-off.",
            )
