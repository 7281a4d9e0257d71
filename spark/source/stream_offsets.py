"""Defines the offsets in a stream's checkpoint, and bounds what a batch takes. Pure.

    {"version": 1, "topics": {"orders": {"id": "1f…", "offsets": {"0": 23, "1": 40}}}}

Each number is the offset that is read next. The id tells a topic from one of the same name that was made after it was deleted:
its offsets mean other records. Invariant: equal offsets are equal text, since that is how Spark compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from metadata.errors import InvalidArgument
from metadata.model import Partition, TopicId, TopicPartition
from spark.source.log_snapshot import PartitionSnapshot
from spark.source.scan_plan import OffsetRange

VERSION: Final = 1


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    id: TopicId
    offsets: dict[int, int]


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    topics: dict[str, _Topic]


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The offsets of a stream: the next offset of each partition, and the topics' names."""

    names: Mapping[TopicId, str]
    next_offsets: Mapping[TopicPartition, int]

    def name(self, partition: TopicPartition) -> str:
        return f"{self.names[partition.topic_id]}/{partition.partition}"

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON object that Spark stores, in a stable order."""
        topics: dict[str, Any] = {}
        for partition in sorted(self.next_offsets, key=lambda partition: (self.names[partition.topic_id], partition)):
            name = self.names[partition.topic_id]
            topic = topics.setdefault(name, {"id": partition.topic_id, "offsets": {}})
            topic["offsets"][str(partition.partition)] = self.next_offsets[partition]
        return {"version": VERSION, "topics": topics}


def parse_offsets(json: Mapping[str, Any]) -> StreamOffsets:
    """Raises InvalidArgument for what this version did not write."""
    version = json.get("version")
    if version != VERSION:
        raise InvalidArgument(
            f"the checkpoint of this query has offsets of version {version!r}, and this Tidelog knows version {VERSION}",
            hint="Run the query with the Tidelog that wrote the checkpoint or a later one, or begin with a new checkpointLocation.",
        )
    try:
        stored = msgspec.convert(json, _Stored, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"the checkpoint of this query has offsets that can't be read: {error}",
            hint="Was it edited? Begin with a new checkpointLocation, and startingOffsets from where the query has come to.",
        ) from None
    return StreamOffsets(
        {topic.id: name for name, topic in stored.topics.items()},
        {
            TopicPartition(topic.id, Partition(number)): offset
            for topic in stored.topics.values()
            for number, offset in topic.offsets.items()
        },
    )


def offsets_of(snapshots: Mapping[TopicPartition, PartitionSnapshot], next_offsets: Mapping[TopicPartition, int]) -> StreamOffsets:
    return StreamOffsets({partition.topic_id: snapshots[partition].topic for partition in next_offsets}, next_offsets)


def admitted(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], offsets_max: int = 0
) -> dict[TopicPartition, int]:
    """Returns the end of a batch in each partition: about `offsets_max` offsets in total (0: all), in proportion to the backlog.

    A partition that has anything gets one at least, so that none starves behind larger ones: where there are more
    partitions than `offsets_max`, a batch has so many. Offsets that key compaction left without a record count.
    """
    there = {partition: max(0, ends[partition] - start) for partition, start in starts.items()}
    total, waiting = sum(there.values()), [partition for partition, count in there.items() if count]
    if not offsets_max or total <= offsets_max:
        return {partition: start + there[partition] for partition, start in starts.items()}
    left = max(0, offsets_max - len(waiting))
    rest = total - len(waiting)
    shares = {partition: 1 + left * (there[partition] - 1) // max(1, rest) for partition in waiting}
    over = left + len(waiting) - sum(shares.values())
    remainders = sorted(waiting, key=lambda partition: (-(left * (there[partition] - 1) % max(1, rest)), partition))
    for partition in remainders[:over]:
        shares[partition] += 1
    return {partition: start + shares.get(partition, 0) for partition, start in starts.items()}


@dataclass(frozen=True, slots=True)
class StreamRules:
    """The handling of lost data: `lost` raises, or warns, as failOnDataLoss says."""

    # Takes what was lost, and the remedy.
    lost: Callable[[str, str], None]

    def reachable(self, asked: StreamOffsets, snapshots: Mapping[TopicPartition, PartitionSnapshot]) -> dict[TopicPartition, int]:
        """Returns the offset at which each partition resumes: where it stopped, or behind deleted data. Omits deleted topics."""
        found = {}
        for partition, offset in asked.next_offsets.items():
            snapshot = snapshots.get(partition)
            if snapshot is not None:
                found[partition] = self._within(asked.name(partition), offset, snapshot)
        gone = asked.next_offsets.keys() - snapshots.keys()
        for topic_id in sorted({partition.topic_id for partition in gone}, key=lambda topic_id: asked.names[topic_id]):
            there = {snapshot.topic for snapshot in snapshots.values() if snapshot.partition.topic_id != topic_id}
            self._gone(asked, sorted(partition for partition in gone if partition.topic_id == topic_id), there)
        return found

    def _within(self, name: str, offset: int, snapshot: PartitionSnapshot) -> int:
        if offset < snapshot.start_offset:
            self.lost(
                f"offsets {offset} to {snapshot.start_offset - 1} of {name} were deleted, by retention or DeleteRecords,"
                " before this query came to them",
                f"They are lost to it. Set failOnDataLoss to false to go on at {snapshot.start_offset}.",
            )
            return snapshot.start_offset
        if offset > snapshot.end_offset and snapshot.damage is not None:
            self.lost(
                f"{name} can be read up to offset {snapshot.end_offset}, and this query has come to {offset}:"
                f" {snapshot.damage.message}",
                f"{snapshot.damage.hint} Or set failOnDataLoss to false to read the rest.".strip(),
            )
            return offset
        if offset > snapshot.end_offset:
            self.lost(
                f"{name} ends at offset {snapshot.end_offset}, and this query has come to {offset}:"
                f" offsets {snapshot.end_offset} to {offset - 1} were lost, or this is another bucket",
                f"Give the bucket of the checkpoint. Set failOnDataLoss to false to go on at {snapshot.end_offset}.",
            )
            return snapshot.end_offset
        return offset

    def _gone(self, asked: StreamOffsets, gone: Sequence[TopicPartition], topics: Container[str]) -> None:
        topic_id = gone[0].topic_id
        name = asked.names[topic_id]
        offsets = ", ".join(f"{partition.partition} from offset {asked.next_offsets[partition]} on" for partition in gone)
        what = "was deleted and recreated" if name in topics else "was deleted, or is not among what the options name"
        self.lost(
            f"topic {name} (id {topic_id}), which this query reads, {what}: it can't be read any more, partition {offsets}",
            "Set failOnDataLoss to false to go on "
            + ("with the new one, from its earliest record." if name in topics else "without it."),
        )


def batch_ranges(
    start: StreamOffsets, begins: Mapping[TopicPartition, int], end: StreamOffsets
) -> dict[TopicPartition, OffsetRange]:
    """Returns the range of each partition that both ends know. A partition only in `end` is new: the next batch begins there."""
    return {
        partition: OffsetRange(begins[partition], max(begins[partition], end.next_offsets[partition]))
        for partition in sorted(begins.keys() & end.next_offsets.keys() & start.next_offsets.keys())
    }
