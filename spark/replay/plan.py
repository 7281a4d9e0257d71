"""Defines what a replay reads and where it writes, as its checkpoint stores it. Pure.

A replay is a bounded stream: where each partition begins and ends is found once, when it begins, and stays in `replay.json` beside
Spark's own checkpoint. The same command line finds it there and goes on; another one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from metadata.errors import InvalidArgument, OutOfRange, Rejected
from metadata.model import TopicPartition
from spark.source.log_snapshot import PartitionSnapshot
from spark.source.options import LATEST, AtOffset, AtOffsets, AtTimestamp, ByPartition, Position
from spark.source.scan_plan import OffsetRange

VERSION: Final = 1
PLAN_FILE: Final = "replay.json"
# The remedy where the target topic was made again.
NEW_REPLAY: Final = "Give another --checkpoint: the whole range goes into the new topic then."


class ReplayTarget(StrEnum):
    """The kind of target that a replay writes to."""

    TOPIC = "topic"
    PARQUET = "parquet"
    TABLE = "table"


class PartitionChoice(StrEnum):
    """The rule that selects the target partition of a record."""

    # The partition number of the source.
    KEEP = "keep"
    BY_KEY = "by-key"
    # KEEP where all topics have as many partitions as the target, else BY_KEY.
    AUTO = "auto"


class ReplayRequest(msgspec.Struct, frozen=True):
    """The request from the command line. Two replays are the same if their requests are equal."""

    topics: tuple[str, ...]
    bucket: str
    start: str
    end: str
    target: ReplayTarget
    # Name of the topic or table, or URI.
    into: str
    where: str = ""
    placement: PartitionChoice = PartitionChoice.AUTO


class ReplayPlan(msgspec.Struct, frozen=True):
    """The plan of a replay, which `replay.json` stores: the request and the exact offsets to read."""

    asked: ReplayRequest
    # Offsets to read, by topic and partition.
    ranges: dict[str, dict[int, OffsetRange]]
    # Topic ids, by topic name.
    ids: dict[str, str] = {}
    keeps_partitions: bool = False
    # Rows in the target table before the replay.
    rows_before: int = 0
    version: int = VERSION

    @property
    def offset_count(self) -> int:
        return sum(span.end - span.start for spans in self.ranges.values() for span in spans.values())

    def source_options(self) -> dict[str, str]:
        """Returns options for `spark.read` and `spark.readStream` that select exactly the planned offsets."""

        def json(value: object) -> str:
            return msgspec.json.encode(value).decode()

        return {
            "bucket": self.asked.bucket,
            "assign": json({topic: list(spans) for topic, spans in self.ranges.items()}),
            "startingOffsets": json({topic: {p: span.start for p, span in spans.items()} for topic, spans in self.ranges.items()}),
            "endingOffsets": json({topic: {p: span.end for p, span in spans.items()} for topic, spans in self.ranges.items()}),
            "topicIds": json(self.ids),
            "includeHeaders": "true",
        }

    def offsets_done(self, next_offsets: ByPartition) -> int:
        """Returns how many of the `offset_count` offsets lie below the stream's next offsets."""
        return sum(
            min(max(next_offsets.get(topic, {}).get(partition, span.start), span.start), span.end) - span.start
            for topic, spans in self.ranges.items()
            for partition, span in spans.items()
        )


def plan_of(
    asked: ReplayRequest,
    snapshots: Mapping[TopicPartition, PartitionSnapshot],
    ranges: Mapping[TopicPartition, OffsetRange],
    *,
    target_partitions: int | None = None,
    rows_before: int = 0,
) -> ReplayPlan:
    """`target_partitions`: of the topic that is written. Raises InvalidArgument and Rejected."""
    by_topic: dict[str, dict[int, OffsetRange]] = {}
    ids: dict[str, str] = {}
    for partition, span in ranges.items():
        topic = snapshots[partition].topic
        ids[topic] = partition.topic_id
        by_topic.setdefault(topic, {})[int(partition.partition)] = span
    keeps = target_partitions is not None and _keeps(asked, by_topic, target_partitions)
    return ReplayPlan(asked, by_topic, ids, keeps, rows_before)


def _keeps(asked: ReplayRequest, by_topic: Mapping[str, Mapping[int, OffsetRange]], target_partitions: int) -> bool:
    if asked.placement is PartitionChoice.AUTO:
        return all(len(spans) == target_partitions for spans in by_topic.values())
    if asked.placement is PartitionChoice.BY_KEY:
        return False
    for topic, spans in by_topic.items():
        if max(spans) >= target_partitions:
            raise Rejected(
                f"--keep-partitions: {topic} has partitions up to {max(spans)}, and {asked.into} has {target_partitions}."
                " Nothing was written",
                hint=f"tidelog topic alter {asked.into} --partitions {max(spans) + 1}, or give --by-key.",
            )
    return True


