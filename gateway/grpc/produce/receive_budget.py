"""When a message is read from a gRPC stream, and what it counts for until the log's buffer has room for it.

    at its client ─▶ turn: room for a message like those before ─▶ read ─▶ counted here ─▶ room in the log's buffer
                     └ none: it stays at its client                 └ no room for it: dropped, refused as throttled

gRPC tells a message's length only with its last byte, and a read that was begun can't be taken back. So a turn is for the length
that is expected, and it ends when nothing has come for its time: idle streams hold no room. What comes unasked then (on a stream
that was idle, or longer than what came before) finds the half of `bytes_max` that turns leave free.

A turn without a message lasts FIRST_TURN_S on a stream that never sent, else TURN_S. While messages wait for the buffer it goes on
after that, up to TURN_LONGEST_S, but is taken back when others wait for a turn.

Invariants: the messages in here never take more than `bytes_max`; turns are given in the order in which they were asked for, so a
stream waits only for those before it. Whoever has room here may wait for room in the log; nobody who has room in the log waits
for room here, so no two wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

from metadata.errors import Throttled, TooLarge
from segments.byte_budget import ByteBudget

# How long a turn waits for its message: who had to wait for the turn has sent the message long before.
TURN_S: Final = 0.1
# The same on a stream that never sent: clients open some before they have anything to send.
FIRST_TURN_S: Final = 0.02
# While messages wait for the buffer, and nobody for a turn: nobody could use the room better, and the client may be as loaded.
TURN_LONGEST_S: Final = 1.0
# Of the next message, however short those before were: the first on a stream may be there to open it.
BYTES_EXPECTED_MIN: Final = 1 << 10
FOREVER_S: Final = 24 * 3600.0


class ReceiveBudget:
    def __init__(self, bytes_max: int, *, bytes_usual: int) -> None:
        """`bytes_usual` is the least that a message is expected to have of whose sender nothing is known."""
        self.bytes_max = bytes_max
        self._room = ByteBudget(bytes_max // 2, of="gRPC messages that wait for room in the buffer")
        self._bytes_usual_min = self._bytes_usual = bytes_usual
        self._asking = 0
        self.waiting = 0
        """Messages that wait for room in the log's buffer."""

    @property
    def bytes_held(self) -> int:
        """What messages and turns take now."""
        return self._room.bytes_used

    @property
    def bytes_held_peak(self) -> int:
        return self._room.bytes_used_peak

    async def next(
        self,
        receive: Callable[[], Awaitable[object]],
        *,
        bytes_expected: int | None = None,
        turn_s: float = FIRST_TURN_S,
        timeout_s: float = FOREVER_S,
    ) -> IncomingMessage | None:
        """Waits for a turn, then for the message that `receive` gives; None where that is no bytes, at the end of a stream.

        `bytes_expected` is from what came on the same stream, None for the first; `turn_s` is how long a turn lasts at least.
        Throttled without a turn within `timeout_s`.
        """
        expected = self._bytes_usual if bytes_expected is None else max(bytes_expected, BYTES_EXPECTED_MIN)
        turn_bytes = min(expected, self._room.bytes_max)
        await self._ask(turn_bytes, timeout_s)
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(_received(receive))
                if not await self._comes_in_turn(reading, turn_s):
                    self._room.release(turn_bytes)
                    turn_bytes = 0
            received = reading.result()
            if isinstance(received, Exception):
                raise received
        except BaseException:
            self._room.release(turn_bytes)
            raise
        if isinstance(received, bytes):
            self._bytes_usual = max(self._bytes_usual_min, len(received), self._bytes_usual * 7 // 8)
            return IncomingMessage(self, received, turn_bytes)
        self._room.release(turn_bytes)
        return None

    async def _ask(self, turn_bytes: int, timeout_s: float) -> None:
        self._asking += 1
        try:
            await self._room.acquire(turn_bytes, timeout_s=timeout_s)
        finally:
            self._asking -= 1

    async def _comes_in_turn(self, reading: asyncio.Task[object], turn_s: float) -> bool:
        """Waits for the message, or for the end of its turn."""
        for turns in range(round(TURN_LONGEST_S / turn_s)):
            if turns and (self._asking or not self.waiting):
                return False
            await asyncio.wait((reading,), timeout=turn_s)
            if reading.done():
                return True
        return False

    def recount(self, bytes_held: int, bytes_count: int) -> None:
        """Counts `bytes_count` in place of `bytes_held`, of bytes that are in memory already. TooLarge, Throttled: as it was."""
        if bytes_count > self.bytes_max:
            raise TooLarge(
                f"the message takes {bytes_count} bytes; all that wait for room in the buffer may take {self.bytes_max}",
                hint="Send smaller messages, or raise memory_bytes_max.",
            )
        used = self._room.bytes_used - bytes_held
        if bytes_count > bytes_held and used + bytes_count > self.bytes_max:
            raise Throttled(
                f"gRPC messages that wait for room in the buffer take {used} of {self.bytes_max} bytes; there is none for "
                f"{bytes_count} that came unasked",
                hint="The bucket is slower than its clients. Retry with back-off.",
            )
        if bytes_count > bytes_held:
            self._room.take(bytes_count - bytes_held)
        else:
            self._room.release(bytes_held - bytes_count)


class IncomingMessage:
    """A message that was read, as a context manager: it counts until that ends, or until `release`."""

    __slots__ = ("_bytes_held", "_messages", "_waits", "body")

    def __init__(self, messages: ReceiveBudget, body: bytes, turn_bytes: int) -> None:
        self.body = body
        self._messages = messages
        self._bytes_held = turn_bytes
        self._waits = False

    def hold(self, bytes_count: int) -> None:
        """Counts what the message takes in memory, in place of its turn; to be called before anything is waited for.

        TooLarge, or Throttled where there is no room for it: then it is to be dropped at once.
        """
        self._messages.recount(self._bytes_held, bytes_count)
        self._bytes_held = bytes_count
        self._messages.waiting += not self._waits
        self._waits = True

    def release(self) -> None:
        """It counts no more: it is in the log's buffer now, or dropped."""
        self._messages.recount(self._bytes_held, 0)
        self._bytes_held = 0
        self._messages.waiting -= self._waits
        self._waits = False

    def __enter__(self) -> IncomingMessage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


async def _received(receive: Callable[[], Awaitable[object]]) -> object:
    """What came, or the error in its place: a group of tasks would wrap it."""
    try:
        return await receive()
    except Exception as error:  # noqa: BLE001  # it is raised to who asked
        return error
