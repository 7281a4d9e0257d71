"""Reads committed records of partitions that others lead, from the bucket, by what their leaders have told of the places.

    told by the leader ─▶ manifest of that version, where part of it is in Parquet ─▶ LogReader over the cold pool ─▶ batches

A leader's own reads without its hot pool: the same planning, checks, single flight and bounds, in the cold pool that this broker
has anyway. Where an object is gone, the newest manifest is read, as at the leader. Invariant: nothing is kept here but what can't
change (bytes of objects, manifests by version); bounds and epochs are those of the answer that brought the places.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from metadata.errors import TidelogError
from metadata.model import TopicPartition
from segments.history.index import History
from segments.object_store.interface import ObjectStore
from segments.partition.leader_partition import LedPartition
from segments.read.follower_manifests import KnownHistories
from segments.read.log_reader import Fetched, FetchTarget, LogReader
from segments.read.read_cache import ColdPool
from segments.read.record_locations import Told, partition_told
from segments.read.tail_cache import HotPool

TOPICS_MAX: Final = 10_000
"""Partitions whose topics' names are remembered, for when one of their objects is gone."""


class ToldTarget(NamedTuple):
    topic: str
    """Its name, which the keys of its objects hold."""
    target: FetchTarget
    told: Told


class LocatedReads:
    def __init__(
        self,
        store: ObjectStore,
        cold: ColdPool,
        *,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        decompressed_bytes_max: int,
        read_timeout_s: float,
    ) -> None:
        self._histories = KnownHistories(store, spawn=spawn, read_timeout_s=read_timeout_s)
        self._reader = LogReader(HotPool(0), cold, decompressed_bytes_max=decompressed_bytes_max, adopt_newest=self._read_newest)
        self._topics: OrderedDict[TopicPartition, str] = OrderedDict()

    async def fetch(self, asked: Sequence[ToldTarget], *, bytes_max: int) -> list[Fetched | TidelogError]:
        """Batches of each in turn, `bytes_max` bytes in all; the error of a target stands in its place. Each partition once.

        What is in memory is answered first, as by Log.fetch.
        """
        in_history = [each for each in asked if each.told.located.manifest_version]
        found = dict(zip(in_history, await asyncio.gather(*map(self._history, in_history)), strict=True))
        histories = [found.get(each) for each in asked]
        told: dict[TopicPartition, _Partition] = {}
        targets: list[FetchTarget] = []
        for (topic, target, where), history in zip(asked, histories, strict=True):
            if not isinstance(history, TidelogError):
                self._remember(target.partition, topic)
                told[target.partition] = _Partition(target.partition, where, history, self._histories)
                targets.append(target._replace(places_bytes_min=None))
        answers = await self._read(targets, told, bytes_max)
        if _is_nothing(answers) and any(each.has_moved for each in told.values()):
            answers = await self._read(targets, told, bytes_max)  # by the manifests that the first read has found
        read = iter(answers)
        return [
            history if isinstance(history, TidelogError) else _with_high_watermark(next(read), where)
            for (_, _, where), history in zip(asked, histories, strict=True)
        ]

    async def _read(
        self, targets: Sequence[FetchTarget], told: dict[TopicPartition, _Partition], bytes_max: int
    ) -> list[Fetched | TidelogError]:
        if not targets:
            return []
        return await self._reader.fetch(
            targets,
            lambda partition: told[partition].known_now(),
            asyncio.Event(),
            bytes_max=bytes_max,
            bytes_min=0,
            wait_ms_max=0,
        )

    async def _history(self, asked: ToldTarget) -> History | TidelogError:
        partition, version = asked.target.partition, asked.told.located.manifest_version
        try:
            return await self._histories.of_version(asked.topic, partition, version)
        except TidelogError as error:
            return error.with_traceback(None)

    async def _read_newest(self, partition: TopicPartition) -> None:
        if (topic := self._topics.get(partition)) is not None:
            with suppress(TidelogError):  # who reads is told that the object is gone
                await self._histories.newest(topic, partition)

    def _remember(self, partition: TopicPartition, topic: str) -> None:
        self._topics[partition] = topic
        self._topics.move_to_end(partition)
        if len(self._topics) > TOPICS_MAX:
            self._topics.popitem(last=False)


class _Partition:
    """One that a leader has told of, for the time of one fetch."""

    def __init__(self, partition: TopicPartition, told: Told, history: History | None, histories: KnownHistories) -> None:
        self._partition = partition
        self._told = told
        self._histories = histories
        self._history = history
        self._known: LedPartition | None = None
        self.has_moved = False
        """Another manifest was found than that which the leader has told of."""

    def known_now(self) -> LedPartition:
        """By the newest manifest that was read meanwhile. Raises Corrupt."""
        held = self._histories.held(self._partition)
        is_newer = held is not None and held.version > (self._history.version if self._history is not None else 0)
        if self._known is None or is_newer:
            self.has_moved |= is_newer and self._known is not None
            self._history = held if is_newer else self._history
            self._known = partition_told(self._partition, self._told, self._history)
        return self._known


def _is_nothing(answers: Sequence[Fetched | TidelogError]) -> bool:
    return not any(isinstance(answer, TidelogError) or answer.size_bytes for answer in answers)


def _with_high_watermark(answer: Fetched | TidelogError, told: Told) -> Fetched | TidelogError:
    """The leader's: what was read ends where its places did."""
    return answer if isinstance(answer, TidelogError) else answer._replace(high_watermark=told.high_watermark, committed_at_s=None)
