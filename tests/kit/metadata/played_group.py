"""A consumer group without its coordinator: the pure state machine, the time that a test sets, and the answers of each caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metadata.errors import MemberIdRequired, TidelogError
from metadata.groups.classic.join import join
from metadata.groups.classic.rebalance_barrier import Step
from metadata.groups.classic.state_machine import check_commit, check_heartbeat, hang_up, leave, sync, tick, wakes_at_ms
from metadata.groups.consumer_protocol import Subscription, encode_subscription
from metadata.groups.model import (
    NO_INSTANCE,
    NO_MEMBER,
    Generation,
    Group,
    InstanceId,
    Joined,
    JoinRequest,
    MemberId,
    Protocol,
    Synced,
    SyncRequest,
    Waiter,
)
from metadata.groups.record import decode_group, encode_group
from metadata.groups.settings import GroupSettings
from metadata.model import Revision, SessionId
from metadata.store.interface import KeyValue

SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=500, group_members_max=5)
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def offers(
    *topics: str, names: tuple[str, ...] = ("range",), owned: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Protocol, ...]:
    return tuple(Protocol(name, encode_subscription(Subscription(topics or ("orders",), owned or {}))) for name in names)


def request(
    member_id: str = "",
    *,
    instance: str = "",
    client: str = "c",
    protocol_type: str = "consumer",
    protocols: tuple[Protocol, ...] | None = None,
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    id_required: bool = False,
) -> JoinRequest:
    return JoinRequest(
        MemberId(member_id),
        InstanceId(instance),
        client,
        "10.0.0.7",
        protocol_type,
        offers() if protocols is None else protocols,
        session_ms,
        rebalance_ms,
        id_required,
    )


class Played:
    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        self.settings = settings
        self.group = Group()
        self.now_ms = 1_000
        self.reported: dict[Waiter, Joined | Synced | TidelogError] = {}
        self.open: set[Waiter] = set()
        self.stored: list[Group] = []
        self._waiters = 0
        self._members = 0

    # ── what members ask ────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, joining: JoinRequest) -> Waiter:
        """A new member is m1, m2, … in the order of joins."""
        self._members += 1
        new = MemberId(f"m{self._members}")
        return self._ask(
            lambda group, waiter: join(group, joining, waiter, new_member_id=new, now_ms=self.now_ms, settings=self.settings)
        )

    def sync(
        self, member_id: str, generation: int | None = None, assignments: Mapping[str, bytes] | None = None, **asked: str
    ) -> Waiter:
        at = self.group.generation if generation is None else generation
        by_member = {MemberId(member): assignment for member, assignment in (assignments or {}).items()}
        syncing = SyncRequest(MemberId(member_id), InstanceId(asked.pop("instance", "")), Generation(at), by_member, **asked)
        return self._ask(lambda group, waiter: sync(group, syncing, waiter, settings=self.settings))

    def leave(self, member_id: str, *, instance: str = "") -> None:
        self._apply(leave(self.group, MemberId(member_id), InstanceId(instance), now_ms=self.now_ms, settings=self.settings))

    def heartbeat(self, member_id: str, generation: int | None = None, *, instance: str = "") -> None:
        at = self.group.generation if generation is None else generation
        check_heartbeat(self.group, MemberId(member_id), InstanceId(instance), Generation(at))

    def commit(self, member_id: str = NO_MEMBER, generation: int | None = None, *, instance: str = NO_INSTANCE) -> None:
        at = self.group.generation if generation is None else generation
        check_commit(self.group, MemberId(member_id), InstanceId(instance), Generation(at))

    # ── time, and those who do not wait ─────────────────────────────────────────────────────────────────────────────────

    def pass_ms(self, span_ms: int, *late: str) -> None:
        """Time passes, and whatever is due in it happens when it is due. `late` are silent for too long at its end."""
        end_ms = self.now_ms + span_ms
        while (at_ms := wakes_at_ms(self.group)) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            before = self.group
            self.tick()
            assert self.group != before, "what is due happens"
        self.now_ms = end_ms
        if late:
            self.tick(*late)

    def tick(self, *late: str) -> None:
        self._apply(tick(self.group, [MemberId(at) for at in late], now_ms=self.now_ms, settings=self.settings))

    def hang_up(self, waiter: Waiter) -> None:
        self.open.discard(waiter)
        self._apply(hang_up(self.group, waiter, now_ms=self.now_ms, settings=self.settings))

    def fail_over(self) -> None:
        """Another coordinator reads what was stored last; waiting callers are asked to try again."""
        kept = KeyValue("g", encode_group(self.stored[-1], SessionId(1)), Revision(1), Revision(1), 1)
        self.group = decode_group(kept, now_ms=self.now_ms)
        self.open.clear()

    # ── what became of it ───────────────────────────────────────────────────────────────────────────────────────────────

    def joined(self, waiter: Waiter) -> Joined:
        answer = self.reported[waiter]
        assert isinstance(answer, Joined), answer
        return answer

    def assignment(self, waiter: Waiter) -> bytes:
        answer = self.reported[waiter]
        assert isinstance(answer, Synced), answer
        return answer.assignment

    def refusal(self, waiter: Waiter) -> type[TidelogError]:
        answer = self.reported[waiter]
        assert isinstance(answer, TidelogError), answer
        return type(answer)

    def announced(self, waiter: Waiter) -> MemberId:
        answer = self.reported[waiter]
        assert isinstance(answer, MemberIdRequired), answer
        return MemberId(str(answer.details["member_id"]))

    def _ask(self, step: Callable[[Group, Waiter], Step]) -> Waiter:
        self._waiters += 1
        waiter = Waiter(self._waiters)
        decided = step(self.group, waiter)  # who is refused by an error waits for nothing
        self.open.add(waiter)
        self._apply(decided)
        return waiter

    def _apply(self, step: Step) -> None:
        self.group = step.group
        if step.stored:
            self.stored.append(step.group)
        for waiter, answer in step.answers:
            if waiter in self.open:
                self.open.remove(waiter)
                self.reported[waiter] = answer


def stable(*members: JoinRequest, settings: GroupSettings = SETTINGS) -> Played:
    """A group of m1, m2, … in its first generation, each assigned its own id; m1 leads."""
    played = Played(settings)
    for member in members:
        played.join(member)
    played.pass_ms(settings.group_initial_rebalance_delay_ms)
    settle(played)
    return played


def settle(played: Played) -> None:
    """All members of the generation ask for their assignments, which are their own ids."""
    for member in [*(at for at in played.group.members if at != played.group.leader), played.group.leader]:
        if member in played.group.unsynced:
            played.sync(member, assignments={at: at.encode() for at in played.group.members})
