"""The log of one session: appends to the partitions that this broker leads, and joins the parts that serve them.

    append     ─▶ partition_log (offset) ─▶ writer ─▶ committed ─▶ tail cache, run index, high watermark, readers woken
    reads      ─▶ tail cache | read cache ◀─ segments, and Parquet, on the bucket
    manifests  newer ones of compactors, and those of DeleteRecords ─▶ log start, history, run index
    partitions which of them are led, paused or damaged      leadership: whether another broker may lead by now

Invariants: what a reader sees is committed. An acknowledgement is given after the commit. While another leader may be ahead, no
reader receives a high watermark, and no producer the rejection of a gap. When the session ends the whole object is discarded, and
its successor starts from what is on the bucket.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from metadata.errors import ConditionFailed, InvalidTimestamp, OutOfOrderSequence, StaleRouting, Unavailable
from metadata.model import LeaderEpoch, ProducerId, SegmentSeq, SessionId, TopicPartition
from segments.byte_budget import Admission, ByteBudget
from segments.counters import LogCounters
from segments.deadline import Deadline
from segments.log.append_result import Acks as Acks  # callers of `produce` and `append` import it from here
from segments.log.append_result import PendingAppend as PendingAppend
from segments.log.append_result import UnverifiedRejection
from segments.log.keyed_routing import AnyRouting, KeyedRouting
from segments.log.leadership_check import LeadershipCheck
from segments.log.manifest_follower import ManifestFollower
from segments.object_store.health import HealthState
from segments.object_store.interface import Buffer, ObjectStore
from segments.partition.leader_partitions import LeaderPartition, LeaderPartitions
from segments.partition.partition_log import AS_PRODUCED, Appended, TimestampPolicy
from segments.partition.producer_state import NOT_ROUTED, ONE_SHOT, ProducerRoom, SequencedBatch
from segments.read.disk_cache import DiskCache
from segments.read.log_reader import FetchTarget as FetchTarget  # what `reads.fetch` takes
from segments.read.read_path import ReadPath
from segments.read.reader_notifier import ReaderNotifier
from segments.read.tail_cache import BATCH_MEMORY_BYTES
from segments.records.batch import parse_header, stamp, with_log_append_time
from segments.records.header import BatchHeader
from segments.recovery.recovered_partition import RecoveredPartition
from segments.settings import SegmentSettings
from segments.wal.pending_segment import PendingSegment
from segments.wal.segment_file import SegmentFooter, StampedBatch
from segments.wal.segment_writer import SegmentWriter
from segments.wal.session import Session

Read = TypeVar("Read")


class Released(NamedTuple):
    """Holds what the new leader must know of a partition that was handed over."""

    # The first segment of the session without records of the partition.
    at_seq: SegmentSeq
    # The sessions that hold records of the partition.
    sessions: set[SessionId]


def memory_bytes(batch_bytes: int, *, batches: int = 1) -> int:
    """Returns the room that batches of this many bytes take of the buffer."""
    return batch_bytes + batches * BATCH_MEMORY_BYTES


class SessionLog:
    """Runs the log of one session, for one use. Its parts share it, and its owner runs `run()` as a task."""

    def __init__(
        self,
        store: ObjectStore,
        session: Session,
        settings: SegmentSettings,
        *,
        budget: ByteBudget,
        now_ms: Callable[[], int],
        expires_ms: Callable[[], int] | None = None,
        lease_is_valid: Callable[[], bool] = lambda: True,
        routing: KeyedRouting | None = None,
        on_deletion: Callable[[TopicPartition, int], None] = lambda partition, version: None,
        new_writer: Callable[[], bytes] = lambda: secrets.token_bytes(16),
        disk: DiskCache | None = None,
        counters: LogCounters | None = None,
        bucket_state: Callable[[], HealthState] = lambda: HealthState.HEALTHY,
        leaps: Callable[[], int] = lambda: 0,
    ) -> None:
        """`budget` bounds the bytes that are not yet on the bucket; it outlives the session, as `counters` do. `now_ms` is the wall
        clock; `expires_ms`, by default the same, is the time by which producers are forgotten (object_store/store_clock.py).

        `lease_is_valid`: see LeadershipCheck. `routing` knows the topics. By default the session has no competitors, and takes
        every routing.
        `on_deletion`: see ManifestFollower. `new_writer` draws 16 bytes, which tell this writer's manifests from others'. `disk`
        keeps what was read from the bucket. `bucket_state`, `leaps`: see SegmentWriter.
        """
        self.counters = counters or LogCounters()
        self.session = session
        self.settings = settings
        self.budget = budget
        self.routing = routing or AnyRouting()
        self._now_ms = now_ms
        self._expires_ms = expires_ms or now_ms
        self._producers = ProducerRoom(settings.producers_max)
        self._tasks: asyncio.TaskGroup | None = None
        self._reading: set[asyncio.Task[Any]] = set()
        self.writer = SegmentWriter(
            store,
            session,
            settings,
            budget=budget,
            now_ms=now_ms,
            on_committed=self._on_committed,
            counters=self.counters,
            bucket_state=bucket_state,
            leaps=leaps,
        )
        self.leadership = LeadershipCheck(self.writer, lease_is_valid, self._spawn, timeout_s=settings.put_timeout_ms / 1000)
        notifier = ReaderNotifier()
        self.partitions = LeaderPartitions(check_open=self.writer.check_open, changed=notifier.wake)
        self.manifests = ManifestFollower(
            store,
            self.partitions,
            check_not_sealed=self.leadership.check_not_sealed,
            on_deletion=on_deletion,
            changed=notifier.wake,
            spawn=self._spawn,
            new_writer=new_writer,
            now_ms=now_ms,
        )
        self.reads = ReadPath(
            store,
            self.partitions,
            settings,
            spawn=self._spawn,
            adopt_newest=self.manifests.adopt_newest,
            verify_leadership=self.leadership.verify,
            counters=self.counters,
            notifier=notifier,
            disk=disk,
        )

    async def run(self) -> None:
        """Writes segments until the session ends, by `close` or by a seal; then the session leads nothing any more."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self.writer.run()
                for read in self._reading:
                    read.cancel()
        finally:
            for partition in list(self.partitions.keys()):
                self.stop_leading(partition)

    def close(self) -> None:
        """Takes no more batches; `run` flushes what is buffered, seals the session and returns."""
        self.writer.close()

    @property
    def ended(self) -> bool:
        return self.writer.ended

    # ── leadership ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def lead(self, recovered: RecoveredPartition, leader_epoch: LeaderEpoch) -> None:
        """Begins to serve a partition from what was found on the bucket, in an epoch that the metadata records already."""
        led = LeaderPartition(recovered.log(leader_epoch), recovered.runs, recovered.history)
        self.partitions.add(recovered.partition, led)
        led.log.enter(self._producers)
        self.manifests.follow(recovered.partition, recovered.topic)

    def stop_leading(self, partition: TopicPartition) -> None:
        """Stops serving a partition (it was deleted, or given up). Batches already taken in are still written."""
        self.manifests.forget(partition)
        led = self.partitions.remove(partition)
        if led is not None:
            led.log.leave()
            self.reads.drop(partition)

    async def flushed(self, partition: TopicPartition) -> Released:
        """Waits until all batches of a paused partition are committed; `writer.flush` sends them without lingering.

        Raises SessionFenced when the session ends before, NoLeader when the session leads the partition no more, and Unavailable
        when it was resumed, because a busy partition is never all committed.
        """
        with self.reads.news_of([partition]) as news:
            while True:
                news.woken.clear()
                led = self.partitions.at(partition)
                if not self.partitions.is_paused(partition):
                    raise Unavailable(f"{partition} is to be handed over no more: it takes batches again")
                bounds = led.log.bounds
                if bounds.high_watermark == bounds.end_offset:
                    return Released(self.writer.committed_to, led.runs.sessions)
                await news.woken.wait()

    # ── produce ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Sends what is buffered without lingering."""
        self.writer.flush()

    def admit(self, bytes_count: int, *, timeout_s: float) -> Admission:
        """Reserves room in the buffer, as a context manager (see ByteBudget.admit): the `memory_bytes` of the batches to come."""
        return self.budget.admit(bytes_count, timeout_s=timeout_s)

    def append(
        self,
        partition: TopicPartition,
        batch: Buffer,
        header: BatchHeader,
        admission: Admission,
        *,
        expected_offset: int | None = None,
        dates: TimestampPolicy = AS_PRODUCED,
        continues: bool = False,
    ) -> PendingAppend:
        """Gives a checked batch its offsets and puts it into the open segment. Takes its bytes over from the admission.

        `continues`: a part of the batch's request with an Idempotency-Key is committed. Its routing is fixed then, and not checked.

        Raises NoLeader, SessionFenced, Stopping, StaleRouting, and what PartitionLog.append raises; then nothing has changed. Where
        another leader might have taken the batch: UnverifiedRejection, which can find that out.
        """
        led = self.partitions.writable(partition)
        self.writer.check_open()
        now_ms = self._now_ms()
        if header.producer_id >= ONE_SHOT and header.producer_epoch > NOT_ROUTED:
            written = led.log.written_once(ProducerId(header.producer_id), now_ms=self._expires_ms())
            if written is not None:
                _check_same_routing(written, header)
            elif not continues:
                self.routing.check(partition, led.log.leader_epoch, header.producer_epoch)
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
            raise UnverifiedRejection(refusal, self.leadership.check_not_sealed) from None
        except ConditionFailed as refusal:
            if self.leadership.lease_is_valid():
                raise
            raise UnverifiedRejection(refusal, self.leadership.verify) from None
        if appended.duplicate:
            return PendingAppend(appended, self.writer.pending_with(partition, appended.base_offset))
        stamped = StampedBatch(
            header,
            appended.base_offset,
            stamp(batch, base_offset=appended.base_offset, leader_epoch=appended.leader_epoch),
            memoryview(batch)[16:],
        )
        bytes_charged = memory_bytes(header.size)
        admission.take(bytes_charged)
        return PendingAppend(appended, self.writer.add(partition, appended.leader_epoch, stamped, bytes_charged=bytes_charged))

    def written_once(self, partitions: Iterable[TopicPartition], producer_id: ProducerId) -> dict[TopicPartition, SequencedBatch]:
        """Returns what a one-shot producer has written to those of the partitions that the session leads, committed or pending."""
        now_ms = self._expires_ms()
        found: dict[TopicPartition, SequencedBatch] = {}
        for partition in partitions:
            led = self.partitions.get(partition)
            if led is not None and (batch := led.log.written_once(producer_id, now_ms=now_ms)) is not None:
                found[partition] = batch
        return found

    async def verified_written_once(
        self, partitions: Sequence[TopicPartition], producer_id: ProducerId
    ) -> dict[TopicPartition, SequencedBatch]:
        """Returns what `written_once` does, for partitions that the session leads, and that certainly no other broker led when this
        was called.

        Raises NoLeader, Corrupt, SessionFenced, Unavailable.
        """
        for partition in partitions:
            self.partitions.readable(partition)
        found = self.written_once(partitions, producer_id)
        await self.leadership.verify()
        return found

    async def produce(
        self, partition: TopicPartition, batch: Buffer, header: BatchHeader, *, acks: Acks = Acks.ALL, timeout_s: float = 30.0
    ) -> Appended:
        """Takes one checked batch from admission to commit."""
        async with self.admit(memory_bytes(header.size), timeout_s=timeout_s) as admission:
            try:
                pending = self.append(partition, batch, header, admission)
            except UnverifiedRejection as unverified:
                raise await unverified.resolve() from None
        return await pending.committed(Deadline.after(timeout_s)) if acks is Acks.ALL else pending.appended

    def _on_committed(self, footer: SegmentFooter, segment: PendingSegment) -> None:
        """Makes the records of a committed segment readable; then the writer answers its producers."""
        counters = self.counters
        for run in footer.runs:
            counters.records += run.record_count
            counters.record_bytes += run.end - run.start
            counters.topic_bytes_in[run.partition.topic_id] += run.end - run.start
            led = self.partitions.get(run.partition)
            if led is None or led.log.leader_epoch != run.leader_epoch:
                continue  # deleted, or given up, since it was buffered
            led.runs.add(run, session=footer.session, seq=footer.seq)
            led.log.commit(base_offset=run.base_offset, last_offset=run.last_offset)
            led.taken_at_s, led.committed_at_s = segment.opened_at_s, segment.committed_at_s
            self.manifests.settle(led)
            self.reads.committed(run.partition, segment.partitions[run.partition][1])

    def _spawn(self, read: Coroutine[Any, Any, Read]) -> asyncio.Task[Read]:
        """Starts a read from the bucket, which ends with the session at the latest."""
        if self._tasks is None or self.ended:
            read.close()
            raise Unavailable("the session has ended, or has not begun")
        task = self._tasks.create_task(read)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return task


def _check_same_routing(written: SequencedBatch, header: BatchHeader) -> None:
    """Raises StaleRouting if both belong to one request with an Idempotency-Key, and were routed over different partition counts.

    Two brokers may take the same request at the same time while its topic grows. Their batches for one partition hold different
    records then, so the second is no repeat of the first.
    """
    counts = {written.producer_epoch, header.producer_epoch}
    if written.base_sequence == header.base_sequence and len(counts) > 1 and NOT_ROUTED not in counts:
        raise StaleRouting(
            f"the request was routed over {header.producer_epoch} partitions, and a part of it is written that was routed over "
            f"{written.producer_epoch}",
            partition_count=written.producer_epoch,
        )
