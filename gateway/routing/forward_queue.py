"""The batches of one partition that are not led here: in order, one message on its way at a time. Decides, and sends nothing.

    add ─▶ waiting ─▶ take: on their way ─▶ answered ─▶ settled
              ▲                                ├─ not led there any more: back to the front, in order
              ▲                                └─ refused for good: settled, with what is behind it of its client's message;
              │                                   what came behind it of others was not looked at, and goes again, unless the
              │                                   batch was refused alone, for its producer's sequence or clock
              └──────────── lost: no answer came; what a leader recognises goes back to the front, the rest is told ──┘

Since nothing else of the queue is on its way, what goes back to the front was overtaken by nothing. A batch with a producer id and a
sequence may go to the next leader after its answer was lost: were it written before, that leader has found it on the bucket, and
says so. From then on its failure is told as an unknown outcome, whatever a leader says, since it may have been written before that.

Invariants: batches leave in the order of their coming; what could be written twice is sent once; each is settled once.

A batch for a partition that is not led here, and what becomes of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from metadata.errors import (
    InvalidTimestamp,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    SessionFenced,
    StaleRouting,
    Stopping,
    TidelogError,
    Unauthenticated,
    UnknownProducer,
)
from metadata.model import NO_PRODUCER, LeaderEpoch, Offset, SessionId, TopicPartition
from segments.log.append_result import UnverifiedRejection
from segments.log.session_log import Acks, PendingAppend
from segments.object_store.interface import Buffer
from segments.partition.partition_log import Appended, TimestampPolicy
from segments.records.header import BatchHeader


@dataclass(slots=True)
class MessageRoom:
    """What is left of the message that is put together. All in it are to be answered at the same time."""

    bytes_left: int
    appends_left: int
    # For the commit. None: whatever comes first decides.
    waits: bool | None = None
    taken: int = field(default=0)

    def has_room(self, append: ForwardedAppend) -> bool:
        """The first always has, whatever its size."""
        if self.waits is not None and (append.acks is Acks.ALL) != self.waits:
            return False
        return not self.taken or (self.appends_left > 0 and append.header.size <= self.bytes_left)

    def take(self, append: ForwardedAppend) -> None:
        self.waits = append.acks is Acks.ALL
        self.bytes_left -= append.header.size
        self.appends_left -= 1
        self.taken += 1


class ForwardQueue:
    def __init__(self, partition: TopicPartition, settle: Callable[[ForwardedAppend, Outcome], None]) -> None:
        """`settle` tells the outcome of a batch to whoever waits for it, and gives its room back."""
        self.partition = partition
        self.sent: list[ForwardedAppend] = []
        """The message on its way."""
        self.sent_to = SessionId(0)
        self.refusal: TidelogError | None = None
        """Why the batches still wait."""
        self.pause_s = 0.0
        self.retry_at_s = 0.0
        """When it is looked again who leads, where nobody took them."""
        self._settle_with = settle
        self._waiting: deque[ForwardedAppend] = deque()
        self._messages: dict[int, MessageGroup] = {}

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self.sent

    def add(self, append: ForwardedAppend, of: object) -> None:
        """`of`: the client's message that it belongs to."""
        message = self._messages.get(id(of))
        if message is None:
            message = self._messages[id(of)] = MessageGroup(of)
        message.appends.append(append)
        message.undecided += 1
        append.message = message
        self._waiting.append(append)

    def first(self, now_s: float) -> ForwardedAppend | None:
        """What is to go next. Those that nobody waits for any more, or that nobody took in time, are let go."""
        while self._waiting:
            append = self._waiting[0]
            if append.outcome.done():
                self._waiting.popleft()
            elif append.deadline_s <= now_s:
                told = self.refusal if self.refusal is not None and self.refusal.nothing_was_written else None
                self.refuse(append, append.overdue() if append.in_doubt or told is None else told)
            else:
                return append
        return None

    def pop(self) -> None:
        self._waiting.popleft()

    def take(self, now_s: float, space: MessageRoom, leader: SessionId) -> list[ForwardedAppend]:
        """What goes with the next message, if anything: it is on its way from now on, until `answered` or `lost`."""
        assert not self.sent, "one message at a time"
        while (append := self.first(now_s)) is not None and space.has_room(append):
            self._waiting.popleft()
            space.take(append)
            append.is_sent = True
            self.sent.append(append)
        self.sent_to = leader
        return self.sent

    def answered(self, outcomes: Sequence[Appended | TidelogError]) -> TidelogError | None:
        """Settles what was decided. Why the rest has to be sent again, where it has because of the leader."""
        sent, self.sent = self.sent, []
        again: list[ForwardedAppend] = []
        refused: list[tuple[ForwardedAppend, TidelogError]] = []
        refusal: TidelogError | None = None
        for append, outcome in zip(sent, outcomes, strict=True):
            append.is_sent = False
            if not isinstance(outcome, TidelogError) or not outcome.nothing_was_written:
                self.settle(append, outcome)
            elif isinstance(outcome, NOT_LED):
                refusal = outcome
                again.append(append)
            elif not refused or refuses_alone(outcome):
                refused.append((append, outcome))
            else:
                again.append(append)  # it was not looked at, since the one before it was refused
        self._waiting.extendleft(reversed(again))
        self._refuse([(append, append.lost() if append.in_doubt else error) for append, error in refused])
        return refusal

    def lost(self, error: OutcomeUnknown) -> TidelogError | None:
        """No answer came. Why there is something to be sent again, where there is."""
        sent, self.sent = self.sent, []
        again: list[ForwardedAppend] = []
        for append in sent:
            append.is_sent = False
            if append.is_repeatable:
                append.in_doubt = True
                again.append(append)
            else:
                self.settle(append, error)
        self._waiting.extendleft(reversed(again))
        return error if again else None

    def refuse(self, refused: ForwardedAppend, error: TidelogError) -> None:
        """Refuses the batch for good, and with it those behind it of its message that are not on their way."""
        self._refuse([(refused, error)])

    def _refuse(self, refused: Sequence[tuple[ForwardedAppend, TidelogError]]) -> None:
        """Settles each batch with its own error first: several of one message may have been refused by one answer."""
        messages = [(append.message, error) for append, error in refused]
        for append, error in refused:
            self.settle(append, error)
        for message, error in messages:
            assert message is not None, "it is in this queue"
            for append in message.appends:
                if not append.outcome.done() and not append.is_sent:
                    self.settle(append, append.lost() if append.in_doubt else error)

    def refuse_all(self, error: TidelogError) -> None:
        """What is on its way is left to its answer."""
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            if not append.outcome.done():
                self.settle(append, append.lost() if append.in_doubt else error)

    def settle(self, append: ForwardedAppend, outcome: Outcome) -> None:
        message = append.message
        if message is not None:
            append.message = None
            message.undecided -= 1
            if not message.undecided:
                self._messages.pop(id(message.of), None)
        self._settle_with(append, outcome)


