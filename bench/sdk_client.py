"""Load through the SDK, as a user would make it, and what came of it. Runs in the client's process (load.py).

Each record carries its number, so that a reader can tell whether one is missing or there twice.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import uvloop

from bench.load import Until
from metadata.errors import TidelogError
from tidelog import connect
from tidelog.producer.producer import Delivery

TICK_S = 0.01
# Ends by itself after this, whatever the benchmark does.
RUN_S_MAX = 150.0
DELIVERY_S_MAX = 60.0
READ_S_MAX = 60.0
_NUMBER = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Produced:
    records: int
    started_s: float
    # When the last of them had its outcome.
    ended_s: float
    # Of the first record of each batch: it waited longest of the batch. So are the next two.
    partitions: np.ndarray[tuple[int], np.dtype[np.int32]]
    sent_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    answered_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    # What reached the caller, for each batch that failed.
    errors: tuple[str, ...]

    @property
    def records_per_second(self) -> float:
        return self.records / (self.ended_s - self.started_s)

    @property
    def waited_s(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self.answered_s - self.sent_s


class _Outcomes:
    def __init__(self) -> None:
        self.partitions: list[int] = []
        self.sent_s: list[float] = []
        self.answered_s: list[float] = []
        self.errors: list[str] = []

    def follow(self, delivery: Delivery, partition: int) -> None:
        delivery.when_done(partial(self._done, delivery, partition, time.monotonic()))

    def _done(self, delivery: Delivery, partition: int, sent_s: float) -> None:
        error = delivery.batch.error
        if error is not None:
            self.errors.append(str(error))
            return
        self.partitions.append(partition)
        self.sent_s.append(sent_s)
        self.answered_s.append(time.monotonic())


def produce_in_turn(
    urls: Sequence[str], topic: str, partitions: int, *, value_bytes: int, records_per_second: float, until: Until
) -> Produced:
    """One record to each partition in turn, so many a second (0: as fast as there is room); then waits until all have their
    outcome. Values are numbered from 0."""

    async def run() -> Produced:
        outcomes = _Outcomes()
        padding = bytes(value_bytes - _NUMBER.size)
        number = 0
        started_s = time.monotonic()
        async with connect(*urls, delivery_timeout_ms=DELIVERY_S_MAX * 1000) as log:
            while not until.over:
                if time.monotonic() - started_s > RUN_S_MAX:
                    raise RuntimeError(f"the load was not ended within {RUN_S_MAX:g} s")
                due = int((time.monotonic() - started_s) * records_per_second) if records_per_second else number + 1_000
                for number in range(number, due):  # noqa: B020  # goes on where it was
                    in_turn = number % partitions
                    delivery = await log.send(topic, _NUMBER.pack(number) + padding, partition=in_turn)
                    if delivery.index == 0:
                        outcomes.follow(delivery, in_turn)
                number = max(number, due)
                if records_per_second:
                    await asyncio.sleep(TICK_S)
            with suppress(TidelogError):  # each batch tells of its own
                await log.flush()
        return Produced(
            number,
            started_s,
            time.monotonic(),
            np.array(outcomes.partitions, np.int32),
            np.array(outcomes.sent_s),
            np.array(outcomes.answered_s),
            tuple(outcomes.errors),
        )

    return uvloop.run(run())


def lost_and_doubled(urls: Sequence[str], topic: str, records: int) -> tuple[int, int]:
    """Of the numbers below `records`, how many a reader of the topic does not find, and how many records repeat another's."""

    async def run() -> tuple[int, int]:
        found = np.zeros(records, np.int64)
        async with asyncio.timeout(READ_S_MAX), connect(*urls) as log:
            consumer = log.consume(topic, follow=False)
            while chunk := await consumer.chunk():
                numbers = [_NUMBER.unpack_from(record.value or b"")[0] for record in chunk]
                np.add.at(found, numbers, 1)
            await consumer.aclose()
        return int((found == 0).sum()), int((found[found > 1] - 1).sum())

    return uvloop.run(run())


class Sent(NamedTuple):
    records: int
    # From the first sent to the last acknowledged.
    seconds: float

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds


def produce_for(urls: Sequence[str], topic: str, partitions: int, *, value_bytes: int, seconds: float) -> Sent:
    """As fast as there is room, to all partitions in turn. Raises what the caller meets."""

    async def run() -> Sent:
        value = bytes(value_bytes)
        number = 0
        async with connect(*urls, delivery_timeout_ms=DELIVERY_S_MAX * 1000) as log:
            await log.produce(topic, value, partition=0)  # finds the topic
            started_s = time.monotonic()
            while time.monotonic() - started_s < seconds:
                for _ in range(500):
                    await log.send(topic, value, partition=number % partitions)
                    number += 1
            await log.flush()
            return Sent(number, time.monotonic() - started_s)

    return uvloop.run(run())
