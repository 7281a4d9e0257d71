"""Serves operators' requests about groups: lists and describes them with their lag, seeks their offsets, deletes them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from gateway.access.authorization import check_topic
from gateway.access.refusals import settle_topics
from gateway.api import BrokerApi
from gateway.concurrency.coordinator_retry import retry_coordinator
from gateway.concurrency.offload import map_yielding
from gateway.groups.admin.descriptions import assigned_partitions
from gateway.http.groups.bodies import (
    AssignedTopic,
    DescribedMember,
    GroupAnswer,
    GroupPageAnswer,
    LagAnswer,
    LagHistoryAnswer,
    ListedAnswer,
    MovedAnswer,
    Seek,
    SeekAnswer,
    SeekPoint,
    TopicLagAnswer,
    TopicPart,
)
from gateway.http.groups.request import GroupRequest
from gateway.http.problem_details import error_members
from gateway.http.request import TRUE_OR_FALSE, parse_timestamp_ms
from gateway.http.struct_body import decode_body
from gateway.proto import groups_pb2
from gateway.proto.status import from_status
from gateway.proto.values import value_of
from metadata.errors import InvalidArgument, did_you_mean

PAGE_SIZE_MAX = 1000


class HttpGroupAdmin:
    """Handles operators' requests about groups."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def list_groups(self, call: GroupRequest) -> None:
        query = call.query("page_size", "page_token", "state", "search")
        call.refuse_body()
        page = await self._broker.group_operations.list_groups(
            groups_pb2.ListGroupsRequest(
                page_size=query.integer("page_size", least=0, most=PAGE_SIZE_MAX) or 0,
                page_token=query.text("page_token"),
                states=query.text("state").split(",") if "state" in query else (),
            ),
            search=query.text("search"),
        )
        await call.answer(GroupPageAnswer([value_of(group, ListedAnswer) for group in page.groups], page.next_page_token))

    async def describe(self, call: GroupRequest) -> None:
        call.query()
        call.refuse_body()
        request = groups_pb2.DescribeGroupRequest(group=call.group)
        found = await retry_coordinator(lambda: self._broker.group_operations.describe(request))
        members = [_member(member, found.protocol_type) for member in found.members]
        await call.answer(value_of(found, GroupAnswer, members=members, lags=await map_yielding(_lag, found.lags)))

    async def lag_history(self, call: GroupRequest) -> None:
        call.query()
        call.refuse_body()
        history = self._broker.lag_history
        found = await retry_coordinator(lambda: history.read(call.group))
        lag = found.history
        await call.answer(
            LagHistoryAnswer(
                group=call.group,
                interval_ms=history.interval_ms,
                age_ms=found.age_ms,
                at_ms=lag.at_ms,
                lag_records=lag.records,
                lag_seconds=lag.seconds,
                topics=[TopicLagAnswer(each.topic, each.records, each.seconds) for each in lag.topics],
                topics_left_out=lag.topics_left_out,
                is_partial=lag.is_partial,
                silent_brokers=dict(found.silent),
            )
        )

    async def delete(self, call: GroupRequest) -> None:
        validate_only = call.query("validate_only").choice("validate_only", TRUE_OR_FALSE) or False
        call.refuse_body()
        request = groups_pb2.DeleteGroupRequest(group=call.group, validate_only=validate_only)
        await retry_coordinator(lambda: self._broker.group_operations.delete(request))
        await call.answer(None)

    async def seek(self, call: GroupRequest) -> None:
        validate_only = call.query("validate_only").choice("validate_only", TRUE_OR_FALSE) or False
        body = decode_body(call.body, Seek)
        topics = [_topic_of(topic) for topic in body.topics]
        request = groups_pb2.SeekGroupRequest(group=call.group, topics=topics, validate_only=validate_only, **_seek_to(body.to))
        await settle_topics(topic.topic for topic in topics)
        for topic in topics:
            check_topic(topic.topic)
        answer = await retry_coordinator(lambda: self._broker.group_operations.seek(request))
        await call.answer(SeekAnswer(await map_yielding(_moved, answer.moved)))


def _moved(row: groups_pb2.MovedOffset) -> MovedAnswer:
    if row.HasField("error"):
        return value_of(row, MovedAnswer, after=UNSET, reason=UNSET, asked=UNSET, error=error_members(from_status(row.error)))
    asked = row.asked if row.HasField("asked") else UNSET
    return value_of(row, MovedAnswer, reason=row.reason or UNSET, asked=asked, error=UNSET)


def _topic_of(topic: str | TopicPart) -> groups_pb2.TopicPartitions:
    if isinstance(topic, str):
        return groups_pb2.TopicPartitions(topic=topic)
    return groups_pb2.TopicPartitions(topic=topic.topic, partitions=topic.partitions, topic_id=topic.topic_id)


def _seek_to(to: str | SeekPoint) -> dict[str, Any]:
    """Returns the one field of SeekGroupRequest that says where to. Raises InvalidArgument."""
    if isinstance(to, str):
        if to in {"earliest", "latest"}:
            return {to: True}
        hint = did_you_mean(to, ("earliest", "latest")) or 'Write "earliest", "latest", or a point, as in {"offset": 17}.'
        raise InvalidArgument(f"to={to[:60]!r} is not a position in a log", hint=hint, field="to")
    points: dict[str, Any] = {}
    if to.timestamp is not UNSET:
        points["timestamp_ms"] = parse_timestamp_ms("to.timestamp", str(to.timestamp))
    if to.offset is not UNSET:
        points["offset"] = to.offset
    if to.shift is not UNSET:
        points["shift"] = to.shift
    if len(points) != 1:
        raise InvalidArgument("to must be one of timestamp, offset and shift", hint='Write for example {"offset": 17}.', field="to")
    return points


def _member(member: groups_pb2.GroupMember, protocol_type: str) -> DescribedMember:
    assigned = sorted(assigned_partitions(protocol_type, member.assignment).items())
    return value_of(member, DescribedMember, assignment=[AssignedTopic(topic, sorted(numbers)) for topic, numbers in assigned])


def _lag(lag: groups_pb2.PartitionLag) -> LagAnswer:
    return value_of(lag, LagAnswer, error=error_members(from_status(lag.error)) if lag.HasField("error") else UNSET)
