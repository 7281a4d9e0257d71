"""The service Groups of a broker that answers as a test sets it, and keeps what it was asked."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.message import Message

from gateway.error_codes import wire_codes
from gateway.proto import groups_pb2_grpc
from gateway.proto.status import DETAILS_TRAILER, to_status
from metadata.errors import TidelogError
from tests.kit.tidelog.small_broker import SmallBroker


class SmallGroups(groups_pb2_grpc.GroupsServicer):
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: list[Message | TidelogError] = []
        """To one request after the other."""

    @classmethod
    def of(cls, broker: SmallBroker) -> SmallGroups:
        """Added to a broker that has not started yet."""
        groups = cls()
        broker.services.append(groups._add)
        return groups

    def _add(self, server: grpc.aio.Server) -> None:
        groups_pb2_grpc.add_GroupsServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def _answer(self, request: Message, context: Any) -> Message:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, TidelogError):
            details = ((DETAILS_TRAILER, to_status(answer).SerializeToString()),)
            await context.abort(wire_codes(answer).grpc, answer.message, details)
        assert isinstance(answer, Message)
        return answer

    ListGroups = DescribeGroup = DeleteGroup = DeleteOffsets = SeekGroup = OffsetFetch = _answer
