"""`log.groups`: what goes over the wire, what comes back, and what is refused before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

import tidelog
from gateway.proto import groups_pb2 as wire
from gateway.proto.status import to_status
from metadata.errors import (
    GroupNotEmpty,
    InvalidArgument,
    NoLeader,
    NotCoordinator,
    OutcomeUnknown,
    TidelogError,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
)
from metadata.groups.consumer_protocol import encode_assignment
from tests.kit.tidelog.small_broker import SmallBroker, running
from tests.kit.tidelog.small_groups import SmallGroups
from tidelog.admin.group_descriptions import CommittedOffset, ListedGroup, MemberInfo, MovedOffset, PartitionLag
from tidelog.admin.groups import Groups

pytestmark = pytest.mark.slow


def reported(ask: Callable[[Groups], Coroutine[Any, Any, Any]], *answers: Any) -> tuple[Any, list[Any]]:
    """What a client makes of these answers, one for each call; and what it had asked."""

    async def test() -> Any:
        broker = SmallBroker()
        small = SmallGroups.of(broker)
        small.answers.extend(answers)
        async with (
            asyncio.timeout(60),
            running(broker),
            tidelog.connect(broker.address, retry_pause_ms=1, retry_pause_ms_max=2) as log,
        ):
            try:
                found: Any = await ask(log.groups)
            except TidelogError as error:
                found = error
        assert not small.answers
        return found, small.asked

    return asyncio.run(test())  # type: ignore[no-any-return]


def listed(name: str, state: str = "Stable") -> wire.ListedGroup:
    return wire.ListedGroup(group=name, state=state, protocol_type="consumer", members=2, coordinator="b1")


# ── list ──


def test_a_list_is_read_to_its_last_page() -> None:
    pages = (
        wire.ListGroupsResponse(groups=[listed("a")], next_page_token="more"),
        wire.ListGroupsResponse(next_page_token="and-more"),
        wire.ListGroupsResponse(groups=[listed("b", "Empty")]),
    )
    found, asked = reported(lambda groups: groups.list(states=["Stable", "Empty"]), *pages)
    assert found[0] == ListedGroup(group="a", state="Stable", protocol_type="consumer", members=2, coordinator="b1")
    assert [group.group for group in found] == ["a", "b"]
    assert [request.page_token for request in asked] == ["", "more", "and-more"]
    assert all(list(request.states) == ["Stable", "Empty"] for request in asked)


# ── describe ──


async def members_of(groups: Groups) -> tuple[MemberInfo, ...]:
    return (await groups.describe("g")).members


def test_a_description_decodes_assignments_in_kafkas_form_and_leaves_others_alone() -> None:
    members = [
        wire.GroupMember(member_id="w-1", client_id="w", assignment=encode_assignment({"orders": [4, 0], "a": [1]})),
        wire.GroupMember(
            member_id="w-2", client_id="w", instance_id="two", client_host="h", session_timeout_ms=9, assignment=b"\xff"
        ),
    ]
    answer = wire.GroupDescription(group="g", state="Stable", generation=3, protocol_type="consumer", members=members)
    connector = wire.GroupDescription(group="c", protocol_type="connect", members=members)
    (one, other), _ = reported(members_of, answer)
    assert [member.assignment for member in reported(members_of, connector)[0]] == [{}, {}]
    assert one.assignment == {"a": [1], "orders": [0, 4]}
    assert other == MemberInfo(
        member_id="w-2",
        instance_id="two",
        client_id="w",
        client_host="h",
        session_timeout_ms=9,
        rebalance_timeout_ms=0,
        assignment={},
    )


def lag_row(**changes: Any) -> wire.PartitionLag:
    return wire.PartitionLag(topic="t", partition=1, **changes)


def expected(**changes: Any) -> PartitionLag:
    known: dict[str, Any] = {
        "topic": "t",
        "topic_id": "",
        "partition": 1,
        "committed_offset": None,
        "high_watermark": 9,
        "log_start_offset": 2,
        "lag_records": 7,
        "lag_seconds": 1.5,
        "member_id": "",
        "metadata": "",
        "committed_at_ms": 0,
    }
    return PartitionLag(**known | changes)


@pytest.mark.parametrize(
    ("row", "read"),
    [
        (lag_row(high_watermark=9, log_start_offset=2, lag_records=7, lag_seconds=1.5), expected()),
        (
            lag_row(committed_offset=0, high_watermark=9, log_start_offset=2, lag_records=7, lag_seconds=1.5),
            expected(committed_offset=0),
        ),
        (  # nothing is known of the log
            lag_row(high_watermark=-1, log_start_offset=-1, error=to_status(NoLeader("t/1 has no leader", hint="Wait."))),
            expected(
                high_watermark=None,
                log_start_offset=None,
                lag_records=None,
                lag_seconds=None,
                error="t/1 has no leader",
                error_code="NO_LEADER",
                hint="Wait.",
            ),
        ),
        (  # only the age of the first unread record is not
            lag_row(high_watermark=9, log_start_offset=2, lag_records=7, error=to_status(Unavailable("slow", hint="Wait."))),
            expected(lag_seconds=None, error="slow", error_code="UNAVAILABLE", hint="Wait."),
        ),
    ],
    ids=["nothing committed", "committed at 0", "no leader", "age unknown"],
)
def test_a_value_that_is_not_known_of_a_lag_is_none_and_never_zero(row: wire.PartitionLag, read: PartitionLag) -> None:
    group, _ = reported(lambda groups: groups.describe("g"), wire.GroupDescription(lags=[row]))
    assert group.lags == (read,)


# ── offsets ──


def test_offsets_leave_out_what_was_not_committed_and_come_in_order() -> None:
    rows = [
        wire.FetchedOffset(topic="b", partition=0, offset=5, leader_epoch=2, metadata="m", committed_at_ms=9, topic_id="id"),
        wire.FetchedOffset(topic="a", partition=1, offset=0, leader_epoch=-1),
        wire.FetchedOffset(topic="a", partition=0, leader_epoch=-1),
    ]
    found, [asked] = reported(lambda groups: groups.offsets("g", {"a": [1, 0], "b": None}), wire.OffsetFetchResponse(offsets=rows))
    assert [(offset.topic, offset.partition, offset.offset) for offset in found] == [("a", 1, 0), ("b", 0, 5)]
    assert found[1] == CommittedOffset(
        topic="b", topic_id="id", partition=0, offset=5, leader_epoch=2, metadata="m", committed_at_ms=9
    )
    assert [(part.topic, list(part.partitions)) for part in asked.topics] == [("a", [0, 1]), ("b", [])]


def test_a_partition_that_is_not_there_is_raised() -> None:
    row = wire.FetchedOffset(topic="a", partition=9, error=to_status(UnknownPartition("a has 3 partitions")))
    met, _ = reported(lambda groups: groups.offsets("g", {"a": [9]}), wire.OffsetFetchResponse(offsets=[row]))
    assert (type(met), met.message) == (UnknownPartition, "a/9: a has 3 partitions")


# ── seek ──


@pytest.mark.parametrize(
    ("to", "shift", "kind", "value"),
    [
        ("earliest", None, "earliest", True),
        ("latest", None, "latest", True),
        ("-0", None, "latest", True),
        (4711, None, "offset", 4711),
        ("4711", None, "offset", 4711),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), None, "timestamp_ms", 1000),
        (None, -100, "shift", -100),
        (None, 0, "shift", 0),
    ],
)
def test_a_seek_says_where_to(to: Any, shift: int | None, kind: str, value: Any) -> None:
    answer = wire.SeekGroupResponse(moved=[wire.MovedOffset(topic="t", partition=1, before=0, after=7)])
    [moved], [asked] = reported(lambda groups: groups.seek("g", to, shift=shift, topics="t", validate_only=True), answer)
    assert (moved.before, moved.after, moved.skipped) == (0, 7, 7)
    assert (asked.WhichOneof("to"), getattr(asked, kind)) == (kind, value)
    assert (asked.group, asked.validate_only, [part.topic for part in asked.topics]) == ("g", True, ["t"])


def test_an_offset_that_cannot_be_moved_has_a_reason_and_no_position() -> None:
    rows = [
        wire.MovedOffset(topic="t", partition=1, after=4),
        wire.MovedOffset(topic="t", partition=0, before=3, after=-1, error=to_status(NoLeader("no leader", hint="Wait."))),
    ]
    (failed, begun), _ = reported(lambda groups: groups.seek("g", "latest", validate_only=True), wire.SeekGroupResponse(moved=rows))
    assert failed == MovedOffset(
        topic="t", topic_id="", partition=0, before=3, after=None, error="no leader", error_code="NO_LEADER", hint="Wait."
    )
    assert (begun.before, begun.after, begun.skipped) == (None, 4, None)


def test_a_seek_outside_of_the_log_returns_its_reason_and_the_requested_offset() -> None:
    rows = [
        wire.MovedOffset(topic="t", partition=0, after=9, reason="BEYOND_END", asked=4711),
        wire.MovedOffset(topic="t", partition=1, after=9, reason="NO_RECORD_SINCE"),
        wire.MovedOffset(topic="t", partition=2, after=9),
    ]
    moved, _ = reported(lambda groups: groups.seek("g", 4711), wire.SeekGroupResponse(moved=rows))
    assert [(row.reason, row.asked) for row in moved] == [("BEYOND_END", 4711), ("NO_RECORD_SINCE", None), ("", None)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "either a place or a shift"),
        ({"to": "latest", "shift": 1}, "either a place or a shift"),
        ({"shift": 2**63}, "shift is 9223372036854775808"),
        ({"shift": True}, "shift is True"),
        ({"to": "-10"}, "not moved to the last 10 records"),
        ({"to": {0: 4}}, "one offset at a time"),
        ({"to": "noon"}, "no place to begin"),
        ({"to": "latest", "topics": []}, "no topic is named"),
        ({"to": "latest", "topics": {"t": []}}, "no partition of t is named"),
        ({"to": "latest", "topics": {"t": 3}}, "no partition of t is named"),
        ({"to": "latest", "topics": {"t": [-1]}}, "-1 is no partition of t"),
        ({"to": "latest", "topics": {"t": [2**31]}}, "2147483648 is no partition of t"),
        ({"to": "latest", "topics": [7]}, "7 is no topic's name"),
        ({"to": "latest", "topics": 7}, "7 names no topics"),
    ],
)
def test_a_seek_that_says_nothing_or_too_much_never_goes_out(arguments: Any, said: str) -> None:
    met, asked = reported(lambda groups: groups.seek("g", **arguments))
    assert isinstance(met, InvalidArgument)
    assert said in met.message
    assert asked == []


# ── what brokers refuse ──


def test_a_coordinator_that_moved_is_asked_for_again() -> None:
    _, asked = reported(lambda groups: groups.delete("g"), NotCoordinator("b2 coordinates g"), wire.DeleteGroupResponse())
    assert [request.group for request in asked] == ["g", "g"]


@pytest.mark.parametrize("refusal", [UnknownGroup("there is no group g"), GroupNotEmpty("group g has 3 members")])
def test_refusals_are_raised_as_they_are(refusal: TidelogError) -> None:
    met, _ = reported(lambda groups: groups.delete_offsets("g", "t"), refusal)
    assert type(met) is type(refusal)
    assert refusal.message in met.message
    assert met.hint == refusal.hint


def test_a_change_of_unknown_outcome_is_not_retried() -> None:
    met, asked = reported(lambda groups: groups.seek("g", "latest"), OutcomeUnknown("no answer came"))
    assert type(met) is OutcomeUnknown
    assert len(asked) == 1


def test_deleted_offsets_are_returned() -> None:
    rows = [wire.FetchedOffset(topic="t", partition=number, offset=number) for number in (1, 0)]
    deleted, [asked] = reported(
        lambda groups: groups.delete_offsets("g", ["t"], validate_only=True), wire.DeleteOffsetsResponse(deleted=rows)
    )
    assert [offset.partition for offset in deleted] == [0, 1]
    assert asked.validate_only
