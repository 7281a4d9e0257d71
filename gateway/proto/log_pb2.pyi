from gateway.proto import groups_pb2 as _groups_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKS_UNSPECIFIED: _ClassVar[Acks]
    ACKS_ALL: _ClassVar[Acks]
    ACKS_LEADER: _ClassVar[Acks]
    ACKS_NONE: _ClassVar[Acks]

class FetchFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FETCH_FORMAT_UNSPECIFIED: _ClassVar[FetchFormat]
    FETCH_FORMAT_BATCHES: _ClassVar[FetchFormat]
    FETCH_FORMAT_RECORDS: _ClassVar[FetchFormat]

class AutoOffsetReset(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUTO_OFFSET_RESET_UNSPECIFIED: _ClassVar[AutoOffsetReset]
    AUTO_OFFSET_RESET_EARLIEST: _ClassVar[AutoOffsetReset]
    AUTO_OFFSET_RESET_LATEST: _ClassVar[AutoOffsetReset]
    AUTO_OFFSET_RESET_ERROR: _ClassVar[AutoOffsetReset]
ACKS_UNSPECIFIED: Acks
ACKS_ALL: Acks
ACKS_LEADER: Acks
ACKS_NONE: Acks
FETCH_FORMAT_UNSPECIFIED: FetchFormat
FETCH_FORMAT_BATCHES: FetchFormat
FETCH_FORMAT_RECORDS: FetchFormat
AUTO_OFFSET_RESET_UNSPECIFIED: AutoOffsetReset
AUTO_OFFSET_RESET_EARLIEST: AutoOffsetReset
AUTO_OFFSET_RESET_LATEST: AutoOffsetReset
AUTO_OFFSET_RESET_ERROR: AutoOffsetReset

class InitProducerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InitProducerResponse(_message.Message):
    __slots__ = ("producer_id", "producer_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("correlation_id", "acks", "timeout_ms", "appends")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    APPENDS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    acks: Acks
    timeout_ms: int
    appends: _containers.RepeatedCompositeFieldContainer[Append]
    def __init__(self, correlation_id: _Optional[int] = ..., acks: _Optional[_Union[Acks, str]] = ..., timeout_ms: _Optional[int] = ..., appends: _Optional[_Iterable[_Union[Append, _Mapping]]] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("topic", "partition", "record_batch", "records", "expected_offset", "topic_id", "topic_revision", "continues", "key_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORD_BATCH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_REVISION_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    record_batch: bytes
    records: RecordList
    expected_offset: int
    topic_id: str
    topic_revision: int
    continues: bool
    key_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., record_batch: _Optional[bytes] = ..., records: _Optional[_Union[RecordList, _Mapping]] = ..., expected_offset: _Optional[int] = ..., topic_id: _Optional[str] = ..., topic_revision: _Optional[int] = ..., continues: _Optional[bool] = ..., key_id: _Optional[str] = ...) -> None: ...

class RecordList(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("key", "value", "headers", "timestamp_ms", "partition", "offset")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    timestamp_ms: int
    partition: int
    offset: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., timestamp_ms: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("correlation_id", "results", "throttled")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    results: _containers.RepeatedCompositeFieldContainer[AppendResult]
    throttled: _status_pb2.Status
    def __init__(self, correlation_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[AppendResult, _Mapping]]] = ..., throttled: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class AppendResult(_message.Message):
    __slots__ = ("error", "placements")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    error: _status_pb2.Status
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    def __init__(self, error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("partition", "base_offset", "count", "leader_epoch", "duplicate", "error", "log_append_time_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offset: int
    count: int
    leader_epoch: int
    duplicate: bool
    error: _status_pb2.Status
    log_append_time_ms: int
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., duplicate: _Optional[bool] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., log_append_time_ms: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("partitions", "max_bytes", "min_bytes", "max_wait_ms", "format", "client_rack")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_RACK_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[FetchPartition]
    max_bytes: int
    min_bytes: int
    max_wait_ms: int
    format: FetchFormat
    client_rack: str
    def __init__(self, partitions: _Optional[_Iterable[_Union[FetchPartition, _Mapping]]] = ..., max_bytes: _Optional[int] = ..., min_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., format: _Optional[_Union[FetchFormat, str]] = ..., client_rack: _Optional[str] = ...) -> None: ...

class FetchPartition(_message.Message):
    __slots__ = ("topic", "partition", "offset", "max_bytes", "topic_id", "current_leader_epoch", "locations_bytes_min")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_BYTES_MIN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    max_bytes: int
    topic_id: str
    current_leader_epoch: int
    locations_bytes_min: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., topic_id: _Optional[str] = ..., current_leader_epoch: _Optional[int] = ..., locations_bytes_min: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[FetchedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[FetchedPartition, _Mapping]]] = ...) -> None: ...

class FetchedPartition(_message.Message):
    __slots__ = ("topic", "partition", "error", "high_watermark", "log_start_offset", "next_offset", "record_batches", "records", "leader_epoch", "preferred_broker", "locations")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_BATCHES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_BROKER_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: _status_pb2.Status
    high_watermark: int
    log_start_offset: int
    next_offset: int
    record_batches: bytes
    records: _containers.RepeatedCompositeFieldContainer[Record]
    leader_epoch: int
    preferred_broker: PreferredBroker
    locations: RecordLocations
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., record_batches: _Optional[bytes] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., leader_epoch: _Optional[int] = ..., preferred_broker: _Optional[_Union[PreferredBroker, _Mapping]] = ..., locations: _Optional[_Union[RecordLocations, _Mapping]] = ...) -> None: ...

class PreferredBroker(_message.Message):
    __slots__ = ("broker_id", "grpc_address", "http_address")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    grpc_address: str
    http_address: str
    def __init__(self, broker_id: _Optional[str] = ..., grpc_address: _Optional[str] = ..., http_address: _Optional[str] = ...) -> None: ...

class RecordLocations(_message.Message):
    __slots__ = ("manifest_version", "runs")
    MANIFEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    manifest_version: int
    runs: _containers.RepeatedCompositeFieldContainer[SegmentRun]
    def __init__(self, manifest_version: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[SegmentRun, _Mapping]]] = ...) -> None: ...

