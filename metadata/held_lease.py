"""A lease that its holder keeps: renewed at a third of its time to live, and given up by our own clock before the store ends it.

    our clock     sent ─────────── next renewal ─────────────────── lost ──▶ we act no more
                   0                  ttl / 3                     9/10 ttl
    the store         renewed ──────────────────────────────────────────────── the lease ends
                                                                             ttl after it was renewed

The store counts from when it has renewed the lease, we count from before we asked. So however late its answer is, we are through
first, and the tenth between us is for clocks that don't run alike and for what we are doing at that moment. It is a promise about
time, and so only as good as the clocks: what must never happen (a write after a successor has begun) is kept from happening by the
seal on the bucket, not by a lease.

Invariant: a lease that was lost is never held again, whatever the store says later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from metadata.errors import TidelogError
from metadata.store import LeaseId, LeaseLost, MetadataStore

RENEWALS_PER_TTL = 3
HELD_SHARE = 0.9
"""Of the time to live, for how long we count a lease as ours."""
RETRIES_PER_TTL = 20
RELEASE_TIMEOUT_S = 3.0

log = logging.getLogger(__name__)


def clock() -> float:
    """Seconds that only go forward, and where the system can tell also while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HeldLease:
    """Taken with `take`; its owner runs `run()` as a task, and calls `release()` at the end."""

    def __init__(self, store: MetadataStore, lease: LeaseId, ttl_s: float, *, asked_at: float, clock: Callable[[], float]) -> None:
        self.id = lease
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._renewed_at = asked_at
        self._lost = asyncio.Event()

    @classmethod
    async def take(cls, store: MetadataStore, ttl_s: float, *, clock: Callable[[], float] = clock) -> HeldLease:
        """A new lease, counted from now. Raises what `grant_lease` raises."""
        asked_at = clock()
        return cls(store, await store.grant_lease(ttl_s), ttl_s, asked_at=asked_at, clock=clock)

    @property
    def held(self) -> bool:
        """Whether the lease is ours at this very moment: true also tells that `run` has not fallen asleep."""
        return self.held_for_s > 0

    @property
    def held_for_s(self) -> float:
        """How much longer the lease is ours if nobody renews it; 0 when it is lost."""
        if self._lost.is_set():
            return 0.0
        return max(0.0, self._renewed_at + HELD_SHARE * self._ttl_s - self._clock())

    async def run(self) -> None:
        """Renews the lease until it is lost, and returns then; or until cancelled."""
        next_at = self._renewed_at + self._ttl_s / RENEWALS_PER_TTL
        while (left_s := self.held_for_s) > 0:
            await asyncio.sleep(min(max(0.0, next_at - self._clock()), left_s))
            if (left_s := self.held_for_s) > 0:
                next_at = await self._renew(left_s)
        self._lose("it was not renewed in time")

    async def wait_lost(self) -> None:
        """Returns when the lease is lost or released. `run` must be running."""
        await self._lost.wait()

    async def release(self) -> None:
        """Ends the lease, and with it its keys, so that nobody waits for them to expire. Its keys expire where that fails."""
        self._lost.set()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._store.revoke_lease(self.id)
        except (TidelogError, TimeoutError) as error:
            log.warning("lease %s could not be given back; it ends by itself within %g s: %s", self.id, self._ttl_s, error)

    async def _renew(self, left_s: float) -> float:
        """Tries once, for as long as the lease is held. When to try again, by the clock."""
        sent_at = self._clock()
        try:
            async with asyncio.timeout(left_s):
                ttl_s = await self._store.keep_alive(self.id)
        except LeaseLost:
            self._lose("the store has ended it")
            return sent_at
        except (TidelogError, TimeoutError) as error:
            log.warning("lease %s is not renewed, and lost in %.1f s: %s", self.id, self.held_for_s, error or "no answer")
            return self._clock() + self._ttl_s / RETRIES_PER_TTL
        if self.held:  # else the answer came too late: we have said that it is lost
            self._ttl_s = ttl_s
            self._renewed_at = sent_at
        return sent_at + ttl_s / RENEWALS_PER_TTL

    def _lose(self, why: str) -> None:
        if not self._lost.is_set():
            log.error("lease %s is lost: %s", self.id, why)
            self._lost.set()
