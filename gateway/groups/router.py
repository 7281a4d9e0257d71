"""Routes the calls of members to the coordinator: every broker accepts every call, and forwards it if another broker coordinates.

  a call ─▶ which broker coordinates? ─┬─ this broker: coordinator.py
                                       └─ another: one hop, with the caller's deadline; a disconnect ends it there, too

A silent coordinator keeps its connections, so calls to it end once another coordinates the group, after OVERTAKEN_S at the latest.
Invariant: a forwarded call is answered or refused by the broker that receives it: there is no second hop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import Message

from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.coordinator_lease import ANSWER_S as VIEW_ANSWER_S
from gateway.groups.coordinator_lease import ClusterSnapshot, CoordinatorLease
from gateway.groups.coordinator_lookup import CoordinatorLookup
from gateway.groups.group import not_coordinator
from gateway.proto import group_messages as wire
from gateway.proto import groups_pb2
from gateway.proto.consumer_messages import beat_of, heartbeat_request
from gateway.routing.peer_channels import PeerChannels, Unreachable
from gateway.telemetry.request_context import remaining_s
from gateway.topics.names import LOOKUP_S, partition_of
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoCoordinator, NotCoordinator, OutcomeUnknown, TidelogError, Unavailable
from metadata.groups.model import NO_MEMBER, Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.groups.reconciliation.model import Beat, Heartbeat
from metadata.model import Revision, TopicId, TopicPartition
from metadata.store.write_batcher import Outdated, UnchangedSince
from metadata.topics.cache import TopicCache

SERVICE: Final = "tidelog.v1.Groups"
SEEN_BROKERS: Final = "SeenBrokers"
# Time for the answer of a former coordinator; one that gave a group up has answered before. Later its answer counts as lost.
OVERTAKEN_S: Final = 1.0
# Timeout of calls that do not wait for other members: longer than the time after which etcd counts as away.
ANSWER_S: Final = 15.0
# Timeout of calls that wait for other members, unless the caller asks for more. Other members may take longer than the caller.
WAITS_S: Final = 1_800.0

_WRITES: Final = frozenset({"OffsetCommit", "DeleteGroup", "DeleteOffsets", "SeekGroup"})
_REPEATED: Final = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", "ConsumerHeartbeat", "LeaveGroup"})
_Answer = TypeVar("_Answer", bound=Message)


@dataclass(eq=False, slots=True)
class _Forwarded:
    """Holds a call that is under way at another broker."""

    group: str
    broker_id: str
    end: asyncio.Timeout


class GroupRouter:
    """Offers GroupCoordinator's methods for members, for groups of the whole cluster."""

    def __init__(
        self,
        here: GroupCoordinator,
        coordinators: CoordinatorLookup,
        topics: TopicCache,
        peers: PeerChannels,
        view: CoordinatorLease,
    ) -> None:
        self.view = view
        self._here = here
        self._coordinators = coordinators
        self._topics = topics
        self._peers = peers
        self._forwarded: set[_Forwarded] = set()
        coordinators.subscribe(self._cancel_outdated_calls)

    def coordinator(self, name: str) -> BrokerRegistration:
        """Returns the broker that coordinates the group. Raises InvalidGroupName, NoCoordinator."""
        return self._coordinators.of(name)

    async def forward(
        self, name: str, method: str, request: Message, answer_type: type[_Answer], timeout_s: float
    ) -> _Answer | None:
        """Forwards a call to the group's coordinator and returns its answer; None if this broker coordinates the group.

        Raises what the coordinator raised, and NoCoordinator if it cannot be reached. If its answer is lost: OutcomeUnknown for a
        commit or a
        change of offsets, NotCoordinator for calls that members may always repeat, else Unavailable. If it is too busy to accept
        the call:
        Throttled, but OutcomeUnknown for a commit or a change.
        """
        coordinator = self._coordinators.elsewhere(name)
        if coordinator is None:
            return None
        return await self._asked(coordinator, name, method, request, answer_type, timeout_s)

    def check_here(self, name: str) -> None:
        """Raises NotCoordinator if another broker coordinates the group; NoCoordinator or Stopping if this one cannot at the
        moment."""
        if self._coordinators.elsewhere(name) is not None:
            raise self.named(name, not_coordinator(name))

    def named(self, name: str, error: NotCoordinator) -> NotCoordinator:
        """Adds the coordinator to the error, if this broker's view has it."""
        return self._coordinators.named(name, error)

    # ── calls of members ────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, name: str, request: JoinRequest) -> Joined:
        coordinator = self._coordinators.elsewhere(name)
        if coordinator is None:
            return await self._here.join(name, request)
        asked, timeout_s = wire.join_request(name, request), wait_timeout_s(request.rebalance_timeout_ms)
        return wire.joined(await self._asked(coordinator, name, "JoinGroup", asked, groups_pb2.JoinGroupResponse, timeout_s))

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        coordinator = self._coordinators.elsewhere(name)
        if coordinator is None:
            return await self._here.sync(name, request)
        asked, timeout_s = wire.sync_request(name, request), wait_timeout_s()
        return wire.synced(await self._asked(coordinator, name, "SyncGroup", asked, groups_pb2.SyncGroupResponse, timeout_s))

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        coordinator = self._coordinators.elsewhere(name)
        if coordinator is None:
            await self._here.heartbeat(name, member_id, instance_id, generation)
            return
        asked = groups_pb2.HeartbeatRequest(group=name, member_id=member_id, instance_id=instance_id, generation=generation)
        await self._asked(coordinator, name, "Heartbeat", asked, groups_pb2.HeartbeatResponse, ANSWER_S)

    def heartbeat_at_once(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> bool:
        """Takes a heartbeat as `heartbeat` does, and returns True. False, without any effect, if that has to wait."""
        return self._is_here(name) and self._here.heartbeat_at_once(name, member_id, instance_id, generation)

    def beat_at_once(self, name: str, request: Heartbeat) -> Beat | None:
        """Takes a heartbeat of KIP-848 as `beat` does. None, without any effect, if that has to wait."""
        return self._here.beat_at_once(name, request) if self._is_here(name) else None

    def _is_here(self, name: str) -> bool:
        """Returns whether the group is loaded and coordinated here. Only a loaded name was checked, and may be remembered."""
        return self._here.is_loaded(name) and self._coordinators.here(name)

    async def beat(self, name: str, request: Heartbeat) -> Beat:
        """Takes a heartbeat of a member of KIP-848, as GroupCoordinator.beat."""
        coordinator = self._coordinators.elsewhere(name)
        if coordinator is None:
            return await self._here.beat(name, request)
        asked = heartbeat_request(name, request)
        return beat_of(
            await self._asked(coordinator, name, "ConsumerHeartbeat", asked, groups_pb2.ConsumerHeartbeatResponse, ANSWER_S)
        )

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        """Removes members. Returns one answer for each, in order."""
        coordinator = self._coordinators.elsewhere(name)
        if coordinator is None:
            return await self._here.leave(name, leaving)
        asked = wire.leave_request(name, leaving)
        answer = await self._asked(coordinator, name, "LeaveGroup", asked, groups_pb2.LeaveGroupResponse, ANSWER_S)
        return wire.errors_of(answer.errors, len(leaving))

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(
        self,
        name: str,
        member_id: MemberId,
        instance_id: InstanceId,
        generation: Generation,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        only_forward: bool = False,
        view: UnchangedSince | None = None,
    ) -> dict[TopicPartition, TidelogError]:
        """Commits offsets. Returns the refused ones, each with its error. Raises what refuses all, and OutcomeUnknown if the
        outcome is unknown. `only_forward` and `view`: as in GroupCoordinator.commit. Raises Outdated also for a `view` where
        another broker coordinates the group, which it does not guard, and where this broker lacks a partition."""
        if view is not None and self._coordinators.elsewhere(name) is not None:
            raise Outdated
        unknown = [at for at in offsets if not self._topics.knows(at)]
        if unknown and view is not None:
            raise Outdated
        if unknown:
            await self._topics.hear_of(unknown, timeout_s=LOOKUP_S)
        coordinator = self._coordinators.elsewhere(name)
        # Without a wait all are known. In a wait, those that were known may have been deleted.
        refused = {at: why for at in offsets if (why := self._why_unknown(at)) is not None} if unknown else {}
        sound = {at: offset for at, offset in offsets.items() if at not in refused} if refused else offsets
        if coordinator is None:
            return refused | await self._here.commit(
                name, member_id, instance_id, generation, sound, only_forward=only_forward, view=view
            )
        asked = groups_pb2.OffsetCommitRequest(
            group=name, member_id=member_id, instance_id=instance_id, generation=generation, only_forward=only_forward
        )
        asked.offsets.extend(
            wire.committed_offset(self._topics.by_id(at.topic_id).name, at, offset) for at, offset in sound.items()
        )
        answer = await self._asked(coordinator, name, "OffsetCommit", asked, groups_pb2.OffsetCommitResponse, ANSWER_S)
        errors = wire.errors_of(answer.errors, len(sound))
        return refused | {at: error for at, error in zip(sound, errors, strict=True) if error is not None}

    async def offsets(self, name: str, member_id: MemberId = NO_MEMBER, member_epoch: int = -1) -> StoredOffsets:
        """Returns all that the group has committed, except for deleted topics. Raises Unavailable where this broker's view lacks
        some topic and does not catch up: an offset that is left out would pass for never committed. A member of KIP-848 names
        itself."""
        coordinator = self._coordinators.elsewhere(name)
        if coordinator is None:
            stored = await self._here.offsets(name, member_id, member_epoch)
        else:
            asked = groups_pb2.OffsetFetchRequest(
                group=name, of_unknown_topics=True, member_id=member_id, member_epoch=member_epoch
            )
            answer = await self._asked(coordinator, name, "OffsetFetch", asked, groups_pb2.OffsetFetchResponse, ANSWER_S)
            stored = wire.fetched_offsets(answer.offsets)
        await self._topics.hear_of((*stored.committed, *stored.damaged), timeout_s=LOOKUP_S)
        return StoredOffsets(
            {at: offset for at, offset in stored.committed.items() if self._is_there(at.topic_id)},
            {at: error for at, error in stored.damaged.items() if self._is_there(at.topic_id)},
        )

    def _is_there(self, topic_id: TopicId) -> bool:
        try:
            self._topics.by_id(topic_id)
        except TidelogError:
            return False
        return True

    def _why_unknown(self, at: TopicPartition) -> TidelogError | None:
        try:
            partition_of(self._topics.by_id(at.topic_id), at.partition)
        except TidelogError as error:
            return error.with_traceback(None)
        return None

    # ── at another broker ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _asked(
        self, at: BrokerRegistration, name: str, method: str, request: Message, answer_type: type[_Answer], timeout_s: float
    ) -> _Answer:
        def lost(why: str) -> TidelogError:
            return _lost(at, name, method, why)

        try:
            async with asyncio.timeout(None) as end:
                forwarded = _Forwarded(name, at.broker_id, end)
                self._forwarded.add(forwarded)
                try:
                    return await self._peers.call(
                        at,
                        f"/{SERVICE}/{method}",
                        request,
                        answer_type,
                        timeout_s=min(timeout_s, remaining_s()),
                        lost=lost,
                    )
                finally:
                    self._forwarded.discard(forwarded)
        except TimeoutError:
            if not end.expired():
                raise
            raise lost("another broker coordinates the group by now") from None
        except Unreachable as error:
            raise NoCoordinator(
                f"broker {at.broker_id}, which coordinates group {name}, can't be reached at {at.grpc_address}",
                hint=error.hint,
                broker_id=at.broker_id,
            ) from None

    def _cancel_outdated_calls(self) -> None:
        overtaken_s = asyncio.get_running_loop().time() + OVERTAKEN_S
        for forwarded in self._forwarded:
            if forwarded.end.expired():  # its task has not seen it yet, and a timeout that has expired can't be moved
                continue
            if self._coordinators.id_of(forwarded.group) == forwarded.broker_id:
                forwarded.end.reschedule(None)
            elif forwarded.end.when() is None:
                forwarded.end.reschedule(overtaken_s)


