"""Reads a bucket for a restore: seals the sessions, then reads their footers, topics' mirrors, the newest snapshot, and manifests.

Manifests are read last, so a segment that was trimmed before its footer was read lies below `compacted_to` of its manifest.

Invariant: a session cannot grow after it was read, because it is sealed first. So a broker that still runs, or starts later, adds
nothing that the restored metadata would lack. A dry run seals nothing, and may see less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from compaction.audit.findings import RestoreFinding
from compaction.audit.trimmed_segments import TrimmedSession
from metadata.backup.snapshot import Snapshot, parse_snapshot
from metadata.errors import Corrupt, NotFound, OutcomeUnknown, Rejected, Unavailable
from metadata.model import Revision, SegmentSeq, SessionId, TopicPartition
from metadata.retry import RetryPauses, retry
from metadata.store.interface import KeyValue
from metadata.store.keys import KeyLayout
from metadata.topics.topic import Topic, decode_topic
from segments.bucket.layout import (
    SNAPSHOTS,
    TOPICS,
    SnapshotPosition,
    TopicIncarnation,
    end_of_topic,
    parse_snapshot_key,
    parse_topic_key,
    segment_key,
    topic_mirror_key,
)
from segments.bucket.topic_catalog import TopicRecords
from segments.concurrency import gather_all
from segments.history.manifest import Manifest
from segments.history.manifest_store import newest_manifests
from segments.object_store.interface import ObjectStore, list_all
from segments.wal.session import committed_in, list_objects, seal, session_after
from segments.wal.session_listing import ListedSession
from segments.wal.session_reader import read_below_trim_point, read_committed
from tidelog.bucket.restore_plan import Evidence, FooterTally, MirroredTopic

SESSIONS_AT_ONCE = 4
# Segments of a session whose footers are in memory at the same time.
FOOTERS_AT_ONCE = 4096
FOOTER_READS_MAX = 8
MIRROR_READS_MAX = 16
SEAL_TIMEOUT_S = 60.0
ATTEMPTS_MAX = 5
PAUSE_S = 1.0

T = TypeVar("T")
# Called with the name of the present step, the number of finished items, and the number of all items.
Advance = Callable[[str, int, int], None]


@dataclass(slots=True)
class Found:
    """The evidence on the bucket, and what reading it did and met.

    `sealed_now` counts the sessions that were open; a dry run would seal them. `damaged` lists the segments whose footers cannot be
    read, so that their records are unknown.
    """

    evidence: Evidence
    sealed_now: int = 0
    damaged: list[RestoreFinding] = field(default_factory=list)


async def read_evidence(
    bucket: ObjectStore, cluster_id: str, layout: KeyLayout, *, now_ms: Callable[[], int], dry_run: bool, advance: Advance
) -> Found:
    """Seals and reads the sessions of the bucket, then the rest of the evidence. Damage is part of the result.

    Raises Unavailable or Denied if the bucket cannot be read or sealed.
    """
    sessions = await _sessions(bucket)
    found = Found(Evidence(cluster_id, sessions))
    await _read_sessions(bucket, sessions, found, now_ms=now_ms, dry_run=dry_run, advance=advance)
    named = [(parse_snapshot_key(found.key), found.key) async for found in list_all(bucket, SNAPSHOTS)]
    snapshots = [(position, key) for position, key in named if position is not None]
    found.evidence.snapshot = await _newest_snapshot(bucket, snapshots, cluster_id, found.evidence.findings)
    topics = await _topics(bucket)
    found.evidence.mirrors = await _read_mirrors(bucket, topics, layout, found.evidence, advance)
    found.evidence.manifests, found.evidence.unreadable = await _read_manifests(bucket, topics, found.evidence.findings)
    revisions = [position.revision for position, _ in snapshots]
    revisions += (revision for records in topics.values() for revision in (*records.registered, *records.deleted))
    found.evidence.revision_max = max(revisions, default=0)
    return found


async def _sessions(bucket: ObjectStore) -> list[SessionId]:
    """Returns all sessions in ascending order. Takes one request for each session, however many segments it has."""
    sessions: list[SessionId] = []
    before: SessionId | None = None
    while (before := await patiently(partial(session_after, bucket, before))) is not None:
        sessions.append(before)
    return sessions


# ── sessions ──


async def _read_sessions(
    bucket: ObjectStore,
    sessions: Sequence[SessionId],
    found: Found,
    *,
    now_ms: Callable[[], int],
    dry_run: bool,
    advance: Advance,
) -> None:
    read_slots = asyncio.Semaphore(SESSIONS_AT_ONCE)
    done = 0

    async def read(session: SessionId) -> None:
        nonlocal done
        async with read_slots:
            read = await patiently(lambda: _read_session(bucket, session, now_ms=now_ms, dry_run=dry_run))
        found.sealed_now += not read.sealed_before
        found.evidence.footers.merge(read.tally)
        found.evidence.findings += read.unreadable
        if read.trimmed.runs:
            found.evidence.trimmed.append(read.trimmed)
        found.damaged += read.damaged
        done += 1
        advance("sessions", done, len(sessions))

    await gather_all(read(session) for session in sessions)


class _ReadSession(NamedTuple):
    """Holds what lies on the bucket of one session."""

    sealed_before: bool
    tally: FooterTally
    # The segments whose footers cannot be read.
    damaged: list[RestoreFinding]
    trimmed: TrimmedSession
    # The same, below the trim point: manifests may have their records.
    unreadable: list[RestoreFinding]


async def _read_session(bucket: ObjectStore, session: SessionId, *, now_ms: Callable[[], int], dry_run: bool) -> _ReadSession:
    listed = await list_objects(bucket, ListedSession(session))
    listing = await committed_in(bucket, listed)
    sealed_before = listing.sealed
    if not sealed_before and not dry_run:
        try:
            async with asyncio.timeout(SEAL_TIMEOUT_S):
                await seal(bucket, session, by=None, now_ms=now_ms)
        except TimeoutError:
            raise Unavailable(f"session {session} could not be sealed within {SEAL_TIMEOUT_S:g} s") from None
        listed = await list_objects(bucket, ListedSession(session))
        listing = await committed_in(bucket, listed)
    tally = FooterTally()
    damaged = []
    trimmed, unreadable = await _read_trimmed(bucket, listed)
    async for part, footers in read_committed(bucket, listing, reads_max=FOOTER_READS_MAX, segments_max=FOOTERS_AT_ONCE):
        for seq, footer in enumerate(footers, start=part.trimmed_to):
            if isinstance(footer, Corrupt):
                damaged.append(RestoreFinding("damage", segment_key(session, SegmentSeq(seq)), footer.message))
            else:
                tally.take_in(footer)
    return _ReadSession(sealed_before, tally, damaged, trimmed, unreadable)


async def _read_trimmed(bucket: ObjectStore, listed: ListedSession) -> tuple[TrimmedSession, list[RestoreFinding]]:
    """Reads what is left below the trim point."""
    trimmed = TrimmedSession.of(listed)
    unreadable: list[RestoreFinding] = []
    async for footers in read_below_trim_point(bucket, listed, reads_max=FOOTER_READS_MAX, segments_max=FOOTERS_AT_ONCE):
        for footer in footers:
            if isinstance(footer, Corrupt):
                what = f"{footer.message}; {trimmed.marker} says that its records are in Parquet"
                unreadable.append(RestoreFinding("note", str(footer.details.get("key", trimmed.marker)), what))
            else:
                trimmed.take_in(footer)
    return trimmed, unreadable


# ── snapshots ──


async def _newest_snapshot(
    bucket: ObjectStore, listed: Iterable[tuple[SnapshotPosition, str]], cluster_id: str, findings: list[RestoreFinding]
) -> Snapshot | None:
    """Returns the newest intact snapshot of this cluster, by its last batch of appointments, then by revision; None without one."""
    for _, key in sorted(listed, reverse=True):
        try:
            snapshot = parse_snapshot(await patiently(partial(bucket.get, key)), key=key)
            if snapshot.header.cluster_id == cluster_id:
                return snapshot
            findings.append(RestoreFinding("note", key, f"it belongs to cluster {snapshot.header.cluster_id}, and is ignored"))
        except (Corrupt, NotFound) as error:
            findings.append(RestoreFinding("damage", key, f"{error.message}; the previous one is used"))
        except Rejected as error:
            raise Rejected(error.message, hint=error.hint) from error
    return None


# ── mirrors of topics ──


async def _topics(bucket: ObjectStore) -> dict[TopicIncarnation, TopicRecords]:
    """Returns the records of each topic in the catalog, without listing all of its Parquet files."""
    topics: dict[TopicIncarnation, TopicRecords] = {}
    start_after = ""
    while True:
        page = await patiently(partial(bucket.list, TOPICS, start_after=start_after))
        for start_after in (found.key for found in page.objects):
            parsed = parse_topic_key(start_after)
            if parsed is not None:
                topics.setdefault(parsed.incarnation, TopicRecords()).take_in(parsed)
        if not page.more:
            return topics
        if parsed is not None and parsed.history is not None:  # files come last among a topic's keys
            start_after = end_of_topic(*parsed.incarnation)


async def _read_manifests(
    bucket: ObjectStore, topics: Mapping[TopicIncarnation, TopicRecords], findings: list[RestoreFinding]
) -> tuple[dict[TopicPartition, Manifest], set[TopicPartition]]:
    """Returns the newest manifest of each partition, except of deleted topics, and the partitions whose newest cannot be read."""
    names = {
        TopicPartition(named.topic_id, partition): named.name
        for named, records in topics.items()
        for partition in records.compacted
        if not records.deleted
    }
    found = await patiently(partial(newest_manifests, bucket, names, reads_max=MIRROR_READS_MAX))
    manifests: dict[TopicPartition, Manifest] = {}
    unreadable: set[TopicPartition] = set()
    for partition, manifest in sorted(found.items()):
        if isinstance(manifest, Corrupt):
            unreadable.add(partition)
            findings.append(
                RestoreFinding("damage", str(manifest.details["key"]), f"{manifest.message}; brokers will not serve {partition}")
            )
        elif manifest is not None:
            manifests[partition] = manifest
    return manifests, unreadable


async def _read_mirrors(
    bucket: ObjectStore, topics: dict[TopicIncarnation, TopicRecords], layout: KeyLayout, evidence: Evidence, advance: Advance
) -> list[MirroredTopic]:
    """Reads the newest registration of each topic, except of deleted topics and of those that the snapshot contains."""
    snapshot = evidence.snapshot
    snapshot_revision = snapshot.header.revision if snapshot is not None else 0
    read_slots = asyncio.Semaphore(MIRROR_READS_MAX)
    mirrors: list[MirroredTopic] = []

    async def read(named: TopicIncarnation, records: TopicRecords) -> None:
        topic = None
        for revision in sorted(records.registered, reverse=True):
            if records.deleted or revision <= snapshot_revision:
                break
            async with read_slots:
                topic = await _read_mirror(bucket, named, revision, layout, evidence.findings)
            if topic is not None:
                break
        newest = max(records.registered, default=Revision(0))
        mirrors.append(MirroredTopic(named.name, named.topic_id, newest, bool(records.deleted), topic))
        advance("topics", len(mirrors), len(topics))

    await gather_all(read(named, records) for named, records in topics.items())
    return sorted(mirrors, key=lambda mirror: (mirror.name, mirror.topic_id))


async def _read_mirror(
    bucket: ObjectStore, named: TopicIncarnation, revision: Revision, layout: KeyLayout, findings: list[RestoreFinding]
) -> Topic | None:
    key = topic_mirror_key(*named, revision)
    try:
        body = await patiently(partial(bucket.get, key))
        topic = decode_topic(KeyValue(layout.topic(named.name), body, revision, revision, version=1))
    except (Corrupt, NotFound) as error:
        findings.append(RestoreFinding("damage", key, f"{error.message}; the previous one is used"))
        return None
    if topic.id != named.topic_id:
        findings.append(RestoreFinding("damage", key, f"it holds the registration of {topic.id}"))
        return None
    return topic


# ── how it is read ──


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of `work`; repeats it if the bucket is unavailable, or an object was deleted while it was read."""
    passing = Unavailable, OutcomeUnknown, NotFound
    return await retry(work, on=passing, pauses=RetryPauses(PAUSE_S, PAUSE_S), attempts_max=ATTEMPTS_MAX)
