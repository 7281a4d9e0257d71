"""Decides which cluster a broker belongs to: metadata and bucket must agree, so that two clusters never share a prefix.

    metadata    bucket      the broker
    ────────    ────────    ─────────────────────────────────────────────────────────────
    -           -           makes a new cluster
    A           -           signs the bucket as A's (its first start was interrupted)
    A, has led  -           refuses: another bucket, or one that was emptied; what is taken there would be out of sight later
    A           A           starts
    A           B           refuses: one of the two is the wrong one
    -           B           refuses: the metadata were lost, and must be restored; a new cluster would hide every record
    A at 70     A, copied   refuses: the metadata were set back to a backup, and have forgotten in which sessions records lie; or
                at 90       they exist twice. The last batch of appointments is compared first, then the revision
    A, to give  A, written  refuses, for the same reason: whatever the revision is by now (others may share the etcd, and a restore
    session 7   in 7        may add a billion to it), a session that wrote had its number from the metadata
    A, gave 7   A, 7 is     refuses: the metadata exist twice, and the broker of the other copy has written in session 7
    to b1       another's
    A, not seen A, written  refuses: the bucket was not complete when the metadata were restored, and records that the restore did
    session 7   in 7        not see have arrived since
    A, applied  A, without  refuses: the bucket is older than the metadata, for example a copy of last night. Acknowledged records
    batch 41    41 and on   that it lacks would be out of sight, and their offsets assigned twice
    restoring   any         refuses, until the restore is complete

The last row but one refuses no healthy cluster. The controller creates a batch of appointments before the metadata note it as
applied, and the number is read here before the listing. So the bucket has that batch or later ones, whatever happens meanwhile: a
controller between create and apply (its number is lower), another broker that starts (it changes neither), a read of etcd that lags
(a lower number), a restore (it creates its batch before it notes the number), the collection of old batches (a hundred later ones
are there). Before the first batch no session leads. Each session that leads was appointed by a batch, and has claimed its number
before, so its claim needs no look of its own. A copy that has the last batch is not noticed: one is written for each new leader,
before each snapshot of metadata that have changed, and every minute while records are written (gateway/controller/write_proofs.py).

A start is refused before anything is written, including the start-up proof (`before_writing`).

A running broker checks repeatedly that the metadata are still those that it started with. If they were emptied, restored or set
back
to a backup, it ends: its appointments are forgotten, and may be given away a second time.

Invariants: a bucket that holds records is never taken for a new one. No broker leads for long by metadata that are gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol

from gateway.controller.metadata_snapshots import current_position, list_snapshots
from metadata.backup.restore_state import (
    RESTORE_COMMAND,
    SkippedSessions,
    check_not_restoring,
    read_restoration,
    read_skipped_sessions,
)
from metadata.cluster.identity import cluster_id
from metadata.errors import Rejected, TidelogError
from metadata.model import Revision, SessionId, TopicPartition
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout, parse_number
from segments.bucket.cluster_record import check_cluster_record, read_cluster_record, sign_bucket
from segments.bucket.layout import APPOINTMENTS, WAL, appointments_key, parse_appointments_key, session_prefix
from segments.bucket.markers import check_not_superseded
from segments.object_store.interface import ObjectStore, list_all
from segments.wal.session import first_with_segments, read_claim

# A bucket that ends with its process.
MEMORY = "memory://"
# Interval between checks of the cluster's id while the broker runs.
CHECK_INTERVAL_S = 2.0

_RESTORE = (
    "stop all brokers, make the metadata store empty (etcd; or without it, move metadata.sqlite* out of the data directory), "
    f"and run `{RESTORE_COMMAND}`."
)

_IF_TWICE = "Where another broker runs on a copy of them, it goes on, and this copy must not be used any more."

log = logging.getLogger(__name__)


class BeforeWriting(Protocol):
    """Runs before the first write, with whether no cluster has used the bucket yet."""

    async def __call__(self, *, is_new: bool) -> None: ...


async def identify_cluster(
    bucket: ObjectStore,
    metadata: MetadataStore,
    layout: KeyLayout,
    *,
    new_id: str,
    now_ms: int,
    before_writing: BeforeWriting | None = None,
) -> str:
    """Returns the cluster's id, `new_id` if the cluster is new. Raises Rejected as drawn above, Unavailable, Corrupt.

    `before_writing` is awaited once nothing that was read excludes this bucket, with whether no cluster has used it yet.
    """
    await check_not_restoring(metadata, layout)
    # The bucket first: a broker that starts at the same time writes to the metadata first.
    record = await read_cluster_record(bucket)
    written_to = record is not None or bool((await bucket.list(WAL, limit=1)).objects)
    held = await metadata.get(layout.cluster_id)
    if written_to and held is None:
        owner = f"belongs to cluster {record.cluster_id}" if record is not None else "holds records, though no cluster.json"
        raise Rejected(
            f"{bucket.url} {owner}, but the metadata under {layout.root} are empty",
            hint=f"If they were lost, stop all brokers and run `{RESTORE_COMMAND}`. Else use another prefix of the bucket, or the "
            "metadata (--etcd, --data-dir, --cluster) that go with it.",
            cluster_id=record.cluster_id if record is not None else "",
        )
    if held is not None:
        new_id = await cluster_id(metadata, new_id, layout)
    if record is not None:
        check_cluster_record(record, bucket.url, new_id)
    if not written_to:
        await _check_never_led(bucket, metadata, layout, new_id)
    await check_not_set_back(bucket, metadata, layout, new_id)
    if before_writing is not None:
        await before_writing(is_new=not written_to)
    identity = await cluster_id(metadata, new_id, layout)
    if not written_to:  # checked again, since others may start at the same time
        await _check_never_led(bucket, metadata, layout, identity)
    await sign_bucket(bucket, identity, now_ms=now_ms)
    return identity


async def _check_never_led(bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout, identity: str) -> None:
    """Raises Rejected if the bucket is empty although a broker had a session: each signs its bucket before that."""
    if await metadata.get(layout.next_session) is None or bucket.url == MEMORY:
        return
    if await read_cluster_record(bucket) is None:  # else another broker started at the same time
        raise Rejected(
            f"{bucket.url} is empty, and brokers of cluster {identity} have written to its bucket already: this is another one, or "
            "it was emptied",
            hint="Name the bucket of this cluster (--bucket, or --data-dir). If its records were deleted on purpose, begin with "
            "empty metadata as well: another --data-dir, --cluster or etcd.",
            cluster_id=identity,
        )


async def check_not_set_back(bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout, identity: str) -> None:
    """Raises Rejected if bucket or metadata were set back: brokers and compactors check it before they begin.

    A snapshot on the bucket that is newer than the metadata shows it; the controller writes one every snapshot_interval_ms. So do a
    batch of appointments that the bucket lacks, and a session whose number the metadata do not know.
    """
    snapshots = await list_snapshots(bucket)
    now = await current_position(metadata, layout)
    if snapshots and snapshots[-1].position > now:
        copied = snapshots[-1].position
        await check_not_superseded(bucket, await read_restoration(metadata, layout))  # to restore once more would be wrong then
        raise Rejected(
            f"the metadata of cluster {identity} are at revision {now.revision} and appointments {now.number}, and were at "
            f"{copied.revision} and {copied.number} when they were copied to {bucket.url}: they were set back to a backup, or they "
            "exist twice (a copy of the data directory, or of etcd)",
            hint=f"{_IF_TWICE} Else {_RESTORE}",
            cluster_id=identity,
        )
    if bucket.url != MEMORY:
        await _check_not_older(bucket, now.number, identity)
    await check_knows_who_wrote(bucket, metadata, layout)


async def _check_not_older(bucket: ObjectStore, applied: int, identity: str) -> None:
    """Raises Rejected if the bucket lacks batch `applied` of appointments and all later ones. One request."""
    if not applied:
        return
    async for found in list_all(bucket, APPOINTMENTS, start_after=appointments_key(applied - 1)):
        if parse_appointments_key(found.key) is not None:
            return
    raise Rejected(
        f"{bucket.url} is older than the metadata of cluster {identity}: it lacks {appointments_key(applied)}, which the metadata "
        "have applied. It is a copy or a backup of the bucket, or objects were deleted from it, perhaps by a lifecycle rule",
        hint="Acknowledged records may be missing in it. Stop all compactors and brokers. Name the bucket that this cluster "
        "has used (--bucket or --data-dir), or restore the newer objects from versions or a backup of the bucket. If they are "
        f"lost, and you go on with the records that this bucket has, {_RESTORE}",
        cluster_id=identity,
        number=applied,
    )


async def check_knows_who_wrote(bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout) -> None:
    """Raises Rejected if a session has written whose number the metadata have yet to give out, gave to another broker, or did not
    see when they were restored.

    Raises Unavailable.
    """
    untaken = await next_number(metadata, layout)
    written = await first_with_segments(bucket, from_session=untaken)
    if written is not None and written >= await next_number(metadata, layout):  # else a broker took the number a moment ago
        await check_not_superseded(bucket, await read_restoration(metadata, layout))
        raise set_back(bucket.url, written)
    for session in (await foreign_claims(bucket, metadata, layout)).foreign:
        if await first_with_segments(bucket, from_session=session) == session:
            await check_not_superseded(bucket, await read_restoration(metadata, layout))
            raise set_back(bucket.url, session)
    late = await _late_session(bucket, await read_skipped_sessions(metadata, layout))
    if late is not None:
        await check_not_superseded(bucket, await read_restoration(metadata, layout))
        raise _came_late(bucket.url, late)


async def _late_session(bucket: ObjectStore, skipped: SkippedSessions) -> SessionId | None:
    """Returns the first session among these numbers that has written; None if none has."""
    written = SessionId(0)
    for first, end in skipped.ranges:
        if written >= end:  # the listing has passed this range, and found nothing in it
            continue
        found = await first_with_segments(bucket, from_session=max(first, written))
        if found is None or found in skipped:
            return found
        written = found
    return None


def _came_late(url: str, session: SessionId) -> Rejected:
    return Rejected(
        f"session {session} has written to {url}, and was not there when the metadata were restored: the bucket was a copy that "
        "was not complete, or a replica, and objects of the original have arrived since",
        hint="End the replication into this bucket, and stop all compactors and brokers. "
        "If clients have written nothing since the restore, restore again: "
        f"{_RESTORE} Else move the objects below {session_prefix(session)} out of the bucket, and those of other sessions that "
        "this message names then. The restored log does not have their records.",
        session=session,
    )


async def next_number(metadata: MetadataStore, layout: KeyLayout) -> SessionId:
    """Returns the first session number that is not taken. Raises Unavailable, Corrupt."""
    return SessionId(parse_number(await metadata.get(layout.next_session), absent=1))


class NotedClaims(NamedTuple):
    """Lists the session numbers that the metadata note as taken and not yet begun, by the claims on the bucket."""

    # Claimed by the broker that took the number.
    own: list[SessionId]
    # Claimed by another process, which had the number from other metadata.
    foreign: list[SessionId]


async def foreign_claims(bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout) -> NotedClaims:
    """Compares the session numbers that have yet to begin with the claims on the bucket. Raises Unavailable, Corrupt."""
    claims = NotedClaims([], [])
    for item in (await metadata.range(layout.beginning)).items:
        session = layout.parse_beginning(item.key)
        claimed_by = await read_claim(bucket, session)
        if claimed_by is not None:
            (claims.own if claimed_by == item.value.decode("utf-8", "replace") else claims.foreign).append(session)
    return claims


def set_back(url: str, session: SessionId) -> Rejected:
    """Returns the error for a session that wrote under a number which the metadata have yet to give out, or gave to another."""
    return Rejected(
        f"session {session} has written to {url}, and the metadata know nothing of it: they were set back to a backup, or they "
        "exist twice (a copy of the data directory, or of etcd)",
        hint=f"{_IF_TWICE} Else {_RESTORE}",
        session=session,
    )


class SeenClusterId(NamedTuple):
    """Holds the cluster's id as one read of the metadata found it."""

    # None if there is none.
    cluster_id: str | None
    written_at: Revision
    # Revision of the whole store.
    revision: Revision
    # The first number that no broker has taken yet.
    next_session: SessionId = SessionId(1)


