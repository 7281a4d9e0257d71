"""Rebuilds partitions from the bucket: the footers of the sessions that wrote them. The end offset is what is found there,
never what someone remembered.

    session of a dead leader     seal ─▶ LIST ─▶ its footers, through indexes where there are any
    session that released at R   LIST ─▶ its footers below R
    the same, read ahead to e           the footers of [e, R)      see read_ahead.py

Invariant: what is found can't grow afterwards. A session that was not left in order is sealed before its footers are read; one
whose leader handed the partition over may go on, and of it only what lies below the place of the release counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from metadata.errors import Corrupt, NotFound, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Offset, ProducerId, SegmentSeq, SessionId, TopicPartition
from segments.bucket_layout import segment_key
from segments.footer_index import IndexRange, cover
from segments.footers import read_footer, read_index
from segments.object_store import ObjectInfo, ObjectStore
from segments.partition_log import PartitionLog
from segments.producer_state import ProducerStates, SequencedBatch
from segments.run_index import RunIndex
from segments.segment_file import Run, SegmentFooter
from segments.session import Session, SessionListing, list_session, seal
from segments.settings import SegmentSettings

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
    runs: RunIndex = field(default_factory=RunIndex)
    sessions: set[SessionId] = field(default_factory=set)
    """Those that hold records of the partition; the others need not be remembered."""

    @property
    def end_offset(self) -> Offset:
        return self.runs.end_offset or Offset(0)

    def log(self, leader_epoch: LeaderEpoch) -> PartitionLog:
        return PartitionLog(
            self.partition,
            leader_epoch=leader_epoch,
            log_start_offset=self.runs.start_offset or Offset(0),
            end_offset=self.end_offset,
            producers=self.producers,
        )

    def take_in(self, footer: SegmentFooter, run: Run) -> None:
        """Adds the next run. Corrupt when it does not continue the partition."""
        if not self.runs and run.base_offset != 0:
            key = segment_key(footer.session, footer.seq)
            raise Corrupt(f"{key}: {self.partition} begins at offset {run.base_offset}; what came before is missing", key=key)
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
    begun: Mapping[TopicPartition, BegunPartition] | None = None,
) -> dict[TopicPartition, RecoveredPartition | Corrupt]:
    """Seals the sessions that led these partitions, but for those that released them, and rebuilds each from their footers.

    A partition of which a segment is missing or damaged answers the Corrupt error in its place; the others go on. A footer that
    can't be read is no harm to a partition whose later runs continue without a gap: it had nothing there. Each session is listed
    and read once, whatever the number of its partitions. Retries while the bucket is away. What was `begun` is used up.
    """
    usable = {partition: found for partition, found in (begun or {}).items() if found.continues_in(spans.get(partition, ()))}
    found_runs = FoundRuns()
    for session, (first_seq, released_at_seq) in sorted(_sessions(spans, usable).items()):
        assert session != by.id or released_at_seq is not None, "a session does not seal itself to take over from itself"
        listing, footers = await _footers(
            store, session, first_seq=first_seq, released_at_seq=released_at_seq, by=by, settings=settings, now_ms=now_ms
        )
        found_runs.take_in(listing, footers)

    def rebuild_all() -> dict[TopicPartition, RecoveredPartition | Corrupt]:
        return {
            partition: found_runs.rebuilt(partition, held, settings, usable.get(partition)) for partition, held in spans.items()
        }

    return await asyncio.to_thread(rebuild_all) if found_runs.count > REBUILT_IN_A_THREAD else rebuild_all()


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


class _Damaged(NamedTuple):
    seq: SegmentSeq
    error: Corrupt


class FoundRuns:
    """What footers say, by partition."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: dict[TopicPartition, dict[tuple[SessionId, LeaderEpoch], list[tuple[SegmentFooter, Run]]]] = {}
        self.damaged: dict[SessionId, list[_Damaged]] = {}

    def take_in(self, listing: SessionListing, footers: Iterable[SegmentFooter | Corrupt]) -> None:
        for seq, footer in enumerate(footers, start=listing.trimmed_to):
            if isinstance(footer, Corrupt):
                self.damaged.setdefault(listing.session, []).append(_Damaged(SegmentSeq(seq), footer))
                continue
            for run in footer.runs:
                runs = self._runs.setdefault(run.partition, {})
                runs.setdefault((listing.session, run.leader_epoch), []).append((footer, run))
            self.count += len(footer.runs)

    def of(self, partition: TopicPartition, span: Span) -> Sequence[tuple[SegmentFooter, Run]]:
        return self._runs.get(partition, {}).get(_place(span), ())

    def rebuilt(
        self, partition: TopicPartition, spans: Sequence[Span], settings: SegmentSettings, begun: BegunPartition | None = None
    ) -> RecoveredPartition | Corrupt:
        try:
            return _rebuild(partition, spans, self, settings, begun)
        except Corrupt as error:
            return error


