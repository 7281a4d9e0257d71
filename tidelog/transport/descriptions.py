"""Describes the cluster: topics, partitions, brokers, where a record lies. Frozen, and ready for JSON. Pure."""

from __future__ import annotations

import msgspec

from gateway.proto import admin_pb2
from gateway.proto.status import from_status
from gateway.proto.values import value_of


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: its leader and the range of its offsets."""

    partition: int
    # Broker id; empty if there is no leader.
    leader: str
    leader_epoch: int
    # The oldest offset that can be read.
    log_start_offset: int
    # The offset of the next committed record. Like log_start_offset, -1 if there is an error.
    high_watermark: int
    # Why it is not served: it is damaged, its leader does not answer, or there is none.
    error: str = ""
    error_code: str = ""
    hint: str = ""


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its settings."""

    name: str
    id: str
    partition_count: int
    # Only those that differ from the defaults.
    settings: dict[str, str]
    created_at_ms: int
    # From `describe`; empty in lists.
    partitions: tuple[PartitionInfo, ...] = ()


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A broker of the cluster."""

    broker_id: str
    http_address: str
    grpc_address: str
    session: int
    draining: bool
    rack: str = ""
    version: str = ""
    partitions_led: int = 0
    # It appoints the leaders.
    controller: bool = False


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster with its brokers."""

    cluster_id: str
    version: str
    bucket: str
    brokers: tuple[BrokerInfo, ...]
    # How long the answering broker has heard nothing from the metadata store: this answer may be as old.
    metadata_age_ms: int = 0


class BrokerDrain(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a broker's drain."""

    broker_id: str
    draining: bool
    # A draining broker with 0 may be stopped without moving a partition.
    partitions_led: int


class OffsetRange(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets [log_start_offset, high_watermark) can be read."""

    log_start_offset: int
    high_watermark: int


class EpochEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a leader epoch: the requested one, or the newest before it."""

    leader_epoch: int
    # One past its last record; for the present epoch, the high watermark.
    end_offset: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a record on the bucket: in the bytes [range_start, range_end) of an object."""

    topic: str
    partition: int
    offset: int
    # segment, or parquet once the record was compacted: then the bytes are those of a row group, and batch_crc32c is theirs.
    tier: str
    object_key: str
    range_start: int
    range_end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    batch_crc32c: int
    in_tail_cache: bool
    session: int | None
    # Both of a record in a segment.
    segment_seq: int | None
    row_group: int | None
    # Both of a record in Parquet: the group's number in the file, and the sum over the file's records.
    file_checksum: str | None


def topic_info(topic: admin_pb2.Topic) -> TopicInfo:
    settings = dict(sorted(topic.settings.items()))
    return value_of(topic, TopicInfo, settings=settings, partitions=tuple(map(_partition_info, topic.partitions)))


def _partition_info(state: admin_pb2.PartitionState) -> PartitionInfo:
    error = from_status(state.error, address=state.leader_grpc_address) if state.HasField("error") else None
    code, hint = ("", "") if error is None else (error.code, error.hint)
    return value_of(state, PartitionInfo, error=state.error.message, error_code=code, hint=hint)


def cluster_info(cluster: admin_pb2.ClusterDescription) -> ClusterInfo:
    return value_of(cluster, ClusterInfo, brokers=tuple(value_of(broker, BrokerInfo) for broker in cluster.brokers))


def broker_drain(found: admin_pb2.BrokerDrain) -> BrokerDrain:
    return value_of(found, BrokerDrain)


def explanation(topic: str, partition: int, offset: int, found: admin_pb2.ExplainOffsetResponse) -> Explanation:
    return value_of(found, Explanation, topic=topic, partition=partition, offset=offset)
