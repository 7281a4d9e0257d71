"""The messages on their way to one leader, put together from the lanes of all its partitions.

    lane is ready ─▶ as many ready lanes as make a message ─▶ call ─▶ each lane its answers
                     at once while few messages are on their way; then every COALESCE_S, so that they grow

A message for each lane would be a call for each batch where a topic has many partitions, and a call costs more than its batches.
Invariant: at most MESSAGES_AT_ONCE are on their way to a leader, and of a lane one.

A message of forwarded batches on the wire: a Produce of ready batches at their leader, and what it answers.
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

# A message to a leader is no longer, but for a single batch that is.
MESSAGE_BYTES: Final = 4 << 20
MESSAGE_APPENDS: Final = 1_000
MESSAGES_AT_ONCE: Final = 64
# So many messages are on their way before others wait for company.
FREELY: Final = 2
COALESCE_S: Final = 0.01

# One message: of each lane what is on its way with it.
Load = list[tuple[ForwardQueue, list[ForwardedAppend]]]


class ForwardSender:
    """Its owner runs `run()` as a task after the first `add`, and makes another one once it has `ended`."""

    def __init__(
        self,
        leader: BrokerRegistration,
        send: Callable[[BrokerRegistration, Load], Awaitable[None]],
        is_led: Callable[[TopicPartition, BrokerRegistration], bool],
        elsewhere: Callable[[ForwardQueue], None],
    ) -> None:
        """`send` returns when each lane has its answers; `elsewhere` takes lanes that are empty, or led by others."""
        self.leader = leader
        self.ended = False
        self._send = send
        self._is_led = is_led
        self._elsewhere = elsewhere
        self._ready: dict[TopicPartition, ForwardQueue] = {}
        self._calls: dict[asyncio.Task[None], Load] = {}
        self._woken = asyncio.Event()

    def add(self, lane: ForwardQueue) -> None:
        self._ready[lane.partition] = lane
        self._woken.set()

    def give_up_calls(self) -> None:
        """Ends calls that nobody waits for any more: their lanes have been told that the answers are lost."""
        for call, load in self._calls.items():
            if all(lane.sent is not sent for lane, sent in load):
                call.cancel()

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        sent_s = clock() - COALESCE_S
        async with asyncio.TaskGroup() as calls:
            while self._ready or self._calls:
                self._woken.clear()
                under_way = len(self._calls)
                left_s = sent_s + COALESCE_S - clock() if under_way >= FREELY else 0.0
                if not self._ready or under_way >= MESSAGES_AT_ONCE:
                    await self._woken.wait()
                elif left_s > 0:
                    await asyncio.sleep(left_s)
                elif load := self._load(clock()):
                    sent_s = clock()
                    call = calls.create_task(self._call(load))
                    self._calls[call] = load
                    call.add_done_callback(self._called)
            self.ended = True  # in the same step as the last look

    async def _call(self, load: Load) -> None:
        await self._send(self.leader, load)

    def _called(self, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        self._woken.set()

    def _load(self, now_s: float) -> Load:
        """Of the lanes that are ready as much as makes a message."""
        space = MessageRoom(MESSAGE_BYTES, MESSAGE_APPENDS)
        load: Load = []
        for partition, lane in list(self._ready.items()):
            first = lane.first(now_s)
            if first is None or not self._is_led(partition, self.leader):
                del self._ready[partition]
                self._elsewhere(lane)
            elif space.has_room(first):
                del self._ready[partition]
                load.append((lane, lane.take(now_s, space, self.leader.session)))
            elif space.appends_left <= 0 or space.bytes_left <= 0:
                break
        return load


# Beyond the deadline of the records, for the answer that tells of it.
ANSWER_S: Final = 1.0
_PRODUCE: Final = "/tidelog.v1.Log/Produce"


async def send_forwarded(
    peers: PeerChannels, topics: TopicCache, leader: BrokerRegistration, appends: Sequence[ForwardedAppend]
) -> list[Appended | TidelogError] | OutcomeUnknown:
    """What the leader answers to each, all of them with acks=all or none; OutcomeUnknown where there was no answer to all."""
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
            told = f"broker {leader.broker_id} answered {len(answer.results)} of {len(request.appends)} forwarded appends"
            return OutcomeUnknown(told)
        found = [_outcome(result) for result in answer.results]
    except OutcomeUnknown as error:
        return error.with_traceback(None)
    except TidelogError as error:
        found = [error.with_traceback(None)] * len(request.appends)
    for at, unknown in gone.items():
        found.insert(at, unknown)
    return found


def _add(request: log_pb2.ProduceRequest, topics: TopicCache, append: ForwardedAppend) -> UnknownTopic | None:
    """Why it is left out: its topic was deleted, or made again, meanwhile."""
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
    placed = result.placements[0]
    if placed.HasField("error"):
        return from_status(placed.error)
    last_offset = Offset(placed.base_offset + placed.count - 1)
    dated_ms = placed.log_append_time_ms if placed.HasField("log_append_time_ms") else -1
    return Appended(Offset(placed.base_offset), last_offset, LeaderEpoch(placed.leader_epoch), placed.duplicate, dated_ms)
