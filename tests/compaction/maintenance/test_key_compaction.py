"""Key compaction against its plainest form: of each key the newest record stays, whatever the order of passes and their memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.maintenance.key_compaction import (
    PASSES_MAX,
    KeyPassPlan,
    next_key_pass_ms,
    passes_after,
    plan_key_pass,
    sort_records,
)
from compaction.maintenance.key_map import BYTES_PER_KEY, KeyMap
from metadata.model import Offset
from metadata.topics.settings import TopicSettings
from segments.history.manifest import HistoryFile, KeyPass
from segments.records.columns import SCHEMA
from tests.kit.compaction.manifests import file_of, files_side_by_side, manifest_of

COMPACT = TopicSettings(cleanup_policy="compact", delete_retention_ms=100)
SECRET = b"s" * 16
# Offset, key, value.
Record = tuple[int, bytes | None, bytes | None]


def columns_of(records: list[Record]) -> pa.RecordBatch:
    offsets, keys, values = zip(*records, strict=True) if records else ((), (), ())
    rows = len(offsets)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets, pa.int64()),
            pa.array([0] * rows, pa.timestamp("ms", tz="UTC")),
            pa.array([0] * rows, pa.int32()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([[]] * rows, SCHEMA.field("headers").type),
        ],
        schema=SCHEMA,
    )


def records_of(columns: pa.RecordBatch) -> list[Record]:
    return list(zip(columns["offset"].to_pylist(), columns["key"].to_pylist(), columns["value"].to_pylist(), strict=True))


def key_map(records: list[Record], *, keys_max: int = 1000) -> KeyMap:
    newest = KeyMap(bytes_max=keys_max * BYTES_PER_KEY, secret=SECRET)
    columns = columns_of(records)
    assert newest.add(columns["key"], columns["offset"].to_numpy())
    return newest


keys = st.none() | st.sampled_from([b"", b"a", b"b", b"cc", b"\x00", b"d" * 40])
values = st.none() | st.just(b"v")


@settings(deadline=None)
@given(st.lists(st.lists(keys, max_size=8), max_size=8), st.lists(keys, max_size=10))
def test_the_map_knows_the_newest_offset_of_every_key(groups: list[list[bytes | None]], asked: list[bytes | None]) -> None:
    newest = KeyMap(bytes_max=1000 * BYTES_PER_KEY, secret=SECRET)
    expected: dict[bytes | None, int] = {}
    offset = 0
    for group in groups:
        offsets = np.arange(offset, offset + len(group), dtype=np.int64)
        assert newest.add(pa.array(group, pa.binary()), offsets)
        expected |= {key: int(at) for key, at in zip(group, offsets, strict=True) if key is not None}
        offset += len(group)
    found = newest.newest(pa.array(asked, pa.binary()))
    assert found.tolist() == [expected.get(key, -1) if key is not None else -1 for key in asked]


def test_the_map_takes_no_more_than_its_memory_but_always_the_first() -> None:
    newest = KeyMap(bytes_max=2 * BYTES_PER_KEY, secret=SECRET)
    many = columns_of([(n, b"%d" % n, b"v") for n in range(5)])
    more = columns_of([(n, b"%d" % n, b"v") for n in range(5, 9)])
    assert newest.add(many["key"], many["offset"].to_numpy())
    assert not newest.add(more["key"], more["offset"].to_numpy())
    assert newest.newest(pa.array([b"4", b"5"])).tolist() == [4, -1]


def test_keys_that_come_again_take_no_more_room() -> None:
    newest = KeyMap(bytes_max=6 * BYTES_PER_KEY, secret=SECRET)
    for first in range(0, 300, 5):
        again = columns_of([(first + n, b"%d" % n, b"v") for n in range(5)])
        assert newest.add(again["key"], again["offset"].to_numpy())
    assert len(newest) == 5


@settings(deadline=None)
@given(
    st.lists(st.tuples(keys, values), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 150)), min_size=1, max_size=6),
)
def test_passes_leave_what_the_plainest_rule_leaves(
    reported: list[tuple[bytes | None, bytes | None]], steps: list[tuple[int, int]]
) -> None:
    """Each step adds records, lets time go by, and compacts; the log is one list of records."""
    log: list[Record] = []
    seen_at: dict[int, int] = {}
    passes: tuple[KeyPass, ...] = ()
    now, added = 1000, 0
    for count, pause in steps:
        log += [(added + n, key, value) for n, (key, value) in enumerate(reported[added : added + count])]
        added = min(added + count, len(reported))
        now += pause
        if not log:
            break
        manifest = manifest_of([file_of(0, added - 1)], key_passes=passes)
        plan = plan_key_pass(manifest, COMPACT, dirty_ratio_min=0.0, now_ms=now)
        if plan is None:
            continue
        end = plan.dirty_to
        before = list(log)
        newest = key_map([record for record in log if plan.clean_to <= record[0] < end])
        sorting = sort_records(columns_of(log), newest, plan, end)
        log = records_of(sorting.kept)
        passes = passes_after(passes, plan, end, tombstones=sorting.new_tombstones, now_ms=now)
        assert sorted(log + records_of(sorting.removed)) == sorted(before)
        seen_at |= {offset: now for offset, _, _ in before if offset < end and offset not in seen_at}
        last = {key: offset for offset, key, _ in before if key is not None}
        for offset, key, value in before:
            stays = key is None or (last[key] == offset and (value is not None or seen_at[offset] + 100 > now))
            assert ((offset, key, value) in log) == stays, (offset, key, value)
        manifest_of([file_of(0, added - 1)], key_passes=passes)


def test_a_pass_is_due_when_the_dirty_part_is_large_enough() -> None:
    files = files_side_by_side([1000] * 4)

    def due(clean_to: int) -> bool:
        manifest = manifest_of(files, key_passes=[KeyPass(Offset(clean_to), 0, 0)])
        return plan_key_pass(manifest, COMPACT, dirty_ratio_min=0.5, now_ms=50) is not None

    assert [due(10), due(20), due(30), due(40)] == [True, True, False, False]


def test_files_younger_than_the_lag_wait() -> None:
    manifest = manifest_of(files_side_by_side([1000] * 3, [100, 200, 300]))
    lag = TopicSettings(cleanup_policy="compact", min_compaction_lag_ms=50)
    plan = plan_key_pass(manifest, lag, dirty_ratio_min=0.0, now_ms=251)
    assert plan is not None
    assert plan.dirty_to == 20
    assert plan_key_pass(manifest, lag, dirty_ratio_min=0.0, now_ms=149) is None
    assert next_key_pass_ms(manifest, lag, now_ms=149) == 150


def test_tombstones_alone_are_a_reason_when_their_time_is_over_and_only_their_files_are_read() -> None:
    files = files_side_by_side([1000] * 4)
    passes = [KeyPass(Offset(10), 0, 0), KeyPass(Offset(20), 50, 3), KeyPass(Offset(40), 60, 1)]
    manifest = manifest_of(files, key_passes=passes)
    assert plan_key_pass(manifest, COMPACT, dirty_ratio_min=0.5, now_ms=149) is None
    assert next_key_pass_ms(manifest, COMPACT, now_ms=149) == 150
    plan = plan_key_pass(manifest, COMPACT, dirty_ratio_min=0.5, now_ms=155)
    assert plan == KeyPassPlan(Offset(40), Offset(40), Offset(10), Offset(20))
    assert plan.files(manifest, plan.dirty_to) == (files[1],)
    assert passes_after(passes, plan, plan.dirty_to, tombstones=0, now_ms=155) == (passes[2],)


def test_topics_that_do_not_compact_have_no_pass() -> None:
    manifest = manifest_of(files_side_by_side([1000] * 3))
    assert plan_key_pass(manifest, TopicSettings(), dirty_ratio_min=0.0, now_ms=0) is None
    assert plan_key_pass(manifest_of([]), COMPACT, dirty_ratio_min=0.0, now_ms=0) is None


@pytest.mark.parametrize("count", [PASSES_MAX, PASSES_MAX + 5])
def test_passes_that_are_too_many_become_fewer_and_no_tombstone_goes_earlier(count: int) -> None:
    passes: tuple[KeyPass, ...] = ()
    for n in range(count):
        plan = KeyPassPlan(Offset(n * 10), Offset(n * 10 + 10), Offset(0), Offset(0))
        passes = passes_after(passes, plan, plan.dirty_to, tombstones=2, now_ms=n)
    assert len(passes) <= PASSES_MAX
    assert sum(one.tombstones for one in passes) == 2 * count
    for n in range(count):
        covering = next(one for one in passes if one.end_offset > n * 10)
        assert covering.at_ms >= n


# ── min.compaction.lag.ms ──


def lagging(lag_ms: int) -> TopicSettings:
    return TopicSettings(cleanup_policy="compact", delete_retention_ms=100, min_compaction_lag_ms=lag_ms)


def dirty_to(now_ms: int, *files: HistoryFile, lag_ms: int = 100) -> int | None:
    plan = plan_key_pass(manifest_of(files), lagging(lag_ms), dirty_ratio_min=0.0, now_ms=now_ms)
    return None if plan is None else plan.dirty_to


def test_a_record_that_is_dated_in_the_future_is_young_only_since_its_append() -> None:
    future = file_of(0, 9, times=(1000, 1 << 50), appended_by=5000)
    following = file_of(10, 19, times=(5000, 5000), appended_by=5001)
    assert dirty_to(5099, future, following) is None
    assert next_key_pass_ms(manifest_of([future, following]), lagging(100), now_ms=5099) == 5100
    assert dirty_to(5100, future, following) == 20


def test_a_record_that_is_dated_before_its_append_is_as_old_as_it_says() -> None:
    assert dirty_to(1100, file_of(0, 9, times=(0, 1000), appended_by=5000)) == 10
    assert dirty_to(1099, file_of(0, 9, times=(0, 1000), appended_by=5000)) is None


def test_a_record_without_a_timestamp_is_young_since_its_append() -> None:
    for times in ((-1, -1), (-1, 1000)):
        undated = file_of(0, 9, times=times, appended_by=5000)
        assert dirty_to(5099, undated) is None
        assert next_key_pass_ms(manifest_of([undated]), lagging(100), now_ms=5099) == 5100
        assert dirty_to(5100, undated) == 10
        assert dirty_to(5000, undated, lag_ms=0) == 10


def test_a_file_of_a_manifest_without_times_of_append_goes_by_the_records_alone() -> None:
    assert dirty_to(5100, file_of(0, 9, times=(0, 1 << 50))) is None
    assert dirty_to(0, file_of(0, 9, times=(-1, -1))) == 10


def test_a_young_file_whose_keys_are_compacted_already_ends_nothing() -> None:
    """As where min.compaction.lag.ms was raised, and records behind it are dated earlier."""
    young, old = file_of(0, 9, times=(5000, 5000), appended_by=5000), file_of(10, 19, times=(0, 0), appended_by=5000)
    manifest = manifest_of([young, old], key_passes=[KeyPass(Offset(10), 0, 0)])
    plan = plan_key_pass(manifest, lagging(100), dirty_ratio_min=0.0, now_ms=5050)
    assert plan is not None
    assert (plan.clean_to, plan.dirty_to) == (10, 20)


def test_a_tombstone_at_the_beginning_of_the_dirty_part_is_counted_or_it_would_never_go() -> None:
    log: list[Record] = [(9, b"a", None), (10, b"b", None), (11, b"c", None), (12, b"d", None)]
    plan = KeyPassPlan(Offset(10), Offset(12), Offset(0), Offset(0))
    assert sort_records(columns_of(log), key_map(log[1:3]), plan, Offset(12)).new_tombstones == 2
