"""A broker process's life on the bucket: how it begins (claim), how far it is committed, and how it is ended (seal).

Here a zombie is fenced: from the seal on, no later segment of the session can become visible, whatever its process believes.

    wal/{session}/   0   1   2   seal   4        committed: 0 1 2.  4 came late and will never be seen.
                                  ▲ created at the first gap

A gap below what some object calls committed is no end: there lay a segment that somebody deleted. It is listed as missing, and
what lies behind it still counts.

Invariants: a session number is claimed by one process; a sealed session is sealed for ever, and its seal is never deleted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from metadata.errors import AlreadyExists, Corrupt, NotFound, OutcomeUnknown, Unavailable
from metadata.model import SegmentSeq, SessionId
from metadata.retry import RetryPauses, retry
from segments.bucket import layout as bucket_layout
from segments.object_store.interface import ObjectInfo, ObjectStore, is_unsynced, objects_under
from segments.wal.footer_index import IndexRange
from segments.wal.footer_reader import read_footer
from segments.wal.segment_file import SEAL_BYTES, encode_seal, parse_head, parse_seal

FORMAT_VERSION = 1
_FIRST = SegmentSeq(0)
_INDEX_REACH = 1024
"""An index that begins so many segments before what is looked at may tell of it."""


class ClaimRecord(msgspec.Struct, frozen=True):
    """What `wal/{session}/claim` holds, as JSON: for people, and to tell one's own claim from another's."""

    session: SessionId
    writer: str
    """32 hex digits: the nonce in the header of every object of this session's owner."""
    broker_id: str
    claimed_at_ms: int
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Session:
    id: SessionId
    writer: bytes
    """16 random bytes, drawn anew for each session."""


@dataclass(frozen=True, slots=True)
class SessionListing:
    """What a listing of a session shows: places from the trim point on, up to the first gap or seal."""

    session: SessionId
    trimmed_to: SegmentSeq
    segments: tuple[ObjectInfo | None, ...]
    """The committed segments, place by place from `trimmed_to` on; None where one is missing."""
    sealed: bool
    """Whether a seal stands at `end_seq`."""
    indexes: tuple[IndexRange, ...] = ()
    """Of footers of its segments."""
    evidence: str = ""
    """The key of the object that says that the missing ones were committed."""
    is_cut: bool = False
    """Whether it ends where nothing more was listed, and may go on behind."""
    is_claimed: bool = True
    """Whether its claim was listed. A claim is created before anything else of the session, and is never deleted."""

    @property
    def is_missing(self) -> bool:
        """Whether all objects of the session are gone but its seal, which a successor may have created since."""
        return self.end_seq == 0 and not self.is_claimed

    @property
    def end_seq(self) -> SegmentSeq:
        return SegmentSeq(self.trimmed_to + len(self.segments))

    def up_to(self, seq: SegmentSeq) -> SessionListing:
        """The same session as if it ended before `seq`."""
        if seq >= self.end_seq:
            return self
        return replace(self, segments=self.segments[: max(0, seq - self.trimmed_to)], sealed=False)

    def since(self, seq: SegmentSeq) -> SessionListing:
        """The same session without what stands before `seq`."""
        if seq <= self.trimmed_to:
            return self
        return replace(self, trimmed_to=seq, segments=self.segments[seq - self.trimmed_to :])


async def claim(
    store: ObjectStore,
    *,
    next_number: Callable[[], Awaitable[SessionId]],
    writer: bytes,
    broker_id: str,
    now_ms: Callable[[], int],
    pass_over: Callable[[SessionId], Awaitable[None]],
    pause_s: float = 0.2,
) -> Session:
    """Claims the next free session number. Retries while the bucket is away.

    A number that another process has claimed is not used. `pass_over` is awaited with it before the next number is taken. Raises
    Unavailable or OutcomeUnknown where the bucket can't make a claim durable.
    """
    number = await next_number()
    while True:
        record = ClaimRecord(number, writer.hex(), broker_id, now_ms())
        key = bucket_layout.claim_key(number)
        try:
            await store.create(key, [msgspec.json.encode(record)])
            return Session(number, writer)
        except AlreadyExists:
            if await _is_ours(store, key, writer, pause_s):
                return Session(number, writer)
            await pass_over(number)
            number = await next_number()
        except (Unavailable, OutcomeUnknown) as error:
            if is_unsynced(error):
                raise
            await asyncio.sleep(pause_s)


