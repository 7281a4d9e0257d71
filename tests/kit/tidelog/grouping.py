"""A broker with records in `orders`, and what the tests of members of groups ask about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Unpack

import tidelog
from metadata.groups.model import GroupPhase
from tests.kit.gateway.small_broker import SmallBroker, small_broker
from tests.kit.tidelog.consuming import until
from tidelog.settings import SettingChanges

QUICK: SettingChanges = {"retry_pause_ms": 1, "retry_pause_ms_max": 5, "delivery_timeout_ms": 40_000, "fetch_wait_ms_max": 200}
GROUP = "billing"
RECORDS = 30
Scenario = Callable[[SmallBroker, tidelog.Client], Awaitable[None]]


def with_group(tmp_path: Path, scenario: Scenario, **settings: Unpack[SettingChanges]) -> None:
    """Three partitions of `orders`, record n in partition n % 3."""
    changes: SettingChanges = {**QUICK, **settings}

    async def run() -> None:
        async with asyncio.timeout(60), small_broker(tmp_path) as broker, connected(broker, changes) as log:
            await log.produce_many("orders", numbered(range(RECORDS)))
            await scenario(broker, log)

    asyncio.run(run())


def connected(broker: SmallBroker, changes: SettingChanges = QUICK) -> tidelog.Client:
    return tidelog.connect(f"grpc://{broker.grpc_address}", **changes)


def numbered(numbers: range) -> list[tidelog.Message]:
    return [tidelog.Message(n, partition=n % 3) for n in numbers]


async def committed(log: tidelog.Client, group: str = GROUP) -> dict[int, int]:
    """Of `orders`, by partition."""
    return {found.partition: found.offset for found in await log.groups.offsets(group) if found.topic == "orders"}


async def take(consumer: tidelog.GroupConsumer, count: int) -> list[int]:
    """The values of so many records, taken as chunks; at least."""
    values: list[int] = []
    while len(values) < count:
        values += [record.json() for record in await consumer.chunk()]
    return values


async def until_members(broker: SmallBroker, count: int, group: str = GROUP) -> None:
    """The group is at rest with so many members."""

    def is_so() -> bool:
        held = broker.coordinated_groups._groups.get(group)
        return held is not None and len(held.group.members) == count and held.group.phase in (GroupPhase.STABLE, GroupPhase.EMPTY)

    await until(is_so)
