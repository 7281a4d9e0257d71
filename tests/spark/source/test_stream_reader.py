"""A stream's reader, called as Spark calls it, without a JVM: each row once, whatever brokers and compactors do meanwhile."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from metadata.errors import Unavailable
from metadata.model import SegmentSeq, SessionId, TopicId
from segments.bucket.layout import segment_key
from segments.object_store.directory import DirectoryObjectStore
from segments.object_store.interface import ListPage
from spark.source import stream_log
from spark.source.reader import TidelogSource
from spark.source.scan_plan import FilePart, RunGroup
from spark.source.stream_reader import TidelogStreamReader
from tests.kit.spark.topics_on_disk import START_MS, Bucket, records

SCHEMA = StructType([StructField("partition", IntegerType()), StructField("offset", LongType())])
Offsets = dict[str, Any]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between looks; topics and manifests at each."""
    monkeypatch.setattr(stream_log, "POLL_PAUSE_S", 0.0)
    monkeypatch.setattr(stream_log, "TOPICS_S", 0.0)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """Forty records in Parquet, sixty in segments."""
    made = Bucket(tmp_path / "bucket")
    made.produce(records(0, 40))
    made.compact()
    made.produce(*(records(first, 20) for first in range(40, 100, 20)))
    return made


class Query:
    """A query as Spark runs it: a reader on the driver, its checkpoint, and what the sink got."""

    def __init__(self, bucket: Bucket, *, available_now: bool = False, **options: str) -> None:
        self.options = {"bucket": bucket.url, "subscribe": "orders", **options}
        if "subscribePattern" in options or "assign" in options:
            del self.options["subscribe"]
        self.available_now = available_now
        self.checkpoint: list[str] = []
        self.planned: list[str] = []
        self.rows: list[tuple[int, int]] = []
        self.reader = self.opened()

    def opened(self) -> TidelogStreamReader:
        reader = TidelogSource(self.options).streamReader(SCHEMA)
        if self.available_now:
            reader.prepareForTriggerAvailableNow()
        return reader

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self.opened()

    @property
    def start(self) -> Offsets:
        if not self.checkpoint:
            self.checkpoint.append(json.dumps(self.reader.initialOffset()))
        return json.loads(self.checkpoint[-1])  # type: ignore[no-any-return]  # the test's own

    def plan(self, limit: ReadLimit | None = None) -> Offsets | None:
        """The end of the next batch, None where there is none."""
        end = self.reader.latestOffset(self.start, limit or self.reader.getDefaultReadLimit())
        return None if json.dumps(end) == json.dumps(self.start) else end

    def run(self, end: Offsets) -> list[tuple[int, int]]:
        """The rows of the batch that ends there, as executors read them."""
        reading = pickle.loads(pickle.dumps(TidelogSource(self.options).streamReader(SCHEMA)))
        found = []
        for partition in self.reader.partitions(self.start, end):
            for batch in reading.read(pickle.loads(pickle.dumps(partition))):
                found += [(row["partition"], row["offset"]) for row in batch.to_pylist()]
        return found

    def batch(self, limit: ReadLimit | None = None) -> list[tuple[int, int]] | None:
        end = self.plan(limit)
        if end is None:
            return None
        found = self.run(end)
        self.rows += found
        self.checkpoint.append(json.dumps(end))
        self.reader.commit(end)
        return found

    def drain(self) -> list[tuple[int, int]]:
        while self.batch() is not None:
            pass
        return self.rows


@pytest.fixture
def queries() -> Iterator[list[Query]]:
    opened: list[Query] = []
    yield opened
    for query in opened:
        query.reader.stop()


