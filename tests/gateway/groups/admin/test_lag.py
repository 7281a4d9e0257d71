"""Lag of a group: what counts, what is reported where a part can't be found out, and how little is read for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from gateway.groups.admin.lag import (
    LATER_PART_S,
    PART,
    READ_TIMEOUT_S,
    READS_AT_ONCE,
    READS_TIMEOUT_S,
    GroupLag,
    bounds_by_parts,
    first_timestamp_ms,
)
from gateway.proto.status import from_status
from gateway.routing.log_service import LogService
from gateway.topics.names import BOUNDS_WAIT_S
from metadata.errors import Corrupt, NoLeader, TidelogError, Unavailable
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import LeaderEpoch, Offset, Partition, TopicId, TopicPartition
from segments.read.log_reader import FetchResult
from tests.kit.gateway.reported_log import P0, P1, TOPIC_ID, ReportedLog, Topics, bounds, topic
from tests.kit.segments.batches import batch_of, stamped
from tests.simulation.virtual_loop import run, virtual_loop

NOW_MS = 1_700_000_000_000


def committed(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, committed_at_ms=NOW_MS - 1)


def stored(offsets: dict[TopicPartition, CommittedOffset], damaged: TidelogError | None = None) -> StoredOffsets:
    """`damaged`: of P1."""
    return StoredOffsets(offsets, {} if damaged is None else {P1: damaged})


def with_lag(scenario: Callable[[GroupLag, ReportedLog], Awaitable[None]], *, partitions: int = 2) -> None:
    async def main() -> None:
        log = ReportedLog()
        await scenario(GroupLag(log, Topics(topic(partition_count=partitions)), now_ms=lambda: NOW_MS), log)

    run(main())


def test_lag_counts_records_and_the_age_of_the_first_unread_one() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        log.ends = {P0: bounds(10, 100), P1: bounds(0, 7)}
        log.timestamps = {(P0, 40): NOW_MS - 2_500}
        behind, caught_up = await lag.lags(stored({P0: committed(40), P1: committed(7)}), {P1: "m1"})
        assert (behind.topic, behind.topic_id, behind.partition) == ("orders", TOPIC_ID, 0)
        assert (behind.committed_offset, behind.log_start_offset, behind.high_watermark) == (40, 10, 100)
        assert (behind.lag_records, behind.lag_seconds, behind.member_id) == (60, 2.5, "")
        assert (caught_up.lag_records, caught_up.lag_seconds, caught_up.member_id) == (0, 0.0, "m1")
        assert log.fetched == [(P0, 40)], "who is not behind costs no read"

    with_lag(scenario)


def test_records_that_were_trimmed_before_they_were_read_are_no_lag() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        log.ends, log.timestamps = {P0: bounds(50, 60)}, {(P0, 50): NOW_MS - 1_000}
        (row,) = await lag.lags(stored({P0: committed(3)}), {})
        assert (row.committed_offset, row.lag_records, row.lag_seconds) == (3, 10, 1.0)

    with_lag(scenario)


def test_a_damaged_offset_is_reported_as_corrupt_and_other_lags_are_complete() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        log.ends, log.timestamps = {P0: bounds(0, 60), P1: bounds(0, 60)}, {(P0, 3): NOW_MS - 1_000}
        sound, damaged = await lag.lags(stored({P0: committed(3)}, Corrupt("no committed offset")), {P1: "m1"})
        assert (sound.lag_records, sound.HasField("error")) == (57, False)
        assert not damaged.HasField("committed_offset")
        assert (damaged.lag_records, damaged.high_watermark, damaged.member_id) == (0, 60, "m1")
        assert isinstance(from_status(damaged.error), Corrupt)
        assert log.fetched == [(P0, 3)]

    with_lag(scenario)


def test_a_partition_that_is_owned_and_was_never_committed_counts_from_the_log_start() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        log.ends, log.timestamps = {P0: bounds(5, 9)}, {(P0, 5): NOW_MS - 9_000}
        (row,) = await lag.lags(stored({}), {P0: "m1"})
        assert not row.HasField("committed_offset")
        assert (row.lag_records, row.lag_seconds, row.member_id) == (4, 9.0, "m1")

    with_lag(scenario)


def test_lag_is_never_below_zero_though_clocks_and_offsets_differ() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        log.ends = {P0: bounds(0, 10), P1: bounds(0, 10)}
        log.timestamps = {(P0, 9): NOW_MS + 60_000}
        ahead_in_time, ahead = await lag.lags(stored({P0: committed(9), P1: committed(11)}), {})
        assert (ahead_in_time.lag_records, ahead_in_time.lag_seconds) == (1, 0.0)
        assert (ahead.lag_records, ahead.lag_seconds) == (0, 0.0)

    with_lag(scenario)


def test_the_error_of_a_partition_stands_in_its_row_under_the_topics_name() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        log.ends, log.hangs = {P1: bounds(0, 10)}, {P1}
        leaderless, unread = await lag.lags(stored({P0: committed(1), P1: committed(4)}), {})
        assert isinstance(from_status(leaderless.error), NoLeader)
        assert leaderless.error.message == "orders/0 has no leader"
        assert (leaderless.committed_offset, leaderless.high_watermark, leaderless.lag_records) == (1, -1, 0)
        assert isinstance(from_status(unread.error), Unavailable)
        assert f"within {READ_TIMEOUT_S:g} s" in unread.error.message
        assert unread.lag_records == 6, "what is known is reported"

    with_lag(scenario)


def test_offsets_of_deleted_topics_and_of_partitions_that_a_topic_does_not_have_are_left_out() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        gone = TopicPartition(TopicId("b" * 32), Partition(0))
        assert await lag.lags(stored({gone: committed(1), TopicPartition(TOPIC_ID, Partition(2)): committed(1)}), {}) == []

    with_lag(scenario)


def test_only_so_many_records_are_read_at_once() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        partitions = [TopicPartition(TOPIC_ID, Partition(number)) for number in range(100)]
        log.ends = dict.fromkeys(partitions, bounds(0, 9))
        log.timestamps = {(partition, 0): NOW_MS - 1_000 for partition in partitions}
        assert {row.lag_seconds for row in await lag.lags(stored({}), dict.fromkeys(partitions, "m1"))} == {1.0}
        assert log.reading_max == READS_AT_ONCE

    with_lag(scenario, partitions=100)


def test_a_group_that_is_far_behind_in_very_many_partitions_is_described_in_time() -> None:
    async def scenario(lag: GroupLag, log: ReportedLog) -> None:
        partitions = [TopicPartition(TOPIC_ID, Partition(number)) for number in range(1_000)]
        log.ends = dict.fromkeys(partitions, bounds(0, 9))
        log.timestamps = {(partition, 0): NOW_MS - 1_000 for partition in partitions}
        log.hangs = set(partitions[100:])
        began_s = virtual_loop().time()
        rows = await lag.lags(stored({}), dict.fromkeys(partitions, "m1"))
        assert virtual_loop().time() - began_s <= READS_TIMEOUT_S
        assert {row.lag_records for row in rows} == {9}, "what is known is reported"
        assert [row.partition for row in rows if not row.HasField("error")] == list(range(100))
        assert log.reading == 0

    with_lag(scenario, partitions=1_000)


def test_of_a_batch_that_begins_before_the_offset_the_record_itself_counts() -> None:
    whole = stamped(batch_of(b"a", b"b", b"c", timestamps_ms=[1_000, 2_000, 3_000]), 7)
    fetched = FetchResult([whole.stamp, whole.rest], 0, Offset(10), Offset(10), Offset(0), LeaderEpoch(1))
    assert first_timestamp_ms(fetched, 8, decompressed_bytes_max=1 << 20) == 2_000
    nothing = FetchResult([], 0, Offset(8), Offset(10), Offset(0), LeaderEpoch(1))
    assert first_timestamp_ms(nothing, 8, decompressed_bytes_max=1 << 20) is None


def test_bounds_of_many_partitions_are_read_in_parts_and_the_full_wait_is_spent_once() -> None:
    class NoLeaderLog:
        def __init__(self) -> None:
            self.asked: list[tuple[int, float]] = []

        async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float) -> list[Any]:
            self.asked.append((len(partitions), wait_s))
            await asyncio.sleep(wait_s)
            return [partition.partition for partition in partitions]

    async def main() -> None:
        log = NoLeaderLog()
        partitions = [TopicPartition(TOPIC_ID, Partition(number)) for number in range(2 * PART + 500)]
        found: list[Any] = [*await bounds_by_parts(cast(LogService, log), partitions)]
        assert found == list(range(2 * PART + 500)), "in order"
        assert log.asked == [(PART, BOUNDS_WAIT_S), (PART, LATER_PART_S), (500, LATER_PART_S)]

    run(main())
