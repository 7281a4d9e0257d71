"""What one member knows of its place in a consumer group, and what follows from each answer. Pure: the caller brings the times.

    OUT ──▶ JOINING ──joined──▶ SYNCING ──synced──▶ STAYING
     ▲        ▲  └─ repeated        │ rebalance         │ rebalance, other topics, or something was given up
     │        └─────────────────────┴───────────────────┘
     └── lost: unknown to the group, of another generation, or not heard of in time

eager (range, roundrobin, sticky)     gives everything up before it joins again
cooperative (cooperative-sticky)      keeps it, and says so; gives up what the new assignment lacks, and joins once more (KIP-429)

By the clock, what it owns is its own until the first of these, each shortened by a margin:

    sent at, and answered by a group that had heard it    + session timeout      then its session may have ended
    sent at, and answered while no rebalance was on, or
    where its request to join waited for the others       + rebalance timeout    then a barrier may have opened without it

Until it has its assignment, heartbeats move the session alone: who is not heard to ask for it in time is lost for that.

Invariants: nothing is owned that somebody else may have been assigned, whatever answers are lost; who holds partitions under a
cooperative assignor offers no other kind, so that no generation can be assigned as if they were free; nothing is owned and not
claimed. Times are seconds of a clock that never goes back. Source: Kafka's consumer coordinator, KIP-62, KIP-345, KIP-394, KIP-792.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from enum import Enum, auto
from typing import Final, NamedTuple

from metadata.errors import (
    Fenced,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    Rejected,
    StaleGeneration,
    TidelogError,
    UnknownMember,
)
from metadata.group_member.settings import MemberSettings
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.consumer_protocol import PROTOCOL_TYPE, Subscription, decode_assignment, encode_subscription
from metadata.groups.model import (
    NO_GENERATION,
    NO_INSTANCE,
    NO_MEMBER,
    Generation,
    InstanceId,
    Joined,
    JoinRequest,
    MemberId,
    Protocol,
    Synced,
    SyncRequest,
)

# Assignors that leave a partition with who claims it.
COOPERATIVE: Final = frozenset({"cooperative-sticky"})
# A tenth of a timeout, and at most this: for the way of an answer, and for a reader to stop.
MARGIN_S_MAX: Final = 2.0

NOTHING: Final[frozenset[TopicPartitionName]] = frozenset()


class MemberPhase(Enum):
    OUT = auto()
    JOINING = auto()
    SYNCING = auto()
    STAYING = auto()


class Beat(NamedTuple):
    """A heartbeat that was sent."""

    member_id: MemberId
    generation: Generation
    sent_s: float


class Heard(Enum):
    """What an answer to a heartbeat means."""

    NOTHING_NEW = auto()
    # What it waits for was answered, and may be on its way: the next heartbeat, soon, tells whether it is lost.
    LOOK_AGAIN = auto()
    JOIN_AGAIN = auto()
    # The call that waits is not known where it should be: it is to be repeated.
    ASK_AGAIN = auto()
    # The error says how.
    ENDED = auto()


class Moves(NamedTuple):
    """What an assignment changes: first the one is given up, then the other is taken."""

    revoked: frozenset[TopicPartitionName]
    assigned: frozenset[TopicPartitionName]
    # Of topics that this member has not asked for, and does not take.
    strange: frozenset[TopicPartitionName] = NOTHING


class MemberState:
    def __init__(self, settings: MemberSettings) -> None:
        self.phase = MemberPhase.OUT
        self.member_id = NO_MEMBER
        self.instance_id = InstanceId(settings.instance_id)
        self.generation = NO_GENERATION
        self.protocol = ""
        self.owned = NOTHING
        self.topics: frozenset[str] = frozenset()
        """That it joined with last."""
        self._settings = settings
        self._session_s = _shortened_s(settings.session_timeout_ms)
        self._rebalance_s = _shortened_s(settings.rebalance_timeout_ms)
        self._owned_in = NO_GENERATION
        """The generation that assigned what is owned."""
        self._given_up_to_join = NOTHING
        """What it held in that generation until now: an eager assignor that is sticky leaves it where it was."""
        self._asked_s = 0.0
        self._is_answered = False
        """A heartbeat has told that the request to join was."""
        self._heard_s = 0.0
        self._no_rebalance_s = 0.0

    # ── joining ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def revokes_before_joining(self) -> bool:
        return bool(self.owned) and self.protocol not in COOPERATIVE

    def join_request(self, topics: Collection[str], *, now_s: float) -> JoinRequest:
        self.phase, self._asked_s, self._is_answered = MemberPhase.JOINING, now_s, False
        self.topics = frozenset(topics)
        names = [name for name in self._settings.assignors if not self.owned or name in COOPERATIVE]
        return JoinRequest(
            self.member_id,
            self.instance_id,
            self._settings.client_id,
            "",
            PROTOCOL_TYPE,
            tuple(Protocol(name, self._subscription(name)) for name in names),
            self._settings.session_timeout_ms,
            self._settings.rebalance_timeout_ms,
            member_id_required=self.member_id == NO_MEMBER and self.instance_id == NO_INSTANCE,
        )

    def _subscription(self, assignor: str) -> bytes:
        held = self.owned if assignor in COOPERATIVE else self.owned | self._given_up_to_join
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(held):
            by_topic[topic].append(partition)
        return encode_subscription(Subscription(tuple(sorted(self.topics)), by_topic, self._owned_in))

    def named(self, required: MemberIdRequired) -> None:
        """The first answer to a new member."""
        self.member_id = MemberId(str(required.details.get("member_id", "")))

    def joined(self, answer: Joined) -> None:
        """Raises InconsistentProtocol where the group takes an assignor that this member has not offered."""
        if answer.protocol not in self._settings.assignors or (self.owned and answer.protocol not in COOPERATIVE):
            raise InconsistentProtocol(f"the group assigns by {answer.protocol!r}, which this member has not offered")
        heard_s = max(self._heard_s, self._asked_s)
        if answer.generation != self.generation:  # heartbeats that were answered before came to the barrier that it went through
            self._no_rebalance_s = heard_s
        self._no_rebalance_s = max(self._no_rebalance_s, self._asked_s)
        self._heard_s = heard_s
        self.phase = MemberPhase.SYNCING
        self.member_id, self.generation, self.protocol = answer.member_id, answer.generation, answer.protocol

    def sync_request(self, assignments: dict[MemberId, bytes], *, now_s: float) -> SyncRequest:
        self._asked_s = now_s
        return SyncRequest(self.member_id, self.instance_id, self.generation, assignments, PROTOCOL_TYPE, self.protocol)

    def synced(self, answer: Synced) -> Moves:
        """Raises InvalidArgument where the assignment can't be read."""
        told = frozenset((topic, number) for topic, numbers in decode_assignment(answer.assignment).items() for number in numbers)
        mine = frozenset((topic, number) for topic, number in told if topic in self.topics and number >= 0)
        self.phase = MemberPhase.STAYING
        self._owned_in, self._given_up_to_join = self.generation, NOTHING
        self._heard_s = max(self._heard_s, self._asked_s)
        self._no_rebalance_s = max(self._no_rebalance_s, self._asked_s)
        return Moves(self.owned - mine, mine - self.owned, told - mine)

    # ── what is owned ───────────────────────────────────────────────────────────────────────────────────────────────────

    def took(self, partitions: frozenset[TopicPartitionName]) -> None:
        self.owned |= partitions

    def gave_up(self, partitions: frozenset[TopicPartitionName]) -> None:
        if self.phase is not MemberPhase.STAYING or self.protocol not in COOPERATIVE:
            self._given_up_to_join |= partitions
        self.owned -= partitions

    def lost(self, why: Exception) -> frozenset[TopicPartitionName]:
        """It is out, and owns nothing any more. It keeps its id unless the group does not know it; so a process that was replaced
        under its instance id is fenced when it comes back, and does not fence its successor."""
        lost, self.owned = self.owned, NOTHING
        self.phase, self.generation, self.protocol = MemberPhase.OUT, NO_GENERATION, ""
        self._owned_in, self._given_up_to_join = NO_GENERATION, NOTHING
        if isinstance(why, UnknownMember):
            self.member_id = NO_MEMBER
        return lost

    def left(self) -> None:
        self.member_id = NO_MEMBER

    @property
    def holds_until_s(self) -> float:
        """When what it owns may be somebody else's; for ever where it owns nothing."""
        if not self.owned:
            return float("inf")
        return min(self._heard_s + self._session_s, self._no_rebalance_s + self._rebalance_s)

    # ── heartbeats ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def beat(self, *, now_s: float) -> Beat | None:
        """None while it is in no generation. While it waits to join the next one, it is in the one before."""
        return None if self.generation == NO_GENERATION else Beat(self.member_id, self.generation, now_s)

    def answered(self, beat: Beat, error: TidelogError | None) -> Heard:
        if (beat.member_id, beat.generation) != (self.member_id, self.generation):
            return Heard.NOTHING_NEW  # it is of before
        if error is None:
            self._heard_s = max(self._heard_s, beat.sent_s)
            if self._owned_in == self.generation:
                self._no_rebalance_s = max(self._no_rebalance_s, beat.sent_s)
            return Heard.ASK_AGAIN if self._join_should_be_known(beat) else Heard.NOTHING_NEW
        if isinstance(error, RebalanceInProgress):
            self._heard_s = max(self._heard_s, beat.sent_s)
            if self.phase is not MemberPhase.JOINING:
                return Heard.JOIN_AGAIN
            if error.details.get("waits"):  # so no barrier opens without it there, nor elsewhere for a rebalance timeout
                self._no_rebalance_s = max(self._no_rebalance_s, beat.sent_s)
                return Heard.NOTHING_NEW
            return Heard.ASK_AGAIN if self._join_should_be_known(beat) else Heard.NOTHING_NEW
        if (
            isinstance(error, StaleGeneration) and self.phase is MemberPhase.JOINING
        ):  # it has joined the next one, and was not told yet
            if not self._join_should_be_known(beat):
                return Heard.NOTHING_NEW
            was_answered, self._is_answered = self._is_answered, True
            return Heard.ASK_AGAIN if was_answered else Heard.LOOK_AGAIN
        return Heard.ENDED if isinstance(error, Fenced | Rejected) and not error.retryable else Heard.NOTHING_NEW

    def _join_should_be_known(self, beat: Beat) -> bool:
        """By the coordinator that has answered this heartbeat, which was sent long after the request to join."""
        return self.phase is MemberPhase.JOINING and beat.sent_s >= self._asked_s + self._settings.beat_ms / 1000


def _shortened_s(timeout_ms: int) -> float:
    timeout_s = timeout_ms / 1000
    return timeout_s - min(timeout_s / 10, MARGIN_S_MAX)
