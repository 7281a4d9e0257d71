"""Where the partitions begin that a member of a group was assigned: at what is committed, else where auto_offset_reset says.

A committed offset names the leader epoch of the last record that was read. Where that epoch's records end below it, the log was cut
since, and what stands at the offset by now is another record (KIP-320). Then reading goes on at the cut, where nothing of what came
since is skipped, and nothing comes twice; or it ends with an error, where auto_offset_reset is "error".
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from metadata.errors import NotFound, OutOfRange, TidelogError, Unavailable, UnknownTopic
from metadata.group_member.interfaces import GroupCalls
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import Generation, InstanceId, MemberId
from tidelog.consumer.fetch_state import shown
from tidelog.consumer.offset_lookup import ends_of_epochs, ranges_or_errors
from tidelog.group.positions import Offset
from tidelog.settings import ResetPolicy
from tidelog.tasks import all_of
from tidelog.transport.connection import Connection
from tidelog.transport.descriptions import EpochEnd, OffsetRange
from tidelog.transport.routes import TopicRoute

QUESTIONS_AT_ONCE: Final = 16
"""About topics."""

log = logging.getLogger("tidelog")


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
        cuts = await self._cuts(routes, committed)
        asked = wanted if not self._follow else [partition for partition in wanted if partition not in committed]
        ranges = await self._ranges(routes, asked if self._reset != "error" or not self._follow else [])
        return {
            partition: self._start(
                partition, routes[partition[0]], committed.get(partition), ranges.get(partition), cuts.get(partition)
            )
            for partition in wanted
        }

    def _start(
        self,
        partition: TopicPartitionName,
        route: TopicRoute,
        committed: Offset | TidelogError | None,
        ends: OffsetRange | TidelogError | None,
        cut: EpochEnd | None,
    ) -> GroupStart:
        until = ends if isinstance(ends, OffsetRange) and not self._follow else None
        if isinstance(committed, Offset):
            if isinstance(ends, TidelogError):
                return GroupStart(route, ends, committed.offset, until)
            offset = committed.offset if cut is None else self._behind_cut(partition, committed, cut)
            return GroupStart(route, offset, committed.offset, until)
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

    def _behind_cut(self, partition: TopicPartitionName, committed: Offset, cut: EpochEnd) -> int | TidelogError:
        told = (
            f"the log of {shown(partition)} was cut at {cut.end_offset}, below what group {self._group} has committed "
            f"({committed.offset}, of leader epoch {committed.leader_epoch}): records that were read are gone"
        )
        if self._reset == "error":
            return OutOfRange(
                told, hint=f"Go on at {cut.end_offset} (tidelog group seek), or choose auto_offset_reset='earliest' or 'latest'."
            )
        log.warning("%s; reading goes on at %d", told, cut.end_offset)
        return cut.end_offset

    async def _cuts(
        self, routes: Mapping[str, TopicRoute], committed: Mapping[TopicPartitionName, Offset | TidelogError]
    ) -> dict[TopicPartitionName, EpochEnd]:
        """Of partitions whose log was cut below what is committed: where. One whose epoch nobody has heard of yet is not looked at:
        a leader of before could answer, whose log ends earlier, and who commits by hand may name any."""
        epochs: dict[str, dict[int, int]] = defaultdict(dict)
        for (topic, number), offset in committed.items():
            if isinstance(offset, Offset) and 0 <= offset.leader_epoch <= self._newest_epoch(routes[topic], number):
                epochs[topic][number] = offset.leader_epoch
        questions = (ends_of_epochs(self._connection, routes[topic], asked) for topic, asked in epochs.items())
        answers = zip(epochs, await all_of(questions, at_once=QUESTIONS_AT_ONCE), strict=True)
        return {
            (topic, number): end
            for topic, found in answers
            for number, end in found.items()
            if isinstance(end, EpochEnd) and was_cut(committed[topic, number], end)
        }

    def _newest_epoch(self, route: TopicRoute, partition: int) -> int:
        return self._connection.epochs.newest(route.topic_id, partition)

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


def was_cut(committed: Offset | TidelogError, end: EpochEnd) -> bool:
    """`end`: of the records of the leader epoch that was committed, or of the newest one before it that has any. Pure."""
    return isinstance(committed, Offset) and end.end_offset < committed.offset
