"""Queues the batches of one partition that another broker leads, with at most one message in flight. Decides, and sends nothing.

    add ─▶ waiting ─▶ take: in flight ─▶ answered ─▶ settled
              ▲                            ├─ not led there any more: back to the front, in order
              ▲                            └─ refused for good: settled, with the later batches of its client's message. The leader
              │                               stops at the first refusal, so later batches of other clients go again, unless the
              │                               refusal concerns its own producer alone
              └──────── lost: no answer came; repeatable batches go back to the front. The others settle as OutcomeUnknown, and so
                        do the later batches of their client's message: these must not be written without those before them ──┘

Nothing else of the queue is in flight, so nothing overtakes a batch that goes back to the front. After a lost answer, a batch with
a producer id and sequence may go to the next leader: if the former leader wrote it, the next one has found it on the bucket and
recognises it. From then on its failure is always OutcomeUnknown, because the lost attempt may have written it.

Invariants: batches leave in the order in which they were added. A batch without a producer id is sent once. Each is settled once.
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
from segments.log.append_result import UnverifiedRejection, was_written_before
from segments.log.session_log import Acks, PendingAppend
from segments.object_store.interface import Buffer
from segments.partition.partition_log import Appended, TimestampPolicy
from segments.records.header import BatchHeader


@dataclass(slots=True)
class MessageRoom:
    """Bounds the message that is being composed; all its batches have the same acks.

    `waits` is True if its producers wait for the commit (acks=all); the first batch decides it.
    """

    bytes_left: int
    appends_left: int
    waits: bool | None = None
    taken: int = field(default=0)

    def has_room(self, append: ForwardedAppend) -> bool:
        """Returns whether the batch fits; the first always does, whatever its size."""
        if self.waits is not None and (append.acks is Acks.ALL) != self.waits:
            return False
        return not self.taken or (self.appends_left > 0 and append.header.size <= self.bytes_left)

    def take(self, append: ForwardedAppend) -> None:
        self.waits = append.acks is Acks.ALL
        self.bytes_left -= append.header.size
        self.appends_left -= 1
        self.taken += 1


class ForwardQueue:
    """Holds the batches of one partition until its leader has decided them.

    `sent` is the message in flight and `sent_to` the session of its leader. `refusal` is the reason why the batches still wait.
    After `pause_s`, at `retry_at_s` on the loop's clock, the forwarder looks up the leader again.
    """

    def __init__(self, partition: TopicPartition, settle: Callable[[ForwardedAppend, Outcome], None]) -> None:
        """`settle` delivers the outcome of a batch to its waiter, and releases its bytes."""
        self.partition = partition
        self.sent: list[ForwardedAppend] = []
        self.sent_to = SessionId(0)
        self.refusal: TidelogError | None = None
        self.pause_s = 0.0
        self.retry_at_s = 0.0
        self._settle_with = settle
        self._waiting: deque[ForwardedAppend] = deque()
        self._messages: dict[int, MessageGroup] = {}

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self.sent

    def add(self, append: ForwardedAppend, key: object) -> None:
        """Queues a batch. `key` is the same object for all batches of one client's message."""
        message = self._messages.get(id(key))
        if message is None:
            message = self._messages[id(key)] = MessageGroup(key)
        message.appends.append(append)
        message.undecided += 1
        append.message = message
        self._waiting.append(append)

    def first(self, now_s: float) -> ForwardedAppend | None:
        """Returns the next batch to send. Drops batches without a waiter, and settles those whose deadline has passed."""
        while self._waiting:
            append = self._waiting[0]
            if append.outcome.done():
                self._waiting.popleft()
            elif append.deadline_s <= now_s:
                reason = self.refusal if self.refusal is not None and self.refusal.nothing_was_written else None
                self.refuse(append, append.overdue() if append.in_doubt or reason is None else reason)
            else:
                return append
        return None

    def pop(self) -> None:
        """Removes the batch that `first` returned."""
        self._waiting.popleft()

    def take(self, now_s: float, space: MessageRoom, leader: SessionId) -> list[ForwardedAppend]:
        """Moves the batches that fit into the next message in flight, until `answered` or `lost`, and returns them."""
        assert not self.sent, "one message at a time"
        while (append := self.first(now_s)) is not None and space.has_room(append):
            self._waiting.popleft()
            space.take(append)
            append.is_sent = True
            self.sent.append(append)
        self.sent_to = leader
        return self.sent

    def answered(self, outcomes: Sequence[Appended | TidelogError]) -> TidelogError | None:
        """Settles decided batches and requeues the rest. Returns the error of a leader that no longer leads, else None."""
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
                again.append(append)  # the leader stopped at an earlier refusal
        self._waiting.extendleft(reversed(again))
        self._refuse([(append, append.lost() if append.in_doubt else error) for append, error in refused])
        return refusal

    def lost(self, error: OutcomeUnknown) -> TidelogError | None:
        """Requeues or settles the message whose answer was lost. Returns the error if batches must be sent again, else None.

        Settles also the waiting batches of a request of which a batch may be missing: only its first batch has `expected_offset`.
        """
        sent, self.sent = self.sent, []
        again: list[ForwardedAppend] = []
        unknown: list[tuple[ForwardedAppend, TidelogError]] = []
        for append in sent:
            append.is_sent = False
            if append.is_repeatable:
                append.in_doubt = True
                again.append(append)
            else:
                unknown.append((append, error))
        self._waiting.extendleft(reversed(again))
        self._refuse(unknown)
        return error if again else None

    def refuse(self, refused: ForwardedAppend, error: TidelogError) -> None:
        """Refuses the batch for good, and with it the batches of its message that are not in flight."""
        self._refuse([(refused, error)])

    def _refuse(self, refused: Sequence[tuple[ForwardedAppend, TidelogError]]) -> None:
        """Settles each batch with its own error first: several of one message may have been refused by one answer."""
        messages = [(append.message, error) for append, error in refused]
        for append, error in refused:
            self.settle(append, error)
        for message, error in messages:
            if was_written_before(error):
                continue
            assert message is not None, "a queued batch has a group"
            for append in message.appends:
                if not append.outcome.done() and not append.is_sent:
                    self.settle(append, append.lost() if append.in_doubt else error)

    def refuse_all(self, error: TidelogError) -> None:
        """Refuses all waiting batches; those in flight await their answer."""
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            if not append.outcome.done():
                self.settle(append, append.lost() if append.in_doubt else error)

    def settle(self, append: ForwardedAppend, outcome: Outcome) -> None:
        """Delivers the outcome of a batch and removes it from its group."""
        message = append.message
        if message is not None:
            append.message = None
            message.undecided -= 1
            if not message.undecided:
                self._messages.pop(id(message.key), None)
        self._settle_with(append, outcome)


