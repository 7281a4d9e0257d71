"""Logs when an object store stops taking writes, and when it takes them again: once for each change, not for each PUT.

    write ok ▸ fails for LOG_AFTER_S ─▶ "takes no writes" ▸ still fails, once in LOG_AGAIN_S ▸ write ok ─▶ "takes writes again"

One failure between two successful writes is normal in networks, and is not logged. A full disk still takes small objects (a seal, a
claim), so a successful write ends the trouble only if it is as large as one that failed, or if nothing failed for a while. A write
that its caller abandoned without an answer counts as failed since it began.

The outcomes of all calls go to health.py as well; the writer uses it to send fewer requests to an unhealthy bucket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, TypeVar

from metadata.errors import AlreadyExists, Denied, OutcomeUnknown, TidelogError, Unavailable
from segments.object_store.decorator import ObjectStoreDecorator, Operation
from segments.object_store.health import HealthState, StoreHealth
from segments.object_store.interface import Buffer, ObjectStore

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

LOG_AFTER_S: Final = 1.0
LOG_AGAIN_S: Final = 60.0
# Failed writes are tried again more often than this.
QUIET_S: Final = 5.0
# A call other than a create counts as failed if its caller gives up on it after this time.
SILENT_S: Final = 5.0


class StoreTrouble(NamedTuple):
    """Why the bucket takes no writes, and what helps, for people."""

    message: str
    hint: str


class Unwritable(NamedTuple):
    """Describes an outage of writes: its length, and the smallest object that failed."""

    for_s: float
    bytes_min: int


class HealthTrackingObjectStore(ObjectStoreDecorator):
    """Tracks the health of a store, and logs when it takes no more writes. What the store answers or raises is not changed."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._health = StoreHealth()
        self._failing_since_s: float | None = None
        self._failed_at_s = 0.0
        self._failed_bytes_min = 0
        self._logged_at_s: float | None = None
        self._failure: TidelogError | None = None
        self._succeeded_at_s = float("-inf")
        # Creates without an answer yet: since when, and how many bytes. In the order of their begin.
        self._under_way: dict[object, tuple[float, int]] = {}

    @property
    def state(self) -> HealthState:
        return self._health.state(asyncio.get_running_loop().time())

    @property
    def trouble(self) -> StoreTrouble | None:
        """Returns what is wrong while the bucket takes no writes for longer than networks fail now and then, or while nearly all
        calls to it fail, reads too."""
        if self._logged_at_s is None or self._failure is None:
            if self.state is HealthState.UNAVAILABLE and not self._health.answers:
                hint = "Look at the network and the credentials: `tidelog doctor` looks at each step."
                return StoreTrouble("nearly all requests to the bucket fail", hint)
            return None
        hint = self._failure.hint or "Look at the bucket: its disk, its network, its credentials."
        return StoreTrouble(f"the bucket takes no writes: {self._failure.message}", hint)

    @property
    def unwritable(self) -> Unwritable | None:
        """Returns the outage of writes; None when the last write succeeded, or none was tried since.

        It begins with the first failure, and includes writes without an answer yet: the caller decides how long is too long.
        """
        now_s = asyncio.get_running_loop().time()
        waiting = [(max(since_s, self._succeeded_at_s), size) for since_s, size in self._under_way.values()]
        if self._failing_since_s is not None and (waiting or now_s - self._failed_at_s < QUIET_S):
            waiting.append((self._failing_since_s, self._failed_bytes_min))
        if not waiting:
            return None
        return Unwritable(now_s - min(since_s for since_s, _ in waiting), max(1, min(size for _, size in waiting)))

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        body_bytes = sum(memoryview(part).nbytes for part in body)
        began_s = asyncio.get_running_loop().time()
        create = object()
        self._under_way[create] = began_s, body_bytes
        try:
            await self._store.create(key, body, crc32c=crc32c)
        except AlreadyExists:
            self._succeeded(body_bytes)
            raise
        except TidelogError as error:
            self._failed(error, body_bytes, began_s)
            raise
        except asyncio.CancelledError:
            waited_s = asyncio.get_running_loop().time() - began_s
            if waited_s >= LOG_AFTER_S and self._succeeded_at_s < began_s:  # not one of two, of which the other was faster
                self._failed(OutcomeUnknown(f"no answer within {waited_s:.1f} s"), body_bytes, began_s)
            raise
        else:
            self._succeeded(body_bytes)
        finally:
            del self._under_way[create]

    async def _call(self, operation: Operation, key: str, call: Awaitable[_Answer]) -> _Answer:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            answer = await call
        except TidelogError as error:
            self._health.ended(failed=isinstance(error, Unavailable | OutcomeUnknown | Denied), now_s=clock())
            raise
        except asyncio.CancelledError:
            if clock() - began_s >= SILENT_S:
                self._health.ended(failed=True, now_s=clock())
            raise
        self._health.ended(failed=False, now_s=clock())
        return answer

    def _failed(self, error: TidelogError, body_bytes: int, began_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self._health.ended(failed=True, now_s=now_s)
        self._failure = error
        if self._failing_since_s is None or (self._logged_at_s is None and began_s - self._failed_at_s >= QUIET_S):
            self._failing_since_s, self._failed_bytes_min = began_s, body_bytes
        self._failed_at_s = now_s
        self._failed_bytes_min = min(self._failed_bytes_min, body_bytes)
        for_s = now_s - self._failing_since_s
        if self._logged_at_s is None and for_s >= LOG_AFTER_S:
            log.warning(
                "the bucket takes no writes: %s. What was acknowledged is safe; producers wait, and are refused after a while. "
                "Trying again until it works",
                error,
            )
        elif self._logged_at_s is not None and now_s - self._logged_at_s >= LOG_AGAIN_S:
            log.warning("the bucket has taken no writes for %.0f s: %s", for_s, error)
        else:
            return
        self._logged_at_s = now_s

    def _succeeded(self, body_bytes: int) -> None:
        now_s = asyncio.get_running_loop().time()
        self._health.ended(failed=False, now_s=now_s)
        if self._failing_since_s is None:
            self._succeeded_at_s = now_s
            return
        if body_bytes < self._failed_bytes_min and now_s - self._failed_at_s < QUIET_S:
            return
        self._succeeded_at_s = now_s
        if self._logged_at_s is not None:
            log.warning("the bucket takes writes again, after %.0f s", now_s - self._failing_since_s)
        self._failing_since_s = self._logged_at_s = self._failure = None
