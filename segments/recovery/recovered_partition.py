"""Assembles the state from which a partition's new leader starts, run by run. Pure.

    manifest   [ below compacted_to: epochs, producers, log start ]│
    runs       [ of footers: ignored                            ]  │[ must go on from here without a gap ]

Invariant: behind `compacted_to` the runs are those of the partition, each once, in the order of their offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, ProducerId, SessionId, TopicPartition
from segments.bucket.layout import segment_key
from segments.history.index import HistoryIndex
from segments.history.manifest import Manifest, no_manifest
from segments.partition.partition_log import PartitionLog
from segments.partition.producer_state import ProducerStates, SequencedBatch
from segments.settings import SegmentSettings
from segments.wal.run_index import RunIndex
from segments.wal.segment_file import Run, SegmentFooter


@dataclass(slots=True)
class RecoveredPartition:
    """Holds the state from which a partition's new leader starts."""

    partition: TopicPartition
    producers: ProducerStates
    manifest: Manifest
    # The topic's name; empty where manifests are not needed.
    topic: str = ""
    # Runs at or above `compacted_to`.
    runs: RunIndex = field(init=False)
    # Sessions that hold such runs; the others can be dropped from the state.
    sessions: set[SessionId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.producers.recall(self.manifest.producers)
        self.runs = self._no_runs(self.manifest.compacted_to)

    @property
    def end_offset(self) -> Offset:
        """Returns the offset behind the last run; without runs, the one behind what was compacted, or deleted."""
        return max(self.runs.end_offset or Offset(0), self.manifest.log_start_offset)

    @property
    def history(self) -> HistoryIndex | None:
        return HistoryIndex(self.manifest, self.topic) if self.manifest.version else None

    def log(self, leader_epoch: LeaderEpoch) -> PartitionLog:
        return PartitionLog(
            self.partition,
            leader_epoch=leader_epoch,
            log_start_offset=self.manifest.log_start_offset,
            end_offset=self.end_offset,
            producers=self.producers,
        )

    def is_compacted(self, run: Run) -> bool:
        return run.last_offset < self.manifest.compacted_to

    def is_next(self, run: Run) -> bool:
        """Returns whether the run continues the others. A gap does no harm below the log start."""
        expected = self.runs.end_offset or Offset(0)
        return run.base_offset == expected or expected < run.base_offset <= self.manifest.log_start_offset

    def take_in(self, footer: SegmentFooter, run: Run) -> None:
        """Adds the next run. Corrupt when it does not continue the partition."""
        key = segment_key(footer.session, footer.seq)
        if run.base_offset < self.manifest.compacted_to:
            wrong = f"offsets {run.base_offset} to {run.last_offset}, but {self.manifest.compacted_to} is compacted up to"
            raise Corrupt(f"{key}: {self.partition} holds {wrong}", key=key)
        if not self.is_next(run) and not self.runs:
            raise Corrupt(f"{key}: {self.partition} begins at offset {run.base_offset}; what came before is missing", key=key)
        if self.is_next(run) and run.base_offset != self.runs.end_offset:
            self.runs = self._no_runs(run.base_offset)
        self.runs.add(run, session=footer.session, seq=footer.seq)
        self.sessions.add(footer.session)
        for batch in footer.batches(run):
            self.producers.remember(
                SequencedBatch(
                    ProducerId(batch.producer_id),
                    batch.producer_epoch,
                    batch.base_sequence,
                    batch.last_sequence,
                    batch.base_offset,
                    batch.last_offset,
                    batch.max_timestamp,
                ),
                now_ms=footer.written_at_ms,
            )

    def close_up(self) -> None:
        """Continues at the next run, even if records below the log start are missing before it."""
        if self.end_offset != self.runs.end_offset:
            self.runs = self._no_runs(self.end_offset)

    def go_on_from(self, manifest: Manifest, topic: str) -> bool:
        """Adopts this manifest, and drops what was compacted since. Returns False where the state contradicts it."""
        if (self.runs.end_offset or 0) < manifest.compacted_to:
            return False
        self.manifest, self.topic = manifest, topic
        self.runs.drop_below(manifest.compacted_to)
        self.sessions = self.runs.sessions
        return True

    def _no_runs(self, start_offset: Offset) -> RunIndex:
        epochs = self.manifest.epochs
        return RunIndex(start_offset=start_offset, leader_epoch=epochs[-1].leader_epoch if epochs else -1)


def empty_partition(
    partition: TopicPartition, settings: SegmentSettings, *, manifest: Manifest | None = None, topic: str = ""
) -> RecoveredPartition:
    """Returns a partition without runs behind its manifest."""
    producers = ProducerStates(producers_max=settings.producers_per_partition_max, expiry_ms=settings.producer_expiry_ms)
    return RecoveredPartition(partition, producers, manifest or no_manifest(partition), topic)
