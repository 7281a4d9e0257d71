"""Writes the segments of one session: a thin shell round flush_policy.py (when) and commit_order.py (what is committed).

    add ─▶ open segment ─▶ full segments ─▶ PUT seq n, PUT seq n+1, … in flight ─▶ committed in order ─▶ `on_committed`

A PUT's unknown outcome is never taken for failure: the same bytes go to the same key again, and "it exists" means reading it
back, and comparing it byte for byte. A PUT that can't be made certain by its deadline ends the session with a seal at that very
place.

Invariants: a segment's outcome is set exactly once; None (committed) only after its place and all before it are on the bucket;
an error that says "nothing was written" only after a seal stands at or before its place, or it was never sent.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable

from awscrt.checksums import crc32c

from metadata.errors import AlreadyExists, Corrupt, NotFound, OutcomeUnknown, SessionFenced, Stopping, TidelogError
from metadata.model import LeaderEpoch, SegmentSeq, TopicPartition
from metadata.retry import RetryPauses
from segments.bucket.layout import index_key, segment_key
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.object_store.health import HealthState
from segments.object_store.interface import Buffer, ObjectStore, is_unsynced
from segments.settings import SegmentSettings
from segments.wal.commit_order import CommitOrder
from segments.wal.flush_policy import LARGE_BYTES, FlushPolicy, FlushState
from segments.wal.footer_index import FooterBlocks, IndexBlock, encode_index
from segments.wal.pending_segment import PendingSegment
from segments.wal.segment_file import (
    BATCH_ENTRY_BYTES,
    EncodedSegment,
    SegmentFooter,
    StampedBatch,
    encode_seal,
    encode_segment,
)
from segments.wal.session import Session, find_seal, is_segment_there, trim_point

log = logging.getLogger(__name__)


class _Put(enum.Enum):
    CREATED = enum.auto()
    EXISTS = enum.auto()
    UNCERTAIN = enum.auto()
    # The object may be there, and gone after a power cut; no repeat makes it certain.
    UNSYNCED = enum.auto()


class SegmentWriter:
    """Collects batches into segments, uploads them and reports their commits."""

    def __init__(
        self,
        store: ObjectStore,
        session: Session,
        settings: SegmentSettings,
        *,
        budget: ByteBudget,
        now_ms: Callable[[], int],
        on_committed: Callable[[SegmentFooter, PendingSegment], None],
        counters: LogCounters | None = None,
        bucket_state: Callable[[], HealthState] = lambda: HealthState.HEALTHY,
        leaps: Callable[[], int] = lambda: 0,
    ) -> None:
        """`bucket_state`: while the bucket is unhealthy, nothing is sent early, nor twice. `leaps`: as in StoreClock."""
        self._counters = counters or LogCounters()
        self._bucket_state = bucket_state
        self._leaps = leaps
        # The leaps after which no segment of this session was found trimmed that is only being written.
        self._leaps_known = leaps()
        self._store = store
        self._session = session
        self._settings = settings
        self._budget = budget
        self._now_ms = now_ms
        self._on_committed = on_committed
        self._rule = FlushPolicy(settings)
        self._order: CommitOrder[tuple[PendingSegment, EncodedSegment]] = CommitOrder()
        self._footers = FooterBlocks(settings.index_every_segments)
        self._full: deque[PendingSegment] = deque()
        self._open: PendingSegment | None = None
        self._uploads: dict[SegmentSeq, asyncio.Task[None]] = {}
        self._issued: dict[SegmentSeq, PendingSegment] = {}
        self._wake = asyncio.Event()
        self._closing = False
        self._waited_for = False
        self._ended = False

    def check_open(self) -> None:
        """Raises SessionFenced or Stopping when no more batches are taken."""
        if self._ended or self._closing:
            raise self._refusal()

    def add(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch, batch: StampedBatch, *, bytes_charged: int
    ) -> PendingSegment:
        """Puts a batch into the open segment. Batches leave in arrival order, each exactly once."""
        self.check_open()
        size_bytes = batch.size_bytes + BATCH_ENTRY_BYTES
        if self._open is not None and self._open.size_bytes + size_bytes > self._settings.segment_bytes_max:
            self._full.append(self._open)
            self._open, self._waited_for = None, False
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._open is None:
            self._open = PendingSegment(now_s, loop.create_future())
            self._wake.set()
        segment = self._open
        was_large = segment.size_bytes >= LARGE_BYTES
        segment.add(partition, leader_epoch, batch, bytes_charged)
        segment.newest_at_s = now_s
        if segment.size_bytes >= LARGE_BYTES and not was_large:
            self._wake.set()  # it may be due before it has lingered
        return segment

    def pending_with(self, partition: TopicPartition, offset: int) -> PendingSegment | None:
        """Returns the undecided segment that holds this offset, for the repeat of an unanswered batch."""
        candidates = [*self._issued.values(), *self._full, *([self._open] if self._open else [])]
        return next((segment for segment in candidates if segment.holds(partition, offset)), None)

    @property
    def committed_to(self) -> SegmentSeq:
        """Returns the first segment number that is not committed."""
        return self._order.committed_to

    def flush(self) -> None:
        """Sends what was added so far without lingering, as soon as a place in flight is free."""
        self._waited_for = self._open is not None
        self._wake.set()

    def close(self) -> None:
        """Takes no more batches; `run` then flushes what is left, seals the session and returns."""
        self._closing = True
        self._wake.set()

    async def check_seal(self) -> None:
        """Ends the session where a seal stands that a successor has set. Raises what the store raises."""
        seq = await find_seal(self._store, self._session.id, from_seq=self._order.committed_to)
        if seq is not None and not self._ended:
            log.warning("session sealed by another broker session=%s seq=%s", self._session.id, seq)
            self._end(seq)
            self._wake.set()

    @property
    def ended(self) -> bool:
        """Returns whether the session has ended: no later batch could be committed."""
        return self._ended

    async def run(self) -> None:
        """Uploads until the session ends: by `close`, by another's seal, or by our own at a PUT that missed its deadline."""
        try:
            async with asyncio.TaskGroup() as uploads:
                while not self._ended and not self._drained():
                    self._wake.clear()
                    now_s = asyncio.get_running_loop().time()
                    due_at_s = self._rule.due_at_s(self._flush_state(), now_s=now_s)
                    if due_at_s is not None and due_at_s <= now_s:
                        self._rule.flushed(now_s=now_s)
                        self._issue(uploads)
                    else:
                        await self._woken(due_at_s)
            if not self._ended:
                await self._seal_at_the_end()
        finally:
            self._ended = True
            self._refuse_the_rest()

    @property
    def oldest_waits_since_s(self) -> float | None:
        """Returns when the oldest uncommitted batch came, on the loop's clock; None where all are. From any thread."""
        undecided = [*list(self._issued.values()), *list(self._full), *([self._open] if self._open is not None else [])]
        return min((segment.opened_at_s for segment in undecided), default=None)

    @property
    def in_flight(self) -> int:
        """Returns the segments on their way to the bucket."""
        return self._order.in_flight

    def _drained(self) -> bool:
        return self._closing and not self._full and self._open is None and not self._order.undecided

    def _flush_state(self) -> FlushState:
        state = FlushState(
            full_segments=len(self._full),
            open_since_s=None,
            in_flight=self._order.in_flight,
            closing=self._closing,
            waited_for=self._waited_for,
            spared=self._bucket_state() is not HealthState.HEALTHY,
        )
        if self._open is None:
            return state
        return state._replace(
            open_since_s=self._open.opened_at_s, open_bytes=self._open.size_bytes, newest_at_s=self._open.newest_at_s
        )

    async def _woken(self, at_s: float | None) -> None:
        try:
            async with asyncio.timeout_at(at_s if at_s != float("inf") else None):
                await self._wake.wait()
        except TimeoutError:
            await asyncio.sleep(0)  # lets batches that wait in sockets come into the open segment first

    def _issue(self, uploads: asyncio.TaskGroup) -> None:
        segment = self._full.popleft() if self._full else self._open
        assert segment is not None, "the flush rule asked for a segment that is not there"
        if segment is self._open:
            self._open, self._waited_for = None, False
        encoded = encode_segment(
            session=self._session.id,
            seq=self._order.next_seq,
            writer=self._session.writer,
            committed_to=self._order.committed_to,
            written_at_ms=self._now_ms(),
            partitions=[(partition, epoch, batches) for partition, (epoch, batches) in segment.partitions.items()],
        )
        segment.sent_at_s = asyncio.get_running_loop().time()
        self._counters.segment_bytes.observe(encoded.size_bytes)
        self._counters.linger_seconds.observe(segment.sent_at_s - segment.opened_at_s)
        seq = self._order.issue((segment, encoded))
        self._issued[seq] = segment
        self._uploads[seq] = uploads.create_task(self._upload(seq, segment, encoded, uploads), name=f"put segment {seq}")

    async def _upload(self, seq: SegmentSeq, segment: PendingSegment, encoded: EncodedSegment, uploads: asyncio.TaskGroup) -> None:
        try:
            if ours := await self._put_until_certain(seq, encoded):
                await self._check_not_set_back(seq)
        except Corrupt as error:
            log.error("key of the own segment is not its own: %s; the session ends", error)
            self._end(seq, unknown=OutcomeUnknown(f"the session's place on the bucket is taken: {error}"))
        except OutcomeUnknown as error:
            log.error("session ends: %s", error)
            self._end(seq, unknown=error)
        else:
            if ours:
                self._landed(segment)
                self._commit(seq, uploads)
            else:
                self._end(seq)
        finally:
            del self._uploads[seq]
            self._wake.set()

    async def _put_until_certain(self, seq: SegmentSeq, encoded: EncodedSegment) -> bool:
        """Returns True when object `seq` is our segment, False when it is a seal.

        Corrupt when it is neither, OutcomeUnknown when the store can't make it durable.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.put_deadline_ms / 1000
        pauses = RetryPauses(self._settings.retry_pause_ms / 1000, self._settings.retry_pause_ms_max / 1000)
        key = segment_key(self._session.id, seq)
        while (left_s := deadline_s - loop.time()) > 0:
            put = await self._put_once(key, encoded.body, encoded.crc32c, min(left_s, self._settings.put_timeout_ms / 1000))
            if put is _Put.CREATED:
                return True
            if put is _Put.EXISTS:
                return await self._is_ours(seq, encoded.body)
            if put is _Put.UNSYNCED:
                raise self._not_durable(seq)
            await asyncio.sleep(min(pauses.next_s(), max(0.0, deadline_s - loop.time())))
        log.warning(
            "segment missed its deadline key=%s deadline_ms=%s: sealing the own session there", key, self._settings.put_deadline_ms
        )
        return await self._seal_own(seq, encoded.body)

    async def _put_once(self, key: str, body: list[Buffer], checksum: int, timeout_s: float) -> _Put:
        """Sends one create, and a second one beside it when the first is slow. The same bytes to the same key: either may win."""
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as attempts:
                running = {attempts.create_task(self._create(key, body, checksum))}
                hedge_after_s: float | None = self._settings.hedge_after_ms / 1000
                put = _Put.UNCERTAIN
                while running and put is _Put.UNCERTAIN:
                    done, running = await asyncio.wait(running, timeout=hedge_after_s, return_when=asyncio.FIRST_COMPLETED)
                    for attempt in done:
                        put = attempt.result() if put is _Put.UNCERTAIN else put
                    if not done and hedge_after_s is not None:
                        hedge_after_s = None
                        if self._bucket_state() is HealthState.UNAVAILABLE:
                            continue  # twice the requests are no help to a store that answers none
                        self._counters.hedges += 1
                        running.add(attempts.create_task(self._create(key, body, checksum)))
                for attempt in running:
                    attempt.cancel()
                return put
        except TimeoutError:
            return _Put.UNCERTAIN

    async def _create(self, key: str, body: list[Buffer], checksum: int) -> _Put:
        try:
            await self._store.create(key, body, crc32c=checksum)
        except AlreadyExists:
            return _Put.EXISTS
        except TidelogError as error:
            if is_unsynced(error):
                log.error("PUT not durable key=%s: %s", key, error)
                return _Put.UNSYNCED
            log.debug("PUT failed key=%s: %s", key, error)  # an outage is logged once, by object_store/health_tracking.py
            return _Put.UNCERTAIN
        return _Put.CREATED

    async def _seal_own(self, seq: SegmentSeq, segment: list[Buffer]) -> bool:
        """Creates the seal at `seq`, which makes its outcome certain. True when our own segment turns out to stand there.

        `segment`: its bytes, empty where none was sent. OutcomeUnknown when the store can't make durable what stands there.
        """
        body = encode_seal(
            session=self._session.id,
            seq=seq,
            writer=self._session.writer,
            committed_to=self._order.committed_to,
            sealed_at_ms=self._now_ms(),
            sealed_by=self._session.id,
        )
        key = segment_key(self._session.id, seq)
        while True:
            put = await self._put_once(key, [body], crc32c(body), self._settings.put_timeout_ms / 1000)
            if put in (_Put.CREATED, _Put.EXISTS):
                return await self._is_ours(seq, segment)
            if put is _Put.UNSYNCED:
                raise self._not_durable(seq)
            await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)

    def _not_durable(self, seq: SegmentSeq) -> OutcomeUnknown:
        key = segment_key(self._session.id, seq)
        return OutcomeUnknown(f"{self._store.url} can't prove that {key} outlives a power cut; it may or may not be committed")

    async def _is_ours(self, seq: SegmentSeq, segment: list[Buffer]) -> bool:
        """Returns whether `seq` was committed as our segment: it exists, or was compacted, trimmed and maybe deleted since.

        False when a seal stands there. Raises Corrupt when anything else does.
        """
        while True:
            try:
                async with asyncio.timeout(self._settings.put_timeout_ms / 1000):
                    try:
                        if await is_segment_there(self._store, self._session.id, seq, segment):
                            return True
                    except NotFound as error:
                        if await self._is_trimmed(seq):
                            return True
                        raise Corrupt(f"segment {seq} of session {self._session.id} was there, and is gone untrimmed") from error
                    # A seal that came late, to where our segment had been compacted and deleted, ends nothing.
                    return await self._is_trimmed(seq)
            except Corrupt:
                raise
            except (TidelogError, TimeoutError) as error:
                log.warning("reading back failed seq=%s: %s; retrying", seq, str(error) or "no answer in time")
                await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)

    async def _is_trimmed(self, seq: SegmentSeq) -> bool:
        """Returns whether the place is trimmed. Ask after the read: a segment's marker is created before the segment is deleted."""
        return await trim_point(self._store, self._session.id) > seq

    async def _check_not_set_back(self, seq: SegmentSeq) -> None:
        """Raises Corrupt if the place of a segment that has landed is trimmed. Looks only after the store's time has leapt.

        Then this process may have been set back with its memory. It has used the place before, and what it wrote then was compacted
        and deleted: no reader would find the new segment. Raises OutcomeUnknown if the store does not list for `put_deadline_ms`.
        """
        deadline_s = asyncio.get_running_loop().time() + self._settings.put_deadline_ms / 1000
        while (leaps := self._leaps()) != self._leaps_known:
            try:
                async with asyncio.timeout(self._settings.put_timeout_ms / 1000):
                    is_trimmed = await self._is_trimmed(seq)
            except (TidelogError, TimeoutError) as error:
                reason = str(error) or "no answer in time"
                if asyncio.get_running_loop().time() > deadline_s:
                    raise OutcomeUnknown(f"the trim markers of session {self._session.id} can't be read: {reason}") from error
                log.warning("reading trim markers failed session=%s: %s; retrying", self._session.id, reason)
                await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)
                continue
            if is_trimmed:
                key = segment_key(self._session.id, seq)
                raise Corrupt(
                    f"{key} is trimmed: this process was set back with its memory, as a virtual machine is that is resumed from a "
                    "snapshot, or the segment was compacted before its commit",
                    key=key,
                )
            if seq > self._order.committed_to:
                return  # one before it may have landed on a trimmed place
            self._leaps_known = leaps

    def _landed(self, segment: PendingSegment) -> None:
        segment.landed_at_s = asyncio.get_running_loop().time()
        self._counters.put_seconds.observe(segment.landed_at_s - segment.sent_at_s)

    def _commit(self, seq: SegmentSeq, uploads: asyncio.TaskGroup) -> None:
        now_s = asyncio.get_running_loop().time()
        for segment, encoded in self._order.landed(seq):
            segment.committed_at_s = now_s
            self._counters.segments += 1
            self._counters.commit_seconds.observe(now_s - segment.opened_at_s)
            self._on_committed(encoded.footer, segment)
            self._decide(segment, None)
            del self._issued[encoded.footer.seq]
            due = self._footers.add(encoded.footer.seq, encoded.footer_bytes)
            if due is not None:
                uploads.create_task(self._write_index(due), name=f"index up to segment {due.end}")

    async def _write_index(self, block: IndexBlock) -> None:
        """Writes an index with one attempt: it only saves reads, and a later one includes its footers."""
        key = index_key(self._session.id, block.first, block.end)
        try:
            async with asyncio.timeout(self._settings.put_timeout_ms / 1000):
                await self._store.create(key, encode_index(self._session.id, block))
        except (TidelogError, TimeoutError) as error:
            log.info("index not written key=%s: %s", key, str(error) or "no answer in time")

    def _end(self, seq: SegmentSeq, *, unknown: OutcomeUnknown | None = None) -> None:
        """Ends the session at `seq`: refuses that segment and all unsent ones. Earlier segments go on.

        Where a seal stands, what was sent will never be visible. `unknown`: the outcome of what was sent, where none stands.
        """
        self._ended = True
        unsent: TidelogError = SessionFenced(f"session {self._session.id} ended at segment {seq}, before this was committed")
        sent = unknown or unsent
        for segment, encoded in self._order.sealed(seq):
            del self._issued[encoded.footer.seq]
            self._decide(segment, sent)
        for segment in self._take_unsent():
            self._decide(segment, unsent)
        for other, upload in self._uploads.items():
            if other > seq:
                upload.cancel()

    async def _seal_at_the_end(self) -> None:
        """Seals the drained session, so that a successor need not. One that can't be written in time is left to the successor."""
        try:
            async with asyncio.timeout(self._settings.put_timeout_ms / 1000):
                await self._seal_own(self._order.next_seq, [])
        except (TimeoutError, Corrupt, OutcomeUnknown) as error:
            reason = str(error) or "the bucket did not answer in time"
            log.warning("session ends without a seal session=%s: %s", self._session.id, reason)

    def _refuse_the_rest(self) -> None:
        """Refuses all open segments when `run` is cancelled, so that no caller waits forever."""
        unknown = OutcomeUnknown(f"session {self._session.id} was given up while this was on its way to the bucket")
        for segment in self._issued.values():
            self._decide(segment, unknown)
        for segment in self._take_unsent():
            self._decide(segment, self._refusal())
        self._issued.clear()

    def _take_unsent(self) -> list[PendingSegment]:
        unsent = [*self._full, *([self._open] if self._open is not None else [])]
        self._full.clear()
        self._open = None
        return unsent

    def _decide(self, segment: PendingSegment, error: TidelogError | None) -> None:
        if error is not None:
            self._counters.segments_lost += 1
        segment.partitions.clear()  # a caller that still waits must not keep the batches of all the others in memory
        self._budget.release(segment.bytes_charged)
        segment.outcome.set_result(error)

    def _refusal(self) -> TidelogError:
        if self._closing:
            return Stopping("the broker is shutting down")
        return SessionFenced(f"session {self._session.id} has ended")
