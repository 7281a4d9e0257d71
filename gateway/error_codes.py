"""The one table from the error tree to what each door answers: gRPC status, HTTP status, Kafka error code. No I/O.

Invariant: every class of metadata/errors.py has a row of its own here, which a test proves; a class from elsewhere answers as
its nearest parent does.

What a client may conclude from the columns alone:

    gRPC   UNAVAILABLE, RESOURCE_EXHAUSTED    nothing was written; retry       (AIP-194)
           ABORTED                            read again, then decide          (a lost test-and-set; a rebalance)
           DEADLINE_EXCEEDED                  the outcome is unknown
    HTTP   429, 503                           nothing was written; retry after Retry-After
           504                                the outcome is unknown
    Kafka  produce        2 3 6 7 19 56          sent again with the same sequence; 3 and 2 as well, as Kafka does
           fetch          0 6 56 74 75           asked again. The column holds only codes that Java's consumer takes: others raise
                                                 IllegalStateException into the application
           list_offsets   3 6 56 74 75           asked again
           group          7 15 16                asked again; 22 25 27: join again, then decide
           transaction    7 15 16 51             asked again
           admin          7 41 89                asked again; 89 only of CreateTopics, DeleteTopics and CreatePartitions

Versions decide the rest, which is the listener's part: a topic that is named by its id is 100 (UNKNOWN_TOPIC_ID), 56 is 6 in Fetch
up to version 5 and Produce up to 3, and 90 is 47 where a version of the transaction APIs does not know it.

Sources: google/rpc/code.proto, RFC 9110 §15, https://kafka.apache.org/protocol#protocol_error_codes

What is wrong with a request as HTTP, before it means anything to the log.

They stand under Rejected in the error tree; error_codes.py has their status.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from grpc import StatusCode

from metadata.errors import (
    AlreadyExists,
    ConditionFailed,
    Corrupt,
    Denied,
    Fenced,
    FencedLeaderEpoch,
    GroupFull,
    GroupNotEmpty,
    GroupSubscribed,
    IdempotencyKeyReused,
    InconsistentProtocol,
    InstanceFenced,
    InvalidArgument,
    InvalidGroupName,
    InvalidName,
    InvalidRecord,
    InvalidTimestamp,
    MemberIdRequired,
    NoCoordinator,
    NoLeader,
    NotAuthorized,
    NotCoordinator,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    OutOfRange,
    ProducerFenced,
    RebalanceInProgress,
    Rejected,
    SessionFenced,
    StaleGeneration,
    StaleMember,
    StaleRouting,
    Stopping,
    Throttled,
    TidelogError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownGroup,
    UnknownLeaderEpoch,
    UnknownMember,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
)

# Of a path that is told back.
PATH_CHARACTERS_MAX: Final = 300


class UnknownRoute(NotFound):
    code = "UNKNOWN_ROUTE"
    default_hint = "GET /openapi.json lists every route."


class MethodNotAllowed(Rejected):
    """405. The door adds an Allow header."""

    code = "METHOD_NOT_ALLOWED"


class NotAcceptable(Rejected):
    """406: no format of the answer is one that the client takes."""

    code = "NOT_ACCEPTABLE"


class UnsupportedMediaType(Rejected):
    """415: the body is of a type that the route does not read."""

    code = "UNSUPPORTED_MEDIA_TYPE"


class BodyTooSlow(Rejected):
    """408: the body came slower than body_bytes_per_second_min, and held memory that others wait for."""

    code = "BODY_TOO_SLOW"
    retryable = True
    default_hint = "Send smaller requests over a slow line."


KafkaApiGroup = Literal["produce", "fetch", "list_offsets", "group", "transaction", "admin"]


class ErrorCodes(NamedTuple):
    """The codes of one class of errors. Those from `produce` on are Kafka's, by the group of APIs that answers."""

    grpc: StatusCode
    http: int
    # Produce.
    produce: int
    # Fetch, by partition. 0: the partition is answered without records, and the answer has a throttle time.
    fetch: int
    # ListOffsets, OffsetForLeaderEpoch.
    list_offsets: int
    # JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch, OffsetDelete, Describe-, List- and DeleteGroups.
    group: int
    # InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit.
    transaction: int
    # Topics, configs, DeleteRecords, ACLs, quotas.
    admin: int


