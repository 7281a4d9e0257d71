"""Reads the partitions of a group's member for a Consume stream. The broker runs the member (metadata/group_member/member.py).

  assigned ─▶ reported to the client, and read from the committed offsets
  revoked ──▶ reading stops; reported ─┬─▶ the client commits and releases ─▶ other members may own them
                                       └─▶ the client does not release in time ─▶ reported as lost; the others stay its own
  lost ─────▶ reading stops at once; reported if the client had received the assignment

The client need not know of coordinators, generations and heartbeats. Any credit, commit or other message shows that it works, and
waiting for records does not count as idle.

Invariants: a commit names the member's present generation, and only held partitions. `revoked` returns once the client has released
the
partitions, or no longer can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gateway.access.authorization import topic_check
from gateway.api import BrokerApi
from gateway.concurrency.coordinator_retry import retry_coordinator
from gateway.grpc.consume import messages as wire
from gateway.grpc.consume.delivery import DeliveryLoop
from gateway.grpc.consume.messages import ConsumeOptions
from gateway.grpc.consume.partitions import ConsumedPartition, ConsumedPartitions, Position, Start, StartKind
from gateway.proto import group_messages, log_pb2
from gateway.topics.names import NamedTopic, check_topic_id, topics_named
from metadata.errors import (
    InvalidArgument,
    OutcomeUnknown,
    RebalanceInProgress,
    StaleGeneration,
    StaleMember,
    TidelogError,
    UnknownTopic,
)
from metadata.group_member.interfaces import CoordinatorClient
from metadata.group_member.member import GroupMember
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import NO_GENERATION, Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import TopicPartition

# Longest wait of a commit for the end of a rebalance.
COMMIT_S: Final = 15.0
PAUSE_S: Final = 0.05
# Time in which a client may commit and release partitions when the broker stops.
RELEASE_AT_STOP_S: Final = 1.0

log = logging.getLogger(__name__)


class GroupMemberConsumer:
    """Runs a group member for one Consume stream, and keeps the stream's partitions equal to the member's. Its owner runs `run()`
    as a task."""

    def __init__(
        self, broker: BrokerApi, terms: ConsumeOptions, partitions: ConsumedPartitions, pusher: DeliveryLoop, *, client_host: str
    ) -> None:
        self._broker = broker
        self._check_topic = topic_check()
        self._terms = terms
        self._partitions = partitions
        self._pusher = pusher
        self._instance_id = InstanceId(terms.member.instance_id)
        self._member = GroupMember(_FromClient(broker.groups, client_host), self, terms.member, group=terms.group)
        # Partitions that the client considers its own once it has read all queued messages.
        self._announced: frozenset[TopicPartitionName] = frozenset()
        self._revocation_id = 0
        self._released_id = 0
        self._let_go = asyncio.Event()
        # Longest wait for a client that is asked to release partitions; None: as long as the group waits.
        self._release_s: float | None = None
        self._release: asyncio.Timeout | None = None

    # ── its life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs the member. Raises the errors that retries cannot resolve, as GroupMember.run() does."""
        await self._member.run()

    def stop(self, *, release_s: float) -> None:
        """Leaves the group once the client has released its partitions, or after `release_s`. A client that has closed its side is
        not asked."""
        self.waits_no_longer_than(release_s)
        self._member.stop()

    def waits_no_longer_than(self, release_s: float) -> None:
        self._release_s = release_s
        if self._release is not None and not self._release.expired():
            self._release.reschedule(asyncio.get_running_loop().time() + release_s)

    async def leave(self, *, asked: bool) -> None:
        """Leaves the group, unless that has happened. A static member leaves only if its client asked for it."""
        if asked or not self._instance_id:
            await self._member.leave()

    # ── Ownership ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def owns(self, name: TopicPartitionName) -> bool:
        return name in self._member.owned

    async def committed(self) -> StoredOffsets:
        return await self._broker.groups.offsets(self._terms.group)

    async def keep(self, ends: Mapping[ConsumedPartition, int]) -> Collection[ConsumedPartition]:
        """Commits where the logs end, so that the next reader of a partition that this one never commits begins there, not at a
        later end."""
        offsets = {each: CommittedOffset(offset=offset, committed_at_ms=0) for each, offset in ends.items()}
        refused = await self._committed(offsets)
        return ends.keys() - refused.keys()

    def waits(self) -> None:
        self._member.polls()

    def took(self) -> None:
        self._member.polled()

    def failed(self, error: TidelogError) -> None:
        log.info("partition failed group=%s: %s; its records are no longer delivered", self._terms.group, error)

    # ── RebalanceListener ─────────────────────────────────────────────────────────────────────────────────────────────────

    def subscribed(self) -> Mapping[str, int]:
        return self._counts(self._terms.topics)

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        """Returns the partition counts of topics; asks the metadata store for topics that this broker does not know."""
        counts = self._counts(topics)
        missing = [NamedTopic(name) for name in topics if name not in counts]
        for topic in await topics_named(self._broker, missing):
            if not isinstance(topic, TidelogError):
                counts[topic.name] = topic.partition_count
            elif not isinstance(topic, UnknownTopic) and topic.retryable:
                raise topic
        return counts

    async def assigned(self, partitions: frozenset[TopicPartitionName]) -> None:
        self._take(partitions)
        self._announced |= partitions
        message = wire.assigned(partitions, self._member.member_id, self._member.generation)
        self._pusher.send(message, of_assignment=True, assigned=partitions)

    async def revoked(self, partitions: frozenset[TopicPartitionName]) -> None:
        self._partitions.stop(partitions)
        if partitions & self._announced:
            await self._ask_to_let_go(partitions)
        self._announced -= partitions
        self._partitions.drop(partitions)
        self._pusher.changed()

    async def lost(self, partitions: frozenset[TopicPartitionName]) -> None:
        self._partitions.drop(partitions)
        lost = (self._announced & partitions) - self._pusher.withdraw_assignments()
        self._announced -= partitions
        if lost:
            self._pusher.send(wire.lost(lost))
        self._pusher.changed()

    async def _ask_to_let_go(self, partitions: frozenset[TopicPartitionName]) -> None:
        """Returns once the client has released the partitions or its time is over; a silent client must not block the group without
        bound."""
        self._revocation_id += 1
        within_s = self._rebalance_s if self._release_s is None else self._release_s
        self._pusher.send(wire.revoked(partitions, self._revocation_id, within_s), of_assignment=True)
        try:
            async with asyncio.timeout(within_s) as self._release:
                while self._released_id < self._revocation_id:
                    self._let_go.clear()
                    await self._let_go.wait()
        except TimeoutError:
            if self._release is None or not self._release.expired():
                raise
            log.info(
                "partitions not released group=%s partitions=%d: the client did not answer in time; they go to other members",
                self._terms.group,
                len(partitions),
            )
            if self._release_s is None:
                self._pusher.send(wire.lost(partitions))
        finally:
            self._release = None

    @property
    def _rebalance_s(self) -> float:
        """Returns the least time that the group still waits for this member: the wait began when a heartbeat was answered, or
        before."""
        return max(0.0, 0.9 * self._terms.member.rebalance_timeout_ms - 2 * self._terms.member.beat_ms) / 1000

    def _take(self, partitions: Collection[TopicPartitionName]) -> None:
        taken: list[ConsumedPartition] = []
        for name, number in partitions:
            try:
                self._check_topic(name)  # another member, as the leader, may have assigned it
                topic = self._broker.topic_cache.get(name)
            except TidelogError:
                continue  # the topic was deleted a moment ago, and the group will learn of it; or this client may not read it
            taken.append(ConsumedPartition(name, topic.id, number, Start(StartKind.COMMITTED)))
        self._partitions.drop([each.name for each in taken])
        self._partitions.take(taken)
        self._pusher.changed()

    def _counts(self, topics: Collection[str]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name in topics:
            try:
                counts[name] = self._broker.topic_cache.get(name).partition_count
            except TidelogError:
                continue
        return counts

    def topic_changed(self, name: str) -> None:
        """Takes the partitions of a topic that was recreated; it has no committed offsets. The member learns of added partitions by
        itself."""
        try:
            topic = self._broker.topic_cache.get(name)
        except TidelogError:
            return  # the group learns of the deletion by itself
        of_before = {
            each.name for each in self._partitions if each.topic == name and each.topic_id != topic.id and not each.is_stopped
        }
        untaken = {each for each in self._announced if each[0] == name and self._partitions.get(each) is None}
        self._take((of_before | untaken) & self._member.owned)

    # ── what the client says ────────────────────────────────────────────────────────────────────────────────────────────

    def released(self, revocation_id: int) -> None:
        if revocation_id > self._revocation_id:
            raise InvalidArgument(
                f"revocation {revocation_id} is unknown; the last of this stream is {self._revocation_id}",
                hint="Name the revocation_id of a message `revoked` of this stream.",
                field="released",
            )
        self._released_id = max(self._released_id, revocation_id)
        self._let_go.set()

    async def commit(self, commit: log_pb2.ConsumeCommit) -> None:
        """Commits, queues the outcome for the client, and returns once it is written: a client that does not read cannot commit
        without bound."""
        if commit.up_to_delivery_id:
            positions = self._partitions.due(commit.up_to_delivery_id)
            offsets = {each.consumed: _offset_of(each) for each in positions}
            refused = await self._committed(offsets)
            self._partitions.committed(each for each in positions if each.consumed not in refused)
            results = [(each.name, offset.offset, refused.get(each)) for each, offset in offsets.items()]
        else:
            results = await self._commit_named(commit)
        self._pusher.send(wire.committed(commit.commit_id, results))
        await self._pusher.drained.wait()

    async def _commit_named(self, commit: log_pb2.ConsumeCommit) -> list[tuple[TopicPartitionName, int, TidelogError | None]]:
        offsets: dict[ConsumedPartition, CommittedOffset] = {}
        errors: dict[TopicPartitionName, TidelogError] = {}
        for entry in commit.offsets:
            name = (entry.topic, entry.partition)
            consumed = self._partitions.get(name)
            if consumed is None:
                errors[name] = _not_owned(name)
                continue
            try:
                check_topic_id(self._broker.topic_cache.get(entry.topic), entry.topic_id)
                offsets[consumed] = group_messages.offset_to_commit(entry)
            except TidelogError as error:
                errors[name] = error.with_traceback(None)
        errors |= {consumed.name: error for consumed, error in (await self._committed(offsets)).items()}
        return [(name, entry.offset, errors.get(name)) for entry in commit.offsets for name in [(entry.topic, entry.partition)]]

    async def _committed(self, offsets: Mapping[ConsumedPartition, CommittedOffset]) -> dict[ConsumedPartition, TidelogError]:
        """Returns why offsets were not committed. Waits for the end of a rebalance, and repeats commits of unknown outcome."""
        clock = asyncio.get_running_loop().time
        ends_s = clock() + COMMIT_S
        while True:
            held = {each: offset for each, offset in offsets.items() if self._partitions.holds(each)}
            refused: dict[ConsumedPartition, TidelogError] = {each: _not_owned(each.name) for each in offsets if each not in held}
            if not held:
                return refused
            try:
                by_partition = await self._commit_once({each.partition: offset for each, offset in held.items()})
            except (RebalanceInProgress, StaleGeneration, OutcomeUnknown) as error:
                if clock() >= ends_s or self._release_s is not None:
                    return refused | dict.fromkeys(held, error.with_traceback(None))
            except TidelogError as error:
                return refused | dict.fromkeys(held, error.with_traceback(None))
            else:
                return refused | {each: by_partition[each.partition] for each in held if each.partition in by_partition}
            await asyncio.sleep(PAUSE_S)

    async def _commit_once(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, TidelogError]:
        group, member = self._terms.group, self._member
        if member.generation == NO_GENERATION:
            raise StaleMember(f"this stream was lost to group {group}", hint="What was not committed is read again.")
        return await retry_coordinator(
            lambda: self._broker.groups.commit(group, member.member_id, self._instance_id, member.generation, offsets)
        )


class _FromClient:
    """Adds the client's address to a member's calls."""

    def __init__(self, calls: CoordinatorClient, client_host: str) -> None:
        self._calls = calls
        self._client_host = client_host

    async def join(self, name: str, request: JoinRequest) -> Joined:
        return await self._calls.join(name, request._replace(client_host=self._client_host))

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        return await self._calls.sync(name, request)

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        await self._calls.heartbeat(name, member_id, instance_id, generation)

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        return await self._calls.leave(name, leaving)


def _offset_of(position: Position) -> CommittedOffset:
    return CommittedOffset(offset=position.next_offset, leader_epoch=position.leader_epoch, committed_at_ms=0)


def _not_owned(name: TopicPartitionName) -> StaleMember:
    return StaleMember(
        f"partition {name[1]} of topic {name[0]} is not this stream's",
        hint="Its present owner continues from the last committed offset.",
    )
