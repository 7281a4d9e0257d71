"""What one read of a member of thousands of partitions asks for: places of those that it looks at, and of no others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from gateway.api import BrokerApi
from gateway.groups.admin.lag import LATER_PART_S
from gateway.http.groups.cursor import Cursor, CursorEntry
from gateway.http.groups.member_fetch import PROBED_MAX, MemberFetch
from gateway.routing.log_service import EpochQuestion
from gateway.topics.names import BOUNDS_WAIT_S
from metadata.errors import Corrupt, NoLeader, UnknownTopic
from metadata.group_member.start_offsets import StartPolicy
from metadata.groups.model import Generation
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import LeaderEpoch, Offset, Partition, TopicId, TopicPartition
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.partition.partition_log import Bounds
from segments.read.log_reader import FetchResult
from segments.wal.run_index import EpochEnd
from tests.simulation.virtual_loop import run

ORDERS = Topic(id=TopicId("a" * 32), name="orders", partition_count=5_000, settings={}, created_at_ms=0)
BEGINNING = Cursor(Generation(1), {})
ASSIGNED = [("orders", number) for number in range(ORDERS.partition_count)]


class Logs:
    """Of all partitions, each with offsets 3 to 10, where `with_records` says so; it notes what it is asked for."""

    def __init__(self, with_records: set[int]) -> None:
        self.with_records = with_records
        self.bounds_asked: list[int] = []
        self.looked_at: list[int] = []

    async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float) -> list[Bounds]:
        self.bounds_asked += [partition.partition for partition in partitions]
        return [Bounds(Offset(3), Offset(10), Offset(10), LeaderEpoch(0))] * len(partitions)

    def locations_bytes_min(self, client_rack: str) -> None:
        return None

    async def fetch(self, targets: Sequence[FetchTarget], *, bytes_max: int, wait_ms_max: float) -> list[FetchResult]:
        self.looked_at += [target.partition.partition for target in targets]
        return [self._fetched(target) for target in targets]

    def _fetched(self, target: FetchTarget) -> FetchResult:
        size_bytes = 100 * (target.partition.partition in self.with_records)
        return FetchResult([], size_bytes, Offset(target.offset), Offset(10), Offset(3), LeaderEpoch(0))


def topic(name: str) -> Topic:
    if name != ORDERS.name:
        raise UnknownTopic(name)
    return ORDERS


def reading_of(logs: Logs, cursor: Cursor = BEGINNING, *, from_latest: bool = False) -> MemberFetch:
    broker: Any = SimpleNamespace(topic_cache=SimpleNamespace(get=topic), cluster_log=logs)
    policy = StartPolicy.LATEST if from_latest else StartPolicy.EARLIEST
    return MemberFetch(cast(BrokerApi, broker), ASSIGNED, cursor, group="billing", policy=policy)


class Committed:
    """What the coordinator answers, and how often it was asked."""

    def __init__(self, stored: StoredOffsets) -> None:
        self.stored = stored
        self.asked = 0

    async def __call__(self) -> StoredOffsets:
        self.asked += 1
        return self.stored


def at(number: int) -> TopicPartition:
    return TopicPartition(ORDERS.id, Partition(number))


def nothing_committed() -> Committed:
    return Committed(StoredOffsets({}, {}))


def test_only_partitions_that_are_looked_at_are_asked_where_they_begin() -> None:
    logs = Logs(with_records={PROBED_MAX + 7})

    async def scenario() -> None:
        assert await reading_of(logs).probe(0.0, nothing_committed())

    asyncio.run(scenario())
    assert logs.bounds_asked == logs.looked_at == list(range(2 * PROBED_MAX))


def test_the_look_begins_with_the_partition_whose_turn_it_is() -> None:
    logs = Logs(with_records={1, 4_999})

    async def scenario() -> None:
        assert await reading_of(logs, BEGINNING._replace(rotation=4_500)).probe(0.0, nothing_committed())

    asyncio.run(scenario())
    assert logs.looked_at == [*range(4_500, 5_000), *range(500)]


def test_where_nothing_is_anywhere_all_have_been_looked_at() -> None:
    logs, committed = Logs(with_records=set()), nothing_committed()

    async def scenario() -> None:
        assert not await reading_of(logs).probe(0.0, committed)

    asyncio.run(scenario())
    assert logs.looked_at == list(range(5_000))
    assert committed.asked == 1


def test_the_full_wait_for_partitions_without_a_leader_is_spent_once_and_not_by_each_part() -> None:
    class Unled(Logs):
        waits_s: ClassVar[list[float]] = []

        async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float) -> list[Any]:
            self.waits_s.append(wait_s)
            await asyncio.sleep(wait_s)
            return [NoLeader("it has no leader")] * len(partitions)

    async def scenario() -> float:
        clock = asyncio.get_running_loop().time
        with pytest.raises(NoLeader):
            await reading_of(Unled(set())).probe(clock() + 0.5, nothing_committed())
        return clock()

    assert run(scenario()) == pytest.approx(BOUNDS_WAIT_S + 4 * LATER_PART_S)
    assert Unled.waits_s == pytest.approx([BOUNDS_WAIT_S, *[LATER_PART_S] * 4])


def test_committed_partitions_need_no_bounds_and_damaged_offsets_are_reported_and_not_read() -> None:
    logs = Logs(with_records={2})
    stored = StoredOffsets(
        {at(number): CommittedOffset(offset=5, committed_at_ms=0) for number in range(2, 5_000)}, {at(1): Corrupt("torn")}
    )
    reading = reading_of(logs)

    async def scenario() -> None:
        assert await reading.probe(0.0, Committed(stored))

    asyncio.run(scenario())
    assert logs.bounds_asked == [0]
    assert logs.looked_at == [0, *range(2, PROBED_MAX)]
    assert b'"partition":1,"error"' in reading.page([], "")


def test_a_committed_offset_beyond_the_end_of_its_epoch_is_reset_to_it_and_reported() -> None:
    class Cut(Logs):
        async def ends_of_epochs(self, questions: Sequence[EpochQuestion], *, wait_s: float) -> list[EpochEnd]:
            return [EpochEnd(LeaderEpoch(1), Offset(4))] * len(questions)

    stored = StoredOffsets({at(0): CommittedOffset(offset=7, leader_epoch=2, committed_at_ms=0)}, {})
    reading = reading_of(Cut(with_records={0}))

    async def scenario() -> None:
        assert await reading.probe(0.0, Committed(stored))

    asyncio.run(scenario())
    assert reading.positions.cursor().entries[at(0)] == CursorEntry(4, must_stay=False)
    assert b'"resets":[{"topic":"orders","partition":0,"before":7,"after":4}]' in reading.page([], "")


def test_a_partition_that_begins_at_the_end_begins_where_it_is_probed_first() -> None:
    logs = Logs(with_records={0})
    reading = reading_of(logs, from_latest=True)

    async def scenario() -> None:
        await reading.probe(0.0, nothing_committed())

    asyncio.run(scenario())
    entries = reading.positions.cursor().entries
    assert {entry.offset for entry in entries.values()} == {10}
    assert len(entries) < PROBED_MAX, "as many as a cursor holds"


def test_unknown_topics_and_partitions_are_reported_for_each_partition() -> None:
    broker: Any = SimpleNamespace(topic_cache=SimpleNamespace(get=topic), cluster_log=Logs(set()))
    reading = MemberFetch(
        cast(BrokerApi, broker),
        [("gone", 0), ("gone", 1), ("orders", 5_000)],
        BEGINNING,
        group="billing",
        policy=StartPolicy.EARLIEST,
    )
    assert reading.page([], "").count(b"UNKNOWN_TOPIC") == 2
    assert reading.page([], "").count(b"UNKNOWN_PARTITION") == 1
