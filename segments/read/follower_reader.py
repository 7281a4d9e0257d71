"""Reads committed records of partitions that other brokers lead, from the bucket, at the locations that their leaders name.

    locations from the leader ─▶ manifest of that version, if part is in Parquet ─▶ LogReader over the read cache ─▶ batches

It reads as a leader without a tail cache: the same planning, checks, single flight and bounds, in the read cache of this broker.
Where an object is gone, the newest manifest is read, as at the leader. Invariant: it keeps only what can't
change (bytes of objects, manifests by version); bounds and epochs are those of the answer that brought the locations.

Manifests are read when a leader names their version, and kept for the next reader:

    version that the leader names ─▶ held, or a newer one: that ─▶ else GET it, once for all callers ─▶ gone: the newest

This module never looks for newer ones: a history is used only where the leader names its version, or an earlier one, in this
moment; or where an object was gone, and this is the newest. Invariant: an older one never replaces a newer one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from metadata.errors import NotFound, TidelogError, Unavailable
from metadata.model import TopicPartition
from segments.history.index import HistoryIndex
from segments.history.manifest import Manifest
from segments.history.manifest_store import newest_manifest, read_manifest
from segments.object_store.interface import ObjectStore
from segments.partition.leader_partitions import LeaderPartition
from segments.read.log_reader import FetchResult, FetchTarget, LogReader
from segments.read.read_cache import ReadCache
from segments.read.reader_notifier import News
from segments.read.record_locations import LeaderSnapshot, partition_of_snapshot
from segments.read.tail_cache import TailCache
from segments.shared_errors import copy_of

# Partitions whose topics' names are remembered, for when one of their objects is gone.
TOPICS_MAX: Final = 10_000


class LocatedTarget(NamedTuple):
    """Holds a fetch target with the snapshot of its leader."""

    # The topic's name, which the keys of its objects hold.
    topic: str
    target: FetchTarget
    snapshot: LeaderSnapshot


class FollowerReader:
    """Answers fetches for partitions of other leaders."""

    def __init__(
        self,
        store: ObjectStore,
        read_cache: ReadCache,
        *,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        read_timeout_s: float,
    ) -> None:
        self._histories = FollowerManifests(store, spawn=spawn, read_timeout_s=read_timeout_s)
        self._reader = LogReader(TailCache(0), read_cache, adopt_newest=self._read_newest)
        self._topics: OrderedDict[TopicPartition, str] = OrderedDict()

    async def fetch(self, asked: Sequence[LocatedTarget], *, bytes_max: int) -> list[FetchResult | TidelogError]:
        """Fetches batches of each partition in turn, `bytes_max` bytes in all. A target's error is returned in its place.

        Each partition may be requested once. Cached data are returned first, as by ReadPath.fetch.
        """
        in_history = [each for each in asked if each.snapshot.located.manifest_version]
        found = dict(zip(in_history, await asyncio.gather(*map(self._history, in_history)), strict=True))
        histories = [found.get(each) for each in asked]
        partitions: dict[TopicPartition, _Partition] = {}
        targets: list[FetchTarget] = []
        for (topic, target, where), history in zip(asked, histories, strict=True):
            if not isinstance(history, TidelogError):
                self._remember(target.partition, topic)
                partitions[target.partition] = _Partition(target.partition, where, history, self._histories)
                targets.append(target._replace(locations_bytes_min=None))
        answers = await self._read(targets, partitions, bytes_max)
        if _is_nothing(answers) and any(each.has_moved for each in partitions.values()):
            answers = await self._read(targets, partitions, bytes_max)  # by the manifests that the first read has found
        read = iter(answers)
        return [
            history if isinstance(history, TidelogError) else _with_high_watermark(next(read), where)
            for (_, _, where), history in zip(asked, histories, strict=True)
        ]

    async def _read(
        self, targets: Sequence[FetchTarget], partitions: dict[TopicPartition, _Partition], bytes_max: int
    ) -> list[FetchResult | TidelogError]:
        if not targets:
            return []
        return await self._reader.fetch(
            targets,
            lambda partition: partitions[partition].known_now(),
            News(),
            bytes_max=bytes_max,
            bytes_min=0,
            wait_ms_max=0,
        )

    async def _history(self, asked: LocatedTarget) -> HistoryIndex | TidelogError:
        partition, version = asked.target.partition, asked.snapshot.located.manifest_version
        try:
            return await self._histories.of_version(asked.topic, partition, version)
        except TidelogError as error:
            return error.with_traceback(None)

    async def _read_newest(self, partition: TopicPartition) -> None:
        if (topic := self._topics.get(partition)) is not None:
            with suppress(TidelogError):  # the read itself reports that the object is gone
                await self._histories.newest(topic, partition)

    def _remember(self, partition: TopicPartition, topic: str) -> None:
        self._topics[partition] = topic
        self._topics.move_to_end(partition)
        if len(self._topics) > TOPICS_MAX:
            self._topics.popitem(last=False)


class _Partition:
    """Holds a partition of another leader for the time of one fetch."""

    def __init__(
        self, partition: TopicPartition, snapshot: LeaderSnapshot, history: HistoryIndex | None, histories: FollowerManifests
    ) -> None:
        self._partition = partition
        self._snapshot = snapshot
        self._histories = histories
        self._history = history
        self._known: LeaderPartition | None = None
        # Another manifest was found than the one that the leader named.
        self.has_moved = False

    def known_now(self) -> LeaderPartition:
        """Returns the partition by the newest manifest that was read meanwhile. Raises Corrupt."""
        held = self._histories.held(self._partition)
        is_newer = held is not None and held.version > (self._history.version if self._history is not None else 0)
        if self._known is None or is_newer:
            self.has_moved |= is_newer and self._known is not None
            self._history = held if is_newer else self._history
            self._known = partition_of_snapshot(self._partition, self._snapshot, self._history)
        return self._known


def _is_nothing(answers: Sequence[FetchResult | TidelogError]) -> bool:
    return not any(isinstance(answer, TidelogError) or answer.size_bytes for answer in answers)


def _with_high_watermark(answer: FetchResult | TidelogError, snapshot: LeaderSnapshot) -> FetchResult | TidelogError:
    """Replaces the high watermark by the leader's: what was read ends where its locations did."""
    return (
        answer if isinstance(answer, TidelogError) else answer._replace(high_watermark=snapshot.high_watermark, committed_at_s=None)
    )


