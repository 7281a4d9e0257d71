"""Rebuilds partitions from the bucket: the footers of the sessions that wrote them, and their newest manifests. The end offset is
what is found there, never what someone remembered.

    session of a dead leader     seal ─▶ LIST ─▶ its footers, through indexes where there are any  ┐
    session that released at R   LIST ─▶ its footers below R                                       ├─▶ LIST, GET: the manifests
    the same, known up to e             the footers of [e, R)      see read_ahead.py, footer_cache.py ┘
    sealed, and known                   nothing

           manifest   [ below compacted_to: epochs, producers, log start ]│
           footers       [ trimmed, or not yet: ignored              ]    │[ runs, which must go on from here without a gap ]

Manifests are read last. What was trimmed before the footers were read lies below `compacted_to` of every manifest that is read
later, so however far compaction comes meanwhile, it makes no gap; and a log start that the old leader raised while it led is seen.

Invariant: what is found can't grow afterwards. A session that was not left in order is sealed before its footers are read; one
whose leader handed the partition over may go on, and of it only what lies below the place of the release counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metadata.errors import Corrupt, NotFound, Unavailable
from metadata.model import LeaderEpoch, Offset, ProducerId, SegmentSeq, SessionId, TopicPartition
from segments.bucket_layout import segment_key
from segments.footer_cache import Damaged, FooterCache, KeptSession, SessionRuns
from segments.footer_index import index_of_the_tail
from segments.history import History
from segments.manifest import Manifest, no_manifest
from segments.manifest_store import newest_manifests
from segments.object_store import ObjectInfo, ObjectStore
from segments.partition_log import PartitionLog
from segments.producer_state import ProducerStates, SequencedBatch
from segments.run_index import RunIndex
from segments.segment_file import FooterBytes, Run, SegmentFooter
from segments.session import Session, SessionListing, list_session, seal
from segments.session_footers import read_footers
from segments.settings import SegmentSettings

_FIRST = SegmentSeq(0)
READ_UNLISTED_MAX = 64
"""So many segments that a leader has vouched for are read by their names; of more, a listing may show an index."""
GONE_PAUSE_S = 0.05
"""Before a session is looked at again of which something was gone that its listing showed."""
REBUILT_IN_A_THREAD = 1_000
"""Runs of batches. With fewer, the event loop is held for a few milliseconds."""


class Span(Protocol):
    """One stretch of leadership, as the metadata records it: in this epoch, this session, up to where it was released."""

    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def session(self) -> SessionId: ...
    @property
    def released_at_seq(self) -> SegmentSeq | None: ...


@dataclass(slots=True)
class RecoveredPartition:
    """What a partition's new leader starts from."""

    partition: TopicPartition
    producers: ProducerStates
    manifest: Manifest
    topic: str = ""
    """Its name; empty where nobody asked for its manifests."""
    runs: RunIndex = field(init=False)
    """Those at or above `compacted_to`."""
    sessions: set[SessionId] = field(default_factory=set)
    """Those that hold such runs; the others need not be remembered."""

    def __post_init__(self) -> None:
        self.producers.recall(self.manifest.producers)
        self.runs = self._no_runs(self.manifest.compacted_to)

    @property
    def end_offset(self) -> Offset:
        """Behind its last run; where they are all gone, behind what was compacted, or deleted."""
        return max(self.runs.end_offset or Offset(0), self.manifest.log_start_offset)

    @property
    def history(self) -> History | None:
        return History(self.manifest, self.topic) if self.manifest.version else None

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
        """Whether it continues what is there. What is missing in between harms nobody where it lies below the log start."""
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
                ),
                now_ms=footer.written_at_ms,
            )

    def close_up(self) -> None:
        """The next run comes at the end, also where what is missing before it lies below the log start."""
        if self.end_offset != self.runs.end_offset:
            self.runs = self._no_runs(self.end_offset)

    def go_on_from(self, manifest: Manifest, topic: str) -> bool:
        """Whether what was rebuilt with an older manifest still holds with this one: then what was compacted since is dropped."""
        if (self.runs.end_offset or 0) < manifest.compacted_to:
            return False
        self.manifest, self.topic = manifest, topic
        self.runs.drop_below(manifest.compacted_to)
        self.sessions = self.runs.sessions
        return True

    def _no_runs(self, start_offset: Offset) -> RunIndex:
        epochs = self.manifest.epochs
        return RunIndex(start_offset=start_offset, leader_epoch=epochs[-1].leader_epoch if epochs else -1)


