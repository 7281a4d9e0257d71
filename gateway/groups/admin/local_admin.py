"""What operators ask of a group, carried out at its coordinator: describe it, delete it or its offsets, move its offsets.

    seek    committed offsets, ends of the logs ─▶ seek.py says where to ─▶ committed by hand, which only an empty group takes

Invariants: `validate_only` writes nothing; a seek that can't be told of one partition moves none. At most 128 offsets are written
at one instant: of a longer seek that fails half way, each partition says whether it was moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from gateway.concurrency.offload import LoopTurns
from gateway.groups.admin.descriptions import (
    FetchedOffset,
    GroupDescription,
    GroupMember,
    MovedOffset,
    SeekTo,
    TopicPartitions,
    assigned_partitions,
)
from gateway.groups.admin.lag import GroupLag, KnownTopics, bounds_by_parts
from gateway.groups.admin.seek import Sought, check_seek, sought_offset
from gateway.groups.coordinator import GroupCoordinator, check_empty
from gateway.routing.log_service import LogService
from gateway.topics.names import LOOK_UP_S, check_topic_id, named, partition_of
from metadata.errors import (
    GroupNotEmpty,
    InvalidArgument,
    NotFound,
    TidelogError,
    Unavailable,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
)
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER, Group
from metadata.groups.offsets import CommittedOffset
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from segments.partition.partition_log import Bounds

LOOK_UPS_AT_ONCE: Final = 16
LOOK_UP_TIMEOUT_S: Final = 10.0
"""For the offset of one timestamp, which may be looked for on the bucket."""
UNREADABLE: Final = CommittedOffset(offset=-1, committed_at_ms=0)
"""How it is told what a damaged value held, when it is deleted."""


class CoordinatedOperations:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        log: LogService,
        topics: KnownTopics,
        *,
        look_up: Callable[[str], Awaitable[Topic]],
        broker_id: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`log`: of the whole cluster. `look_up` asks the metadata store for a topic that is not among `topics`."""
        self._coordinator = coordinator
        self._log = log
        self._topics = topics
        self._look_up = look_up
        self._broker_id = broker_id
        self.lag = GroupLag(log, topics, now_ms=now_ms)

    async def describe(self, name: str) -> GroupDescription:
        """Raises UnknownGroup, and what keeps this broker from coordinating it."""
        group = await self._coordinator.describe(name)
        stored = await self._coordinator.offsets(name)
        return GroupDescription(
            group=name,
            state=group.phase.value,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=group.leader,
            coordinator=self._broker_id,
            members=tuple(_members(group)),
            lags=tuple(await self.lag.lags(stored, owners(group, self._topics))),
        )

    async def delete(self, name: str, *, validate_only: bool = False) -> None:
        """The group and its offsets. Raises UnknownGroup, GroupNotEmpty."""
        if validate_only:
            check_empty(name, await self._coordinator.describe(name))
        else:
            await self._coordinator.delete(name)

    async def delete_offsets(
        self, name: str, topics: Sequence[TopicPartitions], *, validate_only: bool = False
    ) -> list[FetchedOffset]:
        """What was committed of those that are named. Raises UnknownGroup, GroupNotEmpty, UnknownTopic, UnknownPartition."""
        if not topics:
            raise InvalidArgument(
                "no topic is named", hint="Name those whose offsets shall go, or delete the group.", field="topics"
            )
        check_empty(name, await self._coordinator.describe(name))
        chosen = await self._chosen(topics)
        stored = await self._coordinator.offsets(name)
        found = {at: topic for at, topic in chosen.items() if at in stored.committed or at in stored.damaged}
        if found and not validate_only:
            await self._coordinator.delete_offsets(name, list(found))
        return [_fetched(at, topic, stored.committed.get(at, UNREADABLE)) for at, topic in found.items()]

    async def seek(
        self, name: str, topics: Sequence[TopicPartitions], to: SeekTo, *, validate_only: bool = False
    ) -> list[MovedOffset]:
        """What moves where. With `validate_only` each partition says why it can't be moved; else the first such error is raised.

        Of no topics, all that the group has committed. A group that never was is made by a seek that names topics.
        """
        check_seek(to)
        try:
            check_empty(name, await self._coordinator.describe(name))
        except UnknownGroup:
            if not topics:
                raise
        committed, damaged = await self._coordinator.offsets(name)
        chosen = await self._chosen(topics) if topics else self._still_there([*committed, *damaged])
        if not chosen:
            raise InvalidArgument(
                f"group {name} has committed nothing that could be moved", hint="Name topics to seek in.", field="topics"
            )
        rows = await self._sought(chosen, to, committed, damaged)
        if validate_only:
            return list(rows.values())
        for row in rows.values():
            if row.error is not None:
                row.error.message = f"nothing was moved, since one partition can't be: {row.error.message}"
                raise row.error
        offsets = {at: CommittedOffset(offset=row.after, committed_at_ms=0) for at, row in rows.items()}
        try:
            refused = await self._coordinator.commit(name, NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets)
        except UnknownMember as error:
            raise GroupNotEmpty(f"group {name} has got members meanwhile") from error
        return [row._replace(error=refused.get(at)) for at, row in rows.items()]

    async def _sought(
        self,
        chosen: Mapping[TopicPartition, Topic],
        to: SeekTo,
        committed: Mapping[TopicPartition, CommittedOffset],
        damaged: Mapping[TopicPartition, TidelogError],
    ) -> dict[TopicPartition, MovedOffset]:
        bounds = dict(zip(chosen, await bounds_by_parts(self._log, list(chosen)), strict=True))

        async def of_one(at: TopicPartition, told: Bounds | TidelogError) -> Sought:
            if isinstance(told, TidelogError):
                raise told
            if to.kind == "shift" and at in damaged:
                raise damaged[at]
            before = committed.get(at)
            of_timestamp = None
            if to.kind == "timestamp_ms":
                of_timestamp = await self._of_timestamp(at, to.value)
            return sought_offset(
                to, at, bounds=told, committed=None if before is None else before.offset, of_timestamp=of_timestamp
            )

        async def row(at: TopicPartition) -> MovedOffset:
            topic, before = chosen[at], committed.get(at)
            moved = MovedOffset(topic.name, topic.id, at.partition, None, None if before is None else before.offset, -1)
            try:
                return moved._replace(**(await of_one(at, bounds[at]))._asdict())
            except TidelogError as error:
                return moved._replace(error=named(error.with_traceback(None), topic))

        rows: dict[TopicPartition, MovedOffset] = {}
        waiting = iter(chosen)

        async def some_rows() -> None:
            turns = LoopTurns()
            for at in waiting:
                rows[at] = await row(at)
                await turns.give()

        async with asyncio.TaskGroup() as asking:
            for _ in range(min(LOOK_UPS_AT_ONCE, len(chosen)) if to.kind == "timestamp_ms" else 1):
                asking.create_task(some_rows())
        return {at: rows[at] for at in chosen}

    async def _of_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                found = await self._log.offset_for_timestamp(partition, timestamp_ms)
        except TimeoutError:
            raise Unavailable(f"the first record of {partition} after that time was not found in {LOOK_UP_TIMEOUT_S:g} s") from None
        return None if found is None else int(found.offset)

    async def _chosen(self, topics: Sequence[TopicPartitions]) -> dict[TopicPartition, Topic]:
        """UnknownTopic, also of another life of the topic; UnknownPartition; Unavailable where nobody knows."""
        found: dict[TopicPartition, Topic] = {}
        for asked in topics:
            try:
                found |= _partitions_of(self._topics.get(asked.topic), asked)
            except NotFound:  # as far as is known here: it may have been made, or have grown, at another broker this moment
                found |= _partitions_of(await self._looked_up(asked.topic), asked)
        return found

    async def _looked_up(self, name: str) -> Topic:
        try:
            async with asyncio.timeout(LOOK_UP_S):
                return await self._look_up(name)
        except TimeoutError:
            raise Unavailable(
                f"whether there is a topic {name} is not known: the metadata store does not answer", topic=name
            ) from None

    def _still_there(self, committed: Iterable[TopicPartition]) -> dict[TopicPartition, Topic]:
        found = {at: topic for at in committed if (topic := self.lag.topic_of(at)) is not None}
        return dict(sorted(found.items(), key=lambda item: (item[1].name, item[0])))


def _partitions_of(topic: Topic, asked: TopicPartitions) -> dict[TopicPartition, Topic]:
    check_topic_id(topic, asked.topic_id)
    return {partition_of(topic, number): topic for number in asked.partitions or range(topic.partition_count)}


def owners(group: Group, topics: KnownTopics) -> dict[TopicPartition, str]:
    """The member that each partition is assigned to, as far as assignments are in the form of Kafka's consumers."""
    found: dict[TopicPartition, str] = {}
    for member in group.members.values():
        for name, numbers in assigned_partitions(group.protocol_type, member.assignment).items():
            try:
                topic = topics.get(name)
            except (UnknownTopic, InvalidArgument):
                continue
            there = range(topic.partition_count)
            found.update((TopicPartition(topic.id, Partition(number)), member.member_id) for number in numbers if number in there)
    return found


def _members(group: Group) -> list[GroupMember]:
    return [
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol),
            member.assignment,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
        )
        for member in group.members.values()
    ]


def _fetched(at: TopicPartition, topic: Topic, committed: CommittedOffset) -> FetchedOffset:
    return FetchedOffset(
        topic.name, topic.id, at.partition, committed.offset, committed.leader_epoch, committed.metadata, committed.committed_at_ms
    )
