"""Tracks how far each partition of a batch is, and selects what is sent to it next. Pure.

    staged, in order   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ ████████ ░░░░░░░░░░░░░░░
                       written         in flight  waiting        one request at a time, of several record batches

What an earlier attempt has sent, the brokers tell: they answer a repeat as the first time, as long as it is one of the last five of
the producer, and refuse an older one with the sequence that comes next. Since the same record batches have the same sequences
whichever attempt sends them, that is always where one of them begins, and the partition goes on there.

As long as a partition has not answered, it may have forgotten the producer, and takes its sequence 0 a second time then. So nothing
is sent there once the batch is older than brokers remember producers (delivery.py).

Invariant: record batches of a partition are sent in order, none behind one whose outcome is not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from metadata.errors import (
    Corrupt,
    Fenced,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    Rejected,
    TidelogError,
    UnknownProducer,
)
from segments.object_store.interface import Buffer
from segments.records.header import BatchHeader
from spark.sink.staged_files import StagedPartition


class StagedBatch(NamedTuple):
    """A record batch, as it was staged."""

    batch: Buffer
    header: BatchHeader
    # Records of the partition before it: its sequence.
    first: int
    file: int

    @property
    def end(self) -> int:
        return self.first + self.header.record_count


class ForgottenError(OutcomeUnknown):
    """Brokers may have forgotten what an earlier attempt wrote: to send it again could double it."""

    retryable = False


class PartitionProgress:
    """The progress of one partition of a batch: which batches wait, which are in flight, which are written."""

    def __init__(self, where: StagedPartition, records: int) -> None:
        """`records`: how many records the batch has for the partition."""
        self.where = where
        self.records = records
        # Records that are in the topic for certain.
        self.written = 0
        # Whether the broker has reported how far the partition is.
        self.is_known = False
        # Record batches in flight.
        self.in_flight = 0
        # The error of the last request, if it has to be sent again.
        self.refusal: TidelogError | None = None
        self.waiting: deque[StagedBatch] = deque()
        self._staged = 0

    @property
    def is_done(self) -> bool:
        return self.written == self.records

    @property
    def is_ready(self) -> bool:
        return bool(self.waiting) and not self.in_flight

    def pass_over(self, records: int) -> None:
        """Skips records that are in the topic already and are not staged."""
        self._staged += records
        assert self._staged <= self.written

    def stage(self, batch: Buffer, header: BatchHeader, file: int) -> bool:
        """Stages the next record batch of the partition. Returns False if it is in the topic already."""
        part = StagedBatch(batch, header, self._staged, file)
        self._staged = part.end
        if part.end <= self.written:
            return False
        if part.first < self.written:
            raise self._foreign(self.written)
        self.waiting.append(part)
        return True

    def take(self, bytes_max: int, parts_max: int) -> list[StagedBatch]:
        """Takes what is sent next: at least one record batch."""
        assert self.is_ready
        taken: list[StagedBatch] = []
        size = 0
        for part in self.waiting:
            if taken and (size + len(part.batch) > bytes_max or len(taken) == parts_max):
                break
            taken.append(part)
            size += len(part.batch)
        self.in_flight = len(taken)
        return taken

    def answered(self, outcomes: Sequence[TidelogError | None]) -> list[StagedBatch]:
        """Takes in the answers to what was taken, in order; gives back what is in the topic now.

        Raises what sending again would not mend: Rejected, Fenced, ForgottenError, Corrupt.
        """
        sent, self.in_flight, self.refusal = self.in_flight, 0, None
        assert len(outcomes) == sent
        before = len(self.waiting)
        settled: list[StagedBatch] = []
        for outcome in outcomes:
            if outcome is None:
                settled.append(self.waiting.popleft())
                self.written = settled[-1].end
                self.is_known = True
                continue
            settled += self._refused(outcome)
            break  # what comes behind it in the request was not written, or is recognised when it comes again
        assert before - len(self.waiting) == len(settled)
        return settled

    def _refused(self, error: TidelogError) -> list[StagedBatch]:
        if isinstance(error, UnknownProducer):
            raise ForgottenError(
                f"{self.where}: its leader has forgotten who writes there, after {self.written} of {self.records} rows: "
                f"{error.message}",
                hint=_FORGOTTEN_HINT,
            )
        if isinstance(error, OutOfOrderSequence) and isinstance(expected := error.details.get("expected_sequence"), int):
            return self._go_on_at(expected)
        if isinstance(error, ProducerFenced):
            raise Fenced(
                f"{self.where}: a later batch of this query was written there: {error.message}",
                hint="Another run of the same query goes on: stop one of them. Or the checkpoint was set back: begin a new one.",
            )
        if not error.retryable:
            raise error
        self.refusal = error
        return []

    def _go_on_at(self, expected: int) -> list[StagedBatch]:
        """Continues at the sequence that another attempt has reached."""
        if expected < self.written:
            raise Corrupt(
                f"{self.where}: {self.written} rows of this batch were acknowledged, and its leader knows of {expected}",
                hint="Look into the topic with `tidelog bucket verify`; nothing more is written.",
            )
        settled: list[StagedBatch] = []
        while self.waiting and self.waiting[0].end <= expected:
            settled.append(self.waiting.popleft())
        if expected > self.records or (self.waiting and self.waiting[0].first < expected):
            raise self._foreign(expected)
        self.written = expected
        self.is_known = True
        return settled

    def _foreign(self, expected: int) -> Rejected:
        return Rejected(
            f"{self.where}: sequence {expected} comes next of this producer, and no staged record batch begins there",
            hint="Something else writes under the producer ids of this query. Begin a new checkpoint, or another writeId.",
        )


_FORGOTTEN_HINT = (
    "Brokers forget producers after producer_expiry_ms, or where more than producers_per_partition_max write: "
    "look at the end of the topic for what is there already."
)
