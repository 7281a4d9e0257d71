"""Begins a broker's session on the bucket (claim), finds how far it is committed, and ends it (seal).

Here a zombie is fenced: from the seal on, no later segment of the session can become visible, whatever its process believes.

    wal/{session}/   0   1   2   seal   4        committed: 0 1 2.  4 came late and will never be seen.
                                  ▲ created at the first gap

A gap below what some object calls committed is no end: a segment there was deleted by hand. It is listed as missing, and
later segments still count.

Invariants: a session number is claimed by one process; a sealed session stays sealed, and its seal is never deleted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from metadata.errors import AlreadyExists, Corrupt, NotFound, OutcomeUnknown, Unavailable
from metadata.model import SegmentSeq, SessionId
from metadata.retry import RetryPauses, retry
from segments.bucket import layout as bucket_layout
from segments.bucket.layout import parse_wal_key
from segments.object_store.interface import Buffer, ObjectInfo, ObjectStore, is_unsynced, list_all
from segments.wal.footer_reader import read_footer
from segments.wal.segment_file import SEAL_BYTES, encode_seal, parse_head, parse_seal
from segments.wal.session_listing import ListedSession, SessionListing

FORMAT_VERSION = 1
# Pause before a claim, or a seal, is tried again.
CLAIM_PAUSE_S = 0.2
_FIRST = SegmentSeq(0)


class ClaimRecord(msgspec.Struct, frozen=True):
    """Holds the content of `wal/{session}/claim`, as JSON: for people, and to distinguish one's own claim from another's."""

    session: SessionId
    # 32 hex digits: the nonce in the header of every object of this session's owner.
    writer: str
    broker_id: str
    claimed_at_ms: int
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Session:
    """Identifies a broker process on the bucket."""

    id: SessionId
    # 16 random bytes, drawn for each session.
    writer: bytes


async def claim(
    store: ObjectStore,
    *,
    next_number: Callable[[], Awaitable[SessionId]],
    writer: bytes,
    broker_id: str,
    now_ms: Callable[[], int],
    pass_over: Callable[[SessionId], Awaitable[None]],
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
            if await _is_ours(store, key, writer):
                return Session(number, writer)
            await pass_over(number)
            number = await next_number()
        except (Unavailable, OutcomeUnknown) as error:
            if is_unsynced(error):
                raise
            await asyncio.sleep(CLAIM_PAUSE_S)


async def _is_ours(store: ObjectStore, key: str, writer: bytes) -> bool:
    """Returns whether the claim in the way is this process's own: a create whose answer was lost may have made it."""
    body = await retry(lambda: store.get(key), on=Unavailable, pauses=RetryPauses(CLAIM_PAUSE_S, CLAIM_PAUSE_S))
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
    store: ObjectStore, session: SessionId, *, committed_to: SegmentSeq = _FIRST, evidence: str = ""
) -> SessionListing:
    """Lists the committed prefix of a session on the bucket, up to its seal or the first gap that no object disproves.

    `committed_to` and `evidence`: how far the caller knows the session to be committed, and from which object.
    """
    listed = await list_objects(store, ListedSession(session))
    return await committed_in(store, listed, committed_to=committed_to, evidence=evidence)


async def committed_in(
    store: ObjectStore, listed: ListedSession, *, committed_to: SegmentSeq = _FIRST, evidence: str = ""
) -> SessionListing:
    """Returns what a fresh listing shows to be committed, and lists again where it shows a gap that may be none."""
    while True:
        listing = listed.committed(committed_to, evidence)
        behind = [seq for seq in listed.objects if seq > listing.end_seq]
        if listing.sealed or not behind:
            return listing
        try:
            proven_to, evidence_there = await _committed_by_evidence(store, listed.session, listed.objects, behind)
        except NotFound:  # trimmed since the listing
            listed = await list_objects(store, listed.again())
            continue
        if proven_to <= listing.end_seq:
            return listing
        # a listing of several pages may miss what landed behind its back, so look again: what is vouched for was there by now
        return (await list_objects(store, listed.again())).committed(proven_to, evidence_there)


async def list_objects(store: ObjectStore, listed: ListedSession) -> ListedSession:
    """Lists the session, from `listed.since` on."""
    prefix = bucket_layout.session_prefix(listed.session)
    start_after = bucket_layout.segment_key(listed.session, SegmentSeq(listed.since - 1)) if listed.since else ""
    while True:
        page = await store.list(prefix, start_after=start_after)
        for found in page.objects:
            listed.take_in(found)
        if not page.more:
            return listed
        start_after = max(page.objects[-1].key, listed.skip_to)


