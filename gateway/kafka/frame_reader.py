"""Cuts the bytes of one connection into Kafka's frames: an int32 length, then a request of that many bytes. Pure.

    bytes ─▶ the shared buffer ─▶ whole frames, as views of it: valid until the next bytes arrive
                 └▶ a frame that does not fit ─▶ announced ─▶ accepted ─▶ a buffer of exactly its size ─▶ a frame of its own

All connections of a listener share one buffer, so an idle connection owns none. A long frame is announced once its API key is
known, so that its owner can wait for memory before it is received. A Produce request that is longer than any frame may be is
received without its records (protocol/shortened_produce.py).

Invariants: a frame is returned once, in the order of arrival. No buffer is made for a frame before `accept`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from gateway.kafka.protocol.shortened_produce import SHORTENED_BYTES_MAX, ShortenedProduce
from metadata.errors import InvalidArgument, TooLarge

# Bytes that all connections of one listener receive into.
SHARED_BYTES: Final = 64 << 10
# Length, API key and API version, the bytes that are needed before a frame is announced.
HEAD: Final = Struct(">ihh")
# The shortest request: API key, API version and correlation id.
FRAME_BYTES_MIN: Final = 8
_LENGTH_BYTES: Final = 4
_PRODUCE: Final = 0


class Frame(NamedTuple):
    """One request without its length."""

    data: memoryview
    # Whether the frame may be kept as it is: no bytes overwrite its buffer, which is little longer. Otherwise it has to be copied.
    is_owned: bool
    # Bytes of a Produce request that was too long: its records are dropped. 0 for a whole request.
    cut_from: int = 0
    # Bytes that the largest batch of such a request had.
    largest_batch_bytes: int = 0


class Announced(NamedTuple):
    """A frame that is not received yet."""

    size_bytes: int
    api_key: int


class FrameReader:
    """Cuts the bytes of one connection into frames."""

    __slots__ = ("_filled", "_frame", "_shared", "_shortened", "_tail", "announced", "bytes_max", "frames_begun", "shortens")

    def __init__(self, shared: memoryview, *, bytes_max: int, shortens: bool = False) -> None:
        """`shared` has SHARED_BYTES, and serves all connections of one event loop. `bytes_max` bounds a frame. `shortens`: a longer
        Produce request is received without its records."""
        self._shared = shared
        self.bytes_max = bytes_max
        self.shortens = shortens
        # The request that is being received without its records.
        self._shortened: ShortenedProduce | None = None
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
        """Returns True if only a part of a frame was received."""
        return self._frame is not None or self._shortened is not None or bool(self._tail)

    @property
    def bytes_missing(self) -> int:
        """Returns how many bytes lack of a frame that has a buffer of its own, or is received without its records; else 0."""
        if self._shortened is not None:
            return self._shortened.bytes_left
        return 0 if self._frame is None else len(self._frame) - self._filled

    def buffer(self) -> memoryview:
        """Returns where the next bytes belong. They must not be received while a frame is announced."""
        return self._shared if self._frame is None else self._frame[self._filled :]

    def received(self, count: int) -> list[Frame]:
        """Returns the frames that are whole now that `count` more bytes stand in `buffer()`.

        Raises InvalidArgument for a length that no request has, and TooLarge for one that may not be received.
        """
        if self._shortened is not None:
            return self._shorten(self._shortened, self._shared[:count])
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
            received = data[at + _LENGTH_BYTES :]
            if self._is_shortened(size_bytes, api_key):
                self._shortened = ShortenedProduce(size_bytes)
                self.frames_begun += 1
                return [*frames, *self._shorten(self._shortened, received)]
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

    def _shorten(self, shortened: ShortenedProduce, data: memoryview) -> list[Frame]:
        """Takes bytes of the request that is received without its records. Returns it, and the frames behind it, once it ends."""
        ends_at = shortened.bytes_left
        shortened.feed(data[:ends_at])
        if shortened.bytes_left:
            return []
        self._shortened = None
        frame = Frame(shortened.frame(), True, shortened.size_bytes, shortened.largest_batch_bytes)
        return [frame, *self._cut(data[ends_at:], is_owned=False)]

    def _begin(self, size_bytes: int, received: memoryview) -> None:
        frame = memoryview(np.empty(size_bytes, np.uint8))  # type: ignore[arg-type]  # numpy's stubs for 3.11 do not name Buffer
        frame[: len(received)] = received
        self._frame, self._filled = frame, len(received)
        self.frames_begun += 1

    def _is_shortened(self, size_bytes: int, api_key: int) -> bool:
        """Returns whether the request is received without its records. Raises InvalidArgument, TooLarge."""
        if size_bytes < FRAME_BYTES_MIN:
            raise InvalidArgument(f"a frame says that it has {size_bytes} bytes; a request has {FRAME_BYTES_MIN} or more")
        if size_bytes <= self.bytes_max:
            return False
        if self.shortens and api_key == _PRODUCE and size_bytes <= SHORTENED_BYTES_MAX:
            return True
        raise TooLarge(
            f"a request has {size_bytes} bytes; {self.bytes_max} are taken",
            hint="Send smaller requests (max.request.size, batch.size), or raise request_bytes_max.",
            size=size_bytes,
            bytes_max=self.bytes_max,
        )


def _is_most_of(size_bytes: int, data: memoryview) -> bool:
    """Returns whether so many bytes are most of `data`, all of which stays in memory while one view of it does."""
    return 2 * size_bytes > len(data)