async def _is_ours(store: ObjectStore, key: str, writer: bytes, pause_s: float) -> bool:
    """A create whose answer was lost may have made the claim that now stands in the way."""
    body = await retry(lambda: store.get(key), on=Unavailable, pauses=RetryPauses(pause_s, pause_s))
    try:
        return msgspec.json.decode(body, type=ClaimRecord).writer == writer.hex()
    except msgspec.MsgspecError:
        return False


async def read_claim(store: ObjectStore, session: SessionId) -> str | None:
    """Returns the nonce of the process that has claimed this number, in hex digits; None where the number is not claimed.

    The nonce is empty where the claim can't be read. Raises Unavailable.
    """
    try:
        return msgspec.json.decode(await store.get(bucket_layout.claim_key(session)), type=ClaimRecord).writer
    except NotFound:
        return None
    except msgspec.MsgspecError:
        return ""


async def list_session(
    store: ObjectStore,
    session: SessionId,
    *,
    committed_to: SegmentSeq = _FIRST,
    evidence: str = "",
    since: SegmentSeq = _FIRST,
    places_max: int | None = None,
) -> SessionListing:
    """The committed prefix of a session as the bucket shows it now: up to the first gap that no object disproves, or its seal.

    `committed_to` and `evidence`: how far it is committed as the caller knows it, and from where. `since` and `places_max`: as of
    SessionLook, for who knows the places before, and has room for so many.
    """
    while True:
        look = await looked_at(store, SessionLook(session, since=since, places_max=places_max))
        listing = look.committed(committed_to, evidence, since=since)
        behind = [seq for seq in look.places if seq > listing.end_seq]
        if listing.sealed or not behind:
            return listing
        try:
            told_to, teller = await _committed_by_evidence(store, session, look.places, behind)
        except NotFound:
            continue  # trimmed since the look
        if told_to <= listing.end_seq:
            return listing
        # a listing of several pages may miss what landed behind its back, so look again: what is vouched for was there by now
        look = await looked_at(store, SessionLook(session, since=since, places_max=places_max))
        return look.committed(told_to, teller, since=since)


@dataclass(slots=True)
class SessionLook:
    """What a listing of a session showed, or of its places from `since` on.

    Where it has more than `places_max` of these, it is cut off: those behind are skipped, and the indexes that tell of them.
    """

    session: SessionId
    places: dict[SegmentSeq, ObjectInfo] = field(default_factory=dict)
    trimmed_to: SegmentSeq = _FIRST
    indexes: list[IndexRange] = field(default_factory=list)
    since: SegmentSeq = _FIRST
    places_max: int | None = None
    cut_at: SegmentSeq | None = None
    """Of this place, and those behind it, nothing is known. None: all was listed."""
    skip_to: str = ""
    """The listing may go on behind this key: nothing up to there is of use."""
    is_claimed: bool = False
    """Whether the claim was listed. False also where the listing was cut off before it."""

    def take_in(self, found: ObjectInfo) -> bucket_layout.WalKey | None:
        """The next object of the listing, and what its name says; one that Tidelog did not write is passed over."""
        parsed = bucket_layout.parse_wal_key(found.key)
        if parsed is None or found.key <= self.skip_to:
            return None
        self.is_claimed |= found.key == bucket_layout.claim_key(self.session)
        if parsed.seq is not None:
            if self.places_max is not None and len(self.places) >= self.places_max:
                self.cut_at = SegmentSeq(next(reversed(self.places)) + 1)
                self.skip_to = bucket_layout.claim_key(self.session)
                return None
            self.places[parsed.seq] = found
        elif parsed.trimmed_to is not None:
            self.trimmed_to = max(self.trimmed_to, parsed.trimmed_to)
        elif parsed.indexed is not None:
            index = IndexRange(*parsed.indexed)
            self.indexes.append(index)
            if self.cut_at is not None:
                self.skip_to = self._next_of_use(index, self.cut_at)
        return parsed

    def _next_of_use(self, index: IndexRange, cut_at: SegmentSeq) -> str:
        """Behind this index. A session with many places has many indexes, and most are not listed anew for each part of it."""
        if index.end >= cut_at:
            return bucket_layout.trimmed_prefix(self.session)
        near = SegmentSeq(max(0, self.since - _INDEX_REACH))
        return max(self.skip_to, bucket_layout.index_key(self.session, near, _FIRST)) if index.end < near else self.skip_to

    def committed(self, committed_to: SegmentSeq, evidence: str, *, since: SegmentSeq = _FIRST) -> SessionListing:
        """Up to the first gap at or after `committed_to`, to the seal, or as far as was listed. `since`: all below is known."""
        first = max(self.trimmed_to, since)
        segments: list[ObjectInfo | None] = []
        sealed = False
        while (found := self.places.get(seq := SegmentSeq(first + len(segments)))) is not None or seq < committed_to:
            if self.cut_at is not None and seq >= self.cut_at:
                break
            if found is not None and found.size == SEAL_BYTES:
                sealed = True
                break
            segments.append(found)
        is_cut = self.cut_at is not None and first + len(segments) >= self.cut_at
        is_claimed = self.is_claimed or self.cut_at is not None
        return SessionListing(self.session, first, tuple(segments), sealed, tuple(self.indexes), evidence, is_cut, is_claimed)


