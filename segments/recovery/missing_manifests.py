"""Finds partitions whose newest manifests were deleted, by the Parquet files that those have left.

    topics/orders/1f…/_log/00000/…3         the newest manifest that is there: compacted up to 500
                      partition=0/…-500-799-4-….parquet        written for version 4, offsets 500 to 799
    wal/9/                                  trimmed: the segments of 500 to 799 are gone          ─▶ the log would end at 500

A file that no manifest names proves nothing alone: a compactor uploads each file before it creates the manifest, and may die, or
lose the create, in between. So the version in a name tells only with a distance of two, and the offsets tell the rest:

- A file of version v was planned from the manifest v - 1, which counted then. Versions only grow, so a manifest that is read after
  the file was listed has the version v - 1 or a later one. A lower one: manifests are missing.
- A file holds committed records: a compactor reads the committed prefix of sessions. Their segments stay until a manifest holds the
  records, so the end of a partition lies behind each of its files, named or not, of a conversion that goes on, was given up or was
  lost to another. An end before that: the manifest is missing that let the segments go.

Both hold at any moment of conversions, merges, retention, DeleteRecords and collection, and for an end that can't grow any more, as
a takeover finds it. What is not found: a missing manifest that left no file behind it, as where retention has expired all records.
Notices of manifests in the metadata are no witness: they last for ten minutes, and announce versions that may never come to be.

Invariant: a partition of which nothing was deleted by hand is never refused.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from metadata.errors import Corrupt
from metadata.model import TopicPartition
from segments.bucket.layout import (
    HistoryKey,
    history_file_key,
    history_files_parent,
    history_files_prefix,
    manifests_prefix,
    parse_topic_key,
)
from segments.bucket.neighbour_listing import list_neighbours, neighbours
from segments.concurrency import gather_all
from segments.object_store.interface import ObjectStore
from segments.recovery.recovered_partition import RecoveredPartition

# Files of the partitions that share a page; where there are more, each partition is listed by itself, many at a time.
FILES_TOGETHER: Final = 1_000
# Files of a partition that an error names.
NAMED_MAX: Final = 8


class NewestFiles(NamedTuple):
    """Holds the files of a partition that were written last, as a listing shows them, named by a manifest or not."""

    # The file of the highest version.
    of_version: HistoryKey
    # At most NAMED_MAX files with the highest last offsets, the highest first.
    furthest: Sequence[HistoryKey]


async def newest_files(
    store: ObjectStore, topics: Mapping[TopicPartition, str], *, reads_max: int
) -> dict[TopicPartition, NewestFiles]:
    """Returns the newest files of the partitions that have any, given their topics' names. Raises what the store raises.

    One request for up to 256 partitions of a topic that have few files; else one for each partition, or for a thousand files of it.
    """
    slots = asyncio.Semaphore(reads_max)

    async def read(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, NewestFiles]:
        async with slots:
            found = await _listed(store, topics[partitions[0]], partitions)
        return found if found is not None else await read_all([partition] for partition in partitions)

    async def read_all(groups: Iterable[Sequence[TopicPartition]]) -> dict[TopicPartition, NewestFiles]:
        return {where: found for some in await gather_all(map(read, groups)) for where, found in some.items()}

    return await read_all(neighbours(topics, history_files_prefix))


def missing_manifests(found: RecoveredPartition, files: NewestFiles) -> Corrupt | None:
    """Returns the error for a partition whose newest manifest is older than its files; None where nothing proves that. Pure.

    `files` were listed before the manifest of `found` was read.
    """
    return older_than_files(found.topic, found.partition, files, version=found.manifest.version, end_offset=found.end_offset)


def older_than_files(topic: str, partition: TopicPartition, files: NewestFiles, *, version: int, end_offset: int) -> Corrupt | None:
    """Does the same for a partition whose newest manifest has this version, and that would end at `end_offset`."""
    beyond = [file for file in files.furthest if file.last_offset >= end_offset]
    if beyond:
        keys = [history_file_key(topic, partition, file.file_name) for file in beyond]
        what = f"it would end at offset {end_offset}, and files hold records up to {beyond[0].last_offset}: {', '.join(keys)}"
    elif files.of_version.version > version + 1:
        keys = [history_file_key(topic, partition, files.of_version.file_name)]
        what = f"{keys[0]} was written for version {files.of_version.version}, and the newest manifest is {version}"
    else:
        return None
    return Corrupt(
        f"manifests of {partition} were deleted, or not copied: {what}",
        hint=f"Stop the compactors. Restore the objects below {manifests_prefix(topic, partition)} that are newer than "
        f"{version:020d}, from versions or a backup of the bucket, and restart the broker. If they are lost, move the named files "
        "away: the partition then goes on at its older end, without their records.",
        key=keys[0],
        version=version,
    )


async def _listed(store: ObjectStore, topic: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, NewestFiles] | None:
    """Returns None where several partitions have more files than a page holds.

    `partitions`: of one life of the topic, in the order of their prefixes.
    """
    topic_id = partitions[0].topic_id
    prefixes = [history_files_prefix(topic, partition) for partition in partitions]
    found: dict[TopicPartition, NewestFiles] = {}
    asked = set(partitions)
    listed = 0
    async for info in list_neighbours(store, history_files_parent(topic, topic_id), prefixes):
        listed += 1
        if listed >= FILES_TOGETHER and len(partitions) > 1:
            return None
        parsed = parse_topic_key(info.key)
        if parsed is None or parsed.history is None:
            continue
        where = TopicPartition(topic_id, parsed.history.partition)
        if where in asked:
            found[where] = _with(found.get(where), parsed.history)
    return found


def _with(before: NewestFiles | None, file: HistoryKey) -> NewestFiles:
    if before is None:
        return NewestFiles(file, [file])
    return NewestFiles(
        max(before.of_version, file, key=lambda one: one.version),
        heapq.nlargest(NAMED_MAX, [*before.furthest, file], key=lambda one: one.last_offset),
    )
