"""Where a leader says that records lie, and what another broker takes for readable by that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, OutOfRange
from metadata.model import LeaderEpoch, Offset
from segments.history.index import HistoryIndex
from segments.partition.leader_partitions import LeaderPartition
from segments.read.fetch_plan import FetchPart, FromParquet, FromWal, plan_fetch
from segments.read.record_locations import LeaderSnapshot, RecordLocations, located, partition_of_snapshot
from segments.wal.run_index import RunIndex
from tests.kit.segments.batches import ORDERS
from tests.kit.segments.small_history import history
from tests.segments.read.test_fetch_plan import RUN_BYTES, index_of

COMPACTED_TO = 40


def parts_at(offset: int, runs: RunIndex, known: HistoryIndex | None, *, bytes_max: int = 1 << 20) -> list[FetchPart]:
    end = runs.end_offset or Offset(COMPACTED_TO)
    return plan_fetch(offset, high_watermark=end, hot_start_offset=None, runs=runs, history=known, bytes_max=bytes_max)


def reported(where: RecordLocations, *, high_watermark: int, log_start_offset: int = 0) -> LeaderSnapshot:
    return LeaderSnapshot(where, Offset(high_watermark), Offset(log_start_offset), LeaderEpoch(5))


def where(parts: Sequence[FetchPart], known: HistoryIndex | None) -> RecordLocations:
    found = located(parts, known, part_bytes_min=1)
    assert found is not None
    return found[0]


def test_locations_are_answered_if_they_have_enough_bytes_on_average() -> None:
    parts = parts_at(0, index_of(5, 5, 5), None)
    found = located(parts, None, part_bytes_min=RUN_BYTES)
    assert found is not None
    assert found == (RecordLocations(0, tuple(part.location for part in parts if isinstance(part, FromWal))), (3 * RUN_BYTES, 15))
    assert located(parts, None, part_bytes_min=RUN_BYTES + 1) is None
    assert located([], None, part_bytes_min=1) is None, "at the high watermark"


def test_only_a_reader_of_history_gets_the_manifest_and_one_in_a_gap_at_its_end_gets_nothing() -> None:
    known, runs = history(), index_of(5, start_offset=COMPACTED_TO)
    assert where(parts_at(0, runs, known), known).manifest_version == 1
    assert where(parts_at(COMPACTED_TO, runs, known), known).manifest_version == 0
    assert where(parts_at(35, runs, known), known) == RecordLocations(1, tuple(runs.from_timestamp(-1))), (
        "the gap, and what is behind it"
    )
    assert located(parts_at(35, index_of(start_offset=COMPACTED_TO), known), known, part_bytes_min=1) is None


@given(st.integers(0, 59), st.integers(0, 2000))
def test_a_follower_plans_reads_from_locations_as_the_leader_does(offset: int, bytes_max: int) -> None:
    known, runs = history(), index_of(5, 5, 10, start_offset=COMPACTED_TO)
    parts = parts_at(offset, runs, known, bytes_max=bytes_max)
    locations = where(parts, known) if any(isinstance(part, FromWal | FromParquet) for part in parts) else None
    if locations is None:
        return
    there = partition_of_snapshot(ORDERS, reported(locations, high_watermark=60), known if locations.manifest_version else None)
    assert there.log.high_watermark <= 60
    planned = plan_fetch(
        offset,
        high_watermark=there.log.high_watermark,
        hot_start_offset=None,
        runs=there.runs,
        history=there.history,
        bytes_max=bytes_max,
    )
    assert planned == parts


def test_nothing_is_readable_beyond_the_answered_locations_or_the_high_watermark() -> None:
    runs = index_of(5, 5, start_offset=COMPACTED_TO)
    first = cast(FromWal, parts_at(COMPACTED_TO, runs, None, bytes_max=1)[0]).location
    there = partition_of_snapshot(ORDERS, reported(RecordLocations(0, (first,)), high_watermark=50), None)
    assert there.log.bounds[:2] == (0, 45)
    newer = msgspec.structs.replace(history(compacted_to=55).manifest, version=2)
    there = partition_of_snapshot(ORDERS, reported(RecordLocations(0, (first,)), high_watermark=50), HistoryIndex(newer, "orders"))
    assert there.log.high_watermark == 50, "a manifest may cover more than the leader knows to be committed"
    assert len(there.runs) == 0


def test_the_log_starts_where_the_leader_says_or_a_newer_manifest_does() -> None:
    def starts(*, of_leader: int, of_manifest: int, high_watermark: int = 60) -> LeaderPartition:
        manifest = msgspec.structs.replace(history().manifest, log_start_offset=Offset(of_manifest))
        locations = RecordLocations(1, tuple(index_of(20, start_offset=COMPACTED_TO).from_timestamp(-1)))
        asked = reported(locations, high_watermark=high_watermark, log_start_offset=of_leader)
        return partition_of_snapshot(ORDERS, asked, HistoryIndex(manifest, "orders"))

    assert starts(of_leader=12, of_manifest=5).log.log_start_offset == 12
    assert starts(of_leader=5, of_manifest=12).log.log_start_offset == 12
    there = starts(of_leader=0, of_manifest=70)
    assert there.log.bounds[:2] == (60, 60), "what the leader does not know to be committed was not deleted for readers"
    with pytest.raises(OutOfRange):
        there.log.check_readable(59)


def test_runs_that_do_not_follow_each_other_are_no_answer() -> None:
    first, _, third = index_of(5, 5, 5).from_timestamp(-1)
    with pytest.raises(Corrupt, match="goes on at offset 10, but 5 comes next"):
        partition_of_snapshot(ORDERS, reported(RecordLocations(0, (first, third)), high_watermark=15), None)
