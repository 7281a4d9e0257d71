"""Room for answers on their way to readers: an answer is read when there is room for it, and holds that until it was taken.

    wait for records ─▶ ask for room ─▶ read, open ─▶ keep what the answer takes ─▶ send it ─▶ give the room back
    holds nothing       └ full: wait in turn, then Throttled

How much an answer gets, of B bytes (answer_bytes_max) with F of them free, when it wants W and can do with L:

    min(W, max(F / 8, L))

So a few readers that take nothing don't shut the door to the others: the fuller it gets, the smaller the answers become, and only
where there is not even L, readers wait. Each door has its own room, so that HTTP readers never stop gRPC readers.

Invariants: what answers hold never exceeds B but for a batch, or a record, that is larger than the room that its answer got; who
waits is served in order of arrival, and holds nothing meanwhile, so that nobody waits for one who waits.
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

# Any answer may wait this long for room: a long poll too whose record came at its last moment.
ROOM_WAIT_S: Final = 2.0
# Who takes an answer more slowly is cut off, after a time that the settings give to any: it holds room that others wait for. On a
# line of half a megabit the longest answer still arrives.
BYTES_PER_SECOND_MIN: Final = 64 << 10
# What an answer of opened records can do with: it may end after any of them.
BYTES_LEAST: Final = 64 << 10
# Answers that are opened at the same time: a batch may open to decompressed_bytes_max, and more would not be faster.
OPENINGS_MAX: Final = 2

_SHARE: Final = 8
_Body = TypeVar("_Body")


class ResponseBudget:
    """The room of one door."""

    def __init__(self, settings: GatewaySettings, waits: InterruptibleWaits) -> None:
        self._budget = ByteBudget(settings.answer_bytes_max, of="answers that readers have not taken")
        self._waits = waits
        self.readers_waiting = 0
        self._openings = BoundedExecutor(OPENINGS_MAX)

    @property
    def bytes_used(self) -> int:
        return self._budget.bytes_used

    @property
    def bytes_used_peak(self) -> int:
        return self._budget.bytes_used_peak

    def place(self) -> Reservation:
        """For one answer, as a context manager: empty at first; at its end all is given back."""
        return Reservation(self)

    async def opened(self, fetched: Sequence[FetchResult], work: Callable[[], _Body]) -> _Body:
        """What `work` makes of the batches: at once, or, where that takes long, in a thread when it is its turn.

        A reader that hangs up is held until its thread has ended, so that its place keeps the room that the thread still uses.
        """
        return await self._openings.run(work) if takes_long(fetched) else work()

    async def acquire(self, bytes_wanted: int, *, bytes_least: int, timeout_s: float) -> int:
        """Bytes granted: all that is wanted, or less. Throttled where there is no room in time, or none at once at a stop."""
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
        """Returns the bytes granted, as `acquire`; 0 where it would have to wait."""
        bytes_granted = self._share(bytes_wanted, bytes_least)
        if not self._budget.has_room(bytes_granted):
            return 0
        self._budget.take(bytes_granted)
        return bytes_granted

    def _share(self, bytes_wanted: int, bytes_least: int) -> int:
        budget = self._budget
        return min(bytes_wanted, max((budget.bytes_max - budget.bytes_used) // _SHARE, min(bytes_least, budget.bytes_max)))

    def settle(self, *, bytes_held: int, bytes_needed: int) -> None:
        """Gives back what is held above the need, or takes what it is missing: an answer that was made is not refused."""
        if bytes_needed > bytes_held:
            self._budget.take(bytes_needed - bytes_held)
        else:
            self._budget.release(bytes_held - bytes_needed)


class Reservation:
    """What one answer holds of the room."""

    __slots__ = ("_room", "bytes_held")

    def __init__(self, room: ResponseBudget) -> None:
        self._room = room
        self.bytes_held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.keep(0)

    async def ask(self, bytes_wanted: int, *, timeout_s: float, bytes_least: int = BYTES_LEAST) -> None:
        """Waits for room; `bytes_held` then says how much it became. Throttled where there is none in time."""
        assert not self.bytes_held, "who waits for room holds none"
        self.bytes_held = await self._room.acquire(bytes_wanted, bytes_least=bytes_least, timeout_s=max(timeout_s, ROOM_WAIT_S))

    def ask_now(self, bytes_wanted: int, *, bytes_least: int = BYTES_LEAST) -> bool:
        """Takes room where there is some at the moment, as much as `ask` would. Returns whether there was."""
        assert not self.bytes_held, "who waits for room holds none"
        self.bytes_held = self._room.acquire_now(bytes_wanted, bytes_least=bytes_least)
        return self.bytes_held > 0

    def keep(self, bytes_count: int) -> None:
        """The answer is made, and this long."""
        self._room.settle(bytes_held=self.bytes_held, bytes_needed=bytes_count)
        self.bytes_held = bytes_count
