"""The manifests of the partitions that this session leads: adopts newer ones, and commits one for DeleteRecords.

    notice, or NotFound ─▶ newest manifest ─▶ adopt: history, log start; runs below `compacted_to` are forgotten
    DeleteRecords ─▶ newest manifest ─▶ log start raised ─▶ commit ─▶ no seal on the bucket? ─▶ adopt ─▶ answer
                            ▲                                 │ lost: a compactor was first
                            └─────────────────────────────────┘

Invariants: an older manifest never replaces a newer one. Every later leader starts from what DeleteRecords has answered: it reads
the manifests after this leader has released the partition, or was sealed, and this leader gives no answer after either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from metadata.errors import InvalidArgument, NoLeader, OutcomeUnknown, OutOfRange, TidelogError, Unavailable
from metadata.model import Offset, TopicPartition
from segments.history.index import HistoryIndex
from segments.history.manifest import Manifest, no_manifest
from segments.history.manifest_edits import with_log_start
from segments.history.manifest_store import commit_manifest, newest_manifest
from segments.object_store.interface import ObjectStore
from segments.partition.leader_partitions import LeaderPartition, LeaderPartitions
from segments.shared_errors import copy_of

# Time limit for asking a silent bucket whether it stored a manifest.
COMMIT_TIMEOUT_S: Final = 15.0
# Attempts of one DeleteRecords, where compactors commit first each time.
TRIES: Final = 20
# Stands for the high watermark when the leader takes the request.
HIGH_WATERMARK: Final = -1


_Adopted = bool | TidelogError


class ManifestFollower:
    """Holds the newest known manifest of each partition that the session leads."""

    def __init__(
        self,
        store: ObjectStore,
        partitions: LeaderPartitions,
        *,
        check_not_sealed: Callable[[], Awaitable[None]],
        on_deletion: Callable[[TopicPartition, int], None],
        changed: Callable[[TopicPartition], None],
        spawn: Callable[[Coroutine[Any, Any, _Adopted]], asyncio.Task[_Adopted]],
        new_writer: Callable[[], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        """`on_deletion` is called with the version of each manifest that DeleteRecords sent to the bucket, unless that certainly
        does not count, `changed` with each partition whose manifest was adopted. Both must not block."""
        self._store = store
        self._partitions = partitions
        self._check_not_sealed = check_not_sealed
        self._on_deletion = on_deletion
        self._changed = changed
        self._spawn = spawn
        self._new_writer = new_writer
        self._now_ms = now_ms
        self._topics: dict[TopicPartition, str] = {}
        self._readings: dict[TopicPartition, asyncio.Task[_Adopted]] = {}

    def follow(self, partition: TopicPartition, topic: str) -> None:
        """Begins with a partition. `topic` is its name, which stands in the keys of its manifests; empty where there are none."""
        self._topics[partition] = topic

    def forget(self, partition: TopicPartition) -> None:
        """Ends with a partition that the session leads no more."""
        self._topics.pop(partition, None)

    def version(self, partition: TopicPartition) -> int | None:
        """Returns the version that is held, 0 where nothing was compacted; None for a partition that this session does not lead."""
        led = self._partitions.get(partition)
        if led is None:
            return None
        return led.history.manifest.version if led.history is not None else 0

    def adopt(self, manifest: Manifest) -> bool:
        """Makes reads and the log start follow this manifest, if it is newer than the one that is held. Returns whether it is.

        Returns False for a partition that this session does not lead.
        """
        led = self._partitions.get(manifest.topic_partition)
        return led is not None and self._adopt(led, manifest)

    def _adopt(self, led: LeaderPartition, manifest: Manifest) -> bool:
        topic = self._topics.get(manifest.topic_partition)
        if not topic or (led.history is not None and led.history.manifest.version >= manifest.version):
            return False
        led.history = HistoryIndex(manifest, topic)
        self.settle(led)
        self._changed(manifest.topic_partition)
        return True

    @staticmethod
    def settle(led: LeaderPartition) -> None:
        """Applies the manifest to records that this session has come to know as committed only now."""
        if led.history is not None:
            led.log.raise_log_start(led.history.manifest.log_start_offset)
            led.runs.drop_below(led.history.manifest.compacted_to)

    async def adopt_newest(self, partition: TopicPartition) -> bool:
        """Reads and adopts the newest manifest; concurrent callers share one read. Returns whether it is newer than the one held.

        Raises NoLeader, Corrupt, and what the store raises.
        """
        topic = self._topics.get(partition)
        if not topic:
            return False
        reading = self._readings.get(partition)
        if reading is None:
            reading = self._readings[partition] = self._spawn(self._read(partition, topic))
            reading.add_done_callback(lambda _: self._readings.pop(partition, None))
        await asyncio.wait((reading,))  # a waiter that is cancelled affects no other
        adopted = reading.result() if not reading.cancelled() else NoLeader(f"this broker leads {partition} no more")
        if isinstance(adopted, TidelogError):
            raise copy_of(adopted)
        return adopted

    async def _read(self, partition: TopicPartition, topic: str) -> _Adopted:
        try:
            manifest = await newest_manifest(self._store, topic, partition)
            return manifest is not None and self._adopt(self._partitions.at(partition), manifest)
        except TidelogError as error:
            return error.with_traceback(None)

    async def delete_records(self, partition: TopicPartition, before_offset: int, *, validate_only: bool = False) -> Offset:
        """Raises the log start to `before_offset`, or to the high watermark for -1. Returns where the log starts now, or would.

        An offset below the log start is no error. Raises OutOfRange above the high watermark, InvalidArgument below -1, NoLeader;
        then nothing was written. Raises OutcomeUnknown where this broker ceased to lead meanwhile, or the bucket did not answer.
        """
        led = self._partitions.writable(partition)
        offset = _checked(led, before_offset)
        topic = self._topics.get(partition)
        if not topic:
            raise NoLeader(f"the topic of {partition} is not known here yet")
        if validate_only:
            return max(offset, led.log.log_start_offset)
        if offset <= led.log.log_start_offset:
            await self._check_not_sealed()  # else the next leader may not have read the manifest that says so
            led = self._partitions.writable(partition)
            if offset <= led.log.log_start_offset:
                return led.log.log_start_offset
        for _ in range(TRIES):
            newest = await newest_manifest(self._store, topic, partition) or no_manifest(partition)
            self._partitions.writable(partition)  # before anything is written
            raised = newest
            if newest.log_start_offset < offset:
                raised = with_log_start(newest, offset, writer=self._new_writer().hex(), now_ms=self._now_ms())
            may_count = True
            try:
                if raised is not newest and not await commit_manifest(self._store, topic, raised, timeout_s=COMMIT_TIMEOUT_S):
                    may_count = False
                    continue
                await self._still_leads(led)
                self._adopt(led, raised)
                return led.log.log_start_offset
            except Unavailable:
                may_count = False  # of the commit: the next writer of this version is another
                raise
            finally:
                if may_count:
                    self._on_deletion(partition, raised.version)  # also where the caller was cancelled
        raise Unavailable(f"compactors were first {TRIES} times to write the next manifest of {partition}; no record was deleted")

    async def _still_leads(self, led: LeaderPartition) -> None:
        """Raises OutcomeUnknown unless the next leader is certain to read the manifest that was just written.

        A next leader that read the manifests before would serve from the old log start. The lease is no proof, because an operator
        may have removed it; a seal is, because every new leader seals first.
        """
        partition = led.log.partition
        try:
            await self._check_not_sealed()
            if self._partitions.writable(partition) is led:
                return
            reason = f"this broker leads {partition} again"
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
