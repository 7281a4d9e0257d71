"""A broker's life in the cluster, one session after the other, and the partitions that it leads meanwhile.

    claim a session ─▶ join the cluster ─▶ take over what is appointed, hand over what is asked for ─▶ session ends ─▶ again
                                           stand for controller, renew the lease, look for a seal

Who leads what is read from the metadata, where the controller writes it; nothing is led by one's own decision. Invariants: a
partition is served only when the metadata names this session as its leader, and only after the sessions before it were sealed or
have released it; a partition is handed over only when all that was taken for it is committed; a Log is used for one session and
then thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Set

import msgspec

from gateway.cluster_settings import ClusterSettings
from gateway.cluster_view import ClusterView, partitions_of
from gateway.controller import Controller
from gateway.membership import Membership
from metadata import partition_assignments
from metadata.broker_registry import Registration
from metadata.counters import next_session
from metadata.errors import Corrupt, Fenced, NoLeader, OutcomeUnknown, SessionFenced, Stopping, TidelogError, Unavailable
from metadata.etcd_layout import EtcdLayout
from metadata.model import SessionId, TopicPartition
from metadata.partition_assignments import Decision, PartitionState, handed_over, pruned
from metadata.store import MetadataStore
from metadata.topic import Topic
from segments.byte_budget import ByteBudget
from segments.log import Log, Released
from segments.object_store import ObjectStore
from segments.recovery import recover
from segments.session import claim
from segments.settings import SegmentSettings

PAUSE_S = 0.5
"""Before a step that the metadata store could not do is tried again."""
SEAL_LOOKS_S = 1.0
"""Between looks for one's own seal, while it is not certain that nobody was appointed in this session's place."""
IDLE_SESSIONS_MAX = 4
"""A partition's list of sessions may have this many that hold nothing before its leader writes it anew."""

log = logging.getLogger(__name__)


