"""Where the partitions begin that a member of a group was assigned: at what is committed, else where auto_offset_reset says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from metadata.assignors import TopicPartitionName
from metadata.errors import NotFound, TidelogError, Unavailable, UnknownTopic
from metadata.group_calls import GroupCalls
from metadata.group_model import Generation, InstanceId, MemberId
from tidelog.connection import Connection
from tidelog.descriptions import OffsetRange
from tidelog.group_positions import Offset
from tidelog.offset_lookup import ranges_or_errors
from tidelog.owned_tasks import all_of
from tidelog.read_progress import shown
from tidelog.routes import TopicRoute
from tidelog.settings import ResetPolicy

QUESTIONS_AT_ONCE: Final = 16
"""About topics."""


class CoordinatorCalls(GroupCalls, Protocol):
    """What a member that reads asks of its group's coordinator."""

    async def commit(
        self,
        name: str,
        member_id: MemberId,
        instance_id: InstanceId,
        generation: Generation,
        offsets: Mapping[TopicPartitionName, Offset],
    ) -> dict[TopicPartitionName, TidelogError]:
        """Answers those that were refused, each with why. Raises what refuses all of them; OutcomeUnknown where nobody knows."""

    async def committed(
        self, name: str, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, Offset | TidelogError]:
        """Of these; those of which nothing is committed are left out. Raises what the call as a whole met."""


@dataclass(frozen=True, slots=True)
class GroupStart:
    route: TopicRoute
    offset: int | TidelogError
    """Where it begins, or why it can't."""
    committed: int | None
    until: OffsetRange | None
    """Where it ends; None: nowhere."""


class GroupStarts:
    def __init__(self, connection: Connection, calls: CoordinatorCalls, *, group: str, follow: bool, reset: ResetPolicy) -> None:
        self._connection = connection
        self._calls = calls
        self._group = group
        self._follow = follow
        self._reset = reset

    async def of(self, partitions: Collection[TopicPartitionName]) -> dict[TopicPartitionName, GroupStart]:
        """Of all but those whose topic is not there any more. Raises Unavailable, and what any other question met."""
        routes = await self._routes(partitions)
        wanted = [partition for partition in partitions if partition[0] in routes]
        committed = await self._calls.committed(self._group, wanted) if wanted else {}
        for (topic, _), found in committed.items():
            if isinstance(found, Offset) and found.topic_id not in ("", routes[topic].topic_id):
                raise Unavailable(f"topic {topic} was made again a moment ago")
        asked = wanted if not self._follow else [partition for partition in wanted if partition not in committed]
        ranges = await self._ranges(routes, asked if self._reset != "error" or not self._follow else [])
        return {
            partition: self._start(partition, routes[partition[0]], committed.get(partition), ranges.get(partition))
            for partition in wanted
        }

    def _start(
        self,
        partition: TopicPartitionName,
        route: TopicRoute,
        committed: Offset | TidelogError | None,
        ends: OffsetRange | TidelogError | None,
    ) -> GroupStart:
        until = ends if isinstance(ends, OffsetRange) and not self._follow else None
        if isinstance(committed, Offset):
            wrong = ends if isinstance(ends, TidelogError) else None
            return GroupStart(route, committed.offset if wrong is None else wrong, committed.offset, until)
        if committed is not None:
            return GroupStart(route, committed, None, None)
        if isinstance(ends, TidelogError):
            return GroupStart(route, ends, None, None)
        if self._reset == "error" or ends is None:
            nothing = NotFound(
                f"group {self._group} has committed nothing of {shown(partition)}",
                hint="Commit an offset (tidelog group seek), or choose where to begin: auto_offset_reset='earliest' or 'latest'.",
            )
            return GroupStart(route, nothing, None, None)
        return GroupStart(route, ends.log_start_offset if self._reset == "earliest" else ends.high_watermark, None, until)

    async def _routes(self, partitions: Collection[TopicPartitionName]) -> dict[str, TopicRoute]:
        topics = sorted({topic for topic, _ in partitions})
        routes = {
            route.name: route for route in await all_of(map(self._route, topics), at_once=QUESTIONS_AT_ONCE) if route is not None
        }
        for topic, number in partitions:
            if topic in routes and number >= routes[topic].partition_count:
                raise Unavailable(f"{topic}/{number} is not known here yet")
        return routes

    async def _route(self, topic: str) -> TopicRoute | None:
        try:
            return await self._connection.route(topic, fresh=True)
        except UnknownTopic:
            return None

    async def _ranges(
        self, routes: Mapping[str, TopicRoute], partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, OffsetRange | TidelogError]:
        numbers: dict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            numbers[topic].append(number)
        questions = (ranges_or_errors(self._connection, routes[topic], wanted) for topic, wanted in numbers.items())
        answers = zip(numbers, await all_of(questions, at_once=QUESTIONS_AT_ONCE), strict=True)
        return {(topic, number): ends for topic, found in answers for number, ends in found.items()}
