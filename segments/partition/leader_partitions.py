"""The partitions that a session leads, and which requests it takes for each of them. Pure.

                 served   paused: to be handed over   reads stopped: the handover was sent   damaged   removed
    appends       yes              no                                 no                       no        no
    reads         yes              yes                                no                       no        no

Invariant: a partition that is paused, or whose reads are stopped, before the session leads it is so from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping
from dataclasses import dataclass

from metadata.errors import Corrupt, NoLeader
from metadata.model import LeaderEpoch, TopicPartition
from segments.history.index import HistoryIndex
from segments.partition.partition_log import NO_EPOCH, Bounds, PartitionLog, check_epoch
from segments.shared_errors import copy_of
from segments.wal.run_index import NO_EPOCH_END, EpochEnd, RunIndex


class LeaderPartitions:
    """Holds the partitions that one session leads. Requests look a partition up by purpose: `at`, `readable` or `writable`."""

    def __init__(
        self, *, check_open: Callable[[], None], changed: Callable[[TopicPartition], None] = lambda partition: None
    ) -> None:
        """`check_open` raises where the session has ended: then it leads nothing. `changed` is called with each partition for which
        `at` or `readable` answer differently from now on. It must not block."""
        self._check_open = check_open
        self._changed = changed
        self._led: dict[TopicPartition, LeaderPartition] = {}
        self._damaged: dict[TopicPartition, Corrupt] = {}
        self._paused: set[TopicPartition] = set()
        self._without_reads: set[TopicPartition] = set()

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._led

    def __len__(self) -> int:
        return len(self._led)

    def keys(self) -> KeysView[TopicPartition]:
        return self._led.keys()

    def bounds(self, partition: TopicPartition) -> Bounds:
        """Returns the bounds as they are known here; readers get those of ReadPath.bounds_of. Raises as `at`."""
        return self.at(partition).log.bounds

    def copy(self) -> dict[TopicPartition, LeaderPartition]:
        return self._led.copy()

    @property
    def damaged(self) -> Mapping[TopicPartition, Corrupt]:
        """Returns the partitions that the session cannot lead, with the error of each."""
        return self._damaged

    def add(self, partition: TopicPartition, led: LeaderPartition) -> None:
        assert partition not in self._led, f"{partition} is led already"
        self._led[partition] = led
        self._changed(partition)

    def pause(self, partition: TopicPartition) -> None:
        """Takes no more batches for a partition that is to be handed over, not even if the session leads it only later.

        Readers are served as before, until the partition is removed or resumed.
        """
        self._paused.add(partition)

    def is_paused(self, partition: TopicPartition) -> bool:
        return partition in self._paused

    def stop_reads(self, partitions: Iterable[TopicPartition]) -> None:
        """Serves no readers of paused partitions either, until they are removed or resumed.

        From now on another broker may lead them, and commit records that are not known here.
        """
        for partition in partitions:
            self._without_reads.add(partition)
            self._changed(partition)

    def resume(self, partition: TopicPartition) -> None:
        """Takes batches and serves readers again."""
        self._paused.discard(partition)
        self._without_reads.discard(partition)
        self._changed(partition)

    def mark_damaged(self, partition: TopicPartition, error: Corrupt) -> None:
        """Answers every request for a partition that the session can't lead with what is wrong with it."""
        self._damaged[partition] = error
        self._changed(partition)

    def remove(self, partition: TopicPartition) -> LeaderPartition | None:
        """Returns the partition, or None where the session did not lead it."""
        self._damaged.pop(partition, None)
        led = self._led.pop(partition, None)
        self.resume(partition)
        return led

    def get(self, partition: TopicPartition) -> LeaderPartition | None:
        return self._led.get(partition)

    def at(self, partition: TopicPartition) -> LeaderPartition:
        """Raises NoLeader, Corrupt where it is damaged, and what `check_open` raises."""
        led = self._led.get(partition)
        if led is None:
            if partition in self._damaged:
                raise copy_of(self._damaged[partition])
            self._check_open()
            raise NoLeader(f"this broker does not lead {partition}")
        return led

    def writable(self, partition: TopicPartition) -> LeaderPartition:
        """Returns the partition as `at` does, for a producer."""
        led = self.at(partition)
        if partition in self._paused:
            raise NoLeader(f"{partition} is being handed over to another broker")
        return led

    def readable(self, partition: TopicPartition) -> LeaderPartition:
        """Returns the partition as `at` does, for a reader."""
        led = self.at(partition)
        if partition in self._without_reads:
            raise NoLeader(f"{partition} is being handed over to another broker")
        return led


@dataclass(slots=True)
class LeaderPartition:
    """Holds the state of a partition that this session leads, and where its committed records are on the bucket."""

    log: PartitionLog
    # Runs from `compacted_to` of the history on.
    runs: RunIndex
    # Records in Parquet, by the newest manifest that is known here.
    history: HistoryIndex | None = None
    # On the loop's clock, of the newest segment with records of the partition that was committed here: when it got its first batch,
    # and when it was committed. 0 before the first.
    taken_at_s: float = 0.0
    committed_at_s: float = 0.0

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Returns the epoch of the leader that wrote the record at this offset; the present one at and above the high watermark.

        -1 where it is not known, as below the log start.
        """
        if offset >= self.log.high_watermark:
            return self.log.leader_epoch
        if self.history is not None and offset < self.history.compacted_to:
            return self.history.epoch_at(offset)
        run = self.runs.find(offset)
        return NO_EPOCH if run is None else run.leader_epoch

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """Returns where the records of this epoch end, or of the largest below it that has any; the high watermark for the present.

        An epoch below all that have records ended where the log starts, as in Kafka: a reader that began at the first offset of an
        empty log, in that epoch, goes on there.

        Raises UnknownLeaderEpoch for an epoch above the present one: only its leader knows.
        """
        held = self.log.leader_epoch
        if leader_epoch > held:
            check_epoch(self.log.partition, held=held, current=leader_epoch)
        if leader_epoch == held:
            return EpochEnd(held, self.log.high_watermark)
        end = self.runs.end_of_epoch(leader_epoch)
        if end == NO_EPOCH_END and self.history is not None:
            end = self.history.end_of_epoch(leader_epoch)
        if end == NO_EPOCH_END and leader_epoch >= 0:
            return EpochEnd(LeaderEpoch(leader_epoch), self.log.log_start_offset)
        return end
