"""Answers operators' calls on the consumer groups of the whole cluster: any broker lists groups, and asks the coordinator for the
rest.

  list_groups · readers                         from the metadata store, by pages, as the groups were stored last
  describe · delete · delete_offsets · seek     here ─▶ local_admin.py      elsewhere ─▶ one hop (GroupRouter.forward)
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec
from google.protobuf.message import Message

from gateway.access.authorization import is_guarded, may_see_group, may_see_topic, note_validate_only
from gateway.groups.admin.descriptions import hide_topics
from gateway.groups.admin.local_admin import LocalGroupAdmin
from gateway.groups.admin.seek import seek_to
from gateway.groups.admin.topic_readers import TopicReaders
from gateway.groups.router import GroupRouter
from gateway.groups.scan import PAGE, stored_groups
from gateway.proto import groups_pb2
from metadata.errors import Corrupt, InvalidArgument, NoCoordinator
from metadata.groups.model import GroupPhase, check_group_name
from metadata.groups.reconciliation.group import CLASSIC, CONSUMER, RECONCILING
from metadata.groups.reconciliation.model import MemberState
from metadata.model import check_topic_name
from metadata.page_token import checked_page_size, name_in, token_after
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import KeyLayout

# Largest number of records read for one page, if most are not in the requested states.
SCANNED_MAX: Final = 2_000
# Timeout of a coordinator that asks leaders, which may read from the bucket.
ANSWER_S: Final = 30.0
# Listed as the state of a group with an unreadable record; calls for the group receive the cause.
DAMAGED: Final = "Damaged"
_STATES: Final = {phase.value.lower(): phase.value for phase in GroupPhase} | {RECONCILING.lower(): RECONCILING}
_Request = TypeVar(
    "_Request",
    groups_pb2.DescribeGroupRequest,
    groups_pb2.DeleteGroupRequest,
    groups_pb2.DeleteOffsetsRequest,
    groups_pb2.SeekGroupRequest,
)
_Answer = TypeVar("_Answer", bound=Message)
log = logging.getLogger(__name__)


class GroupAdmin:
    """Lists groups from the metadata store, and routes the other operators' calls to the coordinator."""

    def __init__(
        self, store: MetadataStore, layout: KeyLayout, routes: GroupRouter, here: LocalGroupAdmin, readers: TopicReaders
    ) -> None:
        self._store = store
        self._layout = layout
        self._routes = routes
        # Carries out calls that another broker has forwarded.
        self.here = here
        # Finds the groups that read a topic.
        self.readers = readers

    async def list_groups(self, request: groups_pb2.ListGroupsRequest, *, search: str = "") -> groups_pb2.ListGroupsResponse:
        """Returns groups in the order of their keys, of the states that are named or of all, that the caller may see. A page may be
        short, or empty, before the last one, which has no token. With `search`, only groups whose name contains it, in upper or
        lower case. Raises InvalidArgument."""
        limit = checked_page_size(request.page_size)
        wanted = {_state(name) for name in request.states}
        answer = groups_pb2.ListGroupsResponse()
        after = self._layout.group(name_in(request.page_token, of="groups")) if request.page_token else ""
        scanned, last, sought = 0, "", search.lower()
        async for kept in stored_groups(self._store, self._layout, after_key=after, page_size=min(limit + 1, PAGE)):
            if len(answer.groups) == limit or scanned == SCANNED_MAX:
                answer.next_page_token = token_after(last)
                break
            try:
                last, scanned = self._layout.parse_group(kept.key), scanned + 1
            except Corrupt as error:
                log.error("%s", error)
                continue
            if sought not in last.lower() or not may_see_group(last):
                continue
            record = _read(kept)
            if not wanted or record.state in wanted:
                answer.groups.add(
                    group=last,
                    state=record.state,
                    type=CLASSIC if isinstance(record.consumer, msgspec.UnsetType) else CONSUMER,
                    protocol_type=record.protocol_type,
                    members=record.members_count,
                    coordinator=self._coordinator_of(last),
                )
        return answer

    async def describe(self, request: groups_pb2.DescribeGroupRequest) -> groups_pb2.GroupDescription:
        """Describes the group without the topics that the caller may not see. Raises UnknownGroup, InvalidGroupName."""
        found = await self._at_coordinator("DescribeGroup", request, groups_pb2.GroupDescription, self.here.describe)
        if is_guarded():
            hide_topics(found, may_see_topic)
        return found

    async def delete(self, request: groups_pb2.DeleteGroupRequest) -> groups_pb2.DeleteGroupResponse:
        """Deletes the group and its offsets. Raises UnknownGroup, GroupNotEmpty, InvalidGroupName; OutcomeUnknown where some may be
        gone: repeat it."""
        note_validate_only(request.validate_only)
        return await self._at_coordinator("DeleteGroup", request, groups_pb2.DeleteGroupResponse, self.here.delete)

    async def delete_offsets(self, request: groups_pb2.DeleteOffsetsRequest) -> groups_pb2.DeleteOffsetsResponse:
        """Deletes committed offsets, as LocalGroupAdmin.delete_offsets."""
        note_validate_only(request.validate_only)
        _check_topics(request.topics)
        return await self._at_coordinator("DeleteOffsets", request, groups_pb2.DeleteOffsetsResponse, self.here.delete_offsets)

    async def seek(self, request: groups_pb2.SeekGroupRequest) -> groups_pb2.SeekGroupResponse:
        """Moves committed offsets, as LocalGroupAdmin.seek; the answer names only topics that the caller may see."""
        note_validate_only(request.validate_only)
        seek_to(request)
        _check_topics(request.topics)
        answer = await self._at_coordinator("SeekGroup", request, groups_pb2.SeekGroupResponse, self.here.seek)
        if is_guarded():
            seen = [each for each in answer.moved if may_see_topic(each.topic)]
            answer = groups_pb2.SeekGroupResponse(moved=seen)
        return answer

    async def _at_coordinator(
        self, method: str, request: _Request, answer_type: type[_Answer], here: Callable[[_Request], Awaitable[_Answer]]
    ) -> _Answer:
        name = check_group_name(request.group)
        answer = await self._routes.forward(name, method, request, answer_type, ANSWER_S)
        return await here(request) if answer is None else answer

    def _coordinator_of(self, name: str) -> str:
        try:
            return self._routes.coordinator(name).broker_id
        except NoCoordinator:
            return ""


