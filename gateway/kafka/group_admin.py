"""Answers the calls of operators of consumer groups: DescribeGroups, ListGroups, DeleteGroups, OffsetDelete.

    direct listener    groups that this broker coordinates; NOT_COORDINATOR for others, and ListGroups leaves them out, since
                       clients ask each broker
    forward listener   all groups: a client may reach one broker only

Invariant: an error of one group or one partition stands in its place, and refuses no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.access.authorization import check_group, check_topic, may_see_group, note_failure
from gateway.api import BrokerApi
from gateway.concurrency.offload import LoopYielder
from gateway.kafka.access.authorized_operations import authorized_group_operations
from gateway.kafka.admin.single_change import one_change
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, cut_text, group_code, group_topic_code
from gateway.kafka.listener_config import Route
from gateway.kafka.protocol.admin_messages import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from gateway.proto import groups_pb2
from gateway.topics.describe import fresh_topic
from metadata.errors import (
    GroupSubscribed,
    InvalidArgument,
    NotAuthorized,
    TidelogError,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from metadata.groups.model import GroupPhase, check_group_name
from metadata.groups.reconciliation.group import CLASSIC, CONSUMER, RECONCILING, state_of, type_of
from metadata.page_token import PAGE_SIZE_MAX

# Kafka's state of a group that does not exist.
DEAD: Final = "Dead"
# Kafka's clients show this for a state that they do not know.
UNKNOWN: Final = "Unknown"
# From this version on an unknown group is an error.
UNKNOWN_IS_ERROR_SINCE: Final = 6
_STATES: Final = frozenset(phase.value for phase in GroupPhase) | {RECONCILING}


class KafkaGroupAdmin:
    """Answers operators of consumer groups for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def describe(self, call: KafkaCall, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Describes each group: its state, and its members with what they have subscribed to and are assigned."""
        return DescribeGroupsResponse(
            groups=[
                await self._described(call, name, with_operations=request.include_authorized_operations)
                for name in dict.fromkeys(request.groups)
            ]
        )

    async def _described(self, call: KafkaCall, name: str, *, with_operations: bool) -> DescribeGroupsResponseDescribedGroup:
        answer = DescribeGroupsResponseDescribedGroup(group_id=name)
        try:
            self._check_coordinated(call, name)
            if with_operations:
                answer.authorized_operations = authorized_group_operations(call.authorized, name)
            asked = groups_pb2.DescribeGroupRequest(group=name, without_lags=True)
            found = await self._broker.group_operations.describe(asked)
            if found.type == CONSUMER:
                raise UnknownGroup(f"group {name} does not use the classic protocol", hint="")
        except UnknownGroup as error:
            answer.group_state = DEAD
            if call.version >= UNKNOWN_IS_ERROR_SINCE:
                answer.error_code, answer.error_message = ErrorCode.GROUP_ID_NOT_FOUND, cut_text(error.message)
        except TidelogError as error:
            answer.error_code, answer.error_message = group_code(error), cut_text(error.message)
        else:
            answer.group_state, answer.protocol_type, answer.protocol_data = found.state, found.protocol_type, found.protocol
            # Before the assignment, the members' assignments belong to an earlier generation.
            is_stable = found.state == GroupPhase.STABLE.value
            answer.members = [
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id or None,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in found.members
            ]
        return answer

    async def list(self, call: KafkaCall, request: ListGroupsRequest) -> ListGroupsResponse:
        """Lists the groups that the caller may see, if they have one of the named states and types; all, if none is named."""
        types = {each.lower() for each in request.types_filter}
        states = {each.lower() for each in request.states_filter}
        try:
            listed = await self._listed(is_direct=call.connection.listener.route is Route.DIRECT)
        except TidelogError as error:
            return ListGroupsResponse(error_code=group_code(error))
        return ListGroupsResponse(
            groups=[
                each
                for each in listed
                if (not states or each.group_state.lower() in states) and (not types or each.group_type in types)
            ]
        )

    async def _listed(self, *, is_direct: bool) -> Sequence[ListedGroup]:
        found: dict[str, ListedGroup] = {}
        yielder = LoopYielder()
        asked = groups_pb2.ListGroupsRequest(page_size=PAGE_SIZE_MAX)
        while True:
            page = await self._broker.group_operations.list_groups(asked)
            for each in page.groups:
                if not is_direct or each.coordinator == self._broker.broker_id:
                    state = each.state if each.state in _STATES else UNKNOWN
                    found[each.group] = ListedGroup(
                        group_id=each.group, protocol_type=each.protocol_type, group_state=state, group_type=each.type or CLASSIC
                    )
                await yielder.step()
            if not page.next_page_token:
                break
            asked.page_token = page.next_page_token
        for name, group in self._broker.coordinated_groups.groups():  # the store has no rebalance that is in progress
            if may_see_group(name):
                found[name] = ListedGroup(
                    group_id=name, protocol_type=group.protocol_type, group_state=state_of(group), group_type=type_of(group)
                )
        return list(found.values())

    async def delete(self, call: KafkaCall, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Deletes each group that has no members, with its offsets."""
        return DeleteGroupsResponse(results=[await self._deleted(call, name) for name in dict.fromkeys(request.groups_names)])

    async def _deleted(self, call: KafkaCall, name: str) -> DeletableGroupResult:
        try:
            with one_change(self._broker.guard, call):
                self._check_coordinated(call, name)
                await self._broker.group_operations.delete(groups_pb2.DeleteGroupRequest(group=name))
        except TidelogError as error:
            return DeletableGroupResult(group_id=name, error_code=group_code(error))
        return DeletableGroupResult(group_id=name)

    async def delete_offsets(self, call: KafkaCall, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Deletes committed offsets of a group, of topics that no member subscribes to."""
        answer = OffsetDeleteResponse()
        try:
            self._check_coordinated(call, request.group_id)
            found = groups_pb2.DescribeGroupRequest(group=request.group_id, without_lags=True)
            await self._broker.group_operations.describe(found)  # an error of the group is one of the whole request
            answer.topics = [await self._deleted_of_topic(call, request.group_id, topic) for topic in request.topics]
        except TidelogError as error:
            note_failure(error.code)
            answer.error_code, answer.topics = group_code(error), ()
        return answer

    async def _deleted_of_topic(self, call: KafkaCall, group: str, topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
        """Raises the errors of the group."""
        numbers = [each.partition_index for each in topic.partitions]
        codes: dict[int, int] = {}
        try:
            with one_change(self._broker.guard, call):
                check_group(group)
                check_topic(topic.name)
                count = (await fresh_topic(self._broker, topic.name)).partition_count
                there = sorted({number for number in numbers if 0 <= number < count})
                codes = {number: ErrorCode.NONE if number in there else _NO_PARTITION for number in numbers}
                if numbers and not there:
                    raise UnknownPartition(f"topic {topic.name} has none of these partitions; it has {count}")
                if there:
                    asked = groups_pb2.DeleteOffsetsRequest(group=group)
                    asked.topics.add(topic=topic.name, partitions=there)
                    await self._broker.group_operations.delete_offsets(asked)
        except (NotAuthorized, UnknownTopic, UnknownPartition, GroupSubscribed, InvalidArgument) as error:
            codes = dict.fromkeys(numbers, group_topic_code(error))
        return OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[OffsetDeleteResponsePartition(partition_index=number, error_code=codes[number]) for number in numbers],
        )

    def _check_coordinated(self, call: KafkaCall, group: str) -> None:
        """Raises NotAuthorized; NotCoordinator where the client has to ask another broker, on a direct listener."""
        check_group(check_group_name(group))
        if call.connection.listener.route is Route.DIRECT:
            self._broker.groups.check_here(group)


_NO_PARTITION: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