@dataclass(slots=True)
class BegunPartition:
    """A partition as far as it was read before its leader let go of it."""

    recovered: RecoveredPartition
    spans: tuple[Span, ...]
    """The last one is of the leader that was still at work."""
    read_to: SegmentSeq
    """All of the last session below this one was read."""
    holding: set[tuple[SessionId, LeaderEpoch]]
    """The spans that were found to hold something of it."""
    last_seq: SegmentSeq
    """The newest segment of the last session that does; -1 for none."""

    def continues_in(self, spans: Sequence[Span]) -> bool:
        """Whether what these hold is what was read, and what the last one has beyond `read_to`."""
        released = {_place(span): span.released_at_seq for span in self.spans}
        last = _place(self.spans[-1])
        for span in spans:
            if _place(span) == last:
                if not _is_in(self.last_seq, span):
                    return False
            elif released.get(_place(span), -1) != span.released_at_seq:
                return False
        return self.holding <= {_place(span) for span in spans}


def _place(span: Span) -> tuple[SessionId, LeaderEpoch]:
    return span.session, span.leader_epoch


async def recover(
    store: ObjectStore,
    spans: Mapping[TopicPartition, Sequence[Span]],
    *,
    by: Session,
    settings: SegmentSettings,
    now_ms: Callable[[], int],
    topics: Mapping[TopicPartition, str] | None = None,
    cache: FooterCache | None = None,
    begun: Mapping[TopicPartition, BegunPartition] | None = None,
) -> dict[TopicPartition, RecoveredPartition | Corrupt]:
    """Seals the sessions that led these partitions, but for those that released them, and rebuilds each from their footers.

    A partition of which a segment is missing or damaged answers the Corrupt error in its place; the others go on. A footer that
    can't be read is no harm to a partition whose later runs continue without a gap: it had nothing there. Each session is listed
    and read once, whatever the number of its partitions, and what is in the `cache` not at all. Retries while the bucket is away.
    What was `begun` is used up. `topics`: the names of the topics; of a partition without one nothing was compacted.
    """
    usable = {partition: found for partition, found in (begun or {}).items() if found.continues_in(spans.get(partition, ()))}
    cache = cache or FooterCache(bytes_max=settings.footer_cache_bytes_max)
    found_runs = FoundRuns()
    for session, (first_seq, released_at_seq) in sorted(_sessions(spans, usable).items()):
        assert session != by.id or released_at_seq is not None, "a session does not seal itself to take over from itself"
        async with cache.session(session, first_seq=first_seq) as kept:
            if not _is_read(kept.runs, released_at_seq):
                await _read_on(store, kept, cache, released_at_seq, by=by, settings=settings, now_ms=now_ms)
            found_runs.take_in(kept.runs)
    known = {partition: found.recovered.manifest for partition, found in usable.items()}
    manifests = await _newest(store, {p: name for p, name in (topics or {}).items() if p in spans}, known, settings)

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
            rebuilt[partition] = found_runs.rebuilt(known_so_far, held, ahead)
        return rebuilt

    return await asyncio.to_thread(rebuild_all) if found_runs.count > REBUILT_IN_A_THREAD else rebuild_all()


async def _newest(
    store: ObjectStore, topics: Mapping[TopicPartition, str], known: Mapping[TopicPartition, Manifest], settings: SegmentSettings
) -> dict[TopicPartition, Manifest | Corrupt | None]:
    """The manifests that count now. Retries while the bucket is away."""
    while True:
        try:
            return await newest_manifests(store, topics, known=known, reads_max=settings.footer_reads_max)
        except Unavailable:
            await asyncio.sleep(settings.retry_pause_ms_max / 1000)


