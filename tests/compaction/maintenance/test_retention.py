"""What retention lets go: whole files from the front, by the time of their newest record and by bytes, and never more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st

from compaction.maintenance.retention import HeldBack, RetentionPlan, next_retention_ms, plan_retention
from metadata.topics.settings import TopicSettings
from segments.history.manifest import HistoryFile
from tests.kit.compaction.manifests import file_of, files_side_by_side, manifest_of

NOW = 1_000_000


def settings(**values: object) -> TopicSettings:
    return TopicSettings(**({"retention_ms": -1} | values))  # type: ignore[arg-type]  # fields of TopicSettings


def test_a_file_goes_when_its_newest_record_is_too_old() -> None:
    manifest = manifest_of(files_side_by_side([10] * 4, [NOW - 300, NOW - 201, NOW - 200, NOW]))
    plan = plan_retention(manifest, settings(retention_ms=200), pending_bytes=0, now_ms=NOW)
    assert (plan.log_start_offset, plan.files, plan.size_bytes, plan.held_back) == (20, 2, 20, None)


def test_retention_of_minus_one_keeps_all_records() -> None:
    manifest = manifest_of(files_side_by_side([10] * 4, [0] * 4))
    assert plan_retention(manifest, settings(), pending_bytes=1 << 50, now_ms=NOW).log_start_offset is None


def test_nothing_goes_where_the_policy_does_not_include_delete() -> None:
    manifest = manifest_of(files_side_by_side([10] * 4, [0] * 4))
    compact = settings(retention_ms=0, retention_bytes=0, cleanup_policy="compact")
    assert plan_retention(manifest, compact, pending_bytes=0, now_ms=NOW).log_start_offset is None
    both = settings(retention_ms=0, cleanup_policy="compact,delete")
    assert plan_retention(manifest, both, pending_bytes=0, now_ms=NOW).log_start_offset == 40


def test_bytes_count_what_is_pending_and_keep_at_least_as_many_as_they_say() -> None:
    manifest = manifest_of(files_side_by_side([100] * 4))
    for retention_bytes, pending_bytes, log_start in [
        (400, 0, None),
        (399, 0, None),
        (300, 0, 10),
        (400, 99, None),
        (400, 100, 10),
    ]:
        plan = plan_retention(manifest, settings(retention_bytes=retention_bytes), pending_bytes=pending_bytes, now_ms=NOW)
        assert plan.log_start_offset == log_start, (retention_bytes, pending_bytes)


def test_all_of_it_may_go_and_the_log_starts_where_segments_go_on() -> None:
    manifest = manifest_of(files_side_by_side([100] * 4, [0] * 4), compacted_to=44)
    assert plan_retention(manifest, settings(retention_ms=1), pending_bytes=0, now_ms=NOW).log_start_offset == 44


def test_a_file_that_holds_back_the_retention_of_later_ones_is_reported() -> None:
    manifest = manifest_of(files_side_by_side([10] * 4, [0, NOW + 5, 0, NOW]))
    plan = plan_retention(manifest, settings(retention_ms=200), pending_bytes=0, now_ms=NOW)
    assert plan.log_start_offset == 10
    assert plan.held_back is not None
    assert (plan.held_back.file, plan.held_back.due_behind) == (manifest.files[1], 1)


def test_records_without_timestamps_go_with_those_that_follow_them() -> None:
    manifest = manifest_of(files_side_by_side([10] * 4, [-1, 0, -1, NOW]))
    assert plan_retention(manifest, settings(retention_ms=200), pending_bytes=0, now_ms=NOW).log_start_offset == 20
    undated = manifest_of(files_side_by_side([10] * 2, [-1, -1]))
    assert plan_retention(undated, settings(retention_ms=200), pending_bytes=0, now_ms=NOW).log_start_offset is None


def test_records_without_timestamps_expire_by_the_time_of_their_append() -> None:
    def planned(now_ms: int, *files: HistoryFile) -> RetentionPlan:
        return plan_retention(manifest_of(files), settings(retention_ms=200), pending_bytes=0, now_ms=now_ms)

    undated = file_of(0, 9, times=(-1, -1), appended_by=NOW)
    assert planned(NOW + 200, undated).log_start_offset is None
    assert planned(NOW + 201, undated).log_start_offset == 10
    assert next_retention_ms(manifest_of([undated]), settings(retention_ms=200)) == NOW + 201
    among_old = file_of(0, 9, times=(-1, 5), appended_by=NOW)
    assert planned(NOW + 200, among_old).log_start_offset is None, "the one without a timestamp was appended later than the other"
    assert planned(NOW + 201, among_old).log_start_offset == 10
    dated = file_of(0, 9, times=(0, 5), appended_by=NOW)
    assert planned(206, dated).log_start_offset == 10, "a record with a timestamp goes by that alone"
    held = planned(NOW + 200, undated, file_of(10, 19, times=(5, 5), appended_by=NOW)).held_back
    assert held is not None
    assert (held.file.base_offset, held.due_behind) == (0, 1)


def test_a_record_that_is_dated_in_the_future_stays_until_then() -> None:
    manifest = manifest_of([file_of(0, 9, times=(0, NOW + 1000), appended_by=NOW)])
    plan = plan_retention(manifest, settings(retention_ms=200), pending_bytes=0, now_ms=NOW + 1200)
    assert (plan.log_start_offset, plan_retention(manifest, settings(retention_ms=200), pending_bytes=0, now_ms=NOW).held_back) == (
        None,
        HeldBack(manifest.files[0], 0),
    )


def test_no_files_are_no_work() -> None:
    assert plan_retention(manifest_of([]), settings(retention_ms=0), pending_bytes=9, now_ms=NOW).log_start_offset is None


@how(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(-1, 2000)), max_size=12),
    st.integers(-1, 1500),
    st.integers(-1, 900),
    st.integers(0, 200),
    st.integers(0, 50),
)
def test_files_that_retention_removes_are_due_and_files_that_are_due_go(
    reported: list[tuple[int, int]], retention_ms: int, retention_bytes: int, pending: int, gap: int
) -> None:
    files = [file_of(n * 10, n * 10 + 9 - (n % 3), size=100 + size, times=(-1, at)) for n, (size, at) in enumerate(reported)]
    manifest = manifest_of(files, compacted_to=len(files) * 10 + gap)
    now = 1500
    chosen = settings(retention_ms=retention_ms, retention_bytes=retention_bytes)
    plan = plan_retention(manifest, chosen, pending_bytes=pending, now_ms=now)
    start = plan.log_start_offset or 0
    assert start <= manifest.compacted_to
    gone, kept = files[: plan.files], files[plan.files :]
    assert all(file.last_offset < start for file in gone)
    assert all(file.base_offset >= start for file in kept)
    by_time = [retention_ms >= 0 and file.max_timestamp < now - retention_ms for file in files]
    kept_bytes = sum(file.size_bytes for file in kept) + pending
    if gone and retention_bytes >= 0 and not by_time[plan.files - 1]:
        assert kept_bytes >= retention_bytes
    if kept:
        assert not by_time[plan.files] or kept[0].max_timestamp < 0
        if retention_bytes >= 0:
            assert kept_bytes - kept[0].size_bytes < retention_bytes
