"""What a batch query reads of a bucket is what was written, wherever it lies by now; without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from metadata.errors import Corrupt, InvalidArgument, OutOfRange, TidelogError, UnknownPartition, UnknownTopic
from metadata.model import Offset, TopicId
from segments.history.manifest import KeyPass
from segments.history.manifest_edits import with_key_passes
from segments.history.manifest_store import commit_manifest, newest_manifest
from segments.object_store.directory import DirectoryObjectStore
from segments.records import columns as records_columns
from segments.records.compression import Codec
from spark.runtime.bucket_thread import BucketThread
from spark.source import task_reader
from spark.source.batch_query import plan_batch
from spark.source.options import parse_source_options
from spark.source.scan_plan import ALL_ROWS, FilePart, RowFilter, RunGroup, Task
from spark.source.schema import ARROW_TYPES, arrow_schema
from spark.source.task_reader import read_task
from tests.kit.segments.batches import ORDERS
from tests.kit.spark.made_log import MadeLog
from tests.kit.spark.topics_on_disk import START_MS, Bucket, Written, records


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """A hundred records in Parquet, a hundred in segments, of all codecs."""
    made = Bucket(tmp_path / "bucket")
    made.produce(*(records(first, 20) for first in range(0, 60, 20)), codec=Codec.ZSTD)
    made.produce(*(records(first, 20) for first in range(60, 100, 20)))
    made.compact()
    for first, codec in zip(range(100, 200, 25), (Codec.LZ4, Codec.SNAPPY, Codec.GZIP, Codec.NONE), strict=True):
        made.produce(records(first, 25), codec=codec)
    return made


def tasks(bucket: Bucket, rows: RowFilter = ALL_ROWS, /, **options: str) -> list[Task]:
    given = {"bucket": bucket.url} | (
        {} if options.keys() & {"subscribePattern", "assign", "subscribe"} else {"subscribe": "orders"}
    )
    with BucketThread(bucket.url) as opened:
        return plan_batch(opened, parse_source_options(given | options), rows)


def read(bucket: Bucket, planned: Iterable[Task], columns: tuple[str, ...] = tuple(ARROW_TYPES)) -> list[Written]:
    found = []
    with BucketThread(bucket.url) as opened:
        for task in planned:
            for batch in read_task(opened, task, columns):
                assert batch.schema == arrow_schema(columns)
                batch.validate(full=True)
                for row in batch.to_pylist():
                    assert (row["topic"], row["partition"], row["timestampType"]) == ("orders", 0, 0)
                    headers = tuple((header["key"], header["value"]) for header in row["headers"])
                    time_ms = round(row["timestamp"].timestamp() * 1000)
                    found.append(Written(row["offset"], time_ms, row["key"], row["value"], headers))
    return found


@pytest.mark.slow
def test_all_that_was_written_is_read_in_order_from_parquet_and_segments(bucket: Bucket) -> None:
    planned = tasks(bucket)
    kinds = {type(part) for task in planned for part in task.parts}
    assert kinds == {FilePart, RunGroup}
    assert read(bucket, planned) == bucket.written


@pytest.mark.slow
def test_batches_that_shrank_a_thousandfold_are_decoded_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MadeLog(tmp_path / "bucket", partitions=1)
    for _ in range(12):
        log.segment({0: [(b"k", bytes(300_000), (), START_MS)]}, codec=Codec.ZSTD)
    monkeypatch.setattr(task_reader, "OPENED_BYTES", 1 << 20)
    monkeypatch.setattr(records_columns, "_INT32_MAX", 2 << 20)  # all of them together are more than a column holds
    found = []
    with BucketThread(log.url) as opened:
        for task in plan_batch(opened, parse_source_options({"bucket": log.url, "subscribe": "orders"})):
            found += [batch.num_rows for batch in read_task(opened, task, ("offset", "value"))]
        with pytest.raises(OutOfRange, match="no record at or after"):
            plan_batch(opened, parse_source_options({"bucket": log.url, "subscribe": "orders", "startingTimestamp": str(2**62)}))
    assert found == [4, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize(("start", "end"), [(0, 200), (99, 101), (13, 187), (100, 125), (150, 150), (199, 200)])
def test_a_range_of_offsets_is_read_to_the_record(bucket: Bucket, start: int, end: int) -> None:
    planned = tasks(bucket, startingOffsets=f'{{"orders":{{"0":{start}}}}}', endingOffsets=f'{{"orders":{{"0":{end}}}}}')
    assert read(bucket, planned) == bucket.written[start:end]


@pytest.mark.slow
@pytest.mark.parametrize("start_s", [0, 37, 99, 100, 199])
def test_a_range_of_times_begins_with_the_first_record_at_or_after_it(bucket: Bucket, start_s: int) -> None:
    start_ms, end_ms = START_MS + 1000 * start_s - 1, START_MS + 150_000
    planned = tasks(bucket, startingTimestamp=str(start_ms), endingTimestamp=str(end_ms))
    assert read(bucket, planned) == bucket.written[start_s : max(start_s, 150)]


@pytest.mark.slow
def test_a_start_behind_all_records_is_refused_or_the_end_as_the_strategy_says(bucket: Bucket) -> None:
    later = str(START_MS + 10**9)
    with pytest.raises(OutOfRange, match="no record at or after the starting timestamp"):
        tasks(bucket, startingTimestamp=later)
    assert tasks(bucket, startingTimestamp=later, startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [2, 5, 13])
def test_as_many_tasks_as_are_wanted_read_the_same(bucket: Bucket, wanted: int) -> None:
    planned = tasks(bucket, minPartitions=str(wanted))
    assert len(planned) >= min(wanted, 5)
    assert read(bucket, planned) == bucket.written


@pytest.mark.slow
def test_a_task_has_no_more_records_than_it_may(bucket: Bucket) -> None:
    planned = tasks(bucket, maxRecordsPerPartition="7")
    assert all(task.offsets.end - task.offsets.start <= 7 for task in planned)
    assert read(bucket, planned) == bucket.written


def test_rows_that_filters_rule_out_are_not_read(bucket: Bucket) -> None:
    assert tasks(bucket, RowFilter(partitions=frozenset([1]))) == []
    tail = tasks(bucket, RowFilter(offset_min=180))
    assert [type(part) for task in tail for part in task.parts] == [RunGroup]
    assert read(bucket, tail)[-20:] == bucket.written[180:]
    late = tasks(bucket, RowFilter(timestamp_min_ms=START_MS + 150_000))
    assert read(bucket, late)[-50:] == bucket.written[150:]


@pytest.mark.slow
def test_a_plan_reads_the_same_after_the_rest_was_compacted(bucket: Bucket) -> None:
    planned = tasks(bucket, endingOffsets='{"orders":{"0":100}}')
    bucket.produce(records(200, 10))
    bucket.compact()
    assert read(bucket, planned) == bucket.written[:100]
    assert read(bucket, tasks(bucket)) == bucket.written


@pytest.mark.slow
def test_records_that_were_compacted_and_collected_since_the_plan_are_located_again(bucket: Bucket) -> None:
    planned = tasks(bucket, maxRecordsPerPartition="70")
    bucket.compact()  # without any grace
    assert not list((bucket.root / "wal" / f"{3:016x}").glob("0*0"))
    assert read(bucket, planned) == bucket.written


@pytest.mark.slow
def test_a_task_goes_on_where_it_was_when_the_rest_is_collected(bucket: Bucket) -> None:
    (planned,) = tasks(bucket)
    found: list[int] = []
    with BucketThread(bucket.url) as opened:
        for batch in read_task(opened, planned, ("value", "offset"), fail_on_data_loss=True):
            if not found:
                bucket.compact()
            found += batch.column("offset").to_pylist()
    assert found == [written.offset for written in bucket.written]


@pytest.mark.slow
def test_records_that_were_deleted_since_the_plan_are_reported_or_skipped(bucket: Bucket) -> None:
    planned = tasks(bucket)
    bucket.compact()
    bucket.delete_records(130)
    for segment in (bucket.root / "wal").glob("*/0*"):
        segment.unlink()
    for file in bucket.root.glob("topics/orders/*/partition=0/*"):
        if int(file.name.split("-")[1]) < 130:
            file.unlink()
    with pytest.raises(OutOfRange, match="deleted after this query was planned, and of offsets 0 to 199 of orders/0 not all can"):
        read(bucket, planned)
    with BucketThread(bucket.url) as opened:
        left = [
            offset
            for task in planned
            for batch in read_task(opened, task, ("offset",), fail_on_data_loss=False)
            for offset in batch.column("offset").to_pylist()
        ]
    assert left == list(range(130, 200))


@pytest.mark.slow
def test_a_plan_is_not_renewed_over_keys_that_were_compacted(bucket: Bucket) -> None:
    """Key compaction may have removed records that this query has to read."""
    planned = tasks(bucket)
    bucket.compact()
    asyncio.run(_note_a_key_pass(bucket, 150))
    with pytest.raises(OutOfRange, match="key compaction of orders/0 may have removed"):
        read(bucket, planned)


def test_a_plan_is_not_renewed_over_files_that_a_running_key_pass_has_replaced(tmp_path: Path) -> None:
    """It records its completion at its end; what it has rewritten until then has fewer records already."""
    log = MadeLog(tmp_path / "log", partitions=1)
    log.history(0, records(0, 50))
    with BucketThread(log.url) as opened:
        planned = plan_batch(opened, parse_source_options({"bucket": log.url, "subscribe": "orders"}))
        log.replace_history(0, records(0, 50), without=(20, 21))
        with pytest.raises(OutOfRange, match="key compaction of orders/0 may have removed"):
            list(read_task(opened, planned[0], ("offset",)))


async def _note_a_key_pass(bucket: Bucket, end_offset: int) -> None:
    store = await DirectoryObjectStore.open(bucket.root)
    held = await newest_manifest(store, "orders", ORDERS)
    assert held is not None
    passed = with_key_passes(held, passes=(KeyPass(Offset(end_offset), 0, 0),), writer="0" * 32, now_ms=0)
    assert await commit_manifest(store, "orders", passed)
    await store.close()


def test_damage_fails_the_query_or_is_left_out_as_asked(bucket: Bucket) -> None:
    planned = tasks(bucket)
    (file,) = {part.key for task in planned for part in task.parts if isinstance(part, FilePart)}
    body = bytearray((bucket.root / file).read_bytes())
    body[50] ^= 1
    (bucket.root / file).write_bytes(bytes(body))
    with pytest.raises(Corrupt, match="CRC-32C"):
        read(bucket, planned)
    with BucketThread(bucket.url) as opened:
        left = [
            offset
            for task in planned
            for batch in read_task(opened, task, ("offset",), fail_on_data_loss=False)
            for offset in batch.column("offset").to_pylist()
        ]
    assert left == sorted(left)
    assert set(range(100, 200)) <= set(left) < set(range(200))


@pytest.mark.slow
def test_a_segment_that_is_gone_fails_the_query_and_names_it(bucket: Bucket) -> None:
    (bucket.root / f"wal/{4:016x}/{0:016x}").unlink()
    with pytest.raises(TidelogError, match="offset"):
        tasks(bucket)
    planned = tasks(bucket, failOnDataLoss="false")
    assert read(bucket, planned) == bucket.written[:125]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error", "reported"),
    [
        ({"subscribe": "nowhere"}, UnknownTopic, "there is no topic nowhere"),
        ({"subscribePattern": "no.*"}, UnknownTopic, "matches 'no.*'"),
        ({"assign": '{"orders":[0,1]}'}, UnknownPartition, "partitions 0 to 0"),
        ({"startingOffsets": '{"orders":{"0":201}}'}, OutOfRange, "it ends at 200"),
        ({"endingOffsets": '{"orders":{"0":201}}'}, OutOfRange, "it ends at 200"),
        ({"startingOffsets": '{"orders":{"1":0}}'}, InvalidArgument, "names orders/1"),
        ({"startingOffsets": '{"orders":{}}'}, InvalidArgument, "does not name orders/0"),
    ],
)
def test_a_source_that_is_not_there_is_refused_when_the_query_is_planned(
    bucket: Bucket, options: dict[str, str], error: type[TidelogError], reported: str
) -> None:
    with pytest.raises(error, match=reported):
        tasks(bucket, **options)


@pytest.mark.slow
def test_of_the_lives_of_a_topic_the_one_that_is_not_over_is_read(bucket: Bucket) -> None:
    bucket.mirror("events", TopicId("1" * 32), 3)
    bucket.mark_deleted("events", TopicId("1" * 32))
    with pytest.raises(UnknownTopic):
        tasks(bucket, subscribe="events")
    bucket.mirror("events", TopicId("2" * 32), 2, revision=3, created_at_ms=5)
    bucket.mirror("events", TopicId("2" * 32), 4, revision=7, created_at_ms=5)
    assert tasks(bucket, assign='{"events":[3]}') == []
    assert read(bucket, tasks(bucket, subscribePattern="orders|events")) == bucket.written


@pytest.mark.slow
def test_retention_is_reported_as_data_loss_or_skipped(bucket: Bucket) -> None:
    bucket.delete_records(42)
    with pytest.raises(OutOfRange, match="offsets 0 to 41 of orders/0 were deleted"):
        tasks(bucket, startingOffsets='{"orders":{"0":0}}')
    assert read(bucket, tasks(bucket)) == bucket.written[42:]
    assert read(bucket, tasks(bucket, startingOffsets='{"orders":{"0":0}}', failOnDataLoss="false")) == bucket.written[42:]
