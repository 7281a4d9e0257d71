"""Deletes unneeded objects, some at a time; a denial of the bucket is logged once, and everything else goes on.

The planner finds what could not be deleted again, so it is retried. Denied deletes are not tried for an hour, and
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
    """Deletes objects for all background work of one compactor."""

    def __init__(self, store: ObjectStore, *, now_ms: Callable[[], int], clock: StoreClock | None = None) -> None:
        """`clock`: while it is in doubt, deletes wait; left out by callers whose deletes do not depend on age."""
        self._store = store
        self._clock = clock or StoreClock(now_ms)
        self._now_ms = now_ms
        self._denied_at_ms: int | None = None
        # Objects deleted since the start.
        self.deleted = 0

    @property
    def are_denied(self) -> bool:
        """Returns whether the bucket refused a delete within the last hour."""
        return self._denied_at_ms is not None and self._now_ms() - self._denied_at_ms < DENIED_PAUSE_MS

    @property
    def are_on_hold(self) -> bool:
        """Returns whether deletes wait: they are denied, or the clock is in doubt."""
        return self.are_denied or self._clock.is_doubted

    async def delete(self, keys: Iterable[str]) -> set[str]:
        """Deletes the objects, AT_ONCE at a time in the given order, and returns those that are gone. Failures are logged."""
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
                    "delete denied bucket=%s key=%s: replaced and expired objects stay and cost money: %s. "
                    "Allow s3:DeleteObject on the objects of the bucket's prefix (`tidelog doctor` prints the whole policy). "
                    "Everything else goes on; retrying in an hour",
                    self._store.url,
                    key,
                    error,
                )
            self._denied_at_ms = self._now_ms()
            return False
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("delete failed key=%s: %s; retrying later", key, error)
            return False
        except TidelogError as error:
            log.error("delete failed key=%s: %s", key, error)
            return False
        if self._denied_at_ms is not None:
            log.warning("deletes allowed again bucket=%s", self._store.url)
            self._denied_at_ms = None
        return True