def of(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


def test_a_new_query_begins_at_the_latest_unless_it_says_otherwise(bucket: Bucket) -> None:
    query = Query(bucket)
    assert query.plan() is None
    bucket.produce(records(100, 5))
    assert query.drain() == of(0, 100, 105)
    assert query.reader.reportLatestOffset() == query.start
    query.reader.stop()
    assert Query(bucket, startingOffsets="earliest").drain() == of(0, 0, 105)
    later = Query(bucket, startingTimestamp=str(START_MS + 97_500))
    assert later.drain() == of(0, 98, 105)


def test_batches_are_of_the_size_that_is_asked_and_follow_each_other(bucket: Bucket) -> None:
    query = Query(bucket, startingOffsets="earliest", maxOffsetsPerTrigger="33")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(33)
    assert [query.batch() for _ in range(5)] == [of(0, 0, 33), of(0, 33, 66), of(0, 66, 99), of(0, 99, 100), None]
    bucket.produce(records(100, 50))
    assert query.batch(ReadAllAvailable()) == of(0, 100, 150)


@pytest.mark.slow
def test_a_batch_that_is_planned_again_after_a_restart_is_the_same_from_parquet(bucket: Bucket) -> None:
    query = Query(bucket, startingOffsets='{"orders":{"0":50}}', maxOffsetsPerTrigger="30")
    end = query.plan()
    assert end is not None
    kinds = {type(part) for task in query.reader.partitions(query.start, end) for part in task.value.parts}
    assert kinds == {RunGroup}
    before = query.run(end)
    bucket.produce(records(100, 10))
    bucket.compact()
    query.restart()
    kinds = {type(part) for task in query.reader.partitions(query.start, end) for part in task.value.parts}
    assert kinds == {FilePart}
    assert query.run(end) == before == of(0, 50, 80)
    assert query.drain() == of(0, 50, 110)


@pytest.mark.slow
@pytest.mark.parametrize("topics_s", [0.0, 3600.0], ids=["manifests are read at each look", "manifests are old"])
def test_compaction_behind_a_running_query_changes_nothing(
    bucket: Bucket, topics_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_log, "TOPICS_S", topics_s)
    query = Query(bucket, startingOffsets="earliest", maxOffsetsPerTrigger="25")
    for turn in range(8):
        query.batch()
        bucket.produce(records(100 + 10 * turn, 10))
        if turn % 3 == 1:
            bucket.compact()
    assert query.drain() == of(0, 0, 180)


def test_records_that_were_trimmed_before_they_were_seen_are_read_from_parquet(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_log, "TOPICS_S", 3600.0)
    query = Query(bucket)
    assert query.plan() is None
    bucket.produce(records(100, 10), records(110, 10))
    bucket.compact()
    assert query.drain() == of(0, 100, 120)


def test_a_bucket_that_is_away_for_a_moment_does_not_fail_a_query(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(bucket, startingOffsets="earliest")
    listed = DirectoryObjectStore.list
    faults = iter(range(3))

    async def lists(self: DirectoryObjectStore, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        if next(faults, None) is not None:
            raise Unavailable("it is away")
        return await listed(self, prefix, start_after=start_after, limit=limit)

    monkeypatch.setattr(stream_log, "RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(DirectoryObjectStore, "list", lists)
    assert query.drain() == of(0, 0, 100)
    assert next(faults, None) is None
    monkeypatch.setattr(stream_log, "PATIENCE_S", -1.0)
    faults = iter(range(1))
    with pytest.raises(PySparkException, match="it is away"):
        query.plan()


def test_records_that_are_available_at_the_start_are_read_and_none_that_come_later(bucket: Bucket) -> None:
    query = Query(bucket, available_now=True, startingOffsets="earliest", maxOffsetsPerTrigger="60")
    assert query.batch() == of(0, 0, 60)
    bucket.produce(records(100, 10))
    assert query.drain() == of(0, 0, 100)
    query.restart()
    assert query.drain() == of(0, 0, 110)


@pytest.mark.slow
@pytest.mark.parametrize(
    "end", [{"endingOffsets": '{"orders":{"0":70}}'}, {"endingTimestamp": str(START_MS + 70_000)}, {"endingOffsets": "latest"}]
)
def test_a_bounded_stream_has_nothing_more_at_its_end(bucket: Bucket, end: dict[str, Any]) -> None:
    query = Query(bucket, startingOffsets="earliest", maxOffsetsPerTrigger="30", **end)
    query.batch()
    bucket.produce(records(100, 10))
    assert query.drain() == of(0, 0, 100 if end == {"endingOffsets": "latest"} else 70)


def test_partitions_that_come_later_are_read_from_their_first_record(bucket: Bucket) -> None:
    query = Query(bucket)
    assert query.plan() is None
    bucket.mirror("orders", TopicId(f"{1:032x}"), 2, revision=2)
    bucket.produce(records(0, 30), partition=1)
    bucket.produce(records(100, 5))
    end = query.plan()
    assert end is not None
    assert end["topics"]["orders"]["offsets"] == {"0": 105, "1": 0}
    assert sorted(query.drain()) == of(0, 100, 105) + of(1, 0, 30)
    query.restart()
    bucket.produce(records(30, 5), partition=1)
    assert sorted(query.drain()) == of(0, 100, 105) + of(1, 0, 35)


@pytest.mark.slow
def test_a_limit_is_divided_over_partitions_by_what_they_have(bucket: Bucket) -> None:
    bucket.mirror("orders", TopicId(f"{1:032x}"), 2, revision=2)
    bucket.produce(records(0, 300), partition=1)
    query = Query(bucket, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert query.batch() == of(0, 0, 10) + of(1, 0, 30)
    assert sorted(query.drain()) == of(0, 0, 100) + of(1, 0, 300)


def test_topics_that_match_the_pattern_are_picked_up_when_they_are_made(bucket: Bucket) -> None:
    query = Query(bucket, subscribePattern="orders.*", startingOffsets="earliest")
    assert query.drain() == of(0, 0, 100)
    bucket.mirror("orders-eu", TopicId("e" * 32), 1)
    assert query.batch() == []
    assert query.start["topics"]["orders-eu"] == {"id": "e" * 32, "offsets": {"0": 0}}


def test_retention_that_overtakes_a_query_fails_it_and_names_the_lost_offsets(bucket: Bucket) -> None:
    query = Query(bucket, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    query.batch()
    bucket.delete_records(45)
    reported = "offsets 30 to 44 of orders/0 were deleted.*Set failOnDataLoss to false to go on at 45"
    with pytest.raises(PySparkException, match=reported):
        query.plan()
    query.restart()
    with pytest.raises(PySparkException, match=reported):
        query.plan()


@pytest.mark.slow
def test_a_query_that_may_lose_data_goes_on_at_the_log_start(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(bucket, startingOffsets="earliest", maxOffsetsPerTrigger="10", failOnDataLoss="false")
    query.batch()
    bucket.delete_records(45)
    with caplog.at_level(logging.WARNING):
        assert query.batch() == of(0, 45, 55)
    assert [record.message for record in caplog.records] == [
        "offsets 10 to 44 of orders/0 were deleted, by retention or DeleteRecords, before this query came to them"
    ]
    assert query.drain()[10:] == of(0, 45, 100)


def test_a_recreated_topic_fails_a_query_unless_data_loss_is_allowed(bucket: Bucket) -> None:
    query = Query(bucket, startingOffsets="earliest")
    query.drain()
    bucket.mark_deleted("orders", TopicId(f"{1:032x}"))
    with pytest.raises(PySparkException, match=r"topic orders \(id 0{31}1\).* was deleted, or .* 0 from offset 100 on"):
        query.plan()
    bucket.mirror("orders", TopicId("f" * 32), 1, revision=9, created_at_ms=9)
    query.restart()
    with pytest.raises(PySparkException, match=r"was deleted and recreated.*with the new one, from its earliest record"):
        query.plan()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.batch() == []
    assert query.start["topics"] == {"orders": {"id": "f" * 32, "offsets": {"0": 0}}}


def test_a_checkpoint_of_another_bucket_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    query = Query(bucket, startingOffsets="earliest")
    query.drain()
    other = Bucket(tmp_path / "other")
    other.produce(records(0, 10))
    query.options["bucket"] = other.url
    query.restart()
    with pytest.raises(PySparkException, match=r"orders/0 ends at offset 10, and this query has come to 100.*another bucket"):
        query.plan()


@pytest.mark.slow
def test_damage_is_reported_after_all_records_before_it_were_read(bucket: Bucket) -> None:
    gone = bucket.root / segment_key(SessionId(2), SegmentSeq(1))
    body = gone.read_bytes()
    gone.unlink()
    query = Query(bucket, startingOffsets="earliest")
    assert query.batch() == of(0, 0, 60)
    with pytest.raises(PySparkException, match=str(gone.name)):
        query.plan()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.plan() is None
    gone.write_bytes(body)
    assert query.drain() == of(0, 0, 100)


@pytest.mark.slow
def test_damage_during_a_query_is_reported_though_its_partition_has_nothing_new(bucket: Bucket) -> None:
    """The segment may hold records of the partition, so a silent wait for more could lose them."""
    query = Query(bucket, startingOffsets="earliest")
    query.drain()
    bucket.produce(records(100, 5))
    path = bucket.root / segment_key(SessionId(3), SegmentSeq(0))
    body = path.read_bytes()
    path.write_bytes(body[:-20] + bytes([body[-20] ^ 1]) + body[-19:])
    with pytest.raises(PySparkException, match="it may hold records of this partition"):
        query.plan()
    path.write_bytes(body)
    assert query.drain() == of(0, 0, 105)


@pytest.mark.slow
def test_damage_in_what_was_read_before_does_not_bring_rows_again(bucket: Bucket) -> None:
    query = Query(bucket, startingOffsets="earliest")
    query.drain()
    gone = bucket.root / segment_key(SessionId(2), SegmentSeq(1))
    body = gone.read_bytes()
    gone.unlink()
    query.restart()
    with pytest.raises(PySparkException, match="can be read up to offset 60, and this query has come to 100"):
        query.plan()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.plan() is None
    gone.write_bytes(body)
    bucket.produce(records(100, 10))
    assert query.drain() == of(0, 0, 110)


def test_a_topic_of_another_id_than_is_asked_for_is_refused(bucket: Bucket) -> None:
    assert Query(bucket, topicIds=f'{{"orders":"{1:032x}"}}').plan() is None
    with pytest.raises(PySparkException, match="topic orders was deleted and recreated"):
        Query(bucket, topicIds=f'{{"orders":"{2:032x}"}}').plan()


def test_a_missing_topic_is_reported_when_a_query_starts(bucket: Bucket) -> None:
    with pytest.raises(PySparkException, match="there is no topic nowhere"):
        Query(bucket, subscribe="nowhere").plan()


def test_a_missing_topic_is_reported_also_where_only_available_records_are_read(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for what is available before it asks where a query begins."""
    monkeypatch.setattr(stream_log, "TOPICS_S", 3600.0)
    with pytest.raises(PySparkException, match="there is no topic nowhere"):
        Query(bucket, available_now=True, subscribe="nowhere").plan()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger: '5' is not built.*processingTime"),
        ({"topicIds": "[]"}, "option topicIds"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0' is not a number from 1 on"),
        ({"maxOffsetPerTrigger": "5"}, "Did you mean maxOffsetsPerTrigger"),
    ],
)
def test_options_of_a_stream_are_checked_before_it_starts(bucket: Bucket, options: dict[str, Any], reported: str) -> None:
    with pytest.raises(PySparkException, match=reported):
        Query(bucket, **options)
