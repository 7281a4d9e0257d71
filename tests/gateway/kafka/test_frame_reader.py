"""Frames are cut from any split of their bytes, and long ones are announced before memory is taken for them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kafka.frame_reader import SHARED_BYTES, FrameReader
from metadata.errors import InvalidArgument, TooLarge

SHARED = 64
PRODUCE = 0


def on_wire(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def body_of(size: int, fill: int) -> bytes:
    return struct.pack(">hh", fill % 100, 3) + bytes([fill]) * (size - 4)


def receive(reader: FrameReader, data: bytes, pieces: list[int]) -> list[bytes]:
    """Returns the frames that the reader cuts from the data, which arrives in pieces of at most these sizes."""
    frames: list[bytes] = []
    at = turn = 0
    while at < len(data):
        buffer = reader.buffer()
        count = min(len(buffer), pieces[turn % len(pieces)], len(data) - at)
        buffer[:count] = data[at : at + count]
        at, turn = at + count, turn + 1
        frames += [bytes(frame.data) for frame in reader.received(count)]
        while reader.announced is not None:
            frames += [bytes(frame.data) for frame in reader.accept()]
    return frames


@given(sizes=st.lists(st.integers(8, 300), max_size=12), pieces=st.lists(st.integers(1, 80), min_size=1, max_size=20))
def test_frames_are_cut_in_order_from_any_pieces(sizes: list[int], pieces: list[int]) -> None:
    bodies = [body_of(size, at) for at, size in enumerate(sizes)]
    reader = FrameReader(memoryview(bytearray(SHARED)), bytes_max=1000)
    assert receive(reader, on_wire(*bodies), pieces) == bodies
    assert not reader.is_torn


def test_a_long_frame_is_announced_with_its_api_key_before_it_gets_a_buffer() -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)), bytes_max=1000)
    body = body_of(500, PRODUCE)
    data = on_wire(body)
    reader.buffer()[:20] = data[:20]
    assert reader.received(20) == []
    assert reader.announced is not None
    assert (reader.announced.size_bytes, reader.announced.api_key) == (500, PRODUCE)
    assert len(reader.buffer()) == SHARED, "no buffer of its own yet"
    assert reader.accept() == []
    assert len(reader.buffer()) == 500 - 16


def test_a_frame_of_a_shared_buffer_is_a_view_that_is_not_owned() -> None:
    shared = memoryview(bytearray(SHARED_BYTES))
    reader = FrameReader(shared, bytes_max=1000)
    data = on_wire(body_of(20, 1), body_of(30, 2))
    shared[: len(data)] = data
    frames = reader.received(len(data))
    assert [frame.is_owned for frame in frames] == [False, False]
    shared[4:8] = b"\xff" * 4
    assert bytes(frames[0].data[:4]) == b"\xff" * 4


@pytest.mark.parametrize("length", [-1, 0, 7, -(2**31)])
def test_a_length_that_no_request_has_is_refused(length: int) -> None:
    shared = memoryview(bytearray(SHARED))
    reader = FrameReader(shared, bytes_max=1000)
    shared[:8] = struct.pack(">ii", length, 0)
    with pytest.raises(InvalidArgument):
        reader.received(8)


def test_a_frame_above_the_bound_is_refused_before_it_is_received() -> None:
    shared = memoryview(bytearray(SHARED))
    reader = FrameReader(shared, bytes_max=1000)
    shared[:8] = struct.pack(">ii", 1001, 0)
    with pytest.raises(TooLarge, match="1000 are taken"):
        reader.received(8)


def test_a_short_frame_does_not_keep_the_bytes_around_it() -> None:
    shared = memoryview(bytearray(SHARED_BYTES))
    reader = FrameReader(shared, bytes_max=SHARED_BYTES)
    data = on_wire(body_of(20, 1), body_of(60_000, 2))
    shared[:4] = data[:4]
    assert reader.received(4) == []
    shared[: len(data) - 4] = data[4:]
    frames = reader.received(len(data) - 4)
    assert [frame.is_owned for frame in frames] == [False, True]
    assert [len(frame.data) for frame in frames] == [20, 60_000]
