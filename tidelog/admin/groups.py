"""Lists, describes and seeks consumer groups: `log.groups`. Members themselves are `log.consume(…, group=…)`.

Any broker answers: it asks the group's coordinator where that is another. How `to` and `topics` are written:

    to="earliest"  "latest"  "1h"  "2026-01-31T12:00:00Z"  4711      a place, as in tidelog/positions.py
    shift=-100  shift=100                                            records back, or on, from what is committed
    topics="orders"  ["orders", "payments"]  {"orders": [0, 1]}      None: all that the group has committed
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeGuard, TypeVar

from gateway.proto import groups_pb2
from gateway.proto.status import from_status
from metadata.errors import InvalidArgument
from tidelog.admin.group_descriptions import (
    CommittedOffset,
    GroupInfo,
    ListedGroup,
    MovedOffset,
    committed_offset,
    group_info,
    listed_group,
    moved_offset,
)
from tidelog.positions import AtOffset, AtOffsets, Earliest, LastRecords, Latest, SinceTimestamp, StartLike, parse_start
from tidelog.transport.connection import Connection, Stubs

PAGE_SIZE: Final = 1_000
_INT64_END: Final = 1 << 63
_INT32_END: Final = 1 << 31
_Answer = TypeVar("_Answer")

# Topics, or some partitions of topics: {"orders": [0, 1], "payments": None}, where None is all.
PartsLike = str | Iterable[str] | Mapping[str, Iterable[int] | None]


class Groups:
    """Manages consumer groups: `log.groups`.

    With `validate_only` the broker checks the change and returns its result, and changes nothing.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def describe(self, name: str) -> GroupInfo:
        """Describes the group: its members, what each of them reads, and its lag. Raises UnknownGroup."""
        request = groups_pb2.DescribeGroupRequest(group=name)
        return group_info(await self._call(lambda to, timeout_s: to.groups.DescribeGroup(request, timeout=timeout_s), writes=False))

    async def offsets(self, name: str, topics: PartsLike | None = None) -> list[CommittedOffset]:
        """Returns the committed offsets by topic and partition, without those never committed. An unknown group has none.

        Raises UnknownTopic and UnknownPartition for missing names in `topics`.
        """
        request = groups_pb2.OffsetFetchRequest(group=name, topics=_parts(topics))
        answer = await self._call(lambda to, timeout_s: to.groups.OffsetFetch(request, timeout=timeout_s), writes=False)
        found = []
        for offset in answer.offsets:
            if offset.HasField("error") and offset.error.code:
                raise from_status(offset.error, address=f"{offset.topic}/{offset.partition}")
            if offset.HasField("offset"):
                found.append(committed_offset(offset))
        return sorted(found, key=_sort_key)

    async def seek(
        self,
        name: str,
        to: StartLike | None = None,
        *,
        shift: int | None = None,
        topics: PartsLike | None = None,
        validate_only: bool = False,
    ) -> list[MovedOffset]:
        """Moves the committed offsets of a group without members, to a place within each log or by `shift` records.

        `to` is a place as `consume` takes it, but for the last records ("-10") and maps of offsets. Of what lies outside of a log
        its nearer end is taken, and the row says so (`reason`, `asked`). A group that never was is made where `topics` are named.
        All partitions are moved or none, save that more than 128 become visible one part after the other: where that breaks off,
        each row says whether it was moved. With `validate_only`, `error` of a row says why it can't be.

        Raises GroupNotEmpty, UnknownGroup, UnknownTopic, UnknownPartition, InvalidArgument; without `validate_only`, also what
        keeps a partition from being moved. OutcomeUnknown: look at `offsets`, or seek again.
        """
        request = groups_pb2.SeekGroupRequest(group=name, topics=_parts(topics), validate_only=validate_only)
        _say_where(request, to, shift)
        answer = await self._call(lambda to, timeout_s: to.groups.SeekGroup(request, timeout=timeout_s), writes=not validate_only)
        return sorted(map(moved_offset, answer.moved), key=_sort_key)

    async def delete(self, name: str, *, validate_only: bool = False) -> None:
        """Deletes a group without members, and its offsets. Raises UnknownGroup, GroupNotEmpty."""
        request = groups_pb2.DeleteGroupRequest(group=name, validate_only=validate_only)
        await self._call(lambda to, timeout_s: to.groups.DeleteGroup(request, timeout=timeout_s), writes=not validate_only)

    async def delete_offsets(self, name: str, topics: PartsLike, *, validate_only: bool = False) -> list[CommittedOffset]:
        """Deletes committed offsets of a group without members, and returns them. Skips partitions without a commit.

        Raises UnknownGroup, GroupNotEmpty, UnknownTopic, UnknownPartition.
        """
        request = groups_pb2.DeleteOffsetsRequest(group=name, topics=_parts(topics), validate_only=validate_only)
        answer = await self._call(
            lambda to, timeout_s: to.groups.DeleteOffsets(request, timeout=timeout_s), writes=not validate_only
        )
        return sorted(map(committed_offset, answer.deleted), key=_sort_key)

    async def list(self, *, states: Iterable[str] = ()) -> list[ListedGroup]:
        """Lists all groups by name, or those in these states (Empty, CompletingRebalance, Stable), as last stored."""
        found: list[ListedGroup] = []
        request = groups_pb2.ListGroupsRequest(page_size=PAGE_SIZE, states=[states] if isinstance(states, str) else list(states))
        while True:
            page = await self._call(lambda to, timeout_s: to.groups.ListGroups(request, timeout=timeout_s), writes=False)
            found.extend(map(listed_group, page.groups))
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return found

    async def _call(self, attempt: Callable[[Stubs, float], Awaitable[_Answer]], *, writes: bool) -> Any:
        return await self._connection.call(attempt, writes=writes)


