"""A message of forwarded batches on the wire: a Produce of ready batches at their leader, and what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from gateway.proto import log_pb2
from gateway.proto.status import error_of
from gateway.routing.forwarded_append import ForwardedAppend
from gateway.routing.peer_channels import Peers
from metadata.cluster.broker_registry import Registration
from metadata.errors import OutcomeUnknown, TidelogError, UnknownTopic
from metadata.model import LeaderEpoch, Offset
from metadata.topics.cache import TopicCache
from segments.log.session_log import Acks
from segments.partition.partition_log import Appended

ANSWER_S: Final = 1.0
"""Beyond the deadline of the records, for the answer that tells of it."""
_PRODUCE: Final = "/tidelog.v1.Log/Produce"


async def forward(
    peers: Peers, topics: TopicCache, leader: Registration, appends: Sequence[ForwardedAppend]
) -> list[Appended | TidelogError] | OutcomeUnknown:
    """What the leader answers to each, all of them with acks=all or none; OutcomeUnknown where there was no answer to all."""
    left_s = max(append.deadline_s for append in appends) - asyncio.get_running_loop().time()
    request = log_pb2.ProduceRequest(
        acks=log_pb2.ACKS_ALL if appends[0].acks is Acks.ALL else log_pb2.ACKS_LEADER, timeout_ms=max(1, round(1000 * left_s))
    )
    gone = {at: unknown for at, append in enumerate(appends) if (unknown := _add(request, topics, append)) is not None}
    found: list[Appended | TidelogError]
    try:
        answer = await peers.call(
            leader, _PRODUCE, request, log_pb2.ProduceResponse, timeout_s=max(0.0, left_s) + ANSWER_S, is_write=True
        )
        if len(answer.results) != len(request.appends):
            told = f"broker {leader.broker_id} answered {len(answer.results)} of {len(request.appends)} forwarded appends"
            return OutcomeUnknown(told)
        found = [_outcome(result) for result in answer.results]
    except OutcomeUnknown as error:
        return error.with_traceback(None)
    except TidelogError as error:
        found = [error.with_traceback(None)] * len(request.appends)
    for at, unknown in gone.items():
        found.insert(at, unknown)
    return found


def _add(request: log_pb2.ProduceRequest, topics: TopicCache, append: ForwardedAppend) -> UnknownTopic | None:
    """Why it is left out: its topic was deleted, or made again, meanwhile."""
    try:
        topic = topics.by_id(append.partition.topic_id)
    except UnknownTopic as error:
        return error.with_traceback(None)
    request.appends.add(
        topic=topic.name,
        topic_id=topic.id,
        partition=append.partition.partition,
        record_batch=bytes(append.batch),
        expected_offset=append.expected_offset,
        key_id=append.key_id,
        topic_revision=topic.revision,
        continues=append.continues,
    )
    return None


def _outcome(result: log_pb2.AppendResult) -> Appended | TidelogError:
    if result.HasField("error"):
        return error_of(result.error)
    if len(result.placements) != 1:
        return OutcomeUnknown("the leader's answer names no offset")
    placed = result.placements[0]
    if placed.HasField("error"):
        return error_of(placed.error)
    last_offset = Offset(placed.base_offset + placed.count - 1)
    return Appended(Offset(placed.base_offset), last_offset, LeaderEpoch(placed.leader_epoch), placed.duplicate)
