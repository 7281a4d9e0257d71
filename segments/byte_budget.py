"""Applies back-pressure in bytes: one bound on everything that is buffered or in flight.

Invariant: the bytes that were requested and granted never exceed `bytes_max` (what an admitted request grows by while it is
encoded comes on top); waiters are served in order of arrival, so that small requests do not starve a large one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import TracebackType

from metadata.errors import Throttled, TooLarge

_SMALLER = "Send smaller requests."


class ByteBudget:
    """Bounds bytes, and makes callers wait for room."""

    def __init__(self, bytes_max: int, *, of: str = "records that are not yet on the bucket") -> None:
        """`of` says in errors what the bytes belong to."""
        self.bytes_max = bytes_max
        self._of = of
        self.bytes_used = 0
        self.bytes_used_peak = 0
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()  # in order of arrival

    @property
    def waiting(self) -> int:
        """Returns how many callers wait for room."""
        return len(self._waiting)

    def admit(self, bytes_count: int, *, timeout_s: float) -> Admission:
        """Reserves `bytes_count` bytes, as a context manager that waits for them. What was not taken is given back at its end.

        Entering raises TooLarge for more than the whole budget, and Throttled when there is no room in time.
        """
        return Admission(self, bytes_count, timeout_s)

    def admit_now(self, bytes_count: int) -> Admission | None:
        """Returns room for `bytes_count` bytes, which the caller releases; None where `acquire` would have to wait."""
        if not self.has_room(bytes_count):
            return None
        self.take(bytes_count)
        return Admission(self, bytes_count, 0.0)

    async def acquire(self, bytes_count: int, *, timeout_s: float) -> None:
        if bytes_count > self.bytes_max:
            raise TooLarge(f"{bytes_count} bytes are more than all {self._of} may take ({self.bytes_max})", hint=_SMALLER)
        if self.has_room(bytes_count):
            self.take(bytes_count)
            return
        room = asyncio.get_running_loop().create_future()
        self._waiting[room] = bytes_count
        try:
            await asyncio.wait((room,), timeout=timeout_s)
        except asyncio.CancelledError:
            if room.done():
                self.release(bytes_count)
            else:
                self._give_up(room)
            raise
        if not room.done():
            self._give_up(room)
            raise Throttled(
                f"{self._of} take {self.bytes_used} of {self.bytes_max} bytes; no room came within {timeout_s:g} s",
                hint="The bucket is slower than its clients. Retry with back-off.",
            )

    def has_room(self, bytes_count: int) -> bool:
        """Returns whether `acquire` would not have to wait."""
        return not self._waiting and self.bytes_used + bytes_count <= self.bytes_max

    def release(self, bytes_count: int) -> None:
        self.bytes_used -= bytes_count
        assert self.bytes_used >= 0, "more bytes were given back than were taken"
        self._grant()

    def _give_up(self, room: asyncio.Future[None]) -> None:
        del self._waiting[room]
        room.cancel()
        self._grant()

    def take(self, bytes_count: int) -> None:
        """Takes bytes without asking: for what a request that was already admitted grows by."""
        self.bytes_used += bytes_count
        self.bytes_used_peak = max(self.bytes_used_peak, self.bytes_used)

    def _grant(self) -> None:
        while self._waiting:
            room, bytes_count = next(iter(self._waiting.items()))
            if self.bytes_used + bytes_count > self.bytes_max:
                return
            del self._waiting[room]
            self.take(bytes_count)
            room.set_result(None)


class Admission:
    """Bytes granted to one request, which its appends take over bit by bit."""

    __slots__ = ("_budget", "_bytes_left", "_timeout_s")

    def __init__(self, budget: ByteBudget, bytes_count: int, timeout_s: float) -> None:
        self._budget = budget
        self._bytes_left = bytes_count
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Admission:
        await self._budget.acquire(self._bytes_left, timeout_s=self._timeout_s)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """Gives back what was not taken."""
        self._budget.release(self._bytes_left)
        self._bytes_left = 0

    def grow(self, bytes_count: int) -> None:
        """Takes more bytes, for a body of unknown length. Raises Throttled at once when there is no room.

        It does not wait: two callers that each hold bytes and wait for more would block each other.
        """
        if self._bytes_left + bytes_count > self._budget.bytes_max:
            raise TooLarge(f"the request does not fit the buffer of {self._budget.bytes_max} bytes", hint=_SMALLER)
        if self._budget.bytes_used + bytes_count > self._budget.bytes_max:
            raise Throttled(
                f"the buffer holds {self._budget.bytes_used} of {self._budget.bytes_max} bytes, and the body goes on",
                hint="Announce its length (Content-Length) to wait for room, or retry with back-off.",
            )
        self._budget.take(bytes_count)
        self._bytes_left += bytes_count

    def take(self, bytes_count: int) -> None:
        """Hands bytes over to the log, which releases them when their segment is decided.

        A batch that is larger than what is left (JSON can grow when it becomes a batch) goes over the bound by the difference,
        so that a request that was admitted is never refused half-way.
        """
        missing = bytes_count - self._bytes_left
        if missing > 0:
            self._budget.take(missing)
            self._bytes_left += missing
        self._bytes_left -= bytes_count

    def outlived(self) -> Callable[[], None]:
        """Hands all that is left over to work that goes on when the request has ended. Call what it answers when that has, too."""
        bytes_count, self._bytes_left = self._bytes_left, 0
        return partial(self._budget.release, bytes_count)
