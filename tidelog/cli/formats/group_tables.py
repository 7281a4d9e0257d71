"""Formats consumer groups for a terminal: rows of tables, and sentences under them. Pure.

MEMBER            HOST       PARTITIONS  ASSIGNMENT            a static member by its instance id, others by as much of their
worker-6fb0c7a0…  10.0.0.7   5           orders: 0-3, 7        member id as tells them apart
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from metadata.groups.consumer_protocol import PROTOCOL_TYPE
from tidelog.admin.group_descriptions import CommittedOffset, GroupInfo, MovedOffset, PartitionLag

# Characters of a member id behind its client id.
ID_TAIL_MIN: Final = 8
ERRORS_SHOWN_MAX: Final = 5
_REBALANCING: Final = {"PreparingRebalance", "CompletingRebalance"}


def summary(group: GroupInfo) -> dict[str, Any]:
    names = _member_names(group)
    return {
        "group": group.group,
        "state": group.state,
        "generation": group.generation,
        **({} if group.protocol_type in {PROTOCOL_TYPE, ""} else {"protocol_type": group.protocol_type}),
        "assignor": group.protocol,
        "member_leader": names.get(group.leader, group.leader),
        "coordinator": group.coordinator,
        "members": len(group.members),
        "lag_records": group.lag_records,
        "lag_seconds": group.lag_seconds,
    }


def member_rows(group: GroupInfo) -> list[dict[str, Any]]:
    names = _member_names(group)
    rows = []
    for member in sorted(group.members, key=lambda member: names[member.member_id]):
        row = {"member": names[member.member_id], "client": member.client_id, "host": member.client_host}
        row["partitions"] = str(sum(map(len, member.assignment.values())))
        row["assignment"] = "\n".join(f"{topic}: {ranges(numbers)}" for topic, numbers in member.assignment.items())
        rows.append(row)
    if all(member.member_id.startswith(member.client_id) and not member.instance_id for member in group.members):
        for row in rows:
            del row["client"]  # the member's name begins with it
    return rows


def lag_rows(group: GroupInfo) -> list[dict[str, Any]]:
    names = _member_names(group)
    return [
        {
            "topic": lag.topic,
            "part": lag.partition,
            "committed": lag.committed_offset,
            "end": lag.high_watermark,
            "lag": None if lag.lag_records is None else f"{lag.lag_records:,}",
            "seconds": lag.lag_seconds,
            "member": names.get(lag.member_id, lag.member_id),
        }
        for lag in group.lags
    ]


def offset_rows(offsets: Sequence[CommittedOffset]) -> list[dict[str, Any]]:
    return [{"topic": offset.topic, "part": offset.partition, "committed": offset.offset} for offset in offsets]


def notes(group: GroupInfo) -> list[str]:
    """Returns sentences that explain the tables."""
    said = []
    if group.state in _REBALANCING:
        said.append("a rebalance is under way: partitions may have other owners in a moment")
    elif group.state == "Empty":
        said.append(f"no member reads as {group.group} now")
    elif group.protocol_type == PROTOCOL_TYPE:
        read = {lag.topic for lag in group.lags if lag.member_id}
        unread = dict.fromkeys(lag.topic for lag in group.lags if lag.topic not in read)
        said += [f"no member reads {topic}, of which offsets are committed: what comes there counts as lag" for topic in unread]
    if unknown := sum(lag.lag_records is None for lag in group.lags):
        said.append(f"the lag of {unknown} of {len(group.lags)} partitions is not known, and not counted:")
    return said + error_lines(group.lags)


def moved_rows(moved: Sequence[MovedOffset]) -> list[dict[str, Any]]:
    return [
        {
            "topic": offset.topic,
            "part": offset.partition,
            "before": offset.before,
            "after": offset.after,
            "change": _change(offset),
        }
        for offset in moved
    ]


def _change(offset: MovedOffset) -> str:
    if offset.error:
        return "can't be moved"
    if offset.skipped is None:
        change = "begins here"
    elif offset.skipped < 0:
        change = f"reads {-offset.skipped:,} again"
    else:
        change = f"skips {offset.skipped:,}" if offset.skipped else "stays"
    return change + (f"; {why}" if (why := _why_there(offset)) else "")


def _why_there(offset: MovedOffset) -> str:
    """Returns why the offset is not the one asked for."""
    asked = offset.asked
    match offset.reason:
        case "BEYOND_END" if asked is not None:
            return f"{asked} is beyond the end"
        case "BEFORE_START" if asked is not None:
            return f"{asked} is below the first offset" if asked < 0 else f"{asked} is deleted: this is the start"
        case "NO_RECORD_SINCE":
            return "no record is as late: this is the end"
    return offset.reason


def effect(moved: Iterable[MovedOffset]) -> str:
    """Describes what the group re-reads or skips, to follow "will" or "would"; empty if nothing moves."""
    changes = [offset.skipped for offset in moved]
    again = -sum(change for change in changes if change is not None and change < 0)
    skipped = sum(change for change in changes if change is not None and change > 0)
    begun = sum(change is None for change in changes)
    said = [f"read {_counted(again, 'record')} again"] if again else []
    said += [f"skip {_counted(skipped, 'record')}"] if skipped else []
    said += [f"have its first offset in {_counted(begun, 'partition')}"] if begun else []
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def misses(moved: Sequence[MovedOffset]) -> str:
    """Describes how many partitions missed the requested place; empty if none did."""
    missed = sum(bool(offset.reason) for offset in moved if not offset.error)
    if not missed:
        return ""
    some = "the partition" if len(moved) == 1 else f"{missed} of {len(moved)} partitions"
    return f"what was asked for lies outside of {some}, and the nearer end is taken there"


def moves_nothing(moved: Iterable[MovedOffset]) -> bool:
    return all(offset.skipped == 0 for offset in moved)


def ranges(numbers: Iterable[int]) -> str:
    """Formats sorted numbers as ranges: `0-3, 7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, ends)) for ends in found)


def error_lines(rows: Iterable[PartitionLag | MovedOffset]) -> list[str]:
    failed = [row for row in rows if row.error]
    said = [
        f"{row.topic}/{row.partition}: {row.error}" + (f"\n  {row.hint}" if row.hint else "") for row in failed[:ERRORS_SHOWN_MAX]
    ]
    more = len(failed) - ERRORS_SHOWN_MAX
    return [*said, f"and {_counted(more, 'partition')} more"] if more > 0 else said


def _member_names(group: GroupInfo) -> dict[str, str]:
    """Shortens member ids as far as they stay distinct: each ends in 36 characters that only make it unique."""
    ids = sorted(member.member_id for member in group.members)
    shared = max((_shared_start(one, other) for one, other in pairwise(ids)), default=0)
    names = {}
    for member in group.members:
        wanted = max(len(member.client_id) + 1 + ID_TAIL_MIN, shared + 1)
        is_cut = len(member.member_id) > wanted + 1
        names[member.member_id] = member.instance_id or (f"{member.member_id[:wanted]}…" if is_cut else member.member_id)
    return names


def _shared_start(one: str, other: str) -> int:
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    return shared


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"
