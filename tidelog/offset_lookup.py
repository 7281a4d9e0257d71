"""Asks brokers for offsets: the ends of partitions, the first record since a time, where a reader begins."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.proto import log_pb2
from metadata.errors import UnknownPartition
from tidelog.connection import Connection, Stubs, TopicRoute
from tidelog.descriptions import OffsetRange
from tidelog.positions import AtOffset, AtOffsets, Earliest, LastRecords, Latest, SinceTimestamp, Start
from tidelog.rpc_errors import error_of_status


async def offset_ranges(connection: Connection, topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
    """The ends of each partition. Raises what the first partition met that failed."""
    wanted = list(partitions)
    earliest = await _look_up(connection, [log_pb2.OffsetQuery(topic=topic, partition=p, earliest=True) for p in wanted])
    latest = await _look_up(connection, [log_pb2.OffsetQuery(topic=topic, partition=p, latest=True) for p in wanted])
    return {
        partition: OffsetRange(log_start_offset=first, high_watermark=end)
        for partition, first, end in zip(wanted, earliest, latest, strict=True)
    }


async def starting_offsets(connection: Connection, route: TopicRoute, start: Start, partitions: list[int] | None) -> dict[int, int]:
    """Where to begin in each partition that is to be read. Raises UnknownPartition."""
    if isinstance(start, AtOffsets):
        partitions = sorted(start.by_partition) if partitions is None else partitions
        if missing := sorted(set(partitions) - start.by_partition.keys()):
            raise UnknownPartition(f"the map of offsets names none for partition {missing[0]} of {route.name}")
    wanted = list(range(route.partition_count)) if partitions is None else partitions
    for partition in wanted:
        if not 0 <= partition < route.partition_count:
            raise UnknownPartition(
                f"{route.name} has the partitions 0 to {route.partition_count - 1}; {partition} was asked for",
                topic=route.name,
                partition=partition,
                partition_count=route.partition_count,
            )
    match start:
        case AtOffset(offset):
            return dict.fromkeys(wanted, offset)
        case AtOffsets(by_partition):
            return {partition: by_partition[partition] for partition in wanted}
        case SinceTimestamp(timestamp_ms):
            queries = [log_pb2.OffsetQuery(topic=route.name, partition=p, timestamp_ms=timestamp_ms) for p in wanted]
            found = dict(zip(wanted, await _look_up(connection, queries), strict=True))
            later = [partition for partition, offset in found.items() if offset < 0]
            if later:  # nothing so new yet: begin with what comes
                ranges = await offset_ranges(connection, route.name, later)
                found |= {partition: ranges[partition].high_watermark for partition in later}
            return found
        case Earliest() | Latest() | LastRecords():
            ranges = await offset_ranges(connection, route.name, wanted)
            return {partition: _within(start, ranges[partition]) for partition in wanted}


def _within(start: Earliest | Latest | LastRecords, ends: OffsetRange) -> int:
    match start:
        case Earliest():
            return ends.log_start_offset
        case Latest():
            return ends.high_watermark
        case LastRecords(count):
            return max(ends.log_start_offset, ends.high_watermark - count)


async def _look_up(connection: Connection, queries: list[log_pb2.OffsetQuery]) -> list[int]:
    request = log_pb2.ListOffsetsRequest(queries=queries)

    async def ask(to: Stubs, timeout_s: float) -> list[int]:
        answer: log_pb2.ListOffsetsResponse = await to.log.ListOffsets(request, timeout=timeout_s)
        for result in answer.results:
            if result.HasField("error"):
                raise error_of_status(result.error, address=to.address)
        return [result.offset for result in answer.results]

    return await connection.call(ask, writes=False)
