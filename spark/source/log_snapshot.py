"""Takes snapshots of partitions from the bucket alone: no broker is asked, and nothing is written.

    new segments' footers (segments/wal) ─▶ runs ┐
                           then: the manifests  ─┴▶ log start · [ Parquet ]│[ runs ] · end

A batch query lists once; a stream keeps what it knows, and each refresh brings that up to date. Manifests are read last: data
trimmed before that lies below their `compacted_to`. Sessions are listed one after the other, so a partition that moves
meanwhile may show a gap where there is none; it is looked at again before it is reported as damage.
Invariant: all that is in a snapshot is committed, without a gap, and stays so for the grace period.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from metadata.errors import Corrupt, NotFound
from metadata.model import Offset, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import parse_wal_key
from segments.history.index import HistoryIndex
from segments.history.manifest import Manifest, no_manifest
from segments.history.manifest_store import newest_manifests
from segments.object_store.interface import ObjectInfo, ObjectStore
from segments.wal.known_sessions import KnownSession
from segments.wal.run_index import RunIndex
from segments.wal.scanner import WalScanner
from segments.wal.segment_file import Run, SegmentFooter
from segments.wal.session_listing import ListedSession
from segments.wal.session_reader import read_segment

# Reads at the same time: of manifests, and of the footers of a session.
READS_MAX: Final = 32
SESSIONS_AT_ONCE: Final = 8
LISTINGS_MAX: Final = 3
PAUSE_S: Final = 0.2


class SegmentRun(NamedTuple):
    """A run of a partition, with the segment that holds it."""

    run: Run
    session: SessionId
    seq: SegmentSeq


class PartitionSnapshot(NamedTuple):
    """The content of a partition at a moment."""

    topic: str
    partition: TopicPartition
    manifest: Manifest
    # Runs at or above `compacted_to`.
    runs: RunIndex
    # Why records behind the end can't be read; None if nothing is damaged.
    damage: Corrupt | None = None

    @property
    def start_offset(self) -> Offset:
        return self.manifest.log_start_offset

    @property
    def end_offset(self) -> Offset:
        return max(self.runs.end_offset or Offset(0), self.start_offset)

    @property
    def history(self) -> HistoryIndex:
        return HistoryIndex(self.manifest, self.topic)

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition.partition}"


async def take_snapshot(store: ObjectStore, partitions: Mapping[TopicPartition, str]) -> dict[TopicPartition, PartitionSnapshot]:
    """Takes a snapshot of each partition; the mapping gives their topics' names. Raises what the store raises."""
    return await LogFollower(store).poll(partitions)


