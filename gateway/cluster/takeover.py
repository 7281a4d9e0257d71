"""Takes over the partitions that this broker's session is appointed to, and prefetches those that are moving to it.

  moving here    ─▶ prefetched, while its leader still writes ──┐
  appointed here ─▶ the rest is read from the bucket ◀──────────┘ ─▶ still appointed, in this epoch? ─▶ served

Invariants: a served partition was rebuilt from the bucket after the sessions before were sealed or have released it, in the epoch
that
the metadata name at that step. A partition that cannot be rebuilt now is tried again until another session leads it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence, Set

from gateway.cluster.view import ClusterView
from metadata.cluster import leadership
from metadata.cluster.leadership import FORMAT_VERSION, LeadershipChange, PartitionState, SessionSpan, pruned
from metadata.errors import Corrupt, SessionFenced, TidelogError, Unavailable
from metadata.model import LeaderEpoch, SessionId, TopicPartition
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from segments.log.session_log import SessionLog
from segments.object_store.interface import ObjectStore
from segments.recovery.footer_cache import FooterCache
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition
from segments.recovery.takeover_prefetch import AWAITED_S, TIMEOUT_S, TakeoverPrefetch
from segments.settings import SegmentSettings
from segments.wal.footer_reader import write_index

# Pause before partitions that could not be rebuilt are tried again.
PAUSE_S = 0.5
# Empty sessions that a partition's list may hold before its leader rewrites it.
IDLE_SESSIONS_MAX = 4

log = logging.getLogger(__name__)


class Takeover:
    """Takes over partitions for one session. Its owner runs `run()` as a task, and calls `wake` when partitions have changed."""

    def __init__(
        self,
        session_log: SessionLog,
        bucket: ObjectStore,
        metadata: MetadataStore,
        view: ClusterView,
        *,
        layout: KeyLayout,
        settings: SegmentSettings,
        footers: FooterCache,
        now_ms: Callable[[], int],
        took_over: Callable[[], None],
        fell_behind: Callable[[Set[TopicPartition]], None] = lambda _: None,
    ) -> None:
        """`footers` outlives the session. `took_over` is called when partitions are served, or found damaged; `fell_behind` with
        served partitions for which a compactor has announced a newer manifest meanwhile."""
        self._log = session_log
        self._session = session_log.session
        self._bucket = bucket
        self._metadata = metadata
        self._view = view
        self._layout = layout
        self._settings = settings
        self._footers = footers
        self._now_ms = now_ms
        self._took_over = took_over
        self._fell_behind = fell_behind
        self._ahead = TakeoverPrefetch(bucket, settings, footers)
        # Partitions that may have to be taken over.
        self._unserved: set[TopicPartition] = set(view.partitions.led_by(self._session.id))
        # Partitions that are being prefetched.
        self._coming: set[TopicPartition] = set()
        # What was recovered of each at its takeover, with its epoch; it says nothing about later sessions.
        self._prunable: dict[TopicPartition, tuple[LeaderEpoch, RecoveredPartition]] = {}
        self._appointed = asyncio.Event()
        self._asked = asyncio.Event()
        self._led = asyncio.Event()
        self._reading_since_s: float | None = None

    @property
    def reading_for_s(self) -> float:
        """Returns how long partitions have waited for the bucket, in seconds; 0 while none waits."""
        return 0.0 if self._reading_since_s is None else asyncio.get_running_loop().time() - self._reading_since_s

    def wake(self, changed: Set[TopicPartition]) -> None:
        appointed = {p for p in changed & self._view.partitions.led_by(self._session.id) if p not in self._log.partitions}
        if appointed:
            self._unserved |= appointed
            self._ahead.hurry()
        self._appointed.set()
        self._asked.set()

    async def run(self) -> None:
        unsubscribe = self._view.topics.subscribe(lambda _old, _new: self._topics_changed())
        try:
            await self._run()
        finally:
            unsubscribe()

    def _topics_changed(self) -> None:
        """Retries partitions that were appointed before the watch of the topics showed the names of their topics."""
        if self._unserved:
            self._appointed.set()
            self._asked.set()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take_over(), name="take over what is appointed")
            tasks.create_task(self._read_ahead(), name="read ahead what comes")
            tasks.create_task(self._spare_the_next(), name="shorten what the next leaders read")

    # ── what is appointed here ──────────────────────────────────────────────────────────────────────────────────────────

    async def _take_over(self) -> None:
        while True:
            self._appointed.clear()
            appointed = self._not_served()
            if appointed:
                self._reading_since_s = self._reading_since_s or asyncio.get_running_loop().time()
                handed_over = {p: state for p, state in appointed.items() if _is_handed_over(state)}
                try:
                    await self._serve(handed_over or appointed)
                except TidelogError as error:
                    log.error("takeover failed partitions=%s: %s; retrying", len(appointed), error)
                    await asyncio.sleep(PAUSE_S)
                    continue
                if 0 < len(handed_over) < len(appointed):
                    self._appointed.set()
                else:
                    self._asked.set()  # prefetches that failed meanwhile are tried again
            self._reading_since_s = None
            if appointed:
                self._took_over()
            await self._appointed.wait()

    def _not_served(self) -> dict[TopicPartition, PartitionState]:
        """Returns the partitions to take over, in order, without those that are just being prefetched.

        Partitions whose topic is not known are left out: it was deleted, or the watch will soon show its name, which its manifests'
        keys need.
        """
        appointed = self._view.partitions.led_by(self._session.id)
        self._unserved = {
            p for p in self._unserved if p in appointed and p not in self._log.partitions and p not in self._log.partitions.damaged
        }
        held = ((partition, self._view.partitions.get(partition)) for partition in sorted(self._unserved - self._coming))
        found = {partition: state for partition, state in held if state is not None and not state.is_closed}
        named = self._names(found)
        return {partition: state for partition, state in found.items() if partition in named}

    def _names(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Returns the names of the partitions' topics, as far as they are known."""
        names: dict[TopicPartition, str] = {}
        for partition in partitions:
            try:
                names[partition] = self._view.topics.by_id(partition.topic_id).name
            except TidelogError:
                continue
        return names

    async def _serve(self, appointed: dict[TopicPartition, PartitionState]) -> None:
        if self._view.partitions.set_back is not None:
            raise Unavailable("the metadata were set back, and this broker is about to stop")
        if any(_was_replaced(self._session.id, state) for state in appointed.values()):
            await (
                self._log.writer.check_seal()
            )  # the seal stands: the controller that appointed this session again did not know of it yet
            raise SessionFenced(f"session {self._session.id} was sealed, and is appointed again")
        recovered = await recover(
            self._bucket,
            {partition: state.sessions[:-1] for partition, state in appointed.items()},
            by=self._session,
            settings=self._settings,
            now_ms=self._now_ms,
            topics=self._names(appointed),
            cache=self._footers,
            begun=self._ahead.take(appointed.keys()),
        )
        behind: set[TopicPartition] = set()
        for partition, found in recovered.items():
            epoch = appointed[partition].leader_epoch
            current = self._view.partitions.get(partition)
            if current is None or current.is_closed or (current.leader_session, current.leader_epoch) != (self._session.id, epoch):
                continue  # given to another session, or deleted, meanwhile
            if isinstance(found, Corrupt):
                log.error("partition corrupt partition=%s: %s; it is not served", partition, found)
                self._log.partitions.mark_damaged(partition, found)
            else:
                self._log.lead(found, epoch)
                if self._view.compactions.version(partition) > found.manifest.version:
                    behind.add(partition)
                self._prunable[partition] = epoch, found
        self._led.set()
        if behind:
            self._fell_behind(behind)

    # ── what is on its way here ─────────────────────────────────────────────────────────────────────────────────────────

    async def _read_ahead(self) -> None:
        while True:
            self._asked.clear()
            coming = self._on_their_way()
            self._ahead.forget_others(coming.keys() | self._unserved)
            unread = {partition: spans for partition, spans in coming.items() if partition not in self._ahead.held}
            if unread:
                is_waited_for = self._reading_since_s is not None or self._not_served()
                self._coming = set(unread)
                try:
                    is_read = await self._ahead.read(
                        unread, self._names(unread), timeout_s=AWAITED_S if is_waited_for else TIMEOUT_S
                    )
                finally:
                    self._coming = set()
                    self._appointed.set()  # they may have been appointed meanwhile
                if not is_read and self._not_served():
                    self._asked.clear()  # appointed partitions are read first; an immediate retry here would delay them
            await self._asked.wait()

    def _on_their_way(self) -> dict[TopicPartition, Sequence[SessionSpan]]:
        coming: dict[TopicPartition, Sequence[SessionSpan]] = {}
        for partition in sorted(self._view.partitions.moving):
            state = self._view.partitions.get(partition)
            if state is not None and state.moving_to == self._session.id != state.leader_session:
                coming[partition] = state.sessions
        return coming

    # ── what the next leader need not read ──────────────────────────────────────────────────────────────────────────────

    async def _spare_the_next(self) -> None:
        """Saves the next leader reads, once all partitions are served; it may fail."""
        while True:
            await self._led.wait()
            self._led.clear()
            await self._prune()
            while self._footers.unindexed:
                session, tail = self._footers.unindexed.pop()
                await write_index(self._bucket, session, tail, timeout_s=self._settings.put_timeout_ms / 1000)

    async def _prune(self) -> None:
        """Removes empty sessions from the lists of partitions that have many."""
        decisions = []
        while self._prunable:
            partition, (epoch, found) = self._prunable.popitem()
            state, revision = self._view.partitions.states.get(partition, (None, None))
            if state is None or revision is None or (state.leader_session, state.leader_epoch) != (self._session.id, epoch):
                continue
            shorter = pruned(state, found.sessions)
            if state.format_version <= FORMAT_VERSION and len(state.sessions) > len(shorter.sessions) + IDLE_SESSIONS_MAX:
                decisions.append(LeadershipChange(partition, revision, shorter))
        try:
            await leadership.write(self._metadata, decisions, self._layout)
        except TidelogError as error:
            log.info("session lists not pruned: %s; they stay as they are", error)


def _was_replaced(session: SessionId, state: PartitionState) -> bool:
    """Returns whether another session has led since this one did without a release, so that this one was sealed."""
    return any(span.session == session and span.released_at_seq is None for span in state.sessions[:-1])


def _is_handed_over(state: PartitionState) -> bool:
    """Returns whether the partition comes from a live leader: then nothing has to be sealed, and producers wait only
    for this step."""
    return len(state.sessions) > 1 and state.sessions[-2].released_at_seq is not None