# Errors of a broker that does not lead, or leads no more: nothing was written, and another may lead by now.
NOT_LED: Final = (NoLeader, NotLeader, SessionFenced, Stopping)
_OF_ITS_PRODUCER: Final = (OutOfOrderSequence, UnknownProducer, ProducerFenced, InvalidTimestamp, StaleRouting, Unauthenticated)
# What a producer learns that does not wait (acks=none).
NOT_AWAITED: Final = Appended(Offset(-1), Offset(-1), LeaderEpoch(-1))


def refuses_alone(error: TidelogError) -> bool:
    """Returns whether the batches behind the refused one are looked at nevertheless. That is so where the reason lies with its own
    producer: its sequence, clock, routing or API key. Later batches of that producer are refused for the same reason, and those
    of other producers, which share the message, are not concerned."""
    return isinstance(error.rejection if isinstance(error, UnverifiedRejection) else error, _OF_ITS_PRODUCER)


# The leader's answer, or the append of this broker, where it came to lead the partition while the batch waited.
Outcome = Appended | PendingAppend | TidelogError


class MessageGroup:
    """The batches of one client's message that wait for one partition. When one is refused for good, those behind it are, too."""

    __slots__ = ("appends", "of", "undecided")

    def __init__(self, of: object) -> None:
        """`of`: whatever is the same for batches of one message, and for no others."""
        self.of = of
        self.appends: list[ForwardedAppend] = []
        self.undecided = 0


class ForwardedAppend:
    __slots__ = (
        "acks",
        "batch",
        "bytes_charged",
        "charged_to",
        "continues",
        "dates",
        "deadline_s",
        "expected_offset",
        "header",
        "in_doubt",
        "is_sent",
        "key_id",
        "message",
        "outcome",
        "partition",
    )

    def __init__(
        self,
        partition: TopicPartition,
        batch: Buffer,
        header: BatchHeader,
        *,
        acks: Acks,
        deadline_s: float,
        expected_offset: int | None,
        dates: TimestampPolicy,
        bytes_charged: int,
        charged_to: str,
        key_id: str = "",
        continues: bool = False,
    ) -> None:
        """`key_id`: of the API key that the client has shown. A leader that knows that it was revoked refuses the batch."""
        self.partition = partition
        self.batch = batch
        self.header = header
        self.acks = acks
        self.deadline_s = deadline_s
        self.expected_offset = expected_offset
        self.dates = dates
        self.key_id = key_id
        self.continues = continues
        """As in SessionLog.append."""
        self.message: MessageGroup | None = None
        """Set by the queue that it waits in."""
        self.bytes_charged = bytes_charged
        self.charged_to = charged_to
        self.is_sent = False
        """On its way to a leader, now."""
        self.in_doubt = False
        """It was sent, and no answer came: it may be in the log. Only what its leader recognises is sent again then."""
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    @property
    def is_repeatable(self) -> bool:
        """Whether a leader takes it once, however often it is sent: it has a producer id and a sequence."""
        return self.header.producer_id != NO_PRODUCER

    def overdue(self) -> TidelogError:
        """What to tell where nobody took it in time."""
        return self.lost() if self.in_doubt else NoLeader(f"no leader of {self.partition} took the records in time")

    def lost(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"records for {self.partition} were forwarded to its leader, which has not answered in time")
