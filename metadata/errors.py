"""The one tree of errors, arranged by what the caller does next. Pure.

    TidelogError
      Rejected                 fix the request; nothing was written
        InvalidArgument          InvalidName · InvalidRecord · InvalidTimestamp · InvalidGroupName · InconsistentProtocol
                                 UnsupportedAssignor · InvalidRegularExpression
        NotFound                 UnknownTopic · UnknownPartition · UnknownGroup
        AlreadyExists
        TooLarge
        OutOfRange               names the valid range of offsets
        ConditionFailed          the log's end, or a revision, is not the expected one
        OutOfOrderSequence       an idempotent producer left a gap
        UnknownProducer          its state expired: take a new producer id
        DuplicateSequence        the batch is in the log already, at offsets that are not remembered
        IdempotencyKeyReused     the same key came with another payload
        Denied                   credentials or permissions
          Unauthenticated        the client has not proven who it is
          NotAuthorized          the principal may not do this
        MemberIdRequired         a new member of a group receives its id: join again with it
        GroupFull                a consumer group has reached its bound on members
        GroupNotEmpty            a consumer group has members: stop them first
        UnreleasedInstance       another member has this instance id, and has not left
      Unavailable              nothing was written; retry
        Throttled                after `retry_after_s`
        NotLeader                another broker leads; names it where it is known
        NoLeader                 the partition has no leader yet
        StaleRouting             the request was routed over another partition count than the leader takes
        FencedLeaderEpoch        the reader names a former leader; the error names the present one
        UnknownLeaderEpoch       the reader knows a newer leader than the broker that it asks
        Stopping                 this broker is shutting down
        NotCoordinator           another broker coordinates the group; names it where it is known
        NoCoordinator            the group has no coordinator yet
      OutcomeUnknown           may be durable; read back, or retry idempotently
      Fenced                   a newer owner exists; stop here
        SessionFenced            this broker's session was sealed by its successor
        ProducerFenced           a newer epoch of this producer id exists
        InstanceFenced           another process has joined the group under this instance id
        StaleMember              join the group again
          UnknownMember · StaleGeneration · RebalanceInProgress · FencedMemberEpoch · StaleMemberEpoch
      Corrupt                  stored bytes are wrong; stop, and say which object and range

Errors of botocore, SQLite, grpc and the operating system are translated where they are called. gateway/error_codes.py maps
each class to its gRPC, HTTP and Kafka code.

`did_you_mean` suggests the known name that is nearest to a mistyped one.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import ClassVar


class TidelogError(Exception):
    """Is the base of all errors; the message says what happened and what was written.

    `hint` is the remedy in one sentence, for people; `details` are plain facts for programs (offsets, names, sizes).
    """

    code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False
    nothing_was_written: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None, **details: str | int | float | bool) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        self.details = details


class Rejected(TidelogError):
    """Refuses a request that is wrong in itself. The same request will be refused again."""

    code = "REJECTED"
    nothing_was_written = True


class InvalidArgument(Rejected):
    """Refuses an argument that is malformed, or out of its range."""

    code = "INVALID_ARGUMENT"


class InvalidName(InvalidArgument):
    """Refuses a name that a topic can't have."""

    code = "INVALID_NAME"
    default_hint = "Use 1 to 249 of the characters a-z A-Z 0-9 . _ - and neither '.' nor '..'."


class InvalidRecord(InvalidArgument):
    """Refuses a record batch that is torn, has wrong lengths, fails its CRC-32C or has a magic other than 2."""

    code = "INVALID_RECORD"
    default_hint = "Send one whole record batch of magic 2, as Kafka clients write it."


class InvalidTimestamp(InvalidArgument):
    """Refuses a record that is dated further ahead of the broker's clock than its topic allows."""

    code = "INVALID_TIMESTAMP"
    default_hint = "Date records in milliseconds since 1970-01-01 UTC, and check the producer's clock."


class InvalidGroupName(InvalidArgument):
    """Refuses a name that a consumer group can't have."""

    code = "INVALID_GROUP_NAME"
    default_hint = "Use 1 to 249 characters, none of them a control character."


class InconsistentProtocol(InvalidArgument):
    """Refuses a member whose protocol type differs, or that shares no assignor with its group."""

    code = "INCONSISTENT_PROTOCOL"


class UnsupportedAssignor(InvalidArgument):
    """Refuses a member that prefers an assignor which the coordinator does not have (KIP-848)."""

    code = "UNSUPPORTED_ASSIGNOR"


class InvalidRegularExpression(InvalidArgument):
    """Refuses a pattern of topics that is malformed, or uses syntax that is not supported (KIP-848)."""

    code = "INVALID_REGULAR_EXPRESSION"


