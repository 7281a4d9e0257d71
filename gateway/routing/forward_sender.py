"""Sends the batches for one leader, in messages composed from the queues of all its partitions.

    queue is ready ─▶ as many ready queues as fit one message ─▶ Produce at the leader ─▶ each queue gets its answers
                      at once while few messages are in flight; then one each COALESCE_S, so that messages grow

A call costs more than its batches, so a topic with many partitions must not cost one call for each queue.
Invariant: at most MESSAGES_IN_FLIGHT messages are in flight to a leader, and one of each queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.proto import log_pb2
from gateway.proto.status import from_status
from gateway.routing.forward_queue import ForwardedAppend, ForwardQueue, MessageRoom
from gateway.routing.peer_channels import PeerChannels
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import OutcomeUnknown, TidelogError, UnknownTopic
from metadata.model import LeaderEpoch, Offset, TopicPartition
from metadata.topics.cache import TopicCache
from segments.log.session_log import Acks
from segments.partition.partition_log import Appended

# Bounds of a message to a leader; a single batch may be larger.
MESSAGE_BYTES: Final = 4 << 20
MESSAGE_APPENDS: Final = 1_000
MESSAGES_IN_FLIGHT: Final = 64
# Messages in flight up to which the next one is sent without COALESCE_S.
UNDELAYED_MESSAGES: Final = 2
COALESCE_S: Final = 0.01

# One message: its batches by queue.
Load = list[tuple[ForwardQueue, list[ForwardedAppend]]]


class ForwardSender:
    """Sends ready queues to one leader. Its owner runs `run()` as a task after the first `add`, and replaces it once `ended`."""

    def __init__(
        self,
        leader: BrokerRegistration,
        send: Callable[[BrokerRegistration, Load], Awaitable[None]],
        is_led: Callable[[TopicPartition, BrokerRegistration], bool],
        return_queue: Callable[[ForwardQueue], None],
    ) -> None:
        """`send` returns when each queue has its answers. `return_queue` takes back empty queues and those of other leaders."""
        self.leader = leader
        self.ended = False
        self._send = send
        self._is_led = is_led
        self._return = return_queue
        self._ready: dict[TopicPartition, ForwardQueue] = {}
        self._calls: dict[asyncio.Task[None], Load] = {}
        self._woken = asyncio.Event()

    def add(self, queue: ForwardQueue) -> None:
        """Marks a queue with waiting batches as ready."""
        self._ready[queue.partition] = queue
        self._woken.set()

    def cancel_abandoned_calls(self) -> None:
        """Cancels calls whose queues have already settled their batches as lost."""
        for call, load in self._calls.items():
            if all(queue.sent is not sent for queue, sent in load):
                call.cancel()

    async def run(self) -> None:
        """Sends until no queue is ready and no call is in flight."""
        clock = asyncio.get_running_loop().time
        sent_s = clock() - COALESCE_S
        async with asyncio.TaskGroup() as calls:
            while self._ready or self._calls:
                self._woken.clear()
                in_flight = len(self._calls)
                left_s = sent_s + COALESCE_S - clock() if in_flight >= UNDELAYED_MESSAGES else 0.0
                if not self._ready or in_flight >= MESSAGES_IN_FLIGHT:
                    await self._woken.wait()
                elif left_s > 0:
                    await asyncio.sleep(left_s)
                elif load := self._next_load(clock()):
                    sent_s = clock()
                    call = calls.create_task(self._call(load))
                    self._calls[call] = load
                    call.add_done_callback(self._called)
            self.ended = True  # in the same step of the loop as the last check

    async def _call(self, load: Load) -> None:
        await self._send(self.leader, load)

    def _called(self, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        self._woken.set()

    def _next_load(self, now_s: float) -> Load:
        """Takes as many batches of ready queues as fit one message."""
        space = MessageRoom(MESSAGE_BYTES, MESSAGE_APPENDS)
        load: Load = []
        for partition, queue in list(self._ready.items()):
            first = queue.first(now_s)
            if first is None or not self._is_led(partition, self.leader):
                del self._ready[partition]
                self._return(queue)
            elif space.has_room(first):
                del self._ready[partition]
                load.append((queue, queue.take(now_s, space, self.leader.session)))
            elif space.appends_left <= 0 or space.bytes_left <= 0:
                break
        return load


# Time beyond the deadline of the records for the leader's answer.
ANSWER_S: Final = 1.0
_PRODUCE: Final = "/tidelog.v1.Log/Produce"


async def send_forwarded(
    peers: PeerChannels, topics: TopicCache, leader: BrokerRegistration, appends: Sequence[ForwardedAppend]
) -> list[Appended | TidelogError] | OutcomeUnknown:
    """Sends a Produce with these batches, which have the same acks, and returns an outcome for each.

    Returns OutcomeUnknown where the answer was lost, or does not answer every batch.
    """
    left_s = max(append.deadline_s for append in appends) - asyncio.get_running_loop().time()
    request = log_pb2.ProduceRequest(
        acks=log_pb2.ACKS_ALL if appends[0].acks is Acks.ALL else log_pb2.ACKS_LEADER, timeout_ms=max(1, round(1000 * left_s))
    )
    gone = {at: unknown for at, append in enumerate(appends) if (unknown := _add(request, topics, append)) is not None}
    found: list[Appended | TidelogError]
    try:
        answer = await peers.call(
            leader, _PRODUCE, request, log_pb2.ProduceResponse, timeout_s=max(0.0, left_s) + ANSWER_S, is_write=True
        )
        if len(answer.results) != len(request.appends):
            return OutcomeUnknown(
                f"broker {leader.broker_id} answered {len(answer.results)} of {len(request.appends)} forwarded appends"
            )
        found = [_outcome(result) for result in answer.results]
    except OutcomeUnknown as error:
        return error.with_traceback(None)
    except TidelogError as error:
        found = [error.with_traceback(None)] * len(request.appends)
    for at, unknown in gone.items():
        found.insert(at, unknown)
    return found


def _add(request: log_pb2.ProduceRequest, topics: TopicCache, append: ForwardedAppend) -> UnknownTopic | None:
    """Adds the batch to the request; returns UnknownTopic if its topic was deleted or recreated meanwhile."""
    try:
        topic = topics.by_id(append.partition.topic_id)
    except UnknownTopic as error:
        return error.with_traceback(None)
    request.appends.add(
        topic=topic.name,
        topic_id=topic.id,
        partition=append.partition.partition,
        record_batch=bytes(append.batch),
        expected_offset=append.expected_offset,
        key_id=append.key_id,
        topic_revision=topic.revision,
        continues=append.continues,
    )
    return None


def _outcome(result: log_pb2.AppendResult) -> Appended | TidelogError:
    if result.HasField("error"):
        return from_status(result.error)
    if len(result.placements) != 1:
        return OutcomeUnknown("the leader's answer names no offset")
    [appended] = result.placements
    if appended.HasField("error"):
        return from_status(appended.error)
    last_offset = Offset(appended.base_offset + appended.count - 1)
    dated_ms = appended.log_append_time_ms if appended.HasField("log_append_time_ms") else -1
    return Appended(Offset(appended.base_offset), last_offset, LeaderEpoch(appended.leader_epoch), appended.duplicate, dated_ms)