async def _committed_by_evidence(
    store: ObjectStore, session: SessionId, objects: Mapping[SegmentSeq, ObjectInfo], behind: Iterable[SegmentSeq]
) -> tuple[SegmentSeq, str]:
    """Returns how far the objects behind a gap prove the session to be committed, and which one proves it.

    Segments are written in order, so the last sound one knows most of them; a seal may know more.
    """
    best, evidence, segment_heard = _FIRST, "", False
    for seq in sorted(behind, reverse=True):
        info = objects[seq]
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
    patience_s: float = math.inf,
) -> SessionListing:
    """Ends another broker's session, and returns its committed prefix, which can't grow from now on.

    Looks for the first gap and creates the seal there, until a listing shows a seal at the first gap: a seal that was created does
    not prove it, since the segment that stood there may have been compacted, trimmed and deleted since the listing. Retries while
    the bucket is away, because without the seal no successor may begin; with `patience_s`, raises the bucket's error
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
    return await retry(create_seal, on=away, pauses=RetryPauses(CLAIM_PAUSE_S, CLAIM_PAUSE_S), for_s=patience_s)


async def trim_markers(store: ObjectStore, session: SessionId) -> list[SegmentSeq]:
    """Returns the trim markers of the session, in ascending order. Raises Unavailable."""
    parsed = [parse_wal_key(found.key) async for found in list_all(store, bucket_layout.trimmed_prefix(session))]
    return [one.trimmed_to for one in parsed if one is not None and one.trimmed_to is not None]


async def trim_point(store: ObjectStore, session: SessionId) -> SegmentSeq:
    """Returns the trim point: everything of the session below it was committed and compacted, and may be gone."""
    return max(await trim_markers(store, session), default=_FIRST)


async def find_seal(store: ObjectStore, session: SessionId, *, from_seq: SegmentSeq) -> SegmentSeq | None:
    """Returns the first place from `from_seq` on with a seal that ends the session.

    All places are listed, not only a page of them: while the outcome of one PUT is not known, a thousand may land behind it. A seal
    below the trim point ends nothing: it came late, to where a segment had been compacted and deleted.
    """
    start_after = bucket_layout.segment_key(session, SegmentSeq(from_seq - 1)) if from_seq else ""
    seals: list[SegmentSeq] = []
    while True:
        page = await store.list(bucket_layout.session_prefix(session), start_after=start_after)
        for found in page.objects:
            parsed = parse_wal_key(found.key)
            if parsed is not None and parsed.seq is not None and found.size == SEAL_BYTES:
                seals.append(parsed.seq)
        start_after = page.objects[-1].key if page.objects else ""
        if not page.more or start_after >= bucket_layout.claim_key(session):
            break
    trimmed_to = await trim_point(store, session) if seals else _FIRST  # after the listing: the marker came before the delete
    return next((seq for seq in seals if seq >= trimmed_to), None)


async def first_with_segments(store: ObjectStore, *, from_session: SessionId) -> SessionId | None:
    """Returns the first session from this number on that has written a segment. A claim or a seal holds no record."""
    start_after = bucket_layout.end_of_session(SessionId(from_session - 1))
    while True:
        page = await store.list(bucket_layout.WAL, start_after=start_after)
        for found in page.objects:
            parsed = parse_wal_key(found.key)
            if parsed is not None and (parsed.trimmed_to or (parsed.seq is not None and found.size != SEAL_BYTES)):
                return parsed.session
        if not page.more:
            return None
        start_after = page.objects[-1].key


async def session_after(store: ObjectStore, session: SessionId | None) -> SessionId | None:
    """Returns the first session behind this one, or the first of all, that has any object. One request. Raises Unavailable."""
    start_after = bucket_layout.end_of_session(session) if session is not None else ""
    while objects := (await store.list(bucket_layout.WAL, start_after=start_after, limit=1)).objects:
        parsed = parse_wal_key(objects[0].key)
        if parsed is not None:
            return parsed.session
        start_after = objects[0].key
    return None


async def sessions_from(store: ObjectStore, session: SessionId) -> list[SessionId]:
    """Returns the sessions from this number on that have any object. Raises Unavailable."""
    found: list[SessionId] = []
    before: SessionId | None = SessionId(session - 1)
    while (before := await session_after(store, before)) is not None:
        found.append(before)
    return found


async def is_segment_there(store: ObjectStore, session: SessionId, seq: SegmentSeq, body: Sequence[Buffer]) -> bool:
    """Returns whether the object at this place has the bytes of `body`; False if a seal is there.

    The nonce in the header and the length prove nothing alone: a virtual machine that was set back with its memory sends other
    records under the number, the nonce and perhaps the length of a segment that it has sent before. Raises Corrupt if another
    object is there; NotFound if there is none (it may have been trimmed).
    """
    key = bucket_layout.segment_key(session, seq)
    found = await store.get(key)
    if found == b"".join(body):
        return True
    head = parse_head(found, key=key)
    if head.is_seal:
        return False
    if (head.session, head.seq) != (session, seq):
        raise Corrupt(f"{key} holds segment {head.seq} of session {head.session}", key=key)
    raise Corrupt(
        f"{key} holds another segment of {len(found)} bytes than the one that was sent",
        hint="It is torn, or another process has used this session: a copy of this one's memory, as after a virtual machine was "
        "resumed from a snapshot.",
        key=key,
        writer=head.writer.hex(),
    )
