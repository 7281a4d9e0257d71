from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindCoordinatorRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class FindCoordinatorResponse(_message.Message):
    __slots__ = ("broker_id", "http_address", "grpc_address")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    http_address: str
    grpc_address: str
    def __init__(self, broker_id: _Optional[str] = ..., http_address: _Optional[str] = ..., grpc_address: _Optional[str] = ...) -> None: ...

class GroupProtocol(_message.Message):
    __slots__ = ("name", "metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: bytes
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "protocol_type", "protocols", "session_timeout_ms", "rebalance_timeout_ms", "client_id", "member_id_required", "client_host")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    protocol_type: str
    protocols: _containers.RepeatedCompositeFieldContainer[GroupProtocol]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    member_id_required: bool
    client_host: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., protocol_type: _Optional[str] = ..., protocols: _Optional[_Iterable[_Union[GroupProtocol, _Mapping]]] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., client_id: _Optional[str] = ..., member_id_required: _Optional[bool] = ..., client_host: _Optional[str] = ...) -> None: ...

class JoinGroupResponse(_message.Message):
    __slots__ = ("generation", "protocol_type", "protocol", "leader", "member_id", "members", "skip_assignment")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SKIP_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: _containers.RepeatedCompositeFieldContainer[JoinedMember]
    skip_assignment: bool
    def __init__(self, generation: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., leader: _Optional[str] = ..., member_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[JoinedMember, _Mapping]]] = ..., skip_assignment: _Optional[bool] = ...) -> None: ...

class JoinedMember(_message.Message):
    __slots__ = ("member_id", "instance_id", "metadata")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    metadata: bytes
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class SyncGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "generation", "protocol_type", "protocol", "assignments")
    class AssignmentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    generation: int
    protocol_type: str
    protocol: str
    assignments: _containers.ScalarMap[str, bytes]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., assignments: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class SyncGroupResponse(_message.Message):
    __slots__ = ("assignment", "protocol_type", "protocol")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    assignment: bytes
    protocol_type: str
    protocol: str
    def __init__(self, assignment: _Optional[bytes] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "generation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    generation: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConsumerHeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "epoch", "instance_id", "rack", "rebalance_timeout_ms", "topics", "pattern", "assignor", "owned", "client_id", "client_host")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    epoch: int
    instance_id: str
    rack: str
    rebalance_timeout_ms: int
    topics: SubscribedTopics
    pattern: str
    assignor: str
    owned: AssignedPartitions
    client_id: str
    client_host: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., epoch: _Optional[int] = ..., instance_id: _Optional[str] = ..., rack: _Optional[str] = ..., rebalance_timeout_ms: _Optional[int] = ..., topics: _Optional[_Union[SubscribedTopics, _Mapping]] = ..., pattern: _Optional[str] = ..., assignor: _Optional[str] = ..., owned: _Optional[_Union[AssignedPartitions, _Mapping]] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ...) -> None: ...

class SubscribedTopics(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class AssignedPartitions(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[AssignedTopic]
    def __init__(self, topics: _Optional[_Iterable[_Union[AssignedTopic, _Mapping]]] = ...) -> None: ...

class AssignedTopic(_message.Message):
    __slots__ = ("topic_id", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class ConsumerHeartbeatResponse(_message.Message):
    __slots__ = ("member_id", "epoch", "assignment", "interval_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    epoch: int
    assignment: AssignedPartitions
    interval_ms: int
    def __init__(self, member_id: _Optional[str] = ..., epoch: _Optional[int] = ..., assignment: _Optional[_Union[AssignedPartitions, _Mapping]] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("group", "members")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    members: _containers.RepeatedCompositeFieldContainer[LeavingMember]
    def __init__(self, group: _Optional[str] = ..., members: _Optional[_Iterable[_Union[LeavingMember, _Mapping]]] = ...) -> None: ...

class LeavingMember(_message.Message):
    __slots__ = ("member_id", "instance_id")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[_status_pb2.Status]
    def __init__(self, errors: _Optional[_Iterable[_Union[_status_pb2.Status, _Mapping]]] = ...) -> None: ...

class OffsetCommitRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "generation", "offsets", "only_forward")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ONLY_FORWARD_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    generation: int
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    only_forward: bool
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ..., only_forward: _Optional[bool] = ...) -> None: ...

class CommittedOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "leader_epoch", "metadata", "committed_at_ms", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., committed_at_ms: _Optional[int] = ..., topic_id: _Optional[str] = ...) -> None: ...

class OffsetCommitResponse(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[_status_pb2.Status]
    def __init__(self, errors: _Optional[_Iterable[_Union[_status_pb2.Status, _Mapping]]] = ...) -> None: ...

class OffsetFetchRequest(_message.Message):
    __slots__ = ("group", "topics", "of_unknown_topics", "member_id", "member_epoch")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    OF_UNKNOWN_TOPICS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    of_unknown_topics: bool
    member_id: str
    member_epoch: int
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., of_unknown_topics: _Optional[bool] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., topic_id: _Optional[str] = ...) -> None: ...

class OffsetFetchResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[FetchedOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[FetchedOffset, _Mapping]]] = ...) -> None: ...

