"""What Spark's own reader is given, and what is left to the data source, is the range that is asked for; without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from metadata.errors import UnknownTopic
from metadata.model import Revision
from segments.bucket.layout import deleted_topic_key
from spark.parquet.plan import RANGES_AT_ONCE, NativePlan, StoredFile, plan_native
from spark.runtime.bucket_thread import BucketThread
from spark.source.batch_query import plan_batch, resolve
from spark.source.options import parse_source_options
from spark.source.scan_plan import OffsetRange
from spark.source.task_reader import read_task
from tests.kit.spark.made_log import MadeLog
from tests.kit.spark.topics_on_disk import Bucket, records

# Partition and offset.
Row = tuple[int, int]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MadeLog:
    """Partition 0: two files with gaps, at their borders too, and a tail; 1: a file alone; 2: segments alone; 3: nothing."""
    made = MadeLog(tmp_path_factory.mktemp("log") / "bucket", partitions=4)
    made.history(0, records(0, 60), without=[0, 1, 30, 59])
    made.history(0, records(60, 40), without=range(5, 30))
    made.history(1, records(0, 50))
    made.segment({0: records(100, 20), 2: records(0, 10)})
    made.segment({0: records(120, 20)})
    return made


def plan(url: str, **options: str) -> NativePlan:
    given = {"bucket": url, "subscribe": "orders"} if "assign" not in options else {"bucket": url}
    with BucketThread(url) as opened:
        return plan_native(*opened.run(lambda store: resolve(store, parse_source_options(given | options))))


def rows_of(log: MadeLog, planned: NativePlan) -> list[Row]:
    found: list[Row] = []

    def take(file: StoredFile, within: Mapping[int, OffsetRange] | None = None) -> None:
        assert (log.root / file.key).stat().st_size == file.size_bytes
        table = pq.read_table(log.root / file.key, columns=["partition", "offset"], partitioning=None)
        if within is not None:
            offsets = within[table.column("partition")[0].as_py()]
            table = table.filter((pc.field("offset") >= offsets.start) & (pc.field("offset") < offsets.end))
        found.extend(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))

    for file in planned.whole:
        take(file)
    for cut in planned.cut:
        for file in cut.files:
            take(file, cut.ranges)
    if planned.tail:
        with BucketThread(log.url) as opened:
            for task in plan_batch(opened, parse_source_options({"bucket": log.url} | planned.tail_options())):
                for batch in read_task(opened, task, ("partition", "offset")):
                    found += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    return found


def expected(log: MadeLog, starts: dict[int, int], ends: dict[int, int]) -> list[Row]:
    return [
        (partition, one.offset)
        for partition, written in log.written.items()
        for one in written
        if starts.get(partition, 0) <= one.offset < ends.get(partition, 2**63)
    ]


def test_without_bounds_all_files_are_whole_and_only_what_is_in_segments_is_left(log: MadeLog) -> None:
    planned = plan(log.url)
    assert len(planned.whole) == 3
    assert planned.cut == ()
    assert planned.tail == {"orders": {0: (100, 140), 2: (0, 10)}}
    for stream in (False, True):  # Spark asks for the schema before it says which of the two it is
        asked = parse_source_options({"bucket": log.url} | planned.tail_options(), stream=stream)
        assert asked.topic_ids == {"orders": log.topic_id}
    assert sorted(rows_of(log, planned)) == expected(log, {}, {})


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 1, 2, 3, 30, 59, 60, 64, 65, 90, 99, 100, 101, 139, 140])
@pytest.mark.parametrize("end", [0, 2, 31, 60, 61, 89, 100, 120, 140])
def test_each_range_is_read_once_wherever_its_borders_lie(log: MadeLog, start: int, end: int) -> None:
    starts = f'{{"orders":{{"0":{start},"1":7,"2":3,"3":0}}}}'
    ends = f'{{"orders":{{"0":{end},"1":50,"2":-1,"3":0}}}}'
    planned = plan(log.url, startingOffsets=starts, endingOffsets=ends)
    assert sorted(rows_of(log, planned)) == expected(log, {0: start, 1: 7, 2: 3}, {0: max(start, end)})


def test_a_file_whose_records_all_lie_within_is_whole_though_it_stands_for_more(log: MadeLog) -> None:
    """Its first two records and its last one are gone, and offsets 2 to 58 are all that it has."""
    planned = plan(log.url, assign='{"orders":[0]}', startingOffsets='{"orders":{"0":2}}', endingOffsets='{"orders":{"0":59}}')
    assert (len(planned.whole), planned.cut, planned.tail) == (1, (), {})


def test_a_topic_that_was_recreated_after_the_plan_is_not_mixed_with_the_planned_one(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "bucket")
    log.segment({0: records(0, 10)})
    planned = plan(log.url)
    (log.root / deleted_topic_key("orders", log.topic_id, Revision(2))).write_bytes(b"{}")
    MadeLog(log.root, id_digit="b")
    with pytest.raises(UnknownTopic, match="orders was deleted and recreated"):
        rows_of(log, planned)


def test_records_below_the_log_start_are_left_out(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "bucket")
    bucket.produce(records(0, 50), records(50, 50))
    bucket.compact()
    bucket.delete_records(42)
    planned = plan(bucket.url)
    assert planned.whole == ()
    assert [cut.condition for cut in planned.cut] == ["(partition = 0 AND offset >= 42 AND offset < 100)"]


def test_times_at_which_sparks_reader_fails_are_read_by_the_data_source(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "bucket", partitions=2)
    log.history(0, records(0, 50))
    log.history(0, [(None, b"nanoseconds", (), 1_767_225_600_000_000_000)])
    log.history(1, records(0, 50))
    log.segment({0: records(0, 5)})
    planned = plan(log.url)
    assert (len(planned.whole), planned.cut, planned.tail) == (1, (), {"orders": {0: (0, 56)}})
    assert sorted(rows_of(log, planned)) == expected(log, {}, {})
    before = plan(log.url, assign='{"orders":[0]}', endingOffsets='{"orders":{"0":50}}')
    assert (len(before.whole), before.tail) == (1, {})


@pytest.mark.slow
def test_many_partitions_with_cut_files_are_selected_by_several_conditions(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "bucket", partitions=RANGES_AT_ONCE + 2)
    for partition in log.written:
        log.history(partition, records(0, 3))
    starts = ",".join(f'"{partition}":1' for partition in log.written)
    planned = plan(log.url, startingOffsets=f'{{"orders":{{{starts}}}}}')
    assert [len(cut.ranges) for cut in planned.cut] == [RANGES_AT_ONCE, 2]
    assert sorted(rows_of(log, planned)) == expected(log, dict.fromkeys(log.written, 1), {})