# fmt: off
WIRE_CODES: Final[dict[type[TidelogError], ErrorCodes]] = {
    #                                                                 HTTP  produce fetch list_offsets group transaction admin
    TidelogError:          ErrorCodes(StatusCode.INTERNAL,             500,   -1,      -1,      -1,      -1,      -1,      -1),
    Rejected:              ErrorCodes(StatusCode.INVALID_ARGUMENT,     400,   42,      -1,      42,      42,      42,      42),
    InvalidArgument:       ErrorCodes(StatusCode.INVALID_ARGUMENT,     400,   42,      -1,      42,      42,      42,      42),
    InvalidName:           ErrorCodes(StatusCode.INVALID_ARGUMENT,     400,   17,       3,      17,       3,       3,      17),
    InvalidRecord:         ErrorCodes(StatusCode.INVALID_ARGUMENT,     400,   87,      -1,      42,      42,      42,      42),
    InvalidTimestamp:      ErrorCodes(StatusCode.INVALID_ARGUMENT,     400,   32,      -1,      42,      42,      42,      42),
    InvalidGroupName:      ErrorCodes(StatusCode.INVALID_ARGUMENT,     400,   42,      -1,      42,      24,      24,      24),
    InconsistentProtocol:  ErrorCodes(StatusCode.INVALID_ARGUMENT,     400,   42,      -1,      42,      23,      23,      23),
    NotFound:              ErrorCodes(StatusCode.NOT_FOUND,            404,   42,      -1,      42,      42,      42,      42),
    UnknownTopic:          ErrorCodes(StatusCode.NOT_FOUND,            404,    3,       3,       3,       3,       3,       3),
    UnknownPartition:      ErrorCodes(StatusCode.NOT_FOUND,            404,    3,       3,       3,       3,       3,       3),
    UnknownGroup:          ErrorCodes(StatusCode.NOT_FOUND,            404,   42,      -1,      42,      69,      69,      69),
    AlreadyExists:         ErrorCodes(StatusCode.ALREADY_EXISTS,       409,   42,      -1,      42,      42,      42,      36),
    TooLarge:              ErrorCodes(StatusCode.INVALID_ARGUMENT,     413,   10,      -1,      42,      12,      12,      10),
    OutOfRange:            ErrorCodes(StatusCode.OUT_OF_RANGE,         416,    1,       1,       1,      42,      42,       1),
    ConditionFailed:       ErrorCodes(StatusCode.ABORTED,              412,   42,      -1,      42,      42,      42,      42),
    OutOfOrderSequence:    ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   45,      -1,      42,      42,      45,      42),
    UnknownProducer:       ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   59,      -1,      42,      42,      59,      42),
    IdempotencyKeyReused:  ErrorCodes(StatusCode.FAILED_PRECONDITION,  422,   42,      -1,      42,      42,      42,      42),
    Denied:                ErrorCodes(StatusCode.PERMISSION_DENIED,    403,   29,      29,      29,      30,      53,      31),
    Unauthenticated:       ErrorCodes(StatusCode.UNAUTHENTICATED,      401,   29,      29,      29,      30,      53,      31),
    NotAuthorized:         ErrorCodes(StatusCode.PERMISSION_DENIED,    403,   29,      29,      29,      30,      53,      31),
    MemberIdRequired:      ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,      79,      42,      42),
    GroupFull:             ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,      81,      42,      42),
    GroupNotEmpty:         ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,      68,      42,      68),
    GroupSubscribed:       ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,      86,      42,      86),
    Unavailable:           ErrorCodes(StatusCode.UNAVAILABLE,          503,   56,      56,      56,      15,      15,      41),
    Throttled:             ErrorCodes(StatusCode.RESOURCE_EXHAUSTED,   429,   19,       0,      56,      15,      51,      89),
    NotLeader:             ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,       6,       6,      16,      16,      41),
    NoLeader:              ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,       6,       6,      15,      15,      41),
    StaleRouting:          ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,       6,       6,      15,      15,      41),
    FencedLeaderEpoch:     ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,      74,      74,      15,      15,      41),
    UnknownLeaderEpoch:    ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,      75,      75,      15,      15,      41),
    Stopping:              ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,       6,       6,      16,      16,      41),
    NotCoordinator:        ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,       6,       6,      16,      16,      41),
    NoCoordinator:         ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,       6,       6,      15,      15,      41),
    OutcomeUnknown:        ErrorCodes(StatusCode.DEADLINE_EXCEEDED,    504,    7,      56,      56,       7,       7,       7),
    Fenced:                ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   77,      -1,      77,      77,      77,      77),
    SessionFenced:         ErrorCodes(StatusCode.UNAVAILABLE,          503,    6,       6,       6,      16,      16,      41),
    ProducerFenced:        ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   47,      -1,      42,      42,      90,      42),
    InstanceFenced:        ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,      82,      82,      82),
    StaleMember:           ErrorCodes(StatusCode.ABORTED,              409,   42,      -1,      42,      25,      25,      25),
    UnknownMember:         ErrorCodes(StatusCode.ABORTED,              409,   42,      -1,      42,      25,      25,      25),
    StaleGeneration:       ErrorCodes(StatusCode.ABORTED,              409,   42,      -1,      42,      22,      22,      22),
    RebalanceInProgress:   ErrorCodes(StatusCode.ABORTED,              409,   42,      -1,      42,      27,      27,      27),
    Corrupt:               ErrorCodes(StatusCode.DATA_LOSS,            500,    2,       2,      -1,      -1,      -1,      -1),
    UnknownRoute:          ErrorCodes(StatusCode.UNIMPLEMENTED,        404,   35,      -1,      35,      35,      35,      35),
    MethodNotAllowed:      ErrorCodes(StatusCode.UNIMPLEMENTED,        405,   42,      -1,      42,      42,      42,      42),
    NotAcceptable:         ErrorCodes(StatusCode.INVALID_ARGUMENT,     406,   42,      -1,      42,      42,      42,      42),
    UnsupportedMediaType:  ErrorCodes(StatusCode.INVALID_ARGUMENT,     415,   42,      -1,      42,      42,      42,      42),
    BodyTooSlow:           ErrorCodes(StatusCode.UNAVAILABLE,          408,    7,      56,      56,      15,      15,      41),
}
# fmt: on

