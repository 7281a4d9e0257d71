"""What the cluster says of itself: topics, partitions, brokers, where a record lies. Frozen, and ready for JSON. Pure."""

from __future__ import annotations

import msgspec

from gateway.proto import admin_pb2
from gateway.proto.status import from_status
from gateway.proto.values import value_of


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    leader: str
    """Broker id; empty where nobody leads."""
    leader_epoch: int
    log_start_offset: int
    """The oldest offset that can be read."""
    high_watermark: int
    """The offset that the next committed record will have. -1 where there is an error, as is log_start_offset."""
    error: str = ""
    """Why its leader does not serve it (it is damaged), or does not answer, or that nobody leads it."""
    error_code: str = ""
    hint: str = ""


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: str
    partition_count: int
    settings: dict[str, str]
    """Only those that differ from the defaults."""
    created_at_ms: int
    partitions: tuple[PartitionInfo, ...] = ()
    """From `describe`; empty in lists."""


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: str
    http_address: str
    grpc_address: str
    session: int
    draining: bool
    rack: str = ""
    version: str = ""
    partitions_led: int = 0
    controller: bool = False
    """It appoints the leaders."""


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    version: str
    bucket: str
    brokers: tuple[BrokerInfo, ...]
    metadata_age_ms: int = 0
    """For so long the broker that told all this has heard nothing from the metadata store: it may be as old."""


class BrokerDrain(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: str
    draining: bool
    partitions_led: int
    """0 of a broker that drains: it may be stopped, and nothing moves."""


class OffsetRange(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets [log_start_offset, high_watermark) can be read."""

    log_start_offset: int
    high_watermark: int


class EpochEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Where the records of a leader epoch end, of the asked one or the newest before it."""

    leader_epoch: int
    end_offset: int
    """Behind its last record; of the present epoch the high watermark."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record lies on the bucket: in the bytes [range_start, range_end) of an object."""

    topic: str
    partition: int
    offset: int
    tier: str
    """segment, or parquet once the record was compacted: then the bytes are those of a row group, and batch_crc32c is theirs."""
    object_key: str
    range_start: int
    range_end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    batch_crc32c: int
    in_hot_pool: bool
    session: int | None
    segment_seq: int | None
    """Both of a record in a segment."""
    row_group: int | None
    file_checksum: str | None
    """Both of a record in Parquet: the group's number in the file, and the sum over the file's records."""


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
