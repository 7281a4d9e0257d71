"""Reads a bucket alone, with no broker, and checks every rule of docs/design/segments.md that can be seen from there.

    listing ──▶ sessions: claim, places, gap, seal ──▶ footers of the committed prefix ──▶ runs ─┐
                                       └─ deep ──▶ each byte of each batch against its CRC-32C   ├▶ partitions: offsets dense,
    listing ──▶ manifests, Parquet (history_audit.py) ──▶ where segments go on ──────────────────┘  epochs rising

A finding is `damage` where a rule is broken, and a `note` where something is odd but allowed: late objects behind a seal or a gap
are what crashes leave, and can never become visible. Nothing is written. History is read after the sessions, so that what was
compacted and trimmed meanwhile is in it. Where offsets in segments seem to be missing, all is read once more, and what the second
reading shows too is reported.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from compaction.audit.findings import Audit, Finding
from compaction.audit.history_audit import History, HistoryEnd, audit_history
from compaction.audit.trimmed_segments import TrimmedSession, without_manifest
from metadata.errors import Corrupt, NotFound, TooLarge
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from segments.bucket.cluster_record import read_cluster_record
from segments.bucket.layout import WAL, claim_key, segment_key, session_prefix
from segments.history.manifest import may_follow
from segments.object_store.interface import ObjectInfo, ObjectStore, list_all
from segments.records.batch import check_stored
from segments.wal.known_sessions import SEGMENTS_AT_ONCE, sort_in
from segments.wal.segment_file import SEAL_BYTES, Run, SegmentFooter, parse_footer, parse_head, parse_seal
from segments.wal.session import ClaimRecord, committed_in
from segments.wal.session_listing import ListedSession, SessionListing
from segments.wal.session_reader import GONE_TRIES, read_below_trim_point, read_committed

__all__ = ["Audit", "Finding", "audit_bucket"]

READS_MAX = 8
# Whole segments in memory at the same time.
DEEP_READS_MAX = 2
# Called with what is read, how much of it is done, and how much there is.
Advance = Callable[[str, int, int], None]


class SegmentRun(msgspec.Struct, frozen=True):
    """A run with where it was found."""

    leader_epoch: LeaderEpoch
    session: SessionId
    seq: SegmentSeq
    run: Run


async def audit_bucket(
    store: ObjectStore, *, deep: bool = False, advance: Advance = lambda what, done, of: None, runs_max: int | None = None
) -> Audit:
    """Reads all footers, and with `deep` every byte. `runs_max` bounds the runs, and the objects of sessions, kept in memory.

    Raises what the store raises when it can't be listed or read, and TooLarge beyond `runs_max`; damage is reported, not raised.
    """
    audit, gaps = await _read_bucket(store, deep, advance, runs_max)
    if gaps:  # a partition that moves while sessions are listed shows a gap where there is none
        _, again = await _read_bucket(store, False, lambda what, done, of: None, runs_max)
        gaps = [gap for gap in gaps if gap in again]
    audit.findings += gaps
    audit.sum_up_notes()
    return audit


async def _read_bucket(store: ObjectStore, deep: bool, advance: Advance, runs_max: int | None) -> tuple[Audit, list[Finding]]:
    """Returns what was found, without the notes' sums, and apart from it what is wrong with offsets in segments."""
    audit = Audit(store.url)
    sessions = await _list_sessions(store, audit, runs_max)
    committed = {session: await committed_in(store, listed) for session, listed in sessions.items()}
    audit.segments = sum(info is not None for listing in committed.values() for info in listing.segments)
    runs: dict[TopicPartition, list[SegmentRun]] = defaultdict(list)
    trimmed: list[TrimmedSession] = []
    done = 0
    for session, listed in sorted(sessions.items()):
        trimmed.append(await _read_trimmed(store, listed, audit))
        writer = await _check_session(store, listed, committed[session], audit)
        try:
            async for part, footers in read_committed(
                store, committed[session], reads_max=READS_MAX, segments_max=SEGMENTS_AT_ONCE
            ):
                _check_footers(part, footers, runs, audit)
                _check_bound(sum(used.runs for used in audit.topics.values()), runs_max)
                there = [(seq, info) for seq, info in enumerate(part.segments, start=part.trimmed_to) if info is not None]
                at_once = DEEP_READS_MAX if deep else SEGMENTS_AT_ONCE
                for now in (there[first : first + at_once] for first in range(0, len(there), at_once)):
                    if deep:
                        checks = (
                            _check_segment(store, info, writer, audit, session=session, seq=SegmentSeq(seq)) for seq, info in now
                        )
                        await asyncio.gather(*checks)
                    done += len(now)
                    advance("segments", done, audit.segments)
        except NotFound:
            audit.damage(session_prefix(session), f"what a listing shows was not there to be read, {GONE_TRIES} times")
    history = await audit_history(store, audit, deep=deep, advance=lambda read, of: advance("files", read, of))
    await _check_cluster(store, audit, is_used=bool(sessions or audit.topics))
    return audit, [*_check_trimmed(trimmed, history), *_check_partitions(runs, history, audit), *_check_ahead(runs, history)]