async def asked_what_it_sees(peers: PeerChannels, broker: BrokerRegistration) -> ClusterSnapshot:
    """Asks another broker for its view of the cluster. Raises TidelogError without an answer."""
    answer = await peers.call(
        broker,
        f"/{SERVICE}/{SEEN_BROKERS}",
        groups_pb2.SeenBrokersRequest(),
        groups_pb2.SeenBrokersResponse,
        timeout_s=VIEW_ANSWER_S,
    )
    proven_s_ago = answer.proven_ms_ago / 1000 if answer.HasField("proven_ms_ago") else float("inf")
    return ClusterSnapshot(
        {each.broker_id: Revision(each.revision) for each in answer.brokers}, Revision(answer.revision), proven_s_ago
    )


def wait_timeout_s(rebalance_timeout_ms: int = 0) -> float:
    """Returns how long a forwarded join or sync may wait for the other members, in seconds."""
    return max(WAITS_S, rebalance_timeout_ms / 1000) + ANSWER_S


def _lost(at: BrokerRegistration, name: str, method: str, why: str) -> TidelogError:
    said = f"broker {at.broker_id}, which coordinates group {name}, did not answer ({why})"
    if method in _REPEATED:
        return NotCoordinator(said, hint="Repeat the call.")
    if method in _WRITES:
        return OutcomeUnknown(said, hint="Look at the group's committed offsets, or commit the same again.", broker_id=at.broker_id)
    return Unavailable(said, broker_id=at.broker_id)
