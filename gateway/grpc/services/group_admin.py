"""Serves the operators' part of Groups over gRPC; groups.py serves the members' part."""

from __future__ import annotations

from google.protobuf.message import Message

from gateway.access.authorization import check_group, check_topic
from gateway.access.refusals import settle_group, settle_topics
from gateway.api import BrokerApi
from gateway.groups.admin.admin import GroupAdmin
from gateway.groups.admin.local_admin import LocalGroupAdmin
from gateway.grpc.calls import MethodHandler, unary, unary_by_origin
from gateway.proto import groups_pb2


class GrpcGroupAdmin:
    """Translates the operators' calls of the service Groups: listing, describing, deleting and seeking groups."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "ListGroups": unary(groups_pb2.ListGroupsRequest, self.list_groups),
            "DescribeGroup": unary_by_origin(groups_pb2.DescribeGroupRequest, self.describe),
            "DeleteGroup": unary_by_origin(groups_pb2.DeleteGroupRequest, self.delete),
            "DeleteOffsets": unary_by_origin(groups_pb2.DeleteOffsetsRequest, self.delete_offsets),
            "SeekGroup": unary_by_origin(groups_pb2.SeekGroupRequest, self.seek),
        }

    async def list_groups(self, request: groups_pb2.ListGroupsRequest) -> Message:
        return await self._broker.group_operations.list_groups(request)

    async def describe(self, request: groups_pb2.DescribeGroupRequest, forwarded: bool) -> Message:
        await settle_group(request.group)
        check_group(request.group)
        return await self._operations(forwarded).describe(request)

    async def delete(self, request: groups_pb2.DeleteGroupRequest, forwarded: bool) -> Message:
        await settle_group(request.group)
        check_group(request.group)
        return await self._operations(forwarded).delete(request)

    async def delete_offsets(self, request: groups_pb2.DeleteOffsetsRequest, forwarded: bool) -> Message:
        await _check_names(request)
        return await self._operations(forwarded).delete_offsets(request)

    async def seek(self, request: groups_pb2.SeekGroupRequest, forwarded: bool) -> Message:
        await _check_names(request)
        return await self._operations(forwarded).seek(request)

    def _operations(self, forwarded: bool) -> LocalGroupAdmin | GroupAdmin:
        """Returns the group's operations; a call that another broker forwarded is carried out here."""
        operations = self._broker.group_operations
        return operations.here if forwarded else operations


async def _check_names(request: groups_pb2.DeleteOffsetsRequest | groups_pb2.SeekGroupRequest) -> None:
    await settle_group(request.group)
    check_group(request.group)
    await settle_topics(each.topic for each in request.topics)
    for each in request.topics:
        check_topic(each.topic)
