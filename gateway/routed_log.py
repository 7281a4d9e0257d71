"""The log of the whole cluster, as a door meets it: any broker takes any request.

    led here ─▶ the Log of this session      led elsewhere ─▶ its leader, over peers.py; produce through the lanes of forwarding.py

For what is led here a batch costs one look-up more. A partition between two leaders is waited for: produce until the deadline of
the request, reads for LEADER_WAIT_S, where nothing else is there to answer with. A fetch over several leaders asks all of them at
once, and what is not used is not counted.

Invariants: batches of a partition never overtake each other, whoever leads meanwhile; what was fetched from another broker is what
that broker had committed; a reader that hangs up ends the calls that were made for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from gateway.cluster_view import ClusterView
from gateway.forwarding import NOT_LED, PAUSE_LEAST_S, PAUSE_MOST_S, UNTOLD, ForwardedAppend, Forwarding, LedMeanwhile
from gateway.led_here import LedHere, Pending
from gateway.peer_reads import PeerReads
from metadata.broker_registry import Registration
from metadata.errors import TidelogError, Unavailable
from metadata.model import Offset, ProducerId, TopicPartition
from segments.byte_budget import Admission, ByteBudget
from segments.log import Acks, FetchTarget, Log
from segments.log_reader import Explanation, Fetched, TimestampedOffset
from segments.object_store import Buffer
from segments.partition_log import Appended, Bounds
from segments.producer_state import SequencedBatch
from segments.record_batch import BatchHeader
from segments.settings import SegmentSettings

LEADER_WAIT_S: Final = 5.0
"""How long a read waits for a partition that nobody leads at the moment."""

Found = TypeVar("Found")


class RoutedLog(LedHere):
    def __init__(
        self,
        log: Callable[[], Log],
        view: ClusterView,
        forwarding: Forwarding,
        peers: PeerReads,
        *,
        broker_id: str,
        settings: SegmentSettings,
        budget: ByteBudget,
    ) -> None:
        """`settings` and `budget` are those of every session's Log."""
        super().__init__(log, view)
        self._cluster = view
        self._forwarding = forwarding
        self._peers = peers
        self._broker_id = broker_id
        self._settings = settings
        self._budget = budget

    @property
    def settings(self) -> SegmentSettings:
        return self._settings

    def admit(self, bytes_count: int, *, timeout_s: float) -> Admission:
        return self._budget.admit(bytes_count, timeout_s=timeout_s)

    # ── produce ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def append(
        self,
        partition: TopicPartition,
        batch: Buffer,
        header: BatchHeader,
        admission: Admission,
        *,
        acks: Acks = Acks.ALL,
        deadline_s: float,
        expected_offset: int | None = None,
        log_append_time: bool = False,
    ) -> Pending:
        """At once where the partition is led here and nothing waits before it, else through its lane."""
        if not self._forwarding.holds(partition):
            try:
                log = self._log()
                pending = log.append(
                    partition, batch, header, admission, expected_offset=expected_offset, log_append_time=log_append_time
                )
            except NOT_LED:
                if (final := self._forwarding.why_nobody()) is not None:
                    raise final from None
            else:
                self._appended_to = log
                return pending
        return self._forwarding.append(
            partition,
            batch,
            header,
            admission,
            acks=acks,
            deadline_s=deadline_s,
            expected_offset=expected_offset,
            log_append_time=log_append_time,
        )

    async def outcome(self, pending: Pending, *, acks: Acks, timeout_s: float) -> Appended:
        if isinstance(pending, ForwardedAppend):
            if acks is Acks.NONE:
                return UNTOLD
            ends_s = asyncio.get_running_loop().time() + timeout_s
            decided = await self._forwarding.decided(pending, timeout_s=timeout_s)
            if not isinstance(decided, LedMeanwhile):
                return decided
            if acks is not Acks.ALL:
                return decided.pending.appended
            left_s = max(0.0, ends_s - asyncio.get_running_loop().time())
            return await decided.log.committed(decided.pending, timeout_s=left_s)
        return await super().outcome(pending, acks=acks, timeout_s=timeout_s)

    def written_once(self, partitions: Iterable[TopicPartition], producer_id: ProducerId) -> dict[TopicPartition, SequencedBatch]:
        try:
            return self._log().written_once(partitions, producer_id)
        except NOT_LED:
            return {}  # nothing is led here

    async def written_elsewhere(
        self, partitions: Iterable[TopicPartition], producer_id: ProducerId
    ) -> dict[TopicPartition, SequencedBatch]:
        elsewhere = [partition for partition in partitions if not self._leads(partition)]
        if not elsewhere:
            return {}

        async def ask(leader: Registration | None, asked: Sequence[TopicPartition]) -> dict[TopicPartition, SequencedBatch]:
            if leader is None:
                for partition in asked:
                    self._log().bounds(partition)  # NoLeader, unless it has come to be led here
                return self._log().written_once(asked, producer_id)
            return await self._peers.written_once(leader, self._topic_name(asked[0]), asked, producer_id)

        async def ask_all() -> dict[TopicPartition, SequencedBatch]:
            found = await _together(ask(leader, asked) for leader, asked in self._by_leader(elsewhere))
            return {partition: batch for part in found for partition, batch in part.items()}

        return await self._patiently(ask_all)

    # ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def bounds(self, partition: TopicPartition) -> Bounds:
        async def ask() -> Bounds:
            leader = self._elsewhere(partition)
            if leader is None:
                return self._log().bounds(partition)
            [found] = await self._peers.bounds(leader, [(self._topic_name(partition), partition)])
            return _raised(found)

        return await self._patiently(ask)

    async def bounds_of(self, partitions: Sequence[TopicPartition]) -> list[Bounds | TidelogError]:
        async def ask(
            leader: Registration | None, asked: Sequence[TopicPartition]
        ) -> list[tuple[TopicPartition, Bounds | TidelogError]]:
            if leader is None:
                found = await LedHere.bounds_of(self, asked)
            else:
                try:
                    found = await self._peers.bounds(leader, [(self._topic_name(partition), partition) for partition in asked])
                except TidelogError as error:
                    found = [error] * len(asked)
            return list(zip(asked, found, strict=True))

        parts = await _together(ask(leader, asked) for leader, asked in self._by_leader(partitions))
        by_partition = dict(found for part in parts for found in part)
        return [by_partition[partition] for partition in partitions]

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> TimestampedOffset | None:
        async def ask() -> TimestampedOffset | None:
            leader = self._elsewhere(partition)
            if leader is None:
                return await self._log().offset_for_timestamp(partition, timestamp_ms)
            return await self._peers.offset_for_timestamp(leader, self._topic_name(partition), partition, timestamp_ms)

        return await self._patiently(ask)

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        async def ask() -> Explanation:
            leader = self._elsewhere(partition)
            if leader is None:
                return await self._log().explain(partition, offset)
            return await self._peers.explain(leader, self._topic_name(partition), partition, offset)

        return await self._patiently(ask)

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[Fetched | TidelogError]:
        """As Log.fetch; over several leaders it answers when one has `bytes_min` bytes, or an error that waiting does not mend."""
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + (wait_ms_max / 1000 if bytes_min > 0 else 0)
        patience_s = clock.time() + LEADER_WAIT_S
        pause_s = PAUSE_LEAST_S
        if all(self._elsewhere(target.partition) is None for target in targets):
            answers = await self._fetch_at(None, targets, bytes_max, bytes_min, wait_ms_max)
        else:
            answers = await self._fetch_all(targets, bytes_max)
        while True:
            errors = [answer for answer in answers if isinstance(answer, TidelogError)]
            is_led = not any(map(_may_be_led_soon, errors))
            bytes_there = sum(answer.size_bytes for answer in answers if isinstance(answer, Fetched))
            if bytes_there >= max(1, bytes_min) or not all(map(_may_be_led_soon, errors)) or self._forwarding.why_nobody():
                return _fitted(targets, answers, bytes_max)
            left_s = (deadline_s if is_led or bytes_there else patience_s) - clock.time()
            if left_s <= 0:
                return _fitted(targets, answers, bytes_max)
            if is_led and pause_s == PAUSE_LEAST_S:
                answers = await self._fetch_first(targets, answers, bytes_max, bytes_min, 1000 * left_s)
            else:
                await self._forwarding.changed(timeout_s=min(pause_s, left_s))
                answers = await self._fetch_all(targets, bytes_max)
            pause_s = PAUSE_LEAST_S if is_led and pause_s > PAUSE_LEAST_S else min(2 * pause_s, PAUSE_MOST_S)

    async def _fetch_all(self, targets: Sequence[FetchTarget], bytes_max: int) -> list[Fetched | TidelogError]:
        """What there is at every leader, without a wait."""
        parts = self._parts(targets)
        share = max(1, bytes_max // len(parts)) if parts else 0
        found = await _together(self._fetch_at(leader, [targets[at] for at in ats], share, 0, 0) for leader, ats in parts)
        answers: dict[int, Fetched | TidelogError] = {}
        for (_, ats), part in zip(parts, found, strict=True):
            answers.update(zip(ats, part, strict=True))
        return [answers[at] for at in range(len(targets))]

    async def _fetch_first(
        self,
        targets: Sequence[FetchTarget],
        before: Sequence[Fetched | TidelogError],
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: float,
    ) -> list[Fetched | TidelogError]:
        """What the first leader has that has enough; of the others what was there before. Their calls are ended."""
        answers = list(before)
        parts = self._parts(targets)
        share = max(1, bytes_max // len(parts))
        async with asyncio.TaskGroup() as polls:
            running = {
                polls.create_task(
                    self._fetch_at(leader, [targets[at] for at in ats], share, min(bytes_min, share), wait_ms_max)
                ): ats
                for leader, ats in parts
            }
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                is_enough = False
                for poll in done:
                    for at, answer in zip(running.pop(poll), poll.result(), strict=True):
                        answers[at] = answer
                        is_enough |= isinstance(answer, TidelogError) or answer.size_bytes > 0
                if is_enough:
                    for poll in running:
                        poll.cancel()
                    break
        return answers

    async def _fetch_at(
        self, leader: Registration | None, targets: Sequence[FetchTarget], bytes_max: int, bytes_min: int, wait_ms_max: float
    ) -> list[Fetched | TidelogError]:
        """From one leader. What it can't answer at all stands in the place of each target."""
        try:
            if leader is None:
                return await self._log().fetch(targets, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
            named = [(self._topic_name(target.partition), target) for target in targets]
            return await self._peers.fetch(leader, named, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
        except TidelogError as error:
            return [error.with_traceback(None)] * len(targets)

    # ── who leads ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _leads(self, partition: TopicPartition) -> bool:
        try:
            return self._log().leads(partition)
        except TidelogError:
            return False

    def _elsewhere(self, partition: TopicPartition) -> Registration | None:
        """The other broker that leads the partition; None where it is led here, or by nobody."""
        if self._leads(partition):
            return None
        leader = self._cluster.leader(partition)
        return None if leader is None or leader.broker_id == self._broker_id else leader

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> list[tuple[Registration | None, list[TopicPartition]]]:
        """None: this broker, and what nobody leads."""
        groups: dict[str, tuple[Registration | None, list[TopicPartition]]] = {}
        for partition in partitions:
            leader = self._elsewhere(partition)
            groups.setdefault(leader.broker_id if leader is not None else "", (leader, []))[1].append(partition)
        return list(groups.values())

    def _parts(self, targets: Sequence[FetchTarget]) -> list[tuple[Registration | None, list[int]]]:
        """The places of the targets by leader."""
        groups: dict[str, tuple[Registration | None, list[int]]] = {}
        for at, target in enumerate(targets):
            leader = self._elsewhere(target.partition)
            groups.setdefault(leader.broker_id if leader is not None else "", (leader, []))[1].append(at)
        return list(groups.values())

    def _topic_name(self, partition: TopicPartition) -> str:
        return self._cluster.topics.by_id(partition.topic_id).name

    async def _patiently(self, ask: Callable[[], Awaitable[Found]]) -> Found:
        """Asks again while the partition is between two leaders, for LEADER_WAIT_S."""
        clock = asyncio.get_running_loop()
        ends_s, pause_s = clock.time() + LEADER_WAIT_S, PAUSE_LEAST_S
        while True:
            try:
                return await ask()
            except TidelogError as error:
                if not _may_be_led_soon(error) or ends_s <= clock.time() or self._forwarding.why_nobody():
                    raise
            await self._forwarding.changed(timeout_s=min(pause_s, max(0.0, ends_s - clock.time())))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)


def _may_be_led_soon(error: TidelogError) -> bool:
    """Whether a read that met this error may succeed at another broker, or shortly."""
    return isinstance(error, NOT_LED) or type(error) is Unavailable


def _fitted(
    targets: Sequence[FetchTarget], answers: Sequence[Fetched | TidelogError], bytes_max: int
) -> list[Fetched | TidelogError]:
    """The answers, `bytes_max` bytes in all, but for the first with any: what has no room is left for the next fetch."""
    fitted: list[Fetched | TidelogError] = []
    bytes_used = 0
    for target, answer in zip(targets, answers, strict=True):
        if isinstance(answer, Fetched) and answer.size_bytes:
            if bytes_used and bytes_used + answer.size_bytes > bytes_max:
                answer = answer._replace(batches=[], size_bytes=0, next_offset=Offset(target.offset))
            else:
                bytes_used += answer.size_bytes
        fitted.append(answer)
    return fitted


def _raised(found: Found | TidelogError) -> Found:
    if isinstance(found, TidelogError):
        raise found
    return found


async def _together(works: Iterable[Coroutine[Any, Any, Found]]) -> list[Found]:
    """All at once; the first that fails ends the others, and its error is raised."""
    failure: TidelogError | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work) for work in works]
    except* TidelogError as errors:
        failure = next(error for error in errors.exceptions if isinstance(error, TidelogError))
    if failure is not None:
        raise failure
    return [task.result() for task in running]