# Bytes of all manifests held, estimated; one is held in any case. A partition of 100 GiB has about 1.5 MB.
BYTES_MAX: Final = 32 << 20
MANIFEST_BYTES: Final = 1_000
FILE_BYTES: Final = 500
ROW_GROUP_BYTES: Final = 250
READS_WAITING_MAX: Final = 1_000

# An error is a result here: it is for the readers, and must not end the log that owns the task.
_Failed = TidelogError | None


class FollowerManifests:
    """Caches manifests of partitions that other brokers lead."""

    def __init__(
        self, store: ObjectStore, *, spawn: Callable[[Coroutine[Any, Any, _Failed]], asyncio.Task[_Failed]], read_timeout_s: float
    ) -> None:
        """`spawn` starts a task that belongs to the log: a read goes on when the reader that began it hangs up."""
        self._store = store
        self._spawn = spawn
        self._read_timeout_s = read_timeout_s
        self._held: OrderedDict[TopicPartition, HistoryIndex] = OrderedDict()
        self._readings: dict[TopicPartition, asyncio.Task[_Failed]] = {}
        self.bytes_used = 0

    def held(self, partition: TopicPartition) -> HistoryIndex | None:
        return self._held.get(partition)

    async def of_version(self, topic: str, partition: TopicPartition, version: int) -> HistoryIndex:
        """Returns the manifest of this version, or a newer one. Raises Unavailable, Corrupt, and what the store raises."""
        for _ in range(2):  # what others have begun to read may be older
            held = self._held.get(partition)
            if held is not None and held.version >= version:
                self._held.move_to_end(partition)
                return held
            await self._read(topic, partition, version)
        held = self._held.get(partition)
        if held is None or held.version < version:
            raise Unavailable(f"the manifest {version} of {partition}, which its leader names, is not there")
        return held

    async def newest(self, topic: str, partition: TopicPartition) -> None:
        """Reads the newest there is: an object was gone. Raises what the store raises."""
        await self._read(topic, partition, None)

    async def _read(self, topic: str, partition: TopicPartition, version: int | None) -> None:
        reading = self._readings.get(partition)
        if reading is None:
            if len(self._readings) >= READS_WAITING_MAX:
                raise Unavailable(f"{READS_WAITING_MAX} manifests are being read")
            reading = self._readings[partition] = self._spawn(self._found(topic, partition, version))
            reading.add_done_callback(lambda _: self._readings.pop(partition, None))
        await asyncio.wait((reading,))  # a waiter may be cancelled without disturbing the others
        failed = reading.result() if not reading.cancelled() else Unavailable("the session ended while a manifest was read")
        if failed is not None:
            raise copy_of(failed)

    async def _found(self, topic: str, partition: TopicPartition, version: int | None) -> _Failed:
        """Reads and holds it."""
        try:
            async with asyncio.timeout(self._read_timeout_s):
                manifest = await self._named(topic, partition, version) or await newest_manifest(self._store, topic, partition)
        except TimeoutError:
            return Unavailable(f"the manifest of {partition} could not be read within {self._read_timeout_s:g} s")
        except TidelogError as error:
            return error.with_traceback(None)
        if manifest is None:
            return Unavailable(f"{partition} has no manifest")
        self._hold(HistoryIndex(_for_readers(manifest), topic))
        return None

    async def _named(self, topic: str, partition: TopicPartition, version: int | None) -> Manifest | None:
        """Reads the named version; None where it was superseded, and deleted since the leader read it."""
        try:
            return None if version is None else await read_manifest(self._store, topic, partition, version)
        except NotFound:
            return None

    def _hold(self, history: HistoryIndex) -> None:
        partition = history.manifest.topic_partition
        held = self._held.get(partition)
        if held is not None and held.version >= history.version:
            return
        if held is not None:
            self.bytes_used -= memory_bytes(held.manifest)
        self._held[partition] = history
        self._held.move_to_end(partition)
        self.bytes_used += memory_bytes(history.manifest)
        while self.bytes_used > BYTES_MAX and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self.bytes_used -= memory_bytes(oldest.manifest)


def memory_bytes(manifest: Manifest) -> int:
    """Returns about the memory that it takes."""
    groups = sum(len(file.row_groups) for file in manifest.files)
    return MANIFEST_BYTES + FILE_BYTES * len(manifest.files) + ROW_GROUP_BYTES * groups


def _for_readers(manifest: Manifest) -> Manifest:
    """Leaves out what only leaders and compactors need."""
    return msgspec.structs.replace(manifest, producers=(), retired=(), superseded=(), key_passes=())
