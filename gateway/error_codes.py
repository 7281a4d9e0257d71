"""Maps the error tree to the answer of each listener: gRPC status, HTTP status, Kafka error code. No I/O.

Invariant: every class of metadata/errors.py has its own row, which a test proves. A class from elsewhere answers as its nearest
parent.

A client may conclude from each column alone:

    gRPC   UNAVAILABLE, RESOURCE_EXHAUSTED    nothing was written; retry       (AIP-194)
           ABORTED                            read again, then decide          (a lost test-and-set; a rebalance)
           DEADLINE_EXCEEDED                  the outcome is unknown
    HTTP   429, 503                           nothing was written; retry after Retry-After
           504                                the outcome is unknown
    Kafka  produce        2 3 6 7 19 56          clients send again with the same sequence
           fetch          0 6 56 74 75           clients fetch again. The column holds only codes that Java's consumer knows:
                                                 others raise IllegalStateException in the application
           list_offsets   3 6 56 74 75           clients ask again
           group          7 15 16                clients send again; after 22 25 27 they join again, then decide
           transaction    7 15 16 51             clients send again
           admin          7 41 89                clients send again; 89 only from CreateTopics, DeleteTopics and CreatePartitions

The Kafka listener replaces codes that the version of a request does not know: a topic named by its id is 100 (UNKNOWN_TOPIC_ID),
56 becomes 6 in Fetch up to version 5 and Produce up to 3, and 90 becomes 47 in older versions of the transaction APIs.

Sources: google/rpc/code.proto, RFC 9110 §15, https://kafka.apache.org/protocol#protocol_error_codes

The classes here are errors of a request as HTTP, found before it reaches the log. They belong to Rejected in the error tree.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from grpc import StatusCode

from metadata.errors import (
    AlreadyExists,
    ConditionFailed,
    Corrupt,
    Denied,
    DuplicateSequence,
    Fenced,
    FencedLeaderEpoch,
    FencedMemberEpoch,
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
    InvalidRegularExpression,
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
    StaleMemberEpoch,
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
    UnreleasedInstance,
    UnsupportedAssignor,
)

# Longest part of a request's path that an error message repeats.
PATH_CHARACTERS_MAX: Final = 300


class UnknownRoute(NotFound):
    """Answers 404: no route has this path."""

    code = "UNKNOWN_ROUTE"
    default_hint = "GET /openapi.json lists every route."


class MethodNotAllowed(Rejected):
    """Answers 405: the route does not take this method. The listener adds an Allow header."""

    code = "METHOD_NOT_ALLOWED"


class NotAcceptable(Rejected):
    """Answers 406: the client accepts none of the formats that the route can answer with."""

    code = "NOT_ACCEPTABLE"


class UnsupportedMediaType(Rejected):
    """Answers 415: the route does not read bodies of this media type."""

    code = "UNSUPPORTED_MEDIA_TYPE"


class BodyTooSlow(Rejected):
    """Answers 408: the body took longer than body_read_timeout_ms allows, while it held memory that other requests wait for."""

    code = "BODY_TOO_SLOW"
    retryable = True
    default_hint = "Send smaller requests over a slow connection."


KafkaApiGroup = Literal["produce", "fetch", "list_offsets", "group", "transaction", "admin"]


class ErrorCodes(NamedTuple):
    """The codes of one class of errors. The fields from `produce` on are Kafka's codes, one for each group of APIs."""

    grpc: StatusCode
    http: int
    # Produce.
    produce: int
    # Fetch, for each partition. 0: the partition has no records in this answer, which carries a throttle time.
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
    UnsupportedAssignor:   ErrorCodes(StatusCode.INVALID_ARGUMENT,     400,   42,      -1,      42,     112,      42,      42),
    InvalidRegularExpression: ErrorCodes(StatusCode.INVALID_ARGUMENT,  400,   42,      -1,      42,     128,      42,      42),
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
    DuplicateSequence:     ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   46,      -1,      42,      42,      46,      42),
    IdempotencyKeyReused:  ErrorCodes(StatusCode.FAILED_PRECONDITION,  422,   42,      -1,      42,      42,      42,      42),
    Denied:                ErrorCodes(StatusCode.PERMISSION_DENIED,    403,   29,      29,      29,      30,      53,      31),
    Unauthenticated:       ErrorCodes(StatusCode.UNAUTHENTICATED,      401,   29,      29,      29,      30,      53,      31),
    NotAuthorized:         ErrorCodes(StatusCode.PERMISSION_DENIED,    403,   29,      29,      29,      30,      53,      31),
    MemberIdRequired:      ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,      79,      42,      42),
    GroupFull:             ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,      81,      42,      42),
    GroupNotEmpty:         ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,      68,      42,      68),
    UnreleasedInstance:    ErrorCodes(StatusCode.FAILED_PRECONDITION,  409,   42,      -1,      42,     111,      42,      42),
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
    FencedMemberEpoch:     ErrorCodes(StatusCode.ABORTED,              409,   42,      -1,      42,     110,      42,      42),
    StaleMemberEpoch:      ErrorCodes(StatusCode.ABORTED,              409,   42,      -1,      42,     113,      42,      42),
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
# The class of each `code` of the error tree. These codes are the same in all protocols.
ERROR_CLASSES: Final[dict[str, type[TidelogError]]] = {kind.code: kind for kind in WIRE_CODES}


def wire_codes(error: TidelogError) -> ErrorCodes:
    """Returns the codes of the error's class, or of its nearest parent in the table."""
    return next(WIRE_CODES[kind] for kind in type(error).__mro__ if kind in WIRE_CODES)


def kafka_code(error: TidelogError, group: KafkaApiGroup) -> int:
    """Returns Kafka's code of this error in an answer of this group of APIs.

    If the details name the denied resource or the wrong argument, the code is that of the resource or argument.
    """
    code: int = getattr(wire_codes(error), group)
    if isinstance(error, Denied) and group in {"group", "admin"}:
        return _DENIED.get(str(error.details.get("resource")), code)
    if group == "group" and error.details.get("field") == "session_timeout_ms":
        return 26  # INVALID_SESSION_TIMEOUT
    if type(error) is InvalidArgument and group == "admin":
        return next((code_of for name, code_of in _INVALID.items() if name in error.details), code)
    return code