def _sort_key(offset: CommittedOffset | MovedOffset) -> tuple[str, int]:
    return offset.topic, offset.partition


def _say_where(request: groups_pb2.SeekGroupRequest, to: StartLike | None, shift: int | None) -> None:
    """Raises InvalidArgument."""
    if (to is None) == (shift is None):
        raise InvalidArgument("a seek takes either a place or a shift", hint='Use seek(name, to="1h") or seek(name, shift=-100).')
    if to is None:
        if not _is_whole(shift) or not -_INT64_END <= shift < _INT64_END:
            raise InvalidArgument(f"shift is {shift!r}", hint="Use a whole number: -100 goes back by 100 records.")
        request.shift = shift
        return
    match parse_start(to, now_ms=int(time.time() * 1000)):
        case Earliest():
            request.earliest = True
        case Latest() | LastRecords(0):
            request.latest = True
        case SinceTimestamp(timestamp_ms):
            request.timestamp_ms = timestamp_ms
        case AtOffset(offset):
            request.offset = offset
        case LastRecords(count):
            raise InvalidArgument(
                f"a group is not moved to the last {count} records", hint=f"shift=-{count} goes back from what is committed."
            )
        case AtOffsets():
            raise InvalidArgument("a group is moved to one offset at a time", hint="Seek each partition by itself, with `topics`.")


def _is_whole(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool)


def _parts(topics: PartsLike | None) -> list[groups_pb2.TopicPartitions]:
    """Converts partitions for the request; None selects all. Raises InvalidArgument for an empty choice, which would mean all."""
    if topics is None:
        return []
    named: Mapping[str, Iterable[int] | None]
    match topics:
        case str():
            named = {topics: None}
        case Mapping():
            named = topics
        case Iterable():
            named = dict.fromkeys(topics)
        case _:
            raise InvalidArgument(f"{topics!r} names no topics", hint=_PARTS_HINT)
    if not named:
        raise InvalidArgument("no topic is named", hint=f"{_PARTS_HINT} None means all that the group has committed.")
    return [_part(topic, partitions) for topic, partitions in named.items()]


def _part(topic: object, partitions: Iterable[int] | None) -> groups_pb2.TopicPartitions:
    if not isinstance(topic, str):
        raise InvalidArgument(f"{topic!r} is no topic's name", hint=_PARTS_HINT)
    if partitions is None:
        return groups_pb2.TopicPartitions(topic=topic)
    numbers = sorted(set(partitions)) if isinstance(partitions, Iterable) else []
    if not numbers:
        raise InvalidArgument(f"no partition of {topic} is named", hint=f"{_PARTS_HINT} None means all of them.")
    for number in numbers:
        if not _is_whole(number) or not 0 <= number < _INT32_END:
            raise InvalidArgument(f"{number!r} is no partition of {topic}", hint="Partitions are numbers, from 0 on.")
    return groups_pb2.TopicPartitions(topic=topic, partitions=numbers)


_PARTS_HINT: Final = 'Use "orders", ["orders", "payments"] or {"orders": [0, 1]}.'
