"""Members of many consumer groups: one member in each group, whose heartbeats and commits go out by the clock, whether those before
were answered or not, as bare frames (http2_calls.py). Runs in the client's process (load.py).

A call counts from when it was due, so a client or a broker that falls behind shows in the waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import grpc.aio
import numpy as np
import uvloop
from google.protobuf.message import Message

from bench.http2_calls import UnaryConnection, method
from bench.load import Until
from gateway.proto import groups_pb2
from metadata.consumer_protocol import PROTOCOL_TYPE, Subscription, encode_assignment, encode_subscription
from tidelog.owned_tasks import OwnedTasks, all_of

HEARTBEAT_EVERY_S, COMMIT_EVERY_S = 3.0, 5.0
SESSION_TIMEOUT_MS = 45_000
JOINING_EVERY_S = SESSION_TIMEOUT_MS / 3000
"""A heartbeat of each that has joined, until all have."""
JOIN_S_MAX = 60.0
ANSWER_S_MAX = 1.5
"""Of a heartbeat: what takes longer is lost, since an SDK gives up then, too."""
COMMIT_S_MAX = 5.0
JOINING_AT_ONCE = 500
JOIN_ATTEMPTS = 5
CONNECTIONS = 4
"""To each broker."""
TICK_S = 0.01
LOOK_S = 0.1
"""For calls that were not answered in time."""
RUN_S_MAX = 280.0
"""Ends by itself after this, whatever the benchmark does."""
_SERVICE: Final = "/tidelog.v1.Groups/"
_HEARTBEAT: Final = method(_SERVICE + "Heartbeat", timeout_s=ANSWER_S_MAX)
_COMMIT: Final = method(_SERVICE + "OffsetCommit", timeout_s=COMMIT_S_MAX)


@dataclass(frozen=True, slots=True)
class Calls:
    """All that were made of one kind."""

    due_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    """Of those that were answered well, when they were due. So is the next one."""
    waited_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    failures: tuple[tuple[float, str], ...]
    """When each of the others was due, and what came of it."""

    def due_within(self, start_s: float, end_s: float) -> Calls:
        within = (self.due_s >= start_s) & (self.due_s < end_s)
        failures = tuple((due_s, why) for due_s, why in self.failures if start_s <= due_s < end_s)
        return Calls(self.due_s[within], self.waited_s[within], failures)


class Lived(NamedTuple):
    joined_in_s: float
    heartbeats: Calls
    commits: Calls


@dataclass(slots=True)
class _Made:
    due_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)

    def told(self, due_s: float, answer: bytes | None, instead: str) -> None:
        if answer is None:
            self.failures.append((due_s, instead))
        else:
            self.due_s.append(due_s)
            self.waited_s.append(time.monotonic() - due_s)

    def calls(self) -> Calls:
        return Calls(np.array(self.due_s), np.array(self.waited_s), tuple(self.failures))


@dataclass(slots=True)
class _Member:
    coordinator: UnaryConnection
    heartbeat: bytes
    commit: groups_pb2.OffsetCommitRequest

    def beat(self, due_s: float, made: _Made) -> None:
        self.coordinator.call(_HEARTBEAT, self.heartbeat, partial(made.told, due_s))

    def commit_next(self, due_s: float, made: _Made) -> None:
        self.commit.offsets[0].offset += 1
        self.coordinator.call(_COMMIT, self.commit.SerializeToString(), partial(_told_of_commit, made, due_s))


def _told_of_commit(made: _Made, due_s: float, answer: bytes | None, instead: str) -> None:
    if answer is not None:
        error = groups_pb2.OffsetCommitResponse.FromString(answer).errors[0]
        if error.code:
            answer, instead = None, error.message
    made.told(due_s, answer, instead)


class _Broker(NamedTuple):
    channel: grpc.aio.Channel
    """For joins."""
    connections: Sequence[UnaryConnection]


def live_in_groups(addresses: Sequence[str], topic: str, groups: int, *, commits: bool, ready: Until, until: Until) -> Lived:
    """Joins so many groups, one member each, which heartbeats; and, from when all have joined (`ready`), commits partition 0."""

    async def run() -> Lived:
        members: list[_Member | None] = [None] * groups
        beats, committed = _Made(), _Made()
        async with asyncio.timeout(RUN_S_MAX), _brokers(addresses) as brokers:
            async with _by_the_clock(members, JOINING_EVERY_S, _Made(), _Member.beat):
                started_s = time.monotonic()
                joins = (_join(members, number, brokers, topic) for number in range(groups))
                await all_of(joins, at_once=JOINING_AT_ONCE)
                joined_in_s = time.monotonic() - started_s
            async with AsyncExitStack() as pacers:
                await pacers.enter_async_context(_by_the_clock(members, HEARTBEAT_EVERY_S, beats, _Member.beat))
                if commits:
                    await pacers.enter_async_context(_by_the_clock(members, COMMIT_EVERY_S, committed, _Member.commit_next))
                ready.end()
                while not until.over:  # noqa: ASYNC110  # another process says so
                    await asyncio.sleep(TICK_S)
        return Lived(joined_in_s, beats.calls(), committed.calls())

    return uvloop.run(run())


def beat_at(addresses: Sequence[str], groups: int, *, seconds: float) -> Calls:
    """The same heartbeats at the same pace, in turn to each address, whoever answers there."""

    async def run() -> Calls:
        request = groups_pb2.HeartbeatRequest(group="group-00000", member_id=f"bench-{'0' * 32}", generation=1).SerializeToString()
        made = _Made()
        async with _brokers(addresses) as brokers:
            connections = [broker.connections[number] for number in range(CONNECTIONS) for broker in brokers.values()]
            none = groups_pb2.OffsetCommitRequest()
            members = [_Member(connections[number % len(connections)], request, none) for number in range(groups)]
            async with _by_the_clock(members, HEARTBEAT_EVERY_S, made, _Member.beat):
                await asyncio.sleep(seconds)
        return made.calls()

    return uvloop.run(run())


@asynccontextmanager
async def _by_the_clock(
    members: Sequence[_Member | None], every_s: float, made: _Made, call: Callable[[_Member, float, _Made], None]
) -> AsyncIterator[None]:
    """Until the block is left, each member's turn comes once in `every_s`, all spread over it."""

    async def pace() -> None:
        started_s, turn = time.monotonic(), 0
        while True:
            while (due_s := started_s + turn * every_s / len(members)) <= time.monotonic():
                if (member := members[turn % len(members)]) is not None:
                    call(member, due_s, made)
                turn += 1
            await asyncio.sleep(TICK_S)

    async with OwnedTasks() as tasks:
        tasks.start(pace(), name="pace")
        yield


