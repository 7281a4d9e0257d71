"""Computes where a group's committed offsets move: earliest, latest, a time, an offset, or a number of records on. Pure.

  earliest   the log start           timestamp_ms   the first record of that time or later, else the high watermark
  latest     the high watermark      offset, shift  the requested offset, brought within the log

A requested place outside the log is reported beside the target: it is more often a mistake than intended.

  BEYOND_END        an offset behind the high watermark       BEFORE_START   one before the log start: those records are gone
  NO_RECORD_SINCE   a time after that of all records

Invariant: each target lies within the log, so that no reader begins out of range.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from gateway.proto import groups_pb2
from metadata.errors import InvalidArgument
from metadata.model import TopicPartition
from segments.partition.partition_log import Bounds

BEYOND_END: Final = "BEYOND_END"
BEFORE_START: Final = "BEFORE_START"
NO_RECORD_SINCE: Final = "NO_RECORD_SINCE"
# The range of 64-bit offsets on the wire.
_OFFSETS: Final = -(2**63), 2**63 - 1


class SeekTo(NamedTuple):
    """Says where a group's committed offsets move."""

    kind: Literal["earliest", "latest", "timestamp_ms", "offset", "shift"]
    # A time, an offset, or a number of records from the committed offset on (below 0: back).
    value: int = 0


class SeekResult(NamedTuple):
    """Says where one partition moves."""

    # Target offset, within the log.
    after: int
    # Why it differs from the request; empty if it does not.
    reason: str = ""
    # The requested offset in that case; None for a time.
    asked: int | None = None


def seek_to(request: groups_pb2.SeekGroupRequest) -> SeekTo:
    """Returns the requested target. Raises InvalidArgument if the request names none."""
    kind = request.WhichOneof("to")
    if kind is None or (kind in {"earliest", "latest"} and not getattr(request, kind)):
        raise InvalidArgument(
            "the request names no target",
            hint="Give one of earliest (true), latest (true), timestamp_ms, offset and shift.",
            field="to",
        )
    return SeekTo(kind) if kind in {"earliest", "latest"} else SeekTo(kind, getattr(request, kind))


def check_seek(to: SeekTo) -> None:
    """Raises InvalidArgument for a target that no log has."""
    if to.kind == "offset" and to.value < 0:
        raise InvalidArgument(
            f"there is no offset {to.value}", hint="Seek to an offset of 0 or more, or by a shift.", field="offset"
        )
    if to.kind == "timestamp_ms" and to.value < 0:
        raise InvalidArgument(
            f"{to.value} is no time in milliseconds since 1970", hint="Seek to 0 or more, or to earliest.", field="timestamp_ms"
        )


def seek_target(
    to: SeekTo, partition: TopicPartition, *, bounds: Bounds, committed: int | None, of_timestamp: int | None = None
) -> SeekResult:
    """Computes the target of one partition. `of_timestamp` is the offset of the first record of the requested time, if there is
    one.

    Raises InvalidArgument for a shift of a partition without a committed offset.
    """
    if to.kind == "shift" and committed is None:
        raise InvalidArgument(
            f"{partition} has no committed offset to shift from",
            hint="Leave the partition out, or seek it to earliest, latest, a time or an offset.",
        )
    match to.kind:
        case "earliest":
            return SeekResult(int(bounds.log_start_offset))
        case "offset":
            asked = to.value
        case "shift":
            asked = (committed or 0) + to.value
        case "timestamp_ms" if of_timestamp is not None:
            # Found after the bounds were read: in a growing log it may lie beyond their end.
            return SeekResult(max(int(bounds.log_start_offset), of_timestamp))
        case _:
            return SeekResult(int(bounds.high_watermark), NO_RECORD_SINCE if to.kind == "timestamp_ms" else "")
    after = int(max(bounds.log_start_offset, min(asked, bounds.high_watermark)))
    if asked == after:
        return SeekResult(after)
    least, most = _OFFSETS
    return SeekResult(after, BEYOND_END if asked > after else BEFORE_START, max(least, min(asked, most)))
