"""Feeds a Kafka listener frames that no client means: none may crash it, hang a connection, or keep or take too much memory.

    python -m tests.kafka.fuzz_frames --frames 100000
    python -m tests.kafka.fuzz_frames --atheris 60         guided by coverage, where atheris is installed

Valid frames of each API and version are made from the protocol's tables, then mutated, and sent in pieces to connections without
sockets (tests/kit/gateway/kafka_listener_alone.py). The seed gives the same frames again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from gateway.kafka.connection import KafkaConnection
from gateway.kafka.frame_reader import SHARED_BYTES, FrameReader
from gateway.kafka.produce import KafkaProduce
from gateway.kafka.protocol.schema import INTEGERS, Definition, Field, Message, Struct
from gateway.kafka.requests import KafkaRequests
from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED
from tests.kit.gateway.kafka_connection import HeldTransport, connected, deliver
from tests.kit.gateway.kafka_listener_alone import REQUEST_BYTES_MAX, TOPIC, OneTopicLog, requests_alone
from tests.kit.gateway.kafka_messages import build, in_version
from tests.kit.segments.batches import batch_of

# Turns of the event loop in which a frame must be answered, refused or awaited. A check in a thread takes real time instead.
TURNS_MAX: Final = 200
THREAD_S_MAX: Final = 20.0
# Of a frame: its buffer, its copy, and its structs, which take up to 150 bytes for a byte (ELEMENTS_MAX in primitives.py).
MEMORY_MAX: Final = 2 * REQUEST_BYTES_MAX + 4 * SHARED_BYTES
MEMORY_PER_BYTE_MAX: Final = 200
# One frame of so many is measured: tracing makes all slower.
MEASURED_EVERY: Final = 50
_INTERESTING: Final = (0, 1, -1, 2, 7, 127, 128, 255, 2**15 - 1, -(2**15), 2**16, 2**31 - 1, -(2**31))
_TEXTS: Final = ("", "a", TOPIC.name, "consumer", "x" * 300, "ü€😀", "\0")


class Finding(AssertionError):
    """A frame that shows a fault."""


class Frames:
    """Makes valid frames from the tables, and mutates them."""

    def __init__(self, seed: int, *, samples: int = 1) -> None:
        """`samples`: valid frames of each version of each API."""
        self._chance = random.Random(seed)
        self._batches = [
            batch_of(b"value"),
            batch_of(b"x" * 100, b"y", producer_id=7, producer_epoch=0, base_sequence=0),
            batch_of(bytes(3000))[:-1],
            b"",
            bytes(61),
        ]
        self._valid = [
            self._frame(definition, version)
            for definition in DEFINITIONS.values()
            for version in range(definition.versions.first, definition.versions.last + 1)
            for _ in range(samples)
        ]

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.mutated()

    def mutated(self) -> bytes:
        """Returns a frame with its length, after none to six mutations. The length is usually right."""
        body = bytearray(self._chance.choice(self._valid))
        for _ in range(self._chance.choice((0, 1, 1, 2, 3, 6))):
            self._mutate(body)
        length = (
            len(body) if self._chance.random() < 0.95 else self._chance.choice((*_INTERESTING, len(body) + 1, REQUEST_BYTES_MAX))
        )
        return struct.pack(">i", max(-(2**31), min(2**31 - 1, length))) + body

    def _mutate(self, body: bytearray) -> None:
        chance = self._chance
        at = chance.randrange(len(body) + 1)
        match chance.randrange(8):
            case 0 if body:
                at = chance.randrange(len(body))
                body[at] ^= 1 << chance.randrange(8)
            case 1:
                body[at : at + 1] = bytes([chance.randrange(256)])
            case 2:
                del body[at : at + chance.randrange(1, 20)]
            case 3:
                body[at:at] = chance.randbytes(chance.randrange(1, 20))
            case 4:
                piece = body[at : at + chance.randrange(1, 40)]
                body[at:at] = piece * chance.randrange(1, chance.choice((3, 30, 1000)))
            case 5:
                size = chance.choice((1, 2, 4, 8))
                body[at : at + size] = (chance.choice(_INTERESTING) % (1 << 8 * size)).to_bytes(size, "big")
            case 6:  # a varint: an array of very many, or a long string
                body[at : at + 1] = b"\xff" * chance.randrange(5) + bytes([chance.randrange(16)])
            case _:
                other = chance.choice(self._valid)
                body[at:] = other[chance.randrange(len(other)) :]
        del body[REQUEST_BYTES_MAX - 4 :]

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Cuts the data as a network may."""
        at = 0
        while at < len(data):
            size = self._chance.choice((1, 3, 4, 7, 8, 50, 1000, SHARED_BYTES, SHARED_BYTES))
            yield data[at : at + size]
            at += size

    # ── valid frames ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _frame(self, definition: Definition, version: int) -> bytes:
        message = definition.request
        fields = in_version(message, message.root, self._struct(message, message.root), version)
        built = build(INSTALLED, message, message.root, fields)
        return INSTALLED.encode_request_frame(definition.key, built, version, self._chance.randrange(2**31))[4:]

    def _struct(self, message: Message, of: Struct) -> dict[str, Any]:
        return {each.attribute: self._field(message, each) for each in of.fields}

    def _field(self, message: Message, each: Field) -> Any:
        may_be_absent = each.nullable is not None or (each.is_struct and not each.is_array and each.tag is not None)
        if may_be_absent and self._chance.random() < 0.3:
            return None
        if each.is_array:
            return [self._one(message, each) for _ in range(self._chance.choice((0, 1, 1, 2, 5)))]
        return self._one(message, each)

    def _one(self, message: Message, each: Field) -> Any:
        chance = self._chance
        if each.is_struct:
            return self._struct(message, message.structs[each.type])
        if each.type in INTEGERS:
            bits = 8 * INTEGERS[each.type]
            value = chance.choice((0, 0, 1, -1, *_INTERESTING))
            return max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, value))
        match each.type:
            case "bool":
                return chance.random() < 0.5
            case "float64":
                return chance.choice((0.0, 1.5, float("inf"), float("nan")))
            case "uuid":
                return chance.choice((bytes(16), bytes.fromhex(TOPIC.id), chance.randbytes(16)))
            case "string":
                return chance.choice(_TEXTS)
            case "records":
                return chance.choice(self._batches)
        return chance.randbytes(chance.choice((0, 3, 40)))


