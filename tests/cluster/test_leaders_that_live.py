"""A leader is killed: for the partitions of those that live neither producers nor readers wait."""

from __future__ import annotations

import asyncio

import pytest

import tidelog
from segments.concurrency import gather_all
from tests.cluster.three_brokers import PATIENCE_S, ThreeBrokers, connected, ready, until

pytestmark = pytest.mark.slow
PARTITIONS = 6
# To each partition that has a leader, one after the other, while the dead one's wait.
RECORDS = 5
# On a busy machine the next leader may come sooner than that.
ROUNDS = 8


async def all_led(log: tidelog.Client, topic: str, by: set[str]) -> list[str]:
    """Broker ids, by partition."""

    async def found() -> list[str] | None:
        leaders = [state.leader for state in (await log.topics.describe(topic)).partitions]
        return leaders if set(leaders) == by else None

    return await until(found)


async def read_on(reader: tidelog.Consumer, least: int) -> int:
    """How many more were read: as soon as it is so many."""
    count = 0
    while count < least:
        count += len(await reader.chunk())
    return count


async def go_on(log: tidelog.Client, partition: int) -> None:
    for _ in range(RECORDS):
        await log.produce("living", "goes on", partition=partition)


async def acknowledged_meanwhile(cluster: ThreeBrokers, log: tidelog.Client, reader: tidelog.Consumer) -> bool:
    """Whether the living answered, and were read, while what b2 led had no leader, which is killed, and started again."""
    leaders = await all_led(log, "living", set(cluster.brokers))
    for partition in range(PARTITIONS):
        await log.produce("living", "before", partition=partition)
    assert await read_on(reader, PARTITIONS) == PARTITIONS
    of_the_dead = [partition for partition in range(PARTITIONS) if leaders[partition] == "b2"]
    living = sorted({*range(PARTITIONS)} - {*of_the_dead})
    killed = cluster.brokers["b2"]
    killed.kill()
    try:
        waiting = [await log.send("living", "waits", partition=partition) for partition in of_the_dead]
        queues = [log._producer._topics.books["living"].queues[partition] for partition in of_the_dead]

        async def are_forwarded() -> bool:
            return all(queue.way.awaits and queue.on_wire for queue in queues) or all(delivery.done for delivery in waiting)

        await until(are_forwarded)
        await gather_all(go_on(log, partition) for partition in living)
        read = await read_on(reader, RECORDS * len(living))
        were_before = not any(delivery.done for delivery in waiting)
        async with asyncio.timeout(PATIENCE_S):
            for delivery in waiting:
                await delivery
        expected = RECORDS * len(living) + len(waiting)
        assert read + await read_on(reader, expected - read) == expected
    finally:
        killed.start()
    await ready(killed)
    return were_before


def test_records_for_leaders_that_live_do_not_wait_for_the_next_leader_of_others(cluster: ThreeBrokers) -> None:
    async def run() -> None:
        await ready(*cluster.brokers.values())
        async with connected(*cluster.urls.values()) as log:
            await log.topics.create("living", partitions=PARTITIONS)
            reader = log.consume("living", from_="earliest")
            for _ in range(ROUNDS):
                if await acknowledged_meanwhile(cluster, log, reader):
                    break
            else:
                pytest.fail("each time the next leader was there before those that live were read")
            await reader.aclose()
            await all_led(log, "living", set(cluster.brokers))
            await log.topics.delete("living")

    asyncio.run(run())
