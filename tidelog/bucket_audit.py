"""Reads a bucket alone, with no broker, and checks every rule of segments/README.md that can be seen from there.

    listing ──▶ sessions: claim, places, gap, seal ──▶ footers of the committed prefix ──▶ partitions: offsets dense, epochs rising
                                                          └─ deep ──▶ each byte of each batch against its CRC-32C

A finding is `damage` where a rule is broken, and a `note` where something is odd but allowed: late objects behind a seal or a gap
are what crashes leave, and can never become visible. Nothing is written.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from metadata.errors import Corrupt, NotFound
from metadata.model import LeaderEpoch, SegmentSeq, SessionId, TopicPartition
from segments.bucket_layout import WAL, claim_key, parse_wal_key, segment_key
from segments.cluster_record import read_cluster_record
from segments.listing import objects_under
from segments.object_store import ObjectInfo, ObjectStore
from segments.record_batch import check_stored
from segments.segment_file import Run, SegmentFooter, parse_head, parse_seal
from segments.session import ClaimRecord, SessionListing, list_session
from segments.session_footers import read_footers

READS_MAX = 8
DEEP_READS_MAX = 2
"""Whole segments in memory at the same time."""


class Finding(msgspec.Struct, frozen=True):
    severity: Literal["damage", "note"]
    where: str
    """An object's key, or a partition as topic id/number."""
    what: str


@dataclass(slots=True)
class SessionObjects:
    """What lies under wal/{session}/."""

    session: SessionId
    places: dict[SegmentSeq, ObjectInfo] = field(default_factory=dict)
    has_claim: bool = False
    trimmed_to: SegmentSeq = field(default=SegmentSeq(0))

    def invisible(self, listing: SessionListing) -> list[ObjectInfo]:
        """Objects that no reader will ever see: behind the seal, behind the gap, or trimmed away but not yet deleted."""
        visible = range(listing.trimmed_to, listing.end_seq + listing.sealed)
        return [info for seq, info in sorted(self.places.items()) if seq not in visible]


class PlacedRun(msgspec.Struct, frozen=True):
    """A run with where it was found."""

    leader_epoch: LeaderEpoch
    session: SessionId
    seq: SegmentSeq
    run: Run


@dataclass(slots=True)
class TopicUsage:
    partitions: set[int] = field(default_factory=set)
    records: int = 0
    batch_bytes: int = 0
    segments: int = 0
    """Objects that hold some of it; they hold other topics, too."""


@dataclass(slots=True)
class Audit:
    """What was found."""

    url: str
    cluster_id: str = ""
    findings: list[Finding] = field(default_factory=list)
    sessions: int = 0
    sealed_sessions: int = 0
    segments: int = 0
    segment_bytes: int = 0
    invisible_objects: int = 0
    invisible_bytes: int = 0
    objects: int = 0
    batches_read: int = 0
    topics: dict[str, TopicUsage] = field(default_factory=lambda: defaultdict(TopicUsage))

    @property
    def records(self) -> int:
        return sum(usage.records for usage in self.topics.values())

    @property
    def is_sound(self) -> bool:
        return not any(finding.severity == "damage" for finding in self.findings)

    def damage(self, where: str, what: str) -> None:
        self.findings.append(Finding("damage", where, what))

    def note(self, where: str, what: str) -> None:
        self.findings.append(Finding("note", where, what))


