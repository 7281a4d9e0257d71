"""Writes appointments to the bucket in numbered batches before they are applied, so that only one copy of the metadata appoints.

    key: number 41, pending [x]    the last batch that these metadata have applied, and the nonces noted for batch 42
      ─▶ recover   LIST the batches after 41: batch 42 with a nonce of `pending` is applied; any other batch belongs to another copy
      ─▶ note      a fresh nonce, in a transaction that is guarded by the controller's key
      ─▶ create    appointments/42 with the nonce and all decisions; if another controller was first: recover
      ─▶ check     LIST the batches after 42: a batch there shows that 42 was taken before, and collected since
      ─▶ apply     the decisions, in guarded transactions ─▶ number 42, pending []

The same etcd may exist twice, restored from its own snapshot beside the old one or in its place. Both copies then hold the same
sessions and leaders. Each number is created once, so only one of two copies appoints leaders from there on, and the controllers of
the other copy end. A copy that was made between two of these steps has noted the nonce, and applies the same decisions.

A batch without appointments is a proof (`prove`): every copy that appoints later holds what the metadata held before the nonce of
the batch was noted. The controller writes one before a snapshot, a mark of a deletion or the registration of a topic.

A create whose fsync failed ends the broker: the batch is not applied, since a power cut may free its number for another copy.

Invariants (tests/simulation/appointments_model.py and snapshots_model.py explore all interleavings): the controller changes no
leader, and asks none to hand over, except by a batch; all metadata that have noted the nonce of a batch apply it, and no others do;
a batch counts as one of another copy only while this broker is the controller and the key is unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from metadata.backup.restore_state import RESTORE_COMMAND, read_restoration
from metadata.cluster import leadership
from metadata.cluster.leadership import PAGE_PARTITIONS, LeadershipChange, PartitionState, decode_state
from metadata.cluster.leadership_cache import PartitionCache
from metadata.controller.appointments import (
    Batch,
    Progress,
    batch_of,
    decode_batch,
    decode_progress,
    encode_batch,
    encode_progress,
    reapplied,
)
from metadata.errors import AlreadyExists, Corrupt, Denied, Fenced, NotFound, OutcomeUnknown, Rejected, TidelogError, Unavailable
from metadata.model import Revision, TopicId, TopicPartition
from metadata.retry import RetryPauses, retry
from metadata.store.interface import Compare, MetadataStore, Put
from metadata.store.keys import KeyLayout
from metadata.topics.topic import decode_topic
from segments.bucket.layout import APPOINTMENTS, appointments_key, parse_appointments_key
from segments.bucket.markers import check_not_superseded
from segments.object_store.interface import ObjectStore, is_unsynced, list_all

# Pause before a request that the bucket refused is sent again.
PAUSE_S: Final = 0.2
# After the bucket has refused requests for this time, another broker should become the controller.
RETRY_S: Final = 15.0
# Longest wait for the watch of the partitions to show a write.
FOLLOW_TIMEOUT_S: Final = 5.0
# Batches that stay on the bucket.
BATCHES_KEPT: Final = 100
# Batches that are written before old ones are collected.
COLLECTED_EVERY: Final = 50
# Attempts to apply a batch while leaders change states, or to read the bucket while batches are deleted.
ATTEMPTS_MAX: Final = 8
# Topics whose partitions get their first leaders in one transaction, which compares the revision of each.
TOPICS_AT_ONCE: Final = 50

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class Part(NamedTuple):
    """Some decisions of a batch, with the compares (`guards`) that only their transactions need."""

    decisions: Sequence[LeadershipChange]
    guards: Sequence[Compare] = ()


class _Known(NamedTuple):
    """The progress key as this controller has last read or written it, and the guard of its election."""

    progress: Progress
    revision: Revision
    guard: Sequence[Compare]


class AppointmentLog:
    """Writes, applies and deletes the batches of appointments of one cluster.

    The controller owns it, and passes the guard of its present election to each call. One call runs at a time.
    """

    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        partitions: PartitionCache,
        layout: KeyLayout,
        *,
        new_nonce: Callable[[], bytes],
        gave_up: Callable[[], None],
    ) -> None:
        """`gave_up` is called when the bucket has refused requests for RETRY_S."""
        self._bucket = bucket
        self._metadata = metadata
        self._partitions = partitions
        self._layout = layout
        self._new_nonce = new_nonce
        self._gave_up = gave_up
        self._one_at_a_time = asyncio.Lock()
        self._known: _Known | None = None
        self._recovered_for: Sequence[Compare] | None = None
        self._uncreated: Batch | None = None
        self._unsynced: Rejected | None = None
        self._collected_to = 0
        # The error that ends this broker: another copy of the metadata has appointed leaders, or a batch may not be durable.
        self.ending: Rejected | None = None

    def is_recovered(self, guard: Sequence[Compare]) -> bool:
        """Returns whether all batches on the bucket are applied, as far as this election of the controller knows."""
        return self._known is not None and self._known.guard == guard

    def was_recovered(self, guard: Sequence[Compare]) -> bool:
        """Returns whether this election of the controller has applied all batches on the bucket at least once."""
        return self._recovered_for == guard

    @property
    def may_collect(self) -> bool:
        """Returns True if there are enough old batches to delete some."""
        return self._known is not None and self._known.progress.number >= self._collected_to + BATCHES_KEPT + COLLECTED_EVERY

    async def recover(self, guard: Sequence[Compare]) -> None:
        """Applies the batch that a controller before this one may have created and not applied.

        Raises Rejected if another copy of the metadata has appointed leaders (`ending`) or a batch cannot be read, Fenced if this
        broker is not the controller any more, Unavailable, OutcomeUnknown.
        """
        async with self._one_at_a_time:
            await self._recovered(guard)

    async def prove(self, guard: Sequence[Compare]) -> None:
        """Creates and applies a batch without appointments, which shows that no other copy of the metadata has appointed leaders.

        Each copy that appoints later was made after the nonce of this batch was noted. So that copy holds what these metadata held
        before the call, and what the caller writes to the bucket about them is true of that copy. Raises what `recover` raises.
        """
        async with self._one_at_a_time:
            for _ in range(ATTEMPTS_MAX):
                known = await self._recovered(guard)
                left = self._left_uncreated(known)
                if left is None:
                    batch = Batch(known.progress.number + 1, self._new_nonce().hex())
                    known = await self._note(known, batch.nonce)
                    if await self._write(batch, [], known):
                        return
                else:  # its nonce may have been noted before the call
                    await self._write(left, [], known)
            raise Unavailable("the appointments on the bucket changed each time that they were read; nothing was written")

    async def appoint(self, parts: Sequence[Part], guard: Sequence[Compare]) -> None:
        """Writes and applies one batch of the decisions whose states have not changed. Raises what `recover` raises.

        If it fails, the batch may be applied later: the caller plans again from what is stored then.
        """
        async with self._one_at_a_time:
            known = await self._recovered(guard)
            if not await self._partitions.wait_for(known.progress.applied_at, timeout_s=FOLLOW_TIMEOUT_S):
                raise Unavailable("the watch of the partitions is behind the last appointments; nothing was appointed")
            newest = [Part(list(filter(self._is_newest, part.decisions)), part.guards) for part in parts]
            decisions = [decision for part in newest for decision in part.decisions]
            if (left := self._left_uncreated(known)) is not None:
                await self._write(left, [], known)
            elif decisions:
                batch = batch_of(known.progress.number + 1, self._new_nonce().hex(), decisions)
                known = await self._note(known, batch.nonce)
                await self._write(batch, newest, known)

    async def collect(self) -> None:
        """Deletes the batches before the newest BATCHES_KEPT. Raises Unavailable.

        A copy of the metadata that is behind a deleted batch finds a later one, so it cannot create and apply the deleted one
        again.
        """
        if self._known is None:
            return
        kept_from = self._known.progress.number - BATCHES_KEPT + 1
        self._collected_to = max(0, kept_from - 1)
        async for found in list_all(self._bucket, APPOINTMENTS):
            number = parse_appointments_key(found.key)
            if number is not None and number >= kept_from:
                return
            if number is not None:
                await self._bucket.delete(found.key)

    def _left_uncreated(self, known: _Known) -> Batch | None:
        """Returns the batch whose create was refused. It is sent again, so that the key does not fill up with nonces."""
        batch = self._uncreated
        if batch is not None and batch.number == known.progress.number + 1 and batch.nonce in known.progress.pending:
            return batch
        return None

    async def _write(self, batch: Batch, parts: Sequence[Part], known: _Known) -> bool:
        """Creates and applies a batch whose nonce is noted.

        Returns False if its number is taken, perhaps by an attempt without an answer.
        """
        self._known = None  # however this ends, the bucket is read before the next batch
        self._uncreated = batch
        created = await self._create(batch)
        self._uncreated = None
        if not created:
            await self._recovered(known.guard)
            return False
        if await self._batches_after(batch.number):
            raise await self._ended_by(batch.number, known)
        self._known = await self._apply(batch, parts, known)
        await self._partitions.wait_for(self._known.progress.applied_at, timeout_s=FOLLOW_TIMEOUT_S)  # for the next plan
        return True

    # ── what is on the bucket ───────────────────────────────────────────────────────────────────────────────────────────

    async def _recovered(self, guard: Sequence[Compare]) -> _Known:
        if self._known is not None and self.is_recovered(guard):
            return self._known
        self._known = None
        if self._unsynced is not None:
            raise self._unsynced
        for _ in range(ATTEMPTS_MAX):
            held = await self._metadata.get(self._layout.appointments)
            progress = decode_progress(held, key=self._layout.appointments)
            known = _Known(progress, held.mod_revision if held is not None else Revision(0), guard)
            number = progress.number + 1
            found = await self._batches_after(progress.number)
            if not found:
                self._known = known
                self._recovered_for = guard
                return known
            if found != [number]:
                raise await self._ended_by(found[0], known)
            key = appointments_key(number)
            try:
                body = await self._read(partial(self._bucket.get, key))
            except NotFound:  # collected by another copy, which has written later ones
                continue
            try:
                batch = decode_batch(body, number=number, key=key)
            except (Corrupt, Rejected) as error:  # a broker of a newer version may read it
                self._gave_up()
                raise Rejected(
                    f"no leaders are appointed, since the pending appointments cannot be read: {error.message}",
                    hint=f"If a newer Tidelog wrote {key}, upgrade the brokers. If it is damaged, restore it from a backup. "
                    "If no second copy of the metadata exists, you may delete it: leaders are then appointed again.",
                    key=key,
                ) from error
            if batch.nonce not in progress.pending:
                raise await self._ended_by(number, known)
            log.warning("appointments not fully applied batch=%s; applying them", number)
            known = await self._apply(batch, [], known)
        raise Unavailable("the appointments on the bucket changed each time that they were read; nothing was appointed")

    async def _create(self, batch: Batch) -> bool:
        """Returns whether this call has created the batch: False if its number is taken."""
        key, body = appointments_key(batch.number), encode_batch(batch)

        async def create() -> None:
            try:
                await self._bucket.create(key, [body])
            except (Unavailable, OutcomeUnknown) as error:
                if is_unsynced(error):
                    raise self._ended_unsynced(key, error) from error
                raise

        try:
            await self._retry_request(create)
        except AlreadyExists:
            return False
        except Denied as error:
            raise self._denied("create", error) from error
        return True

    def _ended_unsynced(self, key: str, error: TidelogError) -> Rejected:
        """Returns the error for a batch that a power cut may remove. If it were applied, a second copy could create the number."""
        self.ending = self._unsynced = Rejected(
            f"appointments may not be durable: {error.message}",
            hint="Check the disk under the bucket, then start the broker again: it applies the batches that exist.",
            key=key,
        )
        return self._unsynced

    async def _batches_after(self, number: int) -> list[int]:
        """Returns the numbers of at most two batches after `number`, in order."""
        found: list[int] = []
        start_after = appointments_key(number)
        while len(found) < 2:
            page = await self._read(partial(self._bucket.list, APPOINTMENTS, start_after=start_after, limit=2))
            parsed = (parse_appointments_key(info.key) for info in page.objects)
            found += [number for number in parsed if number is not None]
            if not page.more or not page.objects:
                break
            start_after = page.objects[-1].key
        return found[:2]

    async def _ended_by(self, number: int, known: _Known) -> Rejected | Fenced:
        """Returns the error for a batch of another copy of the metadata: Fenced if a newer controller of this copy may have created
        it.
        """
        if not (await self._metadata.transact(self._guards(known), [])).succeeded:
            return Fenced("nothing was appointed: another broker has become the controller, or has appointed leaders")
        await self._retry_request(self._check_not_superseded)
        self.ending = Rejected(
            f"{appointments_key(number)} of {self._bucket.url} holds appointments that the metadata do not contain: they were "
            "set back to a backup, or they exist twice (a copy of the data directory, or of etcd)",
            hint="If another broker runs on a copy of them, it continues, and this copy must not be used any more. Else stop all "
            "brokers, make the metadata store empty (etcd; or without it, move metadata.sqlite* out of the data directory), and "
            f"run `{RESTORE_COMMAND}`.",
            number=number,
        )
        return self.ending

    async def _check_not_superseded(self) -> None:
        try:
            await check_not_superseded(self._bucket, await read_restoration(self._metadata, self._layout))
        except Rejected as error:
            self.ending = error
            raise

    async def _read(self, request: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Returns the answer to a LIST or GET."""
        try:
            return await self._retry_request(request)
        except Denied as error:
            raise self._denied("read", error) from error

    def _denied(self, operation: str, error: Denied) -> Denied:
        """Returns the error, and makes another broker the controller, whose credentials may be others."""
        self._gave_up()
        return Denied(
            f"no leaders are appointed, since this broker may not {operation} {APPOINTMENTS} on {self._bucket.url}: "
            f"{error.message}",
            hint=f"Allow the broker to list the bucket, and to read, create and delete objects below {APPOINTMENTS}.",
        )

    async def _retry_request(self, request: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Returns the answer of the bucket; repeats refused requests for RETRY_S."""
        try:
            async with asyncio.timeout(RETRY_S):
                pauses = RetryPauses(PAUSE_S, PAUSE_S)
                return await retry(request, on=(Unavailable, OutcomeUnknown), pauses=pauses, for_s=RETRY_S - PAUSE_S)
        except TimeoutError as error:
            self._gave_up()
            raise OutcomeUnknown(f"{self._bucket.url} did not answer within {RETRY_S:g} s") from error
        except (Unavailable, OutcomeUnknown):
            self._gave_up()
            raise

    # ── what is in the metadata ─────────────────────────────────────────────────────────────────────────────────────────

    def _guards(self, known: _Known) -> list[Compare]:
        return [*known.guard, Compare(self._layout.appointments, known.revision)]

    def _is_newest(self, decision: LeadershipChange) -> bool:
        """Returns whether the state that the decision was made on is the newest one that the watch has shown."""
        held = self._partitions.states.get(decision.partition)
        return (held[1] if held is not None else Revision(0)) == decision.read_at

    async def _note(self, known: _Known, nonce: str) -> _Known:
        self._known = None  # a lost answer leaves open whether the nonce is noted
        return await self._put(known, known.progress.noting(nonce))

    async def _put(self, known: _Known, progress: Progress) -> _Known:
        result = await self._metadata.transact(self._guards(known), [Put(self._layout.appointments, encode_progress(progress))])
        if not result.succeeded:
            raise Fenced("appointments were not written: another broker has become the controller, or has appointed leaders")
        return _Known(progress, result.revision, known.guard)

    async def _apply(self, batch: Batch, parts: Sequence[Part], known: _Known) -> _Known:
        """Applies `parts`, the decisions of the batch as just planned; without parts, the decisions that still change a state."""
        applied_at = Revision(0)
        try:
            for part in parts:
                guards = [*self._guards(known), *part.guards]
                revision = await leadership.write(self._metadata, part.decisions, self._layout, guards=guards)
                applied_at = max(applied_at, revision)
        except Fenced:  # a leader has handed over since, or a topic has changed
            parts = ()
        if not parts and batch.appointments:
            applied_at = max(applied_at, await self._apply_again(batch, known))
        return await self._put(known, known.progress.advanced(applied_at))

    async def _apply_again(self, batch: Batch, known: _Known) -> Revision:
        decided = {appointment.of: appointment.state for appointment in batch.appointments}
        applied_at = Revision(0)
        for _ in range(ATTEMPTS_MAX):
            parts = await self._remaining_parts(decided)
            try:
                for part in parts:
                    guards = [*self._guards(known), *part.guards]
                    revision = await leadership.write(self._metadata, part.decisions, self._layout, guards=guards)
                    applied_at = max(applied_at, revision)
            except Fenced:
                if not (await self._metadata.transact(self._guards(known), [])).succeeded:
                    raise
                continue
            return applied_at
        raise Unavailable(f"appointments batch {batch.number} was not applied to the end: the partitions changed each time")

    async def _remaining_parts(self, decided: dict[TopicPartition, PartitionState]) -> list[Part]:
        """Returns the decisions that still change a stored state, read past every cache. Skips states that cannot be read."""
        current = await self._read_states(decided)
        later: list[LeadershipChange] = []
        first: dict[TopicId, list[LeadershipChange]] = {}
        for partition, state in decided.items():
            stored, revision = current.get(partition, (None, Revision(0)))
            if revision and stored is None:
                continue
            again = reapplied(state, stored)
            if again is not None and stored is None:
                first.setdefault(partition.topic_id, []).append(LeadershipChange(partition, revision, again))
            elif again is not None:
                later.append(LeadershipChange(partition, revision, again))
        topics = await self._topics() if first else {}  # partitions of a deleted topic get no leader
        there = [topic_id for topic_id in first if topic_id in topics]
        parts = [Part(later)] if later else []
        for start in range(0, len(there), TOPICS_AT_ONCE):
            ids = there[start : start + TOPICS_AT_ONCE]
            parts.append(
                Part([decision for topic_id in ids for decision in first[topic_id]], [topics[topic_id] for topic_id in ids])
            )
        return parts

    async def _read_states(
        self, wanted: dict[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, tuple[PartitionState | None, Revision]]:
        states: dict[TopicPartition, tuple[PartitionState | None, Revision]] = {}
        page = await self._metadata.range(self._layout.partitions, limit=PAGE_PARTITIONS)
        while True:
            for item in page.items:
                with suppress(Corrupt):
                    if (partition := self._layout.parse_partition(item.key)) in wanted:
                        states[partition] = None, item.mod_revision
                        states[partition] = decode_state(item), item.mod_revision
            if not page.more:
                return states
            page = await self._metadata.range(self._layout.partitions, start_after=page.items[-1].key, limit=PAGE_PARTITIONS)

    async def _topics(self) -> dict[TopicId, Compare]:
        """Returns, by topic id, the compare that holds while the topic is unchanged. Skips topics that cannot be read."""
        topics: dict[TopicId, Compare] = {}
        page = await self._metadata.range(self._layout.topics, limit=PAGE_PARTITIONS)
        while True:
            for item in page.items:
                with suppress(Corrupt):
                    topics[decode_topic(item).id] = Compare(item.key, item.mod_revision)
            if not page.more:
                return topics
            page = await self._metadata.range(self._layout.topics, start_after=page.items[-1].key, limit=PAGE_PARTITIONS)
