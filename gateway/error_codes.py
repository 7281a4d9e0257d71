"""The one table from the error tree to what each door answers: gRPC status, HTTP status, Kafka error code. No I/O.

Invariant: every class of metadata/errors.py has a row of its own here, which a test proves; a class from elsewhere answers as
its nearest parent does.

What a client may conclude from the columns alone:

    gRPC   UNAVAILABLE, RESOURCE_EXHAUSTED    nothing was written; retry       (AIP-194)
           ABORTED                            read again, then decide          (a lost test-and-set; a rebalance)
           DEADLINE_EXCEEDED                  the outcome is unknown
    HTTP   429, 503                           nothing was written; retry after Retry-After
           504                                the outcome is unknown
    Kafka  retriable codes (5 6 7 15 16 56 74 75 89)   exactly where the error is retryable

Sources: google/rpc/code.proto, RFC 9110 §15, https://kafka.apache.org/protocol#protocol_error_codes

What is wrong with a request as HTTP, before it means anything to the log.

They stand under Rejected in the error tree; error_codes.py has their status.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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


class ErrorCodes(NamedTuple):
    grpc: StatusCode
    http: int
    kafka: int


WIRE_CODES: Final[dict[type[TidelogError], ErrorCodes]] = {
    TidelogError: ErrorCodes(StatusCode.INTERNAL, 500, -1),  # UNKNOWN_SERVER_ERROR
    Rejected: ErrorCodes(StatusCode.INVALID_ARGUMENT, 400, 42),  # INVALID_REQUEST
    InvalidArgument: ErrorCodes(StatusCode.INVALID_ARGUMENT, 400, 42),  # INVALID_REQUEST
    InvalidName: ErrorCodes(StatusCode.INVALID_ARGUMENT, 400, 17),  # INVALID_TOPIC_EXCEPTION
    InvalidRecord: ErrorCodes(StatusCode.INVALID_ARGUMENT, 400, 87),  # INVALID_RECORD
    InvalidTimestamp: ErrorCodes(StatusCode.INVALID_ARGUMENT, 400, 32),  # INVALID_TIMESTAMP
    InvalidGroupName: ErrorCodes(StatusCode.INVALID_ARGUMENT, 400, 24),  # INVALID_GROUP_ID
    InconsistentProtocol: ErrorCodes(StatusCode.INVALID_ARGUMENT, 400, 23),  # INCONSISTENT_GROUP_PROTOCOL
    NotFound: ErrorCodes(StatusCode.NOT_FOUND, 404, 42),  # INVALID_REQUEST: its clients know topics and partitions only
    UnknownTopic: ErrorCodes(StatusCode.NOT_FOUND, 404, 3),  # UNKNOWN_TOPIC_OR_PARTITION
    UnknownPartition: ErrorCodes(StatusCode.NOT_FOUND, 404, 3),  # UNKNOWN_TOPIC_OR_PARTITION
    UnknownGroup: ErrorCodes(StatusCode.NOT_FOUND, 404, 69),  # GROUP_ID_NOT_FOUND
    AlreadyExists: ErrorCodes(StatusCode.ALREADY_EXISTS, 409, 36),  # TOPIC_ALREADY_EXISTS
    TooLarge: ErrorCodes(StatusCode.INVALID_ARGUMENT, 413, 10),  # MESSAGE_TOO_LARGE
    OutOfRange: ErrorCodes(StatusCode.OUT_OF_RANGE, 416, 1),  # OFFSET_OUT_OF_RANGE
    ConditionFailed: ErrorCodes(StatusCode.ABORTED, 412, 42),  # INVALID_REQUEST
    OutOfOrderSequence: ErrorCodes(StatusCode.FAILED_PRECONDITION, 409, 45),  # OUT_OF_ORDER_SEQUENCE_NUMBER
    UnknownProducer: ErrorCodes(StatusCode.FAILED_PRECONDITION, 409, 59),  # UNKNOWN_PRODUCER_ID
    IdempotencyKeyReused: ErrorCodes(StatusCode.FAILED_PRECONDITION, 422, 42),  # INVALID_REQUEST
    Denied: ErrorCodes(StatusCode.PERMISSION_DENIED, 403, 29),  # TOPIC_AUTHORIZATION_FAILED
    Unauthenticated: ErrorCodes(StatusCode.UNAUTHENTICATED, 401, 58),  # SASL_AUTHENTICATION_FAILED
    NotAuthorized: ErrorCodes(StatusCode.PERMISSION_DENIED, 403, 29),  # TOPIC_AUTHORIZATION_FAILED
    MemberIdRequired: ErrorCodes(StatusCode.FAILED_PRECONDITION, 409, 79),  # MEMBER_ID_REQUIRED
    GroupFull: ErrorCodes(StatusCode.FAILED_PRECONDITION, 409, 81),  # GROUP_MAX_SIZE_REACHED
    GroupNotEmpty: ErrorCodes(StatusCode.FAILED_PRECONDITION, 409, 68),  # NON_EMPTY_GROUP
    Unavailable: ErrorCodes(StatusCode.UNAVAILABLE, 503, 56),  # KAFKA_STORAGE_ERROR
    Throttled: ErrorCodes(StatusCode.RESOURCE_EXHAUSTED, 429, 89),  # THROTTLING_QUOTA_EXCEEDED
    NotLeader: ErrorCodes(StatusCode.UNAVAILABLE, 503, 6),  # NOT_LEADER_OR_FOLLOWER
    NoLeader: ErrorCodes(StatusCode.UNAVAILABLE, 503, 5),  # LEADER_NOT_AVAILABLE
    StaleRouting: ErrorCodes(StatusCode.UNAVAILABLE, 503, 5),  # LEADER_NOT_AVAILABLE
    FencedLeaderEpoch: ErrorCodes(StatusCode.UNAVAILABLE, 503, 74),  # FENCED_LEADER_EPOCH
    UnknownLeaderEpoch: ErrorCodes(StatusCode.UNAVAILABLE, 503, 75),  # UNKNOWN_LEADER_EPOCH
    Stopping: ErrorCodes(StatusCode.UNAVAILABLE, 503, 6),  # NOT_LEADER_OR_FOLLOWER: its partitions move to another broker
    NotCoordinator: ErrorCodes(StatusCode.UNAVAILABLE, 503, 16),  # NOT_COORDINATOR
    NoCoordinator: ErrorCodes(StatusCode.UNAVAILABLE, 503, 15),  # COORDINATOR_NOT_AVAILABLE
    OutcomeUnknown: ErrorCodes(StatusCode.DEADLINE_EXCEEDED, 504, 7),  # REQUEST_TIMED_OUT
    Fenced: ErrorCodes(StatusCode.FAILED_PRECONDITION, 409, 77),  # STALE_BROKER_EPOCH: FENCED_LEADER_EPOCH would be retried
    SessionFenced: ErrorCodes(StatusCode.UNAVAILABLE, 503, 6),  # NOT_LEADER_OR_FOLLOWER
    ProducerFenced: ErrorCodes(StatusCode.FAILED_PRECONDITION, 409, 90),  # PRODUCER_FENCED
    InstanceFenced: ErrorCodes(StatusCode.FAILED_PRECONDITION, 409, 82),  # FENCED_INSTANCE_ID
    StaleMember: ErrorCodes(StatusCode.ABORTED, 409, 25),  # UNKNOWN_MEMBER_ID; its members join again, and then decide
    UnknownMember: ErrorCodes(StatusCode.ABORTED, 409, 25),  # UNKNOWN_MEMBER_ID
    StaleGeneration: ErrorCodes(StatusCode.ABORTED, 409, 22),  # ILLEGAL_GENERATION
    RebalanceInProgress: ErrorCodes(StatusCode.ABORTED, 409, 27),  # REBALANCE_IN_PROGRESS
    Corrupt: ErrorCodes(StatusCode.DATA_LOSS, 500, -1),  # UNKNOWN_SERVER_ERROR: CORRUPT_MESSAGE would be retried for ever
    UnknownRoute: ErrorCodes(StatusCode.UNIMPLEMENTED, 404, 35),  # UNSUPPORTED_VERSION; this row and those below come from HTTP
    MethodNotAllowed: ErrorCodes(StatusCode.UNIMPLEMENTED, 405, 42),
    NotAcceptable: ErrorCodes(StatusCode.INVALID_ARGUMENT, 406, 42),
    UnsupportedMediaType: ErrorCodes(StatusCode.INVALID_ARGUMENT, 415, 42),
    BodyTooSlow: ErrorCodes(StatusCode.UNAVAILABLE, 408, 7),
}

# By the code that stays the same on every wire.
ERROR_CLASSES: Final[dict[str, type[TidelogError]]] = {kind.code: kind for kind in WIRE_CODES}


def wire_codes(error: TidelogError) -> ErrorCodes:
    return next(WIRE_CODES[kind] for kind in type(error).__mro__ if kind in WIRE_CODES)
