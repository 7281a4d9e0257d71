"""Joins clients to consumer groups as members, keeps their sessions, and lets them leave.

    POST …/members ─▶ JoinGroup, waits for all ─▶ the group's leader assigns ─▶ SyncGroup ─▶ 201: id, generation, assignment
                           ▲                                                       │
                           └── another member joined or left meanwhile ────────────┘

A new member whose client disconnects before it knows the member id leaves at once. Invariant: the client of a new member receives
its id, in the answer or beside an error, or the member leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.api import BrokerApi
from gateway.concurrency.coordinator_retry import retry_coordinator
from gateway.concurrency.offload import BoundedExecutor
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.http.groups import member_leader
from gateway.http.groups.bodies import Heartbeat, MemberAnswer, NewMember, assigned_topics
from gateway.http.groups.request import GroupRequest, member_path
from gateway.http.request import Disconnected
from gateway.http.struct_body import decode_body
from gateway.topics.describe import described_topic
from metadata.errors import (
    InvalidArgument,
    RebalanceInProgress,
    Rejected,
    StaleGeneration,
    TidelogError,
    UnknownMember,
    UnknownTopic,
    did_you_mean,
)
from metadata.group_member.leader_assignment import subscribers
from metadata.groups.assignors import ASSIGNORS
from metadata.groups.consumer_protocol import PROTOCOL_TYPE
from metadata.groups.model import NO_MEMBER, Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest

# Time limit of LeaveGroup for a member whose client has disconnected.
LEAVE_S: Final = 5.0
# A larger assignment is computed in a thread, because it would block the event loop for milliseconds.
THREAD_PARTITIONS: Final = 1_000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Joining:
    """Holds a join in progress: the request, and the member id that the coordinator assigned."""

    call: GroupRequest
    new: NewMember
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    member_id: MemberId

    @property
    def has_undelivered_id(self) -> bool:
        """Returns whether the client does not know the member's id. With an instance id it can return without one."""
        return self.member_id != NO_MEMBER and not self.new.member_id and not self.new.instance_id