class SegmentRun(_message.Message):
    __slots__ = ("base_offset", "last_offset", "session", "seq", "start", "end", "leader_epoch", "max_timestamp")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    last_offset: int
    session: int
    seq: int
    start: int
    end: int
    leader_epoch: int
    max_timestamp: int
    def __init__(self, base_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., session: _Optional[int] = ..., seq: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., max_timestamp: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("queries",)
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedCompositeFieldContainer[OffsetQuery]
    def __init__(self, queries: _Optional[_Iterable[_Union[OffsetQuery, _Mapping]]] = ...) -> None: ...

class OffsetQuery(_message.Message):
    __slots__ = ("topic", "partition", "earliest", "latest", "timestamp_ms", "max_timestamp", "topic_id", "current_leader_epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    earliest: bool
    latest: bool
    timestamp_ms: int
    max_timestamp: bool
    topic_id: str
    current_leader_epoch: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ..., max_timestamp: _Optional[bool] = ..., topic_id: _Optional[str] = ..., current_leader_epoch: _Optional[int] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[OffsetResult]
    def __init__(self, results: _Optional[_Iterable[_Union[OffsetResult, _Mapping]]] = ...) -> None: ...

class OffsetResult(_message.Message):
    __slots__ = ("error", "offset", "timestamp_ms", "leader_epoch", "record_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _status_pb2.Status
    offset: int
    timestamp_ms: int
    leader_epoch: int
    record_epoch: int
    def __init__(self, error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., record_epoch: _Optional[int] = ...) -> None: ...

class OffsetForLeaderEpochRequest(_message.Message):
    __slots__ = ("queries",)
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedCompositeFieldContainer[LeaderEpochQuery]
    def __init__(self, queries: _Optional[_Iterable[_Union[LeaderEpochQuery, _Mapping]]] = ...) -> None: ...

class LeaderEpochQuery(_message.Message):
    __slots__ = ("topic", "partition", "leader_epoch", "topic_id", "current_leader_epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    leader_epoch: int
    topic_id: str
    current_leader_epoch: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., topic_id: _Optional[str] = ..., current_leader_epoch: _Optional[int] = ...) -> None: ...

class OffsetForLeaderEpochResponse(_message.Message):
    __slots__ = ("ends",)
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[EpochEnd]
    def __init__(self, ends: _Optional[_Iterable[_Union[EpochEnd, _Mapping]]] = ...) -> None: ...

class EpochEnd(_message.Message):
    __slots__ = ("error", "leader_epoch", "end_offset")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    error: _status_pb2.Status
    leader_epoch: int
    end_offset: int
    def __init__(self, error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("topic", "partition", "before_offset", "topic_id", "validate_only")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    before_offset: int
    topic_id: str
    validate_only: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., before_offset: _Optional[int] = ..., topic_id: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("log_start_offset",)
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    log_start_offset: int
    def __init__(self, log_start_offset: _Optional[int] = ...) -> None: ...

class FindWrittenOnceRequest(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions", "producer_id", "topic_revision")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_REVISION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    producer_id: int
    topic_revision: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., producer_id: _Optional[int] = ..., topic_revision: _Optional[int] = ...) -> None: ...

class FindWrittenOnceResponse(_message.Message):
    __slots__ = ("written", "topic_revision")
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_REVISION_FIELD_NUMBER: _ClassVar[int]
    written: _containers.RepeatedCompositeFieldContainer[WrittenOnce]
    topic_revision: int
    def __init__(self, written: _Optional[_Iterable[_Union[WrittenOnce, _Mapping]]] = ..., topic_revision: _Optional[int] = ...) -> None: ...

class WrittenOnce(_message.Message):
    __slots__ = ("partition", "producer_epoch", "base_sequence", "last_sequence", "base_offset", "last_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    def __init__(self, partition: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., base_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., base_offset: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("start", "commit", "released", "pause", "resume", "credit_bytes", "leave")
    START_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    start: ConsumeStart
    commit: ConsumeCommit
    released: int
    pause: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicPartitions]
    resume: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicPartitions]
    credit_bytes: int
    leave: bool
    def __init__(self, start: _Optional[_Union[ConsumeStart, _Mapping]] = ..., commit: _Optional[_Union[ConsumeCommit, _Mapping]] = ..., released: _Optional[int] = ..., pause: _Optional[_Iterable[_Union[_groups_pb2.TopicPartitions, _Mapping]]] = ..., resume: _Optional[_Iterable[_Union[_groups_pb2.TopicPartitions, _Mapping]]] = ..., credit_bytes: _Optional[int] = ..., leave: _Optional[bool] = ...) -> None: ...

class ConsumeStart(_message.Message):
    __slots__ = ("topics", "group", "starts", "auto_offset_reset", "format", "max_bytes", "heartbeat_interval_ms", "client_rack", "instance_id", "client_id", "session_timeout_ms", "max_poll_interval_ms", "assignors")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    AUTO_OFFSET_RESET_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_RACK_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_POLL_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNORS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    group: str
    starts: _containers.RepeatedCompositeFieldContainer[ConsumeFrom]
    auto_offset_reset: AutoOffsetReset
    format: FetchFormat
    max_bytes: int
    heartbeat_interval_ms: int
    client_rack: str
    instance_id: str
    client_id: str
    session_timeout_ms: int
    max_poll_interval_ms: int
    assignors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., group: _Optional[str] = ..., starts: _Optional[_Iterable[_Union[ConsumeFrom, _Mapping]]] = ..., auto_offset_reset: _Optional[_Union[AutoOffsetReset, str]] = ..., format: _Optional[_Union[FetchFormat, str]] = ..., max_bytes: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., client_rack: _Optional[str] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., max_poll_interval_ms: _Optional[int] = ..., assignors: _Optional[_Iterable[str]] = ...) -> None: ...

class ConsumeFrom(_message.Message):
    __slots__ = ("topic", "partition", "offset", "earliest", "latest", "timestamp_ms", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    earliest: bool
    latest: bool
    timestamp_ms: int
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ..., topic_id: _Optional[str] = ...) -> None: ...

class ConsumeCommit(_message.Message):
    __slots__ = ("commit_id", "up_to_delivery_id", "offsets")
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    UP_TO_DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    commit_id: int
    up_to_delivery_id: int
    offsets: _containers.RepeatedCompositeFieldContainer[_groups_pb2.CommittedOffset]
    def __init__(self, commit_id: _Optional[int] = ..., up_to_delivery_id: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[_groups_pb2.CommittedOffset, _Mapping]]] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("data", "assigned", "revoked", "lost", "committed", "progress")
    DATA_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    data: ConsumedData
    assigned: PartitionsAssigned
    revoked: PartitionsRevoked
    lost: PartitionsLost
    committed: CommitOutcome
    progress: ConsumeProgress
    def __init__(self, data: _Optional[_Union[ConsumedData, _Mapping]] = ..., assigned: _Optional[_Union[PartitionsAssigned, _Mapping]] = ..., revoked: _Optional[_Union[PartitionsRevoked, _Mapping]] = ..., lost: _Optional[_Union[PartitionsLost, _Mapping]] = ..., committed: _Optional[_Union[CommitOutcome, _Mapping]] = ..., progress: _Optional[_Union[ConsumeProgress, _Mapping]] = ...) -> None: ...

class ConsumedData(_message.Message):
    __slots__ = ("partitions", "delivery_id")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[FetchedPartition]
    delivery_id: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[FetchedPartition, _Mapping]]] = ..., delivery_id: _Optional[int] = ...) -> None: ...