class Listener:
    """A listener whose connections are judged frame by frame."""

    def __init__(self) -> None:
        self.log = OneTopicLog()
        self.requests = requests_alone(self.log)
        self.answers = self.closed = 0
        self._connection: KafkaConnection | None = None
        self._transport: HeldTransport | None = None

    async def take(self, pieces: Iterator[bytes]) -> None:
        """Sends the pieces of one frame. Raises Finding."""
        if self._connection is None or self._connection.is_closed:
            self._connection, self._transport = connected(self.requests)
        connection, transport = self._connection, self._transport
        assert transport is not None
        for piece in pieces:
            left = piece
            while left and not connection.is_closed:
                await self._until(lambda: transport.is_reading() or connection.is_closed, "a connection is not read again")
                if not connection.is_closed:
                    left = left[deliver(connection, left) :]
        await self._until(lambda: connection.is_closed or connection.is_idle, "a request is not answered")
        if connection.awaits_bytes or connection._holds:
            transport.abort()
        self._check_answers(transport)
        if transport.is_ending:
            self._connection = None
            self.closed += 1
            await self._until(lambda: not self.requests.open, "a closed connection stays")
            self._check_memory()

    async def _until(self, done: Any, what: str) -> None:
        began_s = time.monotonic()
        turns = 0
        while not done():
            turns += 1
            if turns > TURNS_MAX:  # a thread may be at work
                await asyncio.sleep(0.001)
                if time.monotonic() - began_s > THREAD_S_MAX:
                    raise Finding(what)
            else:
                await asyncio.sleep(0)

    def _check_answers(self, transport: HeldTransport) -> None:
        written, at = bytes(transport.written), 0
        transport.written.clear()
        while at < len(written):
            (size,) = struct.unpack_from(">i", written, at)
            if not 4 <= size <= len(written) - at - 4:
                raise Finding(f"an answer of {size} bytes, and {len(written) - at - 4} were written")
            at += 4 + size
            self.answers += 1

    def _check_memory(self) -> None:
        for budget, what in ((self.log.budget, "the log"), (self.requests._budget, "requests")):
            if budget.bytes_used:
                raise Finding(f"{budget.bytes_used} bytes of the memory of {what} were not given back")


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


