"""Cuts the bytes of one connection into Kafka's frames: an int32 length, then a request of that many bytes. Pure.

    bytes ─▶ the shared buffer ─▶ whole frames, as views of it: valid until the next bytes arrive
                 └▶ a frame that does not fit ─▶ announced ─▶ accepted ─▶ a buffer of exactly its size ─▶ a frame of its own

All connections of a listener share one buffer, so an idle connection owns none. A long frame is announced once its API key is
known, so that its owner can wait for memory before it is received.

Invariants: a frame is returned once, in the order of arrival. No buffer is made for a frame before `accept`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from metadata.errors import InvalidArgument, TooLarge

# Bytes that all connections of one listener receive into.
SHARED_BYTES: Final = 64 << 10
# Length, API key and API version, the bytes that are needed before a frame is announced.
HEAD: Final = Struct(">ihh")
# The shortest request: API key, API version and correlation id.
FRAME_BYTES_MIN: Final = 8
_LENGTH_BYTES: Final = 4


class Frame(NamedTuple):
    """One request without its length."""

    data: memoryview
    # Whether the frame may be kept as it is: no bytes overwrite its buffer, which is little longer. Otherwise it has to be copied.
    is_owned: bool


class Announced(NamedTuple):
    """A frame that is not received yet."""

    size_bytes: int
    api_key: int


class FrameReader:
    """Cuts the bytes of one connection into frames."""

    __slots__ = ("_filled", "_frame", "_shared", "_tail", "announced", "bytes_max", "frames_begun")

    def __init__(self, shared: memoryview, *, bytes_max: int) -> None:
        """`shared` has SHARED_BYTES, and serves all connections of one event loop. `bytes_max` bounds a frame."""
        self._shared = shared
        self.bytes_max = bytes_max
        # The frame that waits for `accept`.
        self.announced: Announced | None = None
        # Frames that got a buffer of their own before all of their bytes were there.
        self.frames_begun = 0
        self._frame: memoryview | None = None
        self._filled = 0
        # Bytes received behind the last whole frame, while no buffer of its own holds them.
        self._tail = b""

    @property
    def is_torn(self) -> bool:
        """True if only a part of a frame was received."""
        return self._frame is not None or bool(self._tail)

    @property
    def bytes_missing(self) -> int:
        """Returns how many bytes the frame that has a buffer of its own lacks; 0 where there is none."""
        return 0 if self._frame is None else len(self._frame) - self._filled

    def buffer(self) -> memoryview:
        """Returns where the next bytes belong. They must not be received while a frame is announced."""
        return self._shared if self._frame is None else self._frame[self._filled :]

    def received(self, count: int) -> list[Frame]:
        """Returns the frames that are whole now that `count` more bytes stand in `buffer()`.

        Raises InvalidArgument for a length that no request has, and TooLarge for one above `bytes_max`.
        """
        if self._frame is not None:
            self._filled += count
            if self._filled < len(self._frame):
                return []
            frame, self._frame = self._frame, None
            return [Frame(frame, is_owned=True)]
        if not self._tail:
            return self._cut(self._shared[:count], is_owned=False)
        joined = memoryview(self._tail + self._shared[:count])
        self._tail = b""
        return self._cut(joined, is_owned=True)

    def accept(self) -> list[Frame]:
        """Makes a buffer for the announced frame. Returns it and the frames behind it, if they were received already."""
        assert self.announced is not None, "no frame was announced"
        size_bytes, self.announced = self.announced.size_bytes, None
        received, self._tail = memoryview(self._tail)[_LENGTH_BYTES:], b""
        if len(received) >= size_bytes:  # it came with the bytes of frames before it
            frame = Frame(received[:size_bytes], is_owned=_is_most_of(size_bytes, received))
            return [frame, *self._cut(received[size_bytes:], is_owned=True)]
        self._begin(size_bytes, received)
        return []

    def _cut(self, data: memoryview, *, is_owned: bool) -> list[Frame]:
        """Returns the whole frames in `data`, and keeps the bytes behind them."""
        frames: list[Frame] = []
        at = 0
        while len(data) - at >= HEAD.size:
            size_bytes, api_key, _ = HEAD.unpack_from(data, at)
            self._check_size(size_bytes)
            received = data[at + _LENGTH_BYTES :]
            if len(received) < size_bytes:
                if size_bytes + _LENGTH_BYTES > len(self._shared):
                    self.announced = Announced(size_bytes, api_key)
                    break
                self._begin(size_bytes, received)
                return frames
            frames.append(Frame(received[:size_bytes], is_owned and _is_most_of(size_bytes, data)))
            at += _LENGTH_BYTES + size_bytes
        self._tail = bytes(data[at:])
        return frames

    def _begin(self, size_bytes: int, received: memoryview) -> None:
        frame = memoryview(np.empty(size_bytes, np.uint8))  # type: ignore[arg-type]  # numpy's stubs for 3.11 do not name Buffer
        frame[: len(received)] = received
        self._frame, self._filled = frame, len(received)
        self.frames_begun += 1

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes < FRAME_BYTES_MIN:
            raise InvalidArgument(f"a frame says that it has {size_bytes} bytes; a request has {FRAME_BYTES_MIN} or more")
        if size_bytes > self.bytes_max:
            raise TooLarge(
                f"a request has {size_bytes} bytes; {self.bytes_max} are taken",
                hint="Send smaller requests (max.request.size, batch.size), or raise request_bytes_max.",
                size=size_bytes,
                bytes_max=self.bytes_max,
            )


def _is_most_of(size_bytes: int, data: memoryview) -> bool:
    """Returns whether so many bytes are most of `data`, all of which stays in memory while one view of it does."""
    return 2 * size_bytes > len(data)
