"""Producers and readers of a chaos run, through the SDK. Those over plain HTTP are in http_workload.py.

Each producer numbers its records, has at most IN_FLIGHT_MAX of them unanswered, and writes the answers into the history. Each
reader begins at the beginning and reads until it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from tests.chaos.history import Acknowledged, History, OffsetValues, Polled, Refused, Unexpected, Unknown
from tests.simulation.bucket_reader import parse_record_value, record_value
from tests.simulation.history_checker import RecordId
from tidelog.client import Client, connect
from tidelog.producer.producer import Delivery

TOPIC, PARTITIONS = "orders", 6
IN_FLIGHT_MAX = 2_000
DELIVERY_TIMEOUT_S = 40.0
PADDING_BYTES = 200
CONNECT_AGAIN_S = 0.5
KEYS = 50


def stored_value(value: str) -> bytes:
    """How PRODUCER#NUMBER travels; the same form as the simulation's, so that its reader of buckets can be used."""
    producer, _, number = value.partition("#")
    return record_value(RecordId(producer, int(number), 1), PADDING_BYTES)


def value_of(stored: bytes) -> str:
    return reported_value(parse_record_value(stored))


def reported_value(record: RecordId) -> str:
    return f"{record.producer}#{record.number}"


@asynccontextmanager
async def connected(addresses: Sequence[str], *, delivery_timeout_s: float) -> AsyncIterator[Client]:
    """A client, as soon as the cluster has a broker: for a moment all may have lost their leases, which connect reports."""
    async with AsyncExitStack() as leaving:
        while True:
            try:
                log = await leaving.enter_async_context(connect(*addresses, delivery_timeout_ms=delivery_timeout_s * 1000))
                break
            except Unavailable:
                await asyncio.sleep(CONNECT_AGAIN_S)
        yield log


class SdkProducer:
    """`run` until `enough`, then until all that was sent has its outcome. Idempotent, acks=all."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        history: History,
        *,
        keyed: bool,
        per_second: float,
        topic: str = TOPIC,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self.name = name
        self._topic = topic
        self._delivery_timeout_s = delivery_timeout_s
        self._addresses = addresses
        self._history = history
        self._keyed = keyed
        self._pause_s = 1 / per_second

    async def run(self, enough: asyncio.Event) -> None:
        slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        number = 0
        patience_s = self._delivery_timeout_s
        async with connected(self._addresses, delivery_timeout_s=patience_s) as log, asyncio.TaskGroup() as waits:
            while not enough.is_set():
                await slots.acquire()
                if enough.is_set():
                    break
                value = f"{self.name}#{number}"
                key = f"k{number % KEYS}" if self._keyed else None
                operation = self._history.sent(value, ordered=True)
                try:
                    delivery = await log.send(self._topic, stored_value(value), key=key)
                except TidelogError as error:
                    slots.release()
                    self._failed(operation, error)
                else:
                    waits.create_task(self._answered(operation, delivery, slots))
                number += 1
                await asyncio.sleep(self._pause_s)

    async def _answered(self, operation: int, delivery: Delivery, slots: asyncio.Semaphore) -> None:
        try:
            ack = await delivery
        except TidelogError as error:
            self._failed(operation, error)
        else:
            self._history.add(Acknowledged(self._history.now_s, operation, ((ack.partition, ack.offset),)))
        finally:
            slots.release()

    def _failed(self, operation: int, error: TidelogError) -> None:
        now_s, why = self._history.now_s, f"{error.code}: {error.message}"
        match error:
            case Unavailable():
                self._history.add(Refused(now_s, operation, why))
            case OutcomeUnknown():
                self._history.add(Unknown(now_s, operation, why))
            case _:
                self._history.add(Unexpected(now_s, self.name, why))


class SdkReader:
    """`run` until it is cancelled. With `chunks_max` it makes a new connection after so many, and goes on where it was."""

    def __init__(
        self, name: str, addresses: Sequence[str], history: History, *, chunks_max: int | None = None, topic: str = TOPIC
    ) -> None:
        self.name = name
        self._topic = topic
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self._addresses = addresses
        self._history = history
        self._chunks_max = chunks_max

    async def run(self) -> None:
        while True:
            try:
                await self._read()
            except TidelogError as error:
                self._history.add(Unexpected(self._history.now_s, self.name, f"{error.code}: {error.message}"))
                await asyncio.sleep(1.0)

    async def _read(self) -> None:
        async with AsyncExitStack() as parts:
            try:
                log = await parts.enter_async_context(connect(*self._addresses))
            except Unavailable:  # no broker answers, which connect reports as it should; a connected client must not get this error
                await asyncio.sleep(CONNECT_AGAIN_S)
                return
            consumer = await parts.enter_async_context(aclosing(log.consume(self._topic, from_=dict(self.positions))))
            chunks = 0
            while self._chunks_max is None or chunks < self._chunks_max:
                records = await consumer.chunk()
                partition = records[0].partition
                read: OffsetValues = tuple((record.offset, value_of(record.value or b"")) for record in records)
                self._history.add(Polled(self._history.now_s, self.name, partition, self.positions[partition], read))
                self.positions[partition] = records[-1].offset + 1
                chunks += 1
