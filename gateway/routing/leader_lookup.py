"""Looks up leaders in this broker's view of the metadata, and ends calls to leaders that have been replaced.

A leader that freezes keeps its connections and never answers. Once its lease has ended and another broker leads, the calls to it
end with NotLeader, and their callers ask the new leader.

A leader's view may be behind this broker's, so that it does not know a topic or partition yet. Its UnknownTopic or UnknownPartition
becomes NoLeader then, and callers repeat the call until the leader has caught up.

Invariants: only the leader that the metadata name is called. A topic or partition is reported unknown only if this broker's own
view does not have the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.cluster.view import ClusterView
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoLeader, NotLeader, TidelogError, UnknownPartition, UnknownTopic
from metadata.model import SessionId, TopicPartition
from segments.log.session_log import SessionLog
from segments.partition.partition_log import Bounds
from segments.read.log_reader import FetchResult

# How long requests without a leader pause before they look it up again, unless metadata change; each pause doubles the last.
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.5

Found = TypeVar("Found")
Answered = TypeVar("Answered", Bounds, FetchResult)
Item = TypeVar("Item")


@dataclass(eq=False, slots=True)
class LeaderCall:
    """Holds a call in flight to a leader: its session, its partitions, and the timeout that ends it."""

    session: SessionId
    partitions: frozenset[TopicPartition]
    end: asyncio.Timeout


class LeaderLookup:
    """Finds the leaders of partitions, and calls them until they are replaced."""

    def __init__(self, log: Callable[[], SessionLog], view: ClusterView, *, broker_id: str) -> None:
        """`log` returns the log of the present session; it raises NoLeader or Stopping while there is none."""
        self._log = log
        self._view = view
        self._broker_id = broker_id
        # Calls in flight, oldest first.
        self._calls: dict[LeaderCall, None] = {}
        view.partitions.subscribe(self._cancel_outdated_calls)

    def is_local(self, partition: TopicPartition) -> bool:
        """Returns whether the present session of this broker leads the partition."""
        try:
            return partition in self._log().partitions
        except TidelogError:
            return False

    def remote_leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        """Returns the other broker that leads the partition; None if this one leads it, or none does."""
        if self.is_local(partition):
            return None
        leader = self._view.leader(partition)
        return None if leader is None or leader.broker_id == self._broker_id else leader

    def group_by_leader(
        self, items: Iterable[Item], partition_of: Callable[[Item], TopicPartition]
    ) -> list[tuple[BrokerRegistration | None, list[Item]]]:
        """Groups items by the leader of their partition; None stands for this broker and for partitions without a leader."""
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
        """Returns the leader's answer to a call that may be repeated.

        Raises NotLeader as soon as another broker leads one of the partitions, NoLeader if the leader does not know them yet.
        """
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
            raise NotLeader(f"broker {leader.broker_id} no longer leads, and has not answered") from None
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
        """Asks the leader about several partitions, with the names of their topics, and returns an answer or error for each.

        UnknownTopic stands in the place of a partition whose topic this broker's view does not have any more; the leader is not
        asked about it. Raises as ask_leader.
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
        """Returns the leader's answer; NoLeader if the leader does not know a partition whose topic this broker's view has."""
        if isinstance(answer, (UnknownTopic, UnknownPartition)) and self._knows_topic(partition):
            return _outdated_leader(leader, partition)
        return answer

    def _knows_topic(self, partition: TopicPartition) -> bool:
        """Returns whether this broker's view has the topic id.

        Partitions are only ever added, so one beyond the known count may have been added a moment ago.
        """
        try:
            self._view.topics.by_id(partition.topic_id)
        except TidelogError:
            return False
        return True

    def reject_stale_epoch(self, partition: TopicPartition, answer: Answered | TidelogError) -> Answered | TidelogError:
        """Returns the answer; NotLeader if its leader epoch is older than the known one, since its high watermark may be stale."""
        state = self._view.partitions.get(partition)
        if isinstance(answer, TidelogError) or state is None or answer.leader_epoch >= state.leader_epoch:
            return answer
        return NotLeader(
            f"the answer for {partition} has leader epoch {answer.leader_epoch}; the present one is {state.leader_epoch}"
        )

    def _cancel_outdated_calls(self, changed: Set[TopicPartition]) -> None:
        if not self._calls:
            return
        moved = {partition: state.leader_session for partition in changed if (state := self._view.partitions.get(partition))}
        for call in tuple(self._calls):
            if any(moved.get(partition, call.session) != call.session for partition in call.partitions):
                del self._calls[call]
                if not call.end.expired():  # its task has not seen it yet, and a timeout that has expired can't be moved
                    call.end.reschedule(asyncio.get_running_loop().time())


def _outdated_leader(leader: BrokerRegistration, partition: TopicPartition) -> NoLeader:
    return NoLeader(
        f"broker {leader.broker_id}, which is to lead {partition}, does not know it yet",
        hint="Retry with back-off: the partition is served as soon as that broker has caught up with the metadata.",
    )


def identity(partition: TopicPartition) -> TopicPartition:
    """Returns its argument: the partition of an item that is a partition."""
    return partition
