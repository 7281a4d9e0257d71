"""The one tree of errors, arranged by what the caller does next. Pure.

    TidelogError
      Rejected                 fix the request; nothing was written
        InvalidArgument          InvalidName · InvalidRecord · InvalidTimestamp · InvalidGroupName · InconsistentProtocol
        NotFound                 UnknownTopic · UnknownPartition · UnknownGroup
        AlreadyExists
        TooLarge
        OutOfRange               names the valid range of offsets
        ConditionFailed          the log's end, or a revision, is not the expected one
        OutOfOrderSequence       an idempotent producer left a gap
        UnknownProducer          its state expired: take a new producer id
        IdempotencyKeyReused     the same key came with another payload
        Denied                   credentials or permissions
          Unauthenticated        it is not known who asks
          NotAuthorized          who asks may not do this
        MemberIdRequired         a new member of a group is told its id: join again with it
        GroupFull                a consumer group has as many members as it may have
        GroupNotEmpty            a consumer group has members: stop them first
      Unavailable              nothing was written; retry
        Throttled                after `retry_after_s`
        NotLeader                another broker leads; names it where it is known
        NoLeader                 nobody leads yet
        StaleRouting             the topic has grown since the request was routed over its partitions
        FencedLeaderEpoch        the reader names a leader of before; names the present one
        UnknownLeaderEpoch       the reader knows a newer leader than the broker that it asks
        Stopping                 this broker is shutting down
        NotCoordinator           another broker coordinates the group; names it where it is known
        NoCoordinator            nobody coordinates the group yet
      OutcomeUnknown           may be durable; read back, or retry idempotently
      Fenced                   a newer owner exists; stop here
        SessionFenced            this broker's session was sealed by its successor
        ProducerFenced           a newer epoch of this producer id exists
        InstanceFenced           another process has joined the group under this instance id
        StaleMember              join the group again
          UnknownMember · StaleGeneration · RebalanceInProgress
      Corrupt                  stored bytes are wrong; stop, and say which object and range

Errors of botocore, SQLite, grpc and the operating system are translated where they are called. gateway/error_codes.py maps
each class to its gRPC, HTTP and Kafka code.

The nearest known name to a mistyped one. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import ClassVar


class TidelogError(Exception):
    """What happened, what was written, and what to do.

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
    """The request itself is wrong. The same request will be refused again."""

    code = "REJECTED"
    nothing_was_written = True


class InvalidArgument(Rejected):
    code = "INVALID_ARGUMENT"


class InvalidName(InvalidArgument):
    code = "INVALID_NAME"
    default_hint = "Use 1 to 249 of the characters a-z A-Z 0-9 . _ - and neither '.' nor '..'."


class InvalidRecord(InvalidArgument):
    """A record batch is torn, lies about its lengths, fails its CRC-32C or has a magic other than 2."""

    code = "INVALID_RECORD"
    default_hint = "Send one whole record batch of magic 2, as Kafka clients write it."


class InvalidTimestamp(InvalidArgument):
    """A record is dated further ahead of the broker's clock than its topic takes."""

    code = "INVALID_TIMESTAMP"
    default_hint = "Date records in milliseconds since 1970-01-01 UTC, and look at the producer's clock."


class InvalidGroupName(InvalidArgument):
    code = "INVALID_GROUP_NAME"
    default_hint = "Use 1 to 249 characters, none of them a control character."


class InconsistentProtocol(InvalidArgument):
    """A member offers no way of assigning partitions that all others of its group know, too, or is of another kind."""

    code = "INCONSISTENT_PROTOCOL"


class NotFound(Rejected):
    code = "NOT_FOUND"


class UnknownTopic(NotFound):
    code = "UNKNOWN_TOPIC"
    default_hint = "Create it first: tidelog topic create NAME --partitions N"


class UnknownPartition(NotFound):
    code = "UNKNOWN_PARTITION"


class UnknownGroup(NotFound):
    code = "UNKNOWN_GROUP"
    default_hint = "A group is there once a member has joined it, or offsets were committed: tidelog group list"


class AlreadyExists(Rejected):
    code = "ALREADY_EXISTS"


class TooLarge(Rejected):
    code = "TOO_LARGE"


class OutOfRange(Rejected):
    """An offset below the log start or above the high watermark. `details`: log_start_offset, high_watermark."""

    code = "OFFSET_OUT_OF_RANGE"


class ConditionFailed(Rejected):
    code = "CONDITION_FAILED"


class OutOfOrderSequence(Rejected):
    code = "OUT_OF_ORDER_SEQUENCE"
    default_hint = "Send the batches of one producer in order, or begin again with a new producer id."


class UnknownProducer(OutOfOrderSequence):
    code = "UNKNOWN_PRODUCER"
    default_hint = "The producer's state has expired. Take a new producer id and begin at sequence 0."


class IdempotencyKeyReused(Rejected):
    code = "IDEMPOTENCY_KEY_REUSED"
    default_hint = "Use a new Idempotency-Key for a new request."


class Denied(Rejected):
    code = "DENIED"


class Unauthenticated(Denied):
    """No credentials were shown, or they count for nothing (any more)."""

    code = "UNAUTHENTICATED"
    default_hint = "Show an API key: Authorization: Bearer tlk_…, or a token or a client certificate that this cluster trusts."