async def looked_at(store: ObjectStore, look: SessionLook, *, take_in: Callable[[ObjectInfo], object] | None = None) -> SessionLook:
    """Lists the session, from `look.since` on. `take_in`: in place of its own, for who looks at more than it."""
    prefix = bucket_layout.session_prefix(look.session)
    start_after = bucket_layout.segment_key(look.session, SegmentSeq(look.since - 1)) if look.since else ""
    while True:
        page = await store.list(prefix, start_after=start_after)
        for found in page.objects:
            (take_in or look.take_in)(found)
        if not page.more:
            return look
        start_after = max(page.objects[-1].key, look.skip_to)


async def _committed_by_evidence(
    store: ObjectStore, session: SessionId, places: Mapping[SegmentSeq, ObjectInfo], behind: Iterable[SegmentSeq]
) -> tuple[SegmentSeq, str]:
    """How far the objects behind a gap say that the session was committed, and which one says so.

    Segments are written in order, so the last sound one knows most of them; a seal may know more.
    """
    best, evidence, segment_heard = _FIRST, "", False
    for seq in sorted(behind, reverse=True):
        info = places[seq]
        is_seal = info.size == SEAL_BYTES
        if segment_heard and not is_seal:
            continue
        try:
            if is_seal:
                committed_to = parse_seal(await store.get(info.key), key=info.key).committed_to
            else:
                committed_to = (await read_footer(store, info, session, seq)).committed_to
                segment_heard = True
        except Corrupt:
            continue  # it can't speak for others
        if committed_to > best:
            best, evidence = committed_to, info.key
    return best, evidence


async def seal(
    store: ObjectStore,
    session: SessionId,
    *,
    by: Session | None,
    now_ms: Callable[[], int],
    pause_s: float = 0.2,
    patience_s: float = math.inf,
) -> SessionListing:
    """Ends another's session, and answers its committed prefix, which from now on can't grow.

    Looks for the first gap and creates the seal there, until a look shows a seal at the first gap: a seal that was created does
    not prove it, since the segment that stood there may have been compacted, trimmed and deleted since the look. Retries while
    the bucket is away, because without the seal nobody may go on; where the caller has `patience_s`, raises what the bucket says
    when it has failed for longer. `by` is the sealing session, None for a tool.
    """
    writer, sealed_by = (by.writer, by.id) if by is not None else (bytes(16), SessionId(0))

    async def create_seal() -> SessionListing:
        while True:
            listing = await list_session(store, session)
            if listing.sealed:
                return listing  # whatever its bytes say: that it stands there is what fences
            end_seq = listing.end_seq
            body = encode_seal(
                session=session, seq=end_seq, writer=writer, committed_to=end_seq, sealed_at_ms=now_ms(), sealed_by=sealed_by
            )
            with suppress(AlreadyExists):
                await store.create(bucket_layout.segment_key(session, end_seq), [body])

    away = Unavailable, OutcomeUnknown
    return await retry(create_seal, on=away, pauses=RetryPauses(pause_s, pause_s), for_s=patience_s)


