"""The marker of a deleted topic, `topics/{topic}/{topic_id}/_log/deleted-{revision}`: what it says. Pure.

    {"name": "orders", "id": "…", "gone_at_revision": 12, "marked_at_ms": …}

That it is there is what counts. Its time says only how long readers have had to end what they had begun; it was written by the
clock of a controller, and markers from before have none.
"""

from __future__ import annotations

import msgspec

from metadata.model import Revision, TopicId
from segments.object_store.interface import Buffer


class TopicTombstone(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the content of a marker that a topic was deleted."""

    name: str
    id: TopicId
    gone_at_revision: Revision
    marked_at_ms: int | None = None


def encode_deleted_topic(marker: TopicTombstone) -> bytes:
    return msgspec.json.encode(marker)


def parse_deleted_topic(body: Buffer) -> TopicTombstone | None:
    """Parses a marker; None where it is malformed, which still counts as a marker, without a time."""
    try:
        return msgspec.json.decode(body, type=TopicTombstone)
    except msgspec.MsgspecError:
        return None
