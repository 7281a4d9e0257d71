"""Orders and numbers the batches of one partition on their way to its leader, and handles refused ones. Pure.

    add ──▶ open ──full, linger, flush──▶ closed ──numbered──▶ unanswered ──acknowledged──▶ settled
                                                                 ▲    │
                                                                 └────┘ refused, or the stream broke: once nothing of the
                                                                        queue is on the wire, all of them go again, in order

Invariants:
- batches leave in the order in which they were opened, with consecutive sequences (KIP-98);
- the newest batch sent lies fewer than five places behind the oldest unanswered one, so the broker, which remembers five
  batches of a producer, still knows the answer to each of them;
- a batch goes again with the sequences that it had, until it is certain that the broker does not have it;
- after a batch has failed for good, those behind it go on with sequences that the broker can take. Nothing is renumbered
  while it may be in the log: that would write it twice;
- a batch fails as "nothing was written" only where no attempt of it was left without an answer.

"Out of order" says only that a batch is not in the log now: bytes of a broken connection may still come, until the broker has seen
a newer epoch. But the broker takes a producer's batches only in sequence. So a batch in doubt can't come any more where the numbers
before it will never be filled: where no batch that has left the queue may still come itself. Then it is sent again, under a new
epoch; else it fails with an unknown outcome, and only batches that never lacked an answer are renumbered.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from metadata.errors import (
    OutcomeUnknown,
    OutOfOrderSequence,
    Throttled,
    TidelogError,
    Unavailable,
    UnknownPartition,
    UnknownProducer,
)
from tidelog.producer.batch import ProducerBatch
from tidelog.settings import ClientSettings
from tidelog.transport.routes import NO_LEADER_EPOCH, RoutePath

BATCHES_IN_FLIGHT_MAX: Final = 5
# Grace after the time limit that a batch gives the broker; then its silence counts as a broken stream.
ANSWER_GRACE_S: Final = 5.0
SEQUENCES: Final = 2**31
EPOCH_MAX: Final = 2**15 - 1
NO_PRODUCER: Final = (-1, -1)


class PartitionQueue:
    """The queue of one partition of one producer. Times are seconds of a monotonic clock, which the caller brings."""

    def __init__(self, topic: str, partition: int, *, way: RoutePath, topic_id: str, settings: ClientSettings) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        # To the broker that leads it, as far as is known.
        self.way = way
        # Of the newest leader that is known.
        self.leader_epoch = NO_LEADER_EPOCH
        self.open: ProducerBatch | None = None
        self.closed: deque[ProducerBatch] = deque()
        self.unanswered: deque[ProducerBatch] = deque()
        self.on_wire = 0
        # A batch was refused: nothing is sent until all answers on the wire are in.
        self.recovering = False
        self.retry_at_s = 0.0
        # A broker has refused a batch because the topic has no such partition, by the metadata store.
        self.is_unknown = False
        # What the last attempt met, or the last connection; for the message of a timeout.
        self.last_trouble: TidelogError | None = None
        # Another one when the leader has changed: the queue sends nothing more until all answers are in, and goes on there.
        self.next_way = way
        self.idempotent = settings.acks != "none"
        # Producer id and epoch; None where a new one is to be fetched before anything is sent.
        self.producer: tuple[int, int] | None = None if self.idempotent else NO_PRODUCER
        # Bytes of batches that left, for the owner of the buffer to take back.
        self.released_bytes = 0
        # Batches that failed, for the owner to take.
        self.failures: list[ProducerBatch] = []
        self._settings = settings
        self._next_sequence = 0
        self._next_index = 0
        # Whether the broker has taken a batch under the present producer id.
        self._acknowledged_once = False
        # A batch failed while it was unknown whether the broker has it; those behind it carry the numbers that follow.
        self._gap_is_possible = False
        # A batch that has left the queue, under the present epoch, had an attempt without an answer: its bytes may come late, and
        # behind it those of others that are in doubt.
        self._copies_may_come = False
        # The topic was recreated: as soon as nothing is on the wire, what belongs to the old one is left behind.
        self._leaves_topic = False

    # ── into the queue ──

    def roll(self, now_s: float) -> ProducerBatch:
        """Closes the open batch and opens the next."""
        self.close()
        self.open = ProducerBatch(self, opened_s=now_s, deadline_s=now_s + self._settings.delivery_timeout_ms / 1000)
        return self.open

    def close(self) -> None:
        """Closes the open batch: it may leave."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None

    @property
    def is_idle(self) -> bool:
        return self.open is None and not self.closed and not self.unanswered

    # ── onto the wire ──

    def next_batch(self, now_s: float) -> ProducerBatch | None:
        """Returns the batch that may leave now, numbered; None if there is none. Repeats it until `sent` is called."""
        if self.recovering or now_s < self.retry_at_s or self.producer is None:
            return None
        for batch in self.unanswered:
            if not batch.on_wire:
                return batch
        if self._window_is_full:
            return None
        if not self.closed:
            if self.open is None or (self.unanswered and now_s < self.leaves_at_s(self.open)):
                return None
            self.close()
        batch = self.closed.popleft()
        batch.index = self._next_index
        self._next_index += 1
        self._number(batch)
        self.unanswered.append(batch)
        return batch

    def leaves_at_s(self, batch: ProducerBatch) -> float:
        return batch.opened_s + self._settings.linger_ms / 1000

    def wakes_at_s(self) -> float | None:
        """Returns when `next_batch` may have a batch without a new record or answer; None for never."""
        if self.recovering or self.producer is None:
            return None
        if any(not batch.on_wire for batch in self.unanswered) or (self.closed and not self._window_is_full):
            return self.retry_at_s
        if self.open is not None and not self._window_is_full:
            return max(self.retry_at_s, self.leaves_at_s(self.open) if self.unanswered else self.open.opened_s)
        return None

    def is_overdue(self, now_s: float) -> bool:
        """Returns whether the broker has not answered within the time limit, so its stream counts as broken."""
        return any(batch.on_wire and batch.deadline_s + ANSWER_GRACE_S <= now_s for batch in self.unanswered)

    @property
    def _window_is_full(self) -> bool:
        return bool(self.unanswered) and self._next_index - self.unanswered[0].index >= BATCHES_IN_FLIGHT_MAX

    def sent(self, batch: ProducerBatch) -> None:
        """Marks a batch as sent. The caller does so before the first byte goes out."""
        batch.on_wire, batch.refusal = True, None
        self.on_wire += 1

    def identify(self, producer_id: int, producer_epoch: int) -> None:
        """Takes a fresh producer id or epoch; what is unanswered begins again at sequence 0 under it."""
        self.producer = (producer_id, producer_epoch)
        self._next_sequence = 0
        self._acknowledged_once = self._gap_is_possible = self._copies_may_come = False
        for batch in self.unanswered:
            self._number(batch)

    def topic_recreated(self, topic_id: str, now_s: float) -> None:
        """Handles a topic that was deleted and recreated: producer and sequences start again.

        What may be in the old topic fails, as soon as no answer is awaited any more: the new one can't tell. What certainly is in
        neither goes to the new one.
        """
        self.topic_id, self.leader_epoch, self.is_unknown = topic_id, NO_LEADER_EPOCH, False
        if self.idempotent:
            self._leaves_topic = self.recovering = True
            self._recover_when_quiet(now_s)

    # ── answers ──

    def acknowledged(self, batch: ProducerBatch, base_offset: int, now_s: float) -> None:
        if not batch.on_wire:
            return  # the queue was abandoned meanwhile: the batch has failed with an unknown outcome
        self._off_wire(batch)
        self.unanswered.remove(batch)
        self.released_bytes += batch.bytes
        self._acknowledged_once, self._gap_is_possible, self.last_trouble, self.is_unknown = True, False, None, False
        self._copies_may_come |= batch.maybe_written
        batch.succeed(base_offset)
        if self.recovering:
            self._recover_when_quiet(now_s)

    def refused(self, batch: ProducerBatch, error: TidelogError, now_s: float) -> None:
        """Handles a failed attempt: an answer of the broker, or a broken stream."""
        if not batch.on_wire:
            return  # as above
        self._off_wire(batch)
        batch.refusal = self.last_trouble = error
        batch.refusals += 1
        self.is_unknown |= isinstance(error, UnknownPartition)
        batch.maybe_written |= not error.nothing_was_written
        if self.idempotent:
            self.recovering = True
            self._recover_when_quiet(now_s)
        else:
            self.unanswered.remove(batch)
            self._give_up(batch, error)

    def expire(self, now_s: float) -> None:
        """Fails what is past its deadline. A batch on the wire stays in its place until its answer is in."""
        for batch in self.unanswered:
            if batch.deadline_s > now_s:
                break
            if batch.on_wire and not batch.settled:
                self._settle_failed(batch, self._timed_out(batch))
        if self.unanswered and self.unanswered[0].deadline_s <= now_s:
            self._recover_when_quiet(now_s)
        if self.open is not None and self.open.deadline_s <= now_s:
            self.close()
        while self.closed and self.closed[0].deadline_s <= now_s:
            batch = self.closed.popleft()
            self._give_up(batch, self._timed_out(batch))

    def abandon(self, error: TidelogError) -> None:
        """Fails everything that is left. Later answers for it are ignored."""
        self.close()
        for batch in [*self.unanswered, *self.closed]:
            unknown = batch.on_wire or batch.maybe_written
            batch.on_wire = False
            self._give_up(batch, OutcomeUnknown(error.message) if unknown else error)
        self.unanswered.clear()
        self.closed.clear()
        self.on_wire, self.recovering, self._leaves_topic = 0, False, False
        if self.idempotent:
            self.producer = None  # it stays unknown whether the broker has what was on the wire: later batches start a new sequence

    # ── what becomes of refused batches ──

    def _recover_when_quiet(self, now_s: float) -> None:
        if self.on_wire:
            return
        self.recovering = False
        if self._leaves_topic:
            self._leave_topic()
        while self.unanswered:
            head = self.unanswered[0]
            if head.settled or head.deadline_s <= now_s:
                self._drop_head(self._timed_out(head))
            elif head.refusal is None:
                return  # not tried since it was numbered: it goes as it is
            elif isinstance(head.refusal, OutOfOrderSequence):
                self._mend_sequence(head, head.refusal)
                return
            elif head.refusal.retryable:
                self.retry_at_s = now_s + self._pause_s(head)
                for batch in self.unanswered:
                    batch.refusal = None
                return
            else:
                self._drop_head(head.refusal)

    def _drop_head(self, error: TidelogError) -> None:
        """Gives up the oldest batch. Those behind it move up where that is safe, or keep their numbers until the broker tells."""
        head = self.unanswered.popleft()
        self._give_up(head, self._with_doubt(head, error))
        if head.maybe_written:
            self._gap_is_possible = self._copies_may_come = True
            return
        if any(batch.maybe_written for batch in self.unanswered):
            # Bytes of theirs may still be on their way under the old numbers, which must not be given away. Without the head's,
            # which is never sent again, the broker takes none of them.
            self._begin_epoch()
            return
        # The broker does not have it, so it can't have any that came behind it: they take its numbers.
        self._next_sequence = head.base_sequence
        for batch in self.unanswered:
            self._number(batch)

    def _mend_sequence(self, head: ProducerBatch, refusal: OutOfOrderSequence) -> None:
        """Mends the sequence when the broker expects another one than the oldest batch has, or does not know the producer."""
        forgotten = isinstance(refusal, UnknownProducer)
        proven_unwritten = self._gap_is_possible and not (forgotten and self._acknowledged_once)
        if proven_unwritten or self._settings.acks == "leader":
            pass  # the gap is one that we know of, or one that this setting allows
        elif forgotten:
            # It expired while we were silent. The outcome of batches in doubt at that time stays unknown.
            self._give_up_in_doubt(
                f"the broker forgot producer {self._producer_id} before it could say whether it has these records"
            )
        else:
            # Acknowledged batches before it are missing at the broker: say so, and do not go on as if nothing was.
            self.unanswered.popleft()
            self._give_up(head, self._with_doubt(head, refusal))
        if self._copies_may_come:
            self._give_up_in_doubt("the broker does not have these records, but an earlier connection may still bring them")
        self._begin_epoch()

    def _leave_topic(self) -> None:
        self._leaves_topic = False
        self._give_up_in_doubt("the topic was deleted and created again before a broker could say whether it has these records")
        for batch in self.unanswered:
            if isinstance(batch.refusal, OutOfOrderSequence) or (batch.refusal is not None and batch.refusal.retryable):
                batch.refusal = None  # it was about the old topic
        self.producer, self.retry_at_s = None, 0.0

    # ── small steps ──

    def _begin_epoch(self) -> None:
        """Numbers the unanswered batches again, under the next epoch (KIP-360).

        None of these batches is in the log, or may still come under its old numbers. Bytes of batches that have left may come: the
        broker refuses them once it has seen the new epoch. A new producer id would not fence them. One is fetched only when the
        epochs are used up.
        """
        if self.producer is None or self.producer[1] == EPOCH_MAX:
            for batch in self.unanswered:
                batch.maybe_written, batch.refusal = False, None
            self.producer = None
        else:
            self.identify(self.producer[0], self.producer[1] + 1)

    def _number(self, batch: ProducerBatch) -> None:
        batch.refusal = None
        batch.maybe_written = False
        if self.idempotent:
            batch.base_sequence = self._next_sequence
            self._next_sequence = (self._next_sequence + batch.record_count) % SEQUENCES

    def _off_wire(self, batch: ProducerBatch) -> None:
        batch.on_wire = False
        self.on_wire -= 1

    def _pause_s(self, head: ProducerBatch) -> float:
        if isinstance(head.refusal, Throttled):
            return head.refusal.retry_after_s
        doubled = self._settings.retry_pause_ms * (1 << min(head.refusals - 1, 16))
        return min(doubled, self._settings.retry_pause_ms_max) / 1000

    def _give_up(self, batch: ProducerBatch, error: TidelogError) -> None:
        self.released_bytes += batch.bytes
        self._settle_failed(batch, error)

    def _give_up_in_doubt(self, doubt: str) -> None:
        """Fails what may be in the log, or may still get there."""
        for batch in [batch for batch in self.unanswered if batch.maybe_written]:
            self.unanswered.remove(batch)
            self._give_up(
                batch, OutcomeUnknown(f"{self._subject(batch)}: {doubt}", hint="Read the topic, and send what is missing.")
            )

    def _with_doubt(self, batch: ProducerBatch, error: TidelogError) -> TidelogError:
        """Returns the error of the last attempt, or OutcomeUnknown if another attempt may have written the batch."""
        if not batch.maybe_written or not error.nothing_was_written:
            return error
        return OutcomeUnknown(f"{self._subject(batch)} may be in the log by an earlier attempt; the last one met: {error}")

    def _settle_failed(self, batch: ProducerBatch, error: TidelogError) -> None:
        if not batch.settled:
            self.failures.append(batch)
            batch.fail(error)

    def _timed_out(self, batch: ProducerBatch) -> TidelogError:
        last = f"; the last attempt met: {self.last_trouble}" if self.last_trouble is not None else ""
        what = f"{self._subject(batch)} had no acknowledgement within {self._settings.delivery_timeout_ms:g} ms"
        if batch.on_wire or batch.maybe_written:
            return OutcomeUnknown(what + last)
        return Unavailable(f"{what}, and never reached the log{last}")

    def _subject(self, batch: ProducerBatch) -> str:
        return f"{self.way.address}: {batch.record_count} record(s) for {self.topic}/{self.partition}"

    @property
    def _producer_id(self) -> int:
        return self.producer[0] if self.producer is not None else -1