def _sessions(
    spans: Mapping[TopicPartition, Sequence[Span]], begun: Mapping[TopicPartition, BegunPartition]
) -> dict[SessionId, tuple[SegmentSeq, SegmentSeq | None]]:
    """The sessions to read: from where on, and up to where they released the last of the partitions; None: to their end."""
    sessions: dict[SessionId, tuple[SegmentSeq, SegmentSeq | None]] = {}
    for partition, held in spans.items():
        ahead = begun.get(partition)
        for span in held:
            first, released = SegmentSeq(0), span.released_at_seq
            if ahead is not None:
                if _place(span) != _place(ahead.spans[-1]):
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
    """What a listing would show of the segments [first, end), which are committed."""
    places = (segment_key(session, SegmentSeq(seq)) for seq in range(first, end))
    return SessionListing(session, first, tuple(ObjectInfo(key, size=0) for key in places), sealed=False)


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


class FoundRuns:
    """What footers say, by session and partition, up to where it was known when it was taken in here."""

    def __init__(self) -> None:
        self.count = 0
        self._sessions: dict[SessionId, tuple[SessionRuns, SegmentSeq]] = {}

    def take_in(self, runs: SessionRuns) -> None:
        self._sessions[runs.session] = runs, runs.end_seq
        self.count += runs.count

    def end_seq(self, session: SessionId) -> SegmentSeq:
        return self._sessions[session][1]

    def of(self, partition: TopicPartition, span: Span, *, first_seq: SegmentSeq = _FIRST) -> list[tuple[SegmentFooter, Run]]:
        """In order. Others may read on in the session meanwhile, beyond what was taken in."""
        runs, end_seq = self._of(span)
        return [found for found in runs.of(partition, span.leader_epoch) if first_seq <= found[0].seq < end_seq]

    def damaged(self, span: Span, *, first_seq: SegmentSeq = _FIRST) -> deque[Damaged]:
        runs, end_seq = self._of(span)
        return deque(found for found in runs.damaged if first_seq <= found.seq < end_seq)

    def missing(self, span: Span) -> Corrupt | None:
        """Where the session is sealed below the place at which it released the partition: all before that had been committed."""
        runs, _ = self._sessions[span.session]
        if span.released_at_seq is None or not runs.sealed or runs.end_seq >= span.released_at_seq:
            return None
        key = segment_key(span.session, runs.end_seq)
        return Corrupt(f"{key} is missing: a seal stands there, and the leader had committed up to {span.released_at_seq}", key=key)

    def is_damaged(self, session: SessionId) -> bool:
        return bool(self._sessions[session][0].damaged)

    def _of(self, span: Span) -> tuple[SessionRuns, int]:
        runs, end_seq = self._sessions[span.session]
        released = span.released_at_seq
        return runs, end_seq if released is None else min(end_seq, released)

    def rebuilt(
        self, recovered: RecoveredPartition, spans: Sequence[Span], begun: BegunPartition | None = None
    ) -> RecoveredPartition | Corrupt:
        """`recovered`: what is known of the partition without these spans; it is used up. `begun`: what is known of the spans."""
        try:
            return _rebuild(recovered, spans, self, begun)
        except Corrupt as error:
            return error


def _rebuild(
    recovered: RecoveredPartition, spans: Sequence[Span], found_runs: FoundRuns, begun: BegunPartition | None
) -> RecoveredPartition:
    suspect: Corrupt | None = None
    for span in spans:
        first = SegmentSeq(0)
        if begun is not None:
            if _place(span) != _place(begun.spans[-1]):
                continue
            first = begun.read_to
        unread = found_runs.damaged(span, first_seq=first)
        for footer, run in found_runs.of(recovered.partition, span, first_seq=first):
            while unread and unread[0].seq < footer.seq:
                suspect = unread.popleft().error
            if recovered.is_compacted(run):
                continue
            if suspect is not None and not recovered.is_next(run):
                raise suspect
            suspect = None
            recovered.take_in(footer, run)
        if unread:
            suspect = unread[-1].error
        suspect = found_runs.missing(span) or suspect
    if suspect is not None:
        raise suspect
    recovered.close_up()
    return recovered


def _is_in(seq: SegmentSeq, span: Span) -> bool:
    return span.released_at_seq is None or seq < span.released_at_seq


def empty_partition(
    partition: TopicPartition, settings: SegmentSettings, *, manifest: Manifest | None = None, topic: str = ""
) -> RecoveredPartition:
    """A partition that nobody has written to yet, or nobody behind what its manifest tells."""
    producers = ProducerStates(producers_max=settings.producers_per_partition_max, expiry_ms=settings.producer_expiry_ms)
    return RecoveredPartition(partition, producers, manifest or no_manifest(partition), topic)
