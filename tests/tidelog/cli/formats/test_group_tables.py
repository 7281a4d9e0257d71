"""What people read of a group in a terminal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tidelog.admin.group_descriptions import GroupInfo, MemberInfo, MovedOffset, PartitionLag
from tidelog.cli.formats.group_tables import (
    effect,
    error_lines,
    lag_rows,
    member_rows,
    misses,
    moved_rows,
    moves_nothing,
    notes,
    ranges,
    summary,
)


def a_member(member_id: str, client_id: str = "w", instance_id: str = "", **assignment: list[int]) -> MemberInfo:
    return MemberInfo(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host="10.0.0.7",
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        assignment=assignment,
    )


def a_lag(topic: str = "orders", partition: int = 0, **changes: Any) -> PartitionLag:
    known: dict[str, Any] = {
        "committed_offset": 5,
        "high_watermark": 1_234_572,
        "log_start_offset": 0,
        "lag_records": 1_234_567,
        "lag_seconds": 3.25,
        "member_id": "",
        "metadata": "",
        "committed_at_ms": 0,
    }
    return PartitionLag(topic=topic, topic_id="", partition=partition, **known | changes)


def a_group(*members: MemberInfo, lags: tuple[PartitionLag, ...] = (), **changes: Any) -> GroupInfo:
    known: dict[str, Any] = {
        "state": "Stable",
        "generation": 7,
        "protocol_type": "consumer",
        "protocol": "range",
        "leader": members[0].member_id if members else "",
        "coordinator": "b1",
        "lag_records": 3,
        "lag_seconds": 1.5,
    }
    return GroupInfo(group="billing", members=members, lags=lags, **known | changes)


def a_move(before: int | None, after: int | None, error: str = "", hint: str = "", partition: int = 0) -> MovedOffset:
    return MovedOffset(topic="t", topic_id="", partition=partition, before=before, after=after, error=error, hint=hint)


# ── members ──


def test_a_member_is_named_by_its_shortest_unique_prefix_and_a_static_one_by_its_instance_id() -> None:
    ids = "w-6fb0c7a0-91d2-1", "w-6fb0c7a0-91d2-2", "w-11111111-2222-3"
    group = a_group(*map(a_member, ids), a_member("host-1-6fb0c7a0-9", "", "host-1"))
    assert [row["member"] for row in member_rows(group)] == [
        "host-1",
        "w-11111111-2222-3",
        "w-6fb0c7a0-91d2-1",
        "w-6fb0c7a0-91d2-2",
    ]
    assert summary(group)["member_leader"] == "w-6fb0c7a0-91d2-1"
    far_apart = a_group(a_member("w-6fb0c7a0-91d2-1"), a_member("w-11111111-2222-3"))
    assert [row["member"] for row in member_rows(far_apart)] == ["w-11111111…", "w-6fb0c7a0…"]


def test_a_client_id_is_shown_where_the_members_name_does_not_say_it() -> None:
    assert "client" not in member_rows(a_group(a_member("w-1")))[0]
    assert member_rows(a_group(a_member("w-1"), a_member("x-1", "w", "x")))[1]["client"] == "w"


def test_assigned_partitions_are_shown_as_ranges_with_a_line_for_each_topic() -> None:
    [row] = member_rows(a_group(a_member("w-1", a=[0, 1, 2, 5], b=[7])))
    assert (row["partitions"], row["assignment"]) == ("5", "a: 0-2, 5\nb: 7")
    assert ranges([]) == ""
    assert ranges(iter([3, 4, 8, 10, 11])) == "3-4, 8, 10-11"


def test_a_member_that_reads_nothing_has_a_row_too() -> None:
    [row] = member_rows(a_group(a_member("w-1")))
    assert (row["partitions"], row["assignment"]) == ("0", "")


# ── lag ──


def test_lags_have_thousands_separators_offsets_have_none_and_unknown_values_are_empty() -> None:
    unknown = a_lag(partition=1, committed_offset=None, high_watermark=None, lag_records=None, lag_seconds=None)
    known, left_out = lag_rows(a_group(a_member("w-1"), lags=(a_lag(member_id="w-1"), unknown)))
    assert list(known.values()) == ["orders", 0, 5, 1_234_572, "1,234,567", 3.25, "w-1"]
    assert list(left_out.values()) == ["orders", 1, None, None, None, None, ""]


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (a_group(a_member("w-1"), lags=(a_lag(member_id="w-1"), a_lag(partition=1))), []),
        (a_group(state="PreparingRebalance"), ["a rebalance is under way: partitions may have other owners in a moment"]),
        (a_group(state="Empty", lags=(a_lag(),)), ["no member reads as billing now"]),
        (a_group(protocol_type="connect", lags=(a_lag(),)), []),
        (
            a_group(lags=(a_lag(member_id="w-1"), a_lag("old"), a_lag("old", 1))),
            ["no member reads old, of which offsets are committed: what comes there counts as lag"],
        ),
        (
            a_group(lags=(a_lag(member_id="w", lag_records=None, error="it has no leader", hint="Wait."), a_lag(partition=1))),
            ["the lag of 1 of 2 partitions is not known, and not counted:", "orders/0: it has no leader\n  Wait."],
        ),
    ],
)
def test_notes_under_the_tables_say_what_they_do_not(group: GroupInfo, said: list[str]) -> None:
    assert notes(group) == said


# ── what a seek moves ──


def test_a_move_to_another_offset_than_asked_for_has_a_reason() -> None:
    moved = [
        msgspec.structs.replace(a_move(10, 60), reason="BEYOND_END", asked=500),
        msgspec.structs.replace(a_move(60, 10), reason="BEFORE_START", asked=3),
        msgspec.structs.replace(a_move(10, 10), reason="BEFORE_START", asked=-40),
        msgspec.structs.replace(a_move(None, 60), reason="NO_RECORD_SINCE"),
        msgspec.structs.replace(a_move(1, 60), reason="OF_A_LATER_VERSION", asked=7),
    ]
    assert [row["change"] for row in moved_rows(moved)] == [
        "skips 50; 500 is beyond the end",
        "reads 50 again; 3 is deleted: this is the start",
        "stays; -40 is below the first offset",
        "begins here; no record is as late: this is the end",
        "skips 59; OF_A_LATER_VERSION",
    ]
    assert (
        misses([*moved, a_move(1, 2)]) == "what was asked for lies outside of 5 of 6 partitions, and the nearer end is taken there"
    )
    assert misses(moved[:1]).startswith("what was asked for lies outside of the partition,")
    assert misses([a_move(1, 2)]) == ""


def test_a_move_says_what_it_does_to_the_reader() -> None:
    moved = [a_move(10, 4), a_move(1_000, 3_000), a_move(None, 7), a_move(5, 5), a_move(5, None, "it has no leader")]
    assert [row["change"] for row in moved_rows(moved)] == [
        "reads 6 again",
        "skips 2,000",
        "begins here",
        "stays",
        "can't be moved",
    ]
    assert effect(moved[:4]) == "read 6 records again, skip 2,000 records and have its first offset in 1 partition"


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ([a_move(5, 5)], ""),
        ([a_move(5, 4), a_move(1, 1)], "read 1 record again"),
        ([a_move(5, 4), a_move(1, 3)], "read 1 record again and skip 2 records"),
    ],
)
def test_the_effect_of_a_seek_is_described_in_one_sentence(moved: list[MovedOffset], said: str) -> None:
    assert effect(moved) == said
    assert moves_nothing(moved) == (not said)


def test_of_many_errors_the_first_few_are_shown() -> None:
    said = error_lines([a_move(0, None, "gone", partition=number) for number in range(7)])
    assert said == [*(f"t/{number}: gone" for number in range(5)), "and 2 partitions more"]
