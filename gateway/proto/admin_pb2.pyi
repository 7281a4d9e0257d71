from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Topic(_message.Message):
    __slots__ = ("name", "id", "partition_count", "settings", "created_at_ms", "partitions", "batch_bytes_max", "first_leader_epoch")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    FIRST_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    partition_count: int
    settings: _containers.ScalarMap[str, str]
    created_at_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionState]
    batch_bytes_max: int
    first_leader_epoch: int
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ..., partition_count: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ..., created_at_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionState, _Mapping]]] = ..., batch_bytes_max: _Optional[int] = ..., first_leader_epoch: _Optional[int] = ...) -> None: ...

class PartitionState(_message.Message):
    __slots__ = ("partition", "log_start_offset", "high_watermark", "leader_epoch", "leader", "leader_http_address", "leader_grpc_address", "error")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEADER_GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    partition: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    leader: str
    leader_http_address: str
    leader_grpc_address: str
    error: _status_pb2.Status
    def __init__(self, partition: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., leader: _Optional[str] = ..., leader_http_address: _Optional[str] = ..., leader_grpc_address: _Optional[str] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "validate_only")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    validate_only: bool
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("name", "leaders_only", "fresh", "refuse_outdated")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEADERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    REFUSE_OUTDATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    leaders_only: bool
    fresh: bool
    refuse_outdated: bool
    def __init__(self, name: _Optional[str] = ..., leaders_only: _Optional[bool] = ..., fresh: _Optional[bool] = ..., refuse_outdated: _Optional[bool] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "fresh", "refuse_outdated")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    REFUSE_OUTDATED_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    fresh: bool
    refuse_outdated: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., fresh: _Optional[bool] = ..., refuse_outdated: _Optional[bool] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "next_page_token")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    next_page_token: str
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("topic", "update_mask", "validate_only")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    update_mask: _field_mask_pb2.FieldMask
    validate_only: bool
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "validate_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterDescription(_message.Message):
    __slots__ = ("cluster_id", "version", "bucket", "brokers", "metadata_age_ms")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    METADATA_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    version: str
    bucket: str
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    metadata_age_ms: int
    def __init__(self, cluster_id: _Optional[str] = ..., version: _Optional[str] = ..., bucket: _Optional[str] = ..., brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ..., metadata_age_ms: _Optional[int] = ...) -> None: ...

class Broker(_message.Message):
    __slots__ = ("broker_id", "http_address", "grpc_address", "session", "draining", "limits", "rack", "version", "partitions_led", "controller")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_LED_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    http_address: str
    grpc_address: str
    session: int
    draining: bool
    limits: BrokerLimits
    rack: str
    version: str
    partitions_led: int
    controller: bool
    def __init__(self, broker_id: _Optional[str] = ..., http_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., session: _Optional[int] = ..., draining: _Optional[bool] = ..., limits: _Optional[_Union[BrokerLimits, _Mapping]] = ..., rack: _Optional[str] = ..., version: _Optional[str] = ..., partitions_led: _Optional[int] = ..., controller: _Optional[bool] = ...) -> None: ...

class BrokerLimits(_message.Message):
    __slots__ = ("request_bytes_max", "message_bytes_max", "buffer_bytes_max", "decompressed_bytes_max")
    REQUEST_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    DECOMPRESSED_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    request_bytes_max: int
    message_bytes_max: int
    buffer_bytes_max: int
    decompressed_bytes_max: int
    def __init__(self, request_bytes_max: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., buffer_bytes_max: _Optional[int] = ..., decompressed_bytes_max: _Optional[int] = ...) -> None: ...

class ListBrokersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBrokersResponse(_message.Message):
    __slots__ = ("brokers",)
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    def __init__(self, brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ...) -> None: ...

