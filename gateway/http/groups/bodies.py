"""Defines the JSON bodies of requests about consumer groups, and of their answers. Pure.

Invariant: values that every coordinator would refuse fail already at decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from gateway.http.struct_body import Body

Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(max_length=249)]


class Answered(Struct, omit_defaults=True):
    """Leaves out members of an answer that are unset."""


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class NewMember(Body):
    """Describes a member that joins a group."""

    example = '{"topics": ["orders"]}'

    topics: Annotated[list[Name], Meta(min_length=1, description="The topics to read; all must exist.")]
    member_id: Annotated[str, Meta(max_length=600, description="The id of a member that joins again; empty for a new one.")] = ""
    instance_id: Annotated[
        Name, Meta(description="Kafka's group.instance.id: a member that returns with it in time keeps its partitions.")
    ] = ""
    client_id: Annotated[Name, Meta(description="A name of the client; the member id begins with it.")] = "http"
    session_timeout_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="A member without a request for this long is removed from the group.")
    ] = 45_000
    rebalance_timeout_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="How long a rebalance waits for this member to join again.")
    ] = 60_000
    assignors: Annotated[list[str], Meta(description="The assignors that the member supports, the preferred first. None: all.")] = (
        field(default_factory=list)
    )


class Heartbeat(Body):
    """Holds the heartbeat of a member."""

    example = '{"generation": 3}'

    generation: Int32
    instance_id: Name = ""


class NewOffset(Body):
    """Holds an offset to commit."""

    topic: Name
    partition: Int32
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1, description="The offset of the next record to read.")]
    leader_epoch: Annotated[
        int, Meta(ge=-1, le=2**31 - 1, description="The leader epoch of the last record read; -1: unknown.")
    ] = -1
    metadata: Annotated[str, Meta(description="Text that the client stores with the offset.")] = ""
    topic_id: Annotated[str, Meta(max_length=32, description="The id of the topic; empty: the present topic of this name.")] = ""


class MemberCommit(Body):
    """Holds a commit of a member: either offsets, or a cursor."""

    example = '{"generation": 3, "offsets": [{"topic": "orders", "partition": 0, "offset": 17}]}'

    generation: Int32
    offsets: list[NewOffset] | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    instance_id: Name = ""


class Commit(Body):
    """Holds a commit by hand, for a group without members."""

    example = '{"offsets": [{"topic": "orders", "partition": 0, "offset": 17}]}'

    offsets: list[NewOffset]


class SeekPoint(Body):
    """Holds the target of a seek; exactly one member is set."""

    timestamp: Annotated[int | str, Meta(description="Milliseconds since 1970, or RFC 3339.")] | UnsetType = UNSET
    offset: Int64 | UnsetType = UNSET
    shift: (
        Annotated[
            int,
            Meta(ge=-(2**63), le=2**63 - 1, description="Number of records to move from the committed offset; below 0: backwards."),
        ]
        | UnsetType
    ) = UNSET


class TopicPart(Body):
    """Names a topic, or some of its partitions."""

    topic: Name
    partitions: Annotated[list[Int32], Meta(description="The partitions; none: all.")] = field(default_factory=list)
    topic_id: Annotated[str, Meta(max_length=32)] = ""


class Seek(Body):
    """Describes a seek of committed offsets."""

    example = '{"to": {"timestamp": "2026-01-31T12:00:00Z"}, "topics": ["orders"]}'

    to: Annotated[str | SeekPoint, Meta(description="earliest, latest, or a point.")]
    topics: Annotated[list[Name | TopicPart], Meta(description="The topics; none: all with committed offsets.")] = field(
        default_factory=list
    )


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class AssignedTopic(Struct, frozen=True):
    """Lists the assigned partitions of a topic."""

    topic: str
    partitions: list[int]


class MemberAnswer(Struct, frozen=True):
    """Describes a member that has joined, with its assignment."""

    member_id: str
    generation: int
    assignor: str
    leader: Annotated[bool, Meta(description="Whether this member made the assignment of the whole group.")]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: list[AssignedTopic]


class OffsetAnswer(Answered):
    """Holds the result of a commit of one partition."""

    topic: str
    partition: int
    offset: int | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class CommitAnswer(Answered):
    """Holds the results of a commit."""

    offsets: Annotated[list[OffsetAnswer], Meta(description="In the order of the request.")] | UnsetType = UNSET
    cursor: str | UnsetType = UNSET


class CommittedAnswer(Struct, frozen=True):
    """Describes a committed offset."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class OffsetsAnswer(Answered):
    """Lists committed offsets."""

    offsets: list[CommittedAnswer]
    errors: Annotated[list[OffsetAnswer], Meta(description="Partitions whose stored offset is unreadable.")] | UnsetType = UNSET


