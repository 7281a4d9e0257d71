"""Rebuilds partitions from the bucket: the footers of the sessions that wrote them, and their newest manifests. The end offset is
what is found there, never what someone remembered.

    session of a dead leader     seal ─▶ LIST ─▶ its footers, through indexes where there are any  ┐
    session that released at R   LIST ─▶ its footers below R                                       ├─▶ LIST, GET: the manifests
    the same, known up to e             the footers of [e, R)      see takeover_prefetch.py, footer_cache.py ┘
    sealed, and known                   nothing

           manifest   [ below compacted_to: epochs, producers, log start ]│
           footers       [ trimmed, or not yet: ignored              ]    │[ runs, which must go on from here without a gap ]

Manifests are read last. What was trimmed before the footers were read lies below `compacted_to` of every manifest that is read
later, so however far compaction comes meanwhile, it makes no gap; and a log start that the old leader raised while it led is seen.
Parquet files are listed before them, beside the footers or when the partition was prefetched: a partition whose files are newer
than its manifest is refused (missing_manifests.py).

A session whose claim is there and that has no segments wrote nothing. One whose claim is gone as well is damage: claims are never
deleted, so its segments may be gone with it.

Invariant: what is found can't grow afterwards. A session that was not left in order is sealed before its footers are read; one
whose leader handed the partition over may go on, and of it only what lies below the place of the release counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from metadata.errors import Corrupt, NotFound, Unavailable
from metadata.model import SegmentSeq, SessionId, TopicPartition
from metadata.retry import RetryPauses, retry
from segments.bucket.layout import segment_key
from segments.concurrency import gather_all
from segments.history.manifest import Manifest, no_manifest
from segments.history.manifest_store import newest_manifests
from segments.object_store.interface import ObjectInfo, ObjectStore
from segments.recovery.footer_cache import FooterCache, KeptSession, SessionRuns
from segments.recovery.missing_manifests import NewestFiles, missing_manifests, newest_files
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from segments.recovery.session_runs import LeadershipSpan, PrefetchedPartition, RecoveredRuns, session_and_epoch
from segments.settings import SegmentSettings
from segments.wal.footer_index import index_of_the_tail
from segments.wal.segment_file import FooterBytes
from segments.wal.session import Session, list_session, seal
from segments.wal.session_listing import SessionListing
from segments.wal.session_reader import read_footers

_FIRST = SegmentSeq(0)
# Up to this many segments that a leader has vouched for are read by name; of more, a listing may show an index.
READ_UNLISTED_MAX = 64
# Pause before a session is listed again after a listed segment was gone.
GONE_PAUSE_S = 0.05
# Runs of batches. With fewer, the event loop is held for a few milliseconds.
REBUILT_IN_A_THREAD = 1_000


async def recover(
    store: ObjectStore,
    spans: Mapping[TopicPartition, Sequence[LeadershipSpan]],
    *,
    by: Session,
    settings: SegmentSettings,
    now_ms: Callable[[], int],
    topics: Mapping[TopicPartition, str] | None = None,
    cache: FooterCache | None = None,
    begun: Mapping[TopicPartition, PrefetchedPartition] | None = None,
) -> dict[TopicPartition, RecoveredPartition | Corrupt]:
    """Seals the sessions that led these partitions, but for those that released them, and rebuilds each from their footers.

    A partition of which a segment is missing or damaged answers the Corrupt error in its place; the others go on. A footer that
    can't be read is no harm to a partition whose later runs continue without a gap: it had nothing there. Each session is listed
    and read once, whatever the number of its partitions, and what is in the `cache` not at all. Retries while the bucket is away.
    What was `begun` is used up. `topics`: the names of the topics; of a partition without one nothing was compacted.
    """
    usable = {partition: found for partition, found in (begun or {}).items() if found.continues_in(spans.get(partition, ()))}
    cache = cache or FooterCache(bytes_max=settings.footer_cache_bytes_max)
    named = {partition: name for partition, name in (topics or {}).items() if partition in spans}
    found_runs = RecoveredRuns()
    files = {partition: ahead.files for partition, ahead in usable.items() if ahead.files is not None}

    async def read_sessions() -> None:
        for session, (first_seq, released_at_seq) in sorted(_sessions(spans, usable).items()):
            assert session != by.id or released_at_seq is not None, "a session does not seal itself to take over from itself"
            async with cache.session(session, first_seq=first_seq) as kept:
                if not _is_read(kept.runs, released_at_seq):
                    await _read_on(store, kept, cache, released_at_seq, by=by, settings=settings, now_ms=now_ms)
                found_runs.take_in(kept.runs)

    async def list_files() -> None:
        files.update(await _files(store, {where: name for where, name in named.items() if where not in usable}, settings))

    await gather_all([read_sessions(), list_files()])
    known = {partition: found.recovered.manifest for partition, found in usable.items()}
    manifests = await _newest(store, named, known, settings)

    def rebuild_all() -> dict[TopicPartition, RecoveredPartition | Corrupt]:
        rebuilt: dict[TopicPartition, RecoveredPartition | Corrupt] = {}
        for partition, held in spans.items():
            manifest = manifests.get(partition) or no_manifest(partition)
            if isinstance(manifest, Corrupt):
                rebuilt[partition] = manifest
                continue
            topic, ahead = (topics or {}).get(partition, ""), usable.get(partition)
            if ahead is not None and ahead.recovered.go_on_from(manifest, topic):
                known_so_far = ahead.recovered
            else:
                known_so_far = empty_partition(partition, settings, manifest=manifest, topic=topic)
            found = found_runs.rebuilt(known_so_far, held, ahead)
            if isinstance(found, RecoveredPartition) and partition in files:
                found = missing_manifests(found, files[partition]) or found
            rebuilt[partition] = found
        return rebuilt

    return await asyncio.to_thread(rebuild_all) if found_runs.count > REBUILT_IN_A_THREAD else rebuild_all()


async def runs_so_far(store: ObjectStore, session: SessionId, *, settings: SegmentSettings, cache: FooterCache) -> SessionRuns:
    """Returns what the footers of a session say, and leaves it unsealed. What was read stays in the `cache`. Raises Unavailable."""
    async with cache.session(session) as kept:
        while not kept.runs.sealed:
            try:
                listing = await list_session(store, session)
                await read_listed(store, kept, listing, cache, reads_max=settings.footer_reads_max)
                break
            except NotFound:  # trimmed between the listing and the read
                await asyncio.sleep(GONE_PAUSE_S)
        return kept.runs


async def sealed_runs(
    store: ObjectStore, session: SessionId, *, by: Session, settings: SegmentSettings, now_ms: Callable[[], int], cache: FooterCache
) -> SessionRuns:
    """Seals a session and returns what its footers say, which stays in the `cache`. Retries while the bucket is away."""
    async with cache.session(session) as kept:
        if not kept.runs.sealed:
            await _read_on(store, kept, cache, None, by=by, settings=settings, now_ms=now_ms)
        return kept.runs


async def _newest(
    store: ObjectStore, topics: Mapping[TopicPartition, str], known: Mapping[TopicPartition, Manifest], settings: SegmentSettings
) -> dict[TopicPartition, Manifest | Corrupt | None]:
    """Returns the manifests that count now. Retries while the bucket is away."""
    pause_s = settings.retry_pause_ms_max / 1000
    read = partial(newest_manifests, store, topics, known=known, reads_max=settings.footer_reads_max)
    return await retry(read, on=Unavailable, pauses=RetryPauses(pause_s, pause_s))


async def _files(
    store: ObjectStore, topics: Mapping[TopicPartition, str], settings: SegmentSettings
) -> dict[TopicPartition, NewestFiles]:
    """Returns the newest files of each partition that has any. Retries while the bucket is away."""
    pause_s = settings.retry_pause_ms_max / 1000
    read = partial(newest_files, store, topics, reads_max=settings.footer_reads_max)
    return await retry(read, on=Unavailable, pauses=RetryPauses(pause_s, pause_s))


def _sessions(
    spans: Mapping[TopicPartition, Sequence[LeadershipSpan]], begun: Mapping[TopicPartition, PrefetchedPartition]
) -> dict[SessionId, tuple[SegmentSeq, SegmentSeq | None]]:
    """Returns the sessions to read: from where on, and up to where they released the last of the partitions; None: to their end."""
    sessions: dict[SessionId, tuple[SegmentSeq, SegmentSeq | None]] = {}
    for partition, held in spans.items():
        ahead = begun.get(partition)
        for span in held:
            first, released = SegmentSeq(0), span.released_at_seq
            if ahead is not None:
                if session_and_epoch(span) != session_and_epoch(ahead.spans[-1]):
                    continue
                first = ahead.read_to
            first_before, before = sessions.get(span.session, (first, SegmentSeq(0)))
            end = max(before, released) if before is not None and released is not None else None
            sessions[span.session] = min(first, first_before), end
    return sessions


def _is_read(runs: SessionRuns, released_at_seq: SegmentSeq | None) -> bool:
    return runs.sealed or (released_at_seq is not None and runs.end_seq >= released_at_seq)


async def _read_on(
    store: ObjectStore,
    kept: KeptSession,
    cache: FooterCache,
    released_at_seq: SegmentSeq | None,
    *,
    by: Session,
    settings: SegmentSettings,
    now_ms: Callable[[], int],
) -> None:
    """Seals a session that did not release, and reads it from where it is known, to its end or the release."""
    session, known_to = kept.runs.session, kept.runs.end_seq
    unlisted = known_to > 0 and released_at_seq is not None and released_at_seq - known_to <= READ_UNLISTED_MAX
    while True:
        try:
            if released_at_seq is None:
                listing = await seal(store, session, by=by, now_ms=now_ms)
            elif unlisted:
                listing = _vouched_for(session, known_to, released_at_seq)
            else:
                listing = await list_session(
                    store, session, committed_to=released_at_seq, evidence=f"its leader released partitions at {released_at_seq}"
                )
                listing = listing.up_to(released_at_seq)
            await read_listed(store, kept, listing, cache, reads_max=settings.footer_reads_max, was_listed=not unlisted)
            return
        except NotFound:  # trimmed between the listing and the read; or missing, which a listing tells
            unlisted = False
            await asyncio.sleep(GONE_PAUSE_S)
        except Unavailable:
            await asyncio.sleep(settings.retry_pause_ms_max / 1000)


def _vouched_for(session: SessionId, first: SegmentSeq, end: SegmentSeq) -> SessionListing:
    """Returns what a listing would show of the segments [first, end), which are committed."""
    keys = (segment_key(session, SegmentSeq(seq)) for seq in range(first, end))
    return SessionListing(session, first, tuple(ObjectInfo(key, size=0) for key in keys), sealed=False)


async def read_listed(
    store: ObjectStore,
    kept: KeptSession,
    listing: SessionListing,
    cache: FooterCache,
    *,
    reads_max: int,
    was_listed: bool = True,
) -> None:
    """Reads those of the listed segments that are not known yet. Raises as `read_footers`, and then knows what it knew before.

    `was_listed`: not only vouched for, so that it tells what was trimmed.
    """
    singly: dict[SegmentSeq, FooterBytes] = {}
    trimmed_to = listing.trimmed_to
    listing = listing.since(kept.runs.end_seq)
    footers = await read_footers(store, listing, reads_max=reads_max, singly=singly)
    runs = kept.runs
    if was_listed:
        runs = kept.runs = runs.trimmed(trimmed_to)
    runs.take_in(listing, footers)
    tail = index_of_the_tail(listing.end_seq, singly) if listing.sealed else None
    if tail is not None:
        cache.keep_unindexed(listing.session, tail)