# Errors of a broker that does not lead, or no longer leads: nothing was written, and another broker may lead.
NOT_LED: Final = (NoLeader, NotLeader, SessionFenced, Stopping)
# Refusals for a reason of the producer itself: its sequence, clock, routing or API key.
_PRODUCER_ERRORS: Final = (OutOfOrderSequence, UnknownProducer, ProducerFenced, InvalidTimestamp, StaleRouting, Unauthenticated)
# Outcome for a producer that does not wait (acks=none).
NOT_AWAITED: Final = Appended(Offset(-1), Offset(-1), LeaderEpoch(-1))


def refuses_alone(error: TidelogError) -> bool:
    """Returns whether a leader goes on with later batches of the message after this refusal.

    It does if the reason lies with the batch's own producer: later batches of that producer fail for the same reason, and those of
    other producers in the message are unaffected.
    """
    return isinstance(error.rejection if isinstance(error, UnverifiedRejection) else error, _PRODUCER_ERRORS)


# The answer of the leader, or the append at this broker if it became the leader while the batch waited.
Outcome = Appended | PendingAppend | TidelogError


class MessageGroup:
    """Groups the batches of one client's message in a queue: when one is refused for good, the later ones are as well."""

    __slots__ = ("appends", "key", "undecided")

    def __init__(self, key: object) -> None:
        """`key` is the same object for all batches of one message, and for no others."""
        self.key = key
        self.appends: list[ForwardedAppend] = []
        self.undecided = 0


class ForwardedAppend:
    """Holds a batch for a partition that another broker leads, and the future of its outcome.

    `continues` is as in SessionLog.append. `bytes_charged` of the buffer are charged to the leader `charged_to`. `is_sent` is True
    while the batch is in flight. `in_doubt` is True once an answer was lost: the batch may be in the log, and goes again only if
    its leader recognises it. The queue sets `message`.
    """

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
        """`key_id` is the id of the client's API key; a leader that knows of its revocation refuses the batch."""
        self.partition = partition
        self.batch = batch
        self.header = header
        self.acks = acks
        self.deadline_s = deadline_s
        self.expected_offset = expected_offset
        self.dates = dates
        self.key_id = key_id
        self.continues = continues
        self.message: MessageGroup | None = None
        self.bytes_charged = bytes_charged
        self.charged_to = charged_to
        self.is_sent = False
        self.in_doubt = False
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    @property
    def is_repeatable(self) -> bool:
        """Returns whether leaders write the batch once however often it is sent: it has a producer id and a sequence."""
        return self.header.producer_id != NO_PRODUCER

    def overdue(self) -> TidelogError:
        """Returns the error of a batch that no leader took before its deadline."""
        return self.lost() if self.in_doubt else NoLeader(f"no leader of {self.partition} took the records in time")

    def lost(self) -> OutcomeUnknown:
        """Returns the error of a batch whose leader may have written it."""
        return OutcomeUnknown(f"records for {self.partition} were forwarded to its leader, which has not answered in time")