async def audit_bucket(
    store: ObjectStore, *, deep: bool = False, advance: Callable[[int, int], None] = lambda done, of: None
) -> Audit:
    """Reads all footers, and with `deep` every byte. `advance` hears of segments done, and of how many there are.

    Raises what the store raises when it can't be listed or read; damage is reported, not raised.
    """
    audit = Audit(store.url)
    sessions = await _list_sessions(store, audit)
    await _check_cluster(store, audit, is_used=bool(sessions))
    committed = {session: await list_session(store, session) for session in sessions}
    audit.segments = sum(info is not None for listing in committed.values() for info in listing.segments)
    runs: dict[TopicPartition, list[PlacedRun]] = defaultdict(list)
    done = 0
    for session, objects in sorted(sessions.items()):
        listing = committed[session]
        writer = await _check_session(store, objects, listing, audit)
        for seq, footer in enumerate(await _footers(store, listing, audit), start=listing.trimmed_to):
            if isinstance(footer, Corrupt):
                audit.damage(segment_key(session, SegmentSeq(seq)), footer.message)
                continue
            for run in footer.runs:
                runs[run.partition].append(PlacedRun(run.leader_epoch, session, footer.seq, run))
            _count(audit, footer)
        present = [info for info in listing.segments if info is not None]
        if deep:
            for start in range(0, len(present), DEEP_READS_MAX):
                part = present[start : start + DEEP_READS_MAX]
                await asyncio.gather(*(_check_segment(store, info, writer, audit) for info in part))
                done += len(part)
                advance(done, audit.segments)
        else:
            done += len(present)
            advance(done, audit.segments)
    trimmed = {session for session, objects in sessions.items() if objects.trimmed_to}
    for partition, placed in sorted(runs.items()):
        audit.findings += check_offsets(partition, placed, may_begin_late=bool(trimmed))
    return audit


# ── the decisions ──


def check_offsets(partition: TopicPartition, placed: Iterable[PlacedRun], *, may_begin_late: bool) -> list[Finding]:
    """Whether the runs of a partition, by leader epoch, continue each other from offset 0 (or from where history was trimmed)."""
    findings: list[Finding] = []
    end: int | None = None if may_begin_late else 0
    for epoch, session, seq, run in sorted(
        ((found.leader_epoch, found.session, found.seq, found.run) for found in placed), key=lambda found: found[:3]
    ):
        where = f"{partition} in {segment_key(session, seq)}"
        if end is not None and run.base_offset > end:
            findings.append(
                Finding("damage", where, f"offsets {end} to {run.base_offset - 1} are missing before it (leader epoch {epoch})")
            )
        elif end is not None and run.base_offset < end:
            doubled = min(run.last_offset, end - 1)
            findings.append(Finding("damage", where, f"offsets {run.base_offset} to {doubled} exist twice (leader epoch {epoch})"))
        if run.record_count != run.last_offset - run.base_offset + 1:
            count = run.last_offset - run.base_offset + 1
            findings.append(Finding("damage", where, f"{run.record_count} records for {count} offsets"))
        end = max(end or 0, run.last_offset + 1)
    return findings


def check_segment_bytes(body: bytes, footer: SegmentFooter, *, writer: str, key: str) -> list[Finding]:
    """Each batch of a segment against its CRC-32C, its footer entry and its leader epoch; the header against the claim."""
    findings: list[Finding] = []
    head = parse_head(body, key=key)
    if head.is_seal or (head.session, head.seq) != (footer.session, footer.seq):
        findings.append(Finding("damage", key, f"its header is that of segment {head.seq} of session {head.session}"))
    if writer and head.writer.hex() != writer:
        findings.append(Finding("damage", key, "it was written by another process than the one that claimed the session"))
    for run in footer.runs:
        offset: int = run.base_offset
        for entry in footer.batches(run):
            batch = memoryview(body)[entry.start : entry.start + entry.size_bytes]
            where = f"{key} [{entry.start}, {entry.start + entry.size_bytes})"
            try:
                header = check_stored(batch, key=key, start=entry.start)
            except Corrupt as error:
                findings.append(Finding("damage", where, error.message))
                offset = entry.last_offset + 1
                continue
            told = (entry.base_offset, entry.last_offset, entry.record_count, entry.crc, run.leader_epoch)
            found = (header.base_offset, header.last_offset, header.record_count, header.crc, header.leader_epoch)
            if told != found or header.base_offset != offset:
                findings.append(Finding("damage", where, "the batch is not the one that the footer tells of"))
            offset = entry.last_offset + 1
    return findings


# ── reading ──


