"""Calls the coordinator of a consumer group over gRPC, directly or through another broker that forwards.

    FindCoordinator, of any broker ─▶ its address, kept until it refuses, or gives no answer
    join, sync, heartbeat, leave      one attempt each: the member knows when to try again (metadata/group_member/member.py)
    commit, committed                 tried again until request_timeout_ms; a commit may be repeated, since it sets and does not add
    no answer from the coordinator    calls go through another broker for a while
    it has too many calls             the same one is asked again, later

A lasting failure of all these ways is logged, since a member would wait in silence (tidelog/transport/retry.py).

A coordinator that hangs keeps its connections: a waiting member asks now and then which broker coordinates, and moves there.
Invariant: an address that gave no answer is looked up again before it is used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NoReturn, TypeVar

from google.protobuf.message import Message

from gateway.proto import group_messages as wire
from gateway.proto import groups_pb2
from metadata.errors import NoCoordinator, NotCoordinator, OutcomeUnknown, Throttled, TidelogError, Unavailable
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest
from metadata.groups.offsets import CommittedOffset
from metadata.model import Partition, TopicId, TopicPartition
from tidelog.group.positions import Offset
from tidelog.settings import ClientSettings
from tidelog.tasks import first_completed
from tidelog.transport.connection import Connection, Stubs
from tidelog.transport.retry import OutageLog, newer_unless_cut_short, retry_pauses

# Then another way is tried: at the default settings there are many attempts in a session. A busy broker says that it is before
# (its `grpc_queue_timeout_ms`).
HEARTBEAT_S: Final = 2.5
# Timeout of calls that do not wait for other members; then another way is tried.
ATTEMPT_S: Final = 5.0
# Than the member's own rebalance timeout: the coordinator decides when there is nothing to wait for any more.
WAIT_LONGER_S: Final = 10.0
# How often a call that waits for other members checks that the coordinator is still the same.
COORDINATOR_CHECK_S: Final = 5.0
# How long calls go through another broker after the coordinator gave no answer.
DETOUR_S: Final = 10.0
# In one call.
OFFSETS_MAX: Final = 10_000

_Answer = TypeVar("_Answer")
_Message = TypeVar("_Message", bound=Message)


class GrpcCoordinatorClient:
    """GroupCalls, and what a reader asks beyond it. Errors: the tree of metadata/errors.py."""

    def __init__(self, connection: Connection, settings: ClientSettings) -> None:
        self._connection = connection
        self._settings = settings
        # gRPC addresses, by group.
        self._coordinators: dict[str, str] = {}
        self._finding = asyncio.Lock()
        # By the address of a coordinator that gave no answer.
        self._detour_until_s: dict[str, float] = {}
        self._trouble = OutageLog()
        # For other members of the group.
        self._waits_s = WAIT_LONGER_S

    # ── what a member asks ──────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, name: str, request: JoinRequest) -> Joined:
        asked = wire.join_request(name, request)
        self._waits_s = request.rebalance_timeout_ms / 1000 + WAIT_LONGER_S
        return wire.joined(await self._wait(name, lambda to, timeout_s: to.groups.JoinGroup(asked, timeout=timeout_s)))

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        asked = wire.sync_request(name, request)
        return wire.synced(await self._wait(name, lambda to, timeout_s: to.groups.SyncGroup(asked, timeout=timeout_s)))

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        asked = groups_pb2.HeartbeatRequest(group=name, member_id=member_id, instance_id=instance_id, generation=generation)
        await self._once(name, lambda to, timeout_s: to.groups.Heartbeat(asked, timeout=timeout_s), timeout_s=HEARTBEAT_S)

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        asked = wire.leave_request(name, leaving)

        async def ask(to: Stubs, timeout_s: float) -> list[TidelogError | None]:
            answer = await to.groups.LeaveGroup(asked, timeout=timeout_s)
            return wire.errors_of(answer.errors, len(leaving), address=to.address)

        return await self._tried_again(name, ask, writes=False)  # to leave twice is to leave

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(
        self,
        name: str,
        member_id: MemberId,
        instance_id: InstanceId,
        generation: Generation,
        offsets: Mapping[TopicPartitionName, Offset],
    ) -> dict[TopicPartitionName, TidelogError]:
        """Returns the refused offsets with their errors. Raises the error of all of them; OutcomeUnknown if they may be stored."""
        refused: dict[TopicPartitionName, TidelogError] = {}
        partitions = list(offsets)
        for start in range(0, len(partitions), OFFSETS_MAX):
            part = partitions[start : start + OFFSETS_MAX]
            asked = groups_pb2.OffsetCommitRequest(
                group=name,
                member_id=member_id,
                instance_id=instance_id,
                generation=generation,
                offsets=[_to_commit(partition, offsets[partition]) for partition in part],
            )

            async def ask(
                to: Stubs, timeout_s: float, asked: groups_pb2.OffsetCommitRequest = asked, size: int = len(part)
            ) -> list[TidelogError | None]:
                answer = await to.groups.OffsetCommit(asked, timeout=timeout_s)
                return wire.errors_of(answer.errors, size, address=to.address)

            errors = await self._tried_again(name, ask, writes=True)
            refused |= {partition: error for partition, error in zip(part, errors, strict=True) if error is not None}
        return refused

    async def committed(
        self, name: str, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, Offset | TidelogError]:
        """Returns the committed offset or the error of each partition; omits those never committed. Raises errors of the call."""
        found: dict[TopicPartitionName, Offset | TidelogError] = {}
        wanted = sorted(partitions)
        for start in range(0, len(wanted), OFFSETS_MAX):
            asked = groups_pb2.OffsetFetchRequest(group=name, topics=wire.topic_partitions(wanted[start : start + OFFSETS_MAX]))

            async def ask(
                to: Stubs, timeout_s: float, asked: groups_pb2.OffsetFetchRequest = asked
            ) -> dict[TopicPartitionName, Offset | TidelogError]:
                answer = await to.groups.OffsetFetch(asked, timeout=timeout_s)
                return _committed(answer.offsets, to.address)

            found |= await self._tried_again(name, ask, writes=False)
        return found

    # ── the way to the coordinator ──────────────────────────────────────────────────────────────────────────────────────

    async def _wait(self, name: str, ask: Callable[[Stubs, float], Awaitable[_Message]]) -> _Message:
        """Sends a call that waits for other members, as long as they may take."""
        address = await self._coordinator(name)
        return await first_completed(self._once(name, ask, timeout_s=self._waits_s), self._until_moved(name, address))

    async def _until_moved(self, name: str, address: str) -> NoReturn:
        """Raises NotCoordinator."""
        now = address
        while now == address:
            await asyncio.sleep(COORDINATOR_CHECK_S)
            with suppress(TidelogError):
                now = await self._connection.coordinator(name)
        self._coordinators[name] = now
        raise NotCoordinator(f"{now} coordinates group {name} by now, and not {address}")

    async def _once(
        self, name: str, ask: Callable[[Stubs, float], Awaitable[_Answer]], *, timeout_s: float, writes: bool = False
    ) -> _Answer:
        address = await self._coordinator(name)
        with self._heeded(name, address):
            return await self._connection.ask_once(ask, at=self._way_to(address), writes=writes, timeout_s=timeout_s)

    async def _tried_again(self, name: str, ask: Callable[[Stubs, float], Awaitable[_Answer]], *, writes: bool) -> _Answer:
        """Retries a call, even after an unknown outcome: these calls may be repeated."""
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1000
        pauses = retry_pauses(self._settings)
        unknown: OutcomeUnknown | None = None
        met: Unavailable | OutcomeUnknown | None = None
        try:
            while True:
                left_s = max(0.001, deadline_s - time.monotonic())
                try:
                    return await self._once(name, ask, timeout_s=min(ATTEMPT_S, left_s), writes=writes)
                except (Unavailable, OutcomeUnknown) as error:
                    unknown = error if isinstance(error, OutcomeUnknown) else unknown
                    met = newer_unless_cut_short(met, error, is_cut_short=left_s < ATTEMPT_S)
                    wait_s = pauses.next_s(error)
                    if time.monotonic() + wait_s >= deadline_s:
                        raise unknown or met  # noqa: B904  # it has its own cause
                await asyncio.sleep(wait_s)
        finally:
            unknown = met = None  # their tracebacks hold this frame

    async def _coordinator(self, name: str) -> str:
        if (known := self._coordinators.get(name)) is not None:
            return known
        async with self._finding:
            if (known := self._coordinators.get(name)) is not None:  # another caller has asked meanwhile
                return known
            began_s = self._trouble.clock()
            try:
                self._coordinators[name] = found = await self._connection.coordinator(name)
            except Unavailable as error:
                self._trouble.met(f"group {name}", error, began_s=began_s)
                raise
            return found

    def _way_to(self, coordinator: str) -> str:
        if self._detour_until_s.get(coordinator, 0.0) <= time.monotonic():
            return coordinator
        return self._connection.other_than(coordinator)

    @contextmanager
    def _heeded(self, name: str, address: str) -> Iterator[None]:
        """Forgets a coordinator that refuses, or does not answer while the caller waits; keeps one that is only busy."""
        began_s = self._trouble.clock()
        try:
            yield
        except (Unavailable, OutcomeUnknown, asyncio.CancelledError) as error:
            if isinstance(error, TidelogError):
                tried_s = min(ATTEMPT_S, self._trouble.clock() - began_s)  # a member's wait is no attempt
                self._trouble.met(f"group {name}", error, began_s=self._trouble.clock() - tried_s)
            if isinstance(error, TidelogError) and "ended_by_broker" in error.details:
                raise  # it has too many calls: others would come on top
            if self._coordinators.get(name) == address:
                del self._coordinators[name]
            if not isinstance(error, NotCoordinator | NoCoordinator | Throttled | asyncio.CancelledError):
                now_s = time.monotonic()
                self._detour_until_s = {at: until_s for at, until_s in self._detour_until_s.items() if until_s > now_s}
                self._detour_until_s[address] = now_s + DETOUR_S
            raise
        except TidelogError:
            self._trouble.over(f"group {name}")
            raise
        self._trouble.over(f"group {name}")


def _to_commit(partition: TopicPartitionName, offset: Offset) -> groups_pb2.CommittedOffset:
    topic, number = partition
    at = TopicPartition(TopicId(offset.topic_id), Partition(number))
    committed = CommittedOffset(offset=offset.offset, leader_epoch=offset.leader_epoch, committed_at_ms=0)
    return wire.committed_offset(topic, at, committed)


def _committed(fetched: Iterable[groups_pb2.FetchedOffset], address: str) -> dict[TopicPartitionName, Offset | TidelogError]:
    """Returns the committed offsets, and the errors of those that can't be read."""
    found: dict[TopicPartitionName, Offset | TidelogError] = {}
    for each in fetched:
        committed = wire.offset_fetched(each, address=address)
        if isinstance(committed, CommittedOffset):
            found[each.topic, each.partition] = Offset(committed.offset, committed.leader_epoch, each.topic_id)
        elif committed is not None:
            found[each.topic, each.partition] = committed
    return found
