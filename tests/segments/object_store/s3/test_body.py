"""The body of a PUT reaches the socket whole, in order, in writes that are worth their system call."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from segments.object_store.s3.store import WRITE_BYTES_MIN, VectoredBody

sizes = st.one_of(st.integers(0, 100), st.integers(WRITE_BYTES_MIN - 2, WRITE_BYTES_MIN + 2), st.integers(0, 3 * WRITE_BYTES_MIN))


class Writer:
    def __init__(self) -> None:
        self.written: list[Any] = []

    async def write(self, part: Any) -> None:
        self.written.append(part)


def written(body: VectoredBody) -> list[Any]:
    writer = Writer()
    asyncio.run(body.write_with_length(writer, None))  # type: ignore[arg-type]
    return writer.written


@given(st.lists(sizes, max_size=30))
def test_all_bytes_are_written_in_order_and_small_buffers_together(lengths: list[int]) -> None:
    buffers = [bytes([number % 256]) * length for number, length in enumerate(lengths)]
    body = VectoredBody(buffers)
    parts = written(body)
    assert b"".join(parts) == b"".join(buffers)
    assert body.size == body.bytes_count == sum(lengths)
    assert all(len(first) + len(second) > WRITE_BYTES_MIN for first, second in pairwise(parts))


def test_large_buffers_are_passed_on_without_a_copy() -> None:
    large = memoryview(bytearray(WRITE_BYTES_MIN))
    assert any(part is large for part in written(VectoredBody([b"head", large, b"tail"])))


def test_a_body_that_was_begun_is_not_sent_again_behind_our_back() -> None:
    body = VectoredBody([])
    assert not body.consumed
    written(body)
    assert body.consumed
