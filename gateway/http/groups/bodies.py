"""Bodies of requests about consumer groups over HTTP, and their answers, as JSON. Pure.

Invariant: struct_body.py refuses what no coordinator could take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from gateway.http.struct_body import Body

Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Milliseconds = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Name = Annotated[str, Meta(max_length=249)]


class Answered(Struct, omit_defaults=True):
    """Members of an answer that have nothing to tell are left out."""


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class NewMember(Body):
    """Who joins a group."""

    example = '{"topics": ["orders"]}'

    topics: Annotated[list[Name], Meta(min_length=1, description="What to read; all must be there.")]
    member_id: Annotated[str, Meta(max_length=600, description="Of a member that joins again; a new one has none.")] = ""
    instance_id: Annotated[
        Name, Meta(description="Kafka's group.instance.id: who comes back under it in time gets its partitions back.")
    ] = ""
    client_id: Annotated[Name, Meta(description="What the member calls itself: its id begins with it.")] = "http"
    session_timeout_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="A member that nothing is heard of for so long is taken for dead.")
    ] = 45_000
    rebalance_timeout_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="So long the others wait for this member to join again.")
    ] = 60_000
    assignors: Annotated[list[str], Meta(description="Which it takes part in, the best first. None: every one.")] = field(
        default_factory=list
    )


class Heartbeat(Body):
    example = '{"generation": 3}'

    generation: Int32
    instance_id: Name = ""


class NewOffset(Body):
    topic: Name
    partition: Int32
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1, description="Of the next record to be read.")]
    leader_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1, description="Of the last record that was read; -1: not known.")] = -1
    metadata: Annotated[str, Meta(description="The client's own.")] = ""
    topic_id: Annotated[str, Meta(max_length=32, description="Of this life of the topic; empty: whichever is there.")] = ""


class MemberCommit(Body):
    """Either offsets, or the cursor of what was read."""

    example = '{"generation": 3, "offsets": [{"topic": "orders", "partition": 0, "offset": 17}]}'

    generation: Int32
    offsets: list[NewOffset] | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    instance_id: Name = ""


class Commit(Body):
    """By hand: of a group without members."""

    example = '{"offsets": [{"topic": "orders", "partition": 0, "offset": 17}]}'

    offsets: list[NewOffset]


class SeekPoint(Body):
    """One of these."""

    timestamp: Annotated[int | str, Meta(description="Milliseconds since 1970, or RFC 3339.")] | UnsetType = UNSET
    offset: Int64 | UnsetType = UNSET
    shift: (
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, description="Records on from what is committed; below 0: back.")] | UnsetType
    ) = UNSET


class TopicPart(Body):
    topic: Name
    partitions: Annotated[list[Int32], Meta(description="None: all.")] = field(default_factory=list)
    topic_id: Annotated[str, Meta(max_length=32)] = ""


class Seek(Body):
    example = '{"to": {"timestamp": "2026-01-31T12:00:00Z"}, "topics": ["orders"]}'

    to: Annotated[str | SeekPoint, Meta(description="earliest, latest, or a point.")]
    topics: Annotated[list[Name | TopicPart], Meta(description="None: all that the group has committed.")] = field(
        default_factory=list
    )


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class AssignedTopic(Struct, frozen=True):
    topic: str
    partitions: list[int]


class MemberAnswer(Struct, frozen=True):
    member_id: str
    generation: int
    assignor: str
    leader: Annotated[bool, Meta(description="Whether this member made the assignment of the whole group.")]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: list[AssignedTopic]


class OffsetAnswer(Answered):
    topic: str
    partition: int
    offset: int | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class CommitAnswer(Answered):
    offsets: Annotated[list[OffsetAnswer], Meta(description="In the order of the request.")] | UnsetType = UNSET
    cursor: str | UnsetType = UNSET


class CommittedAnswer(Struct, frozen=True):
    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class OffsetsAnswer(Answered):
    offsets: list[CommittedAnswer]
    errors: Annotated[list[OffsetAnswer], Meta(description="What is stored of these can't be read.")] | UnsetType = UNSET


class DeletedAnswer(Struct, frozen=True):
    deleted: Annotated[list[CommittedAnswer], Meta(description="What was committed before.")]


class MovedAnswer(Answered):
    topic: str
    topic_id: str
    partition: int
    before: Annotated[int | None, Meta(description="null: nothing was committed.")] | UnsetType = UNSET
    after: Annotated[int, Meta(description="Within the log, whatever was asked for.")] | UnsetType = UNSET
    reason: (
        Annotated[
            str, Meta(description="BEYOND_END, BEFORE_START or NO_RECORD_SINCE: why it is not what was asked for. Absent: it is.")
        ]
        | UnsetType
    ) = UNSET
    asked: Annotated[int, Meta(description="With `reason`: the offset that was asked for, if it was one.")] | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class SeekAnswer(Struct, frozen=True):
    moved: list[MovedAnswer]


class ListedAnswer(Struct, frozen=True):
    group: str
    state: str
    protocol_type: str
    members: int
    coordinator: str


class GroupPageAnswer(Struct, frozen=True):
    groups: list[ListedAnswer]
    next_page_token: Annotated[str, Meta(description="Empty on the last page; a page may be short, or empty, before that.")]


class DescribedMember(Struct, frozen=True):
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: list[AssignedTopic]


class LagAnswer(Answered):
    topic: str
    topic_id: str
    partition: int
    committed_offset: Annotated[int | None, Meta(description="null: nothing is committed.")]
    high_watermark: int
    log_start_offset: int
    lag_records: int
    lag_seconds: Annotated[float, Meta(description="Age of the first record that is not read yet; 0 where there is none.")]
    member_id: Annotated[str, Meta(description="Who reads it; empty where nobody does.")]
    metadata: str
    committed_at_ms: int
    error: Annotated[dict[str, Any], Meta(description="Why the end of the log can't be told at the moment.")] | UnsetType = UNSET


class GroupAnswer(Struct, frozen=True):
    group: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    coordinator: str
    lag_records: Annotated[int, Meta(description="Of all partitions together.")]
    lag_seconds: Annotated[float, Meta(description="Of the partition that is furthest behind.")]
    members: list[DescribedMember]
    lags: list[LagAnswer]


def assigned_topics(partitions: Iterable[tuple[str, int]]) -> list[AssignedTopic]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return [AssignedTopic(topic, numbers) for topic, numbers in by_topic.items()]
