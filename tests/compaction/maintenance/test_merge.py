"""Merges: adjacent small files become large ones, few stay small, and no record is rewritten often."""

from __future__ import annotations

from math import log2

from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.maintenance.merge_plan import MergeBounds, plan_merge
from metadata.model import Offset
from metadata.topics.settings import TopicSettings
from segments.history.manifest import HistoryFile, KeyPass
from tests.kit.compaction.manifests import MIB, file_of, files_side_by_side, manifest_of

BOUNDS = MergeBounds(bytes_min=128 * MIB, bytes_max=512 * MIB, files_min=8)


def sizes(files: tuple[HistoryFile, ...]) -> list[int]:
    return [file.size_bytes // MIB for file in files]


def planned(*mib: int, bounds: MergeBounds = BOUNDS, times: list[int] | None = None) -> list[int]:
    return sizes(plan_merge(manifest_of(files_side_by_side([size * MIB for size in mib], times)), bounds))


def test_two_files_that_make_a_large_one_are_merged() -> None:
    assert planned(100, 30) == [100, 30]
    assert planned(300, 127, 127, 300) == [127, 127]


def test_large_files_and_few_small_ones_are_left_alone() -> None:
    assert planned(200, 300, 128) == []
    assert planned(1, 1, 1) == []
    assert planned(127, 200, 127) == []


def test_eight_small_ones_are_merged_but_not_for_the_sake_of_a_large_one_beside_them() -> None:
    assert planned(*[1] * 8) == [1] * 8
    assert planned(64, *[1] * 8) == [1] * 8
    assert planned(8, *[1] * 8) == [8] + [1] * 8


def test_no_merge_is_wider_than_a_quarter_of_retention() -> None:
    bounds = BOUNDS.for_topic(TopicSettings(retention_ms=400))
    assert planned(*[1] * 16, bounds=bounds, times=[n * 10 for n in range(16)]) == [1] * 11
    assert planned(100, 100, bounds=bounds, times=[0, 101]) == []
    assert planned(100, 100, bounds=BOUNDS.for_topic(TopicSettings(retention_ms=-1)), times=[0, 101]) == [100, 100]


def test_records_without_timestamps_count_as_dated_by_their_append_for_the_width_of_a_merge() -> None:
    bounds = BOUNDS.for_topic(TopicSettings(retention_ms=400))

    def merged(*reported: tuple[tuple[int, int], int]) -> int:
        """How many of files with these earliest and latest timestamps, and times of append."""
        files = [
            file_of(10 * n, 10 * n + 9, size=100 * MIB, times=times, appended_by=appended_by)
            for n, (times, appended_by) in enumerate(reported)
        ]
        return len(plan_merge(manifest_of(files), bounds))

    undated = (-1, -1)
    assert merged((undated, 1000), (undated, 1100)) == 2
    assert merged((undated, 1000), (undated, 1101)) == 0
    assert merged((undated, 1000), ((1000, 1100), 1100)) == 2
    assert merged((undated, 1000), ((1000, 1000), 1101)) == 0, "the merged file would wait for 1101"
    assert merged(((1000, 1000), 1101), ((1000, 1000), 5000)) == 2
    assert merged((undated, -1), (undated, -1)) == 2, "nothing is known of them"
    assert merged(((899, 1000), 1000), ((1000, 1000), 1000)) == 0, "the oldest record of a file counts, not its newest"


def test_no_merge_is_larger_than_a_quarter_of_retention_bytes() -> None:
    bounds = BOUNDS.for_topic(TopicSettings(retention_bytes=64 * MIB))
    assert planned(*[2] * 16, bounds=bounds) == [2] * 8
    assert planned(16, 16, bounds=bounds) == []


def test_no_merge_lies_across_the_end_of_a_pass_of_key_compaction() -> None:
    files = files_side_by_side([100 * MIB, 100 * MIB])
    assert plan_merge(manifest_of(files, key_passes=[KeyPass(Offset(10), 0, 0)]), BOUNDS) == ()
    assert plan_merge(manifest_of(files, key_passes=[KeyPass(Offset(20), 0, 0)]), BOUNDS) == tuple(files)


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=300))
def test_a_log_that_grows_file_by_file_stays_in_few_files_and_is_rewritten_seldom(arriving: list[int]) -> None:
    bounds = MergeBounds(bytes_min=128, bytes_max=512, files_min=8)
    files: list[HistoryFile] = []
    written = 0
    for n, size in enumerate(arriving):
        files.append(file_of(n, n, size=size + 20))
        while merge := plan_merge(manifest_of(files), bounds):
            total = sum(file.size_bytes for file in merge)
            assert total <= bounds.bytes_max
            assert len(merge) > 1
            at = files.index(merge[0])
            assert tuple(files[at : at + len(merge)]) == merge
            files[at : at + len(merge)] = [file_of(merge[0].base_offset, merge[-1].last_offset, size=total)]
            written += total
    total = sum(size + 20 for size in arriving)
    assert written <= total * (log2(bounds.bytes_min / 21) + 2)
    large = sum(file.size_bytes >= bounds.bytes_min for file in files)
    assert len(files) - large <= (large + 2) * bounds.files_min