class PartitionsAssigned(_message.Message):
    __slots__ = ("partitions", "generation", "member_id")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicPartitions]
    generation: int
    member_id: str
    def __init__(self, partitions: _Optional[_Iterable[_Union[_groups_pb2.TopicPartitions, _Mapping]]] = ..., generation: _Optional[int] = ..., member_id: _Optional[str] = ...) -> None: ...

class PartitionsRevoked(_message.Message):
    __slots__ = ("partitions", "revocation_id", "within_ms")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REVOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicPartitions]
    revocation_id: int
    within_ms: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[_groups_pb2.TopicPartitions, _Mapping]]] = ..., revocation_id: _Optional[int] = ..., within_ms: _Optional[int] = ...) -> None: ...

class PartitionsLost(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicPartitions]
    def __init__(self, partitions: _Optional[_Iterable[_Union[_groups_pb2.TopicPartitions, _Mapping]]] = ...) -> None: ...

class CommitOutcome(_message.Message):
    __slots__ = ("commit_id", "results")
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    commit_id: int
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    def __init__(self, commit_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ...) -> None: ...

class CommitResult(_message.Message):
    __slots__ = ("topic", "partition", "offset", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    error: _status_pb2.Status
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ConsumeProgress(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProgress]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionProgress, _Mapping]]] = ...) -> None: ...

class PartitionProgress(_message.Message):
    __slots__ = ("topic", "partition", "next_offset", "high_watermark")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    next_offset: int
    high_watermark: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ...) -> None: ...
