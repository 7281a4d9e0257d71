"""Ends the session of a live broker that cannot write to the bucket, if another broker can. If none can, no broker loses its
session.

  own writes fail for bucket_timeout_ms ─▶ `unwritable_bytes` in the own registration ◀── removed by the next write
                                             │ seen by every other broker
                                             ▼
  another broker writes as many bytes itself, PROOFS times ─▶ all succeed: removes the registration ─▶ the controller seals
                                                           └─▶ one fails: nothing happens; again after ASIDE_S

Writing is tried only while it is in doubt: for this broker, for another one, or since partitions wait for the bucket. An idle
cluster
writes nothing. Invariants: a registration is removed only in the version that said its broker cannot write, and only by a broker
that
has written since. A removed broker returns by a claim, which is a write, so no broker is removed again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.cluster.broker_lease import BrokerLease
from metadata.cluster.broker_registry import BrokerCache, read_brokers
from metadata.errors import AlreadyExists, TidelogError
from metadata.model import SessionId
from metadata.store.interface import Compare, Delete, MetadataStore
from metadata.store.keys import KeyLayout
from segments.bucket.layout import proof_key
from segments.object_store.health_tracking import HealthTrackingObjectStore

# Interval between checks of the own writes, and between attempts to write.
CHECK_INTERVAL_S = 1.0
# Writes that prove the bucket writable. A broker in trouble tries every CHECK_INTERVAL_S: if the bucket is back for all, it says so
# before the last.
PROOFS = 4
# Pause before a broker that could not prove its writes tries again.
ASIDE_S = 5.0

log = logging.getLogger(__name__)


class BucketIsolationMonitor:
    """Watches the writes of one session. Its owner runs `run()` as a task, and calls `wake` when the brokers have changed."""

    def __init__(
        self,
        bucket: HealthTrackingObjectStore,
        metadata: MetadataStore,
        brokers: BrokerCache,
        reporter: BrokerLease,
        *,
        layout: KeyLayout,
        session: SessionId,
        timeout_s: float,
        waits_for_s: Callable[[], float],
        new_nonce: Callable[[], bytes],
    ) -> None:
        """`waits_for_s` returns how long a task other than a write has waited for the bucket."""
        self._bucket = bucket
        self._metadata = metadata
        self._brokers = brokers
        self._reporter = reporter
        self._layout = layout
        self._session = session
        self._timeout_s = timeout_s
        self._waits_for_s = waits_for_s
        self._new_nonce = new_nonce
        self._in_trouble = asyncio.Event()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        self._changed.set()

    @property
    def in_trouble(self) -> bool:
        """Returns True once this broker has published that it cannot write."""
        return self._in_trouble.is_set()

    async def until_in_trouble(self) -> None:
        await self._in_trouble.wait()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_own_writes(), name="watch own writes")
            tasks.create_task(self._remove_who_can_not(), name="remove who can't write")

    async def _watch_own_writes(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if self.in_trouble or self._waits_for_s() >= self._timeout_s / 2:
                unwritable = self._bucket.unwritable
                await self._writes(unwritable.bytes_min if unwritable is not None else 1)
            unwritable = self._bucket.unwritable
            failing = unwritable is not None and unwritable.for_s >= (CHECK_INTERVAL_S if self.in_trouble else self._timeout_s)
            if failing != self.in_trouble:
                self._in_trouble.set() if failing else self._in_trouble.clear()
                self._reporter.publish_unwritable(unwritable.bytes_min if failing and unwritable is not None else 0)

    async def _remove_who_can_not(self) -> None:
        while True:
            self._changed.clear()
            if not self._others_in_trouble():
                await self._changed.wait()
                continue
            try:
                await self._remove_if_writing()
            except TidelogError as error:
                log.warning("bucket isolation check failed: %s; retrying", error)
            await asyncio.sleep(ASIDE_S)

    def _others_in_trouble(self) -> bool:
        brokers = self._brokers.brokers.values()
        return any(other.unwritable_bytes > 0 and other.session != self._session for other in brokers)

    async def _remove_if_writing(self) -> None:
        held = await read_brokers(self._metadata, self._layout)
        others = {broker_id: found for broker_id, found in held.items() if found.registration.session != self._session}
        troubled = {broker_id: found for broker_id, found in others.items() if found.registration.unwritable_bytes > 0}
        if not await self._proves(max((found.registration.unwritable_bytes for found in troubled.values()), default=0)):
            return
        for broker_id, found in troubled.items():
            key = self._layout.broker(broker_id)
            result = await self._metadata.transact([Compare(key, found.revision)], [Delete(key)])
            if result.succeeded:
                session = found.registration.session
                log.error(
                    "broker isolated from the bucket broker=%s session=%s: this broker can write; the session of the other ends",
                    broker_id,
                    session,
                )

    async def _proves(self, size: int) -> bool:
        """Writes objects of `size` bytes, PROOFS times, while another broker says that it cannot. Returns whether all succeeded."""
        for proof in range(PROOFS):
            if proof:
                await asyncio.sleep(CHECK_INTERVAL_S)
            if self.in_trouble or not self._others_in_trouble() or not await self._writes(size):
                return False
        return True

    async def _writes(self, size: int) -> bool:
        """Returns whether an object of `size` bytes can be written now, in time, and at the first attempt."""
        key = proof_key(self._new_nonce().hex())
        try:
            async with asyncio.timeout(self._timeout_s / 2):
                await self._bucket.create(key, [bytes(size)])
        except AlreadyExists:
            return False
        except (TidelogError, TimeoutError) as error:
            log.info("bucket probe failed bytes=%s: %s", size, str(error) or "no answer in time")
            return False
        try:
            async with asyncio.timeout(self._timeout_s / 2):
                await self._bucket.delete(key)
        except (TidelogError, TimeoutError) as error:
            log.info("bucket probe not deleted key=%s: %s; the object is unused", key, str(error) or "no answer in time")
        return True