def what_happened(identity: str, before: SeenClusterId | None, now: SeenClusterId) -> str | None:
    """Returns what happened to the metadata of cluster `identity`, as a predicate of "the metadata"; None if they are unchanged."""
    if now.cluster_id is None:
        return "are gone"
    if now.cluster_id != identity:
        return f"are those of cluster {now.cluster_id} now"
    if before is not None and now.revision < before.revision:
        return f"were set back from revision {before.revision} to {now.revision}"
    if before is not None and now.written_at != before.written_at:
        return "were written again, as a restore does"
    if before is not None and now.next_session < before.next_session:
        return f"were set back: they had given out session {before.next_session - 1}, and would do so again"
    return None


async def watch_identity(
    metadata: MetadataStore, layout: KeyLayout, identity: str, *, set_back: Callable[[], TopicPartition | None] = lambda: None
) -> NoReturn:
    """Raises Rejected once the metadata are no longer those that this broker started with; it returns never.

    `set_back`: as in PartitionCache. Unreadable metadata have no consequence: leaders continue without them.
    """
    before: SeenClusterId | None = None
    while True:
        try:
            now = await _read_cluster_id(metadata, layout)
        except Rejected as error:
            if "etcd_cluster_id" in error.details:
                raise _lost(identity, f"can't be asked for: {error}") from error
            log.warning("metadata identity check failed cluster=%s: %s; retrying", identity, error)
        except TidelogError as error:
            log.info("metadata identity check failed cluster=%s: %s; retrying", identity, error)
        else:
            happened = what_happened(identity, before, now)
            fallen = set_back()
            if happened is None and fallen is not None:
                happened = f"were set back: the leader epoch of partition {fallen} has fallen"
            if happened is not None:
                raise _lost(identity, happened)
            before = now
        await asyncio.sleep(CHECK_INTERVAL_S)


async def _read_cluster_id(metadata: MetadataStore, layout: KeyLayout) -> SeenClusterId:
    next_session = await next_number(metadata, layout)  # read before the id, which a restore writes last
    found = await metadata.range(layout.cluster_id, limit=1)
    held = next((item for item in found.items if item.key == layout.cluster_id), None)
    if held is None:
        return SeenClusterId(None, Revision(0), found.revision)
    return SeenClusterId(held.value.decode("utf-8", "replace"), held.mod_revision, found.revision, next_session)


def _lost(identity: str, happened: str) -> Rejected:
    return Rejected(
        f"the metadata of cluster {identity} {happened}: this broker stops, since its appointments are no longer known",
        hint="Nothing acknowledged is lost. If the metadata store was emptied, lost its disk, or was set back to a backup: "
        f"{_RESTORE} If it was restored just now, start this broker again.",
        cluster_id=identity,
    )
