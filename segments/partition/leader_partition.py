"""A partition that this session leads: its state, and where its committed records lie on the bucket. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from segments.history.index import History
from segments.partition.partition_log import PartitionLog, check_epoch
from segments.wal.run_index import NO_EPOCH_END, EpochEnd, RunIndex


@dataclass(slots=True)
class LedPartition:
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
