"""Members of consumer groups over gRPC, as tests play them: each call is one of the wire, and its error is one of the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.rpc.status_pb2 import Status

from gateway.proto import groups_pb2
from gateway.proto.status import DETAILS_TRAILER, from_status
from metadata.errors import NoCoordinator, NotCoordinator, TidelogError
from tests.kit.gateway.stubs import groups_stub

# Longer than any test takes: who plays a member step by step sends no heartbeats meanwhile.
SESSION_MS = 60_000
RANGE = groups_pb2.GroupProtocol(name="range", metadata=b"orders")


async def answered(call: Awaitable[Any]) -> Any:
    """Its answer; raises the error that the broker answered."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        details: Any = dict(error.trailing_metadata() or ()).get(DETAILS_TRAILER)
        if not isinstance(details, bytes):
            raise
        raise from_status(Status.FromString(details)) from None


async def refused(call: Awaitable[Any]) -> TidelogError:
    try:
        answer = await answered(call)
    except TidelogError as error:
        return error
    raise AssertionError(f"it was answered: {answer}")


async def answered_by_the_next(call: Callable[[], Awaitable[Any]]) -> Any:
    """Returns the answer of the next coordinator. Repeats the call as a client does while the coordinator changes.

    Until the next coordinator has adopted the group, any broker may answer NotCoordinator or NoCoordinator.
    """
    while True:
        try:
            return await answered(call())
        except (NotCoordinator, NoCoordinator):
            await asyncio.sleep(0.01)


class GroupCalls:
    """Of one group, over one channel."""

    def __init__(self, channel: grpc.aio.Channel, group: str = "billing") -> None:
        self.group = group
        self.stub = groups_stub(channel)

    def join(self, member_id: str = "", **asked: Any) -> Any:
        request: dict[str, Any] = {
            "group": self.group,
            "protocol_type": "consumer",
            "protocols": [RANGE],
            "session_timeout_ms": SESSION_MS,
            "client_id": "test",
            "member_id": member_id,
        }
        return self.stub.JoinGroup(groups_pb2.JoinGroupRequest(**(request | asked)))

    def sync(self, member_id: str, generation: int, assignments: Mapping[str, bytes] | None = None, **asked: Any) -> Any:
        request = groups_pb2.SyncGroupRequest(
            group=self.group, member_id=member_id, generation=generation, assignments=assignments, **asked
        )
        return self.stub.SyncGroup(request)

    def heartbeat(self, member_id: str, generation: int, **asked: Any) -> Any:
        request = groups_pb2.HeartbeatRequest(group=self.group, member_id=member_id, generation=generation, **asked)
        return self.stub.Heartbeat(request)

    def leave(self, *member_ids: str) -> Any:
        members = [groups_pb2.LeavingMember(member_id=member_id) for member_id in member_ids]
        return self.stub.LeaveGroup(groups_pb2.LeaveGroupRequest(group=self.group, members=members))

    def commit(self, *offsets: groups_pb2.CommittedOffset, member_id: str = "", generation: int = -1) -> Any:
        request = groups_pb2.OffsetCommitRequest(group=self.group, member_id=member_id, generation=generation, offsets=offsets)
        return self.stub.OffsetCommit(request)

    def offsets(self, *topics: groups_pb2.TopicPartitions) -> Any:
        return self.stub.OffsetFetch(groups_pb2.OffsetFetchRequest(group=self.group, topics=topics))

    def find_coordinator(self) -> Any:
        return self.stub.FindCoordinator(groups_pb2.FindCoordinatorRequest(group=self.group))

    async def alone(self) -> tuple[str, int]:
        """A group of one member, which has its assignment: its id and generation."""
        joined = await answered(self.join())
        synced = await answered(self.sync(joined.member_id, joined.generation, {joined.member_id: b"all"}))
        assert synced.assignment == b"all"
        return joined.member_id, joined.generation


def offset(number: int, *, topic: str = "orders", partition: int = 0, **more: Any) -> groups_pb2.CommittedOffset:
    return groups_pb2.CommittedOffset(topic=topic, partition=partition, offset=number, **more)
