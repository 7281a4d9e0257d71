"""One consumer group at its coordinator: a step is decided (group_state.py), stored, and only then told to those who wait.

    decide ─▶ store, guarded by the revision of the group's record ─▶ the new state ─▶ answers
                 ├ unavailable: the step has not happened; its caller is told, the others wait on
                 └ written by somebody else, or nobody knows: the group is given up, all are told NOT_COORDINATOR

Invariants: steps that store happen one after the other; what a member is told of its group was stored before; after it was given
up, a group writes nothing more and answers nobody.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from gateway.group_timer import GroupTimer, uptime_ms
from metadata.coalesced_writes import CoalescedWrites, CompareFailed
from metadata.errors import NotCoordinator, OutcomeUnknown, TidelogError
from metadata.group_barrier import Answer, Step
from metadata.group_model import Group, Joined, MemberId, Phase, Synced, Waiter
from metadata.group_record import encode_group
from metadata.group_settings import GroupSettings
from metadata.group_state import hang_up, tick, wakes_at_ms
from metadata.model import Revision, SessionId
from metadata.store import OPERATIONS_MAX, Compare, Delete, Put

STORE_AGAIN_MS: Final = 500
"""After a step of the timer could not be stored."""
IDLE_MS: Final = 600_000
IDLE_UNKNOWN_MS: Final = 10_000
"""So long a group without members is kept in memory, and one that is not even stored."""

Told = asyncio.Future[Joined | Synced]
log = logging.getLogger(__name__)
_waiters = itertools.count(1)


class CoordinatedGroup:
    def __init__(
        self,
        name: str,
        group: Group,
        revision: Revision,
        *,
        key: str,
        settings: GroupSettings,
        writes: CoalescedWrites,
        timer: GroupTimer,
        session: Callable[[], SessionId],
        now_ms: Callable[[], int],
        given_up: Callable[[CoordinatedGroup], None],
    ) -> None:
        self.name = name
        self.group = group
        self.is_gone = False
        self._key = key
        self._revision = revision
        self._settings = settings
        self._writes = writes
        self._timer = timer
        self._session = session
        self._now_ms = now_ms
        self._given_up = given_up
        self._steps = asyncio.Lock()
        self._waiting: dict[Waiter, Told] = {}
        self._silent_at_ms: dict[MemberId, int] = {}  # when a member's session ends if nothing is heard of it
        self.begin_sessions_anew()
        self._schedule()

    @property
    def is_stored(self) -> bool:
        return self._revision > 0

    @property
    def is_idle(self) -> bool:
        return self.group.phase is Phase.EMPTY and not (self._waiting or self.group.announced or self._steps.locked())

    # ── who waits ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self) -> tuple[Waiter, Told]:
        waiter = Waiter(next(_waiters))
        told = self._waiting[waiter] = asyncio.get_running_loop().create_future()
        return waiter, told

    def stop_waiting(self, waiter: Waiter) -> bool:
        """Whether it still waited: `tick` then lets the group know."""
        told = self._waiting.pop(waiter, None)
        if told is not None:
            told.cancel()
        return told is not None

    def give_up(self, why: str) -> None:
        log.debug("group %s is not coordinated here any more: %s", self.name, why)
        self.is_gone = True
        self._timer.forget(self.name)
        self._given_up(self)
        for waiter in list(self._waiting):
            self._tell(waiter, not_coordinator(self.name))

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def step(self, decide: Callable[[Group], Step], *, heard: MemberId | None = None) -> None:
        """`heard`: the member that asks for it. Raises what refuses it, NotCoordinator, Unavailable."""
        async with self._steps:
            self.check_here()
            before = self.group
            step = self._decided(decide)
            after = step.group
            if step.stored:
                after = replace(after, changed_at_ms=self._now_ms())
                await self._put(after)
                self.check_here()
            self.group = after
            for waiter, answer in step.answers:
                self._tell(waiter, answer)
            waited = {*before.joining, *before.syncing}
            for member_id in after.members:
                if member_id == heard or member_id in waited or member_id not in before.members:
                    self.heard(member_id)
            for member_id in self._silent_at_ms.keys() - after.members.keys():
                del self._silent_at_ms[member_id]
            self._schedule()

    def _decided(self, decide: Callable[[Group], Step]) -> Step:
        """After those that have hung up meanwhile."""
        group, answers, stored = self.group, tuple[Answer, ...](), False
        for waiter in sorted({*group.joining.values(), *group.syncing.values()} - self._waiting.keys()):
            gone = hang_up(group, waiter, now_ms=uptime_ms(), settings=self._settings)
            group, answers, stored = gone.group, (*answers, *gone.answers), stored or gone.stored
        step = decide(group)
        return Step(step.group, (*answers, *step.answers), stored or step.stored)

    async def _put(self, group: Group) -> None:
        self._revision = await self._guarded([Put(self._key, encode_group(group, self._session()))])

    async def _guarded(self, operations: Sequence[Put | Delete], revision: Revision | None = None) -> Revision:
        """Of a step. Raises NotCoordinator, and gives the group up, where it is not this broker's any more, or nobody knows."""
        try:
            return await self._writes.write(Compare(self._key, self._revision if revision is None else revision), operations)
        except (CompareFailed, OutcomeUnknown) as error:
            self.give_up("its record was written by another broker, or it is not known whether it was written")
            raise not_coordinator(self.name) from error

    def _tell(self, waiter: Waiter, answer: Joined | Synced | TidelogError) -> None:
        told = self._waiting.pop(waiter, None)
        if told is None or told.done():
            return  # it has hung up
        if isinstance(answer, TidelogError):
            told.set_exception(answer)
            told.exception()  # its caller may be told of the same by its step
        else:
            told.set_result(answer)

    # ── what is guarded by the record, and does not change it ───────────────────────────────────────────────────────────

    async def write_offsets(self, writes: Sequence[Put | Delete], check: Callable[[Group], None]) -> None:
        """At most 128. `check` raises what refuses them, and is asked again where the group changed before they were written."""
        while True:
            self.check_here()
            check(self.group)
            if not self.is_stored:
                await self.step(lambda group: Step(group, stored=not self.is_stored))
                continue
            revision = self._revision
            try:
                await self._writes.write(Compare(self._key, revision), writes)
                return
            except CompareFailed as error:
                if self._revision == revision and not self._steps.locked():
                    self.give_up("its record was written by another broker")
                    raise not_coordinator(self.name) from error
                async with self._steps:  # a step of this group has written its record meanwhile, or is about to
                    pass

    async def delete(self, check: Callable[[Group], None], offsets: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """The group, and its offsets, whose keys `offsets` reads. `check` raises what refuses it.

        First the record is written anew, so that no commit that is under way lands after its key was deleted. Until the end,
        commits compare with the record before, and wait.
        """
        async with self._steps:
            self.check_here()
            check(self.group)
            revision = await self._guarded([Put(self._key, encode_group(self.group, self._session()))])
            try:
                deletes = [*map(Delete, await offsets()), Delete(self._key)]
                for start in range(0, len(deletes), OPERATIONS_MAX):
                    await self._guarded(deletes[start : start + OPERATIONS_MAX], revision)
            finally:
                self.give_up("it was deleted, or half of it: whoever comes next reads what is left")

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def heard(self, member_id: MemberId) -> None:
        if (member := self.group.members.get(member_id)) is not None:
            self._silent_at_ms[member_id] = uptime_ms() + member.session_timeout_ms

    def begin_sessions_anew(self) -> None:
        """Of a coordinator that begins, or that was not running for a while: nobody could be heard of."""
        for member_id in self.group.members:
            self.heard(member_id)

    @property
    def due_ms(self) -> int:
        group = self.group
        due_ms = [at for member, at in self._silent_at_ms.items() if member not in group.joining and member not in group.syncing]
        if (at_ms := wakes_at_ms(group)) is not None:
            due_ms.append(at_ms)
        return min(due_ms, default=uptime_ms() + (IDLE_MS if self.is_stored else IDLE_UNKNOWN_MS))

    def _schedule(self) -> None:
        if not self.is_gone:
            self._timer.wake(self.name, self.due_ms)

    def wake_when_due(self) -> None:
        self._schedule()

    async def tick(self) -> None:
        """What time has brought, and hang-ups. It is tried again where it can't be stored."""

        def decide(group: Group) -> Step:
            now_ms = uptime_ms()
            late = [member_id for member_id, at_ms in self._silent_at_ms.items() if at_ms <= now_ms]
            return tick(group, late, now_ms=now_ms, settings=self._settings)

        try:
            await self.step(decide)
        except TidelogError as error:
            if not self.is_gone:
                log.warning("group %s: %s; it is tried again", self.name, error)
                self._timer.wake(self.name, uptime_ms() + STORE_AGAIN_MS)

    def check_here(self) -> None:
        if self.is_gone:
            raise not_coordinator(self.name)


def not_coordinator(name: str) -> NotCoordinator:
    return NotCoordinator(f"this broker does not coordinate group {name}")