class Leadership:
    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        view: ClusterView,
        settings: SegmentSettings,
        cluster: ClusterSettings,
        *,
        layout: EtcdLayout,
        registration: Registration,
        new_writer: Callable[[], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        """`registration`: as this broker registers itself; its session is filled in anew each time."""
        self.registration = registration
        self._store = store
        self._metadata = metadata
        self._view = view
        self._settings = settings
        self._cluster = cluster
        self._layout = layout
        self._new_writer = new_writer
        self._now_ms = now_ms
        self.budget = ByteBudget(settings.buffer_bytes_max)
        self._log: Log | None = None
        self._stopping = asyncio.Event()
        self._assigned = asyncio.Event()
        self._asked = asyncio.Event()
        self._moving: set[TopicPartition] = set()
        self._advanced = asyncio.Event()
        view.partitions.subscribe(self._partitions_changed)
        view.brokers.subscribe(self._brokers_changed)

    @property
    def serving(self) -> bool:
        return self._log is not None and not self._stopping.is_set()

    @property
    def session(self) -> SessionId | None:
        return self._log.session.id if self._log is not None else None

    @property
    def left_to_hand_over(self) -> int:
        """Partitions that are led here, as long as there is another broker to lead them; else 0."""
        others = (other for other in self._view.brokers.brokers.values() if other.session != self.session)
        if self._log is None or all(other.draining for other in others):
            return 0
        return len(self._view.partitions.led_by(self._log.session.id))

    @property
    def log(self) -> Log:
        """The log of the present session. Raises Stopping, or NoLeader between two sessions."""
        if self._log is None:
            if self._stopping.is_set():
                raise Stopping("the broker is shutting down")
            raise NoLeader("the broker has no session on the bucket yet; it is opening one")
        return self._log

    def stop(self) -> None:
        """Hands over what others can take, then refuses new batches; `run` flushes what is buffered, seals and returns."""
        self._stopping.set()

    async def run(self) -> None:
        """One session after the other, until `stop`."""
        while not self._stopping.is_set():
            session = await claim(
                self._store,
                next_number=self._next_number,
                writer=self._new_writer(),
                broker_id=self.registration.broker_id,
                now_ms=self._now_ms,
            )
            log.info("session %s begins", session.id)
            session_log = Log(self._store, session, self._settings, budget=self.budget, now_ms=self._now_ms)
            self._moving.clear()
            registration = msgspec.structs.replace(self.registration, session=session.id)
            ttl_s = self._cluster.session_timeout_ms / 1000
            membership = Membership(self._metadata, self._layout, registration, ttl_s=ttl_s)
            try:
                async with asyncio.TaskGroup() as tasks:
                    writing = tasks.create_task(session_log.run(), name=f"log of session {session.id}")
                    living = tasks.create_task(self._live(session_log, membership), name=f"life of session {session.id}")
                    await asyncio.wait((writing,))
                    living.cancel()
            finally:
                self._log = None
                await membership.leave()
            log.info("session %s has ended", session.id)

    async def first_session(self, timeout_s: float) -> None:
        """Waits until a session has begun, and for a while until what it is to lead is led."""
        while self._log is None:
            await self._advanced.wait()
        for topic in self._view.topics.topics():
            await self.led(topic, timeout_s=timeout_s)

    async def led(self, topic: Topic, *, timeout_s: float) -> bool:
        """Whether all partitions of the topic have leaders in time, and those that are to be led here are."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(map(self._is_led, partitions_of(topic))):
                    await self._advanced.wait()
        except TimeoutError:
            return False
        return True

    def _is_led(self, partition: TopicPartition) -> bool:
        leader = self._view.leader(partition)
        if leader is None or leader.session != self.session:
            return leader is not None
        return self._log is not None and (self._log.leads(partition) or self._log.refuses(partition))

    # ── one session ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _live(self, session_log: Log, membership: Membership) -> None:
        """What a session does beside writing. Closes the log when the session is no longer wanted, or not wanted here."""
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._stopping.wait())
            joining = tasks.create_task(membership.join())
            await asyncio.wait((stopping, joining), return_when=asyncio.FIRST_COMPLETED)
            if not joining.done() or not joining.result():
                joining.cancel()
                stopping.cancel()
                session_log.close()
                return
            assert membership.lease is not None, "it has joined"
            self._log = session_log
            controller = Controller(
                self._store,
                self._metadata,
                self._view.topics,
                self._view.brokers,
                self._view.partitions,
                layout=self._layout,
                session=session_log.session,
                broker_id=self.registration.broker_id,
                lease=membership.lease,
                release_timeout_s=self._cluster.release_timeout_ms / 1000,
                snapshot_interval_s=self._cluster.snapshot_interval_ms / 1000,
                now_ms=self._now_ms,
            )
            keeping = tasks.create_task(membership.keep(), name="membership")
            others = [
                tasks.create_task(controller.run(), name="controller"),
                tasks.create_task(self._take_over(session_log), name="take over"),
                tasks.create_task(self._hand_over(session_log), name="hand over"),
                tasks.create_task(_look_for_seal(session_log, membership), name="look for a seal"),
            ]
            self._advance()
            await asyncio.wait((stopping, keeping), return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                membership.drain()
                await self._drained()
                await controller.resign()
            session_log.close()
            for task in (stopping, *others):
                task.cancel()

    async def _drained(self) -> None:
        """Waits until nothing is led here, as long as there is somebody to lead it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._cluster.drain_timeout_ms / 1000):
                while self.left_to_hand_over:
                    await self._advanced.wait()

    async def _take_over(self, session_log: Log) -> None:
        """Serves what the metadata say that this session leads, as soon as it is rebuilt from the bucket."""
        session = session_log.session
        while True:
            self._assigned.clear()
            appointed = {
                partition: state
                for partition in sorted(self._view.partitions.led_by(session.id))
                if not session_log.leads(partition)
                and not session_log.refuses(partition)
                and (state := self._view.partitions.get(partition)) is not None
            }
            if appointed:
                recovered = await recover(
                    self._store,
                    {partition: state.sessions[:-1] for partition, state in appointed.items()},
                    by=session,
                    settings=self._settings,
                    now_ms=self._now_ms,
                )
                holding = {}
                for partition, found in recovered.items():
                    epoch = appointed[partition].leader_epoch
                    current = self._view.partitions.get(partition)
                    if current is None or (current.leader_session, current.leader_epoch) != (session.id, epoch):
                        continue  # given to another, or deleted, meanwhile
                    if isinstance(found, Corrupt):
                        log.error("%s is not served: %s", partition, found)
                        session_log.refuse(partition, found)
                    else:
                        session_log.lead(found, epoch)
                        holding[partition] = found.sessions
                await self._prune(holding)
            self._advance()
            await self._assigned.wait()

    async def _prune(self, holding: Mapping[TopicPartition, Set[SessionId]]) -> None:
        """Takes sessions that hold nothing off the lists of partitions, where there are many. It saves reads, and may fail."""
        decisions = []
        for partition, sessions in holding.items():
            state, revision = self._view.partitions.states[partition]
            shorter = pruned(state, sessions)
            if len(state.sessions) > len(shorter.sessions) + IDLE_SESSIONS_MAX:
                decisions.append(Decision(partition, revision, shorter))
        try:
            await partition_assignments.write(self._metadata, decisions, self._layout)
        except (Fenced, Unavailable, OutcomeUnknown) as error:
            log.info("lists of sessions stay as long as they are: %s", error)

    async def _hand_over(self, session_log: Log) -> None:
        """Gives up what the controller asks for, once all that was taken for it is committed."""
        while True:
            self._asked.clear()
            asked = {partition: self._view.partitions.states[partition] for partition in sorted(self._moving)}
            if asked:
                for partition in asked:
                    session_log.pause(partition)
                try:
                    decisions = [
                        Decision(partition, revision, handed_over(state, *await _release(session_log, partition, state)))
                        for partition, (state, revision) in asked.items()
                    ]
                    await partition_assignments.write(self._metadata, decisions, self._layout)
                except SessionFenced:
                    return
                except (Fenced, NoLeader, Unavailable, OutcomeUnknown) as error:
                    log.info("partitions are not handed over yet; trying again: %s", error)
                    await asyncio.sleep(PAUSE_S)
                    continue
            await self._asked.wait()

    def _partitions_changed(self, changed: Set[TopicPartition]) -> None:
        """Stops serving at once what is led by another now; the rest is for the tasks."""
        if self._log is None:
            return
        mine = self._log.session.id
        for partition in sorted(changed):
            state = self._view.partitions.get(partition)
            if state is None or state.leader_session != mine:
                self._moving.discard(partition)
                self._log.drop(partition)
                continue
            if self._log.leads(partition) and self._log.bounds(partition).leader_epoch != state.leader_epoch:
                self._log.drop(partition)
            if state.moving_to is not None:
                self._moving.add(partition)
            else:
                self._moving.discard(partition)
                self._log.resume(partition)
        self._assigned.set()
        self._asked.set()
        self._advance()

    def _brokers_changed(self) -> None:
        """A drain that an operator has asked for holds for the sessions to come as well."""
        mine = self._view.brokers.brokers.get(self.registration.broker_id)
        if mine is not None and mine.session == self.session and not self._stopping.is_set():
            self.registration = msgspec.structs.replace(self.registration, draining=mine.draining)
        self._advance()

    def _advance(self) -> None:
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    async def _next_number(self) -> SessionId:
        while True:
            try:
                return await next_session(self._metadata, self._layout)
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("no session number could be taken; trying again: %s", error)
                await asyncio.sleep(PAUSE_S)


async def _release(session_log: Log, partition: TopicPartition, state: PartitionState) -> Released:
    """Where the partition's records in this session end. One that is not led yet was not written to in this epoch."""
    if session_log.leads(partition):
        return await session_log.flushed(partition)
    return Released(session_log.committed_to, {span.session for span in state.sessions})


async def _look_for_seal(session_log: Log, membership: Membership) -> None:
    """While the lease may have ended, another may have been appointed: then a seal stands on the bucket."""
    while True:
        await asyncio.sleep(SEAL_LOOKS_S)
        if not membership.sure:
            try:
                await session_log.look_for_seal()
            except TidelogError as error:
                log.warning("whether the own session was sealed is not known: %s", error)
