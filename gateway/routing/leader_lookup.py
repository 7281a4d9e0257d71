"""Who leads a partition, as this broker sees it now, and questions to leaders that end when they lead no more.

A leader that was stopped in the middle keeps its connections and never answers. Another leads after its lease has ended: so whoever
waits for the old one is answers at once that it leads no more, and asks the new one.

The watch of a leader may be behind, so that it has not heard yet of a topic or partition that this broker's own view has. Its
answer that it does not know them is not final: it becomes NoLeader, and the call is repeated until the leader has caught up.

Invariants: nothing is ask_leader of a leader that the metadata don't name; a topic or partition is called unknown only where this
broker's own view does not have the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from gateway.cluster.view import ClusterView
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoLeader, NotLeader, TidelogError, UnknownPartition, UnknownTopic
from metadata.model import SessionId, TopicPartition
from segments.log.session_log import SessionLog
from segments.partition.partition_log import Bounds
from segments.read.log_reader import FetchResult

Found = TypeVar("Found")
Answered = TypeVar("Answered", Bounds, FetchResult)
Item = TypeVar("Item")


@dataclass(eq=False, slots=True)
class LeaderCall:
    """One that is on its way to a leader."""

    session: SessionId
    partitions: frozenset[TopicPartition]
    end: asyncio.Timeout


class LeaderLookup:
    def __init__(self, log: Callable[[], SessionLog], view: ClusterView, *, broker_id: str) -> None:
        """`log`: of the present session; raises NoLeader or Stopping while there is none."""
        self._log = log
        self._view = view
        self._broker_id = broker_id
        self._calls: dict[LeaderCall, None] = {}
        """In the order in which they were ask_leader."""
        view.partitions.subscribe(self._cancel_outdated_calls)

    def is_local(self, partition: TopicPartition) -> bool:
        try:
            return partition in self._log().partitions
        except TidelogError:
            return False

    def remote_leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        """The other broker that leads the partition; None where it is led here, or by nobody."""
        if self.is_local(partition):
            return None
        leader = self._view.leader(partition)
        return None if leader is None or leader.broker_id == self._broker_id else leader

    def group_by_leader(
        self, items: Iterable[Item], partition_of: Callable[[Item], TopicPartition]
    ) -> list[tuple[BrokerRegistration | None, list[Item]]]:
        """By leader; None: this broker, and what nobody leads."""
        groups: dict[str, tuple[BrokerRegistration | None, list[Item]]] = {}
        for item in items:
            leader = self.remote_leader(partition_of(item))
            groups.setdefault(leader.broker_id if leader is not None else "", (leader, []))[1].append(item)
        return list(groups.values())

    def topic_name(self, partition: TopicPartition) -> str:
        return self._view.topics.by_id(partition.topic_id).name

    async def ask_leader(
        self, leader: BrokerRegistration, partitions: Collection[TopicPartition], answer: Awaitable[Found]
    ) -> Found:
        """The leader's answer. Raises NotLeader as soon as another leads one of the partitions, and NoLeader where the leader has
        not heard of them yet: use it only for questions that may be repeated."""
        try:
            async with asyncio.timeout(None) as end:
                call = LeaderCall(leader.session, frozenset(partitions), end)
                self._calls[call] = None
                try:
                    return await answer
                finally:
                    self._calls.pop(call, None)
        except TimeoutError:
            if not end.expired():
                raise
            raise NotLeader(f"broker {leader.broker_id} leads no more; it has not answered") from None
        except (UnknownTopic, UnknownPartition) as error:
            if not all(self._knows_topic(partition) for partition in partitions):
                raise
            raise _outdated_leader(leader, next(iter(partitions))) from error

    async def ask_each(
        self,
        leader: BrokerRegistration,
        items: Sequence[Item],
        partition_of: Callable[[Item], TopicPartition],
        ask: Callable[[Sequence[tuple[str, Item]]], Awaitable[Sequence[Found | TidelogError]]],
    ) -> list[Found | TidelogError]:
        """Asks the leader about several partitions, each with its topic's name, and returns an answer or an error for each.

        UnknownTopic stands in the place of a partition whose topic this broker's view does not have any more: only the others are
        ask_leader about. Raises as `ask_leader`.
        """
        named: list[tuple[str, Item]] = []
        gone: dict[int, TidelogError] = {}
        for at, item in enumerate(items):
            try:
                named.append((self.topic_name(partition_of(item)), item))
            except TidelogError as error:
                gone[at] = error.with_traceback(None)
        partitions = [partition_of(item) for _, item in named]
        answers = await self.ask_leader(leader, partitions, ask(named)) if named else []
        found = iter(
            [self.reject_outdated_view(leader, partition, answer) for partition, answer in zip(partitions, answers, strict=True)]
        )
        return [gone[at] if at in gone else next(found) for at in range(len(items))]

    def reject_outdated_view(
        self, leader: BrokerRegistration, partition: TopicPartition, answer: Found | TidelogError
    ) -> Found | TidelogError:
        """Returns the leader's answer for one partition; NoLeader in place of an answer that the leader does not know a partition
        whose topic this broker's own view has."""
        if isinstance(answer, (UnknownTopic, UnknownPartition)) and self._knows_topic(partition):
            return _outdated_leader(leader, partition)
        return answer

    def _knows_topic(self, partition: TopicPartition) -> bool:
        """Returns whether this broker's view has this life of the topic. Partitions are only ever added, so one that is beyond the
        count known here may have been added a moment ago."""
        try:
            self._view.topics.by_id(partition.topic_id)
        except TidelogError:
            return False
        return True

    def reject_stale_epoch(self, partition: TopicPartition, answer: Answered | TidelogError) -> Answered | TidelogError:
        """The answer, unless it comes from a leader of before the one known here: its high watermark may be of before, too."""
        state = self._view.partitions.get(partition)
        if isinstance(answer, TidelogError) or state is None or answer.leader_epoch >= state.leader_epoch:
            return answer
        return NotLeader(
            f"{partition} was answered from leader epoch {answer.leader_epoch}; the present one is {state.leader_epoch}"
        )

    def _cancel_outdated_calls(self, changed: Set[TopicPartition]) -> None:
        if not self._calls:
            return
        moved = {partition: state.leader_session for partition in changed if (state := self._view.partitions.get(partition))}
        for call in tuple(self._calls):
            if any(moved.get(partition, call.session) != call.session for partition in call.partitions):
                del self._calls[call]
                call.end.reschedule(asyncio.get_running_loop().time())


def _outdated_leader(leader: BrokerRegistration, partition: TopicPartition) -> NoLeader:
    return NoLeader(
        f"broker {leader.broker_id}, which is to lead {partition}, has not heard of it yet",
        hint="Retry with back-off: the partition is served as soon as that broker has caught up with the metadata.",
    )


def identity(partition: TopicPartition) -> TopicPartition:
    return partition