@asynccontextmanager
async def _brokers(addresses: Sequence[str]) -> AsyncIterator[dict[str, _Broker]]:
    """By their addresses. What is unanswered when the block is left is in no figure."""
    async with AsyncExitStack() as parts:
        brokers: dict[str, _Broker] = {}
        for address in addresses:
            connections = [await _connected(address) for _ in range(CONNECTIONS)]
            for connection in connections:
                parts.enter_context(closing(connection))
            channel = await parts.enter_async_context(grpc.aio.insecure_channel(address))
            brokers[address] = _Broker(channel, connections)
        tasks = await parts.enter_async_context(OwnedTasks())
        tasks.start(_give_up([each for broker in brokers.values() for each in broker.connections]), name="deadlines")
        yield brokers


async def _connected(address: str) -> UnaryConnection:
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(UnaryConnection, host, int(port))
    return connection


async def _give_up(connections: Sequence[UnaryConnection]) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        for connection in connections:
            connection.give_up()


async def _join(members: list[_Member | None], number: int, brokers: dict[str, _Broker], topic: str) -> None:
    """Tried again where the coordinator asks for that: nothing is measured yet."""
    for attempt in range(1, JOIN_ATTEMPTS + 1):
        try:
            members[number] = await _joined(f"group-{number:05}", number, brokers, topic)
            return
        except grpc.aio.AioRpcError as error:
            if attempt == JOIN_ATTEMPTS:
                raise RuntimeError(f"group {number} could not be joined: {error.code().name}: {error.details()}") from error
        await asyncio.sleep(attempt * 0.2)


async def _joined(group: str, number: int, brokers: dict[str, _Broker], topic: str) -> _Member:
    asked = list(brokers.values())[number % len(brokers)].channel
    named = groups_pb2.FindCoordinatorRequest(group=group)
    found = groups_pb2.FindCoordinatorResponse.FromString(await _call(asked, "FindCoordinator", named))
    coordinator = brokers[found.grpc_address]
    joining = groups_pb2.JoinGroupRequest(
        group=group,
        protocol_type=PROTOCOL_TYPE,
        protocols=[groups_pb2.GroupProtocol(name="range", metadata=encode_subscription(Subscription((topic,))))],
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=int(JOIN_S_MAX * 1000),
        client_id="bench",
    )
    joined = groups_pb2.JoinGroupResponse.FromString(await _call(coordinator.channel, "JoinGroup", joining))
    member_id, generation = joined.member_id, joined.generation
    mine = {member_id: encode_assignment({topic: [0]})}
    syncing = groups_pb2.SyncGroupRequest(group=group, member_id=member_id, generation=generation, assignments=mine)
    await _call(coordinator.channel, "SyncGroup", syncing)
    heartbeat = groups_pb2.HeartbeatRequest(group=group, member_id=member_id, generation=generation)
    offset = groups_pb2.CommittedOffset(topic=topic, partition=0, offset=0)
    commit = groups_pb2.OffsetCommitRequest(group=group, member_id=member_id, generation=generation, offsets=[offset])
    return _Member(coordinator.connections[number % CONNECTIONS], heartbeat.SerializeToString(), commit)


async def _call(channel: grpc.aio.Channel, name: str, request: Message) -> bytes:
    call: Any = channel.unary_unary(_SERVICE + name)
    answer: bytes = await call(request.SerializeToString(), timeout=JOIN_S_MAX)
    return answer
