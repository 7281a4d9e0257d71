"""Coordinates the consumer groups of this broker: loads a group at its first call, and gives it up when another broker coordinates
it.

  a call ─▶ load: read, and adopt ─▶ group.py: decide, store, answer
              └ its record is rewritten, which raises its revision: later writes of a former coordinator compare false

Heartbeats read memory only; records and commits of all groups are coalesced; one timer serves all groups.

Invariants: only the broker that wrote a group's record last writes its offsets. A committed offset goes back only on request. A
call
that ends, or whose client disconnects, leaves nothing behind but a member whose session expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from msgspec.structs import replace

from gateway.concurrency.detached_tasks import DetachedTasks
from gateway.groups.coordinator_lease import PROOF_S
from gateway.groups.deletion import Deletion, DeletionScope, half_deleted
from gateway.groups.group import CoordinatedGroup, GroupCounts, not_coordinator
from gateway.groups.group_topics import GroupTopics, HearOf, no_topics, nothing_to_hear_of
from gateway.groups.landed_offsets import OffsetWrite, key_of
from gateway.groups.member_rights import MemberRights, UnlimitedRights
from gateway.groups.offset_cache import CommittedOffsetCache
from gateway.groups.timer import GroupTimer, uptime_ms
from metadata.errors import (
    GroupNotEmpty,
    GroupSubscribed,
    OutcomeUnknown,
    RebalanceInProgress,
    Throttled,
    TidelogError,
    Unavailable,
    UnknownGroup,
    UnknownMember,
)
from metadata.groups.classic.join import join
from metadata.groups.classic.rebalance_barrier import Step
from metadata.groups.classic.state_machine import check_commit, check_heartbeat, leave, sync
from metadata.groups.model import (
    NO_MEMBER,
    Generation,
    Group,
    GroupPhase,
    InstanceId,
    Joined,
    JoinRequest,
    MemberId,
    Synced,
    SyncRequest,
    Waiter,
    check_group_name,
)
from metadata.groups.offsets import CommittedOffset, StoredOffsets, encode_offset, read_offset_keys, read_offsets, why_not
from metadata.groups.reconciliation.group import ReconciledGroup, as_classic, without_members
from metadata.groups.reconciliation.heartbeat import check_member_commit, member_to_remove
from metadata.groups.reconciliation.model import Beat, Heartbeat
from metadata.groups.record import decode_group, encode_group
from metadata.groups.settings import GroupSettings
from metadata.groups.subscriptions import subscribed_topics
from metadata.model import Revision, SessionId, TopicPartition
from metadata.store.interface import OPERATIONS_MAX, Compare, Delete, MetadataStore, Put
from metadata.store.keys import KeyLayout
from metadata.store.write_batcher import CompareFailed, UnchangedSince, WriteBatcher

LOADS_AT_ONCE: Final = 64


class GroupCoordinator:
    """Answers the calls of members and operators for the groups of this broker. Its owner runs `run()` as a task."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        settings: GroupSettings,
        *,
        session: Callable[[], SessionId],
        coordinates: Callable[[str], bool],
        verify: Callable[[], Awaitable[None]],
        is_proven: Callable[[], bool],
        now_ms: Callable[[], int],
        new_member_id: Callable[[str], MemberId],
        topics: GroupTopics = no_topics,
        hear_of: HearOf = nothing_to_hear_of,
        rights: MemberRights | None = None,
    ) -> None:
        """`coordinates` returns whether a group belongs to this broker, by its view of the cluster. `verify` raises NoCoordinator
        if that was not proven lately (coordinator_lease.py): then members cannot be answered. `is_proven` returns whether `verify`
        would return at once. `new_member_id` makes an id from a
        client id or an instance id. `now_ms` is the wall clock. `topics` returns all topics of the cluster.
        `hear_of` returns when `topics` has each of some partitions that exists; it raises Unavailable. `rights` decides which
        topics a member may read; None where all may read all.
        """
        self._store = store
        self._layout = layout
        self._settings = settings
        self._session = session
        self._coordinates = coordinates
        self._verify = verify
        self._is_proven = is_proven
        self._now_ms = now_ms
        self._new_member_id = new_member_id
        self._topics = topics
        self._hear_of = hear_of
        self._rights = rights or UnlimitedRights()
        self.counts = GroupCounts()
        self.known_offsets = CommittedOffsetCache()
        self._writes = WriteBatcher(store, linger_s=settings.commit_linger_ms / 1000, unknown=self._outcome_unknown)
        self._timer = GroupTimer(self._due, slept=self._slept)
        self._groups: dict[str, CoordinatedGroup] = {}
        self._loading: dict[str, asyncio.Future[CoordinatedGroup]] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._work = DetachedTasks()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._work.tasks = tasks
                try:
                    tasks.create_task(self._writes.run(), name="writes of groups")
                    await self._timer.run()
                finally:
                    self._work.tasks = None
        finally:
            for held in list(self._groups.values()):
                held.give_up("the broker is shutting down")

    def brokers_changed(self) -> None:
        """Gives up the groups that another broker coordinates now."""
        for held in [held for held in self._groups.values() if not self._coordinates(held.name)]:
            held.hand_over("another broker coordinates it now")

    def proven(self, after_s: float) -> None:
        """Notes a proof that came `after_s` seconds after the last one. Without a proof no member was answered.

        Gives up groups of which another coordinator may have given something away meanwhile.
        """
        if after_s <= PROOF_S:
            return
        self._slept()
        for held in list(self._groups.values()):
            unproven_ms = min(1000 * after_s, uptime_ms() - held.began_ms)
            if held.shortest_ms is not None and unproven_ms > max(held.shortest_ms, 1000 * PROOF_S):
                held.give_up("another broker may have coordinated it while this one's view was not proven")

    def __len__(self) -> int:
        """Returns the number of loaded groups."""
        return len(self._groups)

    @property
    def waiting(self) -> int:
        """Returns the number of calls that wait for other members of their group."""
        return sum(held.waiting for held in self._groups.values())

    def is_loaded(self, name: str) -> bool:
        return name in self._groups

    def groups(self) -> Iterable[tuple[str, Group]]:
        """Returns the groups that are loaded and stored, as they are now."""
        return [(name, held.group) for name, held in self._groups.items() if held.is_stored]

    # ── calls of members ────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, name: str, request: JoinRequest) -> Joined:
        new = self._new_member_id(request.instance_id or request.client_id)

        def decide(group: Group, waiter: Waiter) -> Step:
            group = as_classic(name, group)
            return join(group, request, waiter, new_member_id=new, now_ms=uptime_ms(), settings=self._settings)

        answer = await self._answered(name, decide, request.member_id)
        assert isinstance(answer, Joined)
        return answer

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        def decide(group: Group, waiter: Waiter) -> Step:
            _check_classic(name, group)
            return sync(group, request, waiter, settings=self._settings)

        answer = await self._answered(name, decide, request.member_id)
        assert isinstance(answer, Synced)
        return answer

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        held = await self._loaded(name)
        await self._verify()
        held.check_here()
        _take_heartbeat(held, member_id, instance_id, generation)

    def heartbeat_at_once(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> bool:
        """Takes a heartbeat as `heartbeat` does, and returns True. False, without any effect, if that has to wait."""
        held = self._loaded_and_proven(name)
        if held is None:
            return False
        _take_heartbeat(held, member_id, instance_id, generation)
        return True

    async def beat(self, name: str, request: Heartbeat) -> Beat:
        """Takes a heartbeat of a member of KIP-848, by which it also joins and leaves. Raises what refuses it."""
        held = await self._loaded(name)
        async with self._proven_refusals(held):
            beat = held.beat_at_rest(request)
            if beat is None:
                beat = await self._work.done(held.beat(request))
        await self._verify()
        held.check_here()
        return self._with_interval(beat)

    def beat_at_once(self, name: str, request: Heartbeat) -> Beat | None:
        """Takes a heartbeat of KIP-848 as `beat` does. None, without any effect, if that has to wait."""
        held = self._loaded_and_proven(name)
        beat = held.beat_at_rest(request) if held is not None else None
        return None if beat is None else self._with_interval(beat)

    def _with_interval(self, beat: Beat) -> Beat:
        return beat._replace(interval_ms=self._settings.group_consumer_heartbeat_interval_ms)

    def _loaded_and_proven(self, name: str) -> CoordinatedGroup | None:
        """Returns the group if it is loaded, and if it is proven that this broker coordinates it."""
        held = self._groups.get(name)
        return held if held is not None and held.loaded_by == self._session() and self._is_proven() else None

    @asynccontextmanager
    async def _proven_refusals(self, held: CoordinatedGroup) -> AsyncIterator[None]:
        """Refuses a member only while this broker is proven to coordinate its group: another coordinator may know the member."""
        try:
            yield
        except TidelogError as error:
            await self._prove_refusal(held, error)
            raise

    async def _prove_refusal(self, held: CoordinatedGroup, error: TidelogError) -> None:
        """Returns once it is proven that this broker coordinates the group; at once for an error that refuses no member."""
        if not isinstance(error, Unavailable | OutcomeUnknown):
            await self._verify()
            held.check_here()

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        """Removes members. Returns one answer for each, in order."""
        held = await self._loaded(name)
        answers: list[TidelogError | None] = []
        for member_id, instance_id in leaving:

            def decide(group: Group, at: MemberId = member_id, instance: InstanceId = instance_id) -> Step:
                if isinstance(group, ReconciledGroup):
                    return self._left(group, at, instance)
                return leave(group, at, instance, now_ms=uptime_ms(), settings=self._settings)

            try:
                async with self._proven_refusals(held):
                    await self._work.done(held.step(decide))
                answers.append(None)
            except TidelogError as error:
                answers.append(error)
        return answers

    def _left(self, group: ReconciledGroup, member_id: MemberId, instance_id: InstanceId) -> Step:
        """Removes a member of KIP-848 for an operator, who names it by its id or its instance id."""
        at = member_to_remove(group.consumer, member_id, instance_id)
        left = without_members(
            group, [at], self._topics(), readable=self._rights.readable, now_ms=uptime_ms(), settings=self._settings
        )
        return Step(left, stored=True)

    async def _answered(self, name: str, decide: Callable[[Group, Waiter], Step], member_id: MemberId) -> Joined | Synced:
        held = await self._loaded(name)
        waiter, outcome = held.wait()

        # checked before its turn came: else a crowd of reconnecting members would be served one by one
        def unless_it_hung_up(group: Group) -> Step:
            return decide(group, waiter) if held.waits(waiter) else Step(group)

        try:
            async with self._proven_refusals(held):
                await self._work.done(held.step(unless_it_hung_up, heard=member_id))
                answer = await outcome
            await self._verify()
            held.check_here()
            return answer
        finally:
            if held.stop_waiting(waiter) and not held.is_gone:
                self._work.start_background(held.tick(), f"hang-up in group {name}")

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
        """Commits offsets, at most 128 at one instant. Returns the refused ones, each with its error.

        `only_forward` leaves an offset as it is, without refusing, if a later one was committed in the same generation, so a late
        repeat of a request takes nothing back. `view`, for 128 offsets at most, guards a commit whose partitions were named by a
        view of the topics. Raises what refuses all of them, Outdated if `view` does not hold any more, and OutcomeUnknown if the
        outcome is unknown.
        """
        assert view is None or len(offsets) <= OPERATIONS_MAX, "no part of them may be written before Outdated is raised"
        held = await self._loaded(name)
        refused = {partition: why for partition, offset in offsets.items() if (why := why_not(offset, self._settings)) is not None}
        sound = [partition for partition in offsets if partition not in refused] if refused else list(offsets)

        def check(group: Group) -> None:
            if isinstance(group, ReconciledGroup):
                check_member_commit(group.consumer, member_id, generation)
            else:
                check_commit(group, member_id, instance_id, generation)

        try:
            check(held.group)
        except TidelogError as error:
            await self._prove_refusal(held, error)
            raise

        async def write() -> None:
            at_ms = self._now_ms()
            for start in range(0, len(sound), OPERATIONS_MAX):
                part = sound[start : start + OPERATIONS_MAX]
                dated = {at: replace(offsets[at], committed_at_ms=at_ms, generation=generation) for at in part}
                keys = self._layout.offset_keys(name, part)
                writes = [
                    OffsetWrite(Put(key, encode_offset(offset)), offset) for key, offset in zip(keys, dated.values(), strict=True)
                ]
                try:
                    written = await held.write_offsets(writes, check, only_forward=only_forward, view=view)
                except asyncio.CancelledError:  # the offsets may be written all the same
                    self.known_offsets.forget(name)
                    raise
                except TidelogError as error:
                    if start == 0:
                        raise
                    refused.update(dict.fromkeys(sound[start:], error))
                    return
                self.counts.offsets_committed += len(written)
                if len(written) < len(part):
                    landed = {*map(key_of, written)}
                    dated = {at: dated[at] for at, key in zip(part, keys, strict=True) if key in landed}
                self.known_offsets.committed(name, dated)
            self.counts.commits += 1
            held.heard(member_id)

        if len(sound) <= OPERATIONS_MAX:
            await write()
        else:  # a client that hangs up must not leave a part of what it commits
            await self._work.done(write())
        return refused

    async def _committed_by_key(self, name: str) -> dict[str, CommittedOffset]:
        """Returns the readable offsets: a damaged offset bounds nothing, and a commit replaces it."""
        stored = await read_offsets(self._store, self._layout, name)
        return {self._layout.offset(name, at): committed for at, committed in stored.committed.items()}

    async def offsets(self, name: str, member_id: MemberId = NO_MEMBER, member_epoch: int = -1) -> StoredOffsets:
        """Returns what the group has committed. It fences first, so that nothing sent earlier lands after the read.

        A member of KIP-848 names itself. Raises UnknownMember, StaleMemberEpoch.
        """
        held = await self._loaded(name)
        if isinstance(held.group, ReconciledGroup) and member_id != NO_MEMBER:
            async with self._proven_refusals(held):
                check_member_commit(held.group.consumer, member_id, member_epoch)
        await held.fence()
        return await read_offsets(self._store, self._layout, name)

    # ── calls of operators ──────────────────────────────────────────────────────────────────────────────────────────────

    async def describe(self, name: str) -> Group:
        """Returns the group. Raises UnknownGroup."""
        return (await self._known(name)).group

    async def delete(self, name: str) -> None:
        """Deletes the group and its offsets. Raises UnknownGroup, GroupNotEmpty; OutcomeUnknown if some may be gone: repeat it."""
        held = await self._known(name)

        async def all_of_it(_: Group) -> DeletionScope:
            return DeletionScope(await read_offset_keys(self._store, self._layout, name), group=True)

        deletion = Deletion()
        deleting = held.forget(lambda group: check_empty(name, group), all_of_it, deletion)
        await self._work.done(deleting, stopped=lambda: deletion.stopped(name))
        self.known_offsets.forget(name)

    async def forget(
        self,
        name: str,
        decide: Callable[[Group, StoredOffsets], tuple[list[TopicPartition], bool]],
    ) -> None:
        """Deletes the offsets that `decide` names, or the whole group if it says so. No commit is under way while it decides, so
        commits since the caller's read are kept.

        Raises UnknownGroup; OutcomeUnknown if some may be gone.
        """
        held = await self._known(name)
        partitions, whole = list[TopicPartition](), False

        async def choose(group: Group) -> DeletionScope:
            nonlocal partitions, whole
            stored = await read_offsets(self._store, self._layout, name)
            partitions, whole = decide(group, stored)
            gone = [*stored.committed, *stored.damaged] if whole else partitions
            return DeletionScope([self._layout.offset(name, partition) for partition in gone], whole)

        deletion = Deletion()
        await self._work.done(held.forget(lambda _: None, choose, deletion), stopped=lambda: deletion.stopped(name))
        self.known_offsets.deleted(name, partitions)
        if whole:
            self.known_offsets.forget(name)

    async def delete_offsets(self, name: str, partitions: Sequence[TopicPartition], *, topics: Collection[str] = ()) -> None:
        """Deletes the committed offsets of the partitions.

        `topics` are the names of their topics, to which no member may subscribe; without them the group must have no members.
        Raises UnknownGroup, GroupNotEmpty, GroupSubscribed; OutcomeUnknown where some may be gone: the caller may repeat it.
        """
        held = await self._known(name)

        def check(group: Group) -> None:
            check_unsubscribed(name, group, topics) if topics else check_empty(name, group)

        check(held.group)
        deletes = [Delete(self._layout.offset(name, partition)) for partition in partitions]
        for start in range(0, len(deletes), OPERATIONS_MAX):
            try:
                await held.write_offsets(deletes[start : start + OPERATIONS_MAX], check)
            except asyncio.CancelledError:  # they may be deleted all the same
                self.known_offsets.forget(name)
                raise
            except TidelogError as error:
                if start == 0:
                    raise
                raise half_deleted(name, start, len(deletes)) from error
            self.known_offsets.deleted(name, partitions[start : start + OPERATIONS_MAX])

    async def _known(self, name: str) -> CoordinatedGroup:
        held = await self._loaded(name)
        if not held.is_stored and held.group.phase is GroupPhase.EMPTY:
            raise UnknownGroup(f"there is no group {name}")
        return held

    # ── which groups are here ───────────────────────────────────────────────────────────────────────────────────────────

    async def _loaded(self, name: str) -> CoordinatedGroup:
        """Returns the loaded group. Raises NotCoordinator, NoCoordinator, Unavailable, Corrupt, InvalidGroupName."""
        held = self._groups.get(name)
        if held is not None:
            if held.loaded_by == self._session():
                return held
            held.give_up("this broker had no session, and another may have coordinated it meanwhile")
        check_group_name(name)
        if not self._coordinates(name):
            raise not_coordinator(name)
        loading = self._loading.get(name)
        if loading is None:
            if len(self._groups) + len(self._loading) >= self._settings.groups_max:
                raise Throttled(
                    f"this broker coordinates {self._settings.groups_max} groups", hint="Raise groups_max of the brokers."
                )
            loading = asyncio.get_running_loop().create_future()
            self._work.begin(self._load(name, loading), loading)
            self._loading[name] = loading
        return await asyncio.shield(loading)

    async def _load(self, name: str, loading: asyncio.Future[CoordinatedGroup]) -> CoordinatedGroup:
        try:
            async with self._loads:
                held = await self._adopted(name)
            self.known_offsets.forget(name)
            if not held.is_stored:
                self.known_offsets.has_none_before(name)
            self._groups[name] = held
            return held
        finally:
            self._loading.pop(name, None)

    async def _adopted(self, name: str) -> CoordinatedGroup:
        """Reads the group from the store, and fences its former coordinator."""
        key, session = self._layout.group(name), self._session()
        kept = await self._store.get(key)
        group, revision = Group(), Revision(0)
        if kept is not None:
            group = decode_group(kept, now_ms=uptime_ms(), proof_ms=int(1000 * PROOF_S))
            if isinstance(group, ReconciledGroup):  # else members would give up partitions that this broker has not heard of
                await self._hear_of([topic.last_partition for topic in group.consumer.topics.values()])
            try:
                revision = await self._writes.write(Compare(key, kept.mod_revision), [Put(key, encode_group(group, session))])
            except (CompareFailed, OutcomeUnknown) as error:
                raise not_coordinator(name) from error
        if not self._coordinates(name):
            raise not_coordinator(name)
        return CoordinatedGroup(
            name,
            group,
            revision,
            loaded_by=session,
            key=key,
            settings=self._settings,
            writes=self._writes,
            timer=self._timer,
            session=self._session,
            verify=self._verify,
            now_ms=self._now_ms,
            given_up=self._given_up,
            work=self._work,
            counts=self.counts,
            read_offsets=lambda: self._committed_by_key(name),
            topics=self._topics,
            rights=self._rights,
        )

    def _given_up(self, held: CoordinatedGroup) -> None:
        if self._groups.get(held.name) is held:
            del self._groups[held.name]

    def _outcome_unknown(self, key: str) -> None:
        """Reacts to a write of unknown outcome: of a record, whose step gives the group up, or of offsets, which might land after
        later ones."""
        name = self._layout.parse_group(key)
        self.known_offsets.forget(name)
        held = self._groups.get(name)
        if held is not None:
            held.doubt()

    # ── time and tasks ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _due(self, name: str) -> None:
        held = self._groups.get(name)
        if held is None:
            return
        if held.due_ms <= uptime_ms():
            self._work.start_background(held.tick(), f"tick of group {name}")
        elif held.is_idle:
            held.give_up("it received no call for long")
        else:
            held.wake_when_due()

    def _slept(self) -> None:
        for held in self._groups.values():
            held.restart_sessions()


def _take_heartbeat(held: CoordinatedGroup, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
    _check_classic(held.name, held.group)
    try:
        check_heartbeat(held.group, member_id, instance_id, generation)
    except RebalanceInProgress:
        held.heard(member_id)
        raise
    held.heard(member_id)


def _check_classic(name: str, group: Group) -> None:
    if isinstance(group, ReconciledGroup):
        raise UnknownMember(f"group {name} uses the consumer protocol, and has no members of the classic one")


def check_empty(name: str, group: Group) -> None:
    if group.phase is not GroupPhase.EMPTY:
        count = len(group.members)
        raise GroupNotEmpty(f"group {name} has {count} member{'s' if count != 1 else ''}")


def check_unsubscribed(name: str, group: Group, topics: Iterable[str]) -> None:
    """Raises GroupSubscribed where a member subscribes to one of the topics; GroupNotEmpty where that can't be read."""
    subscribed = subscribed_topics(group)
    if subscribed is None:
        check_empty(name, group)
        return
    for topic in topics:
        if topic in subscribed:
            raise GroupSubscribed(f"a member of group {name} subscribes to topic {topic}", topic=topic)
