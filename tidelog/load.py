"""Load on a cluster, and how it bears it: what `tidelog bench` runs. Measured at the client, acknowledgement by acknowledgement.

produce      as fast as the cluster takes it; latency from `send` to the acknowledgement, of one record in a hundred
consume      from the beginning of the topic to its end
end-to-end   at a steady rate; latency from `send` until another connection has the record
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from metadata.errors import Unavailable
from tidelog.client import Client
from tidelog.latencies import Latencies
from tidelog.tasks import ClientTasks

SAMPLED_EVERY = 100
# How long an end-to-end run waits for records that were acknowledged and have not been read.
LATE_RECORDS_S = 30.0
_SENT_AT = struct.Struct(">d")


@dataclass(slots=True)
class LoadProgress:
    """The progress of a run; another task may read it at any time."""

    records: int = 0
    value_bytes: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    started_s: float = field(default_factory=time.perf_counter)
    ended_s: float = 0.0

    @property
    def seconds(self) -> float:
        return max(1e-9, (self.ended_s or time.perf_counter()) - self.started_s)

    def summary(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "records": self.records,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(self.records / self.seconds),
            "mb_per_second": round(self.value_bytes / self.seconds / 1e6, 2),
        }
        return row | self.latencies.summary_ms() if self.latencies.count else row


async def produce_load(
    log: Client, topic: str, progress: LoadProgress, *, seconds: float, records: int | None, record_bytes: int
) -> None:
    """Sends values of `record_bytes` until the time is over, or `records` are sent; ends when all are acknowledged."""
    value = os.urandom(record_bytes)
    progress.started_s = time.perf_counter()
    ends_s = progress.started_s + seconds
    while time.perf_counter() < ends_s and (records is None or progress.records < records):
        for index in range(SAMPLED_EVERY if records is None else min(SAMPLED_EVERY, records - progress.records)):
            sent_s = time.perf_counter()
            delivery = await log.send(topic, value)
            if index == 0:
                delivery.when_done(partial(_measure, progress, sent_s))
            progress.records += 1
            progress.value_bytes += record_bytes
    await log.flush()
    progress.ended_s = time.perf_counter()


def _measure(progress: LoadProgress, sent_s: float) -> None:
    progress.latencies.add(time.perf_counter() - sent_s)


async def consume_load(log: Client, topic: str, progress: LoadProgress, *, seconds: float, records: int | None) -> None:
    """Reads from the beginning until the present end, or until the time is over, or `records` are read."""
    consumer = log.consume(topic, from_="earliest", follow=False)
    progress.started_s = time.perf_counter()
    try:
        async with asyncio.timeout(seconds):
            while chunk := await consumer.chunk():
                progress.records += len(chunk)
                progress.value_bytes += sum(len(record.value) for record in chunk if record.value)
                if records is not None and progress.records >= records:
                    break
    except TimeoutError:
        pass
    finally:
        progress.ended_s = time.perf_counter()
        await consumer.aclose()


async def end_to_end_load(
    log: Client, reader: Client, topic: str, progress: LoadProgress, *, seconds: float, rate: float, record_bytes: int
) -> None:
    """Sends `rate` records a second with their time in the value, and reads them over a connection of its own.

    Raises what the sender meets or the reader, as it was, and Unavailable when acknowledged records do not come to the reader.
    """
    run = os.urandom(8)
    padding = bytes(max(0, record_bytes - len(run) - _SENT_AT.size))
    total = max(1, round(seconds * rate))
    consumer = reader.consume(
        topic, from_={partition: ends.high_watermark for partition, ends in (await log.offsets(topic)).items()}
    )

    async def read() -> None:
        while progress.records < total and (chunk := await consumer.chunk()):
            for record in chunk:
                now_s = time.perf_counter()
                if record.value is not None and record.value.startswith(run):
                    (sent_s,) = _SENT_AT.unpack_from(record.value, len(run))
                    progress.latencies.add(now_s - sent_s)
                    progress.records += 1
                    progress.value_bytes += len(record.value)

    progress.started_s = time.perf_counter()
    try:
        async with ClientTasks() as tasks:
            reading = tasks.start(read(), name="read")
            for number in range(total):
                due_s = progress.started_s + number / rate
                if (early_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(early_s)
                await log.send(topic, run + _SENT_AT.pack(time.perf_counter()) + padding)
            await log.flush()
            await asyncio.wait((reading,), timeout=LATE_RECORDS_S)
            if not reading.done():
                missing = (
                    f"{total - progress.records} of {total} records were acknowledged, and not read within {LATE_RECORDS_S:g} s"
                )
                raise next(iter(consumer.errors.values()), Unavailable(missing))
    finally:
        progress.ended_s = time.perf_counter()
        await consumer.aclose()
