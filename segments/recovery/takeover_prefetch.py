"""Reads partitions that are about to be taken over while their leader still writes, so that little is left once it lets go.

    leader   writes on ─────────────▶ pauses, flushes ─▶ releases at R
    here     LIST, footers below e, manifests ───────────────────────▶ footers of [e, R), newer manifests ─▶ leads

It is not needed for anything but speed: nothing is sealed, nothing is served from it, and where it fails, or what was read is not
what the metadata say in the end, recover.py reads all. Invariant: what was read stays true, since the committed prefix of a
session never changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence, Set

from metadata.errors import Corrupt, TidelogError
from metadata.model import SegmentSeq, SessionId, TopicPartition
from segments.concurrency import gather_all
from segments.history.manifest_store import newest_manifests
from segments.object_store.interface import ObjectStore
from segments.recovery.footer_cache import FooterCache, SessionRuns
from segments.recovery.missing_manifests import NewestFiles, newest_files
from segments.recovery.recover import REBUILT_IN_A_THREAD, read_listed
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from segments.recovery.session_runs import LeadershipSpan, PrefetchedPartition, RecoveredRuns
from segments.settings import SegmentSettings
from segments.wal.session import list_session

# Time limit: a longer prefetch is no gain, as the leader has released the partition.
TIMEOUT_S = 10.0
# The time limit once producers wait for the partitions: a bucket that takes half a second for each request needs less.
AWAITED_S = 2.0
# Sessions read at once, each with `footer_reads_max` reads.
SESSIONS_AT_ONCE = 4

log = logging.getLogger(__name__)


class TakeoverPrefetch:
    """Reads footers of partitions before they are handed over."""

    def __init__(self, store: ObjectStore, settings: SegmentSettings, cache: FooterCache | None = None) -> None:
        self._store = store
        self._settings = settings
        self._cache = cache or FooterCache(bytes_max=settings.footer_cache_bytes_max)
        self._begun: dict[TopicPartition, PrefetchedPartition] = {}
        # Ends the reading that is under way.
        self._ends: asyncio.Timeout | None = None

    async def read(
        self,
        spans: Mapping[TopicPartition, Sequence[LeadershipSpan]],
        topics: Mapping[TopicPartition, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> bool:
        """Reads what these hold so far; the last span of each is of the leader that is still at work. `topics`: as in recover.

        False where it did not come to its end, in time. A caller that begins while producers wait gives it AWAITED_S.
        """
        try:
            async with asyncio.timeout(timeout_s) as self._ends:
                self._begun |= await self._read(spans, topics or {})
        except (TidelogError, TimeoutError) as error:
            log.info("partitions not prefetched partitions=%s: %s", len(spans), str(error) or "it took too long")
            return False
        finally:
            self._ends = None
        return True

    def hurry(self) -> None:
        """Hurries, since producers wait: what is under way has a moment left, since it holds the turns of its sessions, and may
        hang for long."""
        if self._ends is None or self._ends.expired():
            return
        ends_s, soon_s = self._ends.when(), asyncio.get_running_loop().time() + AWAITED_S
        if ends_s is not None and soon_s < ends_s:
            self._ends.reschedule(soon_s)

    async def _read(
        self, spans: Mapping[TopicPartition, Sequence[LeadershipSpan]], topics: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, PrefetchedPartition]:
        found_runs = RecoveredRuns()
        slots = asyncio.Semaphore(SESSIONS_AT_ONCE)

        async def read_one(session: SessionId) -> None:
            found_runs.take_in(await _read_so_far(self._store, session, self._cache, slots, self._settings.footer_reads_max))

        sessions = sorted({span.session for held in spans.values() for span in held})
        named = {partition: name for partition, name in topics.items() if partition in spans}
        files: dict[TopicPartition, NewestFiles] = {}

        async def list_files() -> None:
            files.update(await newest_files(self._store, named, reads_max=self._settings.footer_reads_max))

        await gather_all([list_files(), *map(read_one, sessions)])
        manifests = await newest_manifests(self._store, named, reads_max=self._settings.footer_reads_max)

        def begin_all() -> dict[TopicPartition, PrefetchedPartition]:
            begun: dict[TopicPartition, PrefetchedPartition | None] = {}
            for partition, held in spans.items():
                manifest = manifests.get(partition)
                if not isinstance(manifest, Corrupt):
                    empty = empty_partition(partition, self._settings, manifest=manifest, topic=topics.get(partition, ""))
                    begun[partition] = _begun(empty, held, found_runs, files.get(partition))
            return {partition: found for partition, found in begun.items() if found is not None}

        return await asyncio.to_thread(begin_all) if found_runs.count > REBUILT_IN_A_THREAD else begin_all()

    def take(self, partitions: Set[TopicPartition]) -> dict[TopicPartition, PrefetchedPartition]:
        """Returns what was read of these partitions, and drops it."""
        return {partition: self._begun.pop(partition) for partition in partitions if partition in self._begun}

    def forget_others(self, partitions: Set[TopicPartition]) -> None:
        """Drops what was read of partitions that are not to be taken over any more."""
        for partition in self._begun.keys() - partitions:
            del self._begun[partition]

    @property
    def held(self) -> Set[TopicPartition]:
        return self._begun.keys()


async def read_footers_ahead(
    store: ObjectStore, sessions: Iterable[SessionId], cache: FooterCache, *, reads_max: int, timeout_s: float
) -> None:
    """Reads what sessions hold so far into the cache, before partitions of theirs are on their way here.

    Then what is written from now on is all that is left to read while producers wait. What fails, or takes longer, is read then.
    """
    slots = asyncio.Semaphore(SESSIONS_AT_ONCE)

    async def read_one(session: SessionId) -> None:
        try:
            await _read_so_far(store, session, cache, slots, reads_max)
        except TidelogError as error:
            log.info("session not prefetched session=%s: %s", session, error)

    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
            for session in sorted(sessions):
                tasks.create_task(read_one(session), name=f"footers of session {session}")
    except TimeoutError:
        log.info("not all footers were prefetched within %g s", timeout_s)


async def _read_so_far(
    store: ObjectStore, session: SessionId, cache: FooterCache, slots: asyncio.Semaphore, reads_max: int
) -> SessionRuns:
    async with slots, cache.session(session) as kept:
        if not kept.runs.sealed:
            await read_listed(store, kept, await list_session(store, session), cache, reads_max=reads_max)
        return kept.runs


def _begun(
    empty: RecoveredPartition, spans: Sequence[LeadershipSpan], found_runs: RecoveredRuns, files: NewestFiles | None
) -> PrefetchedPartition | None:
    """Returns the prefetched partition; None where something is damaged, which recover.py reports."""
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
    return PrefetchedPartition(found, tuple(spans), found_runs.end_seq(last.session), holding, newest, files)
