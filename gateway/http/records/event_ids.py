"""Encodes the ids of server-sent events: positions in a stream of records, from which a client resumes. Pure.

    one partition    9f3c…/1:18              topic id, then the partition and the next offset to read
    all partitions   9f3c…/0:18,1:4,2:0      the same for each partition, from 0 on

A recreated topic has another id, so a position in the deleted topic is never taken for one in the new topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from metadata.errors import InvalidArgument
from metadata.model import TopicId

_ID: Final = re.compile(r"(?P<topic_id>[0-9a-f]{32})/(?P<positions>[0-9]{1,10}:[0-9]{1,18}(?:,[0-9]{1,10}:[0-9]{1,18})*)", re.ASCII)


class EventPosition(NamedTuple):
    """Holds a decoded event id."""

    topic_id: TopicId
    # The next offset to read, by partition.
    positions: dict[int, int]


def encode_event_id(topic_id: TopicId, positions: Mapping[int, int]) -> str:
    """Encodes a position; `positions` are the next offsets by partition."""
    return f"{topic_id}/" + ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def decode_event_id(text: str, *, partition: int | None) -> EventPosition:
    """Decodes the id of a stream over one partition, or over all (None).

    Raises InvalidArgument for anything else, also for ids of earlier versions, which have no topic id.
    """
    found = _ID.fullmatch(text)
    if found is None:
        raise _refused("its form is not TOPIC_ID/PARTITION:OFFSET,…")
    pairs = [pair.split(":") for pair in found["positions"].split(",")]
    positions = {int(number): int(offset) for number, offset in pairs}
    expected = list(range(len(pairs))) if partition is None else [partition]
    if [int(number) for number, _ in pairs] != expected:
        what = "all partitions" if partition is None else f"partition {partition}"
        raise _refused(f"it is no position in a stream over {what}")
    return EventPosition(TopicId(found["topic_id"]), positions)


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the Last-Event-ID is not from this stream: {why}",
        hint="Send the id of the last event unchanged, or leave the header out and begin at an offset in the query.",
    )