# ── the decisions ──


def _check_footers(
    part: SessionListing,
    footers: Iterable[SegmentFooter | Corrupt],
    runs: dict[TopicPartition, list[SegmentRun]],
    audit: Audit,
) -> None:
    for seq, (info, footer) in enumerate(zip(part.segments, footers, strict=True), start=part.trimmed_to):
        key = segment_key(part.session, SegmentSeq(seq))
        if isinstance(footer, Corrupt):
            audit.damage(key, footer.message)
            continue
        for run in footer.runs:
            runs[run.partition].append(SegmentRun(run.leader_epoch, part.session, footer.seq, run))
        if what := of_other_size(info, footer, part):
            audit.damage(key, what)
        _count(audit, footer, info.size if info is not None else 0)


def _check_partitions(runs: dict[TopicPartition, list[SegmentRun]], history: History, audit: Audit) -> Iterator[Finding]:
    for partition, segment_runs in sorted(runs.items()):
        end = history.ends.get(partition)
        usage = audit.topic(partition.topic_id)
        pending = [found for found in segment_runs if end is None or found.run.last_offset >= end.compacted_to]
        usage.records += sum(found.run.record_count for found in pending)
        if partition not in history.damaged and partition.topic_id not in history.deleted:
            yield from check_offsets(partition, pending, end)


def _check_trimmed(sessions: Iterable[TrimmedSession], history: History) -> Iterator[Finding]:
    """Reports records below trim points that no manifest has."""

    def compacted_to(partition: TopicPartition) -> int | None:
        if partition in history.damaged or partition.topic_id in history.deleted:
            return None
        end = history.ends.get(partition)
        return end.compacted_to if end is not None else 0

    for found in without_manifest(sessions, compacted_to):
        yield Finding(found.severity, found.where, found.what)


def _check_ahead(runs: Mapping[TopicPartition, Sequence[SegmentRun]], history: History) -> Iterator[Finding]:
    """Reports files with records that neither the newest manifest nor a segment has. Brokers refuse their partitions."""
    for partition, file in sorted(history.ahead.items()):
        if partition in history.damaged or partition.topic_id in history.deleted:
            continue
        held = history.ends.get(partition)
        end = max(held.compacted_to, held.log_start_offset) if held is not None else Offset(0)
        end = max((end, *(Offset(found.run.last_offset + 1) for found in runs.get(partition, ()))))
        if file.last_offset >= end:
            what = f"it holds records up to {file.last_offset}, and {partition} would end at {end}"
            yield Finding("damage", file.key, f"{what}: manifests were deleted, or not copied")


def check_offsets(partition: TopicPartition, segment_runs: Iterable[SegmentRun], history: HistoryEnd | None) -> list[Finding]:
    """Checks that a partition's runs outside Parquet continue each other, by epoch, from the end of Parquet or from 0.

    A gap below the log start is no damage: after a restore a partition may begin at a log start beyond the records that were found.
    """
    findings: list[Finding] = []
    end: int = history.compacted_to if history is not None else 0
    log_start_offset: int = history.log_start_offset if history is not None else 0
    begun = False
    for epoch, session, seq, run in sorted(
        ((found.leader_epoch, found.session, found.seq, found.run) for found in segment_runs), key=lambda found: found[:3]
    ):
        where = f"{partition} in {segment_key(session, seq)}"
        if history is not None and not begun and epoch < history.leader_epoch:
            what = f"leader epoch {epoch} comes after epoch {history.leader_epoch}, whose records are in Parquet"
            findings.append(Finding("damage", where, what))
        begun = True
        if may_follow(run.base_offset, compacted_to=end, log_start_offset=log_start_offset):
            end = run.base_offset
        elif run.base_offset > end:
            findings.append(
                Finding("damage", where, f"offsets {end} to {run.base_offset - 1} are missing before it (leader epoch {epoch})")
            )
        elif run.base_offset < end:
            doubled = min(run.last_offset, end - 1)
            findings.append(Finding("damage", where, f"offsets {run.base_offset} to {doubled} exist twice (leader epoch {epoch})"))
        if run.record_count != run.last_offset - run.base_offset + 1:
            count = run.last_offset - run.base_offset + 1
            findings.append(Finding("damage", where, f"{run.record_count} records for {count} offsets"))
        end = max(end, run.last_offset + 1)
    return findings


def of_other_size(info: ObjectInfo | None, footer: SegmentFooter, listing: SessionListing) -> str:
    """Returns why a listing contradicts a segment's known footer, perhaps from an index alone; empty if it does not."""
    if info is None:
        return f"it is gone, and was committed: {listing.evidence} says so"
    needed = max((run.end for run in footer.runs), default=0)
    return f"it has {info.size} bytes, and its batches go to byte {needed}" if info.size <= needed else ""


