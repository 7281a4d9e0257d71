"""What `tidelog bench end-to-end` does: it measures what arrives, and whatever goes wrong comes out as it was, in bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from metadata.errors import Corrupt, TidelogError, Unavailable, UnknownTopic
from tests.simulation.virtual_loop import run
from tidelog import load
from tidelog.client import Client
from tidelog.load import LoadProgress, end_to_end_load
from tidelog.records import Record
from tidelog.transport.descriptions import OffsetRange


class FakeConsumer:
    def __init__(self, chunk: Callable[[], Awaitable[list[Record]]]) -> None:
        self.chunk = chunk
        self.errors: dict[int, TidelogError] = {}
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


class FakeCluster:
    """Both clients at once: what is sent arrives at the consumer, unless a test says otherwise."""

    def __init__(self) -> None:
        self.send_error: TidelogError | None = None
        self.flush_error: TidelogError | None = None
        self.consumer = FakeConsumer(self._chunk)
        self._sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def offsets(self, topic: str) -> dict[int, OffsetRange]:
        return {0: OffsetRange(log_start_offset=0, high_watermark=5)}

    async def send(self, topic: str, value: bytes) -> None:
        if self.send_error is not None:
            raise self.send_error
        self._sent.put_nowait(value)

    async def flush(self) -> None:
        if self.flush_error is not None:
            raise self.flush_error

    def consume(self, topic: str, *, from_: dict[int, int]) -> FakeConsumer:
        assert from_ == {0: 5}, "what is there already is not read"
        return self.consumer

    async def _chunk(self) -> list[Record]:
        return [Record(topic="t", partition=0, offset=5, timestamp_ms=0, key=None, value=await self._sent.get(), headers=())]


def end_to_end(cluster: FakeCluster, *, records: int = 3) -> LoadProgress:
    """A run whose records are all due at once. Raises what it raises."""
    progress = LoadProgress()
    client = cast(Client, cluster)
    try:
        run(end_to_end_load(client, client, "t", progress, seconds=records * 1e-6, rate=1e6, record_bytes=100))
    finally:
        assert cluster.consumer.is_closed
    return progress


async def _silence() -> list[Record]:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("it never comes")


def test_records_that_arrive_are_measured() -> None:
    progress = end_to_end(FakeCluster())
    assert (progress.records, progress.value_bytes, progress.latencies.count) == (3, 300, 3)
    assert progress.ended_s > progress.started_s


def test_an_error_of_the_sender_comes_out_as_it_was() -> None:
    cluster = FakeCluster()
    cluster.send_error = UnknownTopic("there is no topic t")
    with pytest.raises(UnknownTopic) as refusal:
        end_to_end(cluster)
    assert refusal.value is cluster.send_error


def test_a_record_that_was_not_acknowledged_comes_out_as_its_error() -> None:
    cluster = FakeCluster()
    cluster.flush_error = Unavailable("the disk is full")
    with pytest.raises(Unavailable, match="the disk is full"):
        end_to_end(cluster)


def test_an_error_of_the_reader_comes_out_as_it_was_and_ends_the_sending() -> None:
    async def fails() -> list[Record]:
        raise Corrupt("offset 5 can't be read")

    cluster = FakeCluster()
    cluster.consumer.chunk = fails
    with pytest.raises(Corrupt, match="offset 5 can't be read"):
        end_to_end(cluster)


def test_records_that_never_come_to_the_reader_are_not_waited_for_without_end() -> None:
    cluster = FakeCluster()
    cluster.consumer.chunk = _silence
    with pytest.raises(Unavailable, match=f"3 of 3 records were acknowledged, and not read within {load.LATE_RECORDS_S:g} s"):
        end_to_end(cluster)


def test_an_error_that_the_reader_met_in_one_partition_is_why_records_do_not_come() -> None:
    cluster = FakeCluster()
    cluster.consumer.chunk = _silence
    cluster.consumer.errors[0] = Corrupt("offset 5 can't be read")
    with pytest.raises(Corrupt, match="offset 5 can't be read"):
        end_to_end(cluster)
