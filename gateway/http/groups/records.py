"""Serves GET /v1/groups/{g}/members/{m}/records: records of the member's partitions, from its positions on.

    assignment, from the coordinator ─▶ member_fetch.py: positions ─▶ probe, and wait, heartbeating ─▶ reserve memory ─▶ read
                                                                            └ a rebalance begins, and nothing was found: 409

The broker keeps nothing for a member: the client sends its cursor (cursor.py). With `commit=true` the offsets of the cursor are
committed first. Without it, reading changes nothing, and the same cursor reads the same records again.
Invariants: only partitions of the member's assignment in the group's present generation are read. Along a chain of cursors, records
of a partition come in order, each once. A member that waits here keeps its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from gateway.api import BrokerApi
from gateway.concurrency.coordinator_retry import retry_coordinator
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.http import paced_response
from gateway.http.groups import member_leader
from gateway.http.groups.cursor import Cursor, CursorOwner, decode_cursor, encode_cursor
from gateway.http.groups.member_fetch import MemberFetch
from gateway.http.groups.offsets import HttpGroupOffsets
from gateway.http.groups.request import INT32_MAX, GroupRequest, MemberIdentity, check_generation
from gateway.http.records.fetch import limits_of
from gateway.http.records.produce import JSON
from gateway.http.records.stream import Limits
from gateway.http.request import TRUE_OR_FALSE, Headers, Query, run_watched
from gateway.records.batch_decoder import room_for
from gateway.records.response_budget import Reservation, ResponseBudget
from gateway.topics.names import has_caught_up_with, why_not_heard_of
from metadata.errors import InvalidArgument, RebalanceInProgress, Stopping, TidelogError, Unavailable
from metadata.group_member.leader_assignment import has_grown
from metadata.group_member.start_offsets import StartPolicy
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import Generation, InstanceId, SyncRequest

# Interval of heartbeats while a member waits: half of the shortest session that brokers allow by default.
HEARTBEAT_S: Final = 3.0
# A member that waited longer for records checks its generation again before it reads them.
WAITED_S: Final = 0.1
_POLICIES: Final = {"earliest": StartPolicy.EARLIEST, "latest": StartPolicy.LATEST}
_QUERY: Final = (
    "generation",
    "instance_id",
    "cursor",
    "commit",
    "auto_offset_reset",
    "max_records",
    "max_bytes",
    "wait_ms",
    "key_format",
    "value_format",
    "client_rack",
)


class _ReadRequest(NamedTuple):
    member: MemberIdentity
    cursor: Cursor
    commit: bool
    policy: StartPolicy
    limits: Limits


class HttpGroupRecords:
    """Reads records for members of groups."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits, budget: ResponseBudget, offsets: HttpGroupOffsets) -> None:
        self._broker = broker
        self._waits = waits
        self._budget = budget
        self._offsets = offsets

    async def read(self, call: GroupRequest) -> None:
        call.refuse_body()
        options = self._parse(call, call.query(*_QUERY))
        call.request.accepted((JSON,))
        with self._budget.reserve() as reservation:
            with call.with_hints():
                body = await call.request.run_while_connected(self._answer(options, reservation))
            headers: Headers = [(b"content-type", JSON.encode()), (b"cache-control", b"no-store")]
            await paced_response.send_paced(call.request, body, headers, pause_s=self._broker.settings.answer_timeout_ms / 1000)

    def _parse(self, call: GroupRequest, query: Query) -> _ReadRequest:
        generation = query.integer("generation", least=0, most=INT32_MAX)
        if generation is None:
            raise InvalidArgument(
                "the generation is missing",
                hint=f"Add generation=, with the value that POST {call.path}/members returned.",
            )
        member = MemberIdentity(call.group, call.member_id, InstanceId(query.text("instance_id")), Generation(generation))
        cursor = Cursor(member.generation, {})
        if query.text("cursor"):
            cursor = decode_cursor(query.text("cursor"), self._owner(member))
            check_generation(cursor, member)
        return _ReadRequest(
            member,
            cursor,
            query.choice("commit", TRUE_OR_FALSE) or False,
            query.choice("auto_offset_reset", _POLICIES) or StartPolicy.EARLIEST,
            limits_of(query, self._broker.settings),
        )

    def _owner(self, member: MemberIdentity) -> CursorOwner:
        return CursorOwner(self._broker.cluster_id, member.group, member.member_id)

    async def _answer(self, options: _ReadRequest, reservation: Reservation) -> bytes:
        member, cursor = options.member, options.cursor
        if options.commit and cursor.uncommitted:
            cursor, _ = await self._offsets.commit_cursor(member, cursor)
        reading = await self._reading(options, cursor, await self._assigned(member))
        pieces: list[bytes] = []
        if await run_watched(self._wait_for_records(reading, options, reservation), self._heartbeat(member)):
            pieces = await reading.read(options.limits, reservation, self._budget)
        body = reading.page(pieces, encode_cursor(reading.positions.cursor(), self._owner(member)))
        if reservation.bytes_held:
            reservation.keep(len(body))
        if reading.record_count:
            self._broker.metrics.traffic.http.fetched(records=reading.record_count, answer_bytes=len(body))
        return body

    async def _reading(self, options: _ReadRequest, cursor: Cursor, assigned: Sequence[TopicPartitionName]) -> MemberFetch:
        """Begins a read of the assigned partitions, once this broker's view has the topics of the cursor and of the assignment.

        A topic of the cursor that is unknown here may be newer than the view, even if the view has a topic of that name: it was
        deleted and made again. Only a view that has caught up proves that the topic is gone.
        """
        is_caught_up = await has_caught_up_with(self._broker, cursor.entries)
        unknown_here = await why_not_heard_of(self._broker, assigned)  # a member at another broker may have assigned them
        return MemberFetch(
            self._broker,
            assigned,
            cursor,
            group=options.member.group,
            policy=options.policy,
            client_rack=options.limits.client_rack,
            unknown_here=unknown_here,
            lags=not is_caught_up,
        )

    async def _assigned(self, member: MemberIdentity) -> list[TopicPartitionName]:
        """Returns the assignment of the member.

        Raises RebalanceInProgress also if this member is the leader and topics have more partitions than it assigned.
        """
        request = SyncRequest(member.member_id, member.instance_id, member.generation, {})
        synced = await retry_coordinator(lambda: self._broker.groups.sync(member.group, request))
        assigned = member_leader.assigned(synced.assignment)
        if has_grown(assigned.seen, {topic: self._partition_count(topic) for topic in assigned.seen}):
            raise RebalanceInProgress("the topics of the group have new partitions, which are not assigned yet")
        return assigned.partitions

    def _partition_count(self, topic: str) -> int:
        try:
            return self._broker.topic_cache.get(topic).partition_count
        except TidelogError:
            return 0

    async def _wait_for_records(self, reading: MemberFetch, options: _ReadRequest, reservation: Reservation) -> bool:
        """Waits for records and reserves memory for them; returns False without any. A stop of the broker ends the wait."""
        clock = asyncio.get_running_loop().time
        ends_s = clock() + (options.limits.wait_ms or 0) / 1000
        try:
            async with self._waits.until_stop():
                began_s = clock()
                if not await reading.probe(
                    ends_s, lambda: retry_coordinator(lambda: self._broker.groups.offsets(options.member.group))
                ):
                    return False
        except Stopping:
            return False
        if clock() - began_s > WAITED_S:
            with suppress(Unavailable, RebalanceInProgress):
                await self._broker.groups.heartbeat(*options.member)
        await reservation.ask(room_for(options.limits.bytes_max), timeout_s=ends_s - clock())
        return True

    async def _heartbeat(self, member: MemberIdentity) -> None:
        """Sends heartbeats until cancelled. Raises the error of a refused one."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with suppress(Unavailable):  # the next heartbeat may find a coordinator
                await self._broker.groups.heartbeat(*member)
