"""Reads partitions that are about to be taken over while their leader still writes, so that little is left once it lets go.

    leader   writes on ─────────────▶ pauses, flushes ─▶ releases at R
    here     LIST, footers below e, manifests ───────────────────────▶ footers of [e, R), newer manifests ─▶ leads

It is not needed for anything but speed: nothing is sealed, nothing is served from it, and where it fails, or what was read is not
what the metadata say in the end, recovery.py reads all. Invariant: what was read stays true, since the committed prefix of a
session never changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence, Set

from metadata.errors import Corrupt, TidelogError
from metadata.model import SegmentSeq, TopicPartition
from segments.footer_cache import FooterCache
from segments.manifest_store import newest_manifests
from segments.object_store import ObjectStore
from segments.recovery import (
    REBUILT_IN_A_THREAD,
    BegunPartition,
    FoundRuns,
    RecoveredPartition,
    Span,
    empty_partition,
    read_listed,
)
from segments.session import list_session
from segments.settings import SegmentSettings

TIMEOUT_S = 10.0
"""What takes longer is no gain: the leader has let go by then."""

log = logging.getLogger(__name__)


class ReadAhead:
    def __init__(self, store: ObjectStore, settings: SegmentSettings, cache: FooterCache | None = None) -> None:
        self._store = store
        self._settings = settings
        self._cache = cache or FooterCache(bytes_max=settings.footer_cache_bytes_max)
        self._begun: dict[TopicPartition, BegunPartition] = {}

    async def read(
        self, spans: Mapping[TopicPartition, Sequence[Span]], topics: Mapping[TopicPartition, str] | None = None
    ) -> None:
        """Reads what these hold so far; the last span of each is of the leader that is still at work. `topics`: as in recover."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._begun |= await self._read(spans, topics or {})
        except (TidelogError, TimeoutError) as error:
            log.info("%s partitions were not read ahead: %s", len(spans), error or f"it took longer than {TIMEOUT_S:g} s")

    async def _read(
        self, spans: Mapping[TopicPartition, Sequence[Span]], topics: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, BegunPartition]:
        found_runs = FoundRuns()
        for session in sorted({span.session for held in spans.values() for span in held}):
            async with self._cache.session(session) as kept:
                if not kept.runs.sealed:
                    listing = await list_session(self._store, session)
                    await read_listed(self._store, kept, listing, self._cache, reads_max=self._settings.footer_reads_max)
                found_runs.take_in(kept.runs)

        named = {partition: name for partition, name in topics.items() if partition in spans}
        manifests = await newest_manifests(self._store, named, reads_max=self._settings.footer_reads_max)

        def begin_all() -> dict[TopicPartition, BegunPartition]:
            begun: dict[TopicPartition, BegunPartition | None] = {}
            for partition, held in spans.items():
                manifest = manifests.get(partition)
                if not isinstance(manifest, Corrupt):
                    empty = empty_partition(partition, self._settings, manifest=manifest, topic=topics.get(partition, ""))
                    begun[partition] = _begun(empty, held, found_runs)
            return {partition: found for partition, found in begun.items() if found is not None}

        return await asyncio.to_thread(begin_all) if found_runs.count > REBUILT_IN_A_THREAD else begin_all()

    def take(self, partitions: Set[TopicPartition]) -> dict[TopicPartition, BegunPartition]:
        """What was read of these, once."""
        return {partition: self._begun.pop(partition) for partition in partitions if partition in self._begun}

    def forget_others(self, partitions: Set[TopicPartition]) -> None:
        """What was read of partitions that are not to be taken over any more takes no memory."""
        for partition in self._begun.keys() - partitions:
            del self._begun[partition]

    @property
    def held(self) -> Set[TopicPartition]:
        return self._begun.keys()


def _begun(empty: RecoveredPartition, spans: Sequence[Span], found_runs: FoundRuns) -> BegunPartition | None:
    """None where something is damaged: that is for recovery.py to tell."""
    *_, last = spans
    partition = empty.partition
    found = found_runs.rebuilt(empty, spans)
    if isinstance(found, Corrupt) or any(found_runs.is_damaged(span.session) for span in spans):
        return None
    holding = {
        (span.session, span.leader_epoch)
        for span in spans
        if not all(found.is_compacted(run) for _, run in found_runs.of(partition, span))
    }
    newest = max((footer.seq for footer, _ in found_runs.of(partition, last)), default=SegmentSeq(-1))
    return BegunPartition(found, tuple(spans), found_runs.end_seq(last.session), holding, newest)
