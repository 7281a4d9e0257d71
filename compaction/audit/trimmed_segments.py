"""Compares what lies below the trim markers with the manifests: a marker says that manifests name all of it. Pure.

    session 7    [ 0 ][ 1 ][ 2 ][ 3 ]  trimmed-4      records of orders/0 up to offset 79
    manifest of orders/0                              compacted_to 40: offsets 40 to 79 are in no manifest

A marker is created after the manifests. On a copy of a bucket, or a replica that lags, it may have arrived before them. Brokers
would begin such a partition at an older offset, and give its offsets to other records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from compaction.audit.findings import RestoreFinding
from metadata.model import LeaderEpoch, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import trimmed_key
from segments.wal.segment_file import SegmentFooter
from segments.wal.session_listing import ListedSession


@dataclass(slots=True)
class TrimmedRuns:
    """Offsets [start, end) of a partition in the segments below the trim point of one session, and their highest epoch."""

    start: int
    end: int
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class TrimmedSession:
    """Holds what is left below the trim point of a session: of the segments that are not deleted, or that an index describes."""

    session: SessionId
    trimmed_to: SegmentSeq
    # From here on no segment is missing up to the trim point.
    readable_from: SegmentSeq
    # All trim markers of the session, in ascending order.
    markers: tuple[SegmentSeq, ...]
    runs: dict[TopicPartition, TrimmedRuns] = field(default_factory=dict)

    @classmethod
    def of(cls, listed: ListedSession) -> TrimmedSession:
        return cls(listed.session, listed.trimmed_to, listed.readable_from(), tuple(sorted(listed.markers)))

    @property
    def marker(self) -> str:
        """Returns the key of the newest marker, which counts."""
        return trimmed_key(self.session, self.trimmed_to)

    def take_in(self, footer: SegmentFooter) -> None:
        """Adds a footer of the session."""
        for run in footer.runs:
            held = self.runs.get(run.partition)
            if held is None:
                self.runs[run.partition] = TrimmedRuns(run.base_offset, run.last_offset + 1, run.leader_epoch)
            else:
                held.start, held.end = min(held.start, run.base_offset), max(held.end, run.last_offset + 1)
                held.leader_epoch = max(held.leader_epoch, run.leader_epoch)


def without_manifest(
    sessions: Iterable[TrimmedSession], compacted_to: Callable[[TopicPartition], int | None]
) -> Iterator[RestoreFinding]:
    """Returns a finding for each session with records below its trim point that no manifest has.

    `compacted_to` returns how far the newest manifest of a partition reaches, 0 if there is none; None if its records do not count.
    """
    for found in sorted(sessions, key=lambda session: session.session):
        lacking: list[tuple[TopicPartition, int, int]] = []
        for partition, runs in sorted(found.runs.items()):
            reached = compacted_to(partition)
            if reached is not None and runs.end > reached:
                lacking.append((partition, max(runs.start, reached), runs.end))
        if lacking:
            yield RestoreFinding("damage", found.marker, _what(found, lacking))


def _what(found: TrimmedSession, lacking: list[tuple[TopicPartition, int, int]]) -> str:
    partition, start, end = lacking[0]
    where = f"{partition}" if len(lacking) == 1 else f"{len(lacking)} partitions, the first {partition}"
    what = (
        f"it says that all segments below are in Parquet, and no manifest has offsets {start} to {end - 1} of {where}: manifests "
        "are missing, or are older than the marker. Restore them"
    )
    if found.readable_from == found.trimmed_to:
        return f"{what}; the last segments below the marker are gone"
    what += f". If they are lost, rename the marker to {trimmed_key(found.session, found.readable_from)}"
    others = [marker for marker in found.markers if found.readable_from < marker < found.trimmed_to]
    if others:
        what += f" and delete {', '.join(trimmed_key(found.session, marker) for marker in others)}"
    return f"{what}: then these records are read from segments {found.readable_from} to {found.trimmed_to - 1} of the session"
