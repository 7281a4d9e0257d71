"""Hands over the partitions that the controller asks for, each as soon as all its accepted batches are committed.

  asked ─▶ paused: it accepts no batch ─▶ flushed, without lingering ─▶ released: the other leads, in one transaction
             ▲                                                             └─▶ dropped, when the watch shows it
             └── resumed, if the request is withdrawn

Invariants: a partition is released only when all its accepted batches are committed, and none is accepted in between. A decision on
a
state that has changed since is not written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

from gateway.cluster.view import ClusterView
from metadata.cluster import leadership
from metadata.cluster.leadership import FORMAT_VERSION, LeadershipChange, PartitionState, handed_over
from metadata.errors import SessionFenced, TidelogError
from metadata.model import Revision, TopicPartition
from metadata.store.interface import OPERATIONS_MAX, MetadataStore
from metadata.store.keys import KeyLayout
from segments.log.session_log import Released, SessionLog

# Pause before a failed step of the metadata store is tried again, unless the metadata change before.
PAUSE_S = 0.5

log = logging.getLogger(__name__)

_Asked = Mapping[TopicPartition, tuple[PartitionState, Revision]]


class Handover:
    """Hands over partitions of one session. Its owner runs `run()` as a task, and calls `wake` when the metadata have changed."""

    def __init__(self, session_log: SessionLog, metadata: MetadataStore, view: ClusterView, *, layout: KeyLayout) -> None:
        self._log = session_log
        self._metadata = metadata
        self._view = view
        self._layout = layout
        # Released partitions, with the state that was released: the watch has not shown the release yet.
        self._released: dict[TopicPartition, Revision] = {}
        self._changed = asyncio.Event()

    def wake(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Hands over until the session ends."""
        with contextlib.suppress(SessionFenced):
            while True:
                self._changed.clear()
                asked = self._asked()
                for partition in asked:
                    self._log.partitions.pause(partition)
                done = await self._hand_over(asked)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if done else PAUSE_S):
                        await self._changed.wait()

    def _asked(self) -> _Asked:
        """Returns the partitions to hand over, in order."""
        mine, states = self._log.session.id, self._view.partitions.states
        moving = {p: states[p] for p in sorted(self._view.partitions.moving) if p in states and states[p][0].leader_session == mine}
        self._released = {p: at for p, at in self._released.items() if p in moving and moving[p][1] == at}
        return {
            partition: (state, revision)
            for partition, (state, revision) in moving.items()
            if partition not in self._released and state.format_version <= FORMAT_VERSION
        }

    async def _hand_over(self, asked: _Asked) -> bool:
        """Hands over the partitions, first those without batches on their way. Returns whether all were handed over. Raises
        SessionFenced."""
        flushed = {partition for partition in asked if self._is_flushed(partition)}
        idle = [partition for partition in asked if partition in flushed]
        busy = [partition for partition in asked if partition not in flushed]
        if busy:
            self._log.flush()
        done = True
        for partitions in (idle, busy):
            for first in range(0, len(partitions), OPERATIONS_MAX):
                done &= await self._release(asked, partitions[first : first + OPERATIONS_MAX])
        return done

    def _is_flushed(self, partition: TopicPartition) -> bool:
        if partition not in self._log.partitions:
            return True
        bounds = self._log.partitions.bounds(partition)
        return bounds.high_watermark == bounds.end_offset

    async def _release(self, asked: _Asked, partitions: Sequence[TopicPartition]) -> bool:
        """Releases the partitions in one transaction. Returns False if it must be tried again."""
        try:
            released = {partition: await release(self._log, partition, asked[partition][0]) for partition in partitions}
            states = self._view.partitions.states
            held = [partition for partition in partitions if states.get(partition) == asked[partition]]
            decisions = [
                LeadershipChange(partition, revision, handed_over(state, *released[partition]))
                for partition, (state, revision) in ((partition, asked[partition]) for partition in held)
            ]  # excludes those withdrawn meanwhile: they are served again
            self._log.partitions.stop_reads(held)  # once the transaction is sent, another may lead, whatever the answer
            await leadership.write(self._metadata, decisions, self._layout)
        except SessionFenced:
            raise
        except TidelogError as error:
            log.info("handover failed partitions=%s: %s; retrying", len(partitions), error)
            return False
        self._released |= {partition: asked[partition][1] for partition in held}
        return True


async def release(session_log: SessionLog, partition: TopicPartition, state: PartitionState) -> Released:
    """Returns where the partition's records in this session end. A partition that is not led yet has none in this epoch."""
    if partition in session_log.partitions:
        return await session_log.flushed(partition)
    return Released(session_log.writer.committed_to, {span.session for span in state.sessions})
