"""Finds the consumer groups that read one topic, and how far each is behind in it.

  records of groups, in the order of their keys ─▶ its members own a partition, or it has committed an offset of the topic ─▶ a page
  bounds of the topic, asked once for the page ─▶ the lag of each of its groups

The metadata store has no index from topics to groups: each group costs one short read. So a page looks at SCANNED_MAX groups at
most, and ends once it has read OFFSETS_MAX committed offsets. The next page continues behind them; a page may be empty before the
last one. What is stored counts: commits and assignments of the last moment may be missing.

Invariant: the cost of a page does not grow with the number of groups of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gateway.access.authorization import may_see_group
from gateway.groups.admin.lag import KnownTopics, bounds_by_parts, lag_records
from gateway.groups.admin.local_admin import owners
from gateway.groups.scan import PAGE, stored_groups
from gateway.routing.log_service import LogService
from metadata.errors import Corrupt, TidelogError
from metadata.groups.model import Group
from metadata.groups.offsets import decode_offset
from metadata.groups.reconciliation.group import state_of
from metadata.groups.record import decode_group
from metadata.model import Partition, TopicPartition
from metadata.page_token import checked_page_size, name_in, token_after
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.topic import Topic
from segments.partition.partition_log import Bounds

# Groups that one page looks at, and committed offsets after which it ends.
SCANNED_MAX: Final = 500
OFFSETS_MAX: Final = 50_000
# Groups that are looked at together.
READS_AT_ONCE: Final = 25
# Committed offsets of one read.
OFFSETS_PAGE: Final = 1_000

log = logging.getLogger(__name__)


class TopicReader(NamedTuple):
    """Describes a group that reads the topic."""

    group: str
    state: str
    # Members that own a partition of the topic.
    members: int
    # Partitions of the topic that are owned, or have a committed offset.
    partitions: int
    # None where the end of a partition, or an offset, is unknown at the moment.
    lag_records: int | None


class TopicReaderPage(NamedTuple):
    """Holds a page of groups. There may be more behind an empty page."""

    readers: Sequence[TopicReader]
    # Groups that the page looked at.
    scanned: int
    # Empty on the last page.
    next_page_token: str


class _Read(NamedTuple):
    """Holds what the store has of one group and the topic."""

    name: str
    state: str
    owned: Mapping[TopicPartition, str]
    # None for an unreadable offset.
    committed: Mapping[TopicPartition, int | None]

    @property
    def partitions(self) -> set[TopicPartition]:
        return {*self.owned, *self.committed}


class TopicReaders:
    """Finds the groups that read a topic."""

    def __init__(self, store: MetadataStore, layout: KeyLayout, log: LogService, topics: KnownTopics) -> None:
        """`log` serves the whole cluster."""
        self._store = store
        self._layout = layout
        self._log = log
        self._topics = topics

    async def page(self, topic: Topic, *, page_size: int, page_token: str) -> TopicReaderPage:
        """Returns groups that the caller may see. Raises InvalidArgument, Unavailable."""
        limit = checked_page_size(page_size)
        after = self._layout.group(name_in(page_token, of="groups")) if page_token else ""
        found: list[_Read] = []
        scanned = offsets = 0
        last, is_last = "", True
        waiting: list[tuple[str, KeyValue]] = []
        async for kept in stored_groups(self._store, self._layout, after_key=after, page_size=PAGE):
            if scanned + len(waiting) == SCANNED_MAX or len(found) >= limit or offsets >= OFFSETS_MAX:
                is_last = False
                break
            try:
                name = self._layout.parse_group(kept.key)
            except Corrupt as error:
                log.error("%s", error)
                continue
            waiting.append((name, kept))
            if len(waiting) == READS_AT_ONCE:
                found += (reads := await self._reads(topic, waiting))
                scanned, last, waiting = scanned + len(waiting), waiting[-1][0], []
                offsets += sum(len(read.committed) for read in reads)
        if waiting:
            found += await self._reads(topic, waiting)
            scanned, last = scanned + len(waiting), waiting[-1][0]
        if len(found) > limit:
            found, is_last = found[:limit], False
            last = found[-1].name
        return TopicReaderPage(await self._lags(found), scanned, "" if is_last else token_after(last))

    async def _reads(self, topic: Topic, groups: Sequence[tuple[str, KeyValue]]) -> list[_Read]:
        seen = [(name, kept) for name, kept in groups if may_see_group(name)]
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = [tasks.create_task(self._read(topic, name, kept)) for name, kept in seen]
        except* TidelogError as errors:
            raise errors.exceptions[0] from None
        return [read for task in reading if (read := task.result()).partitions]

    async def _read(self, topic: Topic, name: str, kept: KeyValue) -> _Read:
        state, owned = "Damaged", dict[TopicPartition, str]()
        try:
            group: Group = decode_group(kept, now_ms=0)
            state = state_of(group)
            owned = {at: member for at, member in owners(group, self._topics).items() if at.topic_id == topic.id}
        except TidelogError as error:
            log.error("group record corrupt key=%s: %s; listed as damaged", kept.key, error)
        return _Read(name, state, owned, await self._committed(topic, name))

    async def _committed(self, topic: Topic, name: str) -> dict[TopicPartition, int | None]:
        prefix = self._layout.offset(name, TopicPartition(topic.id, Partition(0))).removesuffix("0")
        committed: dict[TopicPartition, int | None] = {}
        after = ""
        while True:
            page = await self._store.range(prefix, start_after=after, limit=OFFSETS_PAGE)
            for kept in page.items:
                at = self._layout.parse_offset(kept.key)[1]
                if at.partition < topic.partition_count:
                    try:
                        committed[at] = decode_offset(kept).offset
                    except Corrupt:
                        committed[at] = None
            if not page.more:
                return committed
            after = page.items[-1].key

    async def _lags(self, reads: Sequence[_Read]) -> list[TopicReader]:
        partitions = sorted({at for read in reads for at in read.partitions})
        answers = await bounds_by_parts(self._log, partitions) if partitions else []
        bounds = dict(zip(partitions, answers, strict=True))
        return [
            TopicReader(read.name, read.state, len(set(read.owned.values())), len(read.partitions), _lag(read, bounds))
            for read in reads
        ]


def _lag(read: _Read, bounds: Mapping[TopicPartition, Bounds | TidelogError]) -> int | None:
    lag = 0
    for at in read.partitions:
        its, committed = bounds[at], read.committed.get(at)
        if isinstance(its, TidelogError) or (committed is None and at in read.committed):
            return None
        lag += lag_records(committed, its)
    return lag
