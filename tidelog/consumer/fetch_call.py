"""Sends one fetch: a long poll for record batches of partitions from one broker, their leader or one of the reader's rack.

Each partition names its topic's id and the newest known leader epoch. So neither another topic of that name nor a stale leader
answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import grpc.aio

from gateway.proto import log_pb2
from gateway.proto.status import from_status
from metadata.errors import TidelogError
from metadata.groups.assignors import TopicPartitionName
from segments.records.batch import parse_header
from tidelog.consumer.fetch_state import named
from tidelog.consumer.preferred_replicas import FetchSource
from tidelog.settings import KIB
from tidelog.transport.connection import Connection
from tidelog.transport.routes import NO_LEADER_EPOCH
from tidelog.transport.rpc_errors import error_of_rpc

# How much later than its long poll a broker may begin to answer.
ANSWER_GRACE_S: Final = 10.0
# A whole answer has the time that it takes at this rate.
ANSWER_BYTES_PER_S_MIN: Final = 256 * KIB


class PartitionRequest(NamedTuple):
    """A partition in a fetch request."""

    partition: TopicPartitionName
    topic_id: str
    offset: int


async def fetch(
    connection: Connection, at: FetchSource, asked: Iterable[PartitionRequest], *, wait_s: float, bytes_max: int
) -> log_pb2.FetchResponse:
    """Raises what the call as a whole met."""
    leader, client_rack = at
    request = log_pb2.FetchRequest(max_bytes=bytes_max, min_bytes=1, max_wait_ms=int(wait_s * 1000), client_rack=client_rack)
    request.format = log_pb2.FETCH_FORMAT_BATCHES
    for (topic, partition), topic_id, offset in asked:
        added = request.partitions.add(topic=topic, topic_id=topic_id, partition=partition, offset=offset, max_bytes=bytes_max)
        if (epoch := connection.epochs.newest(topic_id, partition)) != NO_LEADER_EPOCH:
            added.current_leader_epoch = epoch
    await connection.until_connected(leader)
    timeout_s = wait_s + ANSWER_GRACE_S + bytes_max / ANSWER_BYTES_PER_S_MIN
    try:
        with connection.held(leader) as to:
            answer: log_pb2.FetchResponse = await to.log.Fetch(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        raise error_of_rpc(error, address=leader, writes=False) from error
    return answer


def errors_in(answer: log_pb2.FetchResponse, leader: str) -> dict[TopicPartitionName, TidelogError]:
    return {
        partition_of(found): named(from_status(found.error, address=leader), partition_of(found))
        for found in answer.partitions
        if found.HasField("error")
    }


def partition_of(found: log_pb2.FetchedPartition) -> TopicPartitionName:
    return found.topic, found.partition


def offset_behind(batches: bytes) -> int:
    """Returns the offset behind the last of adjacent whole batches; 0 if there are none. Raises InvalidRecord."""
    start = behind = 0
    while start < len(batches):
        header = parse_header(batches, start)
        start += header.size
        behind = header.last_offset + 1
    return behind
