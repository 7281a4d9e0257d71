"""Lists the bucket when someone asks for it, and keeps what it found: for a minute, or for PAGE_AGE_S for each page that it took.

    request ─▶ is `latest` older than that? ─▶ run(): LIST, page after page ─▶ `latest`
                   └ the older one is answered where the listing takes longer than the request waits

A snapshot of a million objects takes a thousand LISTs, half a cent on S3. Each part of the bucket has a bound of pages, so that
none keeps the others from being counted; a snapshot that met one says so. Invariant: one listing at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.topics.usage.bucket_tally import BucketTally
from metadata.errors import TidelogError
from segments.bucket.layout import APPOINTMENTS, CLUSTER, PROOFS, STAGED, TOPICS, WAL
from segments.object_store.interface import ObjectStore

AGE_MIN_S: Final = 60.0
AGE_MAX_S: Final = 900.0
PAGE_AGE_S: Final = 6.0
# After a failure; a request meanwhile gets the older snapshot, with the error.
RETRY_S: Final = 60.0
# Pages of a thousand objects that one snapshot lists at most, of each part.
PARTS: Final = {WAL: 1_000, TOPICS: 1_000, "metadata/": 10, APPOINTMENTS: 10, STAGED: 100, CLUSTER: 1, PROOFS: 1}
PAGE_TIMEOUT_S: Final = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BucketSnapshot:
    """Holds what one listing found; it is never changed."""

    tally: BucketTally
    taken_at_ms: int
    took_s: float
    pages: int
    # The parts of the bucket of which not all was listed.
    cut: tuple[str, ...]


class BucketSnapshots:
    """Takes snapshots of the bucket. Its owner runs `run()` as a task."""

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._asked = asyncio.Event()
        self._done = asyncio.Event()
        self._due_at_s = 0.0
        self.latest: BucketSnapshot | None = None
        self.is_listing = False
        # Why the last listing failed; empty where it did not.
        self.trouble = ""

    async def ask(self, *, wait_s: float) -> BucketSnapshot | None:
        """Returns the latest snapshot; None before the first. If it is old, begins another, and waits `wait_s` for it."""
        begins = not self.is_listing and asyncio.get_running_loop().time() >= self._due_at_s
        if begins:
            self._done.clear()
            self._asked.set()
        if begins or (self.latest is None and not self.trouble):
            try:
                async with asyncio.timeout(wait_s):
                    await self._done.wait()
            except TimeoutError:
                pass
        return self.latest

    async def run(self) -> None:
        """Lists the bucket whenever it was asked for, until cancelled."""
        clock = asyncio.get_running_loop()
        while True:
            await self._asked.wait()
            self._asked.clear()
            self.is_listing = True
            try:
                self.latest = await self._listed()
                self.trouble = ""
                age_s = min(AGE_MAX_S, max(AGE_MIN_S, PAGE_AGE_S * self.latest.pages))
                self._due_at_s = clock.time() + max(age_s, 20 * self.latest.took_s)
            except (TidelogError, TimeoutError) as error:
                self.trouble = str(error) or f"a LIST took more than {PAGE_TIMEOUT_S:g} s"
                self._due_at_s = clock.time() + RETRY_S
                log.warning("listing the bucket for its usage failed: %s; retrying when it is asked for again", self.trouble)
            except Exception:  # figures must not end a broker
                self.trouble = "an internal error, which is in the broker's log"
                self._due_at_s = clock.time() + RETRY_S
                log.exception("listing the bucket for its usage failed")
            finally:
                self.is_listing = False
                self._done.set()

    async def _listed(self) -> BucketSnapshot:
        clock = asyncio.get_running_loop()
        began_s, taken_at_ms = clock.time(), self._now_ms()
        tally = BucketTally()
        pages, cut = 0, []
        for prefix, pages_max in PARTS.items():
            start_after, more = "", True
            for _ in range(pages_max):
                async with asyncio.timeout(PAGE_TIMEOUT_S):
                    page = await self._store.list(prefix, start_after=start_after)
                pages += 1
                tally.take_in(page.objects)
                more = page.more
                if not more:
                    break
                start_after = page.objects[-1].key
            if more:
                cut.append(prefix)
        tally.end()
        return BucketSnapshot(tally, taken_at_ms, clock.time() - began_s, pages, tuple(cut))
