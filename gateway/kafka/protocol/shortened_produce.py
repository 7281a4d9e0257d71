"""Drops the records of a Produce request that is too long, as it arrives, so that its client receives an error and not a closed
connection. Pure.

    request   header │ topic │ partition, length, records…                │ partition, length, records…
                 ▼       ▼        ▼       ▼      └ dropped                      ▼
    shortened header │ topic │ partition, 61, the header of its batch │ partition, 61, the header of its batch

What is left has the same partitions, and a header for each batch, which names its producer and its sequence. It decodes as any
Produce request does. Nothing of it may be appended.

Invariant: at most KEPT_BYTES_MAX of a request are kept, however long it is.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from gateway.kafka.protocol.errors import MalformedFrame
from metadata.errors import TooLarge
from segments.records.batch import BATCH_OVERHEAD_BYTES, LENGTH_BYTES_MIN

# The longest request whose records are dropped, as Kafka's default for socket.request.max.bytes. It takes no memory.
SHORTENED_BYTES_MAX: Final = 100 << 20
KEPT_BYTES_MAX: Final = 64 << 10
# Steps of the parser for one request. Batches in all partitions take fewer, up to KEPT_BYTES_MAX. 64 KiB of shorter fields would
# hold the event loop for tenths of a second.
STEPS_MAX: Final = 1 << 14
# Tagged fields of one struct. The versions that are served define none; each costs some steps.
TAGS_MAX: Final = 16
# The versions of Produce that are served: of others the layout is not known.
VERSIONS: Final = range(3, 14)
FLEXIBLE_SINCE: Final = 9
BY_ID: Final = 13
# Where the length of a batch stands in its header.
_LENGTH_AT: Final = slice(8, 12)


class _Step(NamedTuple):
    """Tells what the parser wants next: to pass over some bytes, and then to get some."""

    passed: int
    wanted: int


_Steps = Generator[_Step, bytes, None]
_Parse = Generator[_Step, bytes, int]


class ShortenedProduce:
    """Takes one request in pieces, without its length prefix."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = self.bytes_left = size_bytes
        # Bytes of the largest batch so far.
        self.largest_batch_bytes = 0
        self._kept = bytearray()
        # Bytes that the parser passes over before it gets others.
        self._passed = 0
        self._steps = self._request()
        self._step: _Step | None = next(self._steps)
        self._piece = bytearray()
        self._steps_taken = 0

    def feed(self, data: memoryview) -> None:
        """Takes the next bytes. Raises MalformedFrame, and TooLarge where too much of the request is not records."""
        self.bytes_left -= len(data)
        at = 0
        while at < len(data) and self._step is not None:
            passed = min(self._step.passed - self._passed, len(data) - at)
            self._passed += passed
            at += passed
            taken = min(self._step.wanted - len(self._piece), len(data) - at)
            self._piece += data[at : at + taken]
            at += taken
            if self._passed == self._step.passed and len(self._piece) == self._step.wanted:
                self._advance()

    def frame(self) -> memoryview:
        """Returns the request without its records, once no bytes are left. Raises MalformedFrame where it ends early."""
        if self._step is not None:
            raise MalformedFrame(f"a Produce request of {self.size_bytes} bytes ends before its last field")
        return memoryview(self._kept)

    def _advance(self) -> None:
        piece, self._piece, self._passed = bytes(self._piece), bytearray(), 0
        self._steps_taken += 1
        if self._steps_taken > STEPS_MAX:
            raise self._too_large(f"over {STEPS_MAX} fields that are not records")
        try:
            self._step = self._steps.send(piece)
        except StopIteration:  # bytes behind the last field are no error, as in Kafka
            self._step = None

    # ── the layout of a request ─────────────────────────────────────────────────────────────────────────────────────────

    def _request(self) -> _Steps:
        version = int.from_bytes((yield from self._copied(8))[2:4], "big", signed=True)
        if version not in VERSIONS:
            raise MalformedFrame(f"Produce has the versions {VERSIONS[0]} to {VERSIONS[-1]}, not {version}")
        flexible = version >= FLEXIBLE_SINCE
        yield from self._string(compact=False)
        yield from self._tags(flexible)
        yield from self._string(compact=flexible)
        yield from self._copied(6)  # acks and timeout
        for _ in range((yield from self._array_length(flexible))):
            if version >= BY_ID:
                yield from self._copied(16)
            else:
                yield from self._string(compact=flexible)
            for _ in range((yield from self._array_length(flexible))):
                yield from self._copied(4)
                yield from self._records(flexible)
                yield from self._tags(flexible)
            yield from self._tags(flexible)
        yield from self._tags(flexible)

    def _records(self, flexible: bool) -> _Steps:
        size = (yield from self._uvarint(copied=False)) - 1 if flexible else int.from_bytes((yield _Step(0, 4)), "big", signed=True)
        self.largest_batch_bytes = max(size, self.largest_batch_bytes)
        kept = min(size, BATCH_OVERHEAD_BYTES)
        self._keep(bytes([kept + 1]) if flexible else kept.to_bytes(4, "big", signed=True))
        if size <= 0:
            return
        batch = bytearray((yield _Step(0, kept)))
        if kept == BATCH_OVERHEAD_BYTES:
            batch[_LENGTH_AT] = LENGTH_BYTES_MIN.to_bytes(4, "big")
        self._keep(batch)
        if size > kept:
            # The last byte is wanted, so that the request does not end before it.
            yield _Step(size - kept - 1, 1)

    def _string(self, *, compact: bool) -> _Steps:
        size = (yield from self._uvarint()) - 1 if compact else int.from_bytes((yield from self._copied(2)), "big", signed=True)
        yield from self._copied(size)

    def _tags(self, flexible: bool) -> _Steps:
        if flexible:
            count = yield from self._uvarint()
            if count > TAGS_MAX:
                raise MalformedFrame(f"a struct has {count} tagged fields; {TAGS_MAX} are taken")
            for _ in range(count):
                yield from self._uvarint()
                yield from self._copied((yield from self._uvarint()))

    def _array_length(self, flexible: bool) -> _Parse:
        return (yield from self._uvarint()) - 1 if flexible else int.from_bytes((yield from self._copied(4)), "big", signed=True)

    def _uvarint(self, *, copied: bool = True) -> _Parse:
        """Reads 7 bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = (yield from self._copied(1) if copied else self._wanted(1))[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 28:
                raise MalformedFrame("a varint is larger than an int32")

    def _copied(self, size: int) -> Generator[_Step, bytes, bytes]:
        piece = yield from self._wanted(size)
        self._keep(piece)
        return piece

    def _wanted(self, size: int) -> Generator[_Step, bytes, bytes]:
        if size <= 0:
            return b""
        self._check_room(size)
        return (yield _Step(0, size))

    def _keep(self, piece: bytes | bytearray) -> None:
        self._check_room(len(piece))
        self._kept += piece

    def _check_room(self, size: int) -> None:
        if len(self._kept) + size > KEPT_BYTES_MAX:
            raise self._too_large(f"over {KEPT_BYTES_MAX} of them are not records")

    def _too_large(self, why: str) -> TooLarge:
        hint = "Send fewer partitions in one request."
        return TooLarge(f"a request has {self.size_bytes} bytes, and {why}", hint=hint, size=self.size_bytes)
