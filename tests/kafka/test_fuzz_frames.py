"""The fuzzing of frames runs, finds nothing in a moment, and would find something."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.kafka.connection import KafkaConnection
from tests.kafka import fuzz_frames
from tests.kafka.fuzz_frames import Finding, fuzz


def test_mutated_frames_crash_hang_and_cost_nothing() -> None:
    listener = asyncio.run(fuzz(400, seed=0))
    assert listener.answers > 50
    assert listener.closed > 50


def test_an_error_that_is_no_refusal_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode_header(frame: Any) -> Any:
        raise LookupError("a fault")

    monkeypatch.setattr("gateway.kafka.requests.decode_header", decode_header)
    with pytest.raises(Finding, match="LookupError"):
        asyncio.run(fuzz(50, seed=0))


def test_a_request_without_an_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_frames, "THREAD_S_MAX", 0.0)
    monkeypatch.setattr(KafkaConnection, "_flush", lambda self: None)
    with pytest.raises(Finding, match="is not answered"):
        asyncio.run(fuzz(50, seed=0))


def test_memory_beyond_the_bound_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_frames, "MEMORY_MAX", 0)
    monkeypatch.setattr(fuzz_frames, "MEMORY_PER_BYTE_MAX", 1)
    with pytest.raises(Finding, match="bytes of memory for a frame"):
        asyncio.run(fuzz(200, seed=0))


def test_the_same_seed_makes_the_same_frames() -> None:
    first, second = fuzz_frames.Frames(3), fuzz_frames.Frames(3)
    assert [first.mutated() for _ in range(20)] == [second.mutated() for _ in range(20)]
