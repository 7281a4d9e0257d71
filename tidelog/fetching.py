"""Fetches a topic's partitions from their leaders, ahead of whoever reads, within a bound of bytes.

    partition 0, 3 ──▶ leader A ══Fetch, a long poll══▶ ┐
    partition 1, 2 ──▶ leader B ══Fetch══════════════▶  ┴▶ batches in the order of each partition's offsets

Invariant: a partition's next fetch begins where the last answer that arrived whole has ended, so nothing is fetched twice and
nothing is left out, whatever breaks in between.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from typing import NamedTuple

import grpc.aio

from gateway.proto import log_pb2
from metadata.errors import OutOfRange, Throttled, TidelogError
from segments.record_batch import parse_header, split_batches
from tidelog.connection import Connection
from tidelog.offset_lookup import offset_ranges, starting_offsets
from tidelog.owned_tasks import first_error
from tidelog.positions import Start
from tidelog.rpc_errors import error_of_rpc, error_of_status
from tidelog.settings import ClientSettings, ResetPolicy

ANSWER_GRACE_S = 10.0
"""How much later than its long poll a broker may answer."""

log = logging.getLogger("tidelog")


class Fetched(NamedTuple):
    """One batch that waits to be decoded. Its records below `start_offset` were not asked for, nor those from `end_offset` on."""

    partition: int
    batch: memoryview
    start_offset: int
    end_offset: int | None


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
        """`partitions` None: all of them. Unless it follows, it ends at the high watermarks of its beginning."""
        self._connection = connection
        self._settings = settings
        self._topic = topic
        self._start = start
        self._partitions = partitions
        self._follow = follow
        self._reset = reset
        self._next: dict[int, int] = {}
        """By partition: where the next fetch begins."""
        self._ends: dict[int, int] = {}
        """By partition: where reading ends. Empty when it follows."""
        self._ahead: deque[Fetched] = deque()
        self._ahead_bytes = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._is_over = False
        self._error: TidelogError | None = None

    async def take(self) -> Fetched | None:
        """The next batch; None at the end. Raises what ended the fetching, after what arrived before it was taken."""
        while not self._ahead:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._is_over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        fetched = self._ahead.popleft()
        self._ahead_bytes -= len(fetched.batch)
        self._taken.set()
        return fetched

    async def run(self) -> None:
        """Fetches until the end, or until it is cancelled. Survives brokers that go and come back."""
        try:
            await self._begin()
            await self._fetch_on()
        except TidelogError as error:
            self._error = error
        finally:
            self._is_over = True
            self._arrived.set()

    # ── where it begins and ends ──

    async def _begin(self) -> None:
        route = await self._connection.route(self._topic, fresh=True)
        self._next = await starting_offsets(self._connection, route, self._start, self._partitions)
        if self._follow:
            return
        ranges = await offset_ranges(self._connection, self._topic, self._next)
        self._ends = {partition: ends.high_watermark for partition, ends in ranges.items()}
        for partition, ends in ranges.items():
            if self._next[partition] > ends.high_watermark:
                self._begin_anew(
                    partition,
                    OutOfRange(
                        f"offset {self._next[partition]} of {self._topic}/{partition} is outside of "
                        f"[{ends.log_start_offset}, {ends.high_watermark}]",
                        log_start_offset=ends.log_start_offset,
                        high_watermark=ends.high_watermark,
                    ),
                )

    def _unfinished(self) -> list[int]:
        return [partition for partition, offset in self._next.items() if self._follow or offset < self._ends[partition]]

    def _begin_anew(self, partition: int, error: OutOfRange) -> None:
        """The offset is gone (retention), or was never there: what the reader chose for this."""
        ends = {"earliest": error.details.get("log_start_offset"), "latest": error.details.get("high_watermark")}
        if self._reset == "error" or ends[self._reset] is None:
            error.hint = "Begin elsewhere, or let it go on by itself: auto_offset_reset='earliest' or 'latest'."
            raise error
        log.warning("%s; going on at the %s offset", error, self._reset)
        self._next[partition] = int(ends[self._reset] or 0)

    # ── fetching ──

    async def _fetch_on(self) -> None:
        pause_s, trouble_since_s = 0.0, None
        while partitions := self._unfinished():
            before = dict(self._next)
            trouble: TidelogError | None = None
            try:
                route = await self._connection.route(self._topic, fresh=trouble_since_s is not None)
                async with asyncio.TaskGroup() as tasks:
                    for leader in {route.leaders[partition] for partition in partitions}:
                        mine = [partition for partition in partitions if route.leaders[partition] == leader]
                        tasks.create_task(self._fetch_from(leader, mine), name=f"fetch {self._topic} from {leader}")
            except* TidelogError as group:
                trouble = first_error(group)
            if trouble is None:
                continue
            is_new = False
            if self._next != before or trouble_since_s is None:
                trouble_since_s, pause_s = time.monotonic(), self._settings.retry_pause_ms / 1000
                is_new = True
            patience_s = self._settings.delivery_timeout_ms / 1000
            if not trouble.retryable or (not self._follow and time.monotonic() - trouble_since_s > patience_s):
                raise trouble
            if is_new:
                log.warning("%s; trying again", trouble)
            await asyncio.sleep(trouble.retry_after_s if isinstance(trouble, Throttled) else pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, self._settings.retry_pause_ms_max / 1000)

    async def _fetch_from(self, leader: str, partitions: list[int]) -> None:
        """Fetches from one leader, in turn between its partitions, until they are at their ends. Raises what it meets."""
        stubs = self._connection.stubs(leader)
        turn = deque(partitions)
        while True:
            await self._wait_for_room()
            asked = [partition for partition in turn if self._follow or self._next[partition] < self._ends[partition]]
            if not asked:
                return
            try:
                answer = await stubs.log.Fetch(
                    self._request(asked), timeout=self._settings.fetch_wait_ms_max / 1000 + ANSWER_GRACE_S
                )
            except grpc.aio.AioRpcError as error:
                raise error_of_rpc(error, address=leader, writes=False) from error
            for found in answer.partitions:
                if self._take_in(found, leader):
                    turn.remove(found.partition)  # others first, next time: one busy partition must not hold them up
                    turn.append(found.partition)

    def _request(self, partitions: list[int]) -> log_pb2.FetchRequest:
        bytes_max = self._settings.fetch_bytes_max
        return log_pb2.FetchRequest(
            partitions=[
                log_pb2.FetchPartition(topic=self._topic, partition=p, offset=self._next[p], max_bytes=bytes_max)
                for p in partitions
            ],
            max_bytes=bytes_max,
            min_bytes=1,
            max_wait_ms=self._settings.fetch_wait_ms_max,
            format=log_pb2.FETCH_FORMAT_BATCHES,
        )

    def _take_in(self, found: log_pb2.FetchedPartition, leader: str) -> bool:
        """Takes one partition's answer; whether it brought records. Raises what the partition met."""
        partition = found.partition
        if found.HasField("error"):
            error = error_of_status(found.error, address=leader)
            if not isinstance(error, OutOfRange):
                raise error
            self._begin_anew(partition, error)
            return False
        batches = split_batches(found.record_batches)
        for batch in batches:
            last_offset = parse_header(batch).last_offset
            if last_offset >= self._next[partition]:
                self._ahead.append(Fetched(partition, batch, self._next[partition], self._ends.get(partition)))
                self._ahead_bytes += len(batch)
                self._next[partition] = last_offset + 1
        self._next[partition] = max(self._next[partition], found.next_offset)
        self._arrived.set()
        return bool(batches)

    async def _wait_for_room(self) -> None:
        while self._ahead_bytes >= self._settings.read_ahead_bytes_max:
            self._taken.clear()
            await self._taken.wait()