class HttpGroupMembers:
    """Handles joins, heartbeats and leaves."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits) -> None:
        self._broker = broker
        self._waits = waits
        self._assigning = BoundedExecutor()

    # ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, call: GroupRequest) -> None:
        call.query()
        new = decode_body(call.body, NewMember)
        topics = tuple(dict.fromkeys(new.topics))
        for topic in topics:
            await described_topic(self._broker, topic)
        call = call._replace(member_id=MemberId(new.member_id))
        joining = _Joining(call, new, topics, _assignors(new), call.member_id)
        try:
            with call.with_hints():
                joined, synced = await call.request.run_while_connected(self._join(joining))
        except Disconnected:
            await self._leave_undelivered(joining)
            raise
        except TidelogError as error:
            if isinstance(error, Rejected):
                await self._leave_undelivered(joining)
            elif joining.member_id != NO_MEMBER:
                error.details = {**error.details, "member_id": joining.member_id}
            raise
        answer = MemberAnswer(
            member_id=joined.member_id,
            generation=joined.generation,
            assignor=joined.protocol,
            leader=joined.leader == joined.member_id,
            session_timeout_ms=new.session_timeout_ms,
            rebalance_timeout_ms=new.rebalance_timeout_ms,
            assignment=assigned_topics(member_leader.assigned(synced.assignment).partitions),
        )
        await call.answer(answer, status=201, location=member_path(call.path, joined.member_id))

    async def _join(self, joining: _Joining) -> tuple[Joined, Synced]:
        async with self._waits.until_stop():
            while True:
                joined = await self._join_once(joining)
                joining.member_id = joined.member_id
                try:
                    return joined, await self._sync(joining, joined)
                except (RebalanceInProgress, StaleGeneration):
                    pass
                except UnknownMember:
                    if not joining.has_undelivered_id:
                        raise
                    joining.member_id = NO_MEMBER

    async def _join_once(self, joining: _Joining) -> Joined:
        new = joining.new
        request = JoinRequest(
            member_id=joining.member_id,
            instance_id=InstanceId(new.instance_id),
            client_id=new.client_id,
            client_host=joining.call.client_host,
            protocol_type=PROTOCOL_TYPE,
            protocols=member_leader.offers(joining.topics, joining.assignors),
            session_timeout_ms=new.session_timeout_ms,
            rebalance_timeout_ms=new.rebalance_timeout_ms,
        )
        return await retry_coordinator(lambda: self._broker.groups.join(joining.call.group, request))

    async def _sync(self, joining: _Joining, joined: Joined) -> Synced:
        assignments: Mapping[MemberId, bytes] = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = await self._assignments(joined)
        request = SyncRequest(
            member_id=joined.member_id,
            instance_id=InstanceId(joining.new.instance_id),
            generation=joined.generation,
            assignments=assignments,
            protocol_type=joined.protocol_type,
            protocol=joined.protocol,
        )
        return await retry_coordinator(lambda: self._broker.groups.sync(joining.call.group, request))

    async def _assignments(self, joined: Joined) -> dict[MemberId, bytes]:
        members = subscribers(joined)
        counts = {topic: self._partition_count(topic) for topic in sorted(members.topics)}
        if sum(counts.values()) > THREAD_PARTITIONS:
            return await self._assigning.run(lambda: member_leader.assignments(joined, members, counts))
        return member_leader.assignments(joined, members, counts)

    def _partition_count(self, topic: str) -> int:
        """Returns the partitions of a topic; 0 of an unknown one, which reads of this member notice once it is known."""
        try:
            return self._broker.topic_cache.get(topic).partition_count
        except (InvalidArgument, UnknownTopic):
            return 0

    async def _leave_undelivered(self, joining: _Joining) -> None:
        """Removes a member whose client does not know its id, so that rebalances do not wait for it."""
        if not joining.has_undelivered_id:
            return
        member = (joining.member_id, InstanceId(joining.new.instance_id))
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._broker.groups.leave(joining.call.group, [member])
        except (TidelogError, TimeoutError) as error:
            log.info("leaving failed group=%s: %s; the member stays until its session ends", joining.call.group, error)

    # ── heartbeats, leaving ───────────────────────────────────────────────────────────────────────────────────────────

    async def heartbeat(self, call: GroupRequest) -> None:
        call.query()
        beat = decode_body(call.body, Heartbeat)
        instance_id, generation = InstanceId(beat.instance_id), Generation(beat.generation)
        with call.with_hints():
            await retry_coordinator(lambda: self._broker.groups.heartbeat(call.group, call.member_id, instance_id, generation))
        await call.answer(None)

    async def leave(self, call: GroupRequest) -> None:
        instance_id = InstanceId(call.query("instance_id").text("instance_id"))
        call.refuse_body()
        attempts = 0

        async def leave() -> TidelogError | None:
            nonlocal attempts
            attempts += 1
            [refused] = await self._broker.groups.leave(call.group, [(call.member_id, instance_id)])
            return refused

        with call.with_hints():
            refused = await retry_coordinator(leave)
            has_left = attempts > 1 and isinstance(refused, UnknownMember)  # an earlier answer was lost
            if refused is not None and not has_left:
                raise refused
        await call.answer(None)


def _assignors(new: NewMember) -> tuple[str, ...]:
    for name in new.assignors:
        if name not in ASSIGNORS:
            raise InvalidArgument(
                f"{name[:60]!r} is not an assignor",
                hint=did_you_mean(name, ASSIGNORS) or f"Known are {', '.join(ASSIGNORS)}; leave it out to offer all.",
                field="assignors",
            )
    if len(set(new.assignors)) < len(new.assignors):
        raise InvalidArgument("an assignor is named twice", hint="Name each once, the best first.", field="assignors")
    return tuple(new.assignors) or member_leader.ASSIGNORS_OFFERED
