"""Interprets a listing of a session, and how far it shows the session to be committed. Pure.

seq       0   1   2       4   claim  index-…  trimmed-…
listing   └───────┘ committed: up to the first gap at or after the trim point, or up to the seal

What lies below the trim point is in Parquet, so brokers and compactors ignore it. An audit and a restore read it: on a copy of a
bucket the marker may have arrived before the manifest that names this Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from metadata.model import SegmentSeq, SessionId
from segments.bucket import layout as bucket_layout
from segments.object_store.interface import ObjectInfo
from segments.wal.footer_index import IndexRange
from segments.wal.segment_file import SEAL_BYTES

_FIRST = SegmentSeq(0)
# An index that begins so many segments before the listed range may describe segments in it.
_INDEX_REACH = 1024


@dataclass(frozen=True, slots=True)
class SessionListing:
    """Holds the committed segments of a session, from the trim point up to the first gap or seal."""

    session: SessionId
    trimmed_to: SegmentSeq
    # One entry for each sequence number from `trimmed_to` on; None where one is missing.
    segments: tuple[ObjectInfo | None, ...]
    # Whether a seal stands at `end_seq`.
    sealed: bool
    # Indexes of footers of its segments.
    indexes: tuple[IndexRange, ...] = ()
    # The key of the object that says that the missing ones were committed.
    evidence: str = ""
    # Whether the listing was cut off, so that the session may continue behind it.
    is_cut: bool = False
    # Whether its claim was listed. A claim is created before anything else of the session, and is never deleted.
    is_claimed: bool = True

    @property
    def is_missing(self) -> bool:
        """Returns whether all objects of the session are gone but its seal, which a successor may have created since."""
        return self.end_seq == 0 and not self.is_claimed

    @property
    def end_seq(self) -> SegmentSeq:
        return SegmentSeq(self.trimmed_to + len(self.segments))

    def up_to(self, seq: SegmentSeq) -> SessionListing:
        """Returns the session as if it ended before `seq`."""
        if seq >= self.end_seq:
            return self
        return replace(self, segments=self.segments[: max(0, seq - self.trimmed_to)], sealed=False)

    def since(self, seq: SegmentSeq) -> SessionListing:
        """Returns the session without what stands before `seq`."""
        if seq <= self.trimmed_to:
            return self
        return replace(self, trimmed_to=seq, segments=self.segments[seq - self.trimmed_to :])


@dataclass(slots=True)
class ListedSession:
    """Collects the objects that a listing of a session shows, or those from `since` on.

    Where it has more than `objects_max` of these, it is cut off: those behind are skipped, and the indexes that tell of them.
    """

    session: SessionId
    objects: dict[SegmentSeq, ObjectInfo] = field(default_factory=dict)
    # Trim markers.
    markers: list[SegmentSeq] = field(default_factory=list)
    indexes: list[IndexRange] = field(default_factory=list)
    since: SegmentSeq = _FIRST
    objects_max: int | None = None
    # The first sequence number of which nothing is known. None: all was listed.
    cut_at: SegmentSeq | None = None
    # The listing may go on behind this key: nothing up to there is of use.
    skip_to: str = ""
    # Whether the claim was listed. Also False where the listing was cut off before it.
    is_claimed: bool = False

    @property
    def trimmed_to(self) -> SegmentSeq:
        return max(self.markers, default=_FIRST)

    def take_in(self, found: ObjectInfo) -> bucket_layout.WalKey | None:
        """Adds the next object of the listing. Ignores objects that Tidelog did not write."""
        parsed = bucket_layout.parse_wal_key(found.key)
        if parsed is None or found.key <= self.skip_to:
            return None
        self.is_claimed |= found.key == bucket_layout.claim_key(self.session)
        if parsed.seq is not None:
            if self.objects_max is not None and len(self.objects) >= self.objects_max:
                self.cut_at = SegmentSeq(next(reversed(self.objects)) + 1)
                self.skip_to = bucket_layout.claim_key(self.session)
                return None
            self.objects[parsed.seq] = found
        elif parsed.trimmed_to is not None:
            self.markers.append(parsed.trimmed_to)
        elif parsed.indexed is not None:
            index = IndexRange(*parsed.indexed)
            self.indexes.append(index)
            if self.cut_at is not None:
                self.skip_to = self._next_of_use(index, self.cut_at)
        return parsed

    def _next_of_use(self, index: IndexRange, cut_at: SegmentSeq) -> str:
        """Returns the key behind this index. A session has many indexes, and most are not listed again for each part of it."""
        if index.end >= cut_at:
            return bucket_layout.trimmed_prefix(self.session)
        near = SegmentSeq(max(0, self.since - _INDEX_REACH))
        return max(self.skip_to, bucket_layout.index_key(self.session, near, _FIRST)) if index.end < near else self.skip_to

    def below_trim_point(self) -> list[SessionListing]:
        """Returns the segments below the trim point that are not deleted yet, and those of which an index has the footers.

        Each listing is a stretch without a gap, except that segments may be missing whose footers an index has.
        """
        trimmed_to = self.trimmed_to
        known = [(seq, SegmentSeq(seq + 1)) for seq in self.objects if seq < trimmed_to and not self._is_seal(seq)]
        known += [(index.first, min(index.end, trimmed_to)) for index in self.indexes if index.first < trimmed_to]
        stretches: list[tuple[SegmentSeq, SegmentSeq]] = []
        for first, end in sorted(known):
            if stretches and first <= stretches[-1][1]:
                stretches[-1] = stretches[-1][0], max(end, stretches[-1][1])
            else:
                stretches.append((first, end))
        indexes = tuple(self.indexes)

        def listing(first: SegmentSeq, end: SegmentSeq) -> SessionListing:
            segments = tuple(self.objects.get(SegmentSeq(seq)) for seq in range(first, end))
            return SessionListing(self.session, first, segments, sealed=False, indexes=indexes)

        return [listing(first, end) for first, end in stretches]

    def readable_from(self) -> SegmentSeq:
        """Returns the first segment from which on none is missing up to the trim point; the trim point if the last one is gone."""
        seq = self.trimmed_to
        while seq > 0 and (before := SegmentSeq(seq - 1)) in self.objects and not self._is_seal(before):
            seq = before
        return seq

    def _is_seal(self, seq: SegmentSeq) -> bool:
        return self.objects[seq].size == SEAL_BYTES

    def again(self) -> ListedSession:
        """Returns an empty collection for another listing of the same range."""
        return ListedSession(self.session, since=self.since, objects_max=self.objects_max)

    def committed(self, committed_to: SegmentSeq = _FIRST, evidence: str = "") -> SessionListing:
        """Returns what is committed from `since` on: up to the first gap at or after `committed_to`, to the seal, or as far as was
        listed."""
        first = max(self.trimmed_to, self.since)
        segments: list[ObjectInfo | None] = []
        sealed = False
        while (found := self.objects.get(seq := SegmentSeq(first + len(segments)))) is not None or seq < committed_to:
            if self.cut_at is not None and seq >= self.cut_at:
                break
            if found is not None and found.size == SEAL_BYTES:
                sealed = True
                break
            segments.append(found)
        is_cut = self.cut_at is not None and first + len(segments) >= self.cut_at
        is_claimed = self.is_claimed or self.cut_at is not None
        return SessionListing(self.session, first, tuple(segments), sealed, tuple(self.indexes), evidence, is_cut, is_claimed)
