"""Reads all that a member of a group is assigned, many partitions of several topics, for one answer.

    probe   in rotation, PROBED_MAX partitions at a time, until one has records: finds a position for each (the cursor's, the
            committed one, else by the start policy) and its errors; if no partition has records, waits for some
    read    in rotation, as much as fits the reserved memory

A member of thousands of partitions gets positions only for those that are probed. A partition with an error delays no other, and
the answer lists the error beside the records. A partition whose position is gone from the log, or whose log was cut below the
committed offset, gets a new position, and the answer lists this reset. Invariant: a request that waits for records holds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gateway.access.authorization import check_topic
from gateway.api import BrokerApi
from gateway.groups.admin.lag import LATER_PART_S
from gateway.groups.start_offsets import find_starts
from gateway.http.groups.cursor import Cursor
from gateway.http.groups.member_positions import MemberPositions
from gateway.http.problem_details import error_members
from gateway.http.records import encoding
from gateway.http.records.stream import Limits
from gateway.records.batch_decoder import RECORDS_MAX, decode_records
from gateway.records.response_budget import Reservation, ResponseBudget
from gateway.routing.cluster_fetch import may_succeed_elsewhere
from gateway.topics.names import BOUNDS_WAIT_S, named, partition_of
from metadata.errors import Corrupt, Denied, InvalidArgument, OutOfRange, TidelogError
from metadata.group_member.start_offsets import StartPolicy, StartRules
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.offsets import StoredOffsets
from metadata.model import TopicPartition
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult

# Partitions that are probed in one step: ten times as many would block the event loop for a quarter of a second. It exceeds the
# entries of a cursor, so that a cursor with all partitions needs one step.
PROBED_MAX: Final = 1_000
# Pause between probes while partitions have no leader.
LEADERLESS_PAUSE_S: Final = 0.02
# The longest probe while partitions have no position yet, so that they are tried again.
UNPOSITIONED_PROBE_S: Final = 0.5


class Reset(NamedTuple):
    """Holds the offsets before and after a change of position that the client did not ask for."""

    before: int
    after: int


class MemberFetch:
    """Reads the partitions of one member once."""

    def __init__(
        self,
        broker: BrokerApi,
        assigned: Sequence[TopicPartitionName],
        cursor: Cursor,
        *,
        group: str,
        policy: StartPolicy,
        client_rack: str = "",
        unknown_here: Mapping[str, TidelogError] | None = None,
        lags: bool = False,
    ) -> None:
        """`policy` applies to partitions without a committed offset, and to those whose position is gone from the log.

        `unknown_here` holds, by topic, the errors of partitions that this broker does not know. `lags`: topics of the cursor that
        are unknown here may exist. Raises InvalidArgument for a cursor with partitions that are not assigned.
        """
        self._broker = broker
        self._rules = StartRules(group, policy)
        self._stored: StoredOffsets | None = None
        self._client_rack = client_rack
        self._lags = lags
        self._topics: dict[TopicPartition, Topic] = {}
        self._unknown: dict[TopicPartitionName, TidelogError] = {}
        known: dict[str, Topic | TidelogError] = {}
        for topic_name, number in assigned:
            if (topic := known.get(topic_name)) is None:
                topic = known[topic_name] = _topic(broker, topic_name)
            try:
                if isinstance(topic, TidelogError):
                    self._unknown[topic_name, number] = (unknown_here or {}).get(topic_name, topic)
                else:
                    self._topics[partition_of(topic, number)] = topic
            except TidelogError as error:
                self._unknown[topic_name, number] = (unknown_here or {}).get(topic_name, error.with_traceback(None))
        unheard = {at: entry for at, entry in cursor.entries.items() if at not in self._topics and self._may_become_known(at)}
        self.positions = MemberPositions(list(self._topics), cursor, unknown_here=unheard)
        self._failed: dict[TopicPartition, TidelogError] = {}
        # Errors of partitions that may be readable soon.
        self._leaderless: dict[TopicPartition, TidelogError] = {}
        # Partitions that begin below the committed offset, because their log was cut.
        self._cuts: dict[TopicPartition, Reset] = {}
        # At most one of each partition: a second one in the same read is an error.
        self._resets: dict[TopicPartition, Reset] = {}
        # The targets to read, the first of which has records.
        self._found: Sequence[FetchTarget] = ()
        self.record_count = 0
        self._has_probed = False

    def _may_become_known(self, partition: TopicPartition) -> bool:
        """Returns whether the partition may be an assigned one that this broker does not know yet, or that may not be read yet.

        A cursor has topic ids alone, so an unknown id may be that of any assigned topic that is unknown here.
        """
        try:
            name = self._broker.topic_cache.by_id(partition.topic_id).name
        except TidelogError:
            return self._lags or any(error.retryable for error in self._unknown.values())
        error = self._unknown.get((name, partition.partition))
        # The right may be one that this broker has not heard of yet, or be granted again. An entry gives no access.
        return error is not None and (error.retryable or isinstance(error, Denied))

    async def _begin(
        self, partitions: Sequence[TopicPartition], stored: StoredOffsets | None, *, wait_s: float = BOUNDS_WAIT_S
    ) -> None:
        """Sets first positions: the committed ones (`stored`), else by the policy. Waits for leaders up to `wait_s`."""
        names = {partition: f"{self._topics[partition].name}/{partition.partition}" for partition in partitions}
        found = await find_starts(self._broker.cluster_log, self._rules, names, stored, wait_s=wait_s)
        for partition, start in found.items():
            if isinstance(start, TidelogError):
                self._refused(partition, start)
                continue
            self._leaderless.pop(partition, None)
            self.positions.begin(partition, start.offset, at_the_end=start.is_end)
            if start.moved and stored is not None:
                self._cuts[partition] = Reset(stored.committed[partition].offset, start.offset)

    def _refused(self, partition: TopicPartition, error: TidelogError) -> None:
        refused = self._leaderless if may_succeed_elsewhere(error) else self._failed
        refused[partition] = named(error.with_traceback(None), self._topics[partition])

    # ── probe ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def probe(self, ends_s: float, committed: Callable[[], Awaitable[StoredOffsets]]) -> bool:
        """Returns whether there are records, at `ends_s` on the loop's clock at the latest; probes every partition at least once.

        Calls `committed` only if the cursor lacks positions. Raises the error of a partition if none can be read.
        """
        clock = asyncio.get_running_loop().time
        if await self._probe_all(committed):
            return True
        while (left_s := ends_s - clock()) > 0:
            without_entry = [partition for partition in self.positions.without_entry if partition in self._leaderless]
            if without_entry:
                await self._begin(without_entry, self._stored, wait_s=min(BOUNDS_WAIT_S, max(LATER_PART_S, left_s)))
                left_s = min(left_s, UNPOSITIONED_PROBE_S)
            targets = self._targets(self.positions.in_rotation)
            if targets:
                if await self._probe_targets(targets, wait_ms=1000 * left_s):
                    return True
                if self._leaderless:
                    await asyncio.sleep(LEADERLESS_PAUSE_S)
            else:
                await asyncio.sleep(LEADERLESS_PAUSE_S if self._leaderless else left_s)
        refused = [*self._failed.values(), *self._leaderless.values(), *self._unknown.values()]
        if refused and not self._has_probed:
            raise refused[0]
        return False

    async def _probe_all(self, committed: Callable[[], Awaitable[StoredOffsets]]) -> bool:
        """Probes all partitions in steps of PROBED_MAX, until one has records. All steps share one wait for missing leaders."""
        clock, in_rotation = asyncio.get_running_loop().time, self.positions.in_rotation
        if not all(map(self.positions.has_entry, in_rotation)):
            self._stored = await committed()
        leaders_by_s = clock() + BOUNDS_WAIT_S
        for start in range(0, len(in_rotation), PROBED_MAX):
            part = in_rotation[start : start + PROBED_MAX]
            without_entry = [at for at in part if not self.positions.has_entry(at) and at not in self._failed]
            await self._begin(without_entry, self._stored, wait_s=max(LATER_PART_S, leaders_by_s - clock()))
            targets = self._targets(part)
            if targets and await self._probe_targets(targets, wait_ms=0):
                return True
            await asyncio.sleep(0)
        return False

    def _targets(self, partitions: Sequence[TopicPartition]) -> list[FetchTarget]:
        locations_bytes_min = self._broker.cluster_log.locations_bytes_min(self._client_rack)
        return [
            FetchTarget(partition, offset, 1, locations_bytes_min=locations_bytes_min)
            for partition, offset in self.positions.targets(partitions)
            if partition not in self._failed
        ]

    async def _probe_targets(self, targets: Sequence[FetchTarget], *, wait_ms: float) -> bool:
        """Returns whether one of the targets has records; `_found` then begins with it."""
        answers = await self._broker.cluster_log.fetch(targets, bytes_max=1, wait_ms_max=wait_ms)
        gone: list[TopicPartition] = []
        first: int | None = None
        for at, (target, answer) in enumerate(zip(targets, answers, strict=True)):
            if isinstance(answer, FetchResult):
                self._has_probed = True
                self._leaderless.pop(target.partition, None)
                if answer.size_bytes and first is None:
                    first = at
            elif isinstance(answer, OutOfRange) and target.partition not in self._resets:
                gone.append(target.partition)
            else:
                self._refused(target.partition, answer)
        if first is not None:
            self._found = targets[first : first + PROBED_MAX]
            return True
        return bool(gone) and await self._reset(gone)

    async def _reset(self, gone: Sequence[TopicPartition]) -> bool:
        """Sets new positions for partitions whose positions are not in the log. Returns whether there are records then."""
        before = {partition: self.positions.drop(partition) for partition in gone}
        await self._begin(gone, None)
        begun = self._targets(gone)
        self._resets.update((target.partition, Reset(before[target.partition], target.offset)) for target in begun)
        return bool(begun) and await self._probe_targets(begun, wait_ms=0)

    # ── read ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, limits: Limits, reservation: Reservation, budget: ResponseBudget) -> list[bytes]:
        """Returns encoded records that fit the reservation, in pieces, and advances the positions."""
        bytes_max = min(limits.bytes_max, reservation.bytes_held)
        targets = [target._replace(bytes_max=bytes_max) for target in self._found]
        answers = await self._broker.cluster_log.fetch(targets, bytes_max=bytes_max)
        found = {
            target: answer
            for target, answer in zip(targets, answers, strict=True)
            if isinstance(answer, FetchResult) and answer.size_bytes
        }
        decompressed_bytes_max = self._broker.cluster_log.settings.decompressed_bytes_max
        return await budget.opened(
            list(found.values()), lambda: self._encode(found, limits, reservation.bytes_held, decompressed_bytes_max)
        )

    def _encode(
        self, found: Mapping[FetchTarget, FetchResult], limits: Limits, bytes_left: int, decompressed_bytes_max: int
    ) -> list[bytes]:
        """Encodes the records. May run in a thread: only this read uses the positions."""
        pieces: list[bytes] = []
        records_left = limits.records_max or RECORDS_MAX
        for target, answer in found.items():
            if records_left <= 0 or bytes_left <= 0:
                break
            if not self.positions.may_move(target.partition):
                continue
            try:
                opened = decode_records(
                    answer,
                    target.offset,
                    self._encoder(target.partition, limits),
                    records_max=records_left,
                    bytes_max=bytes_left,
                    decompressed_bytes_max=decompressed_bytes_max,
                )
            except Corrupt as error:
                self._refused(target.partition, error)
                continue
            pieces += opened.pieces
            records_left -= opened.record_count
            self.record_count += opened.record_count
            bytes_left -= opened.size_bytes
            self.positions.advance(target.partition, opened.next_offset)
        return pieces

    def _encoder(self, partition: TopicPartition, limits: Limits) -> Callable[[list[Any]], bytes]:
        topic = self._topics[partition].name

        def encode(records: list[Any]) -> bytes:
            try:
                return encoding.as_objects_of_topics(records, topic, partition.partition, limits.formats)
            except InvalidArgument as error:
                error.message = f"partition {partition.partition} of topic {topic}, {error.message}"
                raise

        return encode

    # ── answer ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def page(self, pieces: Sequence[bytes], cursor: str) -> bytes:
        """Returns the body of the answer; `commit_needed`, `resets` and `errors` stand in it only if there are any."""
        beside: dict[str, Any] = {}
        if self.positions.is_full:
            beside["commit_needed"] = True
        if resets := self._cuts | self._resets:
            beside["resets"] = [self._named(partition) | reset._asdict() for partition, reset in resets.items()]
        errors = [
            {"topic": topic, "partition": partition, "error": error_members(error)}
            for (topic, partition), error in self._unknown.items()
        ]
        for refused in (self._failed, self._leaderless):
            errors += [self._named(partition) | {"error": error_members(error)} for partition, error in refused.items()]
        if errors:
            beside["errors"] = errors
        more = msgspec.json.encode({"cursor": cursor, **beside})[1:]
        return b'{"records":[%b],%b' % (b",".join(pieces), more)

    def _named(self, partition: TopicPartition) -> dict[str, Any]:
        return {"topic": self._topics[partition].name, "partition": partition.partition}


def _topic(broker: BrokerApi, name: str) -> Topic | TidelogError:
    try:
        check_topic(name)  # the group's leader may have assigned a topic that this member may not read
        return broker.topic_cache.get(name)
    except TidelogError as error:
        return error.with_traceback(None)
