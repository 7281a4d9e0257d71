"""Bounds the memory of answers on their way to readers: an answer is read once bytes are granted, and holds them until it is sent.

    wait for records ─▶ ask for bytes ─▶ read, decode ─▶ keep the answer's size ─▶ send it ─▶ return the bytes
    holds nothing       └ full: wait in order, then Throttled

A budget of B bytes (answer_bytes_max) with F of them free grants an answer that wants W and needs at least L:

    min(W, max(F / 8, L))

So a few readers that do not receive their answers cannot block the others: answers become smaller as the budget fills up, and
readers wait only if not even L is free. Each listener has its own budget, so that HTTP readers never stop gRPC readers.

Invariants: answers together never hold more than B, except for a batch, or a record, that is larger than the bytes granted to its
answer. Waiting readers are served in order of arrival and hold nothing, so no two wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from gateway.concurrency.offload import BoundedExecutor
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.records.batch_decoder import takes_long
from gateway.settings import GatewaySettings
from metadata.errors import Stopping, Throttled
from segments.byte_budget import ByteBudget
from segments.read.log_reader import FetchResult

# Any answer may wait this long for bytes, including a long poll whose record came at its last moment.
ROOM_WAIT_S: Final = 2.0
# A reader that receives more slowly is disconnected after answer_timeout_ms, since it holds bytes that others wait for. At half a
# megabit per second the longest answer still arrives.
BYTES_PER_SECOND_MIN: Final = 64 << 10
# Least bytes of an answer with decoded records, which may end after any record.
BYTES_LEAST: Final = 64 << 10
# Answers that are decoded at the same time: each batch may take decompressed_bytes_max, and more threads would not be faster.
OPENINGS_MAX: Final = 2

_SHARE: Final = 8
_Body = TypeVar("_Body")


class ResponseBudget:
    """The bytes of one listener for answers that readers have not received; `readers_waiting` is the number of waiting readers."""

    def __init__(self, settings: GatewaySettings, waits: InterruptibleWaits) -> None:
        self._budget = ByteBudget(settings.answer_bytes_max, of="answers that readers have not taken")
        self._waits = waits
        self.readers_waiting = 0
        self._openings = BoundedExecutor(OPENINGS_MAX)

    @property
    def bytes_used(self) -> int:
        return self._budget.bytes_used

    @property
    def is_half_used(self) -> bool:
        """Returns whether an answer that grows should leave the rest to others."""
        return 2 * self._budget.bytes_used >= self._budget.bytes_max

    @property
    def bytes_used_peak(self) -> int:
        return self._budget.bytes_used_peak

    def reserve(self) -> Reservation:
        """Returns an empty reservation for one answer, a context manager that returns its bytes at its end."""
        return Reservation(self)

    async def opened(self, fetched: Sequence[FetchResult], work: Callable[[], _Body]) -> _Body:
        """Returns the result of `work`, which decodes these batches; long work runs in a thread, OPENINGS_MAX at a time.

        If the reader disconnects, the call still waits for the thread, so that the reservation keeps the bytes that the thread
        uses.
        """
        return await self._openings.run(work) if takes_long(fetched) else work()

    async def acquire(self, bytes_wanted: int, *, bytes_least: int, timeout_s: float) -> int:
        """Waits for bytes, and returns how many were granted: `bytes_wanted` or fewer.

        Raises Throttled if none are free in time, or at a stop if none are free at once.
        """
        budget = self._budget
        bytes_granted = self._share(bytes_wanted, bytes_least)
        self.readers_waiting += 1
        try:
            try:
                async with self._waits.until_stop():
                    await budget.acquire(bytes_granted, timeout_s=timeout_s)
            except Stopping:
                await budget.acquire(bytes_granted, timeout_s=0)
        except Throttled as full:
            raise Throttled(full.message, hint="Other readers take their answers too slowly. Retry with back-off.") from None
        finally:
            self.readers_waiting -= 1
        return bytes_granted

    def acquire_now(self, bytes_wanted: int, *, bytes_least: int) -> int:
        """Returns the bytes granted, as `acquire` does; 0 if it would have to wait."""
        bytes_granted = self._share(bytes_wanted, bytes_least)
        if not self._budget.has_room(bytes_granted):
            return 0
        self._budget.take(bytes_granted)
        return bytes_granted

    def _share(self, bytes_wanted: int, bytes_least: int) -> int:
        budget = self._budget
        return min(bytes_wanted, max((budget.bytes_max - budget.bytes_used) // _SHARE, min(bytes_least, budget.bytes_max)))

    def settle(self, *, bytes_held: int, bytes_needed: int) -> None:
        """Returns the bytes held beyond the need, or takes the missing ones: a finished answer is never refused."""
        if bytes_needed > bytes_held:
            self._budget.take(bytes_needed - bytes_held)
        else:
            self._budget.release(bytes_held - bytes_needed)


class Reservation:
    """The bytes that one answer holds, as a context manager."""

    __slots__ = ("_room", "bytes_held")

    def __init__(self, room: ResponseBudget) -> None:
        self._room = room
        self.bytes_held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.keep(0)

    async def ask(self, bytes_wanted: int, *, timeout_s: float, bytes_least: int = BYTES_LEAST) -> None:
        """Waits for bytes, which `bytes_held` then counts. Raises Throttled if none are free in time."""
        assert not self.bytes_held, "who waits for room holds none"
        self.bytes_held = await self._room.acquire(bytes_wanted, bytes_least=bytes_least, timeout_s=max(timeout_s, ROOM_WAIT_S))

    def ask_now(self, bytes_wanted: int, *, bytes_least: int = BYTES_LEAST) -> bool:
        """Takes bytes if some are free now, as many as `ask` would. Returns whether it did."""
        assert not self.bytes_held, "who waits for room holds none"
        self.bytes_held = self._room.acquire_now(bytes_wanted, bytes_least=bytes_least)
        return self.bytes_held > 0

    def keep(self, bytes_count: int) -> None:
        """Holds `bytes_count` from now on, the size of the finished answer."""
        self._room.settle(bytes_held=self.bytes_held, bytes_needed=bytes_count)
        self.bytes_held = bytes_count