def check_segment_bytes(body: bytes, footer: SegmentFooter, *, writer: str, key: str) -> list[Finding]:
    """Checks each batch of a segment against its CRC-32C, footer entry and leader epoch, and the header against the claim."""
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
            listed = (entry.base_offset, entry.last_offset, entry.record_count, entry.crc, run.leader_epoch)
            found = (header.base_offset, header.last_offset, header.record_count, header.crc, header.leader_epoch)
            if listed != found or header.base_offset != offset:
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


def _check_bound(count: int, runs_max: int | None) -> None:
    if runs_max is not None and count > runs_max:
        raise TooLarge(
            f"the bucket has more than {runs_max} runs of batches in segments",
            hint="`tidelog bucket verify` checks it, on a machine with the memory for them.",
        )


async def _list_sessions(store: ObjectStore, audit: Audit, runs_max: int | None) -> Mapping[SessionId, ListedSession]:
    sessions: dict[SessionId, ListedSession] = {}
    async for info in list_all(store, WAL):
        audit.objects += 1
        _check_bound(audit.objects, runs_max)
        if sort_in(sessions, info) is None:
            audit.note(info.key, "it is none of Tidelog's objects")
    audit.sessions = len(sessions)
    audit.segment_bytes = sum(info.size for listed in sessions.values() for info in listed.objects.values())
    return sessions


async def _read_trimmed(store: ObjectStore, listed: ListedSession, audit: Audit) -> TrimmedSession:
    """Reads the footers of what is left below the trim point of a session."""
    trimmed = TrimmedSession.of(listed)
    async for footers in read_below_trim_point(store, listed, reads_max=READS_MAX, segments_max=SEGMENTS_AT_ONCE):
        for footer in footers:
            if isinstance(footer, Corrupt):
                key = str(footer.details.get("key", trimmed.marker))
                audit.note(key, f"{footer.message}; {trimmed.marker} says that its records are in Parquet")
            else:
                trimmed.take_in(footer)
    return trimmed


async def _check_session(store: ObjectStore, listed: ListedSession, listing: SessionListing, audit: Audit) -> str:
    """Checks a session's claim, its seal, and objects behind its end. Returns the writer in the claim; empty if unknown."""
    objects = sorted(listed.objects.items())
    trimmed = [info for seq, info in objects if seq < listing.trimmed_to and info.size != SEAL_BYTES]
    audit.collectable(len(trimmed), sum(info.size for info in trimmed))
    if invisible := [info for seq, info in objects if seq >= listing.end_seq + listing.sealed]:
        audit.invisible_objects += len(invisible)
        audit.invisible_bytes += sum(info.size for info in invisible)
        end = "the seal" if listing.sealed else f"the gap at {listing.end_seq}"
        audit.note(invisible[0].key, f"{_objects(len(invisible))} behind {end}: not committed, and never visible")
    if listing.sealed:
        audit.sealed_sessions += 1
        key = segment_key(listed.session, listing.end_seq)
        try:
            seal = parse_seal(await store.get(key), key=key)
            if (seal.session, seal.seq) != (listed.session, listing.end_seq):
                audit.damage(key, f"it is the seal of session {seal.session} at {seal.seq}")
        except (Corrupt, NotFound) as error:
            audit.damage(key, error.message)
    key = claim_key(listed.session)
    if not listed.is_claimed:
        audit.damage(key, "the session has objects and no claim")
        return ""
    try:
        claim = msgspec.json.decode(await store.get(key), type=ClaimRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, NotFound) as error:
        audit.damage(key, f"the claim can't be read: {error}")
        return ""
    if claim.session != listed.session:
        audit.damage(key, f"it is the claim of session {claim.session}")
    return claim.writer


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"


async def _check_segment(
    store: ObjectStore, info: ObjectInfo, writer: str, audit: Audit, *, session: SessionId, seq: SegmentSeq
) -> None:
    try:
        body = await store.get(info.key)
        footer = parse_footer(body, object_size=len(body), session=session, seq=seq, key=info.key)
        audit.batches_read += len(footer.batch_table)
        audit.findings += check_segment_bytes(body, footer, writer=writer, key=info.key)
    except NotFound:
        return  # trimmed meanwhile
    except Corrupt as error:
        if not any(found.where == info.key for found in audit.findings):  # its footer came from an index
            audit.damage(info.key, error.message)


def _count(audit: Audit, footer: SegmentFooter, size_bytes: int) -> None:
    batch_bytes = sum(run.end - run.start for run in footer.runs)
    for topic_id in {run.partition.topic_id for run in footer.runs}:
        audit.topic(topic_id).segments += 1
    for run in footer.runs:
        usage = audit.topic(run.partition.topic_id)
        share = (run.end - run.start) / batch_bytes
        usage.partitions.add(run.partition.partition)
        usage.runs += 1
        usage.batch_bytes += run.end - run.start
        usage.segment_bytes += share * size_bytes
        usage.segment_writes += share
