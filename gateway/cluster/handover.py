"""Gives up the partitions that the controller asks for, each as soon as all that was taken for it is committed.

    asked ─▶ paused: no batch is taken for it ─▶ flushed, without lingering ─▶ released: the other leads, in one transaction
                  ▲                                                                └─▶ dropped, as the watch tells of it
                  └── resumed, where the question is gone

Invariants: a partition is released only when all that was taken for it is committed, and nothing is taken in between; what was
decided on a state that has changed since is not written.
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

# Before what the metadata store could not do is tried again, unless the metadata change before.
PAUSE_S = 0.5

log = logging.getLogger(__name__)

_Asked = Mapping[TopicPartition, tuple[PartitionState, Revision]]


class Handover:
    """Of one session. Its owner runs `run()` as a task, and calls `look` when the metadata have changed."""

    def __init__(self, session_log: SessionLog, metadata: MetadataStore, view: ClusterView, *, layout: KeyLayout) -> None:
        self._log = session_log
        self._metadata = metadata
        self._view = view
        self._layout = layout
        self._released: dict[TopicPartition, Revision] = {}
        """Those that were released, with the state that it was decided on: the watch has not told of it yet."""
        self._changed = asyncio.Event()

    def look(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Ends when the session does."""
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
        """What is to be handed over, in order."""
        mine, states = self._log.session.id, self._view.partitions.states
        moving = {p: states[p] for p in sorted(self._view.partitions.moving) if p in states and states[p][0].leader_session == mine}
        self._released = {p: at for p, at in self._released.items() if p in moving and moving[p][1] == at}
        return {
            partition: (state, revision)
            for partition, (state, revision) in moving.items()
            if partition not in self._released and state.format_version <= FORMAT_VERSION
        }

    async def _hand_over(self, asked: _Asked) -> bool:
        """Whether all were handed over; what nothing is on its way of goes first. Raises SessionFenced."""
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
        """One transaction; False where it is to be tried again."""
        try:
            released = {partition: await release(self._log, partition, asked[partition][0]) for partition in partitions}
            states = self._view.partitions.states
            held = [partition for partition in partitions if states.get(partition) == asked[partition]]
            decisions = [
                LeadershipChange(partition, revision, handed_over(state, *released[partition]))
                for partition, (state, revision) in ((partition, asked[partition]) for partition in held)
            ]  # without those that were taken back meanwhile: they are served again
            self._log.partitions.stop_reads(held)  # once it is sent, another may lead, whatever becomes of the answer
            await leadership.write(self._metadata, decisions, self._layout)
        except SessionFenced:
            raise
        except TidelogError as error:
            log.info("%s partitions are not handed over yet; trying again: %s", len(partitions), error)
            return False
        self._released |= {partition: asked[partition][1] for partition in held}
        return True


async def release(session_log: SessionLog, partition: TopicPartition, state: PartitionState) -> Released:
    """Where the partition's records in this session end. One that is not led yet was not written to in this epoch."""
    if partition in session_log.partitions:
        return await session_log.flushed(partition)
    return Released(session_log.writer.committed_to, {span.session for span in state.sessions})