def check_order(asked: ReplayRequest, start: Position | None, end: Position) -> None:
    """Raises InvalidArgument if the two positions by themselves leave nothing between them."""
    match start, end:
        case AtOffset(offset), _ if offset == LATEST:
            raise InvalidArgument(
                "--from latest begins behind the last record: there is nothing to replay. Nothing was written",
                hint="Give an earlier place, as --from 1h.",
            )
        case AtTimestamp(first), AtTimestamp(last) if first > last:
            raise behind(asked)
        case AtOffsets(firsts), AtOffsets(lasts):
            pairs = {
                f"{topic}/{number}": (first, lasts.get(topic, {}).get(number, LATEST))
                for topic, numbers in firsts.items()
                for number, first in numbers.items()
            }
            crossed = [where for where, (first, last) in pairs.items() if first > last >= 0]
            if crossed and not any(first != LATEST and (first < last or last == LATEST) for first, last in pairs.values()):
                raise behind(asked, f" in {crossed[0]}")


def check_end_is_left(
    asked: ReplayRequest, snapshots: Mapping[TopicPartition, PartitionSnapshot], ends: Mapping[TopicPartition, int]
) -> None:
    """Raises OutOfRange if a partition would end below its log start: then no --from helps."""
    for partition, snapshot in sorted(snapshots.items()):
        if ends[partition] < snapshot.start_offset:
            raise OutOfRange(
                f"--to {asked.end} lies below what is left of {snapshot}: offsets below {snapshot.start_offset} of it were deleted,"
                " by retention or DeleteRecords, and there is nothing to replay. Nothing was written",
                hint=f"Give a later --to, above {snapshot.start_offset}.",
            )


def behind(asked: ReplayRequest, where: str = "") -> InvalidArgument:
    return InvalidArgument(
        f"--from {asked.start} lies behind --to {asked.end}{where}: there is nothing to replay. Nothing was written",
        hint="Give the earlier place with --from; a time without a date, as 1h, is that long before now.",
    )


def encode_plan(plan: ReplayPlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2)


def decode_plan(body: bytes, where: str) -> ReplayPlan:
    """Raises Rejected for what no replay of this version wrote."""
    try:
        plan = msgspec.json.decode(body, type=ReplayPlan)
    except msgspec.MsgspecError as error:
        raise Rejected(f"{where} is not of a replay: {error}", hint="Give a --checkpoint of its own to each replay.") from None
    if plan.version != VERSION:
        raise Rejected(f"{where} is of version {plan.version}, and this Tidelog knows {VERSION}", hint="Use the one that wrote it.")
    return plan


def check_same(plan: ReplayPlan, asked: ReplayRequest, where: str) -> None:
    """Raises InvalidArgument, with the difference, if the checkpoint belongs to another replay."""
    before, now = (msgspec.to_builtins(one) for one in (plan.asked, asked))
    differs = [
        f"{_FLAGS[name]} was {_shown(before[name])}, and is {_shown(now[name])}" for name in before if before[name] != now[name]
    ]
    if differs:
        raise InvalidArgument(
            f"{where} is the checkpoint of another replay: {'; '.join(differs)}. Nothing was written",
            hint="Give the same command line to go on with that one, or another --checkpoint to begin a new one.",
        )


def check_target_id(plan: ReplayPlan, written_id: str, target_id: str) -> None:
    """Raises Rejected if the target topic is not the one that the replay has written to.

    `written_id`: of the topic that has the replay's batches; empty if none is done. `target_id`: of the present topic.
    """
    if written_id not in {"", target_id}:
        raise Rejected(
            f"topic {plan.asked.into} was deleted and made again since this replay began (its id was {written_id}, and is"
            f" {target_id}): the records that the replay wrote before are gone. Nothing was written",
            hint=NEW_REPLAY,
        )


_FLAGS: Final = {
    "topics": "TOPIC",
    "bucket": "--bucket",
    "start": "--from",
    "end": "--to",
    "target": "the target",
    "into": "its name",
    "where": "--where",
    "placement": "the placement",
}


def _shown(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else repr(value)


class Verdict(msgspec.Struct, frozen=True):
    """The row counts at the end of a replay."""

    # Rows of the range that pass the filter, as a batch query counts them.
    expected: int
    # In the target.
    written: int

    @property
    def agrees(self) -> bool:
        return self.expected == self.written
