"""A small broker and a client that does not wait long, for tests of what sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Unpack

from metadata.errors import TidelogError
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.client import Client
from tidelog.records import Ack
from tidelog.settings import SettingChanges

QUICK: SettingChanges = {"retry_pause_ms": 1, "retry_pause_ms_max": 5, "delivery_timeout_ms": 40_000}


def quick(**changes: Unpack[SettingChanges]) -> SettingChanges:
    return {**QUICK, **changes}


def with_broker(test: Callable[[SmallBroker], Awaitable[None]], *, partitions: int = 3, **settings: str) -> None:
    async def run() -> None:
        async with running(SmallBroker()) as broker:
            broker.create_topic("orders", partitions, **settings)
            async with asyncio.timeout(60):
                await test(broker)

    asyncio.run(run())


def impatient(log: Client, **changes: Unpack[SettingChanges]) -> None:
    """What the client begins from now on has less time; what went before had as much as a busy machine needs."""
    log._settings = log._connection._settings = replace(log._settings, **changes)


def time_is_up(log: Client) -> None:
    """What has no outcome yet is past its deadline, as it is after delivery_timeout_ms. The client looks once a second."""
    for batch in log._producer._accumulator.unsettled():
        batch.deadline_s = asyncio.get_running_loop().time()


async def outcome_of(delivery: Awaitable[Ack]) -> Ack | TidelogError:
    try:
        return await delivery
    except TidelogError as error:
        return error


async def once_not_refused(send: Callable[[], Awaitable[Ack]], refusal: type[TidelogError]) -> Ack:
    """Sends until it is taken: what changed is not asked about more often than every few milliseconds."""
    while True:
        outcome = await outcome_of(send())
        if not isinstance(outcome, refusal):
            assert isinstance(outcome, Ack)
            return outcome


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop go on until the condition holds."""
    while not condition():  # noqa: ASYNC110  # neither client nor broker has an event for what only a test looks at
        await asyncio.sleep(0.001)


async def until_lost(log: Client, broker: SmallBroker) -> None:
    """Lets the loop go on until the client has seen that a stopped broker is gone: what is sent from now on is not in doubt."""
    connection, streams = log._connection, log._producer._streams.values()
    await until(lambda: all(stream._broke for stream, _ in streams if stream._address == broker.host_port))
    await until(lambda: not connection._channels.is_connected(broker.host_port))
