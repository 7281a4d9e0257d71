"""Asks brokers for offsets: the ends of partitions and of leader epochs, the first record since a time, where a reader begins.

Each request names the topic's id and the newest known leader epoch. So no broker answers for another topic of that name, and
no stale leader reports an old end: the offsets of a partition never go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gateway.proto import log_pb2
from gateway.proto.status import from_status
from metadata.errors import InvalidArgument, TidelogError, Unavailable, UnknownPartition, UnknownTopic
from tidelog.positions import AtOffset, AtOffsets, Earliest, LastRecords, Latest, SinceTimestamp, Start
from tidelog.transport.connection import Connection, Stubs
from tidelog.transport.descriptions import EpochEnd, OffsetRange
from tidelog.transport.routes import NO_LEADER_EPOCH, TopicRoute


async def offset_ranges(connection: Connection, route: TopicRoute) -> dict[int, OffsetRange]:
    """Returns the ends of each partition. Raises the error of the first partition that failed."""
    ranges: dict[int, OffsetRange] = {}
    for partition, found in (await ranges_or_errors(connection, route, range(route.partition_count))).items():
        if isinstance(found, TidelogError):
            raise found
        ranges[partition] = found
    return ranges


async def ranges_or_errors(
    connection: Connection, route: TopicRoute, partitions: Iterable[int]
) -> dict[int, OffsetRange | TidelogError]:
    """Returns the ends of each partition, or its permanent error."""
    wanted = list(partitions)
    earliest = await _offsets(connection, route, [log_pb2.OffsetQuery(partition=p, earliest=True) for p in wanted])
    latest = await _offsets(connection, route, [log_pb2.OffsetQuery(partition=p, latest=True) for p in wanted])
    return {partition: _range(first, end) for partition, first, end in zip(wanted, earliest, latest, strict=True)}


async def end_of_epoch(connection: Connection, route: TopicRoute, partition: int, leader_epoch: int) -> EpochEnd | None:
    """Returns the end of this leader epoch; None if there is no record of it or of an earlier one."""
    query = log_pb2.LeaderEpochQuery(topic=route.name, topic_id=route.topic_id, partition=partition, leader_epoch=leader_epoch)

    async def ask(to: Stubs, timeout_s: float) -> log_pb2.EpochEnd:
        _name_epoch(connection, route, query)
        request = log_pb2.OffsetForLeaderEpochRequest(queries=[query])
        answer: log_pb2.OffsetForLeaderEpochResponse = await to.log.OffsetForLeaderEpoch(request, timeout=timeout_s)
        [end] = answer.ends
        if end.HasField("error"):
            error = _heeded(connection, route, partition, from_status(end.error, address=to.address))
            raise await _Passing(connection, route).said(error, to) or error
        return end

    found = await connection.call(ask, writes=False)
    return None if found.end_offset < 0 else EpochEnd(leader_epoch=found.leader_epoch, end_offset=found.end_offset)


async def ends_of_epochs(
    connection: Connection, route: TopicRoute, leader_epochs: Mapping[int, int]
) -> dict[int, EpochEnd | TidelogError | None]:
    """Returns, by partition, the end of the leader epoch named for it as `end_of_epoch` does, or its permanent error."""
    queries = [
        log_pb2.LeaderEpochQuery(topic=route.name, topic_id=route.topic_id, partition=partition, leader_epoch=leader_epoch)
        for partition, leader_epoch in leader_epochs.items()
    ]

    async def ask(to: Stubs, timeout_s: float) -> dict[int, EpochEnd | TidelogError | None]:
        for query in queries:
            _name_epoch(connection, route, query)
        request = log_pb2.OffsetForLeaderEpochRequest(queries=queries)
        answer: log_pb2.OffsetForLeaderEpochResponse = await to.log.OffsetForLeaderEpoch(request, timeout=timeout_s)
        found: dict[int, EpochEnd | TidelogError | None] = {}
        passing = _Passing(connection, route)
        for query, end in zip(queries, answer.ends, strict=True):
            if end.HasField("error"):
                error = _heeded(connection, route, query.partition, from_status(end.error, address=to.address))
                if (again := await passing.said(error, to)) is not None:
                    raise again
                found[query.partition] = error
            else:
                is_there = end.end_offset >= 0
                found[query.partition] = EpochEnd(leader_epoch=end.leader_epoch, end_offset=end.end_offset) if is_there else None
        return found

    return await connection.call(ask, writes=False) if queries else {}


def _range(first: int | TidelogError, end: int | TidelogError) -> OffsetRange | TidelogError:
    if isinstance(first, TidelogError):
        return first
    return end if isinstance(end, TidelogError) else OffsetRange(log_start_offset=first, high_watermark=end)


async def starting_offsets(
    connection: Connection, route: TopicRoute, start: Start, partitions: list[int] | None
) -> dict[int, int | TidelogError]:
    """Returns the first offset of each partition to read, or its permanent error.

    Raises UnknownPartition, and InvalidArgument for a bad partition or for none.
    """
    wanted = _partitions_to_read(route, start, partitions)
    match start:
        case AtOffset(offset):
            return dict.fromkeys(wanted, offset)
        case AtOffsets(by_partition):
            return {partition: by_partition[partition] for partition in wanted}
        case SinceTimestamp(timestamp_ms):
            return await _since(connection, route, wanted, timestamp_ms)
        case Earliest() | Latest() | LastRecords():
            ranges = await ranges_or_errors(connection, route, wanted)
            return {partition: _within(start, ends) for partition, ends in ranges.items()}


def names_known_partitions(route: TopicRoute, start: Start, partitions: list[int] | None) -> bool:
    """Returns whether the route has every partition that a reader names."""
    named = partitions if partitions is not None else start.by_partition if isinstance(start, AtOffsets) else ()
    return not any(isinstance(partition, int) and partition >= route.partition_count for partition in named)


def _partitions_to_read(route: TopicRoute, start: Start, partitions: list[int] | None) -> list[int]:
    if partitions is None:
        wanted = sorted(start.by_partition) if isinstance(start, AtOffsets) else list(range(route.partition_count))
    else:
        wanted = partitions
        if not wanted:
            raise InvalidArgument("no partition is to be read", hint="Name one, or leave partitions out to read all of them.")
    for partition in wanted:
        if not isinstance(partition, int):
            raise InvalidArgument(f"{partition!r} is no partition", hint="Partitions are numbers, from 0 on.")
        if not 0 <= partition < route.partition_count:
            raise UnknownPartition(
                f"{route.name} has the partitions 0 to {route.partition_count - 1}; {partition} was asked for",
                topic=route.name,
                partition=partition,
                partition_count=route.partition_count,
            )
        if isinstance(start, AtOffsets) and partition not in start.by_partition:
            raise UnknownPartition(f"the map of offsets names none for partition {partition} of {route.name}")
    return wanted


def _within(start: Earliest | Latest | LastRecords, ends: OffsetRange | TidelogError) -> int | TidelogError:
    match start, ends:
        case _, TidelogError():
            return ends
        case Earliest(), OffsetRange():
            return ends.log_start_offset
        case Latest(), OffsetRange():
            return ends.high_watermark
        case LastRecords(count), OffsetRange():
            return max(ends.log_start_offset, ends.high_watermark - count)


async def _since(
    connection: Connection, route: TopicRoute, partitions: list[int], timestamp_ms: int
) -> dict[int, int | TidelogError]:
    """Returns the first record at or after the time; the end if there is none, so that reading begins with later ones.

    The ends are asked for first: a record that comes between the two questions is found by the second one, or lies behind the end.
    """
    ends = await _offsets(connection, route, [log_pb2.OffsetQuery(partition=p, latest=True) for p in partitions])
    first = await _offsets(connection, route, [log_pb2.OffsetQuery(partition=p, timestamp_ms=timestamp_ms) for p in partitions])
    return {
        partition: end if isinstance(offset, int) and offset < 0 else offset
        for partition, end, offset in zip(partitions, ends, first, strict=True)
    }


async def _offsets(connection: Connection, route: TopicRoute, queries: Sequence[log_pb2.OffsetQuery]) -> list[int | TidelogError]:
    """Answers in the order of the queries; an error that will not pass stands in its place."""
    for query in queries:
        query.topic, query.topic_id = route.name, route.topic_id

    async def ask(to: Stubs, timeout_s: float) -> list[int | TidelogError]:
        for query in queries:
            _name_epoch(connection, route, query)
        request = log_pb2.ListOffsetsRequest(queries=queries)
        answer: log_pb2.ListOffsetsResponse = await to.log.ListOffsets(request, timeout=timeout_s)
        found: list[int | TidelogError] = []
        passing = _Passing(connection, route)
        for query, result in zip(queries, answer.results, strict=True):
            if not result.HasField("error"):
                connection.epochs.note(route.topic_id, query.partition, result.leader_epoch)
                found.append(result.offset)
                continue
            error = _heeded(connection, route, query.partition, from_status(result.error, address=to.address))
            if (again := await passing.said(error, to)) is not None:
                raise again
            found.append(error)
        return found

    return await connection.call(ask, writes=False) if queries else []


class _Passing:
    """Tells errors of one answer that pass, so that the question is repeated, from those that stand.

    A broker whose view is behind does not know a topic or partition that the route has. That a topic is gone is believed once a
    fresh route says so, too.
    """

    def __init__(self, connection: Connection, route: TopicRoute) -> None:
        self._connection = connection
        self._route = route
        self._is_there: bool | None = None  # not asked yet

    async def said(self, error: TidelogError, by: Stubs) -> Unavailable | None:
        """Returns the error to be raised, which is tried again; None where `error` stands."""
        if not (error.retryable or isinstance(error, UnknownPartition)):
            if not isinstance(error, UnknownTopic):
                return None
            if self._is_there is None:
                self._is_there = await self._is_still_there()
            if not self._is_there:
                return None
        return error if isinstance(error, Unavailable) else Unavailable(error.message, hint=error.hint, address=by.address)

    async def _is_still_there(self) -> bool:
        try:
            fresh = await self._connection.route(self._route.name, fresh=True)
        except UnknownTopic:
            return False
        return fresh.topic_id == self._route.topic_id


def _name_epoch(connection: Connection, route: TopicRoute, query: log_pb2.OffsetQuery | log_pb2.LeaderEpochQuery) -> None:
    if (epoch := connection.epochs.newest(route.topic_id, query.partition)) != NO_LEADER_EPOCH:
        query.current_leader_epoch = epoch


def _heeded(connection: Connection, route: TopicRoute, partition: int, error: TidelogError) -> TidelogError:
    """Returns the error. A newer leader in it goes into the next question."""
    connection.epochs.heed(route.topic_id, partition, error)
    return error
