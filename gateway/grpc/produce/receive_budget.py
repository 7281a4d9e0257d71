"""Decides when a message is read from a gRPC stream, and counts its bytes until the log's buffer has accepted it.

    at its client ─▶ turn: bytes for a message like those before ─▶ read ─▶ counted here ─▶ accepted by the log's buffer
                     └ none free: it stays at its client              └ no bytes left: dropped, refused as throttled

gRPC delivers a message's length only with its last byte, and a read that has begun cannot be taken back. So a turn reserves the
expected length, and it ends if nothing arrives in its time: idle streams hold no bytes. A message that arrives after its turn, or
is longer than expected, takes from the half of `bytes_max` that turns leave free.

A turn without a message lasts FIRST_TURN_S on a stream that never sent, else TURN_S. While messages wait for the buffer it
continues up to TURN_LONGEST_S, but ends as soon as another stream asks for a turn.

Invariants: the counted messages never take more than `bytes_max`. Turns are granted in the order of the requests, so a stream waits
only for earlier ones. A message counted here may wait for the log's buffer, but nothing in that buffer waits for bytes here, so the
two cannot block each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

from metadata.errors import Throttled, TooLarge
from segments.byte_budget import ByteBudget

# How long a turn waits for its message. A client that had to wait for its turn has sent the message long before.
TURN_S: Final = 0.1
# The same on a stream that never sent, since clients open streams before they have anything to send.
FIRST_TURN_S: Final = 0.02
# Longest turn while messages wait for the buffer and no stream waits for a turn; the client may be as loaded as this broker.
TURN_LONGEST_S: Final = 1.0
# Least expected length of a message, since a stream may begin with an empty one.
BYTES_EXPECTED_MIN: Final = 1 << 10
FOREVER_S: Final = 24 * 3600.0


class ReceiveBudget:
    """The bytes of one gRPC listener for messages that wait for the log's buffer; `waiting` is the number of these messages."""

    def __init__(self, bytes_max: int, *, bytes_usual: int) -> None:
        """`bytes_usual` is the least length that the first message of a stream is expected to have."""
        self.bytes_max = bytes_max
        self._room = ByteBudget(bytes_max // 2, of="gRPC messages that wait for room in the buffer")
        self._bytes_usual_min = self._bytes_usual = bytes_usual
        self._asking = 0
        self.waiting = 0

    @property
    def bytes_held(self) -> int:
        """Returns the bytes that messages and turns hold now."""
        return self._room.bytes_used

    async def next(
        self,
        receive: Callable[[], Awaitable[object]],
        *,
        bytes_expected: int | None = None,
        turn_s: float = FIRST_TURN_S,
        timeout_s: float = FOREVER_S,
    ) -> IncomingMessage | None:
        """Waits for a turn, then for the message that `receive` returns; returns None at the end of a stream.

        `bytes_expected` follows from earlier messages of the stream; None for the first one. `turn_s` is the shortest length of a
        turn. Raises Throttled without a turn within `timeout_s`, and what `receive` raises.
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
        """Waits for the message or the end of its turn. Returns whether the message arrived within the turn."""
        for turn in range(round(TURN_LONGEST_S / turn_s)):
            if turn and (self._asking or not self.waiting):
                return False
            await asyncio.wait((reading,), timeout=turn_s)
            if reading.done():
                return True
        return False

    def recount(self, bytes_held: int, bytes_count: int) -> None:
        """Counts `bytes_count` in place of `bytes_held`, for bytes that are in memory already.

        Raises TooLarge or Throttled if they do not fit, and then leaves the count as it was.
        """
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
    """A message that was read, as a context manager. The budget counts it until the context ends, or until `release`."""

    __slots__ = ("_bytes_held", "_messages", "_waits", "body")

    def __init__(self, messages: ReceiveBudget, body: bytes, turn_bytes: int) -> None:
        self.body = body
        self._messages = messages
        self._bytes_held = turn_bytes
        self._waits = False

    def hold(self, bytes_count: int) -> None:
        """Counts the memory of the message in place of its turn. The caller calls it before it waits for anything.

        Raises TooLarge or Throttled if the budget has no bytes for it; the caller then drops the message at once.
        """
        self._messages.recount(self._bytes_held, bytes_count)
        self._bytes_held = bytes_count
        self._messages.waiting += not self._waits
        self._waits = True

    def release(self) -> None:
        """Ends the count: the message is in the log's buffer now, or dropped."""
        self._messages.recount(self._bytes_held, 0)
        self._bytes_held = 0
        self._messages.waiting -= self._waits
        self._waits = False

    def __enter__(self) -> IncomingMessage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


async def _received(receive: Callable[[], Awaitable[object]]) -> object:
    """Returns the received message, or the error as a value, since a TaskGroup would wrap it."""
    try:
        return await receive()
    except Exception as error:  # noqa: BLE001  # the caller raises it
        return error