class FetchedOffset(_message.Message):
    __slots__ = ("error", "topic", "partition", "offset", "leader_epoch", "metadata", "committed_at_ms", "topic_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    error: _status_pb2.Status
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    topic_id: str
    def __init__(self, error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., committed_at_ms: _Optional[int] = ..., topic_id: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "next_page_token")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ListedGroup]
    next_page_token: str
    def __init__(self, groups: _Optional[_Iterable[_Union[ListedGroup, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListedGroup(_message.Message):
    __slots__ = ("group", "state", "protocol_type", "members", "coordinator", "type")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: str
    protocol_type: str
    members: int
    coordinator: str
    type: str
    def __init__(self, group: _Optional[str] = ..., state: _Optional[str] = ..., protocol_type: _Optional[str] = ..., members: _Optional[int] = ..., coordinator: _Optional[str] = ..., type: _Optional[str] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group", "without_lags")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_LAGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    without_lags: bool
    def __init__(self, group: _Optional[str] = ..., without_lags: _Optional[bool] = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group", "state", "generation", "protocol_type", "protocol", "leader", "coordinator", "members", "lags", "lag_records", "lag_seconds", "type")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LAGS_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    coordinator: str
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    lags: _containers.RepeatedCompositeFieldContainer[PartitionLag]
    lag_records: int
    lag_seconds: float
    type: str
    def __init__(self, group: _Optional[str] = ..., state: _Optional[str] = ..., generation: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., leader: _Optional[str] = ..., coordinator: _Optional[str] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., lags: _Optional[_Iterable[_Union[PartitionLag, _Mapping]]] = ..., lag_records: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., type: _Optional[str] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "instance_id", "client_id", "client_host", "metadata", "assignment", "session_timeout_ms", "rebalance_timeout_ms", "consumer")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    session_timeout_ms: int
    rebalance_timeout_ms: int
    consumer: ConsumerMember
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., metadata: _Optional[bytes] = ..., assignment: _Optional[bytes] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., consumer: _Optional[_Union[ConsumerMember, _Mapping]] = ...) -> None: ...

class ConsumerMember(_message.Message):
    __slots__ = ("epoch", "rack", "topics", "pattern", "assigned", "target")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    rack: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    assigned: AssignedPartitions
    target: AssignedPartitions
    def __init__(self, epoch: _Optional[int] = ..., rack: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ..., assigned: _Optional[_Union[AssignedPartitions, _Mapping]] = ..., target: _Optional[_Union[AssignedPartitions, _Mapping]] = ...) -> None: ...

class PartitionLag(_message.Message):
    __slots__ = ("topic", "partition", "error", "committed_offset", "high_watermark", "log_start_offset", "lag_records", "lag_seconds", "member_id", "metadata", "committed_at_ms", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: _status_pb2.Status
    committed_offset: int
    high_watermark: int
    log_start_offset: int
    lag_records: int
    lag_seconds: float
    member_id: str
    metadata: str
    committed_at_ms: int
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., committed_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., lag_records: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., member_id: _Optional[str] = ..., metadata: _Optional[str] = ..., committed_at_ms: _Optional[int] = ..., topic_id: _Optional[str] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group", "validate_only")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    group: str
    validate_only: bool
    def __init__(self, group: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteOffsetsRequest(_message.Message):
    __slots__ = ("group", "topics", "validate_only")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    validate_only: bool
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class DeleteOffsetsResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: _containers.RepeatedCompositeFieldContainer[FetchedOffset]
    def __init__(self, deleted: _Optional[_Iterable[_Union[FetchedOffset, _Mapping]]] = ...) -> None: ...

class SeekGroupRequest(_message.Message):
    __slots__ = ("group", "topics", "earliest", "latest", "timestamp_ms", "offset", "shift", "validate_only")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    earliest: bool
    latest: bool
    timestamp_ms: int
    offset: int
    shift: int
    validate_only: bool
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ..., offset: _Optional[int] = ..., shift: _Optional[int] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class SeekGroupResponse(_message.Message):
    __slots__ = ("moved",)
    MOVED_FIELD_NUMBER: _ClassVar[int]
    moved: _containers.RepeatedCompositeFieldContainer[MovedOffset]
    def __init__(self, moved: _Optional[_Iterable[_Union[MovedOffset, _Mapping]]] = ...) -> None: ...

class MovedOffset(_message.Message):
    __slots__ = ("error", "topic", "partition", "before", "after", "topic_id", "reason", "asked")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    error: _status_pb2.Status
    topic: str
    partition: int
    before: int
    after: int
    topic_id: str
    reason: str
    asked: int
    def __init__(self, error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., before: _Optional[int] = ..., after: _Optional[int] = ..., topic_id: _Optional[str] = ..., reason: _Optional[str] = ..., asked: _Optional[int] = ...) -> None: ...

class SeenBrokersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SeenBroker(_message.Message):
    __slots__ = ("broker_id", "revision")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    revision: int
    def __init__(self, broker_id: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class SeenBrokersResponse(_message.Message):
    __slots__ = ("brokers", "revision", "proven_ms_ago")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PROVEN_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[SeenBroker]
    revision: int
    proven_ms_ago: int
    def __init__(self, brokers: _Optional[_Iterable[_Union[SeenBroker, _Mapping]]] = ..., revision: _Optional[int] = ..., proven_ms_ago: _Optional[int] = ...) -> None: ...

class WatchedGroup(_message.Message):
    __slots__ = ("group", "requested_ms_ago", "store_id", "after")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    group: str
    requested_ms_ago: int
    store_id: str
    after: int
    def __init__(self, group: _Optional[str] = ..., requested_ms_ago: _Optional[int] = ..., store_id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class ListLagSamplesRequest(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[WatchedGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[WatchedGroup, _Mapping]]] = ...) -> None: ...

class TopicLagSamples(_message.Message):
    __slots__ = ("topic", "lag_records", "lag_seconds")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    lag_records: _containers.RepeatedScalarFieldContainer[int]
    lag_seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, topic: _Optional[str] = ..., lag_records: _Optional[_Iterable[int]] = ..., lag_seconds: _Optional[_Iterable[float]] = ...) -> None: ...

class GroupLagSamples(_message.Message):
    __slots__ = ("group", "last", "at_ms", "lag_records", "lag_seconds", "topics", "topics_left_out")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    group: str
    last: int
    at_ms: _containers.RepeatedScalarFieldContainer[int]
    lag_records: _containers.RepeatedScalarFieldContainer[int]
    lag_seconds: _containers.RepeatedScalarFieldContainer[float]
    topics: _containers.RepeatedCompositeFieldContainer[TopicLagSamples]
    topics_left_out: int
    def __init__(self, group: _Optional[str] = ..., last: _Optional[int] = ..., at_ms: _Optional[_Iterable[int]] = ..., lag_records: _Optional[_Iterable[int]] = ..., lag_seconds: _Optional[_Iterable[float]] = ..., topics: _Optional[_Iterable[_Union[TopicLagSamples, _Mapping]]] = ..., topics_left_out: _Optional[int] = ...) -> None: ...

class ListLagSamplesResponse(_message.Message):
    __slots__ = ("store_id", "groups")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupLagSamples]
    def __init__(self, store_id: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupLagSamples, _Mapping]]] = ...) -> None: ...
