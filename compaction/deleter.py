"""Deletes objects that nobody needs, some at a time; a bucket that denies it is told once, and everything else goes on.

What could not be deleted is still found by whoever planned it, so it is tried again. Denied deletes are not tried for an hour, and
none are while this machine's clock and the store's contradict each other (segments/object_store/clock_reading.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from metadata.errors import Denied, OutcomeUnknown, TidelogError, Unavailable
from segments.object_store.interface import ObjectStore
from segments.object_store.store_clock import StoreClock

AT_ONCE: Final = 16
DENIED_PAUSE_MS: Final = 3_600_000

log = logging.getLogger(__name__)


class ObjectDeleter:
    def __init__(self, store: ObjectStore, *, now_ms: Callable[[], int], clock: StoreClock | None = None) -> None:
        """`clock`: where a doubt of it puts deletes off; left out by those who delete nothing for its age."""
        self._store = store
        self._clock = clock or StoreClock(now_ms)
        self._now_ms = now_ms
        self._denied_at_ms: int | None = None
        self.deleted = 0
        """Objects, since the start."""

    @property
    def are_denied(self) -> bool:
        """Whether the bucket refused a delete within the last hour."""
        return self._denied_at_ms is not None and self._now_ms() - self._denied_at_ms < DENIED_PAUSE_MS

    @property
    def are_on_hold(self) -> bool:
        """Whether nothing is deleted for now: it is denied, or the clock is in doubt."""
        return self.are_denied or self._clock.is_doubted

    async def delete(self, keys: Iterable[str]) -> set[str]:
        """Those that are gone now, in the order given as far as AT_ONCE allows. What stays is told in the log, and left."""
        gone: set[str] = set()
        left = iter(keys)
        while not self.are_on_hold and (part := list(islice(left, AT_ONCE))):
            async with asyncio.TaskGroup() as tasks:
                outcomes = [(key, tasks.create_task(self._delete(key))) for key in part]
            gone |= {key for key, outcome in outcomes if outcome.result()}
            if not all(outcome.result() for _, outcome in outcomes):
                break
        self.deleted += len(gone)
        return gone

    async def _delete(self, key: str) -> bool:
        try:
            await self._store.delete(key)
        except Denied as error:
            if not self.are_denied:
                log.error(
                    "%s does not let us delete %s, so what was compacted, merged or expired stays and costs money: %s. "
                    "Allow s3:DeleteObject on the objects of the bucket's prefix (`tidelog doctor` prints the whole policy). "
                    "Everything else goes on; deleting is tried again in an hour",
                    self._store.url,
                    key,
                    error,
                )
            self._denied_at_ms = self._now_ms()
            return False
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("%s was not deleted, and is tried again later: %s", key, error)
            return False
        except TidelogError as error:
            log.error("%s could not be deleted: %s", key, error)
            return False
        if self._denied_at_ms is not None:
            log.warning("%s lets us delete again", self._store.url)
            self._denied_at_ms = None
        return True