async def trim_point(store: ObjectStore, session: SessionId) -> SegmentSeq:
    """Everything of the session below this place was committed and compacted, and may be gone."""
    trimmed_to = SegmentSeq(0)
    async for found in objects_under(store, bucket_layout.trimmed_prefix(session)):
        parsed = bucket_layout.parse_wal_key(found.key)
        if parsed is not None and parsed.trimmed_to is not None:
            trimmed_to = max(trimmed_to, parsed.trimmed_to)
    return trimmed_to


async def find_seal(store: ObjectStore, session: SessionId, *, from_seq: SegmentSeq) -> SegmentSeq | None:
    """The first place from `from_seq` on with a seal that ends the session.

    All places are listed, not only a page of them: while the outcome of one PUT is not known, a thousand may land behind it. A seal
    below the trim point ends nothing: it came late, to where a segment had been compacted and deleted.
    """
    start_after = bucket_layout.segment_key(session, SegmentSeq(from_seq - 1)) if from_seq else ""
    seals: list[SegmentSeq] = []
    while True:
        page = await store.list(bucket_layout.session_prefix(session), start_after=start_after)
        for found in page.objects:
            parsed = bucket_layout.parse_wal_key(found.key)
            if parsed is not None and parsed.seq is not None and found.size == SEAL_BYTES:
                seals.append(parsed.seq)
        start_after = page.objects[-1].key if page.objects else ""
        if not page.more or start_after >= bucket_layout.claim_key(session):
            break
    trimmed_to = await trim_point(store, session) if seals else _FIRST  # after the look: the marker came before the delete
    return next((seq for seq in seals if seq >= trimmed_to), None)


async def first_with_segments(store: ObjectStore, *, from_session: SessionId) -> SessionId | None:
    """The first session from this number on that has written anything; a claim and a seal alone hold no record."""
    start_after = bucket_layout.end_of_session(SessionId(from_session - 1))
    while True:
        page = await store.list(bucket_layout.WAL, start_after=start_after)
        for found in page.objects:
            parsed = bucket_layout.parse_wal_key(found.key)
            if parsed is not None and (parsed.trimmed_to or (parsed.seq is not None and found.size != SEAL_BYTES)):
                return parsed.session
        if not page.more:
            return None
        start_after = page.objects[-1].key


async def sessions_from(store: ObjectStore, session: SessionId) -> list[SessionId]:
    """Returns the sessions from this number on that have any object. Raises Unavailable."""
    found: list[SessionId] = []
    start_after = bucket_layout.end_of_session(SessionId(session - 1))
    while objects := (await store.list(bucket_layout.WAL, start_after=start_after, limit=1)).objects:
        parsed = bucket_layout.parse_wal_key(objects[0].key)
        start_after = objects[0].key
        if parsed is not None:
            found.append(parsed.session)
            start_after = bucket_layout.end_of_session(parsed.session)
    return found


async def who_wrote(store: ObjectStore, session: SessionId, seq: SegmentSeq, *, bytes_expected: int) -> bytes | None:
    """The nonce of the segment at this place, or None when a seal stands there.

    Corrupt when the object is neither, or torn; NotFound when nothing stands there (any more: it may have been trimmed).
    """
    key = bucket_layout.segment_key(session, seq)
    body = await store.get(key)
    head = parse_head(body, key=key)
    if head.is_seal:
        return None
    if (head.session, head.seq) != (session, seq) or len(body) != bytes_expected:
        raise Corrupt(f"{key} holds segment {head.seq} of session {head.session} with {len(body)} bytes", key=key)
    return head.writer