async def _check_cluster(store: ObjectStore, audit: Audit, *, is_used: bool) -> None:
    try:
        record = await read_cluster_record(store)
    except Corrupt as error:
        audit.damage("cluster.json", error.message)
        return
    if record is None and is_used:
        audit.damage("cluster.json", "it is missing, and sessions lie here: it says which cluster they belong to")
    elif record is None:
        audit.note("cluster.json", "it is missing: no cluster has used this prefix yet, or it is the wrong one")
    else:
        audit.cluster_id = record.cluster_id


async def _list_sessions(store: ObjectStore, audit: Audit) -> dict[SessionId, SessionObjects]:
    sessions: dict[SessionId, SessionObjects] = {}
    async for info in objects_under(store, WAL):
        audit.objects += 1
        parsed = parse_wal_key(info.key)
        if parsed is None:
            audit.note(info.key, "it is none of Tidelog's objects")
            continue
        objects = sessions.setdefault(parsed.session, SessionObjects(parsed.session))
        if parsed.seq is not None:
            objects.places[parsed.seq] = info
            audit.segment_bytes += info.size
        elif parsed.trimmed_to is not None:
            objects.trimmed_to = max(objects.trimmed_to, parsed.trimmed_to)
        elif parsed.indexed is None:
            objects.has_claim = True
    audit.sessions = len(sessions)
    return sessions


async def _check_session(store: ObjectStore, objects: SessionObjects, listing: SessionListing, audit: Audit) -> str:
    """Claim, seal, and what lies behind the end; answers the writer that the claim names, empty where it is not known."""
    if invisible := objects.invisible(listing):
        audit.invisible_objects += len(invisible)
        audit.invisible_bytes += sum(info.size for info in invisible)
        end = "the seal" if listing.sealed else f"the gap at {listing.end_seq}"
        audit.note(invisible[0].key, f"{_objects(len(invisible))} behind {end}: not committed, and never visible")
    if listing.sealed:
        audit.sealed_sessions += 1
        key = segment_key(objects.session, listing.end_seq)
        try:
            seal = parse_seal(await store.get(key), key=key)
            if (seal.session, seal.seq) != (objects.session, listing.end_seq):
                audit.damage(key, f"it is the seal of session {seal.session} at {seal.seq}")
        except (Corrupt, NotFound) as error:
            audit.damage(key, error.message)
    key = claim_key(objects.session)
    if not objects.has_claim:
        audit.damage(key, "the session has objects and no claim")
        return ""
    try:
        claim = msgspec.json.decode(await store.get(key), type=ClaimRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, NotFound) as error:
        audit.damage(key, f"the claim can't be read: {error}")
        return ""
    if claim.session != objects.session:
        audit.damage(key, f"it is the claim of session {claim.session}")
    return claim.writer


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"


async def _footers(store: ObjectStore, listing: SessionListing, audit: Audit) -> list[SegmentFooter | Corrupt]:
    try:
        return await read_footers(store, listing, reads_max=READS_MAX)
    except NotFound as error:
        audit.note(f"{WAL}{listing.session:016x}/", f"it was trimmed while we read: {error.message}; run it again")
        return []


async def _check_segment(store: ObjectStore, info: ObjectInfo, writer: str, audit: Audit) -> None:
    parsed = parse_wal_key(info.key)
    assert parsed is not None
    assert parsed.seq is not None
    one = SessionListing(parsed.session, parsed.seq, (info,), sealed=False)
    try:
        (footer,) = await read_footers(store, one, reads_max=1)
        body = await store.get(info.key)
    except NotFound:
        return  # trimmed meanwhile
    if isinstance(footer, Corrupt):
        return  # reported with the footers
    try:
        audit.findings += check_segment_bytes(body, footer, writer=writer, key=info.key)
    except Corrupt as error:
        audit.damage(info.key, error.message)
    audit.batches_read += len(footer.batch_table)


def _count(audit: Audit, footer: SegmentFooter) -> None:
    for topic_id in {run.partition.topic_id for run in footer.runs}:
        audit.topics[topic_id].segments += 1
    for run in footer.runs:
        usage = audit.topics[run.partition.topic_id]
        usage.partitions.add(run.partition.partition)
        usage.records += run.record_count
        usage.batch_bytes += run.end - run.start
