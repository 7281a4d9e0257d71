"""Compaction by Spark's driver and executors leaves what a compactor would leave, even beside others; without Spark."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.conversion.unit_files import MadeUnit
from compaction.manifest_cache import ManifestCache
from compaction.settings import CompactionSettings
from metadata.errors import Corrupt, Unavailable, UnknownTopic
from metadata.model import Partition, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket.layout import deleted_topic_key, parse_topic_key, trimmed_key
from segments.history.manifest import HistoryFile, Manifest, no_manifest
from segments.history.manifest_store import newest_manifest
from segments.history.parquet_file import verify_history
from spark.backfill.backfill import BackfillReport, MakingTask, RunTasks, backfill, make_files
from spark.backfill.plan import DIVIDED_BYTES_MIN, group_partitions
from spark.runtime.bucket_thread import BucketThread
from spark.source.batch_query import plan_batch
from spark.source.options import Subscribed, Topics, parse_source_options
from spark.source.scan_plan import FilePart
from spark.source.task_reader import read_task
from tests.compaction.integration.test_through_a_log import AT_ONCE
from tests.kit.segments.batches import ORDERS
from tests.kit.spark.made_log import MadeLog
from tests.kit.spark.topics_on_disk import Bucket, records

SMALL = CompactionSettings(row_group_bytes=1_500, history_file_bytes_max=4_000, compaction_threads=1)
ALL = Subscribed(("orders",))


def in_this_process(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
    """As Spark sends tasks and answers: pickled."""
    return [pickle.loads(pickle.dumps(make_files(pickle.loads(pickle.dumps(task))))) for task in tasks]


def run(
    url: str, run_tasks: RunTasks = in_this_process, *, topics: Topics = ALL, settings: CompactionSettings = SMALL
) -> BackfillReport:
    return backfill(url, topics, run_tasks, units=2, settings=settings)


@pytest.fixture
def log(tmp_path: Path) -> MadeLog:
    """Four partitions in three sessions; 0 has history already, 3 nothing at all."""
    made = MadeLog(tmp_path / "bucket", partitions=4)
    made.history(0, records(0, 50))
    for first in range(0, 400, 40):
        made.segment({0: records(first, 40), 1: records(first, 10)}, session=1)
    made.segment({1: records(100, 20), 2: records(0, 20)}, session=2)
    made.segment({2: records(20, 20)}, session=5)
    return made


def offsets_read(log: MadeLog) -> tuple[dict[int, list[int]], bool]:
    """By partition, and whether all of it came from Parquet."""
    found: dict[int, list[int]] = {partition: [] for partition in log.written}
    only_parquet = True
    with BucketThread(log.url) as opened:
        for task in plan_batch(opened, parse_source_options({"bucket": log.url, "subscribe": "orders"})):
            only_parquet &= all(isinstance(part, FilePart) for part in task.parts)
            for batch in read_task(opened, task, ("offset",)):
                found[task.partition.partition] += batch.column("offset").to_pylist()
    return found, only_parquet


def offsets_written(log: MadeLog) -> dict[int, list[int]]:
    return {partition: [one.offset for one in written] for partition, written in log.written.items()}


def manifest(log: MadeLog, partition: int) -> Manifest:
    where = log.partition(partition)

    async def read() -> Manifest:
        from segments.object_store.directory import DirectoryObjectStore

        store = await DirectoryObjectStore.open(log.root)
        try:
            return await newest_manifest(store, log.topic, where) or no_manifest(where)
        finally:
            await store.close()

    return asyncio.run(read())


def unnamed(log: MadeLog) -> list[str]:
    named = {file.name for partition in log.written for file in manifest(log, partition).files}
    return [path.name for path in log.root.glob("topics/**/*.parquet") if path.name not in named]


@pytest.mark.slow
def test_a_backfill_reports_what_it_found_and_its_progress(log: MadeLog) -> None:
    reported: list[str] = []

    def noted(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        reported.append("tasks run")
        return in_this_process(tasks)

    backfill(log.url, ALL, noted, units=2, settings=SMALL, report=reported.append)
    assert [line.partition(" MB")[2] for line in reported[:1]] == [" of batches wait in segments"]
    assert reported[1].startswith("making Parquet of 0.0 MB, in 2 tasks")
    assert reported[2] == "tasks run"
    assert reported[-1].startswith("partitions that have gone on: ")
    assert reported[-1].endswith("; 0.0 MB wait still")
    reported.clear()
    backfill(log.url, ALL, noted, units=2, settings=SMALL, report=reported.append)
    assert reported == ["0.0 MB of batches wait in segments"]


@pytest.mark.slow
def test_all_that_waits_is_history_then_and_a_second_run_finds_nothing(log: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction.conversion.partition_file.DECODED_AT_ONCE", 1)  # files of a few KB end where they are to end
    report = run(log.url)
    assert offsets_read(log) == (offsets_written(log), True)
    assert (report.partitions, report.records, report.lost, report.bytes_waiting, report.damaged) == (3, 560, 0, 0, {})
    assert report.manifests == 3, "one for each partition, whatever the number of its files"
    assert report.files > 3
    assert len(manifest(log, 0).files) > 2
    assert unnamed(log) == []
    again = run(log.url)
    assert (again.manifests, again.files) == (0, 0)


@pytest.mark.slow
def test_the_manifest_is_the_one_that_a_compactor_makes_but_for_names(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "bucket")
    bucket.produce(*(records(first, 60) for first in range(0, 240, 60)))
    bucket.produce(records(240, 30))
    twin = tmp_path / "twin"
    shutil.copytree(bucket.root, twin)
    bucket.compact()
    run(f"file://{twin}", settings=AT_ONCE)

    def stored(root: Path) -> tuple[object, ...]:
        made = _newest(root)
        for file in made.files:
            verify_history(next(root.glob(f"topics/orders/*/*/{file.name}")).read_bytes(), file)
        return made.compacted_to, made.log_start_offset, made.epochs, made.producers, [_content(file) for file in made.files]

    assert stored(twin) == stored(bucket.root)


def _newest(root: Path) -> Manifest:
    from segments.object_store.directory import DirectoryObjectStore

    async def read() -> Manifest:
        store = await DirectoryObjectStore.open(root)
        try:
            found = await newest_manifest(store, "orders", ORDERS)
            assert found is not None
            return found
        finally:
            await store.close()

    return asyncio.run(read())


def _content(file: HistoryFile) -> tuple[object, ...]:
    return file.base_offset, file.last_offset, file.record_count, file.record_bytes, file.checksum, file.row_groups


@pytest.mark.slow
def test_a_backfill_that_loses_to_a_compactor_deletes_its_files_and_goes_on(log: MadeLog) -> None:
    def beside_another(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        made = in_this_process(tasks)
        if not manifest(log, 1).version:  # the first wave
            assert run(log.url, topics=Subscribed(("orders",))).manifests == 3
            log.segment({1: records(120, 5)}, session=5)
        return made

    report = run(log.url, beside_another)
    assert report.lost == 3
    assert unnamed(log) == []
    found, _ = offsets_read(log)
    assert found == offsets_written(log)
    assert run(log.url).records == 5


@pytest.mark.slow
def test_a_backfill_overtaken_right_after_a_commit_goes_on_from_the_newest_manifest(
    log: MadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the manifest that it has committed is not in mind any more."""
    newest, overtaken = ManifestCache.newest, list[TopicPartition]()

    async def forgotten(self: ManifestCache, topic: str, partition: TopicPartition) -> Manifest:
        if not overtaken:
            overtaken.append(partition)
            await asyncio.to_thread(run, log.url)
            self.forget(partition)
        return await newest(self, topic, partition)

    monkeypatch.setattr(ManifestCache, "newest", forgotten)
    report = backfill(log.url, ALL, in_this_process, units=2, unit_bytes_max=6_000, settings=SMALL)
    assert overtaken
    assert (report.damaged, report.bytes_waiting) == ({}, 0)
    assert offsets_read(log) == (offsets_written(log), True)


