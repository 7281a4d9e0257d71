"""The consumer groups that this broker coordinates: loaded at the first call for them, and given up when they are another's.

    a call ─▶ load: read, and adopt ─▶ coordinated_group.py: decide, store, tell
                       └ its record is written anew, which raises its revision: what a former coordinator still sends compares false

Heartbeats ask for nothing but memory; records and commits of all groups are coalesced; one timer serves all.

Invariants: only the broker that wrote a group's record last writes its offsets; a committed offset goes back only when asked to; a
call that ends, or hangs up, leaves nothing behind but a member whose session runs out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from gateway.coordinated_group import CoordinatedGroup, not_coordinator
from gateway.group_timer import GroupTimer, uptime_ms
from metadata.coalesced_writes import CoalescedWrites, CompareFailed
from metadata.errors import (
    GroupNotEmpty,
    OutcomeUnknown,
    RebalanceInProgress,
    Stopping,
    Throttled,
    TidelogError,
    UnknownGroup,
)
from metadata.etcd_layout import EtcdLayout
from metadata.group_barrier import Step
from metadata.group_joining import join
from metadata.group_model import (
    Generation,
    Group,
    InstanceId,
    Joined,
    JoinRequest,
    MemberId,
    Phase,
    Synced,
    SyncRequest,
    Waiter,
    check_group_name,
)
from metadata.group_offsets import CommittedOffset, encode_offset, read_offsets, why_not
from metadata.group_record import decode_group, encode_group
from metadata.group_settings import GroupSettings
from metadata.group_state import check_commit, check_heartbeat, leave, sync
from metadata.model import Revision, SessionId, TopicPartition
from metadata.store import OPERATIONS_MAX, Compare, Delete, MetadataStore, Put

LOADS_AT_ONCE: Final = 64
T = TypeVar("T")


class GroupCoordinator:
    """Its owner runs `run()` as a task."""

    def __init__(
        self,
        store: MetadataStore,
        layout: EtcdLayout,
        settings: GroupSettings,
        *,
        session: Callable[[], SessionId],
        coordinates: Callable[[str], bool],
        now_ms: Callable[[], int],
        new_member_id: Callable[[str], MemberId],
    ) -> None:
        """`coordinates`: whether a group is this broker's. `new_member_id` makes one from a client id or an instance id.
        `now_ms` is the wall clock."""
        self._store = store
        self._layout = layout
        self._settings = settings
        self._session = session
        self._coordinates = coordinates
        self._now_ms = now_ms
        self._new_member_id = new_member_id
        self._writes = CoalescedWrites(store, linger_s=settings.commit_linger_ms / 1000, unknown=self._outcome_unknown)
        self._timer = GroupTimer(self._due, slept=self._slept)
        self._groups: dict[str, CoordinatedGroup] = {}
        self._loading: dict[str, asyncio.Future[CoordinatedGroup]] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    tasks.create_task(self._writes.run(), name="writes of groups")
                    await self._timer.run()
                finally:
                    self._tasks = None
        finally:
            for held in list(self._groups.values()):
                held.give_up("the broker is shutting down")

    def brokers_changed(self) -> None:
        """Gives up the groups that are another broker's now."""
        for held in [held for held in self._groups.values() if not self._coordinates(held.name)]:
            held.give_up("it is another broker's now")

    def __len__(self) -> int:
        """Groups that are loaded."""
        return len(self._groups)

    # ── what members ask ────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, name: str, request: JoinRequest) -> Joined:
        new = self._new_member_id(request.instance_id or request.client_id)

        def decide(group: Group, waiter: Waiter) -> Step:
            return join(group, request, waiter, new_member_id=new, now_ms=uptime_ms(), settings=self._settings)

        answer = await self._answered(name, decide, request.member_id)
        assert isinstance(answer, Joined)
        return answer

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        answer = await self._answered(
            name, lambda group, waiter: sync(group, request, waiter, settings=self._settings), request.member_id
        )
        assert isinstance(answer, Synced)
        return answer

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        held = self._groups.get(name) or await self._loaded(name)
        try:
            check_heartbeat(held.group, member_id, instance_id, generation)
        except RebalanceInProgress:
            held.heard(member_id)
            raise
        held.heard(member_id)

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        """One answer for each, in order."""
        held = await self._loaded(name)
        answers: list[TidelogError | None] = []
        for member_id, instance_id in leaving:

            def decide(group: Group, at: MemberId = member_id, instance: InstanceId = instance_id) -> Step:
                return leave(group, at, instance, now_ms=uptime_ms(), settings=self._settings)

            try:
                await self._owned(held.step(decide))
                answers.append(None)
            except TidelogError as error:
                answers.append(error)
        return answers

    async def _answered(self, name: str, decide: Callable[[Group, Waiter], Step], member_id: MemberId) -> Joined | Synced:
        held = await self._loaded(name)
        waiter, told = held.wait()
        try:
            await self._owned(held.step(lambda group: decide(group, waiter), heard=member_id))
            return await told
        finally:
            if held.stop_waiting(waiter) and not held.is_gone and self._tasks is not None:
                self._tasks.create_task(held.tick(), name=f"hang-up in group {name}")

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(
        self,
        name: str,
        member_id: MemberId,
        instance_id: InstanceId,
        generation: Generation,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, TidelogError]:
        """Answers those that were refused, each with why; at most 128 are written at one instant.

        Raises what refuses all of them; OutcomeUnknown where nobody knows.
        """
        held = await self._loaded(name)
        refused = {partition: why for partition, offset in offsets.items() if (why := why_not(offset, self._settings)) is not None}
        sound = [partition for partition in offsets if partition not in refused]

        def check(group: Group) -> None:
            check_commit(group, member_id, instance_id, generation)

        check(held.group)
        at_ms = self._now_ms()
        for start in range(0, len(sound), OPERATIONS_MAX):
            part = sound[start : start + OPERATIONS_MAX]
            puts = [Put(self._layout.offset(name, at), encode_offset(replace(offsets[at], committed_at_ms=at_ms))) for at in part]
            try:
                await held.write_offsets(puts, check)
            except TidelogError as error:
                if start == 0:
                    raise
                return refused | dict.fromkeys(sound[start:], error)
        held.heard(member_id)
        return refused

    async def offsets(self, name: str) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed. It is adopted first, so that nothing of a former coordinator lands after it was read."""
        await self._loaded(name)
        return await read_offsets(self._store, self._layout, name)

    # ── what operators ask ──────────────────────────────────────────────────────────────────────────────────────────────

    async def describe(self, name: str) -> Group:
        """Raises UnknownGroup."""
        return (await self._known(name)).group

    async def delete(self, name: str) -> None:
        """The group and its offsets. Raises UnknownGroup, GroupNotEmpty. Where it fails, some offsets may be gone: repeat it."""
        held = await self._known(name)

        async def keys() -> list[str]:
            return [self._layout.offset(name, partition) for partition in await read_offsets(self._store, self._layout, name)]

        await self._owned(held.delete(lambda group: _check_empty(name, group), keys))

    async def delete_offsets(self, name: str, partitions: Sequence[TopicPartition]) -> None:
        """Of a group without members. Raises UnknownGroup, GroupNotEmpty."""
        held = await self._known(name)
        _check_empty(name, held.group)
        deletes = [Delete(self._layout.offset(name, partition)) for partition in partitions]
        for start in range(0, len(deletes), OPERATIONS_MAX):
            await held.write_offsets(deletes[start : start + OPERATIONS_MAX], lambda group: _check_empty(name, group))

    async def _known(self, name: str) -> CoordinatedGroup:
        held = await self._loaded(name)
        if not held.is_stored and held.group.phase is Phase.EMPTY:
            raise UnknownGroup(f"there is no group {name}")
        return held

    # ── which groups are here ───────────────────────────────────────────────────────────────────────────────────────────

    async def _loaded(self, name: str) -> CoordinatedGroup:
        """Raises NotCoordinator, Unavailable, Corrupt, InvalidGroupName."""
        held = self._groups.get(name)
        if held is not None:
            return held
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
            self._start(self._load(name, loading), loading)
            self._loading[name] = loading
        return await asyncio.shield(loading)

    async def _load(self, name: str, loading: asyncio.Future[CoordinatedGroup]) -> CoordinatedGroup:
        try:
            async with self._loads:
                held = await self._adopted(name)
            self._groups[name] = held
            return held
        finally:
            self._loading.pop(name, None)

    async def _adopted(self, name: str) -> CoordinatedGroup:
        """The group as it lies in the store, fenced from whoever coordinated it before."""
        key = self._layout.group(name)
        kept = await self._store.get(key)
        group, revision = Group(), Revision(0)
        if kept is not None:
            group = decode_group(kept, now_ms=uptime_ms())
            try:
                revision = await self._writes.write(
                    Compare(key, kept.mod_revision), [Put(key, encode_group(group, self._session()))]
                )
            except (CompareFailed, OutcomeUnknown) as error:
                raise not_coordinator(name) from error
        if not self._coordinates(name):
            raise not_coordinator(name)
        return CoordinatedGroup(
            name,
            group,
            revision,
            key=key,
            settings=self._settings,
            writes=self._writes,
            timer=self._timer,
            session=self._session,
            now_ms=self._now_ms,
            given_up=self._given_up,
        )

    def _given_up(self, held: CoordinatedGroup) -> None:
        if self._groups.get(held.name) is held:
            del self._groups[held.name]

    def _outcome_unknown(self, key: str) -> None:
        """Of a record, or of offsets, which might land over those of the next commit: the group is adopted anew before that."""
        held = self._groups.get(self._layout.parse_group(key))
        if held is not None:
            held.give_up("it is not known whether something of it was written")

    # ── time and tasks ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _due(self, name: str) -> None:
        held = self._groups.get(name)
        if held is None or self._tasks is None:
            return
        if held.due_ms <= uptime_ms():
            self._tasks.create_task(held.tick(), name=f"tick of group {name}")
        elif held.is_idle:
            held.give_up("nobody has asked for it for long")
        else:
            held.wake_when_due()

    def _slept(self) -> None:
        for held in self._groups.values():
            held.begin_sessions_anew()

    async def _owned(self, call: Coroutine[None, None, None]) -> None:
        """It goes on where its caller hangs up: half of a step would be a group whose state nobody knows."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start(call, done)
        await done

    def _start(self, call: Coroutine[None, None, T], done: asyncio.Future[T]) -> None:
        """Runs it as a task of this coordinator, whose outcome is told to whoever still waits for it."""
        if self._tasks is None:
            call.close()
            raise Stopping("the broker is shutting down")

        async def carry_out() -> None:
            try:
                outcome = await call
            except TidelogError as error:
                _refuse(done, error)
            else:
                if not done.done():
                    done.set_result(outcome)

        def ended(_: asyncio.Task[None]) -> None:
            call.close()  # where the broker stopped before it began
            _refuse(done, Stopping("the broker is shutting down"))

        self._tasks.create_task(carry_out()).add_done_callback(ended)


def _refuse(done: asyncio.Future[T], error: TidelogError) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # where nobody waits any more


def _check_empty(name: str, group: Group) -> None:
    if group.phase is not Phase.EMPTY:
        raise GroupNotEmpty(f"group {name} has {len(group.members)} members")
