"""The log of one session: every partition that this broker leads, its produce path and its reads.

    append ─▶ partition_log (offset) ─▶ segment_writer ─▶ committed ─▶ hot pool, run index, high watermark, readers woken
    fetch  ─▶ read_path ─▶ hot pool | cold pool ◀─ segments, and Parquet, on the bucket
    manifests that compactors, or DeleteRecords, commit ─▶ led_history ─▶ log start, history, run index

Invariants: what a reader sees is committed; an acknowledgement is given after the commit; no reader is told a high watermark, and
no producer of a gap, when another leader may be ahead; when the session ends the whole object is thrown away, and its successor
starts from what is on the bucket.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from metadata.errors import ConditionFailed, Corrupt, InvalidTimestamp, NoLeader, OutOfOrderSequence, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Offset, ProducerId, SegmentSeq, SessionId, TopicPartition
from segments.byte_budget import Admission, ByteBudget
from segments.counters import LogCounters
from segments.deadline import Deadline
from segments.history.manifest import Manifest
from segments.log.append_result import Acks as Acks  # what callers of `produce` and `append` know it by
from segments.log.append_result import PendingAppend as PendingAppend
from segments.log.append_result import UnverifiedRejection
from segments.log.keyed_routing import AnyRouting, KeyedRouting
from segments.log.manifest_follower import ManifestFollower
from segments.log.seal_check import SealCheck
from segments.object_store.health import BucketState
from segments.object_store.interface import Buffer, ObjectStore
from segments.partition.leader_partitions import LeaderPartition, LeaderPartitions
from segments.partition.partition_log import AS_PRODUCED, Appended, Bounds, Dates
from segments.partition.producer_state import NOT_ROUTED, ONE_SHOT, ProducerRoom, SequencedBatch
from segments.read.disk_cache import DiskTier
from segments.read.follower_reader import ToldTarget
from segments.read.log_reader import Explanation, Fetched, TimestampedOffset
from segments.read.log_reader import FetchTarget as FetchTarget  # what `fetch` is asked for
from segments.read.read_path import ReadPath
from segments.read.tail_cache import BATCH_MEMORY_BYTES
from segments.records.batch import parse_header, stamp, with_log_append_time
from segments.records.header import BatchHeader
from segments.recovery.recovered_partition import RecoveredPartition
from segments.settings import SegmentSettings
from segments.wal.pending_segment import PendingSegment
from segments.wal.run_index import EpochEnd
from segments.wal.segment_file import SegmentFooter, StampedBatch
from segments.wal.segment_writer import SegmentWriter
from segments.wal.session import Session

Read = TypeVar("Read")


def _drawn() -> bytes:
    return secrets.token_bytes(16)


class Released(NamedTuple):
    """What a leader leaves behind that hands a partition over."""

    at_seq: SegmentSeq
    """None of the partition's records lies in the session's segments from here on."""
    sessions: set[SessionId]
    """Those that hold records of the partition."""


def memory_bytes(batch_bytes: int, *, batches: int = 1) -> int:
    """Returns the room that batches of this many bytes take of the buffer."""
    return batch_bytes + batches * BATCH_MEMORY_BYTES


class SessionLog:
    def __init__(
        self,
        store: ObjectStore,
        session: Session,
        settings: SegmentSettings,
        *,
        budget: ByteBudget,
        now_ms: Callable[[], int],
        expires_ms: Callable[[], int] | None = None,
        new_writer: Callable[[], bytes] = _drawn,
        disk: DiskTier | None = None,
        counters: LogCounters | None = None,
        bucket_state: Callable[[], BucketState] = lambda: BucketState.HEALTHY,
    ) -> None:
        """`budget` bounds the bytes that are not yet on the bucket; it outlives the session, as `counters` do. `now_ms` is the wall
        clock; `expires_ms` the time by which producers are forgotten, `now_ms` where it is left out
        (segments/object_store/store_clock.py).

        `new_writer` draws 16 bytes, which tell one's own manifests from others'; `disk` keeps what was read from the bucket.
        `bucket_state`: as for SegmentWriter.
        """
        self.counters = counters or LogCounters()
        self.session = session
        self.settings = settings
        self._budget = budget
        self._now_ms = now_ms
        self._expires_ms = expires_ms or now_ms
        self.surely_appointed: Callable[[], bool] = lambda: True
        """Whether nobody can lead in this session's place by now: its owner knows. While it is not certain, readers are answered
        only after a look at the bucket that shows no seal."""
        self.routing: KeyedRouting = AnyRouting()
        """Over how many partitions requests with an Idempotency-Key may be routed: its owner knows the topics."""
        self.tell_of_deletion: Callable[[TopicPartition, int], None] = lambda partition, version: None
        """Called when DeleteRecords has sent this version of a manifest to the bucket, unless it surely does not count. It must not
        block."""
        self._producers = ProducerRoom(settings.producers_max)
        self._tasks: asyncio.TaskGroup | None = None
        self._reading: set[asyncio.Task[Any]] = set()
        self._writer = SegmentWriter(
            store,
            session,
            settings,
            budget=budget,
            now_ms=now_ms,
            on_committed=self._on_committed,
            counters=self.counters,
            bucket_state=bucket_state,
        )
        self._led = LeaderPartitions(check_open=self._writer.check_open)
        self._reads = ReadPath(
            store,
            self._led,
            settings,
            spawn=self._spawn,
            adopt_newest=self.adopt_newest,
            check_appointed=self.check_appointed,
            counters=self.counters,
            disk=disk,
        )
        self._history = ManifestFollower(
            store,
            led_at=self._led.at,
            writable_at=self._led.writable,
            check_not_sealed=self.check_not_sealed,
            sent=lambda partition, version: self.tell_of_deletion(partition, version),
            spawn=self._spawn,
            new_writer=new_writer,
            now_ms=now_ms,
        )
        self._looks = SealCheck(self._writer.look_for_seal, self._spawn, timeout_s=settings.put_timeout_ms / 1000)

    async def run(self) -> None:
        """Writes segments until the session ends, by `close` or by a seal; then nothing is led here any more."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._writer.run()
                for read in self._reading:
                    read.cancel()
        finally:
            for partition in list(self._led.keys()):
                self.drop(partition)

    def close(self) -> None:
        """Takes no more batches; `run` flushes what is buffered, seals the session and returns."""
        self._writer.close()

    @property
    def ended(self) -> bool:
        return self._writer.ended

    @property
    def committed_to(self) -> SegmentSeq:
        """Every segment of the session below this one is committed."""
        return self._writer.committed_to

    async def look_for_seal(self) -> None:
        """Ends the session if another has sealed it, also when nothing is written that would meet the seal."""
        await self._writer.look_for_seal()

    # ── leadership ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def lead(self, recovered: RecoveredPartition, leader_epoch: LeaderEpoch) -> None:
        """Begins to serve a partition from what was found on the bucket, in an epoch that the metadata records already."""
        led = LeaderPartition(recovered.log(leader_epoch), recovered.runs, recovered.history)
        self._led.add(recovered.partition, led)
        led.log.enter(self._producers)
        self._history.lead(recovered.partition, recovered.topic)

    def pause(self, partition: TopicPartition) -> None:
        """Takes no more batches for a partition that is to be handed over, not even if it is led only later.

        It is read as before, until it is dropped or resumed.
        """
        self._led.pause(partition)

    def withhold(self, partitions: Iterable[TopicPartition]) -> None:
        """Answers no readers of paused partitions, either: from now on another may lead them, and commit what is not known here.

        Until they are dropped or resumed.
        """
        self._led.withhold(partitions)

    def resume(self, partition: TopicPartition) -> None:
        self._led.resume(partition)

    def flush(self) -> None:
        """What was taken so far does not linger."""
        self._writer.flush()

    async def flushed(self, partition: TopicPartition) -> Released:
        """Waits until all that a paused partition has taken is committed: `flush` sends it without lingering.

        Raises SessionFenced when the session ends before, NoLeader when it is not led here any more; Unavailable when it was
        resumed, since a busy partition is never all committed.
        """
        with self._reads.news_of([partition]) as woken:
            while True:
                woken.clear()
                led = self._led.at(partition)
                if not self._led.is_paused(partition):
                    raise Unavailable(f"{partition} is to be handed over no more: it takes batches again")
                bounds = led.log.bounds
                if bounds.high_watermark == bounds.end_offset:
                    return Released(self._writer.committed_to, led.runs.sessions)
                await woken.wait()

    def refuse(self, partition: TopicPartition, error: Corrupt) -> None:
        """Answers every request for a partition with what is wrong with it; the others go on."""
        self._led.refuse(partition, error)

    def drop(self, partition: TopicPartition) -> None:
        """Stops serving a partition (it was deleted, or given up). Batches already taken in are still written."""
        self._history.drop(partition)
        led = self._led.drop(partition)
        if led is not None:
            led.log.leave()
            self._reads.drop(partition)

    def leads(self, partition: TopicPartition) -> bool:
        return partition in self._led

    def refuses(self, partition: TopicPartition) -> bool:
        return partition in self._led.damaged

    @property
    def damaged(self) -> Mapping[TopicPartition, Corrupt]:
        """Those that are refused, and why."""
        return self._led.damaged

    @property
    def led(self) -> Iterable[TopicPartition]:
        return self._led.keys()

    # ── figures, from any thread ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def led_count(self) -> int:
        return len(self._led)

    def led_now(self) -> dict[TopicPartition, LeaderPartition]:
        return self._led.copy()

    @property
    def oldest_waits_since_s(self) -> float | None:
        """As of SegmentWriter."""
        return self._writer.oldest_waits_since_s

    @property
    def segments_in_flight(self) -> int:
        return self._writer.in_flight

    @property
    def readers_waiting(self) -> int:
        """Partitions for which somebody waits."""
        return self._reads.readers_waiting

    @property
    def hot_pool_bytes(self) -> int:
        return self._reads.hot_pool_bytes

    @property
    def cold_pool_bytes(self) -> int:
        return self._reads.cold_pool_bytes

    # ── produce ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self, bytes_count: int, *, timeout_s: float) -> Admission:
        """Room in the buffer, as a context manager: see ByteBudget.admit. Ask for `memory_bytes` of the batches to come."""
        return self._budget.admit(bytes_count, timeout_s=timeout_s)

    def append(
        self,
        partition: TopicPartition,
        batch: Buffer,
        header: BatchHeader,
        admission: Admission,
        *,
        expected_offset: int | None = None,
        dates: Dates = AS_PRODUCED,
        continues: bool = False,
    ) -> PendingAppend:
        """Gives a checked batch its offsets and puts it into the open segment. Takes its bytes over from the admission.

        `continues`: a part of the batch's request with an Idempotency-Key is committed. Its routing is fixed then, and not checked.

        Raises NoLeader, SessionFenced, Stopping, StaleRouting, and what PartitionLog.append raises; then nothing has changed. Where
        another leader might have taken the batch: UnverifiedRejection, which knows how to find out.
        """
        led = self._led.writable(partition)
        self._writer.check_open()
        now_ms = self._now_ms()
        if header.producer_id >= ONE_SHOT and header.producer_epoch > NOT_ROUTED and not continues:
            is_new = led.log.written_once(ProducerId(header.producer_id), now_ms=self._expires_ms()) is None
            if is_new:
                self.routing.check(partition, header.producer_epoch)
        if dates.by_broker:
            batch = with_log_append_time(batch, now_ms)
            header = parse_header(batch)
        try:
            appended = led.log.append(
                header,
                now_ms=now_ms,
                expires_ms=self._expires_ms(),
                expected_offset=expected_offset,
                timestamp_ms_max=dates.timestamp_ms_max,
            )
        except (OutOfOrderSequence, InvalidTimestamp) as refusal:
            raise UnverifiedRejection(refusal, self.check_not_sealed) from None
        except ConditionFailed as refusal:
            if self.surely_appointed():
                raise
            raise UnverifiedRejection(refusal, self.check_appointed) from None
        if appended.duplicate:
            return PendingAppend(appended, self._writer.pending_with(partition, appended.base_offset))
        stamped = StampedBatch(
            header,
            appended.base_offset,
            stamp(batch, base_offset=appended.base_offset, leader_epoch=appended.leader_epoch),
            memoryview(batch)[16:],
        )
        bytes_charged = memory_bytes(header.size)
        admission.take(bytes_charged)
        return PendingAppend(appended, self._writer.add(partition, appended.leader_epoch, stamped, bytes_charged=bytes_charged))

    def written_once(self, partitions: Iterable[TopicPartition], producer_id: ProducerId) -> dict[TopicPartition, SequencedBatch]:
        """What a one-shot producer has written to those of the partitions that are led here, committed or on its way."""
        now_ms = self._expires_ms()
        found: dict[TopicPartition, SequencedBatch] = {}
        for partition in partitions:
            led = self._led.get(partition)
            if led is not None and (batch := led.log.written_once(producer_id, now_ms=now_ms)) is not None:
                found[partition] = batch
        return found

    async def surely_written_once(
        self, partitions: Sequence[TopicPartition], producer_id: ProducerId
    ) -> dict[TopicPartition, SequencedBatch]:
        """As `written_once`, of partitions that are all led here, and certainly nowhere else when this was called.

        Raises NoLeader, Corrupt, SessionFenced, Unavailable.
        """
        for partition in partitions:
            self._led.readable(partition)
        found = self.written_once(partitions, producer_id)
        await self.check_appointed()
        return found

    async def produce(
        self, partition: TopicPartition, batch: Buffer, header: BatchHeader, *, acks: Acks = Acks.ALL, timeout_s: float = 30.0
    ) -> Appended:
        """One checked batch, from admission to commit."""
        async with self.admit(memory_bytes(header.size), timeout_s=timeout_s) as admission:
            try:
                pending = self.append(partition, batch, header, admission)
            except UnverifiedRejection as unverified:
                raise await unverified.resolve() from None
        return await pending.committed(Deadline.after(timeout_s)) if acks is Acks.ALL else pending.appended

    def _on_committed(self, footer: SegmentFooter, segment: PendingSegment) -> None:
        """A segment is committed: its records become readable, then its producers are answered."""
        counters = self.counters
        for run in footer.runs:
            counters.records += run.record_count
            counters.record_bytes += run.end - run.start
            led = self._led.get(run.partition)
            if led is None or led.log.leader_epoch != run.leader_epoch:
                continue  # deleted, or given up, since it was buffered
            led.runs.add(run, session=footer.session, seq=footer.seq)
            led.log.commit(base_offset=run.base_offset, last_offset=run.last_offset)
            led.taken_at_s, led.committed_at_s = segment.opened_at_s, segment.committed_at_s
            self._history.settle(led)
            self._reads.committed(run.partition, segment.partitions[run.partition][1])

    # ── history ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def adopt(self, manifest: Manifest) -> bool:
        """Reads and the log start follow this manifest from now on. Whether it is newer than the one that was held.

        A partition that is not led here has none.
        """
        led = self._led.get(manifest.place)
        return led is not None and self._history.adopt(led, manifest)

    def manifest_version(self, partition: TopicPartition) -> int | None:
        """Of the manifest that is held, 0 where nothing was compacted; None for a partition that is not led here."""
        led = self._led.get(partition)
        if led is None:
            return None
        return led.history.manifest.version if led.history is not None else 0

    async def adopt_newest(self, partition: TopicPartition) -> bool:
        """Reads the newest manifest, and adopts it. Whether it is newer than the one that was held.

        Raises NoLeader, Corrupt, and what the store raises.
        """
        return await self._history.adopt_newest(partition)

    async def delete_records(self, partition: TopicPartition, before_offset: int, *, validate_only: bool = False) -> Offset:
        """As ManifestFollower.delete_records: answers where the log starts now, or would."""
        return await self._history.delete_records(partition, before_offset, validate_only=validate_only)

    # ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def bounds(self, partition: TopicPartition) -> Bounds:
        """As they are known here: for readers, see `bounds_of`."""
        return self._led.at(partition).log.bounds

    def leader_epoch(self, partition: TopicPartition) -> LeaderEpoch:
        """In which the partition is led here. Raises NoLeader, Corrupt, SessionFenced."""
        return self._led.at(partition).log.leader_epoch

    async def bounds_of(self, partitions: Iterable[TopicPartition]) -> list[Bounds | TidelogError]:
        """Of each, as readers may be told; the error of a partition stands in its place. Raises Unavailable, SessionFenced."""
        await self.check_appointed()
        told: list[Bounds | TidelogError] = []
        for partition in partitions:
            try:
                told.append(self._led.readable(partition).log.bounds)
            except TidelogError as error:
                told.append(error.with_traceback(None))
        return told

    async def check_appointed(self) -> None:
        """Returns when it is certain that nobody led in this session's place before this was called.

        SessionFenced where somebody may, Unavailable where it can't be found out now.
        """
        if not self.surely_appointed():
            await self.check_not_sealed()

    async def check_not_sealed(self) -> None:
        """The same, asked of the bucket alone: the lease says too much where somebody has removed the registration."""
        if not self.ended:
            await self._looks.look()
        if self.ended:
            self._writer.check_open()

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[Fetched | TidelogError]:
        """Batches of each target in turn, `bytes_max` bytes in all; the error of a target stands in its place.

        What is in memory is answered first: a target whose history is still read from the bucket is left out when the others have
        `bytes_min` bytes, and found by the next fetch. Otherwise waits up to `wait_ms_max` for new records: see LogReader.fetch.
        """
        return await self._reads.fetch(targets, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)

    async def fetch_located(self, asked: Sequence[ToldTarget], *, bytes_max: int) -> list[Fetched | TidelogError]:
        """Of partitions that others lead, by what these have told of the places: see LocatedReads.fetch."""
        return await self._reads.fetch_located(asked, bytes_max=bytes_max)

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record at or after `timestamp_ms`, or None when there is none yet: as a high watermark, that is told only after
        a check that another leader can't know of one."""
        led = self._led.readable(partition)
        found = await self._reads.first_at(led, timestamp_ms)
        if found is None:
            await self.check_appointed()
            if self._led.readable(partition) is not led:
                raise NoLeader(f"this broker leads {partition} anew")
        return found

    def end_of_epoch(self, partition: TopicPartition, leader_epoch: int, *, current_leader_epoch: int | None = None) -> EpochEnd:
        """As LeaderPartition.end_of_epoch. `current_leader_epoch`: as in FetchTarget. `check_appointed` comes first."""
        led = self._led.readable(partition)
        led.log.check_epoch(current_leader_epoch)
        return led.end_of_epoch(leader_epoch)

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        return await self._reads.explain(partition, offset)

    def _spawn(self, read: Coroutine[Any, Any, Read]) -> asyncio.Task[Read]:
        """Starts a read from the bucket, which ends with the session at the latest."""
        if self._tasks is None or self.ended:
            read.close()
            raise Unavailable("the session has ended, or has not begun")
        task = self._tasks.create_task(read)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return task
