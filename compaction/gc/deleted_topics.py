"""Finds deleted topics among those with records in segments: these need not be compacted before segments are trimmed.

The bucket decides: a topic is deleted where its mirror is marked so (gateway/controller/topic_mirror.py), which its controller does
before it deletes the leaders' records. An unmarked topic that the metadata do not name is left as it is: the metadata may be
wrong.
"""

from __future__ import annotations

import logging
from typing import Final

from compaction.context import CompactionContext
from compaction.wal.state import WalState
from metadata.model import TopicId
from segments.bucket.layout import TopicIncarnation
from segments.bucket.topic_catalog import names_of, read_records

# Pause between listings of all topics on the bucket, for topics that were deleted before this process began.
NAMES_INTERVAL_MS: Final = 600_000

log = logging.getLogger(__name__)


class DeletedTopics:
    """Tells the WAL state which topics are deleted."""

    def __init__(self, context: CompactionContext, state: WalState) -> None:
        self._context = context
        self._state = state
        self._names: dict[TopicId, str] = {}
        self._listed_ms: int | None = None

    async def poll(self) -> None:
        """Looks for deleted topics. Raises what the store raises."""
        self._names |= {topic.id: topic.name for topic in self._context.topics.topics()}
        unknown = {where.topic_id for where in self._state.pending if self._context.topic(where.topic_id) is None}
        if not unknown:
            return
        await self._find_names(unknown - self._names.keys())
        for topic_id in sorted(unknown & self._names.keys()):
            topic = TopicIncarnation(self._names[topic_id], topic_id)
            if (await read_records(self._context.store, topic)).deleted:
                log.info("topic deleted topic=%s topic_id=%s: its records in segments are not compacted", *topic)
                self._state.forget_topic(topic_id)
                del self._names[topic_id]

    async def _find_names(self, wanted: set[TopicId]) -> None:
        now_ms = self._context.now_ms()
        if not wanted or (self._listed_ms is not None and now_ms - self._listed_ms < NAMES_INTERVAL_MS):
            return
        found = await names_of(self._context.store, wanted)
        self._listed_ms = now_ms
        self._names |= found
        if missing := wanted - found.keys():
            log.warning(
                "records of unknown topics kept topics=%d: neither the metadata nor the bucket know these topics", len(missing)
            )
