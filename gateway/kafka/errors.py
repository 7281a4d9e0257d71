"""Errors that only Kafka's protocol has, and the code of each error in an answer. Pure.

gateway/error_codes.py has the codes of the error tree by group of APIs. This module replaces codes that the version of a request
does not know.

Source: https://kafka.apache.org/protocol#protocol_error_codes
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final

from gateway.error_codes import kafka_code
from metadata.errors import Denied, NotFound, OutcomeUnknown, Rejected, TidelogError, UnknownTopic
from segments.records.batch import ChecksumMismatch

# Characters of the text of an error in an answer.
TEXT_CHARACTERS_MAX: Final = 2_000


class ErrorCode(enum.IntEnum):
    """The numbers of those Kafka errors that the listener sets itself."""

    NONE = 0
    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_REQUEST = 42
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    UNSUPPORTED_COMPRESSION_TYPE = 76
    ELECTION_NOT_NEEDED = 84
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    FETCH_SESSION_TOPIC_ID_ERROR = 106


class KafkaRejected(Rejected):
    """A request breaks a rule that only Kafka's protocol has."""

    kafka_code: ClassVar[ErrorCode] = ErrorCode.INVALID_REQUEST


class InvalidRequiredAcks(KafkaRejected):
    """A Produce request asks for an acknowledgement that does not exist."""

    code = "INVALID_REQUIRED_ACKS"
    kafka_code = ErrorCode.INVALID_REQUIRED_ACKS


class InvalidReplicaAssignment(KafkaRejected):
    """The replicas that a client assigns to partitions by hand do not fit the partitions."""

    code = "INVALID_REPLICA_ASSIGNMENT"
    kafka_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class TransactionsUnsupported(KafkaRejected):
    """A client asks for a transaction."""

    code = "TRANSACTIONS_UNSUPPORTED"
    kafka_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    default_hint = "Leave transactional.id unset: idempotent producers need none."


class UnsupportedCompression(KafkaRejected):
    """A batch is compressed with a codec that this version of Produce does not know."""

    code = "UNSUPPORTED_COMPRESSION"
    kafka_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class UnsupportedTimestamp(KafkaRejected):
    """A request asks ListOffsets for a bound that its version does not have."""

    code = "UNSUPPORTED_TIMESTAMP"
    kafka_code = ErrorCode.UNSUPPORTED_VERSION


class UnsupportedResourceType(KafkaRejected):
    """A client asks for a type of resources that this version of ListConfigResources does not have."""

    code = "UNSUPPORTED_RESOURCE_TYPE"
    kafka_code = ErrorCode.UNSUPPORTED_VERSION


# Clients send a batch again after these codes, with the same sequence.
RETRIED_BY_PRODUCERS: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

# Clients of these versions and below do not know KAFKA_STORAGE_ERROR.
_STORAGE_ERROR_SINCE_PRODUCE = 4
_STORAGE_ERROR_SINCE_FETCH = 6


def produce_code(error: TidelogError, version: int, *, by_id: bool = False) -> int:
    """Returns the code of a batch's error. `by_id`: the topic was named by its id."""
    if isinstance(error, KafkaRejected):
        return error.kafka_code
    if by_id and isinstance(error, UnknownTopic):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if isinstance(error, ChecksumMismatch):
        return ErrorCode.CORRUPT_MESSAGE
    code = kafka_code(error, "produce")
    if code == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERROR_SINCE_PRODUCE:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


def fetch_code(error: TidelogError, version: int, *, by_id: bool = False) -> int:
    """Returns the code of a fetched partition's error, which is one that no client takes for the end of its consumer."""
    if by_id and isinstance(error, UnknownTopic):
        return ErrorCode.UNKNOWN_TOPIC_ID
    code = kafka_code(error, "fetch")
    if code == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERROR_SINCE_FETCH:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


def list_offsets_code(error: TidelogError) -> int:
    """Returns the code of a partition's error in ListOffsets and OffsetForLeaderEpoch."""
    return error.kafka_code if isinstance(error, KafkaRejected) else kafka_code(error, "list_offsets")


def metadata_code(error: TidelogError, *, by_id: bool = False) -> int:
    """Returns the code of a topic's error in Metadata."""
    if by_id and isinstance(error, UnknownTopic):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if isinstance(error, Denied):  # for administrative calls it is one of the cluster
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return kafka_code(error, "admin")


def group_code(error: TidelogError) -> int:
    """Returns the code of an error of a coordinator."""
    return error.kafka_code if isinstance(error, KafkaRejected) else kafka_code(error, "group")


def admin_code(error: TidelogError, *, by_id: bool = False) -> int:
    """Returns the code of an error of an administrative call. `by_id`: the topic was named by its id."""
    if by_id and isinstance(error, UnknownTopic):
        return ErrorCode.UNKNOWN_TOPIC_ID
    return error.kafka_code if isinstance(error, KafkaRejected) else kafka_code(error, "admin")


def delete_records_code(error: TidelogError) -> int:
    """Returns the code of a partition's error in DeleteRecords, which leaders answer."""
    return ErrorCode.REQUEST_TIMED_OUT if isinstance(error, OutcomeUnknown) else list_offsets_code(error)


def error_text(error: TidelogError) -> str:
    """Returns what happened and what to do, for the text of an answer."""
    return cut_text(f"{error.message}. {error.hint}" if error.hint else error.message)


def cut_text(text: str) -> str:
    """Returns the beginning of the text: errors may name what a client has sent, and the protocol bounds strings."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"


def group_topic_code(error: TidelogError, *, by_id: bool = False) -> int:
    """Returns the code of a partition's error in OffsetCommit and OffsetFetch."""
    return metadata_code(error, by_id=by_id) if isinstance(error, Denied | NotFound) else group_code(error)
