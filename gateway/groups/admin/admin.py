"""What operators ask of the consumer groups of the whole cluster: any broker lists them, and asks the coordinator for the rest.

list_groups                                   from the metadata store, by pages, as the groups were stored last
describe · delete · delete_offsets · seek     here ─▶ local_admin.py      elsewhere ─▶ one hop (RoutedGroups.forward)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
from google.protobuf.message import Message

from gateway.access.authorization import is_guarded, may_see_group, may_see_topic, note_validate_only
from gateway.concurrency.offload import in_turns
from gateway.groups.admin import messages as wire
from gateway.groups.admin.descriptions import (
    FetchedOffset,
    GroupDescription,
    GroupPage,
    ListedGroup,
    MovedOffset,
    SeekTo,
    TopicPartitions,
    seen_by,
)
from gateway.groups.admin.local_admin import CoordinatedOperations
from gateway.groups.scan import PAGE, stored_groups
from gateway.proto import groups_pb2
from metadata.cluster.broker_registry import Registration
from metadata.errors import Corrupt, InvalidArgument, NoCoordinator
from metadata.groups.model import Phase
from metadata.page_token import checked_page_size, name_in, token_after
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import EtcdLayout

SCANNED_MAX: Final = 2_000
"""Records that are read for one page, where most of them are not of the states that were asked for."""
ANSWER_S: Final = 30.0
"""For a coordinator that asks leaders, which may look on the bucket."""
DAMAGED: Final = "Damaged"
"""Listed as the state of a group whose record can't be read; whoever calls for it is told why."""
_STATES: Final = {phase.value.lower(): phase.value for phase in Phase}
_Answer = TypeVar("_Answer", bound=Message)
log = logging.getLogger(__name__)


class GroupRoutes(Protocol):
    """What groups/router.py's RoutedGroups offers."""

    def coordinator(self, name: str) -> Registration: ...

    async def forward(
        self, name: str, method: str, request: Message, answer_type: type[_Answer], timeout_s: float
    ) -> _Answer | None: ...


class GroupOperations:
    def __init__(self, store: MetadataStore, layout: EtcdLayout, routes: GroupRoutes, here: CoordinatedOperations) -> None:
        self._store = store
        self._layout = layout
        self._routes = routes
        self.here = here
        """For what another broker has forwarded."""

    async def list_groups(self, *, page_size: int = 0, page_token: str = "", states: Collection[str] = ()) -> GroupPage:
        """Groups in the order of their keys, of these states or of all, that the caller may see. InvalidArgument."""
        limit = checked_page_size(page_size)
        wanted = {_state(name) for name in states}
        found: list[ListedGroup] = []
        after = self._layout.group(name_in(page_token, of="groups")) if page_token else ""
        scanned, last = 0, ""
        async for kept in stored_groups(self._store, self._layout, after_key=after, page_size=min(limit + 1, PAGE)):
            if len(found) == limit or scanned == SCANNED_MAX:
                return GroupPage(tuple(found), token_after(last))
            try:
                last, scanned = self._layout.parse_group(kept.key), scanned + 1
            except Corrupt as error:
                log.error("%s", error)
                continue
            if not may_see_group(last):
                continue
            record = _read(kept)
            if not wanted or record.phase in wanted:
                found.append(ListedGroup(last, record.phase, record.protocol_type, len(record.members), self._coordinator_of(last)))
        return GroupPage(tuple(found), "")

    async def describe(self, name: str) -> GroupDescription:
        """As far as the caller may see its topics. Raises UnknownGroup."""
        request = wire.describe_request(name)
        answer = await self._routes.forward(name, "DescribeGroup", request, groups_pb2.GroupDescription, ANSWER_S)
        if answer is None:
            found = await self.here.describe(name)
        else:
            found = wire.description(answer, await in_turns(wire.lag, answer.lags))
        return seen_by(found, may_see_topic) if is_guarded() else found

    async def delete(self, name: str, *, validate_only: bool = False) -> None:
        """The group and its offsets. Raises UnknownGroup, GroupNotEmpty; OutcomeUnknown where some may be gone: repeat it."""
        note_validate_only(validate_only)
        request = wire.delete_request(name, validate_only=validate_only)
        answer = await self._routes.forward(name, "DeleteGroup", request, groups_pb2.DeleteGroupResponse, ANSWER_S)
        if answer is None:
            await self.here.delete(name, validate_only=validate_only)

    async def delete_offsets(
        self, name: str, topics: Sequence[TopicPartitions], *, validate_only: bool = False
    ) -> list[FetchedOffset]:
        """As CoordinatedOperations.delete_offsets."""
        note_validate_only(validate_only)
        request = wire.delete_offsets_request(name, topics, validate_only=validate_only)
        answer = await self._routes.forward(name, "DeleteOffsets", request, groups_pb2.DeleteOffsetsResponse, ANSWER_S)
        if answer is None:
            return await self.here.delete_offsets(name, topics, validate_only=validate_only)
        return [wire.fetched(offset) for offset in answer.deleted]

    async def seek(
        self, name: str, topics: Sequence[TopicPartitions], to: SeekTo, *, validate_only: bool = False
    ) -> list[MovedOffset]:
        """As CoordinatedOperations.seek; told of the topics that the caller may see."""
        note_validate_only(validate_only)
        request = wire.seek_request(name, topics, to, validate_only=validate_only)
        answer = await self._routes.forward(name, "SeekGroup", request, groups_pb2.SeekGroupResponse, ANSWER_S)
        if answer is None:
            moved = await self.here.seek(name, topics, to, validate_only=validate_only)
        else:
            moved = await in_turns(wire.moved, answer.moved)
        return [each for each in moved if may_see_topic(each.topic)]

    def _coordinator_of(self, name: str) -> str:
        try:
            return self._routes.coordinator(name).broker_id
        except NoCoordinator:
            return ""


class _ListedRecord(msgspec.Struct, frozen=True):
    """What a list tells of a metadata/groups/record.py's record: members are counted, not read."""

    phase: str
    protocol_type: str = ""
    members: Sequence[msgspec.Raw] = ()


def _read(kept: KeyValue) -> _ListedRecord:
    try:
        return msgspec.json.decode(kept.value, type=_ListedRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.error("%s holds no consumer group: %s", kept.key, error)
        return _ListedRecord(DAMAGED)


def _state(name: str) -> str:
    if (state := _STATES.get(name.lower())) is None:
        raise InvalidArgument(f"{name[:60]!r} is no state of a group", hint=f"Use {', '.join(_STATES.values())}.", field="states")
    return state
