"""When a message is read from a gRPC stream, and what it counts for until the log's buffer has room for it.

    at its client ─▶ turn: room for a message like those before ─▶ read ─▶ counted here ─▶ room in the log's buffer
                     └ none: it stays at its client                 └ no room for it: dropped, refused as throttled

gRPC tells a message's length only with its last byte, and a read that was begun can't be taken back. So a turn is for the length
that is expected, and it ends when nothing has come for TURN_S: idle streams hold no room. What comes unexpectedly then (on a
stream that was idle, or longer than what came before) finds the half of `bytes_max` that turns leave free.

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

TURN_S: Final = 0.1
"""How long a turn waits for its message: who had to wait for the turn has sent the message long before."""
FOREVER_S: Final = 24 * 3600.0


class IncomingMessages:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._room = ByteBudget(bytes_max // 2, of="gRPC messages that wait for room in the buffer")

    @property
    def bytes_held(self) -> int:
        """What messages and turns take now."""
        return self._room.bytes_used

    @property
    def bytes_held_peak(self) -> int:
        return self._room.bytes_used_peak

    async def next(self, receive: Callable[[], Awaitable[object]], *, bytes_expected: int) -> IncomingMessage | None:
        """Waits for a turn, then for the message that `receive` gives; None where that is no bytes, at the end of a stream."""
        turn_bytes = min(bytes_expected, self._room.bytes_max)
        await self._room.acquire(turn_bytes, timeout_s=FOREVER_S)
        reading = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((reading,), timeout=TURN_S)
            if not reading.done():
                self._room.release(turn_bytes)
                turn_bytes = 0
                await asyncio.wait((reading,))
            body = reading.result()
        except BaseException:
            reading.cancel()
            self._room.release(turn_bytes)
            raise
        if isinstance(body, bytes):
            return IncomingMessage(self, body, turn_bytes)
        self._room.release(turn_bytes)
        return None

    def recount(self, bytes_held: int, bytes_count: int) -> None:
        """Counts `bytes_count` in place of `bytes_held`, of bytes that are in memory already. TooLarge, Throttled: as it was."""
        if bytes_count > self.bytes_max:
            raise TooLarge(
                f"the message takes {bytes_count} bytes; all that wait for room in the buffer may take {self.bytes_max}",
                hint="Send smaller messages, or raise grpc_waiting_bytes_max.",
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

    __slots__ = ("_bytes_held", "_messages", "body")

    def __init__(self, messages: IncomingMessages, body: bytes, turn_bytes: int) -> None:
        self.body = body
        self._messages = messages
        self._bytes_held = turn_bytes

    def hold(self, bytes_count: int) -> None:
        """Counts what the message takes in memory, in place of its turn; to be called before anything is waited for.

        TooLarge, or Throttled where there is no room for it: then it is to be dropped at once.
        """
        self._messages.recount(self._bytes_held, bytes_count)
        self._bytes_held = bytes_count

    def release(self) -> None:
        """It counts no more: it is in the log's buffer now, or dropped."""
        self.hold(0)

    def __enter__(self) -> IncomingMessage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
