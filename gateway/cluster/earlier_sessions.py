"""The earlier sessions of metadata that have one broker at a time: they are sealed before the broker uses a session of its own.

    data directory, session 7 in use ──copied──▶ the copy: seal 7 ─▶ what did 7 write that the copy does not know? ─▶ session 8

A copy of a data directory knows the session that was in use when it was made. The broker of the original may come to lead further
partitions in that session, which the copy can't know. Records that it writes there would be missing from the copy, and their
offsets would be given out again.

A session has written unknown to these metadata where it wrote to a partition in a leader epoch that they have yet to begin, or
that they gave to another session. Partitions of topics that the metadata don't have are passed over: deleted topics leave such.

Invariant: once `end` has returned True, the session is sealed, and these metadata know every leadership in which it wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress

from metadata.cluster.leadership import PAGE_PARTITIONS, PartitionState, decode_state
from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, SessionId, TopicId, TopicPartition
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.registry import read_topic_ids
from segments.object_store.interface import ObjectStore
from segments.recovery.footer_cache import FooterCache, SessionRuns
from segments.recovery.recover import runs_so_far, sealed_runs
from segments.settings import SegmentSettings
from segments.wal.session import Session

log = logging.getLogger(__name__)


class EarlierSessions:
    """Seals the earlier sessions of metadata that one broker uses at a time, and checks that the metadata know what they wrote."""

    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        layout: KeyLayout,
        settings: SegmentSettings,
        footers: FooterCache,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """`footers` keeps the footers that are read here for the takeover of the session's partitions."""
        self._bucket = bucket
        self._metadata = metadata
        self._layout = layout
        self._settings = settings
        self._footers = footers
        self._now_ms = now_ms

    async def end(self, session: SessionId, *, by: Session) -> bool:
        """Seals the session. Returns whether the metadata know every leadership in which it wrote. Raises Unavailable.

        Returns False without a seal where the session had written unknown to the metadata before this call: its broker goes on.
        """
        so_far = await runs_so_far(self._bucket, session, settings=self._settings, cache=self._footers)
        if not await self.is_known(so_far):
            return False
        if so_far.sealed:
            return True
        return await self.is_known(
            await sealed_runs(self._bucket, session, by=by, settings=self._settings, now_ms=self._now_ms, cache=self._footers)
        )

    async def is_known(self, runs: SessionRuns) -> bool:
        """Returns whether the metadata know every leadership in which a session wrote; no cache is asked. Raises Unavailable."""
        wrote = runs.newest_epochs()
        if not wrote:
            return True
        states = await self._states()
        unknown = written_unknown(runs.session, wrote, states, await self._topic_ids(states))
        if unknown:
            log.error(
                "unknown leadership session=%s partition=%s: the session wrote in a leader epoch that these metadata do not know",
                runs.session,
                unknown[0],
            )
        return not unknown

    async def _states(self) -> dict[TopicPartition, PartitionState | None]:
        """Returns the states of all partitions; None for an unreadable one, which the watch of the partitions reports."""
        states: dict[TopicPartition, PartitionState | None] = {}
        page = await self._metadata.range(self._layout.partitions, limit=PAGE_PARTITIONS)
        while True:
            for item in page.items:
                with suppress(Corrupt):
                    states[partition := self._layout.parse_partition(item.key)] = None
                    states[partition] = decode_state(item)
            if not page.more:
                return states
            page = await self._metadata.range(self._layout.partitions, start_after=page.items[-1].key, limit=PAGE_PARTITIONS)

    async def _topic_ids(self, states: Collection[TopicPartition]) -> Set[TopicId]:
        """Returns the ids of all topics; if one cannot be read, the topic ids of the given partitions."""
        try:
            return await read_topic_ids(self._metadata, self._layout)
        except Corrupt:
            return {partition.topic_id for partition in states}


def written_unknown(
    session: SessionId,
    wrote: Mapping[TopicPartition, LeaderEpoch],
    states: Mapping[TopicPartition, PartitionState | None],
    topics: Set[TopicId],
) -> list[TopicPartition]:
    """Returns the partitions that the session has written to in a leader epoch which the metadata did not give to it.

    `wrote`: the last epoch in which it wrote to each partition. `states`: None for one that can't be read, which may be anything.
    An epoch that a state no longer lists may have been the session's.
    """

    def is_unknown(partition: TopicPartition, epoch: LeaderEpoch) -> bool:
        if partition not in states:
            return partition.topic_id in topics
        state = states[partition]
        if state is None:
            return False
        given_to = {span.session for span in state.sessions if span.leader_epoch == epoch}
        return epoch > state.leader_epoch or (bool(given_to) and session not in given_to)

    return [partition for partition, epoch in wrote.items() if is_unknown(partition, epoch)]
