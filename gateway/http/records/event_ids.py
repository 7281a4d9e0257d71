"""Ids of server-sent events: a place in a stream of records, from which a reader that lost it goes on. Pure.

    one partition    9f3c…/1:18              the id of the topic, then the partition and the offset to read next
    all partitions   9f3c…/0:18,1:4,2:0      the same of each partition, from 0 on

A topic that was deleted and made again has another id, so a place in the old one is never taken for a place in the new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from metadata.errors import InvalidArgument
from metadata.model import TopicId

_ID: Final = re.compile(r"(?P<topic_id>[0-9a-f]{32})/(?P<places>[0-9]{1,10}:[0-9]{1,18}(?:,[0-9]{1,10}:[0-9]{1,18})*)", re.ASCII)


class EventPosition(NamedTuple):
    topic_id: TopicId
    # By partition: the offset of the next record to be read.
    positions: dict[int, int]


def encode_event_id(topic_id: TopicId, positions: Mapping[int, int]) -> str:
    return f"{topic_id}/" + ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def decode_event_id(text: str, *, partition: int | None) -> EventPosition:
    """Returns the place in a stream over one partition, or over all (None). Raises InvalidArgument for anything else, also for the
    ids of earlier versions, which name no topic id."""
    found = _ID.fullmatch(text)
    if found is None:
        raise _refused("it has not the form TOPIC_ID/PARTITION:OFFSET,…")
    pairs = [pair.split(":") for pair in found["places"].split(",")]
    positions = {int(number): int(offset) for number, offset in pairs}
    expected = list(range(len(pairs))) if partition is None else [partition]
    if [int(number) for number, _ in pairs] != expected:
        what = "all partitions" if partition is None else f"partition {partition}"
        raise _refused(f"it does not name the place in a stream over {what}")
    return EventPosition(TopicId(found["topic_id"]), positions)


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the Last-Event-ID is not one of this stream: {why}",
        hint="Give back the id of the last event as it came, or leave the header out and say in the query where to begin.",
    )
