"""The controller: one broker at a time that seals the sessions of dead brokers and appoints leaders.

    elected (its key is created under the broker's lease) ─▶ read ─▶ plan ─▶ seal, write ─▶ wait for a change ─▶ read …

metadata/controller/plan.py decides; this module acts, and appoints leaders by batches on the bucket (appointment_log.py). Requests
to the bucket run in tasks of their own, so a slow object delays no plan. A plan covers only the partitions that have changed since
the last one, and changes in quick succession share a plan.

Invariants:
- A session is sealed only after a read past every cache has shown that it is not registered. It can never be registered again.
- Every write carries the guard that this broker is still the controller, and that the metadata are those that it began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import partial
from itertools import islice
from typing import Final

from gateway.controller.appointment_log import TOPICS_AT_ONCE, AppointmentLog, Part
from gateway.controller.metadata_snapshots import MetadataSnapshots
from gateway.controller.revision_compaction import compact_revisions
from gateway.controller.topic_mirror import TopicMirror
from gateway.controller.write_proofs import WriteProofs
from metadata.backup.restore_state import check_not_restoring
from metadata.cluster import leadership
from metadata.cluster.broker_registry import BrokerCache, Candidate, read_brokers
from metadata.cluster.leadership import LeadershipChange
from metadata.cluster.leadership_cache import PartitionCache
from metadata.controller.ledger import Changes, PartitionLedger
from metadata.controller.plan import Steps, closed_by_leader, plan
from metadata.errors import Corrupt, Fenced, OutcomeUnknown, Rejected, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Revision, SessionId, TopicId, TopicPartition
from metadata.store.interface import (
    OPERATIONS_MAX,
    Compare,
    Delete,
    Event,
    KeyValue,
    LeaseId,
    LeaseLost,
    MetadataStore,
    Put,
    RevisionCompacted,
)
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch
from metadata.topics.cache import TopicCache
from metadata.topics.registry import read_topic_ids
from metadata.topics.topic import Topic
from segments.object_store.interface import ObjectStore
from segments.wal.session import Session, seal

# Pause after a failure; it doubles with each failure that follows.
PAUSE_S = 0.2
PAUSE_S_MAX = 5.0
# Shortest time between two plans: many changes in quick succession cost one plan.
PLAN_INTERVAL_S = 0.02
# Largest share of the time that goes into plans: after a long plan, such as for ten thousand new partitions, the next one waits.
PLANNING_SHARE = 1 / 3
# Decisions in one batch of appointments. The rest is planned again if a broker has come or gone before the next batch.
BATCH_DECISIONS_MAX: Final = 4000
# Time limit of a seal. The bucket may answer another broker, so this one then does not stand for election for ASIDE_S.
SEAL_TIMEOUT_S = 15.0
ASIDE_S = 5.0
# If the states of deleted topics could not be deleted, and no topic has changed, the topics are read again after this time.
FORGET_AGAIN_S = 60.0
# Time limit for the mirror of topics before a clean stop.
LAST_MIRROR_TIMEOUT_S = 5.0
# Longest wait for the watch to show a write of this controller.
FOLLOW_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)

# Compares that hold while this broker is the controller: one of its key, and one of the cluster's id. The second keeps it from
# changing metadata that were emptied or restored while it ran.
Guard = tuple[Compare, Compare]

_TRIED_AGAIN = (TidelogError, RevisionCompacted)


class Controller:
    """Stands for election in one session of a broker, and does the controller's work while it is elected.

    Its owner runs `run()` as a task, and calls `resign()` before a clean stop.
    """

    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        topics: TopicCache,
        brokers: BrokerCache,
        partitions: PartitionCache,
        *,
        layout: KeyLayout,
        session: Session,
        broker_id: str,
        lease: LeaseId,
        release_timeout_s: float,
        snapshot_interval_s: float,
        history_s: float,
        now_ms: Callable[[], int],
        new_nonce: Callable[[], bytes],
    ) -> None:
        """`new_nonce` returns a value for a batch of appointments that no other call of any process returns."""
        self._bucket = bucket
        self._metadata = metadata
        self._topics = topics
        self._brokers = brokers
        self._partitions = partitions
        self._layout = layout
        self._session = session
        self._broker_id = broker_id
        self._lease = lease
        self._release_timeout_s = release_timeout_s
        self._now_ms = now_ms
        self._ledger: PartitionLedger | None = None
        self._planned_for_s = 0.0
        self._stale_partitions: set[TopicPartition] = set()
        self._stale_topics: dict[TopicId, int] = {}
        self._broker_changes = 0
        self._sealed: set[SessionId] = set()
        self._alongside: set[str] = set()
        # Since when a leader is known to be asked to hand over. Kept when another broker becomes the controller for a while.
        self._asked_s: dict[TopicPartition, tuple[SessionId, LeaderEpoch, float]] = {}
        self._not_forgotten: tuple[Sequence[TopicPartition], Revision] | None = None
        self._forget_again_s = 0.0
        self._aside_until_s = 0.0
        self._identity: Compare | None = None
        self._holder: KeyValue | None = None
        # The election that was logged.
        self._logged_election: Revision | None = None
        self._mirror: TopicMirror | None = None
        self._copying: asyncio.Task[None] | None = None
        self._elected_by: Guard | None = None
        self._snapshots = MetadataSnapshots(
            bucket, metadata, layout=layout, interval_s=snapshot_interval_s, now_ms=now_ms, prove=self._prove
        )
        self._history_s = history_s
        self._appointments = AppointmentLog(bucket, metadata, partitions, layout, new_nonce=new_nonce, gave_up=self._stand_aside)
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Runs until cancelled. Raises Rejected if another copy of the metadata has appointed leaders."""
        watched = RangeWatch(self._metadata, self._layout.controller, replace=self._holder_is, apply=self._holder_changed)
        forget = [
            self._brokers.subscribe(self._brokers_changed),
            self._partitions.subscribe(self._partitions_changed),
            self._topics.subscribe(self._topic_changed),
        ]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(watched.run())
                await watched.wait_for(Revision(1), timeout_s=None)
                pause_s = PAUSE_S
                while True:
                    self._changed.clear()
                    began_s = loop.time()
                    try:
                        self._elected_by = guard = await self._elected()
                        recovered = guard is not None and self._appointments.was_recovered(guard)
                        mirror = self._copies(tasks, recovered=recovered)
                        if guard is not None and mirror is not None:
                            await self._act(tasks, guard, mirror)
                        else:  # the next election begins with all partitions
                            self._ledger = None
                            self._stale_partitions.clear()
                            self._stale_topics.clear()
                        if guard is not None and not recovered:  # before any seal, since another copy may have appointed
                            self._start(tasks, "recover appointments", partial(self._appointments.recover, guard))
                    except _TRIED_AGAIN as error:
                        log.warning("controller failed; retrying: %s", error)
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, PAUSE_S_MAX)
                        continue
                    pause_s = PAUSE_S
                    await self._wait()
                    await asyncio.sleep(began_s + max(PLAN_INTERVAL_S, self._planned_for_s / PLANNING_SHARE) - loop.time())
        finally:
            for unsubscribe in forget:
                unsubscribe()

    # ── election ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _holder_is(self, items: Sequence[KeyValue]) -> None:
        self._holder = next((item for item in items if item.key == self._layout.controller), None)
        self._wake()

    def _holder_changed(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.key == self._layout.controller:
                put = KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1)
                self._holder = put if event.kind == "put" else None
                self._wake()

    async def _elected(self) -> Guard | None:
        """Returns the guard of the controller's writes if this broker is the controller, standing for election if there is none;
        else None.
        """
        if self._identity is None:
            stored = await self._metadata.get(self._layout.cluster_id)
            self._identity = Compare(self._layout.cluster_id, stored.mod_revision if stored is not None else 0)
        name = f"{self._broker_id} {self._session.id}".encode()
        key = self._layout.controller
        held = self._holder
        mine = Compare(key, held.mod_revision) if held is not None and held.value == name else None
        if self._aside_until_s > asyncio.get_running_loop().time():
            if mine is not None:
                await self._metadata.transact([mine], [Delete(key)])
            return None
        if held is not None:
            return self._guard(held.mod_revision, self._identity) if mine is not None else None
        try:
            unled = [Compare(key, 0), Compare(self._layout.restoring, 0), self._identity]
            result = await self._metadata.transact(unled, [Put(key, name, self._lease)])
        except LeaseLost:
            return None
        if not result.succeeded:
            await check_not_restoring(self._metadata, self._layout)
            held = await self._metadata.get(key)
            if held is None or held.value != name:
                return None
            result = type(result)(True, held.mod_revision)
        return self._guard(result.revision, self._identity)

    def _guard(self, elected_at: Revision, identity: Compare) -> Guard:
        if elected_at != self._logged_election:  # an election may be seen twice: by its answer and by the watch
            log.info("controller elected broker=%s", self._broker_id)
            self._logged_election = elected_at
        return Compare(self._layout.controller, elected_at), identity

    def _copies(self, tasks: asyncio.TaskGroup, *, recovered: bool) -> TopicMirror | None:
        """Starts, continues or ends the periodic tasks of the controller: copies to the bucket, and compaction of revisions."""
        if recovered and self._mirror is None:
            self._mirror = TopicMirror(
                self._bucket, self._metadata, self._topics, self._layout, now_ms=self._now_ms, prove=self._prove
            )
            self._copying = tasks.create_task(self._copy(self._mirror), name="copies of the metadata")
        elif not recovered and self._copying is not None:
            self._copying.cancel()
            self._mirror = self._copying = None
        return self._mirror

    async def _copy(self, mirror: TopicMirror) -> None:
        async with asyncio.TaskGroup() as copies:
            copies.create_task(mirror.run(), name="mirror of topics")
            copies.create_task(self._snapshots.run(), name="snapshots")
            copies.create_task(
                compact_revisions(self._metadata, self._layout, kept_s=self._history_s), name="compaction of history"
            )
            copies.create_task(WriteProofs(self._metadata, self._layout, prove=self._prove).run(), name="proofs of writes")

    async def _prove(self) -> None:
        """Raises unless this broker is the controller, and no other copy of the metadata has appointed leaders (AppointmentLog)."""
        if self._elected_by is None:
            raise Fenced("this broker is not the controller")
        try:
            await self._appointments.prove(self._elected_by)
        finally:
            self._changed.set()  # if another copy has appointed, the next plan ends this broker

    async def resign(self) -> None:
        """Mirrors alterations of topics and writes the last snapshot before a clean stop, if this broker is the controller."""
        if self._mirror is not None:
            errors: Sequence[Exception]
            try:
                async with asyncio.timeout(LAST_MIRROR_TIMEOUT_S):
                    errors = await self._mirror.flush()  # the next controller mirrors only what is later than the snapshot
            except (TidelogError, TimeoutError) as error:
                errors = [error]
            for failure in errors:
                log.warning("a topic's change is not mirrored to the bucket before the stop: %s", str(failure) or "out of time")
            await self._snapshots.last()

    # ── what the controller does ────────────────────────────────────────────────────────────────────────────────────────

    async def _act(self, tasks: asyncio.TaskGroup, guard: Guard, mirror: TopicMirror) -> None:
        broker_changes = self._broker_changes
        steps = await self._plan()
        if steps.unregistered:
            await self._seal_dead_sessions(tasks, steps.unregistered)
        if not self._appointments.is_recovered(guard):  # even without a decision, since another copy may have appointed
            self._start(tasks, "recover appointments", partial(self._appointments.recover, guard))
        later = [decision for decision in steps.decisions if decision.read_at]
        if later:
            self._start(tasks, "appointments", partial(self._appoint, later, guard, broker_changes))
        first = [decision for decision in steps.decisions if not decision.read_at]
        if first:
            self._start(tasks, "first leaders", partial(self._begin, first, guard, mirror, broker_changes))
        ownerless = [*steps.closing, *steps.forgotten]
        if ownerless and self._may_forget(ownerless):
            self._start(tasks, "forget deleted topics", partial(self._forget, steps.closing, steps.forgotten, guard, mirror))
        if self._appointments.may_collect:
            self._start(tasks, "collection of old appointments", self._appointments.collect)
        await self._expel_late_leaders(guard)

    def _start(self, tasks: asyncio.TaskGroup, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Starts a task that waits for the bucket, unless one of this name runs. The controller plans again when it ends."""
        if what not in self._alongside:
            self._alongside.add(what)
            tasks.create_task(self._finish(what, work), name=what)

    async def _finish(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except _TRIED_AGAIN as error:
            if error is self._appointments.ending:
                raise  # which ends the broker
            hint = error.hint if isinstance(error, Rejected) else ""
            log.error("controller step failed: %s: %s %s; retrying", what, error, hint)
            await asyncio.sleep(PAUSE_S_MAX if isinstance(error, Rejected) else PAUSE_S)
        finally:
            self._alongside.discard(what)
            self._changed.set()

    async def _begin(self, first: Sequence[LeadershipChange], guard: Guard, mirror: TopicMirror, planned_at: int) -> None:
        """Appoints the first leaders of partitions once their topics are on the bucket, and if these topics are unchanged.

        The previous controller may have deleted the states of a deleted topic's partitions. If this one's watch has shown that and
        not yet the topic's deletion, leader epochs would start again at the first one.
        """
        unregistered = await mirror.ensure(self._topics_of(first))
        topics = {topic.id: topic for topic in self._topics_of(first) if topic.id not in unregistered}
        for number, decisions in enumerate(_batches(decision for decision in first if decision.partition.topic_id in topics)):
            if number and self._broker_changes != planned_at:
                break  # the rest is planned again
            parts = []
            for begun in _by_topics(decisions):
                known = [topics[topic_id] for topic_id in begun]
                guards = [Compare(self._layout.topic(topic.name), topic.revision) for topic in known]
                parts.append(Part([decision for held in begun.values() for decision in held], guards))
            await self._appointments.appoint(parts, guard)
        if unregistered:  # their partitions are planned again
            raise next(iter(unregistered.values()))

    async def _appoint(self, decisions: Sequence[LeadershipChange], guard: Guard, planned_at: int) -> None:
        """Appoints leaders one batch after the other. If a broker has come or gone since the plan, the rest is planned again."""
        for number, batch in enumerate(_batches(decisions)):
            if number and self._broker_changes != planned_at:
                break
            await self._appointments.appoint([Part(batch)], guard)

    def _topics_of(self, decisions: Sequence[LeadershipChange]) -> list[Topic]:
        topic_ids = {decision.partition.topic_id for decision in decisions}
        return [topic for topic in self._topics.topics() if topic.id in topic_ids]

    async def _plan(self) -> Steps:
        """Plans in a thread, since a plan with many changes takes a tenth of a second or more."""
        awaited = {self._partitions.states[partition][0].moving_to for partition in self._partitions.moving}
        self._sealed = {session for session in self._sealed if self._partitions.led_by(session) or session in awaited}
        candidates = [registration.candidate for registration in self._brokers.brokers.values()]
        ledger, changes = self._ledger or PartitionLedger(), self._changes(everything=self._ledger is None)
        self._ledger = None  # the thread owns it; a cancelled plan leaves it half changed
        begun_s = asyncio.get_running_loop().time()
        steps = await asyncio.to_thread(_planned, ledger, changes, candidates, frozenset(self._sealed))
        self._ledger, self._planned_for_s = ledger, asyncio.get_running_loop().time() - begun_s
        return steps

    def _changes(self, *, everything: bool) -> Changes:
        """Returns the changes that the caches have seen since the last plan, or all they hold."""
        known, corrupt = self._partitions.states, self._partitions.corrupt
        partitions, topics = self._stale_partitions, self._stale_topics
        self._stale_partitions, self._stale_topics = set(), {}
        if everything:
            counts = {topic.id: topic.partition_count for topic in self._topics.topics()}
            return Changes(counts, {**dict.fromkeys(corrupt), **known}, frozenset(corrupt), self._first_epochs(counts))
        states = {partition: known.get(partition) for partition in partitions}
        return Changes(topics, states, partitions & corrupt, self._first_epochs(topics))

    def _first_epochs(self, topic_ids: Collection[TopicId]) -> dict[TopicId, LeaderEpoch]:
        if not topic_ids:
            return {}
        return {topic.id: topic.first_leader_epoch for topic in self._topics.topics() if topic.id in topic_ids}

    async def _seal_dead_sessions(self, tasks: asyncio.TaskGroup, sessions: Sequence[SessionId]) -> None:
        alive = {registered.registration.session for registered in (await read_brokers(self._metadata, self._layout)).values()}
        for session in sessions:
            if session not in alive:
                self._start(tasks, f"seal session {session}", partial(self._seal, session))

    async def _seal(self, session: SessionId) -> None:
        log.warning("sealing session=%s: its broker ended without a clean stop, or is cut off; records are kept", session)
        try:
            await seal(self._bucket, session, by=self._session, now_ms=self._now_ms, patience_s=SEAL_TIMEOUT_S)
        except (Unavailable, OutcomeUnknown):
            self._stand_aside()
            raise
        self._sealed.add(session)

    def _stand_aside(self) -> None:
        """Makes another broker the controller for ASIDE_S, since the bucket may answer that one."""
        self._aside_until_s = asyncio.get_running_loop().time() + ASIDE_S

    async def _forget(
        self, closing: Sequence[TopicPartition], forgotten: Sequence[TopicPartition], guard: Guard, mirror: TopicMirror
    ) -> None:
        """Asks the leaders of deleted topics' partitions to close them, and deletes the states of those without a leader.

        It reads the topics from the store, since the cache may be behind the states.
        """
        try:
            known = await read_topic_ids(self._metadata, self._layout)
        except Corrupt as error:
            log.error("states of deleted topics kept, since not all topics can be read: %s", error)
            self._keep([*closing, *forgotten])
            return
        led = [partition for partition in closing if partition.topic_id not in known]
        gone = [partition for partition in forgotten if partition.topic_id not in known]
        if not led and not gone:
            self._keep([*closing, *forgotten])
            return
        states = self._partitions.states
        asked = [closed_by_leader(*states[partition], partition) for partition in led if partition in states]
        revision = await leadership.write(self._metadata, asked, self._layout, guards=guard)
        gone = await self._with_states(gone, guard)
        if gone:
            await self._appointments.prove(guard)  # each copy that appoints later then holds the deletion
            await mirror.ensure_deleted(sorted({partition.topic_id for partition in gone}))
            revision = await leadership.forget(self._metadata, gone, self._layout, guards=guard)
        await self._partitions.wait_for(revision, timeout_s=FOLLOW_TIMEOUT_S)  # or the next plan would repeat all this

    async def _with_states(self, gone: Sequence[TopicPartition], guard: Guard) -> list[TopicPartition]:
        """Returns the partitions whose states still exist. Raises Fenced if the store holds no state of one of their topics.

        A topic that is marked as deleted loses its records. While a state exists, the topic really was deleted. Without one, the
        topic may be missing because all metadata were emptied or set back to a backup, so it must not be marked. A topic whose
        states are gone from the cache since the plan was marked by the controller that deleted them, or is missing for that reason.
        """
        states, corrupt = self._partitions.states, self._partitions.corrupt
        there = [partition for partition in gone if partition in states or partition in corrupt]
        one_of_each = {partition.topic_id: self._layout.partition(partition) for partition in there}
        compares = [Compare(key, 0, "!=") for key in one_of_each.values()]
        room = OPERATIONS_MAX - len(guard)
        for first in range(0, len(compares), room):
            if not (await self._metadata.transact([*guard, *compares[first : first + room]], [])).succeeded:
                raise Fenced(
                    "topics not marked as deleted: another broker became the controller, or its view of the states is stale"
                )
        return there

    def _keep(self, partitions: Sequence[TopicPartition]) -> None:
        self._not_forgotten = partitions, self._topics.revision
        self._forget_again_s = asyncio.get_running_loop().time() + FORGET_AGAIN_S

    def _may_forget(self, partitions: Sequence[TopicPartition]) -> bool:
        """Returns whether to read all topics again: something has changed since the last try, or FORGET_AGAIN_S have passed."""
        again = asyncio.get_running_loop().time() >= self._forget_again_s
        return again or self._not_forgotten != (partitions, self._topics.revision)

    async def _expel_late_leaders(self, guard: Guard) -> None:
        """Deletes the registration of a leader that has not handed over in time, so that its session is sealed."""
        now_s = asyncio.get_running_loop().time()
        asked = {}
        for partition in self._partitions.moving:
            state = self._partitions.states[partition][0]
            led = state.leader_session, state.leader_epoch
            since = self._asked_s.get(partition)
            asked[partition] = since if since and since[:2] == led else (*led, now_s)
        self._asked_s = asked
        late = {session for session, _, since_s in asked.values() if now_s - since_s >= self._release_timeout_s}
        for broker_id, registered in (await read_brokers(self._metadata, self._layout)).items() if late else ():
            if registered.registration.session in late:
                session = registered.registration.session
                log.error("ending session=%s broker=%s: it did not hand over its partitions in time", session, broker_id)
                key = self._layout.broker(broker_id)
                await self._metadata.transact([*guard, Compare(key, registered.revision)], [Delete(key)])

    async def _wait(self) -> None:
        """Waits for a change, for the next deadline of a handover, or until this broker may stand for election again."""
        now_s = asyncio.get_running_loop().time()
        is_controller = self._ledger is not None
        due_s = [since_s + self._release_timeout_s for _, _, since_s in self._asked_s.values() if is_controller]
        due_s += [at_s for at_s in (self._aside_until_s, self._forget_again_s) if at_s > now_s]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(min(due_s), now_s + PAUSE_S) if due_s else None):
                await self._changed.wait()

    def _brokers_changed(self) -> None:
        self._broker_changes += 1
        self._changed.set()

    def _partitions_changed(self, changed: Set[TopicPartition]) -> None:
        self._stale_partitions |= changed
        self._changed.set()

    def _topic_changed(self, old: Topic | None, new: Topic | None) -> None:
        if old is not None:
            self._stale_topics[old.id] = 0
        if new is not None:
            self._stale_topics[new.id] = new.partition_count
        self._changed.set()

    def _wake(self) -> None:
        self._changed.set()


def _batches(decisions: Iterable[LeadershipChange]) -> Iterator[list[LeadershipChange]]:
    """Splits the decisions, in order, into batches of BATCH_DECISIONS_MAX."""
    left = iter(decisions)
    while batch := list(islice(left, BATCH_DECISIONS_MAX)):
        yield batch


def _by_topics(decisions: Iterable[LeadershipChange]) -> Iterator[dict[TopicId, list[LeadershipChange]]]:
    """Groups the decisions by topic, TOPICS_AT_ONCE topics at a time."""
    topics: dict[TopicId, list[LeadershipChange]] = {}
    for decision in decisions:
        topics.setdefault(decision.partition.topic_id, []).append(decision)
    left = iter(topics.items())
    while part := dict(islice(left, TOPICS_AT_ONCE)):
        yield part


def _planned(ledger: PartitionLedger, changes: Changes, candidates: Sequence[Candidate], sealed: Set[SessionId]) -> Steps:
    ledger.apply(changes)
    return plan(ledger, candidates, sealed)
