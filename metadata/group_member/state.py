"""Keeps one member's state in a consumer group, and decides what follows from each answer. Pure: the caller brings the times.

    OUT ──▶ JOINING ──joined──▶ SYNCING ──synced──▶ STAYING
     ▲        ▲  └─ repeated        │ rebalance         │ rebalance, other topics, or something was given up
     │        └─────────────────────┴───────────────────┘
     └── lost: unknown to the group, of another generation, or without an answer for too long

eager (range, roundrobin, sticky)     gives everything up before it joins again
cooperative (cooperative-sticky)      keeps it, and says so; gives up what the new assignment lacks, and joins once more (KIP-429)

By the clock, the member owns its partitions until the first of these, each shortened by a margin:

    sending time of a heartbeat that a group answered     + session timeout      then its session may have ended
    sending time of one answered while no rebalance ran,
    or while its request to join waited for the others    + rebalance timeout    then a barrier may have opened without it

Until it has its assignment, heartbeats extend the session alone: a member that does not ask for it in time is lost.

Invariants: a member owns nothing that another one may have been assigned, whatever answers are lost; an owner under a
cooperative assignor offers no other kind, so that no generation can be assigned as if its partitions were free; every owned
partition is claimed. Times are seconds of a monotonic clock. Source: Kafka's consumer coordinator, KIP-62, KIP-345, KIP-394,
KIP-792.
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

# Assignors that leave a partition with the member that claims it.
COOPERATIVE: Final = frozenset({"cooperative-sticky"})
# Upper bound of the margin, else a tenth of the timeout: for the way of an answer, and for a reader to stop.
MARGIN_S_MAX: Final = 2.0

NOTHING: Final[frozenset[TopicPartitionName]] = frozenset()


class MemberPhase(Enum):
    """Names where a member stands between two assignments."""

    OUT = auto()
    JOINING = auto()
    SYNCING = auto()
    STAYING = auto()


class Beat(NamedTuple):
    """Describes a heartbeat that was sent."""

    member_id: MemberId
    generation: Generation
    sent_s: float


class Heard(Enum):
    """Classifies the answer to a heartbeat."""

    NOTHING_NEW = auto()
    # The call that it waits for was answered, perhaps to no avail: the next heartbeat, soon, shows whether the answer is lost.
    CHECK_AGAIN = auto()
    JOIN_AGAIN = auto()
    # The coordinator does not know the call that waits: it is to be repeated.
    ASK_AGAIN = auto()
    # The stay has ended; the error says why.
    ENDED = auto()


class Moves(NamedTuple):
    """Holds what an assignment changes: first `revoked` is given up, then `assigned` is taken."""

    revoked: frozenset[TopicPartitionName]
    assigned: frozenset[TopicPartitionName]
    # Of topics that this member did not subscribe to, and does not take.
    strange: frozenset[TopicPartitionName] = NOTHING


class MemberState:
    """Tracks one member's phase, generation and owned partitions."""

    def __init__(self, settings: MemberSettings) -> None:
        self.phase = MemberPhase.OUT
        self.member_id = NO_MEMBER
        self.instance_id = InstanceId(settings.instance_id)
        self.generation = NO_GENERATION
        self.protocol = ""
        self.owned = NOTHING
        # The topics of the last request to join.
        self.topics: frozenset[str] = frozenset()
        self._settings = settings
        self._session_s = _shortened_s(settings.session_timeout_ms)
        self._rebalance_s = _shortened_s(settings.rebalance_timeout_ms)
        # The generation that assigned what is owned.
        self._owned_in = NO_GENERATION
        # What it owned in that generation until now: an eager assignor that is sticky leaves it where it was.
        self._given_up_to_join = NOTHING
        self._asked_s = 0.0
        # A heartbeat has shown that the request to join was answered.
        self._is_answered = False
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
        """Takes the id from the first answer to a new member."""
        self.member_id = MemberId(str(required.details.get("member_id", "")))

    def joined(self, answer: Joined) -> None:
        """Takes the answer to a join. Raises InconsistentProtocol for an assignor that this member has not offered."""
        if answer.protocol not in self._settings.assignors or (self.owned and answer.protocol not in COOPERATIVE):
            raise InconsistentProtocol(f"the group assigns by {answer.protocol!r}, which this member has not offered")
        heard_s = max(self._heard_s, self._asked_s)
        if answer.generation != self.generation:  # earlier answers belong to the barrier that it has passed
            self._no_rebalance_s = heard_s
        self._no_rebalance_s = max(self._no_rebalance_s, self._asked_s)
        self._heard_s = heard_s
        self.phase = MemberPhase.SYNCING
        self.member_id, self.generation, self.protocol = answer.member_id, answer.generation, answer.protocol

    def sync_request(self, assignments: dict[MemberId, bytes], *, now_s: float) -> SyncRequest:
        self._asked_s = now_s
        return SyncRequest(self.member_id, self.instance_id, self.generation, assignments, PROTOCOL_TYPE, self.protocol)

    def synced(self, answer: Synced) -> Moves:
        """Takes the assignment and returns what it changes. Raises InvalidArgument where it can't be read."""
        assigned = frozenset(
            (topic, number) for topic, numbers in decode_assignment(answer.assignment).items() for number in numbers
        )
        mine = frozenset((topic, number) for topic, number in assigned if topic in self.topics and number >= 0)
        self.phase = MemberPhase.STAYING
        self._owned_in, self._given_up_to_join = self.generation, NOTHING
        self._heard_s = max(self._heard_s, self._asked_s)
        self._no_rebalance_s = max(self._no_rebalance_s, self._asked_s)
        return Moves(self.owned - mine, mine - self.owned, assigned - mine)

    # ── what is owned ───────────────────────────────────────────────────────────────────────────────────────────────────

    def took(self, partitions: frozenset[TopicPartitionName]) -> None:
        self.owned |= partitions

    def gave_up(self, partitions: frozenset[TopicPartitionName]) -> None:
        if self.phase is not MemberPhase.STAYING or self.protocol not in COOPERATIVE:
            self._given_up_to_join |= partitions
        self.owned -= partitions

    def lost(self, why: Exception) -> frozenset[TopicPartitionName]:
        """Leaves the group, returns what was owned, and owns nothing. The id stays unless the group does not know it.

        So a process that was replaced under its instance id is fenced when it comes back, and does not fence its successor.
        """
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
        """Returns when another member may own what this one owns; infinity where it owns nothing."""
        return self.may_own_until_s if self.owned else float("inf")

    @property
    def may_own_until_s(self) -> float:
        """Returns when another member may own what the last assignment gave to this one."""
        return min(self._heard_s + self._session_s, self._no_rebalance_s + self._rebalance_s)

    @property
    def why_not_held(self) -> str:
        """Says which of the two bounds of `may_own_until_s` comes first."""
        if self._heard_s + self._session_s <= self._no_rebalance_s + self._rebalance_s:
            return "no answer of the group's coordinator came within the session timeout"
        return "the group has not completed its rebalance within the rebalance timeout"

    # ── heartbeats ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def beat(self, *, now_s: float) -> Beat | None:
        """Returns the heartbeat to send; None in no generation. A member that waits to join names its former one."""
        return None if self.generation == NO_GENERATION else Beat(self.member_id, self.generation, now_s)

    def answered(self, beat: Beat, error: TidelogError | None) -> Heard:
        if (beat.member_id, beat.generation) != (self.member_id, self.generation):
            return Heard.NOTHING_NEW  # it belongs to an earlier generation
        if error is None:
            self._heard_s = max(self._heard_s, beat.sent_s)
            if self._owned_in == self.generation:
                self._no_rebalance_s = max(self._no_rebalance_s, beat.sent_s)
            return Heard.ASK_AGAIN if self._join_should_be_known(beat) else Heard.NOTHING_NEW
        if isinstance(error, RebalanceInProgress):
            self._heard_s = max(self._heard_s, beat.sent_s)
            if self.phase is not MemberPhase.JOINING:
                return Heard.JOIN_AGAIN
            if error.details.get("waits"):  # no barrier opens without it, neither here nor elsewhere, for a rebalance timeout
                self._no_rebalance_s = max(self._no_rebalance_s, beat.sent_s)
                return Heard.NOTHING_NEW
            return Heard.ASK_AGAIN if self._join_should_be_known(beat) else Heard.NOTHING_NEW
        if (
            isinstance(error, StaleGeneration) and self.phase is MemberPhase.JOINING
        ):  # it has joined the next generation, and that answer has not arrived
            if not self._join_should_be_known(beat):
                return Heard.NOTHING_NEW
            was_answered, self._is_answered = self._is_answered, True
            return Heard.ASK_AGAIN if was_answered else Heard.CHECK_AGAIN
        return Heard.ENDED if isinstance(error, Fenced | Rejected) and not error.retryable else Heard.NOTHING_NEW

    def _join_should_be_known(self, beat: Beat) -> bool:
        """Returns whether the heartbeat was sent long enough after the request to join for the coordinator to know it."""
        return self.phase is MemberPhase.JOINING and beat.sent_s >= self._asked_s + self._settings.beat_ms / 1000


def _shortened_s(timeout_ms: int) -> float:
    timeout_s = timeout_ms / 1000
    return timeout_s - min(timeout_s / 10, MARGIN_S_MAX)
