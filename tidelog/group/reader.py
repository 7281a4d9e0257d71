"""Reads what a member of a consumer group owns: where each partition begins, what is committed, and how partitions are given up.

    metadata/group_member/member.py ── assigned ──▶ committed offsets, else auto_offset_reset ──▶ consumer/fetcher.py ──▶ caller
    ─▶ processed
                    ── revoked ──▶ nothing more is handed out; the caller asks for more, so what it had is processed; commit
                    ── lost ─────▶ nothing more is handed out; nothing is committed

Invariant: once `revoked` or `lost` has returned, no record of these partitions is handed out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Final

from metadata.errors import Rejected, StaleMember, TidelogError, Unavailable, UnknownTopic
from metadata.group_member.member import GroupMember
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import NO_GENERATION
from tidelog.consumer.fetch_state import REFUSALS, named, shown
from tidelog.consumer.fetcher import Chunk, Fetcher
from tidelog.consumer.refusal_patience import RefusalPatience
from tidelog.consumer.route_watcher import made_again
from tidelog.consumer.subscription import Subscription, partition_counts
from tidelog.group.commits import OffsetCommitter
from tidelog.group.options import GroupOptions, PartitionsCallback
from tidelog.group.positions import GroupPositions, HandedOut
from tidelog.group.start_offsets import CoordinatorCalls, MemberStart, StartOffsets
from tidelog.settings import ClientSettings, ResetPolicy
from tidelog.tasks import first_completed
from tidelog.transport.connection import Connection
from tidelog.transport.routes import TopicRoute

# Longest pause between checks whether the caller goes on.
CALLER_CHECK_S_MAX: Final = 1.0
# Pause before a partition is read again that another member may own by the clock.
PAUSE_S: Final = 0.05
# Why a partition that the group has assigned could not be read.
NO_PARTITION: Final = "its topic has no such partition, or no broker has heard of it yet"

log = logging.getLogger("tidelog")


class CallbackFailed(Exception):
    """A callback of the caller's raised `__cause__`."""


