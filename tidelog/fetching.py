"""Fetches a topic's partitions from their leaders, ahead of whoever reads, within a bound of bytes.

    partition 0, 3 ──▶ leader A ══Fetch, a long poll══▶ ┐
    partition 1, 2 ──▶ leader B ══Fetch══════════════▶  ┴▶ batches in the order of each partition's offsets
    who leads, new partitions, the topic's id ◀── asked again when they are old, and at once when something fails

A leader that hangs keeps its connections. Once a long poll has outlived its time by SILENCE_S, another broker is asked who leads;
where that is somebody else by now, the poll is given up.

Invariants: a partition's next fetch begins where the last answer that arrived whole has ended, so nothing is fetched twice and
nothing is left out, whatever breaks in between. All that is handed out is of one topic id: each fetch names it, and brokers
answer nothing of another. Each names the newest leader epoch that is known, so that no leader of before answers it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn

import grpc
import grpc.aio

from gateway.proto import log_pb2
from metadata.errors import Corrupt, InvalidRecord, NotLeader, OutOfRange, Rejected, TidelogError, Unavailable, UnknownTopic
from segments.record_batch import parse_header
from tidelog.connection import Connection
from tidelog.offset_lookup import ranges_or_errors, starting_offsets
from tidelog.owned_tasks import first_error, first_of
from tidelog.positions import AtOffsets, Start
from tidelog.read_ahead import Answer, Fetched, ReadAhead
from tidelog.read_progress import NAMED_MAX, Patience, ReadProgress, named
from tidelog.routes import NO_LEADER_EPOCH, UNTOLD, TopicRoute
from tidelog.rpc_errors import error_of_rpc, error_of_status
from tidelog.settings import KIB, ClientSettings, ResetPolicy

ANSWER_GRACE_S: Final = 10.0
"""How much later than its long poll a broker may begin to answer."""
SILENCE_S: Final = 1.0
"""How much later than its long poll a broker may begin to answer, before another is asked whether it still leads."""
ANSWER_BYTES_PER_S_MIN: Final = 256 * KIB
"""A whole answer has the time that it takes at this rate."""

log = logging.getLogger("tidelog")


class Fetching:
    def __init__(
        self,
        connection: Connection,
        settings: ClientSettings,
        *,
        topic: str,
        start: Start,
        partitions: list[int] | None,
        follow: bool,
        reset: ResetPolicy,
    ) -> None:
        """`partitions` None: those that `start` names, else all of them, and those that are added while it follows.

        Unless it follows, it ends at the high watermarks of its beginning.
        """
        self._connection = connection
        self._settings = settings
        self._topic = topic
        self._start = start
        self._partitions = partitions
        self._follow = follow
        self._takes_added = follow and partitions is None and not isinstance(start, AtOffsets)
        patience = Patience(
            pause_s=settings.retry_pause_ms / 1000,
            pause_s_max=settings.retry_pause_ms_max / 1000,
            patience_s=settings.delivery_timeout_ms / 1000,
        )
        self._progress = ReadProgress(topic, follow=follow, reset=reset, patience=patience)
        self._ahead = ReadAhead(settings.read_ahead_bytes_max)
        self._route: TopicRoute
        self._leaders_count = 1
        self._doubted = asyncio.Event()
        """Something failed: the route may be another by now."""
        self._changed = asyncio.Event()
        """A leader has got partitions, or has none left to fetch."""

    async def take(self) -> Fetched | None:
        """The next batch; None at the end. Raises what ended the fetching, after what arrived before it was taken."""
        fetched = await self._ahead.take()
        if fetched is None and (error := self._progress.outcome()) is not None:
            raise error
        return fetched

    @property
    def errors(self) -> dict[int, TidelogError]:
        """By partition: what ended it before its end."""
        return self._progress.errors()

    @property
    def decompressed_bytes_max(self) -> int:
        """Of one batch that was taken: what its brokers accept, or accepted by their default."""
        return max(UNTOLD.decompressed_bytes_max, self._route.decompressed_bytes_max)

    async def run(self) -> None:
        """Fetches until the end, or until it is cancelled. Survives brokers that go and come back."""
        try:
            await self._begin()
            async with asyncio.TaskGroup() as tasks:
                keeping = tasks.create_task(self._keep_route(), name=f"route of {self._topic}")
                await self._fetch_all(tasks)
                keeping.cancel()
            self._ahead.end(None)
        except* TidelogError as group:
            self._ahead.end(first_error(group))
        finally:  # who still waits must not take what was read for the whole
            self._ahead.end(Rejected(f"reading of {self._topic} was ended before its end", hint="Call consume again."))

    def fail(self, partition: int, error: TidelogError) -> None:
        """A batch that was taken can't be decoded: nothing behind it is handed out, the other partitions go on."""
        self._ahead.drop(partition)
        self._end({partition: error})

    # ── where it begins ──

    async def _begin(self) -> None:
        self._route = await self._connection.route(self._topic, fresh=True)
        starts = await starting_offsets(self._connection, self._route, self._start, self._partitions)
        for partition, offset in starts.items():
            self._progress.begin(partition, 0 if isinstance(offset, TidelogError) else offset)
        failed = {partition: offset for partition, offset in starts.items() if isinstance(offset, TidelogError)}
        if not self._follow:
            sound = starts.keys() - failed.keys()
            for partition, ends in (await ranges_or_errors(self._connection, self._route, sorted(sound))).items():
                if isinstance(ends, TidelogError):
                    failed[partition] = ends
                elif (gone := self._progress.end_at(partition, ends)) is not None:
                    failed |= self._begin_anew(partition, gone)
        self._end({partition: named(error, self._topic, partition) for partition, error in failed.items()})

    # ── who leads what ──

    async def _keep_route(self) -> None:
        """Asks for the route when it is old, and at once when something failed. Raises UnknownTopic."""
        while True:
            old_s = self._route.learnt_s + self._route.age_s_max(self._settings.topic_age_ms_max / 1000)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, old_s - time.monotonic())):
                    await self._doubted.wait()
            self._doubted.clear()
            try:
                await self._ask_for_route()
            except Unavailable as error:
                log.info("%s; asking again where the partitions of %s are", error, self._topic)
                await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)
                self._doubted.set()

    async def _ask_for_route(self) -> None:
        """Raises UnknownTopic when the topic that is read is not there any more."""
        try:
            route = await self._connection.route(self._topic, fresh=True)
        except UnknownTopic as error:
            raise UnknownTopic(
                f"topic {self._topic} was deleted while it was read", hint="There is nothing more to read.", topic=self._topic
            ) from error
        if route.topic_id != self._route.topic_id:
            raise UnknownTopic(
                f"topic {self._topic} was deleted and made again while it was read: its id was {self._route.topic_id}, "
                f"and is {route.topic_id} now",
                hint="Offsets of the old topic mean nothing in the new one: read it anew, from the earliest offset.",
                topic=self._topic,
                topic_id=self._route.topic_id,
                new_topic_id=route.topic_id,
            )
        if route.partition_count < self._route.partition_count:
            return  # older than what is known: partitions are never removed
        self._route = route
        if self._takes_added:
            for partition in range(route.partition_count):
                if partition not in self._progress:
                    self._progress.begin(partition, 0, was_added=True)
        self._changed.set()

    # ── fetching ──

    async def _fetch_all(self, tasks: asyncio.TaskGroup) -> None:
        """One task for each leader of what is to be fetched, until there is nothing left."""
        fetching: dict[str, asyncio.Task[None]] = {}
        while unfinished := self._progress.unfinished():
            self._changed.clear()
            leaders = dict.fromkeys(self._route.leaders[partition] for partition in unfinished)
            self._leaders_count = len(leaders)
            for leader in leaders:
                if leader not in fetching or fetching[leader].done():
                    fetching[leader] = tasks.create_task(self._fetch_from(leader), name=f"fetch {self._topic} from {leader}")
            await self._changed.wait()
        for task in fetching.values():
            task.cancel()

    async def _fetch_from(self, leader: str) -> None:
        """Fetches from one leader, in turn between its partitions, as long as it has any that are not at their ends."""
        try:
            while self._fetched_from(leader):
                share_bytes = self._settings.read_ahead_bytes_max // (2 * self._leaders_count)
                bytes_max = max(1, min(self._settings.fetch_bytes_max, share_bytes))
                async with self._ahead.room(bytes_max):
                    now_s = time.monotonic()
                    partitions, resumes_s = self._progress.due(self._fetched_from(leader), now_s)
                    wait_s = min(self._settings.fetch_wait_ms_max / 1000, resumes_s - now_s)
                    if partitions:
                        await self._fetch(leader, partitions, wait_s=wait_s, bytes_max=bytes_max)
                if not partitions and resumes_s < math.inf:
                    await asyncio.sleep(wait_s)
        finally:
            self._changed.set()

    def _fetched_from(self, leader: str) -> list[int]:
        return [partition for partition in self._progress.unfinished() if self._route.leaders[partition] == leader]

    async def _fetch(self, leader: str, partitions: list[int], *, wait_s: float, bytes_max: int) -> None:
        """One answer, or what went wrong instead. Raises UnknownTopic, which ends everything."""
        try:
            answer = await self._ask_while_it_leads(leader, partitions, wait_s=wait_s, bytes_max=bytes_max)
            errors = _errors_in(answer, self._topic, leader)
            for partition, error in errors.items():
                self._connection.epochs.heed(self._route.topic_id, partition, error)
            gone = {partition: error for partition, error in errors.items() if isinstance(error, OutOfRange)}
            if gone or any(isinstance(error, UnknownTopic) for error in errors.values()):
                await self._ask_for_route()
        except UnknownTopic:
            raise
        except TidelogError as error:
            self._met(dict.fromkeys(partitions, error))
            return
        for found in answer.partitions:
            if found.partition not in errors:
                errors |= self._take_in(found, leader)
        if not errors:
            return
        for partition, out_of_range in gone.items():
            if self._route.leaders[partition] == leader:
                del errors[partition]
                errors |= self._begin_anew(partition, out_of_range)
            else:
                errors[partition] = NotLeader(f"{leader} does not lead {self._topic}/{partition} any more")
        self._met(errors)

    async def _ask_while_it_leads(
        self, leader: str, partitions: list[int], *, wait_s: float, bytes_max: int
    ) -> log_pb2.FetchResponse:
        """The broker's answer. Unavailable where it kept silent, and leads no more."""
        return await first_of(
            self._ask(leader, partitions, wait_s=wait_s, bytes_max=bytes_max), self._watch(leader, partitions, wait_s)
        )

    async def _watch(self, leader: str, partitions: list[int], wait_s: float) -> NoReturn:
        await asyncio.sleep(wait_s)
        while True:
            await asyncio.sleep(SILENCE_S)
            await self._connection.kept_silent(leader)
            with suppress(Unavailable):
                await self._ask_for_route()
            if any(self._route.leaders[partition] != leader for partition in partitions):
                raise Unavailable(f"{leader}: no answer, and another broker leads by now", address=leader)

    async def _ask(self, leader: str, partitions: list[int], *, wait_s: float, bytes_max: int) -> log_pb2.FetchResponse:
        topic_id = self._route.topic_id
        request = log_pb2.FetchRequest(max_bytes=bytes_max, min_bytes=1, max_wait_ms=int(wait_s * 1000))
        request.format = log_pb2.FETCH_FORMAT_BATCHES
        for partition in partitions:
            asked = request.partitions.add(
                topic=self._topic,
                topic_id=topic_id,
                partition=partition,
                offset=self._progress.next_offset(partition),
                max_bytes=bytes_max,
            )
            if (epoch := self._connection.epochs.newest(topic_id, partition)) != NO_LEADER_EPOCH:
                asked.current_leader_epoch = epoch
        await self._connection.until_connected(leader)
        timeout_s = wait_s + ANSWER_GRACE_S + bytes_max / ANSWER_BYTES_PER_S_MIN
        try:
            with self._connection.held(leader) as to:
                answer: log_pb2.FetchResponse = await to.log.Fetch(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_of_rpc(error, address=leader, writes=False) from error
        for found in answer.partitions:
            if self._connection.epochs.note(topic_id, found.partition, found.leader_epoch):
                self._doubted.set()  # it was led elsewhere by then, and this broker has forwarded
        return answer

    def _take_in(self, found: log_pb2.FetchedPartition, leader: str) -> dict[int, TidelogError]:
        """Takes one partition's records; answers what is wrong with them, by partition."""
        partition, batches = found.partition, found.record_batches
        try:
            behind = _offset_behind(batches)
        except InvalidRecord as error:
            what = f"{leader}: the answer for {self._topic}/{partition} is no whole record batches: {error.message}"
            return {partition: Corrupt(what, hint="Look into the broker's log.", address=leader)}
        start_offset = self._progress.answered(partition, behind=behind, next_offset=found.next_offset)
        if start_offset is not None:
            end_offset = self._progress.end_offset(partition)
            self._ahead.put(Answer(partition, batches, start_offset=start_offset, end_offset=end_offset))
        missing = self._progress.missing(partition, found.high_watermark)
        return {} if missing is None else {partition: missing}

    # ── what went wrong ──

    def _begin_anew(self, partition: int, gone: OutOfRange) -> dict[int, TidelogError]:
        """Its offset is gone: what the reader chose for this. Answers the error where it chose none."""
        said = self._progress.out_of_range(partition, gone)
        try:
            next_offset = self._progress.begin_anew(partition, gone)
        except OutOfRange as error:
            return {partition: error}
        log.warning("%s; going on at offset %d", said, next_offset)
        return {}

    def _met(self, errors: Mapping[int, TidelogError]) -> None:
        troubled, ended = self._progress.met(errors, time.monotonic(), jitter=random.uniform(0.5, 1.5))
        if troubled:
            others = len({id(errors[partition]) for partition in troubled}) - 1
            more = f" (and {others:,} more partitions)" if others else ""
            log.warning("%s%s; trying again", errors[troubled[0]], more)
        if len(ended) < len(errors):
            self._doubted.set()
        self._tell_of_ends({partition: errors[partition] for partition in ended})

    def _end(self, errors: Mapping[int, TidelogError]) -> None:
        for partition, error in errors.items():
            self._progress.end(partition, error)
        self._tell_of_ends(errors)

    def _tell_of_ends(self, errors: Mapping[int, TidelogError]) -> None:
        """What ends the last partition is raised, not told."""
        told = list(errors.items())[:NAMED_MAX] if self._progress.unfinished() else []
        for partition, error in told:
            remedy = f". {error.hint}" if self._follow else ""  # else it is raised at the end
            log.error("reading goes on without %s/%d: %s%s", self._topic, partition, error, remedy)
        if told and len(errors) > len(told):
            log.error("reading goes on without %s more partitions of %s", f"{len(errors) - len(told):,}", self._topic)
        self._changed.set()


def _errors_in(answer: log_pb2.FetchResponse, topic: str, leader: str) -> dict[int, TidelogError]:
    return {
        found.partition: named(error_of_status(found.error, address=leader), topic, found.partition)
        for found in answer.partitions
        if found.HasField("error")
    }


def _offset_behind(batches: bytes) -> int:
    """The offset behind the last one of whole batches that follow each other; 0 where there are none. Raises InvalidRecord."""
    start = behind = 0
    while start < len(batches):
        header = parse_header(batches, start)
        start += header.size
        behind = header.last_offset + 1
    return behind
