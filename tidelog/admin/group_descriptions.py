"""Describes consumer groups: members, lag, committed offsets, what a seek moves. Frozen, and ready for JSON. Pure.

The names are those of gateway/proto/groups.proto, and of JSON over HTTP.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from gateway.proto import groups_pb2
from gateway.proto.status import from_status
from gateway.proto.values import value_of
from metadata.errors import InvalidArgument
from metadata.groups.consumer_protocol import PROTOCOL_TYPE, decode_assignment


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group in a list of groups."""

    group: str
    # As it was stored last: Empty, CompletingRebalance or Stable.
    state: str
    # "consumer", or the name that other kinds of clients use; empty if the group never had a member.
    protocol_type: str
    members: int
    # Broker id; empty while no broker coordinates the group.
    coordinator: str


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group."""

    member_id: str
    # The id of a static member (KIP-345), else empty.
    instance_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # Partitions that it reads, by topic; also empty if its client encodes assignments in a form of its own.
    assignment: dict[str, list[int]]


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far the group is behind in a partition that it has committed an offset of, or that a member reads."""

    topic: str
    topic_id: str
    partition: int
    # Offset of the next record to read; None if nothing is committed.
    committed_offset: int | None
    # None if it is unknown at the moment, as are the next three; `error` gives the reason.
    high_watermark: int | None
    log_start_offset: int | None
    lag_records: int | None
    # Age of the first record that is not read yet; 0 where there is none.
    lag_seconds: float | None
    # The member that reads it; empty if there is none.
    member_id: str
    metadata: str
    committed_at_ms: int
    error: str = ""
    error_code: str = ""
    hint: str = ""


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group with its members and its lag."""

    group: str
    # Empty, PreparingRebalance, CompletingRebalance or Stable.
    state: str
    generation: int
    protocol_type: str
    # The assignor that all its members support.
    protocol: str
    # Id of the member that computes the assignment.
    leader: str
    # Id of the broker that coordinates the group.
    coordinator: str
    # Sum over all partitions with a known lag.
    lag_records: int
    # Largest lag of a partition, among those with a known lag.
    lag_seconds: float
    members: tuple[MemberInfo, ...]
    # By topic and partition.
    lags: tuple[PartitionLag, ...]


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """An offset that a group has committed for one partition."""

    topic: str
    topic_id: str
    partition: int
    # Offset of the next record to read.
    offset: int
    # Leader epoch of the last record read; -1 if unknown.
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class MovedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a seek on one partition of a group."""

    topic: str
    topic_id: str
    partition: int
    # None where nothing was committed.
    before: int | None
    # Always within the log, whatever was asked for; None if unknown, with the reason in `error`.
    after: int | None
    # Why `after` differs from what was asked for: BEYOND_END, BEFORE_START, NO_RECORD_SINCE (a time after all records). Else empty.
    reason: str = ""
    # The offset that was asked for in that case; None for a time.
    asked: int | None = None
    error: str = ""
    error_code: str = ""
    hint: str = ""

    @property
    def skipped(self) -> int | None:
        """Returns how many records the seek skips; negative if it re-reads them. None if nothing was committed."""
        return None if self.before is None or self.after is None else self.after - self.before


def listed_group(found: groups_pb2.ListedGroup) -> ListedGroup:
    return value_of(found, ListedGroup)


def group_info(found: groups_pb2.GroupDescription) -> GroupInfo:
    members = tuple(_member_info(member, found.protocol_type) for member in found.members)
    return value_of(found, GroupInfo, members=members, lags=tuple(map(_partition_lag, found.lags)))


def _member_info(member: groups_pb2.GroupMember, protocol_type: str) -> MemberInfo:
    assignment: dict[str, list[int]] = {}
    if protocol_type == PROTOCOL_TYPE:
        with suppress(InvalidArgument):  # what members write there is their own affair
            assignment = decode_assignment(member.assignment)
    assignment = {topic: sorted(partitions) for topic, partitions in sorted(assignment.items())}
    return value_of(member, MemberInfo, assignment=assignment)


def _partition_lag(lag: groups_pb2.PartitionLag) -> PartitionLag:
    fields: dict[str, Any] = _why(lag)
    if fields["error"]:
        fields["lag_seconds"] = None
        if lag.high_watermark < 0:  # else the error concerns the age of the first unread record alone
            fields |= dict.fromkeys(("high_watermark", "log_start_offset", "lag_records"))
    return value_of(lag, PartitionLag, **fields)


def committed_offset(found: groups_pb2.FetchedOffset) -> CommittedOffset:
    return value_of(found, CommittedOffset)


def moved_offset(moved: groups_pb2.MovedOffset) -> MovedOffset:
    fields: dict[str, Any] = _why(moved)
    if fields["error"]:
        fields["after"] = None
    return value_of(moved, MovedOffset, **fields)


def _why(row: groups_pb2.PartitionLag | groups_pb2.MovedOffset) -> dict[str, str]:
    """Returns message, code and hint; empty where there is no error."""
    if not row.HasField("error"):
        return {"error": "", "error_code": "", "hint": ""}
    error = from_status(row.error)
    return {"error": row.error.message or error.code, "error_code": error.code, "hint": error.hint}