# By the kind of resource that was denied: TOPIC_, GROUP_ and CLUSTER_AUTHORIZATION_FAILED.
_DENIED: Final = {"topic": 29, "group": 30, "cluster": 31}
# By the argument in the details: INVALID_CONFIG, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR.
_INVALID: Final = {"setting": 40, "partition_count": 37, "replication_factor": 38}
# By the code that stays the same on every wire.
ERROR_CLASSES: Final[dict[str, type[TidelogError]]] = {kind.code: kind for kind in WIRE_CODES}


def wire_codes(error: TidelogError) -> ErrorCodes:
    return next(WIRE_CODES[kind] for kind in type(error).__mro__ if kind in WIRE_CODES)


def kafka_code(error: TidelogError, group: KafkaApiGroup) -> int:
    """Returns Kafka's code of this error in an answer of this group of APIs.

    Where the details name what was denied, or which argument is wrong, the code is that of the thing, not of the group.
    """
    code: int = getattr(wire_codes(error), group)
    if isinstance(error, Denied) and group in {"group", "admin"}:
        return _DENIED.get(str(error.details.get("resource")), code)
    if group == "group" and error.details.get("field") == "session_timeout_ms":
        return 26  # INVALID_SESSION_TIMEOUT
    if type(error) is InvalidArgument and group == "admin":
        return next((code_of for name, code_of in _INVALID.items() if name in error.details), code)
    return code
