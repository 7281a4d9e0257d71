"""Joining a consumer group over HTTP, staying in it, and leaving.

    POST …/members ─▶ JoinGroup, waits for all ─▶ the leader of the members assigns ─▶ SyncGroup ─▶ 201: id, generation, assignment
                           ▲                                                              │
                           └── another member came or went meanwhile ─────────────────────┘

Who hangs up before it knows its id is gone at once. Invariant: a new member is told its id, in the answer or beside an error, or it
is no member any more.
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

# For the farewell of a member whose client has hung up.
LEAVE_S: Final = 5.0
# An assignment of more is made in a thread: it would hold the event loop for milliseconds.
THREAD_PARTITIONS: Final = 1_000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Joining:
    """A join that is under way: what its client has asked for, and the id that the member was given."""

    call: GroupRequest
    new: NewMember
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    member_id: MemberId

    @property
    def has_undelivered_id(self) -> bool:
        """Whether there is a member whose client does not know its id. One with an instance id needs none to come back."""
        return self.member_id != NO_MEMBER and not self.new.member_id and not self.new.instance_id


class HttpGroupMembers:
    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits) -> None:
        self._broker = broker
        self._waits = waits
        self._assigning = BoundedExecutor()

    # ── joining ─────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """0 of a topic that is not there, or not known yet: whoever reads for this member notices when it is."""
        try:
            return self._broker.topic_cache.get(topic).partition_count
        except (InvalidArgument, UnknownTopic):
            return 0

    async def _leave_undelivered(self, joining: _Joining) -> None:
        """The others need not wait for a member that nobody can speak for."""
        if not joining.has_undelivered_id:
            return
        member = (joining.member_id, InstanceId(joining.new.instance_id))
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._broker.groups.leave(joining.call.group, [member])
        except (TidelogError, TimeoutError) as error:
            log.info("group %s: a member whose client hung up stays until its session ends: %s", joining.call.group, error)

    # ── staying, and leaving ────────────────────────────────────────────────────────────────────────────────────────────

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
        asked = 0

        async def leave() -> TidelogError | None:
            nonlocal asked
            asked += 1
            [refused] = await self._broker.groups.leave(call.group, [(call.member_id, instance_id)])
            return refused

        with call.with_hints():
            refused = await retry_coordinator(leave)
            has_left = asked > 1 and isinstance(refused, UnknownMember)  # an answer was lost
            if refused is not None and not has_left:
                raise refused
        await call.answer(None)


def _assignors(new: NewMember) -> tuple[str, ...]:
    for name in new.assignors:
        if name not in ASSIGNORS:
            raise InvalidArgument(
                f"{name[:60]!r} is not an assignor",
                hint=did_you_mean(name, ASSIGNORS) or f"There are {', '.join(ASSIGNORS)}; leave it out to offer all.",
                field="assignors",
            )
    if len(set(new.assignors)) < len(new.assignors):
        raise InvalidArgument("an assignor is named twice", hint="Name each once, the best first.", field="assignors")
    return tuple(new.assignors) or member_leader.ASSIGNORS_OFFERED
