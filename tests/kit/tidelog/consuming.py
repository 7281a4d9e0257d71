"""A topic with records at a small broker, for the tests of those who read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Unpack

import tidelog
from metadata.errors import TidelogError
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.settings import SettingChanges

QUICK: SettingChanges = {"retry_pause_ms": 1, "retry_pause_ms_max": 5, "delivery_timeout_ms": 40_000}
RECORDS = 30


def with_records(test: Callable[[SmallBroker, tidelog.Client], Awaitable[None]], **settings: Unpack[SettingChanges]) -> None:
    """Three partitions, record n in partition n % 3 with timestamp 1000 + n."""
    changes: SettingChanges = {**QUICK, **settings}

    async def run() -> None:
        async with running(SmallBroker()) as broker, asyncio.timeout(60):
            broker.create_topic("orders", 3)
            async with tidelog.connect(broker.address, **changes) as log:
                for n in range(RECORDS):
                    await log.send("orders", n, partition=n % 3, timestamp_ms=1000 + n)
                await log.flush()
                await test(broker, log)

    asyncio.run(run())


async def read(log: tidelog.Client, **options: object) -> list[tuple[int, int, object]]:
    """(partition, offset, value) of every record, up to the end."""
    consumer = log.consume("orders", **({"follow": False} | options))  # type: ignore[call-overload]
    return [(record.partition, record.offset, record.json()) async for record in consumer]


async def read_until_it_fails(consumer: tidelog.Consumer) -> tuple[list[int], TidelogError]:
    """The values that came before the error, and the error."""
    values: list[int] = []
    try:
        async for record in consumer:
            values.append(record.json())  # noqa: PERF401  # those before the error are wanted, too
    except TidelogError as error:
        return values, error
    raise AssertionError("it came to its end")


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop go on until the condition holds."""
    while not condition():  # noqa: ASYNC110  # there is no event for what only a test looks at
        await asyncio.sleep(0.001)


def waits_for_its_caller(consumer: tidelog.Consumer) -> bool:
    """Whether it has read ahead as far as it may."""
    ahead = consumer._fetching._ahead
    return ahead._bytes_held > 0 and not ahead._bytes_expected


async def read_out(consumer: tidelog.Consumer | tidelog.TopicsConsumer) -> list[int]:
    """The values of all that is left."""
    values: list[int] = []
    while records := await consumer.chunk():
        values += [record.json() for record in records]
    return values
