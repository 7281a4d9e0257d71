"""Records go out whole, in order, and delay no other task."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.formats.record_writer import RecordOutput, RecordWriter, pieces
from tidelog.records import Record


def a_record(offset: int, size: int = 1_000) -> Record:
    return Record("t", 0, offset, 0, None, b"%06d" % offset + b"x" * size)


@contextmanager
def piped() -> Iterator[int]:
    """Standard output is a pipe, of which this is the end to read from. No fixture: pytest gives each phase of a test its own."""
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as output, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        yield reading
    os.close(reading)


async def until_full(writer: RecordWriter) -> None:
    before = -1
    while writer.records != before:
        before = writer.records
        await asyncio.sleep(0.05)


def test_a_full_pipe_does_not_block_the_loop_and_every_record_arrives_later() -> None:
    records = [a_record(number) for number in range(500)]

    async def test(pipe: int) -> bytes:
        writer = RecordWriter(RecordOutput.RAW, None)
        writing = asyncio.ensure_future(writer.write(records))
        await until_full(writer)
        assert 0 < writer.records < 500
        read = b""
        while len(read) < 500 * 1_007:
            read += await asyncio.to_thread(os.read, pipe, 1 << 16)
        await writing
        assert writer.records == 500
        return read

    with piped() as pipe:
        read = asyncio.run(test(pipe))
    assert [int(line[:6]) for line in read.splitlines()] == list(range(500))


def test_a_write_that_is_interrupted_leaves_whole_lines_and_knows_how_many() -> None:
    async def test() -> int:
        writer = RecordWriter(RecordOutput.NDJSON, None)
        writing = asyncio.ensure_future(writer.write([a_record(number) for number in range(500)]))
        await until_full(writer)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        return writer.records

    with piped() as pipe:
        written = asyncio.run(test())
        lines = os.read(pipe, 1 << 20)
    assert 0 < written < 500
    assert lines.endswith(b"\n")
    assert len(lines.splitlines()) == written


def test_a_line_that_an_unbuffered_output_takes_in_parts_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []

    class Output:
        """As `sys.stdout` with PYTHONUNBUFFERED=1, before a pipe that is nearly full."""

        def write(self, data: memoryview) -> int:
            taken.append(bytes(data[:10]))
            return len(taken[-1])

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=Output()))
    asyncio.run(RecordWriter(RecordOutput.RAW, None).write([a_record(0, 50), a_record(1, 50)]))
    assert b"".join(taken) == b"000000" + b"x" * 50 + b"\n000001" + b"x" * 50 + b"\n"


@given(st.lists(st.binary(max_size=12), max_size=40), st.integers(1, 30))
def test_pieces_are_whole_lines_in_order_and_no_longer_than_they_may_be(lines: list[bytes], bytes_max: int) -> None:
    found = list(pieces(lines, bytes_max))
    assert [line for piece in found for line in piece] == lines
    assert all(piece and (len(piece) == 1 or sum(map(len, piece)) <= bytes_max) for piece in found)
