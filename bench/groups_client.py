"""Members of many consumer groups: one member in each group, whose heartbeats and commits go out by the clock, whether those before
were answered or not, as bare frames (http2_calls.py). Runs in the client's process (load.py).

A call counts from when it was due, so a client or a broker that falls behind shows in the waits; how late the client itself was is
reported separately.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import uvloop

from bench.groups_joining import Refusals, join_all
from bench.http2_calls import CallRefused, UnaryConnection, method
from bench.load import Until
from gateway.proto import groups_pb2
from metadata.groups.consumer_protocol import PROTOCOL_TYPE, Subscription, encode_assignment, encode_subscription
from tidelog.tasks import ClientTasks

COMMIT_EVERY_S = 5.0
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
# A heartbeat of each that has joined, until all have.
JOINING_EVERY_S = SESSION_TIMEOUT_MS / 3000
# For all groups.
JOIN_S_MAX = 180.0
# Of a heartbeat: what takes longer is lost, since an SDK gives up then, too.
ANSWER_S_MAX = 1.5
COMMIT_S_MAX = 5.0
# Of one call of a join.
JOINING_S_MAX = 10.0
# To each broker.
CONNECTIONS = 4
TICK_S = 0.01
# For calls that were not answered in time.
CHECK_INTERVAL_S = 0.1
# Calls that each connection keeps unanswered at full speed.
WINDOW = 16
_SERVICE: Final = "/tidelog.v1.Groups/"
_HEARTBEAT: Final = method(_SERVICE + "Heartbeat", timeout_s=ANSWER_S_MAX)
_COMMIT: Final = method(_SERVICE + "OffsetCommit", timeout_s=COMMIT_S_MAX)
_FIND, _JOIN, _SYNC, _LEAVE = (
    method(_SERVICE + name, timeout_s=JOINING_S_MAX) for name in ("FindCoordinator", "JoinGroup", "SyncGroup", "LeaveGroup")
)


@dataclass(frozen=True, slots=True)
class Calls:
    """All that were made of one kind."""

    # Of those that were answered well, when they were due. So are the next two.
    due_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    waited_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    # How much later than that the client sent them: this part of their wait is its own doing.
    late_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    # When each of the others was due, and what came of it.
    failures: tuple[tuple[float, str], ...]

    def due_within(self, start_s: float, end_s: float) -> Calls:
        within = (self.due_s >= start_s) & (self.due_s < end_s)
        failures = tuple((due_s, why) for due_s, why in self.failures if start_s <= due_s < end_s)
        return Calls(self.due_s[within], self.waited_s[within], self.late_s[within], failures)

    @property
    def refusals(self) -> Refusals:
        refusals = Refusals()
        for _, why in self.failures:
            refusals.add(why)
        return refusals


class Lived(NamedTuple):
    joined_in_s: float
    # Of the calls that joins are made of: what came of those that had to be repeated.
    refused: str
    heartbeats: Calls
    commits: Calls


@dataclass(slots=True)
class _Made:
    due_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)

    def reported(self, due_s: float, late_s: float, answer: bytes | None, instead: str) -> None:
        if answer is None:
            self.failures.append((due_s, instead))
        else:
            self.due_s.append(due_s)
            self.waited_s.append(time.monotonic() - due_s)
            self.late_s.append(late_s)

    def calls(self) -> Calls:
        return Calls(np.array(self.due_s), np.array(self.waited_s), np.array(self.late_s), tuple(self.failures))


@dataclass(slots=True)
class _Member:
    coordinator: UnaryConnection
    heartbeat: bytes
    commit: groups_pb2.OffsetCommitRequest

    def beat(self, due_s: float, late_s: float, made: _Made) -> None:
        self.coordinator.call(_HEARTBEAT, self.heartbeat, partial(made.reported, due_s, late_s))

    def commit_next(self, due_s: float, late_s: float, made: _Made) -> None:
        self.commit.offsets[0].offset += 1
        self.coordinator.call(_COMMIT, self.commit.SerializeToString(), partial(_take_commit_answer, made, due_s, late_s))


def _take_commit_answer(made: _Made, due_s: float, late_s: float, answer: bytes | None, instead: str) -> None:
    if answer is not None:
        error = groups_pb2.OffsetCommitResponse.FromString(answer).errors[0]
        if error.code:
            answer, instead = None, f"refused: {error.message}"
    made.reported(due_s, late_s, answer, instead)


# To each broker, by its address.
_Connections = Mapping[str, Sequence[UnaryConnection]]


def live_in_groups(
    addresses: Sequence[str],
    topic: str,
    topic_id: str,
    groups: int,
    *,
    every_s: float,
    commits: bool,
    ready: Until,
    until: Until,
) -> Lived:
    """Joins so many groups, one member each, which heartbeats; and, from when all have joined (`ready`), commits partition 0."""
    benchmark = os.getppid()

    async def run() -> Lived:
        members: list[_Member | None] = [None] * groups
        beats, committed = _Made(), _Made()
        async with _connected(addresses) as brokers:

            async def join(number: int) -> None:
                members[number] = await _joined(f"group-{number:05}", number, brokers, topic, topic_id)

            async with _by_the_clock(members, JOINING_EVERY_S, _Made(), _Member.beat):
                started_s = time.monotonic()
                refused = await join_all(groups, join, within_s=JOIN_S_MAX)
                joined_in_s = time.monotonic() - started_s
            async with AsyncExitStack() as pacers:
                await pacers.enter_async_context(_by_the_clock(members, every_s, beats, _Member.beat))
                if commits:
                    await pacers.enter_async_context(_by_the_clock(members, COMMIT_EVERY_S, committed, _Member.commit_next))
                ready.end()
                while not until.over and os.getppid() == benchmark:  # noqa: ASYNC110  # another process says so
                    await asyncio.sleep(TICK_S)
        return Lived(joined_in_s, str(refused), beats.calls(), committed.calls())

    return uvloop.run(run())


def beat_at(addresses: Sequence[str], groups: int, *, every_s: float, seconds: float) -> Calls:
    """Sends heartbeats at a steady pace to each address in turn. They need no members: any server may answer."""

    async def run() -> Calls:
        made = _Made()
        async with _connected(addresses) as brokers:
            connections = [brokers[address][number] for number in range(CONNECTIONS) for address in addresses]
            none = groups_pb2.OffsetCommitRequest()
            members = [_Member(connections[number % len(connections)], _any_heartbeat(), none) for number in range(groups)]
            async with _by_the_clock(members, every_s, made, _Member.beat):
                await asyncio.sleep(seconds)
        return made.calls()

    return uvloop.run(run())


def beat_at_full_speed(addresses: Sequence[str], *, seconds: float) -> float:
    """Such heartbeats that are answered in a second where each connection always has some unanswered."""

    async def run() -> float:
        heartbeat, answered = _any_heartbeat(), 0
        async with _connected(addresses) as brokers, ClientTasks() as tasks:

            async def keep_beating(connection: UnaryConnection) -> None:
                nonlocal answered
                while True:
                    with suppress(CallRefused):
                        await connection.asked(_HEARTBEAT, heartbeat)
                        answered += 1

            started_s = time.monotonic()
            for connections in brokers.values():
                for connection in connections:
                    for _ in range(WINDOW):
                        tasks.start(keep_beating(connection), name="heartbeats")
            await asyncio.sleep(seconds)
            return answered / (time.monotonic() - started_s)

    return uvloop.run(run())


def _any_heartbeat() -> bytes:
    return groups_pb2.HeartbeatRequest(group="group-00000", member_id=f"bench-{'0' * 32}", generation=1).SerializeToString()


@asynccontextmanager
async def _by_the_clock(
    members: Sequence[_Member | None], every_s: float, made: _Made, call: Callable[[_Member, float, float, _Made], None]
) -> AsyncIterator[None]:
    """Until the block is left, each member's turn comes once in `every_s`, all spread over it."""

    async def pace() -> None:
        started_s, turn = time.monotonic(), 0
        while True:
            while (due_s := started_s + turn * every_s / len(members)) <= (now_s := time.monotonic()):
                if (member := members[turn % len(members)]) is not None:
                    call(member, due_s, now_s - due_s, made)
                turn += 1
            await asyncio.sleep(TICK_S)

    async with ClientTasks() as tasks:
        tasks.start(pace(), name="pace")
        yield


