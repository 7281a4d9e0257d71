"""The manifests of the partitions that are led here: newer ones are adopted, and DeleteRecords commits one.

    notice, or NotFound ─▶ newest manifest ─▶ adopt: history, log start, runs below `compacted_to` forgotten
    DeleteRecords ─▶ newest manifest ─▶ log start raised ─▶ commit ─▶ no seal on the bucket? ─▶ adopt ─▶ answered
                            ▲                                 │ lost: a compactor was first
                            └─────────────────────────────────┘

Invariants: an older manifest never takes the place of a newer one; what DeleteRecords has answered, every later leader starts from:
who takes over reads the manifests after this leader has let go, or was sealed, and no answer is given after either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from metadata.errors import InvalidArgument, NoLeader, OutcomeUnknown, OutOfRange, TidelogError, Unavailable
from metadata.model import Offset, TopicPartition
from segments.history.index import History
from segments.history.manifest import Manifest, no_manifest
from segments.history.manifest_edits import log_start_raised
from segments.history.manifest_store import commit_manifest, newest_manifest
from segments.object_store.interface import ObjectStore
from segments.read.log_reader import LeaderPartition
from segments.shared_errors import own_copy

COMMIT_TIMEOUT_S: Final = 15.0
"""Until when a bucket that does not answer is asked whether it took a manifest."""
TRIES: Final = 20
"""Of one DeleteRecords, against compactors that are always first."""
HIGH_WATERMARK: Final = -1
"""In place of an offset: all that is committed when the leader takes the request."""


_Adopted = bool | TidelogError


class ManifestFollower:
    def __init__(
        self,
        store: ObjectStore,
        *,
        led_at: Callable[[TopicPartition], LeaderPartition],
        writable_at: Callable[[TopicPartition], LeaderPartition],
        check_not_sealed: Callable[[], Awaitable[None]],
        sent: Callable[[TopicPartition, int], None],
        spawn: Callable[[Coroutine[Any, Any, _Adopted]], asyncio.Task[_Adopted]],
        new_writer: Callable[[], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        """`led_at` raises NoLeader for a partition that is not led here; `writable_at` also for one that is being handed over.

        `sent` is told the version of each manifest that DeleteRecords has sent to the bucket, unless it surely does not count.
        """
        self._store = store
        self._led_at = led_at
        self._writable_at = writable_at
        self._check_not_sealed = check_not_sealed
        self._sent = sent
        self._spawn = spawn
        self._new_writer = new_writer
        self._now_ms = now_ms
        self._topics: dict[TopicPartition, str] = {}
        self._readings: dict[TopicPartition, asyncio.Task[_Adopted]] = {}

    def lead(self, partition: TopicPartition, topic: str) -> None:
        """`topic`: its name, which the keys of its manifests hold; empty where there are none."""
        self._topics[partition] = topic

    def drop(self, partition: TopicPartition) -> None:
        self._topics.pop(partition, None)

    def adopt(self, led: LeaderPartition, manifest: Manifest) -> bool:
        """Whether it is newer than the one that is held."""
        topic = self._topics.get(manifest.place)
        if not topic or (led.history is not None and led.history.manifest.version >= manifest.version):
            return False
        led.history = History(manifest, topic)
        self.settle(led)
        return True

    @staticmethod
    def settle(led: LeaderPartition) -> None:
        """What the manifest says of records that have come to be known as committed here only now."""
        if led.history is not None:
            led.log.raise_log_start(led.history.manifest.log_start_offset)
            led.runs.drop_below(led.history.manifest.compacted_to)

    async def adopt_newest(self, partition: TopicPartition) -> bool:
        """Reads the newest manifest, once for all who ask meanwhile. Whether it is newer than the one that was held.

        Raises NoLeader, Corrupt, and what the store raises.
        """
        topic = self._topics.get(partition)
        if not topic:
            return False
        reading = self._readings.get(partition)
        if reading is None:
            reading = self._readings[partition] = self._spawn(self._read(partition, topic))
            reading.add_done_callback(lambda _: self._readings.pop(partition, None))
        await asyncio.wait((reading,))  # whoever waits may be cancelled, and disturbs no other
        adopted = reading.result() if not reading.cancelled() else NoLeader(f"this broker leads {partition} no more")
        if isinstance(adopted, TidelogError):
            raise own_copy(adopted)
        return adopted

    async def _read(self, partition: TopicPartition, topic: str) -> _Adopted:
        try:
            manifest = await newest_manifest(self._store, topic, partition)
            return manifest is not None and self.adopt(self._led_at(partition), manifest)
        except TidelogError as error:
            return error.with_traceback(None)

    async def delete_records(self, partition: TopicPartition, before_offset: int, *, validate_only: bool = False) -> Offset:
        """Raises the log start to `before_offset`, or to the high watermark for -1, and answers where the log starts now.

        One that lies below already is no error. Raises OutOfRange above the high watermark, InvalidArgument below -1, NoLeader;
        then nothing was written. OutcomeUnknown where this broker ceased to lead meanwhile, or the bucket did not answer.
        """
        led = self._writable_at(partition)
        offset = _checked(led, before_offset)
        topic = self._topics.get(partition)
        if not topic:
            raise NoLeader(f"the topic of {partition} is not known here yet")
        if validate_only:
            return max(offset, led.log.log_start_offset)
        if offset <= led.log.log_start_offset:
            await self._check_not_sealed()  # else the next leader may not have read the manifest that says so
            led = self._writable_at(partition)
            if offset <= led.log.log_start_offset:
                return led.log.log_start_offset
        for _ in range(TRIES):
            newest = await newest_manifest(self._store, topic, partition) or no_manifest(partition)
            self._writable_at(partition)  # before anything is written
            raised = newest
            if newest.log_start_offset < offset:
                raised = log_start_raised(newest, offset, writer=self._new_writer().hex(), now_ms=self._now_ms())
            may_count = True
            try:
                if raised is not newest and not await commit_manifest(self._store, topic, raised, timeout_s=COMMIT_TIMEOUT_S):
                    may_count = False
                    continue
                await self._still_leads(led)
                self.adopt(led, raised)
                return led.log.log_start_offset
            except Unavailable:
                may_count = False  # of the commit: the next writer of this version is another
                raise
            finally:
                if may_count:
                    self._sent(partition, raised.version)  # also where nobody waits for the answer any more
        raise Unavailable(f"compactors were first {TRIES} times to write the next manifest of {partition}; no record was deleted")

    async def _still_leads(self, led: LeaderPartition) -> None:
        """The next leader may have read the manifests before this one was written: for its readers the log starts where it did.

        The lease is no proof: somebody may have removed it, and a new leader seals first, whoever made room for it.
        """
        partition = led.log.partition
        try:
            await self._check_not_sealed()
            if self._writable_at(partition) is led:
                return
            reason = f"this broker leads {partition} anew"
        except TidelogError as error:
            reason = error.message
        raise OutcomeUnknown(
            f"the log start of {partition} was raised on the bucket, but its next leader may not know it yet: {reason}",
            hint="Ask again: it may be repeated.",
        )


def _checked(led: LeaderPartition, before_offset: int) -> Offset:
    log = led.log
    if before_offset == HIGH_WATERMARK:
        return log.high_watermark
    if before_offset < 0:
        raise InvalidArgument(
            f"{before_offset} is no offset to delete records before", hint="Give one from 0 on, or -1 for all that is committed."
        )
    if before_offset > log.high_watermark:
        raise OutOfRange(
            f"{log.partition} is committed up to {log.high_watermark}; records before {before_offset} can't be deleted",
            hint=f"Give an offset up to {log.high_watermark}, or -1 for all that is committed.",
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
    return Offset(before_offset)
