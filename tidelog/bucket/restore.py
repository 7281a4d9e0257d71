"""Rebuilds an empty metadata store from the bucket: reads (restore_evidence.py), plans (restore_plan.py), and writes.

    empty? ─▶ restored-n ─▶ seal and read ─▶ plan ─▶ files without a manifest? (unnamed_files.py)
        ─▶ restoring ─▶ keys, 126 at a time ─▶ the next batch of appointments
        ─▶ the cluster's id and the number of that batch are put, restoring is deleted

A restore that follows an interrupted one writes the same values again. Invariants:
- Nothing is written to a store that holds a cluster, except by an interrupted restore of the same cluster.
- While a restore writes, no broker starts and no broker is the controller.
- Of two restores at once, the one that began later continues, and the other stops.
- If the old metadata still exist, their brokers begin no session (segments/bucket/markers.py) and appoint no leader
  (gateway/controller/appointment_log.py) once the restore has begun.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from compaction.audit.findings import RestoreFinding
from metadata.backup.restore_state import RESTORE_COMMAND, RestoreState, decode_restoring, encode_restoring
from metadata.controller.appointments import Batch, Progress, encode_batch, encode_progress
from metadata.errors import AlreadyExists, Fenced, OutcomeUnknown, Rejected, Unavailable
from metadata.store.interface import NO_LEASE, Compare, Delete, DeletePrefix, KeyValue, MetadataStore, Operation, Put
from metadata.store.keys import KeyLayout, parse_number
from segments.bucket.cluster_record import read_cluster_record
from segments.bucket.layout import APPOINTMENTS, SNAPSHOTS, appointments_key, parse_appointments_key, parse_snapshot_key
from segments.bucket.markers import begin_restoration, last_restoration
from segments.object_store.interface import ObjectStore, list_all
from tidelog.bucket.restore_evidence import Advance, Found, read_evidence
from tidelog.bucket.restore_plan import RestorePlan, plan_restore, transactions
from tidelog.bucket.unnamed_files import unnamed_files

PAGE_KEYS = 1000
# Attempts of a request whose answer was lost.
ATTEMPTS_MAX = 8


@dataclass(slots=True)
class Restored:
    """The result of a restore: the evidence, the plan, and its findings.

    `written` is False if the metadata store was not written, because of damage or in a dry run.
    """

    cluster_id: str
    found: Found
    plan: RestorePlan
    written: bool
    findings: list[RestoreFinding] = field(default_factory=list)
    # Those of the findings by which offsets would be assigned a second time, or partitions be refused for lack of a manifest.
    lost: list[RestoreFinding] = field(default_factory=list)

    @property
    def damage(self) -> list[RestoreFinding]:
        """Returns the findings that mean loss of records or of metadata."""
        return [finding for finding in self.findings if finding.severity == "damage"]


async def restore_cluster(
    bucket: ObjectStore,
    metadata: MetadataStore,
    layout: KeyLayout,
    *,
    now_ms: Callable[[], int],
    dry_run: bool = False,
    despite_damage: bool = False,
    advance: Advance = lambda what, done, of: None,
) -> Restored:
    """Restores the cluster's metadata from the bucket into an empty store. A dry run writes nothing at all.

    If segments cannot be read, or manifests are missing that trim markers or Parquet files vouch for, nothing is written to the
    store unless `despite_damage`: the records would be lost, and their offsets would be assigned to other records.

    Raises Rejected if the store is not empty or the bucket belongs to no cluster, Fenced if another restore or a broker came
    between, Corrupt if cluster.json cannot be read, Unavailable, Denied.
    """
    record = await read_cluster_record(bucket)
    if record is None:
        raise Rejected(
            f"{bucket.url} is no cluster's: it has no cluster.json",
            hint="Name the bucket and prefix that the brokers were started with.",
        )
    held = await _held(metadata, layout)
    _check_empty(held, layout, record.cluster_id)
    restoration = await last_restoration(bucket) if dry_run else await _begun(bucket, record.cluster_id, now_ms=now_ms)
    found = await read_evidence(bucket, record.cluster_id, layout, now_ms=now_ms, dry_run=dry_run, advance=advance)
    found.evidence.restoration = restoration
    counters = {item.key: parse_number(item, absent=1) for item in held if item.key == layout.next_session}
    plan = plan_restore(found.evidence, layout, counters)
    unnamed = await unnamed_files(bucket, plan, found.evidence.manifests)
    findings = [*found.damaged, *plan.findings, *unnamed]
    lost = [*found.damaged, *plan.lacking_manifests, *unnamed]
    written = not dry_run and (despite_damage or not lost)
    if written:
        restoring = RestoreState(record.cluster_id, now_ms())
        await _Writing(bucket, restoration, metadata, layout).write(plan.puts, restoring, advance)
    return Restored(record.cluster_id, found, plan, written, findings, lost)


async def _begun(bucket: ObjectStore, cluster_id: str, *, now_ms: Callable[[], int]) -> int:
    """Marks the bucket as restored before any session is listed, so that brokers of the old metadata begin no more sessions."""
    for _ in range(ATTEMPTS_MAX):
        with suppress(OutcomeUnknown):
            return await begin_restoration(bucket, cluster_id, now_ms=now_ms())
    raise Unavailable(f"the bucket took no object in {ATTEMPTS_MAX} attempts; nothing was written to the metadata")


async def _take_number(bucket: ObjectStore) -> int:
    """Creates the next batch of appointments, an empty one, so that controllers of the old metadata appoint no more leaders."""
    numbers = [parse_appointments_key(found.key) async for found in list_all(bucket, APPOINTMENTS)]
    positions = [parse_snapshot_key(found.key) async for found in list_all(bucket, SNAPSHOTS)]
    used = [
        *(number for number in numbers if number is not None),
        *(position.number for position in positions if position is not None),
    ]
    number = max(used, default=0) + 1  # later snapshots are then ordered behind all existing ones
    for _ in range(ATTEMPTS_MAX):
        try:
            await bucket.create(appointments_key(number), [encode_batch(Batch(number, secrets.token_hex(16)))])
            return number
        except AlreadyExists:
            number += 1
        except OutcomeUnknown:
            continue
    raise Unavailable(
        f"the bucket took no object in {ATTEMPTS_MAX} attempts: the restore is not complete, and no broker starts on it",
        hint=f"Run `{RESTORE_COMMAND}` again: it continues.",
    )


# ── is it empty? ──


async def _held(metadata: MetadataStore, layout: KeyLayout) -> list[KeyValue]:
    held: list[KeyValue] = []
    page = await metadata.range(layout.root, limit=PAGE_KEYS)
    while True:
        held += page.items
        if not page.more:
            return held
        last = page.items[-1].key
        page = await metadata.range(layout.root, start_after=last, limit=PAGE_KEYS, revision=page.revision)


def _check_empty(held: Sequence[KeyValue], layout: KeyLayout, cluster_id: str) -> None:
    """Raises Rejected unless the store is empty, or holds an interrupted restore of this cluster.

    Counters that a refused broker took numbers from are allowed, since the plan takes them into account.
    """
    if running := sorted(item.key for item in held if item.lease != NO_LEASE):
        raise Rejected(
            f"brokers are running on these metadata: {', '.join(running[:3])}{', …' if len(running) > 3 else ''}",
            hint="Stop all brokers, wait until their leases have ended, and try again.",
        )
    marker = next((item for item in held if item.key == layout.restoring), None)
    if marker is not None:
        begun = decode_restoring(marker)
        if begun.cluster_id != cluster_id:
            raise Rejected(
                f"a restore of cluster {begun.cluster_id} was interrupted here, but the bucket is of cluster {cluster_id}",
                hint="Name the bucket that it was begun with, or another --cluster.",
            )
        return
    others = [item.key for item in held if item.key != layout.next_session and not item.key.startswith(layout.beginning)]
    if others:
        kinds = Counter(key.removeprefix(layout.root).partition("/")[0] for key in others)
        shown = ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
        raise Rejected(
            f"the metadata under {layout.root} are not empty: {shown}",
            hint=f"`{RESTORE_COMMAND}` is for a metadata store that was lost. Name an empty one, or another --cluster.",
        )


# ── writing ──


class _Writing:
    def __init__(self, bucket: ObjectStore, restoration: int, metadata: MetadataStore, layout: KeyLayout) -> None:
        self._bucket = bucket
        self._restoration = restoration
        self._metadata = metadata
        self._layout = layout

    async def write(self, puts: Sequence[Put], restoring: RestoreState, advance: Advance) -> None:
        layout = self._layout
        guard = await self._begin(restoring)
        done = 0
        for chunk in transactions(puts):
            await self._transact([guard], chunk)
            done += len(chunk)
            advance("keys", done, len(puts))
        if await last_restoration(self._bucket) != self._restoration:
            raise Fenced(
                "another restore from this bucket has begun meanwhile, into this metadata store or another",
                hint=f"Decide on one, and run `{RESTORE_COMMAND}` again: it continues.",
            )
        # After this check, so that a restore that is about to stop takes no number.
        progress = Put(layout.appointments, encode_progress(Progress(await _take_number(self._bucket))))
        identity = Put(layout.cluster_id, restoring.cluster_id.encode())
        # A broker may have taken session numbers from the empty store; on the bucket they belong to other sessions.
        untaken = DeletePrefix(layout.beginning)
        await self._transact([guard], [identity, progress, untaken, Delete(layout.restoring)], ends=True)

    async def _begin(self, restoring: RestoreState) -> Compare:
        """Writes the marker, and returns the guard of all later writes. From then on only this restore writes."""
        layout = self._layout
        value = encode_restoring(restoring)
        before = await self._metadata.get(layout.restoring)
        unled = [
            Compare(layout.restoring, before.mod_revision if before is not None else 0),
            Compare(layout.controller, 0),
            Compare(layout.cluster_id, 0),
        ]
        for _ in range(ATTEMPTS_MAX):
            try:
                result = await self._metadata.transact(unled, [Put(layout.restoring, value)])
            except OutcomeUnknown:
                continue
            if result.succeeded:
                return Compare(layout.restoring, result.revision)
            now = await self._metadata.get(layout.restoring)
            if now is not None and now.value == value:
                return Compare(layout.restoring, now.mod_revision)  # an earlier attempt, whose answer was lost
            raise Fenced("the metadata are not empty any more: a broker, or another restore, came first", hint="Find out which.")
        raise Unavailable(f"the restore could not begin in {ATTEMPTS_MAX} attempts")

    async def _transact(self, guards: Sequence[Compare], operations: Sequence[Operation], *, ends: bool = False) -> None:
        """Sends a transaction, again after a lost answer.

        The last transaction deletes its own guard, so its outcome is then read.
        """
        unknown: OutcomeUnknown | None = None
        for _ in range(ATTEMPTS_MAX):
            try:
                result = await self._metadata.transact(guards, operations)
            except OutcomeUnknown as error:
                unknown = error
                continue
            if result.succeeded:
                return
            if ends and unknown is not None and await self._metadata.get(self._layout.cluster_id) is not None:
                return
            raise Fenced(
                "another restore has begun meanwhile, and continues from what this one wrote",
                hint="Wait for it. One restore at a time is enough.",
            )
        raise Unavailable(
            f"the metadata took no transaction in {ATTEMPTS_MAX} attempts: the restore is not complete, and no broker starts on it",
            hint=f"Run `{RESTORE_COMMAND}` again: it goes on.",
        ) from unknown
