"""Where the committed offsets of a group are moved to: earliest, latest, a time, an offset, or so many records on. Pure.

    earliest   the log start           timestamp_ms   the first record of that time or later, else the high watermark
    latest     the high watermark      offset, shift  what was asked for, brought within the log

Invariant: what a group is moved to lies within the log, so that nobody begins out of range.
"""

from __future__ import annotations

from gateway.group_descriptions import SeekTo
from metadata.errors import InvalidArgument
from metadata.model import TopicPartition
from segments.partition_log import Bounds


def check_seek(to: SeekTo) -> None:
    """Raises InvalidArgument for what no log could answer."""
    if to.kind == "offset" and to.value < 0:
        raise InvalidArgument(
            f"there is no offset {to.value}", hint="Seek to an offset of 0 or more, or by a shift.", field="offset"
        )
    if to.kind == "timestamp_ms" and to.value < 0:
        raise InvalidArgument(
            f"{to.value} is no time in milliseconds since 1970", hint="Seek to 0 or more, or to earliest.", field="timestamp_ms"
        )


def sought_offset(
    to: SeekTo, partition: TopicPartition, *, bounds: Bounds, committed: int | None, of_timestamp: int | None = None
) -> int:
    """`of_timestamp`: offset of the first record of the time that was asked for, where there is one.

    Raises InvalidArgument for a shift of a partition without a committed offset.
    """
    if to.kind == "shift" and committed is None:
        raise InvalidArgument(
            f"{partition} has no committed offset to shift from",
            hint="Leave the partition out, or seek it to earliest, latest, a time or an offset.",
        )
    match to.kind:
        case "earliest":
            asked = int(bounds.log_start_offset)
        case "offset":
            asked = to.value
        case "shift":
            asked = (committed or 0) + to.value
        case "timestamp_ms" if of_timestamp is not None:
            asked = of_timestamp
        case _:
            asked = int(bounds.high_watermark)
    return max(bounds.log_start_offset, min(asked, bounds.high_watermark))