class NotAuthorized(Denied):
    """Told of a topic or group whether it is there or not. `details`: principal, operation, resource, name."""

    code = "PERMISSION_DENIED"
    default_hint = "Ask for the right (tidelog acl add PRINCIPAL OPERATION --topic NAME), or for a key of wider scope."


class MemberIdRequired(Rejected):
    """Not a failure: the first answer to a new member (KIP-394). `details`: member_id."""

    code = "MEMBER_ID_REQUIRED"
    default_hint = "Join again with the member id that is told here."


class GroupFull(Rejected):
    code = "GROUP_FULL"


class GroupNotEmpty(Rejected):
    code = "GROUP_NOT_EMPTY"
    default_hint = "Stop the members of the group first, or wait until their sessions have ended."


class Unavailable(TidelogError):
    """Nothing was written; the same request may succeed later."""

    code = "UNAVAILABLE"
    retryable = True
    nothing_was_written = True
    default_hint = "Retry with back-off."


class Throttled(Unavailable):
    """A bound on memory, requests or bytes is reached."""

    code = "THROTTLED"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, hint: str | None = None, **details: str | int | float) -> None:
        super().__init__(message, hint=hint, **details)
        self.retry_after_s = retry_after_s


class NotLeader(Unavailable):
    code = "NOT_LEADER"


class NoLeader(Unavailable):
    code = "NO_LEADER"


class StaleRouting(Unavailable):
    """A request with an Idempotency-Key was routed over fewer partitions than its topic has now.

    `details`: partition_count and topic_revision, as the leader knows them.
    """

    code = "STALE_ROUTING"
    default_hint = "Retry the same request with the same Idempotency-Key: it is routed over all partitions then."


class FencedLeaderEpoch(Unavailable):
    """A reader named the epoch of a former leader. `details`: leader_epoch, and the leader's id and addresses where known."""

    code = "FENCED_LEADER_EPOCH"
    default_hint = "Read again with the leader epoch that is told here: the partition has another leader by now."


class UnknownLeaderEpoch(Unavailable):
    """A reader named an epoch above that of the broker that it asks. `details`: leader_epoch, as that broker knows it."""

    code = "UNKNOWN_LEADER_EPOCH"
    default_hint = "Retry with back-off: this broker does not know the newest leader yet. Ask another one where it lasts."


class Stopping(Unavailable):
    code = "STOPPING"
    default_hint = "Retry at another broker, or when this one is back."


class NotCoordinator(Unavailable):
    """Repeating the call at the group's coordinator is always safe, also where a step of the former one was stored.

    `details`: the coordinator's id and addresses where they are known.
    """

    code = "NOT_COORDINATOR"
    default_hint = "Ask for the coordinator of the group, and retry there."


class NoCoordinator(Unavailable):
    code = "NO_COORDINATOR"


class OutcomeUnknown(TidelogError):
    """The write may or may not be durable. An idempotent producer may retry; others must read back first."""

    code = "OUTCOME_UNKNOWN"
    retryable = True
    default_hint = "Read back before you retry, or retry with the same producer id and sequence."


class Fenced(TidelogError):
    """A newer owner exists. Nothing written from here on would ever be visible."""

    code = "FENCED"
    nothing_was_written = True


class SessionFenced(Fenced):
    code = "SESSION_FENCED"
    retryable = True
    default_hint = "Retry: the broker opens a new session, or another broker leads by now."


class ProducerFenced(Fenced):
    code = "PRODUCER_FENCED"
    default_hint = "A newer instance of this producer runs. Stop this one."


class InstanceFenced(Fenced):
    code = "INSTANCE_FENCED"
    default_hint = "Another process runs under this instance id. Stop this one, or give it an id of its own."


class StaleMember(Fenced):
    """Who asks is not, or no longer, a member of the group's present generation."""

    code = "STALE_MEMBER"
    default_hint = "Join the group again."


class UnknownMember(StaleMember):
    code = "UNKNOWN_MEMBER"
    default_hint = "Join the group again as a new member: without a member id."


class StaleGeneration(StaleMember):
    """`details`: generation, the present one."""

    code = "STALE_GENERATION"


class RebalanceInProgress(StaleMember):
    """`details`: waits, told to a heartbeat where the member's request to join waits for the others."""

    code = "REBALANCE_IN_PROGRESS"
    default_hint = "Commit what was read, and join the group again with the same member id."


class Corrupt(TidelogError):
    """Stored bytes are wrong, or gone; whoever wants to write is refused before anything is written.

    `details`: key, and where known: start and end of the range, next_offset where reading goes on.
    """

    nothing_was_written = True
    code = "CORRUPT"
    default_hint = "Run `tidelog bucket verify` and restore the named object from a backup."


# Above this many names none is suggested: comparing them all would cost milliseconds of the event loop.
KNOWN_MAX = 64


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A question that names the nearest of `known`, or '' where none is near (or there are too many to compare)."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7) if len(known) <= KNOWN_MAX and len(name) <= 249 else []
    return f"Did you mean {near[0]!r}?" if near else ""
