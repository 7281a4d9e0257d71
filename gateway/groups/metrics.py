"""Keeps figures of the coordinated groups for Prometheus: served from memory, refreshed in the background.

  groups: those loaded, and those that scan.py has seen    offsets: offset_cache.py
    ─▶ ends of the logs, all partitions at once ─▶ times of the first unread records that are not known yet ─▶ GroupMetricsSnapshot

A refresh costs a call to each leader, and a record read for each group and partition that is behind and has moved, at most
READS_MAX:
with very many lagging groups, some refresh their lag in seconds only in some refreshes. If a leader does not answer, its last ends
stay. Names of groups and topics are labels; numbers of partitions only on /metrics/detail.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from gateway.concurrency.offload import LoopYielder
from gateway.groups.admin.lag import GroupLag, KnownTopics, RecordPosition, first_unread, lag_records, lag_seconds
from gateway.groups.admin.local_admin import owners
from gateway.groups.coordinator import GroupCoordinator
from gateway.routing.log_service import LogService
from gateway.topics.names import BOUNDS_WAIT_S
from metadata.errors import Corrupt, TidelogError
from metadata.groups.model import Group, Member, MemberId
from metadata.groups.offsets import read_offsets
from metadata.groups.record import decode_group
from metadata.measurements import gauge
from metadata.model import TopicPartition
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from segments.partition.partition_log import Bounds

# Largest number of records read for their time in one refresh, and of groups whose offsets are read.
READS_MAX: Final = 1_000
# Largest number of partitions in one call to the leaders.
PARTITIONS_AT_ONCE: Final = 5_000
REFRESH_TIMEOUT_S: Final = 120.0

log = logging.getLogger(__name__)


class GroupSnapshot(NamedTuple):
    """Holds the figures of one group."""

    state: str
    generation: int
    members: int


class GroupPartitionSnapshot(NamedTuple):
    """Holds the figures of one partition that a group has committed or is assigned."""

    group: str
    topic: str
    partition: int
    committed_offset: int | None
    lag_records: int
    # None if it could not be found in time.
    lag_seconds: float | None


class GroupMetricsSnapshot(NamedTuple):
    """Holds the figures of one refresh; it is never changed."""

    groups: Mapping[str, GroupSnapshot] = {}
    partitions: Sequence[GroupPartitionSnapshot] = ()
    # Groups with a partition whose end is not known: the lag of the others is less than that of the group.
    partial: Set[str] = frozenset()
    # Time of the refresh, in seconds since 1970.
    at_s: float = 0.0


class _Owned(NamedTuple):
    members: Mapping[MemberId, Member]
    partitions: frozenset[TopicPartition]


class GroupMetrics:
    """Refreshes the figures at intervals. Its owner runs `run()` as a task, and has `visit` called by a GroupScanner."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        coordinator: GroupCoordinator,
        log: LogService,
        topics: KnownTopics,
        *,
        coordinates: Callable[[str], bool],
        interval_s: float,
        now_ms: Callable[[], int],
    ) -> None:
        """`log` serves the whole cluster. `coordinates` returns whether a group is this broker's."""
        self.snapshot = GroupMetricsSnapshot()
        self._store = store
        self._layout = layout
        self._coordinator = coordinator
        self._known = coordinator.known_offsets
        self._log = log
        self._topics = topics
        self._coordinates = coordinates
        self._interval_s = interval_s
        self._now_ms = now_ms
        self._lag = GroupLag(log, topics, now_ms=now_ms)
        self._seen: dict[str, GroupSnapshot] = {}  # includes groups without calls
        self._owned: dict[str, _Owned] = {}
        self._bounds: dict[TopicPartition, Bounds] = {}
        self._timestamps: dict[RecordPosition, int | None] = {}
        self._turn = 0
        self._subscribers: list[Callable[[GroupMetricsSnapshot], Awaitable[None]]] = []

    def subscribe(self, refreshed: Callable[[GroupMetricsSnapshot], Awaitable[None]]) -> None:
        """Adds a callback for each refresh. It must not raise."""
        self._subscribers.append(refreshed)

    async def visit(self, name: str, group: Group) -> None:
        """Takes in a group as the store holds it."""
        self._seen[name] = _snapshot_of(group)

    async def run(self) -> None:
        """Refreshes the figures after each interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                async with asyncio.timeout(REFRESH_TIMEOUT_S):
                    await self.refresh()
            except TimeoutError:
                log.warning("group lag refresh failed: it took longer than %g s; retrying after the interval", REFRESH_TIMEOUT_S)
            except TidelogError as error:
                log.warning("group lag refresh failed: %s; retrying after the interval", error)

    async def refresh(self) -> None:
        """Refreshes all figures once. Raises Unavailable, Corrupt."""
        loaded = dict(self._coordinator.groups())
        self._seen |= {name: _snapshot_of(group) for name, group in loaded.items()}
        self._keep_only({name for name in {*self._seen, *self._known} if self._coordinates(name)})
        await self._read(loaded)
        groups = {name: snapshot for name, snapshot in self._seen.items() if self._known.is_whole(name)}
        by_group = await self._committed_partitions(groups, loaded)
        await self._ask_leaders({partition for partitions in by_group.values() for partition in partitions})
        unread = await self._unread(by_group)
        await self._read_timestamps(unread.values())
        now_ms = self._now_ms()
        partitions: list[GroupPartitionSnapshot] = []
        partial: set[str] = set()
        yielder = LoopYielder()
        for name, its in by_group.items():
            rows = [row for at in its if (row := self._row(name, at, unread, now_ms)) is not None]
            partitions += rows
            if len(rows) < len(its):
                partial.add(name)
            await yielder.step()
        self.snapshot = GroupMetricsSnapshot(groups, partitions, partial, now_ms / 1000)
        for refreshed in self._subscribers:
            await refreshed(self.snapshot)

    def _keep_only(self, names: Collection[str]) -> None:
        for held in (self._seen, self._owned):
            for name in held.keys() - names:
                del held[name]
        self._known.keep_only(names)

    async def _read(self, loaded: Collection[str]) -> None:
        """Reads groups that are not fully known: created, moved, loaded or deleted since the last refresh."""
        missing = (name for name in {*self._seen, *self._known} if name not in self._seen or not self._known.is_whole(name))
        for name in list(islice(missing, READS_MAX)):
            try:
                await self._read_one(name, is_loaded=name in loaded)
            except Corrupt as error:
                log.debug("group left out of metrics group=%s: %s", name, error)  # the scan logs it, too
            except TidelogError as error:
                log.warning("group reads failed: %s; unread groups are left out of metrics", error)
                return

    async def _read_one(self, name: str, *, is_loaded: bool) -> None:
        began_ms = self._now_ms()
        if not is_loaded:
            kept = await self._store.get(self._layout.group(name))
            if kept is None:
                self._seen.pop(name, None)
                self._known.forget(name)
                return
            self._seen[name] = _snapshot_of(decode_group(kept, now_ms=0))
        stored = await read_offsets(self._store, self._layout, name)
        self._known.read(name, stored.committed, began_ms=began_ms)

    async def _committed_partitions(self, groups: Iterable[str], loaded: Mapping[str, Group]) -> dict[str, list[TopicPartition]]:
        """Returns the partitions that each group has committed or is assigned, except those of deleted topics."""
        yielder = LoopYielder()
        by_group: dict[str, list[TopicPartition]] = {}
        for name in groups:
            partitions = {*self._known[name], *self._assigned(name, loaded.get(name))}
            by_group[name] = [at for at in partitions if self._lag.topic_of(at) is not None]
            await yielder.step()
        return by_group

    def _assigned(self, name: str, group: Group | None) -> frozenset[TopicPartition]:
        if group is None or not group.members:
            self._owned.pop(name, None)
            return frozenset()
        held = self._owned.get(name)
        if held is None or held.members is not group.members:
            held = self._owned[name] = _Owned(group.members, frozenset(owners(group, self._topics)))
        return held.partitions

    async def _ask_leaders(self, partitions: set[TopicPartition]) -> None:
        self._bounds = {at: bounds for at, bounds in self._bounds.items() if at in partitions}
        asked = list(partitions)
        for start in range(0, len(asked), PARTITIONS_AT_ONCE):
            part = asked[start : start + PARTITIONS_AT_ONCE]
            for at, bounds in zip(part, await self._log.bounds_of(part, wait_s=BOUNDS_WAIT_S), strict=True):
                if not isinstance(bounds, TidelogError):
                    self._bounds[at] = bounds

    async def _unread(self, by_group: Mapping[str, Sequence[TopicPartition]]) -> dict[tuple[str, TopicPartition], RecordPosition]:
        """Returns the first unread record of each group and partition that is behind."""
        yielder = LoopYielder()
        unread: dict[tuple[str, TopicPartition], RecordPosition] = {}
        for name, partitions in by_group.items():
            for at in partitions:
                bounds, committed = self._bounds.get(at), self._offset(name, at)
                if bounds is not None and lag_records(committed, bounds) > 0:
                    unread[name, at] = at, first_unread(committed, bounds)
            await yielder.step()
        return unread

    async def _read_timestamps(self, positions: Iterable[RecordPosition]) -> None:
        """Reads the missing timestamps; if they are too many, a different part in each refresh."""
        wanted = dict.fromkeys(positions)
        self._timestamps = {position: timestamp for position, timestamp in self._timestamps.items() if position in wanted}
        missing = [position for position in wanted if position not in self._timestamps]
        self._turn = self._turn % len(missing) if len(missing) > READS_MAX else 0
        chosen = (missing[self._turn :] + missing[: self._turn])[:READS_MAX]
        self._turn += READS_MAX
        for position, timestamp in (await self._lag.timestamps(chosen)).items():
            if not isinstance(timestamp, TidelogError):
                self._timestamps[position] = timestamp

    def _row(
        self, name: str, at: TopicPartition, unread: Mapping[tuple[str, TopicPartition], RecordPosition], now_ms: int
    ) -> GroupPartitionSnapshot | None:
        bounds, topic, committed = self._bounds.get(at), self._lag.topic_of(at), self._offset(name, at)
        if bounds is None or topic is None:
            return None
        position = unread.get((name, at))
        seconds: float | None = 0.0
        if position is not None:
            seconds = lag_seconds(self._timestamps[position], now_ms=now_ms) if position in self._timestamps else None
        return GroupPartitionSnapshot(name, topic.name, at.partition, committed, lag_records(committed, bounds), seconds)

    def _offset(self, name: str, at: TopicPartition) -> int | None:
        found = self._known[name].get(at)
        return None if found is None else found.offset


def _snapshot_of(group: Group) -> GroupSnapshot:
    return GroupSnapshot(group.phase.value, group.generation, len(group.members))


# ── figures for Prometheus ──────────────────────────────────────────────────────────────────────────────────────────────


_OURS: Final = ("group", "topic", "partition")
_KAFKAS: Final = ("consumergroup", "topic", "partition")


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """Holds the figures for /metrics: groups, and their lag by topic."""

    lag_records: Mapping[tuple[str, str], int] = gauge(
        "tidelog_group_lag_records", "Records that the group has not committed yet.", labels=("group", "topic")
    )
    lag_seconds: Mapping[tuple[str, str], float] = gauge(
        "tidelog_group_lag_seconds",
        "Age of the first record that the group has not committed, of the partition that is furthest behind.",
        labels=("group", "topic"),
    )
    members: Mapping[str, int] = gauge("tidelog_group_members", "Members of the group.", labels=("group",))
    generations: Mapping[str, int] = gauge("tidelog_group_generation", "Raised by each rebalance of the group.", labels=("group",))
    states: Mapping[str, int] = gauge("tidelog_groups", "Groups that this broker coordinates.", labels=("state",))
    refreshed_at_s: float = gauge(
        "tidelog_group_lag_refreshed_timestamp_seconds", "When the figures of groups were refreshed last."
    )


@dataclass(frozen=True, slots=True)
class GroupPartitionFigures:
    """Holds the figures for /metrics/detail.

    Names that begin with kafka_ and their labels are those of kafka_exporter (https://github.com/danielqsj/kafka_exporter), but a
    partition without a commit is left out, where kafka_exporter has -1.
    """

    lag_records: Mapping[tuple[str, str, str], int] = gauge(
        "tidelog_group_partition_lag_records", "Records that the group has not committed yet.", labels=_OURS
    )
    lag_seconds: Mapping[tuple[str, str, str], float] = gauge(
        "tidelog_group_partition_lag_seconds", "Age of the first record that the group has not committed.", labels=_OURS
    )
    committed_offsets: Mapping[tuple[str, str, str], int] = gauge(
        "tidelog_group_partition_committed_offset", "The next record to be read.", labels=_OURS
    )
    current_offsets: Mapping[tuple[str, str, str], int] = gauge(
        "kafka_consumergroup_current_offset", "As tidelog_group_partition_committed_offset.", labels=_KAFKAS
    )
    lags: Mapping[tuple[str, str, str], int] = gauge(
        "kafka_consumergroup_lag", "As tidelog_group_partition_lag_records.", labels=_KAFKAS
    )
    lag_sums: Mapping[tuple[str, str], int] = gauge(
        "kafka_consumergroup_lag_sum",
        "Sum of kafka_consumergroup_lag over the partitions of the topic.",
        labels=("consumergroup", "topic"),
    )
    members: Mapping[str, int] = gauge("kafka_consumergroup_members", "As tidelog_group_members.", labels=("consumergroup",))


def by_topic(snapshot: GroupMetricsSnapshot) -> GroupFigures:
    """Returns the figures for /metrics."""
    records = Counter[tuple[str, str]]()
    seconds: dict[tuple[str, str], float] = {}
    for row in snapshot.partitions:
        key = row.group, row.topic
        records[key] += row.lag_records
        if row.lag_seconds is not None:
            seconds[key] = max(seconds.get(key, 0.0), row.lag_seconds)
    return GroupFigures(
        lag_records=records,
        lag_seconds=seconds,
        members=_members(snapshot),
        generations={name: group.generation for name, group in snapshot.groups.items()},
        states=Counter(group.state for group in snapshot.groups.values()),
        refreshed_at_s=snapshot.at_s,
    )


def by_partition(snapshot: GroupMetricsSnapshot) -> GroupPartitionFigures:
    """Returns the figures for /metrics/detail."""
    rows = {(row.group, row.topic, str(row.partition)): row for row in snapshot.partitions}
    committed = {of: row.committed_offset for of, row in rows.items() if row.committed_offset is not None}
    sums = Counter[tuple[str, str]]()
    for of in committed:
        sums[of[0], of[1]] += rows[of].lag_records
    return GroupPartitionFigures(
        lag_records={of: row.lag_records for of, row in rows.items()},
        lag_seconds={of: row.lag_seconds for of, row in rows.items() if row.lag_seconds is not None},
        committed_offsets=committed,
        current_offsets=committed,
        lags={of: rows[of].lag_records for of in committed},
        lag_sums=sums,
        members=_members(snapshot),
    )


def _members(snapshot: GroupMetricsSnapshot) -> dict[str, int]:
    return {name: group.members for name, group in snapshot.groups.items()}
