"""The partitions that this broker leads: one Log for each session, rebuilt from the bucket, kept in step with the topics.

    claim a session ─▶ seal and read the sessions before it ─▶ record ourselves as leader ─▶ serve ─▶ session ends ─▶ again

There is one broker, so it leads every partition of every topic. Invariants: a partition is served only after the metadata says
in which session its records will lie; a Log is used for one session and then thrown away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from metadata import partition_assignments
from metadata.counters import next_session
from metadata.errors import Corrupt, Fenced, NoLeader, OutcomeUnknown, Stopping, Unavailable
from metadata.etcd_layout import EtcdLayout
from metadata.model import Partition, Revision, SessionId, TopicId, TopicPartition
from metadata.partition_assignments import PartitionState
from metadata.store import MetadataStore
from metadata.topic import Topic
from metadata.topic_cache import TopicCache
from segments.byte_budget import ByteBudget
from segments.log import Log
from segments.object_store import ObjectStore
from segments.recovery import empty_partition, recover
from segments.session import claim
from segments.settings import SegmentSettings

PAUSE_S = 0.5
"""Before a step that the metadata store could not do is tried again."""

log = logging.getLogger(__name__)

Assigned = dict[TopicPartition, tuple[PartitionState, Revision]]


class Leadership:
    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        topic_cache: TopicCache,
        settings: SegmentSettings,
        *,
        layout: EtcdLayout,
        broker_id: str,
        new_writer: Callable[[], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._topic_cache = topic_cache
        self._settings = settings
        self._layout = layout
        self._broker_id = broker_id
        self._new_writer = new_writer
        self._now_ms = now_ms
        self.budget = ByteBudget(settings.buffer_bytes_max)
        self._log: Log | None = None
        self._stopping = False
        self._changed = asyncio.Event()
        self._deleted: list[Topic] = []
        self._advanced = asyncio.Event()
        self._topic_cache.subscribe(self._topic_changed)

    @property
    def serving(self) -> bool:
        return self._log is not None and not self._stopping

    @property
    def session(self) -> SessionId | None:
        return self._log.session.id if self._log is not None else None

    @property
    def log(self) -> Log:
        """The log of the present session. Raises Stopping, or NoLeader between two sessions."""
        if self._log is None:
            if self._stopping:
                raise Stopping("the broker is shutting down")
            raise NoLeader("the broker has no session on the bucket yet; it is opening one")
        return self._log

    def stop(self) -> None:
        """Refuses new batches; `run` flushes what is buffered, seals the session and returns."""
        self._stopping = True
        self._changed.set()
        if self._log is not None:
            self._log.close()

    async def run(self) -> None:
        """One session after the other, until `stop`."""
        while not self._stopping:
            session = await claim(
                self._store,
                next_number=self._next_number,
                writer=self._new_writer(),
                broker_id=self._broker_id,
                now_ms=self._now_ms,
            )
            log.info("session %s begins", session.id)
            session_log = Log(self._store, session, self._settings, budget=self.budget, now_ms=self._now_ms)
            try:
                async with asyncio.TaskGroup() as tasks:
                    writing = tasks.create_task(session_log.run(), name=f"log of session {session.id}")
                    keeping_up = tasks.create_task(self._keep_up(session_log), name="leadership")
                    await asyncio.wait((writing,))
                    keeping_up.cancel()
            finally:
                self._log = None
            log.info("session %s has ended", session.id)

    async def first_session(self) -> None:
        """Waits until a session has begun and leads its partitions."""
        while self._log is None:
            await self._advanced.wait()

    async def led(self, topic: Topic, *, timeout_s: float) -> bool:
        """Whether this broker leads all partitions of the topic in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (self._log is not None and all(map(self._log.leads, _partitions(topic)))):
                    await self._advanced.wait()
        except TimeoutError:
            return False
        return True

    async def _keep_up(self, session_log: Log) -> None:
        """Leads what the topics say, now and whenever they change."""
        while True:
            self._changed.clear()
            try:
                await self._lead_missing(session_log)
                await self._forget_deleted(session_log)
            except (Unavailable, OutcomeUnknown, Fenced) as error:
                log.warning("leadership could not be recorded; trying again: %s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            if self._log is None:
                self._log = session_log
                if self._stopping:
                    session_log.close()
            advanced, self._advanced = self._advanced, asyncio.Event()
            advanced.set()
            await self._changed.wait()

    async def _lead_missing(self, session_log: Log) -> None:
        missing = [
            partition
            for topic in self._topic_cache.topics()
            for partition in _partitions(topic)
            if not session_log.leads(partition) and not session_log.refuses(partition)
        ]
        if not missing and self._log is not None:
            return
        assigned = await partition_assignments.read_all(self._metadata, self._layout)
        if self._log is None:
            await self._forget_unknown(assigned)
        held = {partition: assigned[partition] for partition in missing if partition in assigned}
        recovered = await recover(
            self._store,
            {partition: state.sessions for partition, (state, _) in held.items()},
            by=session_log.session,
            settings=self._settings,
            now_ms=self._now_ms,
        )
        sound = {}
        for partition in missing:
            found = recovered.get(partition) or empty_partition(partition, self._settings)
            if isinstance(found, Corrupt):
                log.error("%s is not served: %s", partition, found)
                session_log.refuse(partition, found)
            else:
                sound[partition] = found
        states = await partition_assignments.lead(
            self._metadata,
            session_log.session.id,
            {partition: held.get(partition) for partition in sound},
            {partition: found.sessions for partition, found in sound.items()},
            layout=self._layout,
        )
        for partition, state in states.items():
            session_log.lead(sound[partition], state.leader_epoch)

    async def _forget_unknown(self, assigned: Assigned) -> None:
        """Partitions of topics that were deleted while no broker ran."""
        known = {topic.id for topic in self._topic_cache.topics()}
        counts: dict[TopicId, int] = {}
        for partition in assigned:
            if partition.topic_id not in known:
                counts[partition.topic_id] = max(counts.get(partition.topic_id, 0), partition.partition + 1)
        for topic_id, count in counts.items():
            await partition_assignments.forget(self._metadata, topic_id, count, self._layout)

    async def _forget_deleted(self, session_log: Log) -> None:
        while self._deleted:
            topic = self._deleted[0]
            for partition in _partitions(topic):
                session_log.drop(partition)
            await partition_assignments.forget(self._metadata, topic.id, topic.partition_count, self._layout)
            self._deleted.pop(0)

    def _topic_changed(self, old: Topic | None, new: Topic | None) -> None:
        if old is not None and new is None:
            self._deleted.append(old)
        self._changed.set()

    async def _next_number(self) -> SessionId:
        while True:
            try:
                return await next_session(self._metadata, self._layout)
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("no session number could be taken; trying again: %s", error)
                await asyncio.sleep(PAUSE_S)


def _partitions(topic: Topic) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.id, Partition(p)) for p in range(topic.partition_count))
