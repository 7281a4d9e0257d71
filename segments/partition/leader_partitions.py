"""Which partitions a session leads, and which requests it takes for each of them. Pure.

                 served   paused: to be handed over   withheld: the handover was sent   damaged   dropped
    appends       yes              no                              no                     no        no
    reads         yes              yes                             no                     no        no

Invariant: a partition that is paused or withheld before it is led is so from the beginning.

A partition that this session leads: its state, and where its committed records lie on the bucket. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping
from dataclasses import dataclass

from metadata.errors import Corrupt, NoLeader
from metadata.model import TopicPartition
from segments.history.index import History
from segments.partition.partition_log import PartitionLog, check_epoch
from segments.shared_errors import own_copy
from segments.wal.run_index import NO_EPOCH_END, EpochEnd, RunIndex


class LeaderPartitions:
    def __init__(self, *, check_open: Callable[[], None]) -> None:
        """`check_open` raises where the session has ended: then it leads nothing, whatever is asked for."""
        self._check_open = check_open
        self._led: dict[TopicPartition, LeaderPartition] = {}
        self._damaged: dict[TopicPartition, Corrupt] = {}
        self._paused: set[TopicPartition] = set()
        self._withheld: set[TopicPartition] = set()

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._led

    def __len__(self) -> int:
        return len(self._led)

    def keys(self) -> KeysView[TopicPartition]:
        return self._led.keys()

    def copy(self) -> dict[TopicPartition, LeaderPartition]:
        return self._led.copy()

    @property
    def damaged(self) -> Mapping[TopicPartition, Corrupt]:
        """Those that are refused, and why."""
        return self._damaged

    def add(self, partition: TopicPartition, led: LeaderPartition) -> None:
        assert partition not in self._led, f"{partition} is led already"
        self._led[partition] = led

    def pause(self, partition: TopicPartition) -> None:
        self._paused.add(partition)

    def is_paused(self, partition: TopicPartition) -> bool:
        return partition in self._paused

    def withhold(self, partitions: Iterable[TopicPartition]) -> None:
        self._withheld.update(partitions)

    def resume(self, partition: TopicPartition) -> None:
        self._paused.discard(partition)
        self._withheld.discard(partition)

    def refuse(self, partition: TopicPartition, error: Corrupt) -> None:
        self._damaged[partition] = error

    def drop(self, partition: TopicPartition) -> LeaderPartition | None:
        """None where it was not led."""
        self._damaged.pop(partition, None)
        self.resume(partition)
        return self._led.pop(partition, None)

    def get(self, partition: TopicPartition) -> LeaderPartition | None:
        return self._led.get(partition)

    def at(self, partition: TopicPartition) -> LeaderPartition:
        """Raises NoLeader, Corrupt where it is damaged, and what `check_open` raises."""
        led = self._led.get(partition)
        if led is None:
            if partition in self._damaged:
                raise own_copy(self._damaged[partition])
            self._check_open()
            raise NoLeader(f"this broker does not lead {partition}")
        return led

    def writable(self, partition: TopicPartition) -> LeaderPartition:
        """As `at`, for a producer."""
        led = self.at(partition)
        if partition in self._paused:
            raise NoLeader(f"{partition} is being handed over to another broker")
        return led

    def readable(self, partition: TopicPartition) -> LeaderPartition:
        """As `at`, for a reader."""
        led = self.at(partition)
        if partition in self._withheld:
            raise NoLeader(f"{partition} is being handed over to another broker")
        return led


@dataclass(slots=True)
class LeaderPartition:
    log: PartitionLog
    runs: RunIndex
    """From `compacted_to` of the history on."""
    history: History | None = None
    """What is in Parquet, as of the newest manifest that is known here."""
    taken_at_s: float = 0.0
    committed_at_s: float = 0.0
    """On the loop's clock, of the newest segment with records of it that was committed here: when it got its first batch, and when
    it was committed. 0 before the first."""

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """Where the records of this epoch end, or of the largest below it that has any; of the present one, the high watermark.

        UnknownLeaderEpoch for one above the present: its leader knows, and it is not this one.
        """
        held = self.log.leader_epoch
        if leader_epoch > held:
            check_epoch(self.log.partition, held=held, current=leader_epoch)
        if leader_epoch == held:
            return EpochEnd(held, self.log.high_watermark)
        end = self.runs.end_of_epoch(leader_epoch)
        return self.history.end_of_epoch(leader_epoch) if end == NO_EPOCH_END and self.history is not None else end