class GroupReader:
    """Reads the partitions of one group member, from its join to its leave."""

    def __init__(
        self,
        connection: Connection,
        settings: ClientSettings,
        subscription: Subscription,
        calls: CoordinatorCalls,
        *,
        group: str,
        options: GroupOptions,
        follow: bool,
        reset: ResetPolicy,
    ) -> None:
        self.group = group
        self.subscription = subscription
        self.options = options
        self.positions = GroupPositions()
        self.fetching = Fetcher(connection, settings, self, what=f"{subscription} by group {group}", follow=follow, reset=reset)
        self._connection = connection
        self._settings = settings
        self._follow = follow
        self._starts = StartOffsets(connection, calls, group=group, follow=follow, reset=reset)
        self._member = GroupMember(calls, self, options.member, group=group)
        self.commits = OffsetCommitter(
            calls, self._member, self.positions, group=group, options=options, patience_s=settings.request_timeout_ms / 1000
        )
        # Of the questions for partition counts of all members.
        self._counting = RefusalPatience()
        # Of the topics that the subscription matches, as they were last seen.
        self._counts: dict[str, int] = {}
        # What is owned, each with a number that no other assignment of it has.
        self._assignment_ids: dict[TopicPartitionName, int] = {}
        self._last_assignment_id = 0
        # Look-ups of where partitions begin.
        self._begins_under_way = 0
        # Where the caller wants those to begin of which it is not known yet.
        self._sought: dict[TopicPartitionName, int] = {}
        # Of the same.
        self._paused: set[TopicPartitionName] = set()
        # The caller has asked for more.
        self._released = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tasks: asyncio.TaskGroup
        self._running: set[asyncio.Task[None]] = set()

    # ── its life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs until `stop()`, cancellation, or an error, which `take` raises."""
        async with self.fetching.running() as self._tasks:
            counts = await first_completed(self._first_counts(), self._stopped())
            if counts is not None:
                self._counts = counts
                self._starts.subscribed_first(counts)
                await self._take_part()
        if not self.options.member.instance_id:
            await self._member.leave()  # where it was ended by an error of another part

    async def _take_part(self) -> None:
        self._start(self._check_caller(), f"caller of a member of group {self.group}")
        if self.options.auto_commit:
            interval_s = self.options.auto_commit_interval_ms / 1000
            self._start(self.commits.now_and_then(interval_s), f"commits of group {self.group}")
        self._start(self._refresh_topics(), f"topics of group {self.group}")
        self._start(self._stop_member(), f"end of a member of group {self.group}")
        try:
            await self._member.run()
        except CallbackFailed as error:
            self.fetching.end_with(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        finally:
            for task in list(self._running):
                task.cancel()

    async def _stopped(self) -> None:
        await self._stopping.wait()

    def stop(self, *, hand_is_processed: bool) -> None:
        """Hands out nothing more, commits what was processed, leaves the group, and ends."""
        if hand_is_processed:
            self.positions.hand_is_processed()
        self.positions.let_go()
        self.fetching.drop(list(self._assignment_ids))
        self.fetching.end_with(Rejected(f"reading by group {self.group} was ended before its end", hint="Call consume again."))
        self._released.set()
        self._stopping.set()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            task = self._tasks.create_task(work, name=name)
        except RuntimeError:  # it ends
            work.close()
            return
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _stop_member(self) -> None:
        """Commits first, while the member still takes part: in the middle of a rebalance no commit counts."""
        await self._stopping.wait()
        if self.options.auto_commit:
            await self.commits.of_processed(waits=True)
        self._member.stop()

    # ── what is handed out ──────────────────────────────────────────────────────────────────────────────────────────────

    async def take(self) -> HandedOut | None:
        """Returns the next chunk, with at least one record; None at the end. The caller advances its `next_offset`.

        All records handed out before count as processed.
        """
        positions = self.positions
        positions.hand_is_processed()
        if positions.hand is not None and not self.owns(positions.hand.partition):
            self._read_again(positions.hand.partition)
        if positions.hand is None:
            self._released.set()
            chunk = await self._next_chunk()
            if chunk is None:
                return None
            positions.hand = HandedOut(*chunk)
        positions.hand.records = positions.hand.rest()
        return positions.hand

    async def _next_chunk(self) -> Chunk | None:
        self._member.polls()
        try:
            while (chunk := await self.fetching.chunk()) is not None and not self.owns(chunk.partition):
                self._read_again(chunk.partition)
                await asyncio.sleep(PAUSE_S)
            return chunk
        finally:
            self._member.polled()

    def _read_again(self, partition: TopicPartitionName) -> None:
        """Reads a partition again from its position: by the clock another member may own it, and the group has not confirmed that
        yet."""
        if partition in self.positions:
            self.positions.seek(partition, self.positions.next_offset(partition))
            if partition in self.fetching:
                self.fetching.read(partition, self.positions.next_offset(partition))
        else:
            self.positions.drop([partition])

    def owns(self, partition: TopicPartitionName) -> bool:
        """Returns whether its records may be handed out, also by the clock: the process may have been frozen."""
        return partition in self.positions and partition in self._member.owned

    def lag(self) -> dict[TopicPartitionName, int | None]:
        """Returns, by partition, the number of records not handed out, as of its leader's last answer; None before the first."""
        lag: dict[TopicPartitionName, int | None] = {}
        for partition, next_offset in self.positions.all().items():
            end = self.fetching.high_watermark(partition)
            lag[partition] = None if end is None else max(0, end - next_offset)
        return lag

    async def _check_caller(self) -> None:
        """Keeps the member active while the caller iterates over a chunk, and ends a bounded reading of a member without
        partitions."""
        loop, member = asyncio.get_running_loop(), self.options.member
        seen: tuple[int, int] | None = None
        owns_nothing_s: float | None = None
        while True:
            await asyncio.sleep(min(CALLER_CHECK_S_MAX, member.max_poll_interval_ms / 4000))
            hand = self.positions.hand
            if hand is not None and (id(hand), hand.next_offset) != seen:
                seen = id(hand), hand.next_offset
                self._member.polled()
            if self._assignment_ids or self._member.generation == NO_GENERATION:
                owns_nothing_s = None
            elif owns_nothing_s is None:
                owns_nothing_s = loop.time()
            elif not self._follow and loop.time() >= owns_nothing_s + 2 * member.beat_ms / 1000:
                self.fetching.end_when_read()

    # ── what the member tells (RebalanceListener) ─────────────────────────────────────────────────────────────────────────

    def subscribed(self) -> Mapping[str, int]:
        return self._counts

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        try:
            has_end = not self._follow  # a member that follows hears of added partitions later
            counts = await partition_counts(self._connection, topics, fresh=True, from_store=has_end, refuses_outdated=has_end)
        except REFUSALS as error:
            if self._counting.may_pass(error):
                raise Unavailable(error.message, hint=error.hint) from error
            raise
        self._counting.answered()
        return counts

    async def assigned(self, partitions: frozenset[TopicPartitionName]) -> None:
        ids = self._number_assignments(partitions)
        await self._call_back(self.options.on_assigned, partitions)
        self._start(self._begin(ids), f"beginning of partitions of group {self.group}")

    async def revoked(self, partitions: frozenset[TopicPartitionName]) -> None:
        self._stop_reading(partitions)
        while (hand := self.positions.hand) is not None and hand.partition in partitions:
            hand.records.clear()
            self._released.clear()
            await self._released.wait()
        if self.options.auto_commit:
            await self.commits.of_processed(partitions)
        await self._call_back(self.options.on_revoked, partitions)
        self.positions.drop(partitions)

    async def lost(self, partitions: frozenset[TopicPartitionName]) -> None:
        self._stop_reading(partitions)
        self.commits.lost(partitions)
        self.positions.drop(partitions)
        await self._call_back(self.options.on_lost, partitions)

    def _stop_reading(self, partitions: Collection[TopicPartitionName]) -> None:
        self.fetching.drop(partitions)
        for partition in partitions:
            self._assignment_ids.pop(partition, None)
            self._sought.pop(partition, None)
            self._paused.discard(partition)

    async def _call_back(self, callback: PartitionsCallback | None, partitions: Collection[TopicPartitionName]) -> None:
        if callback is None:
            return
        try:
            outcome = callback(sorted(partitions))
            if inspect.isawaitable(outcome):
                await outcome
        except Exception as error:
            raise CallbackFailed(f"a callback of group {self.group} failed") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            ended = Rejected(
                f"what a callback of group {self.group} waited for was cancelled", hint="Catch asyncio.CancelledError in it."
            )
            ended.__cause__ = error
            raise CallbackFailed(f"a callback of group {self.group} failed") from ended

    # ── where partitions begin ──────────────────────────────────────────────────────────────────────────────────────────

    def _number_assignments(self, partitions: Collection[TopicPartitionName]) -> dict[TopicPartitionName, int]:
        for partition in partitions:
            self._last_assignment_id += 1
            self._assignment_ids[partition] = self._last_assignment_id
        return {partition: self._assignment_ids[partition] for partition in partitions}

    async def _begin(self, ids: Mapping[TopicPartitionName, int]) -> None:
        """Looks up the start of each partition that is still owned, and retries until it is known.

        Waits for the commit in flight: an earlier one may still count if the member comes back in its generation. A partition that
        its topic lacks holds up no other: the topic was made again with fewer, or the partition is not known everywhere yet. A
        reading with an end ends such a partition with an error after `delivery_timeout_ms`.
        """
        self._begins_under_way += 1
        self.fetching.end_when_read(False)
        try:
            await self._begin_each(ids)
        finally:
            self._begins_under_way -= 1
        if not self._follow and not self._begins_under_way and self._assignment_ids:
            self.fetching.end_when_read()

    async def _begin_each(self, ids: Mapping[TopicPartitionName, int]) -> None:
        await self.commits.under_way()
        patience, clock = RefusalPatience(), asyncio.get_running_loop().time
        missing_since_s: float | None = None
        settled: set[TopicPartitionName] = set()
        while wanted := [
            partition
            for partition, assignment_id in ids.items()
            if partition not in settled and self._assignment_ids.get(partition) == assignment_id
        ]:
            try:
                # A broker that lags may not have heard of those that are missing.
                found = await self._starts.of(wanted, patience, from_store=missing_since_s is not None)
            except (Unavailable, *REFUSALS) as error:
                patience.check(error)
                if self._gives_up(missing_since_s):
                    self._end_missing(wanted, ids, error)
                    return
                log.info("start not known group=%s: %s; retrying", self.group, error)
                await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)
                continue
            starts = {partition: start for partition, start in found.items() if start is not None}
            for route in {start.route.name: start.route for start in starts.values()}.values():
                if self.fetching.follows(route.name) and self.fetching.route(route.name).topic_id != route.topic_id:
                    self.topic_gone(route.name, made_again(self.fetching.route(route.name), route))
            failed: dict[TopicPartitionName, TidelogError] = {}
            for partition, start in starts.items():
                if self._assignment_ids.get(partition) == ids[partition] and (wrong := self._read(partition, start)) is not None:
                    failed[partition] = named(wrong, partition)
            self.fetching.end(failed)
            self._unsubscribe({topic for topic, _ in wanted} - {topic for topic, _ in found})
            patience.answered()
            missing = found.keys() - starts.keys()
            settled.update(partition for partition in wanted if partition not in missing)
            if not missing:
                return
            if missing_since_s is None:
                missing_since_s = clock()
                continue
            if self._gives_up(missing_since_s):
                self._end_missing(missing, ids, Unavailable(NO_PARTITION, hint="Call consume again."))
                return
            log.info("partition not known yet group=%s partitions=%s", self.group, ", ".join(sorted(map(shown, missing))))
            await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)

    def _gives_up(self, missing_since_s: float | None) -> bool:
        """Returns whether a reading with an end waits no longer for partitions that are missing since then."""
        if self._follow or missing_since_s is None:
            return False
        return asyncio.get_running_loop().time() - missing_since_s >= self._settings.delivery_timeout_ms / 1000

    def _end_missing(
        self, missing: Collection[TopicPartitionName], ids: Mapping[TopicPartitionName, int], error: TidelogError
    ) -> None:
        """Ends those that are still owned."""
        owned = [partition for partition in missing if self._assignment_ids.get(partition) == ids[partition]]
        self.fetching.end({partition: named(error, partition) for partition in owned})

    def _read(self, partition: TopicPartitionName, start: MemberStart) -> TidelogError | None:
        self.fetching.follow(start.route)
        sought = self._sought.pop(partition, None)
        offset = start.offset if sought is None else sought
        if not isinstance(offset, TidelogError):
            self.positions.begin(partition, start.route.topic_id, offset, committed=start.committed)
        error = self.fetching.read(partition, 0 if isinstance(offset, TidelogError) else offset, until=start.until)
        if partition in self._paused:
            self._paused.discard(partition)
            self.fetching.pause(partition, 0 if isinstance(offset, TidelogError) else offset)
        return offset if isinstance(offset, TidelogError) else error

    # ── what the caller asks for ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def member_id(self) -> str:
        return self._member.member_id

    @property
    def generation(self) -> int:
        return self._member.generation

    def assignment(self) -> list[TopicPartitionName]:
        return sorted(self._assignment_ids)

    def paused(self) -> list[TopicPartitionName]:
        return sorted({*self._paused, *self.fetching.paused()})

    def seek(self, partition: TopicPartitionName, offset: int) -> None:
        """Raises StaleMember where it is not owned."""
        self._check_owned(partition)
        if partition not in self.fetching or self.fetching.lacks(partition):
            self._sought[partition] = offset
            return
        if partition not in self.positions:
            topic_id = self.fetching.route(partition[0]).topic_id
            self.positions.begin(partition, topic_id, offset, committed=None)
        self.positions.seek(partition, offset)
        self._released.set()
        if (error := self.fetching.read(partition, offset)) is not None:
            self.fetching.end({partition: error})

    def pause(self, partition: TopicPartitionName) -> None:
        self._check_owned(partition)
        if partition not in self.positions or partition not in self.fetching:
            self._paused.add(partition)
            return
        if (hand := self.positions.hand) is not None and hand.partition == partition:
            hand.records.clear()
        self.fetching.pause(partition, self.positions.next_offset(partition))

    def resume(self, partition: TopicPartitionName) -> None:
        self._check_owned(partition)
        self._paused.discard(partition)
        if partition in self.fetching:
            self.fetching.resume(partition)

    def _check_owned(self, partition: TopicPartitionName) -> None:
        if partition not in self._assignment_ids:
            raise StaleMember(
                f"{shown(partition)} is not this member's now", hint="assignment() and on_assigned name what it owns."
            )

    # ── which topics there are ──────────────────────────────────────────────────────────────────────────────────────────

    async def _first_counts(self) -> dict[str, int]:
        """Raises UnknownTopic where a topic that is named is not there."""
        while True:
            try:
                # A broker that lags may lack what was just added. Only a reader that follows finds that later.
                counts = await self.subscription.partition_counts(
                    self._connection, from_store=not self._follow, refuses_outdated=not self._follow
                )
            except Unavailable as error:
                log.info("topics not known group=%s: %s; retrying", self.group, error)
                await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)
                continue
            if missing := [name for name in self.subscription.names if name not in counts]:
                raise UnknownTopic(f"there is no topic {missing[0]}", topic=missing[0])
            return counts

    async def _refresh_topics(self) -> None:
        patience, pause_ms = RefusalPatience(), self._settings.topic_age_ms_max
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = self._settings.topic_age_ms_max
            try:
                counts = await self.subscription.partition_counts(self._connection)
            except (Unavailable, *REFUSALS) as error:
                patience.check(error)
                if isinstance(error, REFUSALS):
                    pause_ms = self._settings.retry_pause_ms_max
                log.info("topics not known group=%s: %s; retrying", self.group, error)
                continue
            patience.answered()
            if counts != self._counts:
                self._counts = counts
                self._member.subscription_changed()

    def topic_changed(self, route: TopicRoute) -> None:
        if route.partition_count > self._counts.get(route.name, route.partition_count):
            self._counts = {**self._counts, route.name: route.partition_count}
            self._member.subscription_changed()

    def position_reset(self, partition: TopicPartitionName, offset: int) -> None:
        self.positions.reset_position(partition, offset)

    def topic_gone(self, topic: str, error: UnknownTopic) -> None:
        """Drops the topic's offsets. The present owner reads a recreated topic from its start."""
        log.warning("topic gone group=%s: %s", self.group, error)
        partitions = [partition for partition in self._assignment_ids if partition[0] == topic]
        if "new_topic_id" in error.details:  # before the drop, which may leave nothing to read
            self.fetching.end_when_read(False)
        self.fetching.drop(partitions)
        self.positions.drop(partitions)
        self._released.set()
        if "new_topic_id" in error.details:
            self._start(self._begin(self._number_assignments(partitions)), f"beginning of {topic} in group {self.group}")
        else:
            self._unsubscribe({topic})

    def _unsubscribe(self, topics: Collection[str]) -> None:
        """Gives up topics that do not exist, so that their partitions are assigned, and begun, once they exist again."""
        if topics:
            self._counts = {name: count for name, count in self._counts.items() if name not in topics}
            self._member.subscription_changed()
