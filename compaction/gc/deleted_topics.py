"""Finds which topics that have records in segments are deleted: their segments need not be compacted to be trimmed.

The bucket decides: a topic is deleted where its mirror is marked so (gateway/controller/topic_mirror.py), which its controller does
before it forgets who led it. One that the metadata do not name, and that is not marked, is left as it is: maybe the metadata are
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

# Between listings of all topics on the bucket, for one that was deleted before this process began.
LOOKED_FOR_MS: Final = 600_000

log = logging.getLogger(__name__)


class DeletedTopics:
    def __init__(self, context: CompactionContext, state: WalState) -> None:
        self._context = context
        self._state = state
        self._names: dict[TopicId, str] = {}
        self._looked_ms: int | None = None

    async def look(self) -> None:
        """Raises what the store raises."""
        self._names |= {topic.id: topic.name for topic in self._context.topics.topics()}
        unknown = {where.topic_id for where in self._state.pending if self._context.topic(where.topic_id) is None}
        if not unknown:
            return
        await self._find_names(unknown - self._names.keys())
        for topic_id in sorted(unknown & self._names.keys()):
            topic = TopicIncarnation(self._names[topic_id], topic_id)
            if (await read_records(self._context.store, topic)).deleted:
                log.info("topic %s (%s) is deleted: its records in segments are not compacted", *topic)
                self._state.forget_topic(topic_id)
                del self._names[topic_id]

    async def _find_names(self, wanted: set[TopicId]) -> None:
        now_ms = self._context.now_ms()
        if not wanted or (self._looked_ms is not None and now_ms - self._looked_ms < LOOKED_FOR_MS):
            return
        found = await names_of(self._context.store, wanted)
        self._looked_ms = now_ms
        self._names |= found
        if missing := wanted - found.keys():
            log.warning(
                "records of %d topics lie in segments that neither the metadata nor the bucket know; they stay", len(missing)
            )