class NotFound(Rejected):
    """Reports that the named thing does not exist."""

    code = "NOT_FOUND"


class UnknownTopic(NotFound):
    """Reports that the topic does not exist."""

    code = "UNKNOWN_TOPIC"
    default_hint = "Create it first: tidelog topic create NAME --partitions N"


class UnknownPartition(NotFound):
    """Reports that the topic has no such partition."""

    code = "UNKNOWN_PARTITION"


class UnknownGroup(NotFound):
    """Reports that the consumer group does not exist."""

    code = "UNKNOWN_GROUP"
    default_hint = "A group exists once a member has joined it, or offsets were committed: tidelog group list"


class AlreadyExists(Rejected):
    """Reports that the name is in use."""

    code = "ALREADY_EXISTS"


class TooLarge(Rejected):
    """Refuses a request or record above its bound in bytes."""

    code = "TOO_LARGE"


class OutOfRange(Rejected):
    """Reports an offset below the log start or above the high watermark. `details`: log_start_offset, high_watermark."""

    code = "OFFSET_OUT_OF_RANGE"


class ConditionFailed(Rejected):
    """Reports that the log's end, or a revision, is not the expected one."""

    code = "CONDITION_FAILED"


class OutOfOrderSequence(Rejected):
    """Reports a gap in the sequence numbers of an idempotent producer."""

    code = "OUT_OF_ORDER_SEQUENCE"
    default_hint = "Send the batches of one producer in order, or begin again with a new producer id."


class UnknownProducer(OutOfOrderSequence):
    """Reports that the broker holds no state of the producer id any more."""

    code = "UNKNOWN_PRODUCER"
    default_hint = "The producer's state has expired. Take a new producer id and begin at sequence 0."


class DuplicateSequence(OutOfOrderSequence):
    """Reports that the batch repeats one that is committed, and whose offsets the broker no longer remembers."""

    code = "DUPLICATE_SEQUENCE"
    default_hint = "Count the batch as written; its offsets are not known."


class IdempotencyKeyReused(Rejected):
    """Refuses an idempotency key that came with another payload before."""

    code = "IDEMPOTENCY_KEY_REUSED"
    default_hint = "Use a new Idempotency-Key for a new request."


class Denied(Rejected):
    """Refuses a request for lack of credentials or rights."""

    code = "DENIED"


class Unauthenticated(Denied):
    """Reports that credentials are missing, wrong, revoked or expired."""

    code = "UNAUTHENTICATED"
    default_hint = "Show an API key: Authorization: Bearer tlk_…, or a token or a client certificate that this cluster trusts."


class NotAuthorized(Denied):
    """Refuses an operation, whether its topic or group exists or not. `details`: principal, operation, resource, name."""

    code = "PERMISSION_DENIED"
    default_hint = "Ask for the right (tidelog acl add PRINCIPAL OPERATION --topic NAME), or for a key of wider scope."


class MemberIdRequired(Rejected):
    """Gives a new member its id, as the first answer to it (KIP-394). `details`: member_id."""

    code = "MEMBER_ID_REQUIRED"
    default_hint = "Join again with the member id of this error."


class GroupFull(Rejected):
    """Reports that the group has as many members as it may have."""

    code = "GROUP_FULL"


class GroupNotEmpty(Rejected):
    """Reports that the group has members, so it can't be changed or deleted."""

    code = "GROUP_NOT_EMPTY"
    default_hint = "Stop the members of the group first, or wait until their sessions have ended."


class UnreleasedInstance(Rejected):
    """Refuses a member whose instance id belongs to a member that has not left the group (KIP-848)."""

    code = "UNRELEASED_INSTANCE"


class GroupSubscribed(GroupNotEmpty):
    """A member of the group subscribes to the topic whose offsets shall be deleted."""

    code = "GROUP_SUBSCRIBED_TO_TOPIC"


class Unavailable(TidelogError):
    """Reports that nothing was written; the same request may succeed later."""

    code = "UNAVAILABLE"
    retryable = True
    nothing_was_written = True
    default_hint = "Retry with back-off."


class Throttled(Unavailable):
    """Reports that a bound on memory, requests or bytes is reached; retry after `retry_after_s` seconds."""

    code = "THROTTLED"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, hint: str | None = None, **details: str | int | float) -> None:
        super().__init__(message, hint=hint, **details)
        self.retry_after_s = retry_after_s


class NotLeader(Unavailable):
    """Reports that another broker leads the partition. `details`: the leader's id and addresses where known."""

    code = "NOT_LEADER"


class NoLeader(Unavailable):
    """Reports that the partition has no leader yet."""

    code = "NO_LEADER"