def _rebuild(
    partition: TopicPartition,
    spans: Sequence[Span],
    found_runs: FoundRuns,
    settings: SegmentSettings,
    begun: BegunPartition | None,
) -> RecoveredPartition:
    recovered = begun.recovered if begun is not None else empty_partition(partition, settings)
    suspect: Corrupt | None = None
    for span in spans:
        first = SegmentSeq(0)
        if begun is not None:
            if _place(span) != _place(begun.spans[-1]):
                continue
            first = begun.read_to
        unread = deque(
            found for found in found_runs.damaged.get(span.session, ()) if found.seq >= first and _is_in(found.seq, span)
        )
        for footer, run in found_runs.of(partition, span):
            if footer.seq < first or not _is_in(footer.seq, span):
                continue
            while unread and unread[0].seq < footer.seq:
                suspect = unread.popleft().error
            if suspect is not None and run.base_offset != recovered.end_offset:
                raise suspect
            suspect = None
            recovered.take_in(footer, run)
        if unread:
            suspect = unread[-1].error
    if suspect is not None:
        raise suspect
    return recovered


def _is_in(seq: SegmentSeq, span: Span) -> bool:
    return span.released_at_seq is None or seq < span.released_at_seq


def empty_partition(partition: TopicPartition, settings: SegmentSettings) -> RecoveredPartition:
    """A partition that nobody has written to yet."""
    return RecoveredPartition(
        partition,
        ProducerStates(producers_max=settings.producers_per_partition_max, expiry_ms=settings.producer_expiry_ms),
    )


async def _footers(
    store: ObjectStore,
    session: SessionId,
    *,
    first_seq: SegmentSeq,
    released_at_seq: SegmentSeq | None,
    by: Session,
    settings: SegmentSettings,
    now_ms: Callable[[], int],
) -> tuple[SessionListing, list[SegmentFooter | Corrupt]]:
    unlisted = first_seq > 0 and released_at_seq is not None and released_at_seq - first_seq <= READ_UNLISTED_MAX
    while True:
        try:
            if released_at_seq is None:
                listing = await seal(store, session, by=by, now_ms=now_ms)
            elif unlisted:
                listing = _vouched_for(session, first_seq, released_at_seq)
            else:
                listing = await list_session(
                    store, session, committed_to=released_at_seq, evidence=f"its leader released partitions at {released_at_seq}"
                )
                listing = listing.up_to(released_at_seq)
            listing = listing.since(first_seq)
            return listing, await read_footers(store, listing, reads_max=settings.footer_reads_max)
        except NotFound:  # trimmed between the listing and the read; or missing, which a listing tells
            unlisted = False
            await asyncio.sleep(GONE_PAUSE_S)
        except Unavailable:
            await asyncio.sleep(settings.retry_pause_ms_max / 1000)


def _vouched_for(session: SessionId, first: SegmentSeq, end: SegmentSeq) -> SessionListing:
    """What a listing would show of the segments [first, end), which are committed."""
    places = (segment_key(session, SegmentSeq(seq)) for seq in range(first, end))
    return SessionListing(session, first, tuple(ObjectInfo(key, size=0) for key in places), sealed=False)


async def read_footers(store: ObjectStore, listing: SessionListing, *, reads_max: int) -> list[SegmentFooter | Corrupt]:
    """The footers of the listed segments, in order, `reads_max` reads at a time; in place of a damaged or missing one, Corrupt.

    Indexes are read where there are any. Raises NotFound when a segment was trimmed since the listing, Unavailable or Denied when
    the bucket can't be read.
    """
    turns = asyncio.Semaphore(reads_max)

    async def read(part: IndexRange | SegmentSeq) -> list[SegmentFooter | Corrupt]:
        if not isinstance(part, IndexRange):
            return [await read_one(part)]
        first, end = max(part.first, listing.trimmed_to), min(part.end, listing.end_seq)
        async with turns:
            footers = await read_index(store, listing.session, part)
        if footers is None:
            return [await read_one(SegmentSeq(seq)) for seq in range(first, end)]
        return [*footers[first - part.first : end - part.first]]

    async def read_one(seq: SegmentSeq) -> SegmentFooter | Corrupt:
        info = listing.segments[seq - listing.trimmed_to]
        if info is None:
            key = segment_key(listing.session, seq)
            return Corrupt(
                f"{key} is gone, and was committed: {listing.evidence} says so",
                hint="Restore it from a version or a backup of the bucket, then restart the broker.",
                key=key,
            )
        async with turns:
            try:
                return await read_footer(store, info, listing.session, seq)
            except Corrupt as error:
                return error

    try:
        async with asyncio.TaskGroup() as reads:
            parts = cover(listing.trimmed_to, listing.end_seq, listing.indexes)
            tasks = [reads.create_task(read(part)) for part in parts]
    except* TidelogError as errors:
        raise _first(errors) from errors
    return [footer for task in tasks for footer in task.result()]


async def read_session(store: ObjectStore, session: SessionId, *, reads_max: int = 16) -> list[SegmentFooter | Corrupt]:
    """The committed footers of a session that may still be written to, without sealing it: for readers of the bucket alone."""
    while True:
        try:
            return await read_footers(store, await list_session(store, session), reads_max=reads_max)
        except NotFound:
            continue


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