@contextmanager
def _errors_of_connections() -> Iterator[_Errors]:
    """Collects what a connection logs as an error of the broker itself."""
    errors, logger = _Errors(), logging.getLogger("gateway.kafka.connection")
    logger.addHandler(errors)
    was = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield errors
    finally:
        logger.removeHandler(errors)
        logger.propagate, logger.level = was


async def _judge(listener: Listener, errors: _Errors, data: bytes, pieces: Iterator[bytes], *, is_measured: bool) -> None:
    if is_measured:
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
    try:
        await listener.take(pieces)
    except Finding as finding:
        raise Finding(f"{finding}: {data[:200].hex()}") from None
    except Exception as error:
        raise Finding(f"{type(error).__name__} left the connection: {data[:200].hex()}") from error
    finally:
        if is_measured:
            peak = tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()
    if errors.found:
        raise Finding(f"{errors.found[0].exc_info}: {data[:200].hex()}")
    if is_measured and peak > (bound := MEMORY_MAX + MEMORY_PER_BYTE_MAX * len(data)):
        raise Finding(f"{peak} bytes of memory for a frame of {len(data)}, whose bound is {bound}: {data[:200].hex()}")


async def fuzz(frames: int, seed: int, *, samples: int = 1) -> Listener:
    """Sends so many frames. Returns the listener, with what became of them. Raises Finding."""
    made, listener = Frames(seed, samples=samples), Listener()
    with _errors_of_connections() as errors:
        for number in range(frames):
            data = made.mutated()
            await _judge(listener, errors, data, made.pieces(data), is_measured=number % MEASURED_EVERY == 0)
    return listener


def _fuzz_by_coverage(seconds: int, seed: int) -> None:
    import atheris  # of Linux alone

    for owner in (FrameReader, KafkaConnection, KafkaRequests, KafkaProduce):  # the codec is compiled: it guides nothing
        for function in vars(owner).values():
            if isinstance(function, FunctionType):
                atheris.instrument_func(function)
    made, listener, loop = Frames(seed), Listener(), asyncio.new_event_loop()

    def one_input(data: bytes) -> None:
        with _errors_of_connections() as errors:
            loop.run_until_complete(_judge(listener, errors, data, iter([data]), is_measured=False))

    with tempfile.TemporaryDirectory() as corpus:
        for number in range(1_000):
            Path(corpus, f"{number:04d}").write_bytes(made.mutated())
        atheris.Setup([sys.argv[0], corpus, f"-max_total_time={seconds}", "-max_len=4096", "-timeout=30"], one_input)
        atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", type=int, metavar="SECONDS", default=0, help="search by coverage for this time instead")
    given = parser.parse_args()
    if given.atheris:
        _fuzz_by_coverage(given.atheris, given.seed)
        return 0
    began_s = time.monotonic()
    try:
        listener = asyncio.run(fuzz(given.frames, given.seed, samples=3))
    except Finding as finding:
        print(f"seed {given.seed}: {finding}")
        raise
    seconds = time.monotonic() - began_s
    print(
        f"{given.frames} frames of seed {given.seed} in {seconds:.0f} s: {listener.answers} answers, {listener.closed} connections "
        "closed, no crash, no hang, no memory kept or taken beyond its bound"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
