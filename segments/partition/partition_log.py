"""Assigns offsets: the state of one partition at its leader. Pure.

    log_start_offset ── committed, readable ──▶ high_watermark ── buffered or in flight ──▶ end_offset (assigned next)

Invariants: offsets are assigned densely in arrival order; the high watermark only rises, and only to the end of a committed
segment; the log start only rises, and never above it; a batch that is refused changes nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from metadata.errors import ConditionFailed, FencedLeaderEpoch, InvalidTimestamp, OutOfRange, UnknownLeaderEpoch
from metadata.model import NO_PRODUCER, LeaderEpoch, Offset, ProducerId, TopicPartition
from segments.partition.producer_state import ProducerRoom, ProducerStates, SequencedBatch
from segments.records.header import BatchHeader

# Of a record whose leader epoch is not known.
NO_EPOCH: Final = LeaderEpoch(-1)


class Appended(NamedTuple):
    """Locates an appended batch. It is final once committed; before, it is the leader's plan."""

    base_offset: Offset
    last_offset: Offset
    leader_epoch: LeaderEpoch
    # An idempotent repeat: these are the offsets of the first time.
    duplicate: bool = False
    # The time that the leader gave the records of a topic with log append time, for a repeat the first time. -1: they have their
    # producer's, or the time of the first append is not known here.
    log_append_time_ms: int = -1


class TimestampPolicy(NamedTuple):
    """Holds the topic's settings for timestamps of records."""

    # LogAppendTime: they are dated when they are appended.
    by_broker: bool = False
    # A new batch with a record of a later date is refused; None: whatever the date.
    timestamp_ms_max: int | None = None


AS_PRODUCED = TimestampPolicy()


class Bounds(NamedTuple):
    """Holds the offsets and the epoch of a partition at one moment."""

    log_start_offset: Offset
    high_watermark: Offset
    end_offset: Offset
    leader_epoch: LeaderEpoch
    # Of the record at the log start, or of the next one where there is no record; NO_EPOCH where the answer does not say.
    log_start_epoch: LeaderEpoch = NO_EPOCH


