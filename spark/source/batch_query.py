"""Plans a batch query on the driver: what is asked and what lies on the bucket, to the tasks that executors read."""

from __future__ import annotations

import logging

from metadata.errors import UnknownTopic
from metadata.model import TopicPartition
from segments.object_store.interface import ObjectStore
from spark.runtime.bucket_thread import BucketThread
from spark.source.log_snapshot import PartitionSnapshot, take_snapshot
from spark.source.offset_ranges import offset_ranges, times_asked
from spark.source.options import SourceOptions
from spark.source.scan_plan import ALL_ROWS, TASK_BYTES, OffsetRange, RowFilter, Task, plan_tasks
from spark.source.time_lookup import offsets_at_times
from spark.source.topic_catalog import find_partitions

log = logging.getLogger(__name__)


def plan_batch(bucket: BucketThread, options: SourceOptions, rows: RowFilter = ALL_ROWS) -> list[Task]:
    """Raises InvalidArgument, OutOfRange, UnknownTopic, UnknownPartition, Corrupt, and what the store raises."""
    snapshots, ranges = bucket.run(lambda store: resolve(store, options))
    return tasks_of(options, snapshots, ranges, rows)


async def resolve(
    store: ObjectStore, options: SourceOptions
) -> tuple[dict[TopicPartition, PartitionSnapshot], dict[TopicPartition, OffsetRange]]:
    """Takes a snapshot of the partitions and resolves the offsets that the options ask for."""
    snapshots = await take_snapshot(store, await find_asked(store, options))
    first_at = await offsets_at_times(store, snapshots, times_asked(options, snapshots))
    return snapshots, offset_ranges(options, snapshots, first_at, log.warning)


async def find_asked(store: ObjectStore, options: SourceOptions, *, absent_ok: bool = False) -> dict[TopicPartition, str]:
    """Finds the partitions like `find_partitions`. Also raises UnknownTopic if a topic's id is not the one asked for."""
    partitions = await find_partitions(store, options.topics, absent_ok=absent_ok)
    for partition, topic in partitions.items():
        if options.topic_ids.get(topic, partition.topic_id) != partition.topic_id:
            raise UnknownTopic(f"topic {topic} was deleted and recreated since the query was made", hint="Make the query again.")
    return partitions


def tasks_of(
    options: SourceOptions,
    snapshots: dict[TopicPartition, PartitionSnapshot],
    ranges: dict[TopicPartition, OffsetRange],
    rows: RowFilter,
) -> list[Task]:
    """Builds the tasks in the order of partitions and offsets. Pure."""
    wanted = {
        partition: snapshot
        for partition, snapshot in snapshots.items()
        if rows.partitions is None or partition.partition in rows.partitions
    }

    def cut(task_bytes: int) -> list[Task]:
        return [
            task
            for where, snapshot in wanted.items()
            for task in plan_tasks(
                snapshot, ranges[where], task_bytes=task_bytes, task_records=options.max_records_per_partition, rows=rows
            )
        ]

    tasks = cut(TASK_BYTES)
    task_bytes = min(TASK_BYTES, sum(task.size_bytes for task in tasks) // max(1, options.min_partitions))
    while len(tasks) < options.min_partitions and task_bytes:  # a row group or a run is not divided, so it may take smaller ones
        tasks = cut(task_bytes)
        task_bytes //= 2
    return tasks
