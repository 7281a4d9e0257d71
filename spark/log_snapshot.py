"""What partitions hold at a moment, as the bucket alone tells it: no broker is asked, and nothing is written.

    LIST wal/ ─▶ sessions ─▶ footers of what is not trimmed ─▶ runs ┐
                                        then: the manifests        ─┴▶ log start · [ Parquet ]│[ runs ] · end

Manifests are read last: what was trimmed before they are read lies below their `compacted_to`. Sessions are listed one after the
other, so a partition that moves meanwhile may show a gap where there is none; it is looked at again before it is told as damage.
Invariant: all that is in a snapshot is committed, without a gap, and stays so for the grace period.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from metadata.errors import Corrupt, TidelogError
from metadata.model import Offset, SegmentSeq, SessionId, TopicPartition
from segments.bucket_layout import WAL, end_of_session, parse_wal_key
from segments.history import History
from segments.manifest import Manifest, no_manifest
from segments.manifest_store import newest_manifests
from segments.object_store import ObjectStore
from segments.run_index import RunIndex
from segments.segment_file import Run
from segments.session_footers import read_session
from segments.shared_errors import first_of

SESSIONS_AT_ONCE: Final = 8
READS_MAX: Final = 32
LOOKS_MAX: Final = 3
PAUSE_S: Final = 0.2


class PlacedRun(NamedTuple):
    run: Run
    session: SessionId
    seq: SegmentSeq


class PartitionSnapshot(NamedTuple):
    topic: str
    partition: TopicPartition
    manifest: Manifest
    runs: RunIndex
    """Those at or above `compacted_to`."""
    damage: Corrupt | None = None
    """Why what comes behind the end can't be read."""

    @property
    def start_offset(self) -> Offset:
        return self.manifest.log_start_offset

    @property
    def end_offset(self) -> Offset:
        return max(self.runs.end_offset or Offset(0), self.start_offset)

    @property
    def history(self) -> History:
        return History(self.manifest, self.topic)

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition.partition}"


async def take_snapshot(store: ObjectStore, partitions: Mapping[TopicPartition, str]) -> dict[TopicPartition, PartitionSnapshot]:
    """Of each partition, with the name of its topic. Raises what the store raises."""
    found: dict[TopicPartition, PartitionSnapshot] = {}
    for look in range(LOOKS_MAX):
        wanted = {partition: topic for partition, topic in partitions.items() if partition not in found or found[partition].damage}
        found |= await _look(store, wanted)
        if not any(snapshot.damage for snapshot in found.values()):
            break
        await asyncio.sleep(PAUSE_S if look + 1 < LOOKS_MAX else 0)
    return {partition: found[partition] for partition in partitions}


async def _look(store: ObjectStore, partitions: Mapping[TopicPartition, str]) -> dict[TopicPartition, PartitionSnapshot]:
    turns = asyncio.Semaphore(SESSIONS_AT_ONCE)

    placed: dict[TopicPartition, list[PlacedRun]] = defaultdict(list)
    damaged: list[Corrupt] = []

    async def look_at(session: SessionId) -> None:
        async with turns:
            footers = await read_session(store, session, reads_max=READS_MAX)
        for footer in footers:
            if isinstance(footer, Corrupt):
                damaged.append(footer)
                continue
            for run in footer.runs:
                if run.partition in partitions:  # of the others nothing is kept
                    placed[run.partition].append(PlacedRun(run, footer.session, footer.seq))

    try:
        async with asyncio.TaskGroup() as looks:
            for session in await _sessions(store):
                looks.create_task(look_at(session))
    except* TidelogError as errors:
        raise first_of(errors) from errors
    manifests = await newest_manifests(store, partitions, reads_max=READS_MAX)
    return {
        partition: snapshot_of(topic, partition, manifests[partition] or no_manifest(partition), placed[partition], damaged)
        for partition, topic in partitions.items()
    }


async def _sessions(store: ObjectStore) -> list[SessionId]:
    """That have anything; each costs one object of a listing, however many segments it has."""
    sessions: list[SessionId] = []
    start_after = ""
    while (page := await store.list(WAL, start_after=start_after, limit=1)).objects:
        start_after = page.objects[0].key
        parsed = parse_wal_key(start_after)
        if parsed is not None:
            sessions.append(parsed.session)
            start_after = end_of_session(parsed.session)
    return sessions


def snapshot_of(
    topic: str, partition: TopicPartition, manifest: Manifest | Corrupt, placed: Iterable[PlacedRun], damaged: Sequence[Corrupt]
) -> PartitionSnapshot:
    """Pure: from what was read of a partition, up to the first gap."""
    if isinstance(manifest, Corrupt):
        return PartitionSnapshot(topic, partition, no_manifest(partition), RunIndex(start_offset=Offset(0)), manifest)
    epoch = manifest.epochs[-1].leader_epoch if manifest.epochs else -1
    runs = RunIndex(start_offset=manifest.compacted_to, leader_epoch=epoch)
    last: PlacedRun | None = None
    for found in sorted(placed, key=lambda found: (found.run.leader_epoch, found.session, found.seq)):
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
    told = f"{topic}: {error.message}; what is missing may have been here: {first.message}"
    return Corrupt(told, hint=first.hint, **first.details)


def _behind(topic: str, partition: TopicPartition, last: PlacedRun | None, damaged: Sequence[Corrupt]) -> Corrupt | None:
    """The first damaged segment that may hold records behind the last run: none that a later one follows."""
    for error in damaged:
        place = parse_wal_key(str(error.details.get("key", "")))
        if place is None or place.seq is None or last is None or (place.session, place.seq) > (last.session, last.seq):
            return Corrupt(
                f"{topic}/{partition.partition}: {error.message}; whether it holds records of this partition can't be told",
                hint=error.hint,
                **error.details,
            )
    return None