class StaleRouting(Unavailable):
    """Refuses a request with an Idempotency-Key that was routed over fewer partitions than its topic has now, or over another count
    than a part of it that is written already.

    `details`: the partition_count over which a repeat is routed; topic_revision, as the leader knows it, where the topic has grown.
    """

    code = "STALE_ROUTING"
    default_hint = "Retry the same request with the same Idempotency-Key: it is routed over the right number of partitions then."


class FencedLeaderEpoch(Unavailable):
    """Reports that a reader named a former leader's epoch. `details`: leader_epoch; the leader's id and addresses if known."""

    code = "FENCED_LEADER_EPOCH"
    default_hint = "Read again with the leader epoch of this error: the partition has another leader now."


class UnknownLeaderEpoch(Unavailable):
    """Reports that a reader named an epoch above the one that this broker knows. `details`: leader_epoch, the known one."""

    code = "UNKNOWN_LEADER_EPOCH"
    default_hint = "Retry with back-off: this broker does not know the newest leader yet. Use another one if this persists."


class Stopping(Unavailable):
    """Reports that the broker is shutting down."""

    code = "STOPPING"
    default_hint = "Retry at another broker, or when this one is back."


class NotCoordinator(Unavailable):
    """Reports that another broker coordinates the group.

    Repeating the call there is always safe, even if the former coordinator stored a step. `details`: its id and addresses if known.
    """

    code = "NOT_COORDINATOR"
    default_hint = "Look up the coordinator of the group, and retry there."


class NoCoordinator(Unavailable):
    """Reports that the group has no coordinator yet."""

    code = "NO_COORDINATOR"


class OutcomeUnknown(TidelogError):
    """Reports a write that may or may not be durable. An idempotent producer may retry; others must read back first."""

    code = "OUTCOME_UNKNOWN"
    retryable = True
    default_hint = "Read back before you retry, or retry with the same producer id and sequence."


class Fenced(TidelogError):
    """Reports that a newer owner exists. Nothing that this one writes becomes visible."""

    code = "FENCED"
    nothing_was_written = True


class SessionFenced(Fenced):
    """Reports that the broker's session was sealed by its successor."""

    code = "SESSION_FENCED"
    retryable = True
    default_hint = "Retry: the broker opens a new session, or another broker leads the partition."


class ProducerFenced(Fenced):
    """Reports that a newer epoch of the producer id exists."""

    code = "PRODUCER_FENCED"
    default_hint = "A newer instance of this producer runs. Stop this one."


class InstanceFenced(Fenced):
    """Reports that another process joined the group under the same instance id."""

    code = "INSTANCE_FENCED"
    default_hint = "Another process runs under this instance id. Stop this one, or give it an id of its own."


class StaleMember(Fenced):
    """Reports that the client is not, or no longer, a member of the group's present generation."""

    code = "STALE_MEMBER"
    default_hint = "Join the group again."


class UnknownMember(StaleMember):
    """Reports that the group has no member of this id."""

    code = "UNKNOWN_MEMBER"
    default_hint = "Join the group again as a new member: without a member id."


class StaleGeneration(StaleMember):
    """Reports that the group has a newer generation. `details`: generation, the present one."""

    code = "STALE_GENERATION"


class RebalanceInProgress(StaleMember):
    """Reports that the group rebalances. `details`: waits, true while the member's own join waits for the others."""

    code = "REBALANCE_IN_PROGRESS"
    default_hint = "Commit what was read, and join the group again with the same member id."


class FencedMemberEpoch(StaleMember):
    """Reports an epoch that the member cannot have: it must give everything up and join again (KIP-848). `details`: epoch."""

    code = "FENCED_MEMBER_EPOCH"


class StaleMemberEpoch(StaleMember):
    """Reports that the member commits in an epoch that is not its present one (KIP-848). `details`: epoch, the present one."""

    code = "STALE_MEMBER_EPOCH"
    default_hint = "Send a heartbeat, and commit with the epoch of its answer."


class Corrupt(TidelogError):
    """Reports stored bytes that are wrong or missing. A write is refused before anything is written.

    `details`: key, and where known: start and end of the range, next_offset where reading goes on.
    """

    nothing_was_written = True
    code = "CORRUPT"
    default_hint = "Run `tidelog bucket verify` and restore the named object from a backup."


# Above this many names none is suggested: comparing them all would hold the event loop for milliseconds.
KNOWN_MAX = 64


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Returns a question with the nearest of `known`; '' where none is near, or there are too many to compare."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7) if len(known) <= KNOWN_MAX and len(name) <= 249 else []
    return f"Did you mean {near[0]!r}?" if near else ""
