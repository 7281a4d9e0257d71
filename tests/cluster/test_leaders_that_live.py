"""A leader is killed: for the partitions of those that live neither producers nor readers wait."""

from __future__ import annotations

import asyncio

import pytest

import tidelog
from tests.chaos.cluster import SESSION_TIMEOUT_S
from tests.cluster.three_brokers import TAKEOVER_S, ThreeBrokers, ready, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("three brokers")]
PARTITIONS = 6
RECORDS = 5
"""To each partition, one after the other, while the dead one's wait."""


async def all_led(log: tidelog.Client, topic: str, by: set[str]) -> list[str]:
    """Broker ids, by partition."""

    async def found() -> list[str] | None:
        leaders = [state.leader for state in (await log.topics.describe(topic)).partitions]
        return leaders if set(leaders) == by else None

    return await until(found)


async def records(reader: tidelog.Consumer, count: int) -> None:
    """Returns when exactly so many more were read."""
    while count > 0:
        count -= len(await reader.chunk())
    assert count == 0


def test_records_for_leaders_that_live_do_not_wait_for_the_next_leader_of_others(cluster: ThreeBrokers) -> None:
    async def run() -> None:
        await ready(*cluster.brokers.values())
        async with tidelog.connect(*cluster.urls.values()) as log, asyncio.timeout(10 * TAKEOVER_S):
            await log.topics.create("living", partitions=PARTITIONS)
            leaders = await all_led(log, "living", set(cluster.brokers))
            for partition in range(PARTITIONS):
                await log.produce("living", "before", partition=partition)
            reader = log.consume("living", from_="earliest")
            await records(reader, PARTITIONS)
            killed = cluster.brokers["b2"]
            killed.kill()
            try:
                of_the_dead = [partition for partition in range(PARTITIONS) if leaders[partition] == "b2"]
                waiting = [await log.send("living", "waits", partition=partition) for partition in of_the_dead]
                lanes = [log._producer._topics.books["living"].lanes[partition] for partition in of_the_dead]

                async def are_forwarded() -> bool:
                    return all(lane.way.awaits and lane.on_wire for lane in lanes)

                await until(are_forwarded, within_s=SESSION_TIMEOUT_S)
                living = sorted({*range(PARTITIONS)} - {*of_the_dead})
                for partition in living:
                    for _ in range(RECORDS):
                        await log.produce("living", "goes on", partition=partition)
                await records(reader, RECORDS * len(living))
                assert not any(delivery.done for delivery in waiting), "nobody leads these yet"
                async with asyncio.timeout(TAKEOVER_S):
                    assert [(await delivery).offset for delivery in waiting] == [1] * len(waiting)
                await records(reader, len(waiting))
                await reader.aclose()
            finally:
                killed.start()
            await ready(killed)
            await all_led(log, "living", set(cluster.brokers))
            await log.topics.delete("living")

    asyncio.run(run())
