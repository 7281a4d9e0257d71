"""Fetches partitions from their leaders, ahead of the reader, within a bound of bytes.

    orders/0, orders/3, payments/1 ──▶ leader A ══Fetch, a long poll══▶ ┐
    orders/1, orders/2             ──▶ leader B ══Fetch══════════════▶  ┴▶ batches in the order of each partition's offsets
    who leads, new partitions, the topics' ids ◀── route_watcher.py     which broker in place of a leader ◀── preferred_replicas.py

Which partitions, and from where, its owner says, at any moment: a long poll that is under way without a partition that was just
added is broken off. What was fetched ahead of a partition that is dropped, paused or read from elsewhere is thrown away at once.

A leader that hangs keeps its connections. Once a long poll has outlived its time by SILENCE_S, another broker is asked who leads;
if that is another broker by now, the poll is given up.

Invariants: a partition's next fetch begins where the last answer that arrived whole has ended, so nothing is fetched twice and
nothing is left out, whatever breaks in between. All that is handed out of a topic is of one topic id: each fetch names it, and
brokers answer nothing of another. Each names the newest known leader epoch, so that no stale leader answers it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, Protocol

from gateway.proto import log_pb2
from metadata.errors import (
    Corrupt,
    FencedLeaderEpoch,
    InvalidRecord,
    NotAuthorized,
    NotLeader,
    OutOfRange,
    Rejected,
    Throttled,
    TidelogError,
    Unavailable,
    UnknownTopic,
)
from metadata.groups.assignors import TopicPartitionName
from segments.records.batch import parse_header
from tidelog.consumer.decoding import decode
from tidelog.consumer.fetch_call import PartitionRequest, errors_in, fetch, offset_behind, partition_of
from tidelog.consumer.fetch_state import NAMED_MAX, REFUSALS, FetchState, Patience, shown
from tidelog.consumer.preferred_replicas import FetchSource, PreferredReplicas
from tidelog.consumer.prefetch_buffer import FetchedBatches, PrefetchBuffer
from tidelog.consumer.route_watcher import RouteWatcher, TopicWatcher
from tidelog.records import Record
from tidelog.settings import ClientSettings, ResetPolicy
from tidelog.tasks import first_completed, first_error
from tidelog.transport.connection import Connection
from tidelog.transport.descriptions import OffsetRange
from tidelog.transport.routes import DEFAULT_LIMITS, TopicRoute

# How much later than its long poll a broker may begin to answer, before another is asked whether it still leads.
SILENCE_S: Final = 1.0
# The same of a broker of the reader's rack, before the leader is asked: after 10 s of reading from the bucket it asks the leader
# itself.
PREFERRED_SILENCE_S: Final = 12.0

log = logging.getLogger("tidelog")


class Chunk(NamedTuple):
    """Records of one partition, at least one, in the order of their offsets."""

    partition: TopicPartitionName
    records: list[Record]
    # Of their batch.
    leader_epoch: int


class ReadWatcher(TopicWatcher, Protocol):
    """Follows what becomes of the topics and partitions that are read. No call waits."""

    def position_reset(self, partition: TopicPartitionName, offset: int) -> None:
        """Reports that a partition is read from this offset on, since the one before is not in its log."""


class Fetcher:
    """Fetches partitions in the background and hands out their batches in order of arrival."""

    def __init__(
        self,
        connection: Connection,
        settings: ClientSettings,
        watcher: ReadWatcher,
        *,
        what: str,
        follow: bool,
        reset: ResetPolicy,
    ) -> None:
        """`what` names what is read, for messages. `watcher` receives changes of the topics, and decides what to do."""
        self._connection = connection
        self._settings = settings
        self._watcher = watcher
        self._what = what
        self._follow = follow
        patience = Patience(
            pause_s=settings.retry_pause_ms / 1000,
            pause_s_max=settings.retry_pause_ms_max / 1000,
            patience_s=settings.delivery_timeout_ms / 1000,
        )
        self._progress = FetchState(follow=follow, reset=reset, patience=patience)
        self._ahead = PrefetchBuffer(settings.read_ahead_bytes_max)
        self._routes = RouteWatcher(connection, settings, self)
        self._replicas = PreferredReplicas(settings.client_rack, age_s=settings.topic_age_ms_max / 1000)
        self._sources_count = 1
        self._ends_when_read = False
        # A place has got partitions, or has none left to fetch.
        self._changed = asyncio.Event()
        # Nothing is left.
        self._read = asyncio.Event()
        # By place: its partitions are others than those of its fetch that is under way.
        self._altered: dict[FetchSource, asyncio.Event] = {}

    # ── what is read ──

    def __contains__(self, partition: TopicPartitionName) -> bool:
        return partition in self._progress

    def follow(self, route: TopicRoute) -> None:
        """Follows the topic's route. The caller does so before it reads partitions of it."""
        self._routes.follow(route)

    def follows(self, topic: str) -> bool:
        return topic in self._routes

    def route(self, topic: str) -> TopicRoute:
        return self._routes[topic]

    def read(
        self,
        partition: TopicPartitionName,
        next_offset: int,
        *,
        until: OffsetRange | None = None,
        was_added: bool = False,
    ) -> TidelogError | None:
        """Reads a partition from this offset on, or moves one that is read already. `until`: the ends, unless it follows.

        An offset that is not in the log falls back to the reader's choice. Returns the error if there is none.
        """
        self._ahead.drop(partition)
        self._progress.begin(partition, next_offset, was_added=was_added)
        self._alter([partition])
        gone = None if until is None else self._progress.end_at(partition, until)
        return None if gone is None else self._reset_position(partition, gone).get(partition)

    def drop(self, partitions: Collection[TopicPartitionName]) -> None:
        """Stops reading the partitions: nothing of them is handed out once this has returned."""
        held = [partition for partition in partitions if partition in self._progress]
        self._alter(held)
        for partition in held:
            self._ahead.drop(partition)
            self._progress.drop(partition)
            self._replicas.forget(partition)
        for topic in {topic for topic, _ in held}:
            if not self._progress.of_topic(topic):
                self._routes.forget(topic)
        self._changed.set()

    def pause(self, partition: TopicPartitionName, next_offset: int) -> None:
        """Pauses a partition; it resumes at this offset."""
        self.read(partition, next_offset)
        self._progress.pause(partition)

    def resume(self, partition: TopicPartitionName) -> None:
        self._progress.resume(partition)
        self._alter([partition])

    def paused(self) -> list[TopicPartitionName]:
        return self._progress.paused()

    def of_topic(self, topic: str) -> list[TopicPartitionName]:
        return self._progress.of_topic(topic)

    def unfinished(self) -> list[TopicPartitionName]:
        return self._progress.unfinished()

    def end(self, errors: Mapping[TopicPartitionName, TidelogError]) -> None:
        """Ends partitions with errors; the others go on."""
        for partition, error in errors.items():
            self._progress.end(partition, error)
        self._log_ended(errors)

    def lacks(self, partition: TopicPartitionName) -> bool:
        """Returns whether its topic has no such partition, by the route that is followed, or no route is followed."""
        return partition[0] not in self._routes or partition[1] >= self._routes[partition[0]].partition_count

    def end_when_read(self, ends: bool = True) -> None:
        """Ends the reading once all partitions are read; False takes that back, since there will be more."""
        self._ends_when_read = ends
        self._changed.set()

    # ── what is handed out ──

    async def chunk(self) -> Chunk | None:
        """Returns the next records; None at the end. Raises the error of the fetching, after what arrived before it."""
        while (fetched := await self._ahead.take()) is not None:
            topic = fetched.partition[0]
            of_topic_max = self._routes[topic].decompressed_bytes_max if topic in self._routes else 0
            try:
                records = decode(fetched, decompressed_bytes_max=max(DEFAULT_LIMITS.decompressed_bytes_max, of_topic_max))
            except Corrupt as error:
                self._ahead.drop(fetched.partition)
                self.end({fetched.partition: error})
                continue
            if records:
                return Chunk(fetched.partition, records, parse_header(fetched.batch).leader_epoch)
        if (outcome := self._progress.outcome()) is not None:
            raise outcome
        return None

    def end_with(self, error: Exception) -> None:
        """Raises the error from `chunk`, after the batches that arrived before."""
        self._ahead.end(error)

    def high_watermark(self, partition: TopicPartitionName) -> int | None:
        """Returns the high watermark of its leader's last answer; None before the first."""
        return self._progress.high_watermark(partition)

    @property
    def errors(self) -> dict[TopicPartitionName, TidelogError]:
        """Returns, by partition, the error that ended it before its end."""
        return self._progress.errors()

    # ── its life ──

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.TaskGroup]:
        """Fetches while the block runs, which adds what it wants to the tasks, and survives brokers that go and come back.

        An error of the block or of a task ends the reading, and `chunk` raises it.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                mine = [
                    tasks.create_task(self._routes.run(), name=f"routes of {self._what}"),
                    tasks.create_task(self._fetch_all(), name=f"fetching {self._what}"),
                ]
                yield tasks
                for task in mine:
                    task.cancel()
        except* TidelogError as group:
            self._ahead.end(first_error(group))
        finally:  # who still waits must not take what was read for the whole
            self._ahead.end(Rejected(f"reading of {self._what} was ended before its end", hint="Call consume again."))

    async def until_read(self) -> None:
        await self._read.wait()

    # ── what becomes of its topics (TopicWatcher) ──

    def topic_changed(self, route: TopicRoute) -> None:
        self._watcher.topic_changed(route)
        self._changed.set()

    def topic_gone(self, topic: str, error: UnknownTopic) -> None:
        self._watcher.topic_gone(topic, error)
        held = [partition for partition in self.unfinished() if partition[0] == topic]
        if topic not in self._routes:
            self.end(dict.fromkeys(held, error))
        self._changed.set()

    def topic_denied(self, topic: str, error: NotAuthorized) -> None:
        """Ends the partitions of the topic with the error; the other topics go on."""
        self.end(dict.fromkeys((partition for partition in self.unfinished() if partition[0] == topic), error))

    # ── fetching ──

    async def _fetch_all(self) -> None:
        """Runs one task for each broker to fetch from, until the end, or until every partition has failed."""
        fetching: dict[FetchSource, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                unfinished = self._progress.unfinished()
                if not unfinished and (self._ends_when_read or self._progress.errors()):
                    break
                sources = dict.fromkeys(map(self._source_of, unfinished))
                self._sources_count = max(1, len(sources))
                for at in sources:
                    if at not in fetching or fetching[at].done():
                        fetching[at] = tasks.create_task(self._fetch_from(at), name=f"fetch {self._what} from {at.address}")
                await self._changed.wait()
            for task in fetching.values():
                task.cancel()
        self._ahead.end(None)
        self._read.set()

    async def _fetch_from(self, at: FetchSource) -> None:
        """Fetches from one place, in turn between its partitions, as long as it has any that are not at their ends."""
        altered = self._altered[at] = asyncio.Event()
        try:
            while self._fetched_from(at):
                share_bytes = self._settings.read_ahead_bytes_max // (2 * self._sources_count)
                bytes_max = max(1, min(self._settings.fetch_bytes_max, share_bytes))
                async with self._ahead.room(bytes_max):
                    altered.clear()
                    now_s = time.monotonic()
                    partitions, resumes_s = self._progress.due(self._fetched_from(at), now_s)
                    wait_s = min(self._settings.fetch_wait_ms_max / 1000, resumes_s - now_s)
                    if partitions:
                        await self._fetch(at, partitions, altered, wait_s=wait_s, bytes_max=bytes_max)
                if not partitions and self._fetched_from(at):
                    await _wait(altered, wait_s)
        finally:
            if self._altered.get(at) is altered:
                del self._altered[at]
            self._changed.set()

    def _fetched_from(self, at: FetchSource) -> list[TopicPartitionName]:
        now_s, source_of, leader_of = time.monotonic(), self._replicas.of, self._routes.leader
        return [each for each in self._progress.unfinished() if source_of(each, leader_of(each), now_s) == at]

    def _source_of(self, partition: TopicPartitionName) -> FetchSource:
        return self._replicas.of(partition, self._routes.leader(partition), time.monotonic())

    def _alter(self, partitions: Collection[TopicPartitionName]) -> None:
        """Signals the running fetches that their partitions have changed."""
        for at in {self._source_of(partition) for partition in partitions if partition[0] in self._routes}:
            if at in self._altered:
                self._altered[at].set()
        self._changed.set()

    async def _fetch(
        self, at: FetchSource, partitions: Sequence[TopicPartitionName], altered: asyncio.Event, *, wait_s: float, bytes_max: int
    ) -> None:
        """Sends one fetch, and takes in its answer or its error."""
        leader = at.address
        asked = {
            partition: PartitionRequest(partition, self._routes[partition[0]].topic_id, self._progress.next_offset(partition))
            for partition in partitions
        }
        try:
            answer = await first_completed(
                fetch(self._connection, at, asked.values(), wait_s=wait_s, bytes_max=bytes_max),
                self._watch(at, partitions, altered, wait_s),
            )
            if answer is None:
                return
            errors = errors_in(answer, leader)
            for partition, error in errors.items():
                self._connection.epochs.heed(asked[partition].topic_id, partition[1], error)
            errors = self._not_of_a_preferred_broker(errors)
            gone = {partition: error for partition, error in errors.items() if isinstance(error, OutOfRange)}
            for topic in {p[0] for p, error in errors.items() if isinstance(error, OutOfRange | UnknownTopic)}:
                with suppress(*REFUSALS):  # as in _watch
                    await self._routes.ask(topic)
        except TidelogError as error:
            self._met(self._not_of_a_preferred_broker(dict.fromkeys(partitions, error)))
            return
        for found in answer.partitions:
            if self._is_wanted(asked[partition_of(found)]):
                if self._connection.epochs.note(asked[partition_of(found)].topic_id, found.partition, found.leader_epoch):
                    self._routes.doubt([found.topic])  # another broker led it at that time, and this one has forwarded
                if found.HasField("preferred_broker"):
                    self._go_on_at(found.preferred_broker, partition_of(found))
                elif partition_of(found) not in errors and not found.HasField("error"):
                    errors |= self._take_in(found, asked[partition_of(found)].offset, leader)
        errors = {partition: error for partition, error in errors.items() if self._is_wanted(asked[partition])}
        for partition, out_of_range in gone.items():
            if partition not in errors:
                continue
            if self._routes.leader(partition) == leader:
                del errors[partition]
                if self._progress.next_offset(partition) == asked[partition].offset:
                    errors |= self._reset_position(partition, out_of_range)
            else:
                errors[partition] = NotLeader(f"{leader} does not lead {shown(partition)} any more")
        if errors:
            self._met(errors)

    # ── brokers of the reader's rack ──

    def _go_on_at(self, preferred: log_pb2.PreferredBroker, partition: TopicPartitionName) -> None:
        address = self._connection.address_of(preferred.broker_id, preferred.grpc_address)
        self._replicas.prefer(partition, address, time.monotonic())
        self._alter([partition])

    def _not_of_a_preferred_broker(
        self, errors: Mapping[TopicPartitionName, TidelogError]
    ) -> dict[TopicPartitionName, TidelogError]:
        """Returns the errors of partitions fetched from their leaders, and those that do not count against a broker.

        The other partitions go back to their leaders, which decide what their errors mean.
        """
        failed = [p for p, error in errors.items() if not isinstance(error, FencedLeaderEpoch | Throttled)]
        moved = set(self._replicas.avoid(failed, time.monotonic()))
        if moved:
            first = next(iter(moved))
            log.info("fetching moves to the leader partitions=%d: %s: %s", len(moved), self._what, errors[first])
            self._alter(moved)
        return {partition: error for partition, error in errors.items() if partition not in moved}

    def _is_wanted(self, asked: PartitionRequest) -> bool:
        """Returns whether the requested partition is still read, and its topic is the same."""
        topic = asked.partition[0]
        return asked.partition in self._progress and topic in self._routes and self._routes[topic].topic_id == asked.topic_id

    async def _watch(
        self, at: FetchSource, partitions: Sequence[TopicPartitionName], altered: asyncio.Event, wait_s: float
    ) -> log_pb2.FetchResponse | None:
        """Ends when other partitions are to be fetched. Raises Unavailable when the broker has kept silent, and leads no more, or
        need not be asked."""
        leader = at.address
        if await _wait(altered, wait_s):
            return None
        led = [partition for partition in partitions if not self._replicas.is_elsewhere(partition)]
        gives_up_s = time.monotonic() + (PREFERRED_SILENCE_S if len(led) < len(partitions) else math.inf)
        while not await _wait(altered, SILENCE_S):
            if gives_up_s <= time.monotonic():
                await self._connection.kept_silent(leader)
                raise Unavailable(f"{leader}: no answer", address=leader)
            if not led:
                continue
            await self._connection.kept_silent(leader)
            for topic in {topic for topic, _ in led}:
                with suppress(Unavailable, *REFUSALS):  # the next renewal heeds a refusal; the other topics have no part in it
                    await self._routes.ask(topic)
            if any(p[0] not in self._routes or self._routes.leader(p) != leader for p in led):
                raise Unavailable(f"{leader}: no answer, and another broker leads by now", address=leader)
        return None

    def _take_in(self, found: log_pb2.FetchedPartition, asked_offset: int, leader: str) -> dict[TopicPartitionName, TidelogError]:
        """Takes one partition's records; answers what is wrong with them, by partition."""
        partition, batches = partition_of(found), found.record_batches
        try:
            behind = offset_behind(batches)
        except InvalidRecord as error:
            what = f"{leader}: the answer for {shown(partition)} is no whole record batches: {error.message}"
            return {partition: Corrupt(what, hint="Look into the broker's log.", address=leader)}
        start_offset = self._progress.answered(partition, asked_offset=asked_offset, behind=behind, next_offset=found.next_offset)
        if start_offset is not None:
            end_offset = self._progress.end_offset(partition)
            self._ahead.put(FetchedBatches(partition, batches, start_offset=start_offset, end_offset=end_offset))
        self._progress.ends_at(partition, found.high_watermark)
        missing = self._progress.missing(partition, found.high_watermark)
        return {} if missing is None else {partition: missing}

    # ── what went wrong ──

    def _reset_position(self, partition: TopicPartitionName, gone: OutOfRange) -> dict[TopicPartitionName, TidelogError]:
        """Moves a partition whose offset is gone to the reader's choice. Returns the error if there is none."""
        said = self._progress.out_of_range(partition, gone)
        try:
            next_offset = self._progress.reset_position(partition, gone)
        except OutOfRange as error:
            return {partition: error}
        log.warning("position moved offset=%d: %s", next_offset, said)
        self._watcher.position_reset(partition, next_offset)
        return {}

    def _met(self, errors: Mapping[TopicPartitionName, TidelogError]) -> None:
        troubled, ended = self._progress.met(errors, time.monotonic(), jitter=random.uniform(0.5, 1.5))
        if troubled:
            others = len({id(errors[partition]) for partition in troubled}) - 1
            more = f" (and {others:,} more partitions)" if others else ""
            log.warning("fetch failed: %s%s; retrying", errors[troubled[0]], more)
        if len(ended) < len(errors):
            self._routes.doubt({topic for topic, _ in errors.keys() - set(ended) if topic in self._routes})
        self._log_ended({partition: errors[partition] for partition in ended})

    def _log_ended(self, errors: Mapping[TopicPartitionName, TidelogError]) -> None:
        """Logs partitions that ended with an error. The error of the last one is raised instead."""
        named = list(errors.items())[:NAMED_MAX] if self._progress.unfinished() else []
        for partition, error in named:
            remedy = f". {error.hint}" if self._follow else ""  # else it is raised at the end
            log.error("reading goes on without partition=%s: %s%s", shown(partition), error, remedy)
        if named and len(errors) > len(named):
            log.error("reading goes on without more partitions=%s: %s", f"{len(errors) - len(named):,}", self._what)
        self._changed.set()


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    """Returns whether the event was set in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if timeout_s == math.inf else timeout_s):
            await event.wait()
    return event.is_set()