class PartitionLog:
    """Assigns offsets to batches, and tracks what is committed."""

    def __init__(
        self,
        partition: TopicPartition,
        *,
        leader_epoch: LeaderEpoch,
        log_start_offset: Offset,
        end_offset: Offset,
        producers: ProducerStates,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.log_start_offset = log_start_offset
        self.high_watermark = end_offset
        self.end_offset = end_offset
        self._producers = producers

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.log_start_offset, self.high_watermark, self.end_offset, self.leader_epoch)

    def append(
        self,
        header: BatchHeader,
        *,
        now_ms: int,
        expires_ms: int | None = None,
        expected_offset: int | None = None,
        timestamp_ms_max: int | None = None,
    ) -> Appended:
        """Assigns the offsets of a checked batch, or names those of the batch that it repeats.

        `header`: as it is stored, so with the time of this append in a topic with log append time. `expires_ms`: the time by which
        producers are forgotten; `now_ms` where it is left out.

        Raises InvalidTimestamp when a record is dated after `timestamp_ms_max`, ConditionFailed when `expected_offset` is given and
        is not the end, and what ProducerStates.check raises.
        """
        producer_id, last_sequence = ProducerId(header.producer_id), header.last_sequence
        repeated = self._producers.check(
            producer_id=producer_id,
            epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            last_sequence=last_sequence,
            now_ms=now_ms if expires_ms is None else expires_ms,
            high_watermark=self.high_watermark,
        )
        if repeated is not None:
            first_ms = repeated.max_timestamp if header.log_append_time else -1
            return Appended(
                repeated.base_offset, repeated.last_offset, self.leader_epoch, duplicate=True, log_append_time_ms=first_ms
            )
        if timestamp_ms_max is not None and header.max_timestamp > timestamp_ms_max:
            raise dated_too_far_ahead(self.partition, header.max_timestamp, timestamp_ms_max)
        if expected_offset is not None and expected_offset != self.end_offset:
            raise ConditionFailed(
                f"{self.partition} ends at offset {self.end_offset}, not at {expected_offset}",
                hint="Read what was appended meanwhile, then try again with the new end.",
                end_offset=self.end_offset,
            )
        base = self.end_offset
        last = Offset(base + header.last_offset_delta)
        self.end_offset = Offset(last + 1)
        if producer_id != NO_PRODUCER:
            sequenced = SequencedBatch(
                producer_id, header.producer_epoch, header.base_sequence, last_sequence, base, last, header.max_timestamp
            )
            self._producers.remember(sequenced, now_ms=now_ms)
        dated_ms = header.max_timestamp if header.log_append_time else -1
        return Appended(base, last, self.leader_epoch, log_append_time_ms=dated_ms)

    def enter(self, room: ProducerRoom) -> None:
        """Counts the remembered producers for this room, until `leave`."""
        self._producers.enter(room)

    def leave(self) -> None:
        self._producers.leave()

    def written_once(self, producer_id: ProducerId, *, now_ms: int) -> SequencedBatch | None:
        """Returns the one batch of a one-shot producer in this partition, committed or in flight; None if there is none."""
        return self._producers.written_once(producer_id, now_ms=now_ms)

    def commit(self, *, base_offset: Offset, last_offset: Offset) -> None:
        """Raises the high watermark over a run of a committed segment; runs come in offset order."""
        assert base_offset == self.high_watermark, f"{self.partition}: run at {base_offset}, high watermark {self.high_watermark}"
        self.high_watermark = Offset(last_offset + 1)

    def raise_log_start(self, offset: Offset) -> None:
        """Raises the log start to `offset`, but at most to the high watermark.

        Records that are not known to be committed here were not deleted; the log start is raised again once they are.
        """
        self.log_start_offset = max(self.log_start_offset, min(offset, self.high_watermark))

    def check_epoch(self, current: int | None) -> None:
        """Checks the epoch as the function does; None, from a reader that names no epoch, is not checked."""
        if current is not None:
            check_epoch(self.partition, held=self.leader_epoch, current=current)

    def check_readable(self, offset: int) -> None:
        """Raises OutOfRange unless a reader may stand at `offset`; the high watermark itself is where it waits for more."""
        if not self.log_start_offset <= offset <= self.high_watermark:
            first, end = self.log_start_offset, self.high_watermark
            holds = f"holds offsets {first} to {end - 1}" if first < end else f"holds no record, and goes on at offset {end}"
            raise OutOfRange(
                f"{self.partition} {holds}; {offset} was asked for",
                hint=f"Read from {self.log_start_offset} (earliest) or {self.high_watermark} (latest).",
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
            )


def dated_too_far_ahead(partition: TopicPartition, timestamp_ms: int, timestamp_ms_max: int) -> InvalidTimestamp:
    return InvalidTimestamp(
        f"a record for {partition} is dated {timestamp_ms} ms, {timestamp_ms - timestamp_ms_max} ms later than its topic takes now",
        timestamp_ms=timestamp_ms,
        timestamp_ms_max=timestamp_ms_max,
    )


def check_epoch(partition: TopicPartition, *, held: LeaderEpoch, current: int) -> None:
    """Checks that the leader of epoch `held` may answer a reader that knows the leader epoch `current` (KIP-320).

    Raises FencedLeaderEpoch where the reader is behind, and UnknownLeaderEpoch where the leader is: another broker leads, and may
    have committed more.
    """
    if current < held:
        raise FencedLeaderEpoch(f"{partition} is led in epoch {held}; the reader names epoch {current}", leader_epoch=held)
    if current > held:
        raise UnknownLeaderEpoch(f"{partition} is led here in epoch {held}; the reader names epoch {current}", leader_epoch=held)
