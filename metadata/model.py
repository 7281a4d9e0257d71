"""Defines the nouns that every package shares: ids, offsets, topics and their names, racks. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NewType

from metadata.errors import InvalidArgument, InvalidName
from metadata.plain_names import why_not_plain

# Position of a record in its partition, from 0, dense until key compaction.
Offset = NewType("Offset", int)
# 32 lowercase hex digits (a UUID without dashes). A topic that is deleted and created again has another id.
TopicId = NewType("TopicId", str)
Partition = NewType("Partition", int)
# Raised with every change of a partition's leader; stamped into each batch.
LeaderEpoch = NewType("LeaderEpoch", int)
# Numbers one run of a broker process on the bucket. Never used twice.
SessionId = NewType("SessionId", int)
# Place of a segment in its session: 0, 1, 2, …
SegmentSeq = NewType("SegmentSeq", int)
ProducerId = NewType("ProducerId", int)
# etcd's revision: one number for the whole store, raised by every transaction that writes.
Revision = NewType("Revision", int)

NO_PRODUCER = ProducerId(-1)
PARTITIONS_MAX = 100_000

TOPIC_NAME_CHARACTERS_MAX: Final = 249
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_NAME_CHARACTERS_MAX}}}", re.ASCII)


class TopicPartition(NamedTuple):
    """Names one partition of one life of a topic: the key of everything that a broker leads."""

    topic_id: TopicId
    partition: Partition

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"


def check_topic_name(name: str) -> str:
    """Returns the name if it is a legal topic name (Kafka's rule). Raises InvalidName."""
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        shown = name if len(name) <= 60 else name[:57] + "…"
        raise InvalidName(f"{shown!r} is not a topic name ({len(name)} characters)")
    return name


RACK_CHARACTERS_MAX: Final = 255


def check_client_rack(client_rack: str, *, field: str = "client_rack") -> str:
    """Returns the rack that a reader names, even one without brokers. Raises InvalidArgument."""
    if len(client_rack) > RACK_CHARACTERS_MAX:
        raise InvalidArgument(
            f"{field} has {len(client_rack)} characters; a rack has at most {RACK_CHARACTERS_MAX}",
            hint="Name it as the brokers do: `tidelog cluster brokers` shows their racks.",
            field=field,
        )
    if (why := why_not_plain(client_rack)) is not None:
        raise InvalidArgument(
            f"{field} is {client_rack[:60]!a}: {why}",
            hint="Name it as the brokers do: `tidelog cluster brokers` shows their racks.",
            field=field,
        )
    return client_rack
