"""Offsets of a group that another broker coordinates, which trusts forwarded calls: the broker that is asked checks the topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.access.authorization import AuthorizedCall, CallOrigin, Principal, begin
from gateway.access.permissions import GRPC_CALLS, HTTP_CALLS
from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.calls import Context
from gateway.grpc.services.groups import GroupsService
from gateway.http.groups.cursor import Cursor, CursorEntry
from gateway.http.groups.offsets import HttpGroupOffsets
from gateway.http.groups.request import MemberIdentity
from gateway.proto import groups_pb2
from gateway.proto.status import from_status
from metadata.access.acl import Acl, Operation
from metadata.errors import NotAuthorized
from metadata.groups.model import NO_INSTANCE, Generation, MemberId
from metadata.model import TopicPartition
from tests.gateway.access.test_denials import Book
from tests.kit.gateway.reported_log import P0, Topics
from tests.kit.gateway.reported_log import topic as orders

GROUP = Acl(principal="billing", operation="all", resource="group", name="g")
ORDERS = Acl(principal="billing", operation="read", resource="topic", name="orders")
TOPICS = ("salaries", "orders", "salaries")


class Coordinator:
    """Answers as a broker does that lets every forwarded call pass."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def forward(self, _: str, method: str, request: Any, answer_type: Any, timeout_s: float) -> Any:
        self.asked.append(request)
        if method == "OffsetCommit":
            return answer_type(errors=[{} for _ in request.offsets])
        topics = request.topics or [groups_pb2.TopicPartitions(topic=topic, partitions=[0]) for topic in ("salaries", "orders")]
        return answer_type(
            offsets=[
                groups_pb2.FetchedOffset(topic=each.topic, partition=number, offset=7)
                for each in topics
                for number in each.partitions or [0]
            ]
        )


def asks(method: str, work: Callable[[GroupsService, Context], Awaitable[Any]], *acls: Acl) -> tuple[Any, list[Any]]:
    """The answer to billing, and what the coordinator was asked."""
    coordinator = Coordinator()
    broker = cast(BrokerApi, SimpleNamespace(groups=coordinator))
    context = cast(Context, SimpleNamespace(invocation_metadata=tuple))

    async def main() -> Any:
        caller = Principal("billing", Book(*acls), lambda: 0, credential="API key")
        needs = GRPC_CALLS[f"/tidelog.v1.Groups/{method}"]
        begin(AuthorizedCall(caller, needs, CallOrigin("grpc", method, ""), refusal=lambda *_: None))
        return await work(GroupsService(broker, InterruptibleWaits()), context)

    return asyncio.run(main()), coordinator.asked


def commit(*topics: str) -> groups_pb2.OffsetCommitRequest:
    request = groups_pb2.OffsetCommitRequest(group="g", member_id="m", generation=3, only_forward=True)
    for partition, topic in enumerate(topics):
        request.offsets.add(topic=topic, partition=partition, offset=5)
    return request


def fetch(*topics: str) -> groups_pb2.OffsetFetchRequest:
    named = [groups_pb2.TopicPartitions(topic=topic, partitions=[at]) for at, topic in enumerate(topics)]
    return groups_pb2.OffsetFetchRequest(group="g", topics=named)


def test_nothing_is_committed_of_a_topic_that_the_caller_may_not_read() -> None:
    answer, asked = asks("OffsetCommit", lambda service, context: service.commit(commit(*TOPICS), context), GROUP, ORDERS)
    assert [from_status(each).code if each.code else "" for each in answer.errors] == ["PERMISSION_DENIED", "", "PERMISSION_DENIED"]
    [forwarded] = asked
    assert [(each.topic, each.partition) for each in forwarded.offsets] == [("orders", 1)]
    assert (forwarded.member_id, forwarded.generation, forwarded.only_forward) == ("m", 3, True)

    answer, asked = asks("OffsetCommit", lambda service, context: service.commit(commit("salaries"), context), GROUP, ORDERS)
    assert [from_status(each).code for each in answer.errors] == ["PERMISSION_DENIED"]
    assert asked == []


def test_offset_fetch_returns_no_offsets_of_topics_that_the_caller_has_no_right_to() -> None:
    answer, asked = asks("OffsetFetch", lambda service, context: service.fetch_offsets(fetch(*TOPICS), context), GROUP, ORDERS)
    reported = {each.partition: from_status(each.error).code if each.HasField("error") else each.offset for each in answer.offsets}
    assert reported == {0: "PERMISSION_DENIED", 1: 7, 2: "PERMISSION_DENIED"}
    assert [each.topic for each in asked[0].topics] == ["orders"]

    answer, asked = asks("OffsetFetch", lambda service, context: service.fetch_offsets(fetch("salaries"), context), GROUP, ORDERS)
    assert [from_status(each.error).code for each in answer.offsets] == ["PERMISSION_DENIED"]
    assert asked == [], "to name no topic would ask for all"

    answer, asked = asks("OffsetFetch", lambda service, context: service.fetch_offsets(fetch(), context), GROUP, ORDERS)
    assert [each.topic for each in answer.offsets] == ["orders"], "of all that the group has committed"


def test_a_group_that_the_caller_may_not_name_is_asked_for_nothing() -> None:
    for request in (fetch(), fetch("orders")):
        with pytest.raises(NotAuthorized, match="group g"):
            asks("OffsetFetch", lambda service, context, request=request: service.fetch_offsets(request, context), ORDERS)  # type: ignore[misc]
    with pytest.raises(NotAuthorized, match="group g"):
        asks("OffsetCommit", lambda service, context: service.commit(commit("salaries"), context), ORDERS)


def test_a_caller_that_may_read_all_is_answered_as_before() -> None:
    everything = Acl(principal="billing", operation="all", resource="topic")
    answer, asked = asks("OffsetCommit", lambda service, context: service.commit(commit(*TOPICS), context), GROUP, everything)
    assert [each.code for each in answer.errors] == [0, 0, 0]
    assert len(asked[0].offsets) == 3
    answer, _ = asks("OffsetFetch", lambda service, context: service.fetch_offsets(fetch(), context), GROUP, everything)
    assert [each.topic for each in answer.offsets] == ["salaries", "orders"]


@pytest.mark.parametrize(("operation", "is_committed"), [("read", True), ("describe", False), ("write", False)])
def test_a_cursor_commits_nothing_of_a_topic_that_the_caller_may_not_read(operation: Operation, is_committed: bool) -> None:
    """Any client that knows a member's id can make a cursor: its checksum is no secret."""
    committed: list[TopicPartition] = []

    async def commit(*who: Any, only_forward: bool) -> dict[TopicPartition, Exception]:
        committed.extend(who[-1])
        return {}

    async def main() -> None:
        acl = Acl(principal="billing", operation=operation, resource="topic", name="orders")
        caller = Principal("billing", Book(GROUP, acl), lambda: 0, credential="API key")
        needs = HTTP_CALLS["POST", "/v1/groups/{group}/members/{member_id}/offsets"]
        begin(AuthorizedCall(caller, needs, CallOrigin("http", "", ""), refusal=lambda *_: None))
        broker = cast(BrokerApi, SimpleNamespace(topic_cache=Topics(orders()), groups=SimpleNamespace(commit=commit)))
        cursor = Cursor(Generation(1), {P0: CursorEntry(7, must_stay=True)})
        await HttpGroupOffsets(broker).commit_cursor(MemberIdentity("g", MemberId("m"), NO_INSTANCE, Generation(1)), cursor)

    asyncio.run(main())
    assert (committed == [P0]) == is_committed