class DeletedAnswer(Struct, frozen=True):
    """Lists deleted offsets."""

    deleted: Annotated[list[CommittedAnswer], Meta(description="The deleted offsets, as they were.")]


class MovedAnswer(Answered):
    """Holds the result of a seek of one partition."""

    topic: str
    topic_id: str
    partition: int
    before: Annotated[int | None, Meta(description="null: nothing was committed.")] | UnsetType = UNSET
    after: Annotated[int, Meta(description="The new offset, which is within the log.")] | UnsetType = UNSET
    reason: (
        Annotated[
            str,
            Meta(description="BEYOND_END, BEFORE_START or NO_RECORD_SINCE: why `after` is not the requested offset."),
        ]
        | UnsetType
    ) = UNSET
    asked: Annotated[int, Meta(description="With `reason`: the requested offset, if the seek was to an offset.")] | UnsetType = (
        UNSET
    )
    error: dict[str, Any] | UnsetType = UNSET


class SeekAnswer(Struct, frozen=True):
    """Holds the results of a seek."""

    moved: list[MovedAnswer]


class ListedAnswer(Struct, frozen=True):
    """Describes a group in a list."""

    group: str
    state: str
    protocol_type: str
    members: int
    coordinator: str


class GroupPageAnswer(Struct, frozen=True):
    """Lists a page of groups."""

    groups: list[ListedAnswer]
    next_page_token: Annotated[str, Meta(description="Empty on the last page; a page may be short, or empty, before that.")]


class DescribedMember(Struct, frozen=True):
    """Describes a member of a group."""

    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: list[AssignedTopic]


class LagAnswer(Answered):
    """Describes how far the group is behind in one partition."""

    topic: str
    topic_id: str
    partition: int
    committed_offset: Annotated[int | None, Meta(description="null: nothing is committed.")]
    high_watermark: int
    log_start_offset: int
    lag_records: int
    lag_seconds: Annotated[float, Meta(description="Age of the first uncommitted record, in seconds; 0 without one.")]
    member_id: Annotated[str, Meta(description="The member that reads the partition; empty without one.")]
    metadata: str
    committed_at_ms: int
    error: Annotated[dict[str, Any], Meta(description="Why the end of the log is unknown at the moment.")] | UnsetType = UNSET


class GroupAnswer(Struct, frozen=True):
    """Describes a group, its members and its lag."""

    group: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    coordinator: str
    lag_records: Annotated[int, Meta(description="The sum over all partitions.")]
    lag_seconds: Annotated[float, Meta(description="The largest of all partitions.")]
    members: list[DescribedMember]
    lags: list[LagAnswer]


class TopicLagAnswer(Struct, frozen=True):
    """Holds the lag of a group in one topic over the last hour, one element for each sample."""

    topic: str
    lag_records: Annotated[Sequence[int | None], Meta(description="null: the group had no partition of the topic then.")]
    lag_seconds: Annotated[Sequence[float | None], Meta(description="null: unknown.")]


class LagHistoryAnswer(Struct, frozen=True):
    """Holds the lag of a group over the last hour, one element for each sample, the newest last."""

    group: str
    interval_ms: Annotated[
        int, Meta(description="From one sample to the next while a client looks. A longer gap means: not known.")
    ]
    age_ms: Annotated[int | None, Meta(description="Age of the newest sample; null without one.")]
    at_ms: Annotated[Sequence[int], Meta(description="When the samples were taken.")]
    lag_records: Annotated[Sequence[int], Meta(description="The sum over all partitions.")]
    lag_seconds: Annotated[Sequence[float | None], Meta(description="The largest of all partitions; null: unknown.")]
    topics: Annotated[list[TopicLagAnswer], Meta(description="Twenty topics at most, those that were most behind first.")]
    topics_left_out: Annotated[int, Meta(description="Further topics; their lag is in that of the group.")]
    is_partial: Annotated[
        bool, Meta(description="true: lag_records and lag_seconds are of `topics` alone. The caller may not describe every topic.")
    ]
    silent_brokers: Annotated[dict[str, str], Meta(description="Brokers that did not answer, each with the reason.")]


def assigned_topics(partitions: Iterable[tuple[str, int]]) -> list[AssignedTopic]:
    """Groups partitions by topic, in the order of the first of each topic."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return [AssignedTopic(topic, numbers) for topic, numbers in by_topic.items()]