def _check_topics(topics: Iterable[groups_pb2.TopicPartitions]) -> None:
    for each in topics:
        if any(number < 0 for number in each.partitions):
            raise InvalidArgument("a partition is a number from 0 to 2147483647", field="partitions")
        if not each.topic_id.isascii():
            raise InvalidArgument("topic_id is not one of a topic", field="topic_id")
        check_topic_name(each.topic)


class _ListedConsumerMember(msgspec.Struct, frozen=True):
    epoch: int
    state: MemberState = MemberState.STABLE


class _ListedConsumer(msgspec.Struct, frozen=True):
    """Decodes the listed fields of what only groups of KIP-848 have."""

    epoch: int
    members: Sequence[_ListedConsumerMember] = ()


class _ListedRecord(msgspec.Struct, frozen=True):
    """Decodes the listed fields of a group's record (metadata/groups/record.py); members are counted, not read."""

    phase: str
    protocol_type: str = ""
    members: Sequence[msgspec.Raw] = ()
    consumer: _ListedConsumer | msgspec.UnsetType = msgspec.UNSET

    @property
    def state(self) -> str:
        if isinstance(self.consumer, msgspec.UnsetType) or self.phase != GroupPhase.STABLE.value:
            return self.phase
        epoch = self.consumer.epoch
        at_rest = all(each.epoch == epoch and each.state is MemberState.STABLE for each in self.consumer.members)
        return self.phase if at_rest else RECONCILING

    @property
    def members_count(self) -> int:
        return len(self.members if isinstance(self.consumer, msgspec.UnsetType) else self.consumer.members)


def _read(kept: KeyValue) -> _ListedRecord:
    try:
        return msgspec.json.decode(kept.value, type=_ListedRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.error("group record corrupt key=%s: %s; listed as damaged", kept.key, error)
        return _ListedRecord(DAMAGED)


def _state(name: str) -> str:
    if (state := _STATES.get(name.lower())) is None:
        raise InvalidArgument(f"{name[:60]!r} is no state of a group", hint=f"Use {', '.join(_STATES.values())}.", field="states")
    return state
