"""Runs a broker's sessions, one after the other, and the partitions that it leads meanwhile.

  claim a session ─▶ join the cluster ─▶ take over appointed partitions (takeover.py),             ─▶ session ends ─▶ again
(session_opener.py)   (broker_lease.py)     hand over requested partitions (handover.py),
                                            watch whether the bucket is writable (bucket_isolation.py),
                                            follow compactions (manifest_watch.py),
                                            stand for controller, check for a seal

The controller writes to the metadata which session leads; a broker never decides that itself. Invariants: a partition is served
only
when the metadata name this session as its leader, and only after the sessions before it were sealed or have released it. A log is
used
for one session and then discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Set
from typing import Any, NamedTuple, TypeVar

import msgspec

from compaction.notifier import ManifestNotifier
from gateway.cluster.broker_lease import BrokerLease
from gateway.cluster.bucket_isolation import BucketIsolationMonitor
from gateway.cluster.earlier_sessions import EarlierSessions, written_unknown
from gateway.cluster.handover import Handover
from gateway.cluster.identity import set_back
from gateway.cluster.manifest_watch import DeletionNotifier, ManifestWatch
from gateway.cluster.proven_routing import ProvenRouting
from gateway.cluster.session_opener import PAUSE_S, SessionOpener
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.takeover import Takeover
from gateway.cluster.view import ClusterView, partitions_of
from gateway.cluster.write_notes import note_writes
from gateway.controller.controller import Controller
from metadata.cluster.broker_registry import NO_NODE_ID, BrokerRegistration
from metadata.cluster.node_ids import take_node_id
from metadata.errors import NoLeader, OutcomeUnknown, Stopping, TidelogError, Unavailable
from metadata.model import SessionId, TopicPartition
from metadata.retry import retry_unavailable
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.topic import Topic
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.log.session_log import SessionLog
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.read.disk_cache import DiskCache
from segments.recovery.footer_cache import FooterCache
from segments.recovery.takeover_prefetch import read_footers_ahead
from segments.settings import SegmentSettings
from segments.wal.session import Session

# Upper bound for prefetching footers before registration; no client waits yet.
READ_AHEAD_S = 1.0
# Interval between checks for the own seal while another session may have been appointed in this one's place.
SEAL_CHECK_S = 1.0
# Interval between checks for the own seal while the lease is sure and no write would meet the seal. A broker on another copy of the
# metadata may have set it.
IDLE_SEAL_CHECK_S = 60.0

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class _Parts(NamedTuple):
    """Holds the parts of the present session, once it has joined, that must learn of changes."""

    broker_lease: BrokerLease
    takeover: Takeover
    handover: Handover
    reach: BucketIsolationMonitor
    routing: ProvenRouting


class SessionManager:
    """Opens sessions, runs the parts of each, and tells callers which partitions are led here."""

    def __init__(
        self,
        store: HealthTrackingObjectStore,
        metadata: MetadataStore,
        view: ClusterView,
        settings: SegmentSettings,
        cluster: ClusterSettings,
        *,
        layout: KeyLayout,
        registration: BrokerRegistration,
        new_writer: Callable[[], bytes],
        now_ms: Callable[[], int],
        expires_ms: Callable[[], int] | None = None,
        disk: DiskCache | None = None,
        is_alone: bool = False,
        leaps: Callable[[], int] = lambda: 0,
    ) -> None:
        """`registration` describes this broker; each session fills in its own number. `expires_ms`, `leaps`: as in SessionLog.

        `disk` keeps reads of the bucket beyond the end of a session. `is_alone`: no other broker can use these metadata, as without
        etcd.
        """
        self.registration = registration
        self._store = store
        self._metadata = metadata
        self._view = view
        self._settings = settings
        self._cluster = cluster
        self._layout = layout
        self._new_writer = new_writer
        self._now_ms = now_ms
        self._expires_ms = expires_ms
        self._disk = disk
        self._leaps = leaps
        self.budget = ByteBudget(settings.buffer_bytes_max)
        self.counters = LogCounters()
        self.sessions_begun = 0
        self._deletions = DeletionNotifier(ManifestNotifier(metadata, layout), new_nonce=new_writer)
        self._footers = FooterCache(bytes_max=settings.footer_cache_bytes_max)
        self._log: SessionLog | None = None
        self._own_sessions: set[SessionId] = set()
        self._parts: _Parts | None = None
        self._earlier = EarlierSessions(store, metadata, layout, settings, self._footers, now_ms=now_ms)
        self._claims = SessionOpener(
            store,
            metadata,
            layout,
            broker_id=registration.broker_id,
            new_writer=new_writer,
            now_ms=now_ms,
            earlier=self._earlier if is_alone else None,
        )
        self._stopping = asyncio.Event()
        self._advanced = asyncio.Event()
        self._subscribers: list[Callable[[], None]] = []
        view.partitions.subscribe(self._partitions_changed)
        view.brokers.subscribe(self._brokers_changed)

    @property
    def serving(self) -> bool:
        """Returns True while the present session serves; False between two sessions, when no request can succeed."""
        return self._log is not None and not self._log.ended and not self._stopping.is_set()

    @property
    def session(self) -> SessionId | None:
        return self._log.session.id if self._log is not None else None

    @property
    def lease_is_valid(self) -> bool:
        """Returns True while the broker is registered and its lease cannot have ended."""
        return self._parts is not None and self._parts.broker_lease.is_valid

    @property
    def left_to_hand_over(self) -> int:
        """Returns the number of partitions led here if another broker could lead them; else 0."""
        others = (other for other in self._view.brokers.brokers.values() if other.session != self.session)
        if self._log is None or all(other.draining for other in others):
            return 0
        return len(self._view.partitions.led_by(self._log.session.id))

    @property
    def present_log(self) -> SessionLog | None:
        """Returns the log of the present session; None without a session."""
        return self._log

    @property
    def log(self) -> SessionLog:
        """Returns the log of the present session. Raises Stopping, or NoLeader between two sessions."""
        if self._log is None:
            if self._stopping.is_set():
                raise Stopping("the broker is shutting down")
            raise NoLeader("the broker has no session on the bucket yet; it is opening one")
        return self._log

    def stop(self) -> None:
        """Hands over what others can take, then refuses new batches; `run` flushes what is buffered, seals and returns."""
        self._stopping.set()

    async def run(self) -> None:
        """Runs one session after the other, until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(self._deletions.run(), name="deletion notices")
            await self._unless_stopped(self._take_node_id())
            while not self._stopping.is_set():
                session = await self._unless_stopped(self._claims.next())
                if session is not None:
                    log.info("session began session=%s", session.id)
                    await self._run_session(session)
                    log.info("session ended session=%s", session.id)
            publishing.cancel()
        await self._deletions.publish_remaining()

    async def _take_node_id(self) -> None:
        """Fills in the broker's number in Kafka's protocol, as soon as the metadata store can be reached."""
        while self.registration.node_id == NO_NODE_ID:
            try:
                node_id = await take_node_id(self._metadata, self._layout, self.registration.broker_id)
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("no node id broker=%s: %s; retrying", self.registration.broker_id, error)
                await asyncio.sleep(PAUSE_S)
            else:
                self.registration = msgspec.structs.replace(self.registration, node_id=node_id)

    async def _run_session(self, session: Session) -> None:
        self.sessions_begun += 1
        registration = msgspec.structs.replace(self.registration, session=session.id)
        ttl_s = self._cluster.session_timeout_ms / 1000
        before = frozenset(self._own_sessions)
        self._own_sessions.add(session.id)
        broker_lease = BrokerLease(self._metadata, self._layout, registration, ttl_s=ttl_s, own_sessions=before)
        routing = ProvenRouting(self._view.topics)
        session_log = SessionLog(
            self._store,
            session,
            self._settings,
            budget=self.budget,
            now_ms=self._now_ms,
            expires_ms=self._expires_ms,
            new_writer=self._new_writer,
            lease_is_valid=lambda: broker_lease.is_valid and self._view.brokers.by_session(session.id) is not None,
            routing=routing,
            on_deletion=self._deletions.notify,
            disk=self._disk,
            counters=self.counters,
            bucket_state=lambda: self._store.state,
            leaps=self._leaps,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(session_log.run(), name=f"log of session {session.id}")
                living = tasks.create_task(
                    self._live(session_log, broker_lease, routing, writing), name=f"life of session {session.id}"
                )
                await asyncio.wait((writing,))
                living.cancel()
        finally:
            self._log = None
            self._parts = None
            self._advance()
            await broker_lease.leave()

    async def _unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Returns the result of the work; None if the broker is stopped before there is one."""
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._stopping.wait())
            working = tasks.create_task(work)
            await asyncio.wait((stopping, working), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            working.cancel()
        return None if working.cancelled() else working.result()

    async def first_session(self, timeout_s: float) -> None:
        """Waits until a session has begun and the watch shows it, and up to `timeout_s` per topic until its partitions are led.

        Without the watch, clients would receive an empty broker list.
        """
        while self._log is None or self._view.brokers.by_session(self._log.session.id) is None:
            await self._advanced.wait()
        for topic in self._view.topics.topics():
            await self.led(topic, timeout_s=timeout_s)

    async def led(self, topic: Topic, *, timeout_s: float) -> bool:
        """Returns whether all partitions of the topic have leaders in time, and those appointed to this session are led here."""
        partitions = partitions_of(topic)
        try:
            async with asyncio.timeout(timeout_s):
                while unled := next((partition for partition in partitions if not self._is_led(partition)), None):
                    while not self._is_led(unled):  # of ten thousand partitions only one is checked at each change
                        await self._advanced.wait()
        except TimeoutError:
            return False
        return True

    async def let_go(self, topic: Topic, *, timeout_s: float) -> bool:
        """Returns whether no session leads any of a deleted topic's partitions any more, in time.

        This broker's view may not show yet that a partition has got a leader. So the states are read from the store first: once a
        topic is deleted, no partition of it gets its first leader.
        """
        states = self._view.partitions
        try:
            async with asyncio.timeout(timeout_s):
                await retry_unavailable(lambda: states.catch_up(topic.id))
                for partition in partitions_of(topic):
                    while (state := states.get(partition)) is not None and not state.is_closed:
                        await self._advanced.wait()
        except TimeoutError:
            return False
        except TidelogError as error:
            log.warning("leaders of a deleted topic are not known topic=%s: %s", topic.name, error)
            return False
        return True

    async def await_takeover(self, partitions: Collection[TopicPartition], *, timeout_s: float) -> None:
        """Waits while all of these are appointed to this session and none is served yet: the caller came a moment too early."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while partitions and all(map(self._is_awaited, partitions)):
                    await self._advanced.wait()

    def _is_awaited(self, partition: TopicPartition) -> bool:
        leader = self._view.leader(partition)
        return leader is not None and leader.session == self.session and not self._is_led(partition)

    def _is_led(self, partition: TopicPartition) -> bool:
        leader = self._view.leader(partition)
        if leader is None or leader.session != self.session:
            return leader is not None
        return self._log is not None and (partition in self._log.partitions or partition in self._log.partitions.damaged)

    # ── one session ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _live(
        self, session_log: SessionLog, broker_lease: BrokerLease, routing: ProvenRouting, writing: asyncio.Task[None]
    ) -> None:
        """Runs a session's work beside the writing. Ends the writing when the session ends or the broker stops."""
        await self._unless_stopped(self._read_footers_ahead(session_log.session.id))
        if not await self._unless_stopped(broker_lease.join()):
            session_log.close()
            return
        assert broker_lease.lease is not None, "it has joined"
        following = ManifestWatch(
            session_log, self._store, self._view.topics, self._view.compactions, reads_max=self._settings.footer_reads_max
        )
        takeover = Takeover(
            session_log,
            self._store,
            self._metadata,
            self._view,
            layout=self._layout,
            settings=self._settings,
            footers=self._footers,
            now_ms=self._now_ms,
            took_over=self._took_over,
            fell_behind=following.wake,
        )
        handover = Handover(session_log, self._metadata, self._view, layout=self._layout)
        reach = BucketIsolationMonitor(
            self._store,
            self._metadata,
            self._view.brokers,
            broker_lease,
            layout=self._layout,
            session=session_log.session.id,
            timeout_s=self._cluster.bucket_timeout_ms / 1000,
            waits_for_s=lambda: takeover.reading_for_s,
            new_nonce=self._new_writer,
        )
        self._log = session_log
        self._parts = _Parts(broker_lease, takeover, handover, reach, routing)
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._stopping.wait())
            controller = Controller(
                self._store,
                self._metadata,
                self._view.topics,
                self._view.brokers,
                self._view.partitions,
                layout=self._layout,
                session=session_log.session,
                broker_id=self.registration.broker_id,
                lease=broker_lease.lease,
                release_timeout_s=self._cluster.release_timeout_ms / 1000,
                snapshot_interval_s=self._cluster.snapshot_interval_ms / 1000,
                history_s=self._cluster.metadata_history_ms / 1000,
                now_ms=self._now_ms,
                new_nonce=self._new_writer,
            )
            keeping = tasks.create_task(broker_lease.keep(), name="broker lease")
            others = [
                tasks.create_task(controller.run(), name="controller"),
                tasks.create_task(takeover.run(), name="take over"),
                tasks.create_task(handover.run(), name="hand over"),
                tasks.create_task(reach.run(), name="reach of the bucket"),
                tasks.create_task(following.run(), name="follow compactions"),
                tasks.create_task(routing.run(session_log.partitions), name="prove routing of keyed requests"),
                tasks.create_task(_watch_for_seal(session_log, broker_lease), name="seal check"),
                tasks.create_task(
                    note_writes(
                        self._metadata,
                        self._layout,
                        session_log.session.id,
                        broker_lease.lease,
                        lambda: session_log.writer.committed_to,
                    ),
                    name="notes of writes",
                ),
            ]
            self._advance()
            await asyncio.wait((stopping, keeping), return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                broker_lease.drain()
                draining = tasks.create_task(self._drained())
                cut_off = tasks.create_task(reach.until_in_trouble())
                await asyncio.wait((draining, cut_off, keeping), return_when=asyncio.FIRST_COMPLETED)
                draining.cancel()
                cut_off.cancel()
                if not reach.in_trouble:
                    await controller.resign()
            session_log.close()
            if reach.in_trouble and (keeping.done() or self.left_to_hand_over):
                # the outcome of buffered writes is unknown and the bucket cannot be asked: waiting callers get their error now
                writing.cancel()
            for task in (stopping, *others):
                task.cancel()

    async def _read_footers_ahead(self, own: SessionId) -> None:
        """Prefetches footers of the leading sessions: after registration, producers of the appointed partitions wait while it
        reads."""
        states = (state for state, _ in self._view.partitions.states.values() if not state.is_closed)
        sessions = {span.session for state in states for span in state.sessions} - {own}
        await read_footers_ahead(
            self._store, sessions, self._footers, reads_max=self._settings.footer_reads_max, timeout_s=READ_AHEAD_S
        )
        await self._check_not_set_back()

    async def _check_not_set_back(self) -> None:
        """Raises Rejected if a session has written in a leader epoch that the metadata do not know, as far as footers were read.

        That happens if etcd was set back to a snapshot of its own, and partitions had moved since between sessions that it knows.
        """
        states = {partition: state for partition, (state, _) in self._view.partitions.states.items()}
        topics = {topic.id for topic in self._view.topics.topics()}
        for runs in self._footers.known():
            try:
                if written_unknown(runs.session, runs.newest_epochs(), states, topics) and not await self._earlier.is_known(runs):
                    raise set_back(self._store.url, runs.session)
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("leadership check failed session=%s: %s; the session begins without it", runs.session, error)

    async def _drained(self) -> None:
        """Waits until nothing is led here, while another broker can lead it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._cluster.drain_timeout_ms / 1000):
                while self.left_to_hand_over:
                    await self._advanced.wait()

    def _partitions_changed(self, changed: Set[TopicPartition]) -> None:
        """Stops serving at once what another session leads now; tasks do the rest."""
        if self._log is None:
            self._advance()
            return
        mine = self._log.session.id
        for partition in sorted(changed):
            state = self._view.partitions.get(partition)
            if state is None or state.leader_session != mine or state.is_closed:
                self._log.stop_leading(partition)
                continue
            if partition in self._log.partitions and self._log.partitions.bounds(partition).leader_epoch != state.leader_epoch:
                self._log.stop_leading(partition)
            if state.moving_to is None:
                self._log.partitions.resume(partition)
        if self._parts is not None:
            self._parts.takeover.wake(changed)
            self._parts.handover.wake()
        self._advance()

    def _brokers_changed(self) -> None:
        """Keeps a drain that an operator has requested for later sessions."""
        mine = self._view.brokers.brokers.get(self.registration.broker_id)
        is_mine = mine is not None and mine.session == self.session
        if mine is not None and is_mine and not self._stopping.is_set():
            self.registration = msgspec.structs.replace(self.registration, draining=mine.draining)
        if self._parts is not None:
            self._parts.reach.wake()
            if not is_mine:
                self._parts.broker_lease.wake()
        self._advance()

    def _advance(self) -> None:
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    def _took_over(self) -> None:
        if self._parts is not None:
            self._parts.routing.wake()
        self._advance()
        for took_over in tuple(self._subscribers):
            took_over()

    def subscribe(self, took_over: Callable[[], None]) -> None:
        """Adds a callback for partitions newly led here, which the metadata named before. It must neither block nor raise."""
        self._subscribers.append(took_over)


async def _watch_for_seal(session_log: SessionLog, broker_lease: BrokerLease) -> None:
    """Checks for a seal on the bucket while the lease may have ended, since another session may have been appointed.

    If the metadata exist twice, a seal may stand there while the lease in this copy is sure. A broker that writes meets it. An idle
    one
    checks every IDLE_SEAL_CHECK_S, so that its readers learn of it.
    """
    loop = asyncio.get_running_loop()
    committed_to, checked_s = session_log.writer.committed_to, loop.time()
    while True:
        await asyncio.sleep(SEAL_CHECK_S)
        if session_log.writer.committed_to != committed_to:
            committed_to, checked_s = session_log.writer.committed_to, loop.time()
        if not broker_lease.is_valid or loop.time() - checked_s >= IDLE_SEAL_CHECK_S:
            checked_s = loop.time()
            try:
                await session_log.writer.check_seal()
            except TidelogError as error:
                log.warning("seal check failed: %s; retrying", error)
