"""What operators ask of groups over HTTP: which there are, how far behind one is, to move its offsets, to delete it."""

from __future__ import annotations

from msgspec import UNSET

from gateway.access.authorization import check_topic
from gateway.api import Broker
from gateway.concurrency.coordinator_retry import retry_coordinator
from gateway.concurrency.offload import in_turns
from gateway.groups.admin.descriptions import (
    GroupDescription,
    MovedOffset,
    PartitionLag,
    SeekTo,
    TopicPartitions,
    assigned_partitions,
)
from gateway.http.groups.bodies import (
    AssignedTopic,
    DescribedMember,
    GroupAnswer,
    GroupPageAnswer,
    LagAnswer,
    ListedAnswer,
    MovedAnswer,
    Seek,
    SeekAnswer,
    SeekPoint,
    TopicPart,
    decoded,
)
from gateway.http.groups.request import TRUE_OR_FALSE, GroupCall
from gateway.http.problem_details import error_members
from gateway.http.request import parsed_timestamp_ms
from metadata.errors import InvalidArgument, did_you_mean

PAGE_SIZE_MAX = 1000


class HttpGroupAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def list_groups(self, call: GroupCall) -> None:
        query = call.query("page_size", "page_token", "state")
        call.no_body()
        page_size = query.integer("page_size", least=0, most=PAGE_SIZE_MAX) or 0
        states = query.text("state").split(",") if "state" in query else ()
        page = await self._broker.group_operations.list_groups(
            page_size=page_size, page_token=query.text("page_token"), states=states
        )
        await call.answer(GroupPageAnswer([ListedAnswer(**group._asdict()) for group in page.groups], page.next_page_token))

    async def describe(self, call: GroupCall) -> None:
        call.query()
        call.no_body()
        found = await retry_coordinator(lambda: self._broker.group_operations.describe(call.group))
        await call.answer(_described(found, await in_turns(_lag, found.lags)))

    async def delete(self, call: GroupCall) -> None:
        validate_only = call.query("validate_only").choice("validate_only", TRUE_OR_FALSE) or False
        call.no_body()
        await retry_coordinator(lambda: self._broker.group_operations.delete(call.group, validate_only=validate_only))
        await call.answer(None)

    async def seek(self, call: GroupCall) -> None:
        validate_only = call.query("validate_only").choice("validate_only", TRUE_OR_FALSE) or False
        asked = decoded(call.body, Seek)
        topics, to = [_topic_of(topic) for topic in asked.topics], _seek_to(asked.to)
        for topic in topics:
            check_topic(topic.topic)
        moved = await retry_coordinator(
            lambda: self._broker.group_operations.seek(call.group, topics, to, validate_only=validate_only)
        )
        await call.answer(SeekAnswer(await in_turns(_moved, moved)))


def _moved(row: MovedOffset) -> MovedAnswer:
    if row.error is not None:
        return MovedAnswer(row.topic, row.topic_id, row.partition, row.before, error=error_members(row.error))
    asked = UNSET if row.asked is None else row.asked
    return MovedAnswer(row.topic, row.topic_id, row.partition, row.before, row.after, row.reason or UNSET, asked)


def _topic_of(topic: str | TopicPart) -> TopicPartitions:
    if isinstance(topic, str):
        return TopicPartitions(topic)
    return TopicPartitions(topic.topic, topic.partitions, topic.topic_id)


def _seek_to(to: str | SeekPoint) -> SeekTo:
    if isinstance(to, str):
        if to == "earliest":
            return SeekTo("earliest")
        if to == "latest":
            return SeekTo("latest")
        hint = did_you_mean(to, ("earliest", "latest")) or 'Say "earliest", "latest", or a point, as in {"offset": 17}.'
        raise InvalidArgument(f"to={to[:60]!r} is no place in a log", hint=hint, field="to")
    points = []
    if to.timestamp is not UNSET:
        points.append(SeekTo("timestamp_ms", parsed_timestamp_ms("to.timestamp", str(to.timestamp))))
    if to.offset is not UNSET:
        points.append(SeekTo("offset", to.offset))
    if to.shift is not UNSET:
        points.append(SeekTo("shift", to.shift))
    if len(points) != 1:
        raise InvalidArgument("to must be one of timestamp, offset and shift", hint='Say for example {"offset": 17}.', field="to")
    return points[0]


def _described(group: GroupDescription, lags: list[LagAnswer]) -> GroupAnswer:
    return GroupAnswer(
        group=group.group,
        state=group.state,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader,
        coordinator=group.coordinator,
        lag_records=group.lag_records,
        lag_seconds=group.lag_seconds,
        members=[
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                [
                    AssignedTopic(topic, sorted(numbers))
                    for topic, numbers in sorted(assigned_partitions(group.protocol_type, member.assignment).items())
                ],
            )
            for member in group.members
        ],
        lags=lags,
    )


def _lag(lag: PartitionLag) -> LagAnswer:
    members = lag._asdict()
    return LagAnswer(**members | {"error": UNSET if lag.error is None else error_members(lag.error)})
