"""The floor: what durable batches cost with no broker. A socket, a buffer, a file with fsync, an answer; nothing else.

    4 bytes length ─▶ np.empty(length) ◀─ recv_into     file full, or 5 ms old, or none in flight ─▶ thread: writev, fsync
           batch                                        ─▶ one byte back for each of its batches

Files are as large as segments, flushed by the same rule and as many at a time, so that what is left between this and a broker is
the broker. Not checked: anything. Not kept: anything but the bytes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import struct
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, cast

import numpy as np
import uvloop

from bench.load import Load, Outcome
from segments.settings import SegmentSettings

LENGTH: Final = struct.Struct("!I")
LINGER_S: Final = 0.005
_BUFFERS_PER_WRITE: Final = os.sysconf("SC_IOV_MAX")
_SETTINGS: Final = SegmentSettings()


class Files:
    """Collects batches into files and answers for them once these are on the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._threads = ThreadPoolExecutor(_SETTINGS.puts_in_flight_max)
        self._full: deque[list[tuple[memoryview, Receiver]]] = deque()
        self._open: list[tuple[memoryview, Receiver]] = []
        self._open_bytes = 0
        self._linger: asyncio.TimerHandle | None = None
        self._in_flight = 0
        self._written = 0

    def add(self, batch: memoryview, receiver: Receiver) -> None:
        if not self._open:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._close)
        self._open.append((batch, receiver))
        self._open_bytes += len(batch)
        if self._open_bytes >= _SETTINGS.segment_bytes_max or not self._in_flight:
            self._close()

    def _close(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        if self._open:
            self._full.append(self._open)
            self._open, self._open_bytes = [], 0
        self._flush()

    def _flush(self) -> None:
        while self._full and self._in_flight < _SETTINGS.puts_in_flight_max:
            batches = self._full.popleft()
            path = self._directory / str(self._written)
            self._written += 1
            self._in_flight += 1
            write = asyncio.get_running_loop().run_in_executor(self._threads, _write, path, [batch for batch, _ in batches])
            write.add_done_callback(lambda done, batches=batches: self._landed(done, batches))  # type: ignore[misc]  # mypy infers no lambda with defaults

    def _landed(self, write: asyncio.Future[None], batches: list[tuple[memoryview, Receiver]]) -> None:
        self._in_flight -= 1
        if not write.cancelled() and write.exception() is None:
            for _, receiver in batches:
                receiver.answer()
        self._flush()


def _write(path: Path, batches: list[memoryview]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for first in range(0, len(batches), _BUFFERS_PER_WRITE):
            group = batches[first : first + _BUFFERS_PER_WRITE]
            if os.writev(file, group) != sum(map(len, group)):
                raise OSError(f"{path}: the disk is full")
        os.fsync(file)
    finally:
        os.close(file)


class Receiver(asyncio.BufferedProtocol):
    """One connection: each batch is received into memory of its own size."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._transport: asyncio.WriteTransport | None = None
        self._head = memoryview(bytearray(LENGTH.size))
        self._into = self._head
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._into[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._received < len(self._into):
            return
        self._received = 0
        if self._into is self._head:
            self._into = memoryview(np.empty(LENGTH.unpack(self._head)[0], np.uint8).data)
        else:
            batch, self._into = self._into, self._head
            self._files.add(batch, self)

    def answer(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\x01")


def _serve(directory: Path, sender: Connection) -> None:
    async def serve() -> None:
        files = Files(directory)
        server = await asyncio.get_running_loop().create_server(lambda: Receiver(files), "127.0.0.1", 0)
        sender.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


@contextmanager
def floor_server(directory: Path) -> Iterator[int]:
    """The port of a floor that writes into `directory`, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    reported, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(directory, sender), daemon=True)
    process.start()
    try:
        if not reported.poll(20):
            raise TimeoutError(f"the floor's process did not start (exit code {process.exitcode})")
        yield reported.recv()
    finally:
        process.kill()
        process.join()


# ── its client ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Sender(asyncio.Protocol):
    def __init__(self, batch: bytes, load: Load) -> None:
        self._frame = LENGTH.pack(len(batch)), batch
        self._load = load
        self._stops_at_s = 0.0
        self._sent = self.answered = 0
        self.first_answer_s = 0.0
        self._transport: asyncio.WriteTransport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def start(self) -> None:
        self._stops_at_s = time.perf_counter() + self._load.seconds
        self._send(self._load.window)

    def data_received(self, data: bytes) -> None:
        self.answered += len(data)
        self.first_answer_s = self.first_answer_s or time.perf_counter()
        if time.perf_counter() < self._stops_at_s:
            self._send(len(data))
        elif self.answered == self._sent:
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the floor hung up"))

    def _send(self, count: int) -> None:
        assert self._transport is not None
        self._sent += count
        self._transport.writelines(self._frame * count)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def produce_to_floor(port: int, batch: bytes, load: Load) -> Outcome:
    """Runs in the client's process."""

    async def produce() -> Outcome:
        loop = asyncio.get_running_loop()
        senders: list[_Sender] = []
        for _ in range(load.connections):
            _, sender = await loop.create_connection(lambda: _Sender(batch, load), "127.0.0.1", port)
            senders.append(sender)
        started_s = time.perf_counter()
        for sender in senders:
            sender.start()
        async with asyncio.timeout(load.seconds + 60):
            await asyncio.gather(*(sender.done for sender in senders))
        ended_s = time.perf_counter()
        for sender in senders:
            sender.close()
        first_answer_s = min(sender.first_answer_s for sender in senders)
        return Outcome(sum(sender.answered for sender in senders), started_s, first_answer_s, ended_s)

    return uvloop.run(produce())