class LogFollower:
    """Remembers the runs of the partitions that it is asked for, from `compacted_to` on, and their manifests."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._begin()

    def _begin(self, partitions: frozenset[TopicPartition] = frozenset()) -> None:
        self._followed = partitions
        self._scanner = WalScanner(self._store, self, reads_max=READS_MAX, sessions_at_once=SESSIONS_AT_ONCE)
        # Segments that are gone, or whose footer can't be read. They are read again at each refresh.
        self._damaged: dict[tuple[SessionId, SegmentSeq], Corrupt] = {}
        # Whether a segment was trimmed before it was read: a newer manifest tells what it held.
        self._missed = False
        self._segment_runs: dict[TopicPartition, list[SegmentRun]] = defaultdict(list)
        self._manifests: dict[TopicPartition, Manifest | Corrupt] = {}
        # Those that are still as the bucket was at the last refresh, but for damage that was found since.
        self._snapshots: dict[TopicPartition, PartitionSnapshot] = {}
        # Damage that was looked at often enough.
        self._logged: set[str] = set()

    async def poll(
        self, partitions: Mapping[TopicPartition, str], *, manifests: bool = True
    ) -> dict[TopicPartition, PartitionSnapshot]:
        """Returns a current snapshot of each partition; the mapping gives their topics' names.

        `manifests` False: reads only the manifests that are needed. Raises what the store raises.
        """
        if not partitions.keys() <= self._followed:  # of others nothing was kept
            self._begin(frozenset(partitions))
        for attempt in range(LISTINGS_MAX):
            await self._read_damaged_again()
            await self._scanner.poll(now_ms=time.monotonic_ns() // 1_000_000, late=manifests or attempt > 0)
            wanted = partitions.keys() - (self._manifests.keys() if not (manifests or attempt or self._missed) else set())
            if wanted:
                await self._read_manifests({partition: partitions[partition] for partition in wanted})
                self._missed = False
            found = {partition: self._snapshot(topic, partition) for partition, topic in partitions.items()}
            damage = {str(snapshot.damage) for snapshot in found.values() if snapshot.damage}
            if damage <= self._logged:
                break
            await asyncio.sleep(PAUSE_S if attempt + 1 < LISTINGS_MAX else 0)
        self._logged = damage
        return found

    def listed(self, session: KnownSession, listed: ListedSession) -> None:
        """Does nothing: manifests tell what became of trimmed segments."""

    def trimmed(self, session: KnownSession, to: SegmentSeq) -> None:
        self._missed = self._missed or to > session.known_to

    def take_in(self, session: KnownSession, info: ObjectInfo | None, footer: SegmentFooter | Corrupt) -> None:
        if isinstance(footer, Corrupt):
            self._damaged[session.session, session.known_to] = footer
        else:
            self._add_runs(footer)

    async def _read_damaged_again(self) -> None:
        """Reads damaged segments again: one may have been restored, or compacted from a copy and trimmed."""
        for session, seq in tuple(self._damaged):
            try:
                footer = await read_segment(self._store, session, seq)
            except NotFound:
                continue
            except Corrupt as error:
                self._damaged[session, seq] = error
                continue
            del self._damaged[session, seq]
            if footer is None:
                self._missed = True
            else:
                self._add_runs(footer)

    def _add_runs(self, footer: SegmentFooter) -> None:
        for run in footer.runs:
            if run.partition in self._followed:
                self._segment_runs[run.partition].append(SegmentRun(run, footer.session, footer.seq))
                self._snapshots.pop(run.partition, None)

    async def _read_manifests(self, partitions: Mapping[TopicPartition, str]) -> None:
        known = {partition: manifest for partition, manifest in self._manifests.items() if isinstance(manifest, Manifest)}
        for partition, newest in (await newest_manifests(self._store, partitions, known=known, reads_max=READS_MAX)).items():
            manifest = newest or no_manifest(partition)
            if manifest is self._manifests.get(partition):
                continue
            self._manifests[partition] = manifest
            self._snapshots.pop(partition, None)
            if isinstance(manifest, Manifest):
                kept = [each for each in self._segment_runs[partition] if each.run.last_offset >= manifest.compacted_to]
                self._segment_runs[partition] = kept

    def _snapshot(self, topic: str, partition: TopicPartition) -> PartitionSnapshot:
        held = self._snapshots.get(partition)
        if held is not None and not self._damaged:
            return held
        damaged = [self._damaged[key] for key in sorted(self._damaged)]
        found = snapshot_of(topic, partition, self._manifests[partition], self._segment_runs[partition], damaged)
        if not damaged:
            self._snapshots[partition] = found
        return found


def snapshot_of(
    topic: str,
    partition: TopicPartition,
    manifest: Manifest | Corrupt,
    segment_runs: Iterable[SegmentRun],
    damaged: Sequence[Corrupt],
) -> PartitionSnapshot:
    """Builds the snapshot of a partition from what was read, up to the first gap. Pure."""
    if isinstance(manifest, Corrupt):
        return PartitionSnapshot(topic, partition, no_manifest(partition), RunIndex(start_offset=Offset(0)), manifest)
    epoch = manifest.epochs[-1].leader_epoch if manifest.epochs else -1
    runs = RunIndex(start_offset=manifest.compacted_to, leader_epoch=epoch)
    last: SegmentRun | None = None
    for found in sorted(segment_runs, key=lambda found: (found.run.leader_epoch, found.session, found.seq)):
        run = found.run
        if run.last_offset < manifest.compacted_to:
            continue
        if (runs.end_offset or 0) < run.base_offset <= manifest.log_start_offset:
            runs = RunIndex(start_offset=run.base_offset, leader_epoch=epoch)  # what is missing in between was deleted
        try:
            runs.add(run, session=found.session, seq=found.seq)
        except Corrupt as error:
            return PartitionSnapshot(topic, partition, manifest, runs, _gap(topic, error, damaged))
        last = found
    return PartitionSnapshot(topic, partition, manifest, runs, _behind(topic, partition, last, damaged))


def _gap(topic: str, error: Corrupt, damaged: Sequence[Corrupt]) -> Corrupt:
    if not damaged:
        return error
    first = damaged[0]
    what = f"{topic}: {error.message}; what is missing may have been here: {first.message}"
    return Corrupt(what, hint=first.hint, **first.details)


def _behind(topic: str, partition: TopicPartition, last: SegmentRun | None, damaged: Sequence[Corrupt]) -> Corrupt | None:
    """Returns the first damaged segment that may hold records behind the last run; None if a later run follows each."""
    for error in damaged:
        parsed = parse_wal_key(str(error.details.get("key", "")))
        if parsed is None or parsed.seq is None or last is None or (parsed.session, parsed.seq) > (last.session, last.seq):
            return Corrupt(
                f"{topic}/{partition.partition}: {error.message}; it may hold records of this partition",
                hint=error.hint,
                **error.details,
            )
    return None
