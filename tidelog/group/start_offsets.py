"""Finds where the partitions begin that a member of a group was assigned: asks what metadata/group_member/start_offsets.py needs.

committed offsets, of the coordinator ─▶ ends of their leader epochs, of the leaders ─▶ starts
nothing committed ─▶ bounds, of the leaders ──────────────────────────────────────────▶

A partition that was added, or whose topic was made again, while the member runs begins at its log start also with "latest": records
came to it before the member heard of it, and the member skips none of them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from metadata.errors import TidelogError, Unavailable, UnknownTopic
from metadata.group_member.interfaces import CoordinatorClient
from metadata.group_member.start_offsets import GroupStart, StartPolicy, StartRules
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import Generation, InstanceId, MemberId
from tidelog.consumer.fetch_state import shown
from tidelog.consumer.offset_lookup import ends_of_epochs, ranges_or_errors
from tidelog.consumer.refusal_patience import RefusalPatience
from tidelog.group.positions import Offset
from tidelog.settings import ResetPolicy
from tidelog.tasks import gather_all
from tidelog.transport.connection import Connection
from tidelog.transport.descriptions import EpochEnd, OffsetRange
from tidelog.transport.routes import TopicRoute

# About topics.
QUESTIONS_AT_ONCE: Final = 16

log = logging.getLogger("tidelog")


class CoordinatorCalls(CoordinatorClient, Protocol):
    """The coordinator calls of a member that reads."""

    async def commit(
        self,
        name: str,
        member_id: MemberId,
        instance_id: InstanceId,
        generation: Generation,
        offsets: Mapping[TopicPartitionName, Offset],
    ) -> dict[TopicPartitionName, TidelogError]:
        """Returns the refused offsets with their errors. Raises the error of all of them; OutcomeUnknown if they may be stored."""

    async def committed(
        self, name: str, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, Offset | TidelogError]:
        """Returns the committed offset or the error of each partition; omits those never committed. Raises errors of the call."""


@dataclass(frozen=True, slots=True)
class MemberStart:
    """Says where one partition begins and ends for this member."""

    route: TopicRoute
    # Where it begins, or why it can't be read.
    offset: int | TidelogError
    committed: int | None
    # Where it ends; None: nowhere.
    until: OffsetRange | None


class StartOffsets:
    """Finds where a member begins in each of its partitions."""

    def __init__(self, connection: Connection, calls: CoordinatorCalls, *, group: str, follow: bool, reset: ResetPolicy) -> None:
        self._connection = connection
        self._calls = calls
        self._group = group
        self._follow = follow
        self._rules = StartRules(group, StartPolicy(reset))
        # Of the topics that the member subscribed to at first; None before.
        self._first_counts: Mapping[str, int] | None = None
        # By name, of the topics that the member has read: their ids when it first did.
        self._first_ids: dict[str, str] = {}

    def subscribed_first(self, counts: Mapping[str, int]) -> None:
        """Notes the partition counts of the topics as they are when the member begins. Later ones were added."""
        self._first_counts = dict(counts)

    def _was_added(self, partition: TopicPartitionName, route: TopicRoute) -> bool:
        topic, number = partition
        if self._first_counts is None:
            return False
        return number >= self._first_counts.get(topic, 0) or self._first_ids.get(topic, route.topic_id) != route.topic_id

    async def of(
        self, partitions: Collection[TopicPartitionName], patience: RefusalPatience, *, from_store: bool = False
    ) -> dict[TopicPartitionName, MemberStart | None]:
        """Returns the start of each partition whose topic exists; None if the topic has no such partition, or not yet.

        `from_store`: a broker answers only once it has heard of all that the metadata store has, and older brokers what they know.

        Raises Unavailable, also for a partition's refusal that may pass by `patience`; and the error of any other request.
        """
        routes = await self._routes({topic for topic, _ in partitions}, from_store=from_store)
        there = [partition for partition in partitions if partition[0] in routes]
        wanted = [partition for partition in there if partition[1] < routes[partition[0]].partition_count]
        committed = await self._calls.committed(self._group, wanted) if wanted else {}
        for partition, found in committed.items():
            # The fetcher reads no more of a partition that ends with an error, and these errors pass.
            if isinstance(found, TidelogError) and (found.retryable or isinstance(found, UnknownTopic) or patience.may_pass(found)):
                raise Unavailable(f"what the group has committed of {shown(partition)} is not known: {found.message}") from found
            if isinstance(found, Offset) and found.topic_id not in ("", routes[partition[0]].topic_id):
                raise Unavailable(f"topic {partition[0]} was made again a moment ago")
        epoch_ends = await self._epoch_ends(routes, committed)
        asked = wanted if not self._follow else [partition for partition in wanted if partition not in committed]
        ranges = await self._ranges(routes, asked if self._rules.policy is not StartPolicy.ERROR or not self._follow else [])
        for partition, refused in (*epoch_ends.items(), *ranges.items()):
            if patience.may_pass(refused):
                raise Unavailable(f"the ends of {shown(partition)} are not known: {refused}")
        for (topic, _), ends in ranges.items():
            if isinstance(ends, UnknownTopic):  # the route came from a broker that lags: the topic is gone, or was made again
                raise Unavailable(f"topic {topic} was deleted or made again a moment ago")
        starts = {
            partition: self._start(
                partition,
                routes[partition[0]],
                committed.get(partition),
                ranges.get(partition),
                end.end_offset if isinstance(end := epoch_ends.get(partition), EpochEnd) else None,
            )
            for partition in wanted
        }
        for topic in {topic for topic, _ in wanted}:
            self._first_ids.setdefault(topic, routes[topic].topic_id)
        return {partition: starts.get(partition) for partition in there}

    def _start(
        self,
        partition: TopicPartitionName,
        route: TopicRoute,
        committed: Offset | TidelogError | None,
        ends: OffsetRange | TidelogError | None,
        epoch_end: int | None,
    ) -> MemberStart:
        name = shown(partition)
        start: GroupStart | TidelogError
        if isinstance(committed, TidelogError):
            start = committed
        elif isinstance(ends, TidelogError):
            start = ends
        elif committed is not None:
            start = self._rules.at_committed(name, committed.offset, leader_epoch=committed.leader_epoch, epoch_end=epoch_end)
        else:
            was_added = self._was_added(partition, route)
            start = self._rules.nothing_committed(name) if ends is None else self._rules.within(name, ends, was_added=was_added)
        at = committed.offset if isinstance(committed, Offset) else None
        if isinstance(start, TidelogError):
            return MemberStart(route, start, at, None)
        if start.moved:
            log.warning("start moved offset=%d: %s", start.offset, start.moved)
        return MemberStart(route, start.offset, at, ends if isinstance(ends, OffsetRange) and not self._follow else None)

    async def _epoch_ends(
        self, routes: Mapping[str, TopicRoute], committed: Mapping[TopicPartitionName, Offset | TidelogError]
    ) -> dict[TopicPartitionName, EpochEnd | TidelogError | None]:
        """Returns where the records of the committed epochs end, or why that is not known.

        Skips unknown newer epochs: a stale leader with a shorter log could answer, and a manual commit may name any epoch.
        """
        epochs: dict[str, dict[int, int]] = defaultdict(dict)
        for (topic, number), offset in committed.items():
            if isinstance(offset, Offset) and 0 <= offset.leader_epoch <= self._newest_epoch(routes[topic], number):
                epochs[topic][number] = offset.leader_epoch
        questions = (ends_of_epochs(self._connection, routes[topic], asked) for topic, asked in epochs.items())
        answers = zip(epochs, await gather_all(questions, at_once=QUESTIONS_AT_ONCE), strict=True)
        return {(topic, number): end for topic, found in answers for number, end in found.items()}

    def _newest_epoch(self, route: TopicRoute, partition: int) -> int:
        return self._connection.epochs.newest(route.topic_id, partition)

    async def _routes(self, topics: Collection[str], *, from_store: bool) -> dict[str, TopicRoute]:
        questions = (self._route(topic, from_store=from_store) for topic in sorted(topics))
        found = await gather_all(questions, at_once=QUESTIONS_AT_ONCE)
        return {route.name: route for route in found if route is not None}

    async def _route(self, topic: str, *, from_store: bool) -> TopicRoute | None:
        try:
            return await self._connection.route(topic, fresh=True, from_store=from_store, refuses_outdated=from_store)
        except UnknownTopic:
            return None

    async def _ranges(
        self, routes: Mapping[str, TopicRoute], partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, OffsetRange | TidelogError]:
        numbers: dict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            numbers[topic].append(number)
        questions = (ranges_or_errors(self._connection, routes[topic], wanted) for topic, wanted in numbers.items())
        answers = zip(numbers, await gather_all(questions, at_once=QUESTIONS_AT_ONCE), strict=True)
        return {(topic, number): ends for topic, found in answers for number, ends in found.items()}