@pytest.mark.slow
def test_a_task_that_fails_leaves_all_as_it_was_and_the_next_run_does_it(log: MadeLog) -> None:
    def failing(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        make_files(tasks[0])
        raise Unavailable("an executor was lost")

    with pytest.raises(Unavailable, match="an executor was lost"):
        run(log.url, failing)
    assert unnamed(log)
    assert offsets_read(log) == (offsets_written(log), False)
    run(log.url)
    assert offsets_read(log) == (offsets_written(log), True)


@pytest.mark.slow
def test_a_task_that_was_done_twice_is_committed_once(log: MadeLog) -> None:
    """Spark does a task again when its executor is lost, and may do two at the same time."""

    def twice(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        in_this_process(tasks)
        return in_this_process(tasks)

    report = run(log.url, twice)
    assert (report.manifests, report.lost) == (3, 0)
    assert offsets_read(log) == (offsets_written(log), True)
    versions = [parse_topic_key(str(path.relative_to(log.root))) for path in log.root.glob("topics/orders/*/*/*.parquet")]
    assert all(one is not None and one.history is not None for one in versions)


@pytest.mark.slow
def test_damage_costs_its_partition_and_no_other(log: MadeLog) -> None:
    path = log.root / f"wal/{2:016x}/{0:016x}"
    body = bytearray(path.read_bytes())
    body[200] ^= 1  # of the first batch, which is partition 1's
    path.write_bytes(bytes(body))
    report = run(log.url)
    assert list(report.damaged) == [log.partition(1)]
    assert "CRC-32C" in report.damaged[log.partition(1)]
    assert report.bytes_waiting > 0
    assert [manifest(log, partition).compacted_to for partition in range(4)] == [450, 100, 40, 0]


@pytest.mark.slow
def test_a_file_that_does_not_hold_what_it_was_made_of_costs_its_partition_and_no_other(
    log: MadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(body: bytes, file: HistoryFile, *, key: str = "") -> None:
        if file.record_count == 120:  # of partition 1
            raise Corrupt(f"{key} has another checksum")
        verify_history(body, file, key=key)

    monkeypatch.setattr("compaction.conversion.partition_file.verify_history", verify)
    report = run(log.url, settings=replace(SMALL, history_file_bytes_max=1 << 20))
    assert list(report.damaged) == [log.partition(1)]
    assert "has another checksum" in report.damaged[log.partition(1)]
    assert [manifest(log, partition).compacted_to for partition in range(4)] == [450, 0, 40, 0]


@pytest.mark.slow
def test_a_missing_segment_is_damage_only_if_it_was_not_compacted(log: MadeLog) -> None:
    def beside_another(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        if not manifest(log, 1).version:
            run(log.url)
            (log.root / trimmed_key(SessionId(1), SegmentSeq(10))).write_bytes(b"")
            for seq in range(10):
                (log.root / f"wal/{1:016x}/{seq:016x}").unlink()
        return in_this_process(tasks)

    report = run(log.url, beside_another)
    assert (report.damaged, report.bytes_waiting, report.records) == ({}, 0, 0)
    assert offsets_read(log) == (offsets_written(log), True)


@pytest.mark.slow
def test_a_segment_that_was_deleted_is_named(log: MadeLog) -> None:
    path = log.root / f"wal/{1:016x}/{7:016x}"

    def deletes(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        path.unlink(missing_ok=True)
        return in_this_process(tasks)

    report = run(log.url, deletes)
    assert set(report.damaged) == {log.partition(0), log.partition(1)}
    assert all("is gone" in why for why in report.damaged.values())
    assert manifest(log, 0).compacted_to == 50 + 7 * 40


@pytest.mark.slow
def test_a_topic_that_is_deleted_meanwhile_gets_no_manifest(log: MadeLog) -> None:
    def deletes(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        made = in_this_process(tasks)
        (log.root / deleted_topic_key("orders", log.topic_id, 9)).write_bytes(b"{}")  # type: ignore[arg-type]  # the test's own
        return made

    report = run(log.url, deletes)
    assert report.manifests == 0
    assert not list(log.root.glob("topics/orders/*/partition=1/*"))


@pytest.mark.slow
def test_a_topic_that_is_not_there_is_refused_before_a_task_starts(log: MadeLog) -> None:
    def never(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        raise AssertionError

    with pytest.raises(UnknownTopic, match="there is no topic nowhere"):
        run(log.url, never, topics=Subscribed(("nowhere",)))


@pytest.mark.slow
def test_a_unit_that_is_too_large_is_done_in_several_waves(log: MadeLog) -> None:
    waves: list[int] = []

    def counted(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        waves.append(len(tasks))
        return in_this_process(tasks)

    backfill(log.url, ALL, counted, units=2, unit_bytes_max=6_000, settings=SMALL)
    assert len(waves) > 1
    assert offsets_read(log) == (offsets_written(log), True)


@pytest.mark.slow
def test_runs_that_wait_may_be_more_than_there_is_room_to_keep_in_mind(log: MadeLog) -> None:
    other = MadeLog(log.root, topic="others", id_digit="c")
    for _ in range(6):  # which is not asked for, and must not take the room
        other.segment({0: records(0, 5), 1: records(0, 5)}, session=9)
    report = run(log.url, settings=replace(SMALL, pending_runs_max=3))
    assert (report.records, report.damaged) == (560, {})
    assert offsets_read(log) == (offsets_written(log), True)
    assert not list(log.root.glob("topics/others/*/partition=*"))


def partition_at(number: int) -> TopicPartition:
    return TopicPartition(TopicId("a" * 32), Partition(number))


def test_partitions_go_together_by_session_and_are_divided_only_where_cores_would_be_idle() -> None:
    many = {partition_at(n): (SessionId(1 + n % 2), DIVIDED_BYTES_MIN) for n in range(8)}
    assert sorted(sorted(one.partition for one in group) for group in group_partitions(many, 2)) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [sorted(one.partition for one in group) for group in group_partitions(many, 4)] == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert len(group_partitions(many, 100)) == 8, "never below what is worth a further read"
    small = {partition_at(n): (SessionId(1), 1000) for n in range(8)}
    assert len(group_partitions(small, 100)) == 1
    assert group_partitions({}, 4) == []