class DrainBrokerRequest(_message.Message):
    __slots__ = ("broker_id", "validate_only")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    validate_only: bool
    def __init__(self, broker_id: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class UndrainBrokerRequest(_message.Message):
    __slots__ = ("broker_id", "validate_only")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    validate_only: bool
    def __init__(self, broker_id: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class BrokerDrain(_message.Message):
    __slots__ = ("broker_id", "draining", "partitions_led")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_LED_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    draining: bool
    partitions_led: int
    def __init__(self, broker_id: _Optional[str] = ..., draining: _Optional[bool] = ..., partitions_led: _Optional[int] = ...) -> None: ...

class ExplainOffsetRequest(_message.Message):
    __slots__ = ("topic", "partition", "offset", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., topic_id: _Optional[str] = ...) -> None: ...

class ExplainOffsetResponse(_message.Message):
    __slots__ = ("tier", "object_key", "range_start", "range_end", "base_offset", "last_offset", "leader_epoch", "batch_crc32c", "in_tail_cache", "session", "segment_seq", "row_group", "file_checksum")
    TIER_FIELD_NUMBER: _ClassVar[int]
    OBJECT_KEY_FIELD_NUMBER: _ClassVar[int]
    RANGE_START_FIELD_NUMBER: _ClassVar[int]
    RANGE_END_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_CRC32C_FIELD_NUMBER: _ClassVar[int]
    IN_TAIL_CACHE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SEQ_FIELD_NUMBER: _ClassVar[int]
    ROW_GROUP_FIELD_NUMBER: _ClassVar[int]
    FILE_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    tier: str
    object_key: str
    range_start: int
    range_end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    batch_crc32c: int
    in_tail_cache: bool
    session: int
    segment_seq: int
    row_group: int
    file_checksum: str
    def __init__(self, tier: _Optional[str] = ..., object_key: _Optional[str] = ..., range_start: _Optional[int] = ..., range_end: _Optional[int] = ..., base_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., batch_crc32c: _Optional[int] = ..., in_tail_cache: _Optional[bool] = ..., session: _Optional[int] = ..., segment_seq: _Optional[int] = ..., row_group: _Optional[int] = ..., file_checksum: _Optional[str] = ...) -> None: ...

class DescribeUsageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerUsage(_message.Message):
    __slots__ = ("uptime_seconds", "topics", "requests", "compacts", "segments", "topics_left_out")
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    COMPACTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    uptime_seconds: float
    topics: _containers.RepeatedCompositeFieldContainer[TopicUsage]
    requests: _containers.RepeatedCompositeFieldContainer[BucketRequests]
    compacts: bool
    segments: int
    topics_left_out: int
    def __init__(self, uptime_seconds: _Optional[float] = ..., topics: _Optional[_Iterable[_Union[TopicUsage, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[BucketRequests, _Mapping]]] = ..., compacts: _Optional[bool] = ..., segments: _Optional[int] = ..., topics_left_out: _Optional[int] = ...) -> None: ...

class TopicUsage(_message.Message):
    __slots__ = ("topic_id", "partitions", "segment_bytes", "parquet_bytes", "parquet_files", "bytes_in_per_second", "bytes_out_per_second", "history")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARQUET_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARQUET_FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    topic_id: str
    partitions: int
    segment_bytes: int
    parquet_bytes: int
    parquet_files: int
    bytes_in_per_second: float
    bytes_out_per_second: float
    history: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, topic_id: _Optional[str] = ..., partitions: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., parquet_bytes: _Optional[int] = ..., parquet_files: _Optional[int] = ..., bytes_in_per_second: _Optional[float] = ..., bytes_out_per_second: _Optional[float] = ..., history: _Optional[_Iterable[float]] = ...) -> None: ...

class BucketRequests(_message.Message):
    __slots__ = ("operation", "kind", "requests", "bytes")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    operation: str
    kind: str
    requests: int
    bytes: int
    def __init__(self, operation: _Optional[str] = ..., kind: _Optional[str] = ..., requests: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Scope(_message.Message):
    __slots__ = ("operation", "resource", "name", "pattern")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    operation: str
    resource: str
    name: str
    pattern: str
    def __init__(self, operation: _Optional[str] = ..., resource: _Optional[str] = ..., name: _Optional[str] = ..., pattern: _Optional[str] = ...) -> None: ...

class ApiKey(_message.Message):
    __slots__ = ("key_id", "principal", "description", "state", "created_at_ms", "created_by", "expires_at_ms", "revoked_at_ms", "scopes")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    principal: str
    description: str
    state: str
    created_at_ms: int
    created_by: str
    expires_at_ms: int
    revoked_at_ms: int
    scopes: _containers.RepeatedCompositeFieldContainer[Scope]
    def __init__(self, key_id: _Optional[str] = ..., principal: _Optional[str] = ..., description: _Optional[str] = ..., state: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., created_by: _Optional[str] = ..., expires_at_ms: _Optional[int] = ..., revoked_at_ms: _Optional[int] = ..., scopes: _Optional[_Iterable[_Union[Scope, _Mapping]]] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("principal", "description", "expires_at_ms", "scopes", "validate_only")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    principal: str
    description: str
    expires_at_ms: int
    scopes: _containers.RepeatedCompositeFieldContainer[Scope]
    validate_only: bool
    def __init__(self, principal: _Optional[str] = ..., description: _Optional[str] = ..., expires_at_ms: _Optional[int] = ..., scopes: _Optional[_Iterable[_Union[Scope, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class CreatedKey(_message.Message):
    __slots__ = ("key", "text")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    key: ApiKey
    text: str
    def __init__(self, key: _Optional[_Union[ApiKey, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "next_page_token", "errors")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ApiKey]
    next_page_token: str
    errors: _containers.RepeatedCompositeFieldContainer[_status_pb2.Status]
    def __init__(self, keys: _Optional[_Iterable[_Union[ApiKey, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[_status_pb2.Status, _Mapping]]] = ...) -> None: ...

class RevokeKeyRequest(_message.Message):
    __slots__ = ("key_id", "validate_only")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    validate_only: bool
    def __init__(self, key_id: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class Acl(_message.Message):
    __slots__ = ("acl_id", "principal", "effect", "operation", "resource", "name", "pattern")
    ACL_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    acl_id: str
    principal: str
    effect: str
    operation: str
    resource: str
    name: str
    pattern: str
    def __init__(self, acl_id: _Optional[str] = ..., principal: _Optional[str] = ..., effect: _Optional[str] = ..., operation: _Optional[str] = ..., resource: _Optional[str] = ..., name: _Optional[str] = ..., pattern: _Optional[str] = ...) -> None: ...

class CreateAclRequest(_message.Message):
    __slots__ = ("acl", "validate_only")
    ACL_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    acl: Acl
    validate_only: bool
    def __init__(self, acl: _Optional[_Union[Acl, _Mapping]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class ListAclsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAclsResponse(_message.Message):
    __slots__ = ("acls", "next_page_token", "errors")
    ACLS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    acls: _containers.RepeatedCompositeFieldContainer[Acl]
    next_page_token: str
    errors: _containers.RepeatedCompositeFieldContainer[_status_pb2.Status]
    def __init__(self, acls: _Optional[_Iterable[_Union[Acl, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[_status_pb2.Status, _Mapping]]] = ...) -> None: ...

class DeleteAclRequest(_message.Message):
    __slots__ = ("acl_id", "validate_only")
    ACL_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    acl_id: str
    validate_only: bool
    def __init__(self, acl_id: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("principal", "bytes_in_per_second", "bytes_out_per_second", "requests_per_second")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    principal: str
    bytes_in_per_second: int
    bytes_out_per_second: int
    requests_per_second: int
    def __init__(self, principal: _Optional[str] = ..., bytes_in_per_second: _Optional[int] = ..., bytes_out_per_second: _Optional[int] = ..., requests_per_second: _Optional[int] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("quota", "validate_only")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    quota: Quota
    validate_only: bool
    def __init__(self, quota: _Optional[_Union[Quota, _Mapping]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas", "next_page_token", "errors")
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    next_page_token: str
    errors: _containers.RepeatedCompositeFieldContainer[_status_pb2.Status]
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[_status_pb2.Status, _Mapping]]] = ...) -> None: ...

class DeleteQuotaRequest(_message.Message):
    __slots__ = ("principal", "validate_only")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    principal: str
    validate_only: bool
    def __init__(self, principal: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...