@asynccontextmanager
async def _connected(addresses: Sequence[str]) -> AsyncIterator[_Connections]:
    """What is unanswered when the block is left is in no figure."""
    async with AsyncExitStack() as parts:
        brokers = {address: [await _connection(address) for _ in range(CONNECTIONS)] for address in addresses}
        every = [connection for connections in brokers.values() for connection in connections]
        for connection in every:
            parts.enter_context(closing(connection))
        tasks = await parts.enter_async_context(ClientTasks())
        tasks.start(_give_up(every), name="deadlines")
        yield brokers


async def _connection(address: str) -> UnaryConnection:
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(UnaryConnection, host, int(port))
    return connection


async def _give_up(connections: Sequence[UnaryConnection]) -> None:
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        for connection in connections:
            connection.give_up()


async def _joined(group: str, number: int, brokers: _Connections, topic: str, topic_id: str) -> _Member:
    """Raises CallRefused. Then no member is left behind, or the next attempt would wait for it."""
    asked = list(brokers.values())[number % len(brokers)][number % CONNECTIONS]
    named = groups_pb2.FindCoordinatorRequest(group=group).SerializeToString()
    found = groups_pb2.FindCoordinatorResponse.FromString(await asked.asked(_FIND, named))
    coordinator = brokers[found.grpc_address][number % CONNECTIONS]
    joining = groups_pb2.JoinGroupRequest(
        group=group,
        protocol_type=PROTOCOL_TYPE,
        protocols=[groups_pb2.GroupProtocol(name="range", metadata=encode_subscription(Subscription((topic,))))],
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        client_id="bench",
    )
    joined = groups_pb2.JoinGroupResponse.FromString(await coordinator.asked(_JOIN, joining.SerializeToString()))
    member_id, generation = joined.member_id, joined.generation
    mine = {member_id: encode_assignment({topic: [0]})}
    syncing = groups_pb2.SyncGroupRequest(group=group, member_id=member_id, generation=generation, assignments=mine)
    try:
        await coordinator.asked(_SYNC, syncing.SerializeToString())
    except CallRefused:
        leaving = groups_pb2.LeaveGroupRequest(group=group, members=[groups_pb2.LeavingMember(member_id=member_id)])
        with suppress(CallRefused):
            await coordinator.asked(_LEAVE, leaving.SerializeToString())
        raise
    heartbeat = groups_pb2.HeartbeatRequest(group=group, member_id=member_id, generation=generation)
    # With the id, as the SDK: a commit by name alone costs the broker a read of etcd.
    offset = groups_pb2.CommittedOffset(topic=topic, topic_id=topic_id, partition=0, offset=0)
    commit = groups_pb2.OffsetCommitRequest(group=group, member_id=member_id, generation=generation, offsets=[offset])
    return _Member(coordinator, heartbeat.SerializeToString(), commit)
