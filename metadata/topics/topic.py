"""Defines a topic as the cluster registers it, and its stored form. Pure.

The value of /{cluster}/topics/{topic}, JSON in UTF-8:

    {"format_version":1,"id":"1f…32 hex digits…","name":"orders","partition_count":6,
     "settings":{"retention.ms":"86400000"},"created_at_ms":1767225600000}

`settings` holds only what differs from the defaults (settings.py). `"first_leader_epoch":12` stands there where it is not 0, and
`"replication_factor":3` where its creator asked for one. Readers skip unknown fields, so a newer version may add some; a value of
a newer format_version is never rewritten, so that nothing is lost.
"""

from __future__ import annotations

import re

import msgspec

from metadata.errors import Corrupt, InvalidArgument, TidelogError
from metadata.model import LeaderEpoch, Revision, TopicId, check_topic_name
from metadata.store.interface import KeyValue

FORMAT_VERSION = 1
# Bound on the partitions of one topic.
PARTITION_COUNT_MAX = 10_000
# In place of a replication factor where the client asked for none, as in Kafka's CreateTopics.
NO_REPLICATION_FACTOR = -1
# Kafka's protocol has 16 bits for it.
REPLICATION_FACTOR_MAX = 2**15 - 1

_TOPIC_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one life of a topic: a topic that is deleted and created again has another id."""

    id: TopicId
    name: str
    partition_count: int
    # By Kafka's names, only those that differ from the defaults. Not to be changed in place.
    settings: dict[str, str]
    # Milliseconds since 1970-01-01 UTC.
    created_at_ms: int
    # The first leader epoch of each partition: above every leader epoch of an earlier topic of this name, since Kafka clients keep
    # the highest epoch of a name, and ignore what comes with a lower one.
    first_leader_epoch: LeaderEpoch = LeaderEpoch(0)
    # As its creator asked for it, for tools that compare; the bucket replicates, so it changes nothing.
    replication_factor: int = NO_REPLICATION_FACTOR
    # The store's revision that wrote this; 0 for a topic that is not stored. Not part of the value.
    revision: Revision = Revision(0)
    format_version: int = FORMAT_VERSION


class _Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format_version: int
    id: TopicId
    name: str
    partition_count: int
    settings: dict[str, str]
    created_at_ms: int
    first_leader_epoch: LeaderEpoch = LeaderEpoch(0)
    replication_factor: int = NO_REPLICATION_FACTOR


_decoder = msgspec.json.Decoder(_Stored)


def encode_topic(topic: Topic) -> bytes:
    return msgspec.json.encode(
        _Stored(
            format_version=FORMAT_VERSION,
            id=topic.id,
            name=topic.name,
            partition_count=topic.partition_count,
            settings=dict(sorted(topic.settings.items())),
            created_at_ms=topic.created_at_ms,
            first_leader_epoch=topic.first_leader_epoch,
            replication_factor=topic.replication_factor,
        )
    )


def decode_topic(kept: KeyValue) -> Topic:
    """Decodes a stored topic. Raises Corrupt, naming the key, where the value is not what this module writes."""
    try:
        stored = _decoder.decode(kept.value)
        check_topic_name(stored.name)
        if not kept.key.endswith(f"/{stored.name}"):
            raise InvalidArgument(f"it names the topic {stored.name}")
        if not _TOPIC_ID.fullmatch(stored.id):
            raise InvalidArgument("its id is not 32 hex digits")
        check_partition_count(stored.partition_count)
    except (msgspec.DecodeError, UnicodeDecodeError, TidelogError) as error:
        raise Corrupt(f"the topic at {kept.key} cannot be read: {error}", key=kept.key, revision=kept.mod_revision) from error
    return Topic(**msgspec.structs.asdict(stored), revision=kept.mod_revision)


def check_partition_count(count: int) -> int:
    """Returns the count if a topic may have as many partitions. Raises InvalidArgument."""
    if not 1 <= count <= PARTITION_COUNT_MAX:
        raise InvalidArgument(
            f"{count} is not a partition count",
            hint=f"Use 1 to {PARTITION_COUNT_MAX}; six is a good beginning, and it can grow later.",
            partition_count=count,
        )
    return count


def check_replication_factor(factor: int) -> int:
    """Returns the factor itself when Kafka's clients may ask for it, above the number of brokers as well; else InvalidArgument."""
    if not NO_REPLICATION_FACTOR <= factor <= REPLICATION_FACTOR_MAX:
        raise InvalidArgument(
            f"{factor} is not a replication factor",
            hint=f"Use {NO_REPLICATION_FACTOR} to {REPLICATION_FACTOR_MAX}; the bucket replicates, whatever is asked for.",
            replication_factor=factor,
        )
    return factor
