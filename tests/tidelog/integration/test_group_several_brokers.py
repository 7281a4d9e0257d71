"""A group over real brokers that share a bucket: members come and go while records flow, and brokers do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import tidelog
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.tidelog.producing import quick, until

pytestmark = pytest.mark.slow
PARTITIONS = 6
GROUP = "billing"


def connected(cluster: Cluster) -> tidelog.Client:
    return tidelog.connect(*(f"grpc://{broker.grpc_address}" for broker in cluster.brokers), **quick())


class Flow:
    """What a producer writes meanwhile, and what the members were handed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.written = 0
        self.is_written = asyncio.Event()
        self.is_over = False
        self.handed: list[int] = []
        self.by_partition: dict[int, list[int]] = {}

    async def write(self, log: tidelog.Client, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            for _ in range(50):
                await log.send("orders", self.written, partition=self.written % PARTITIONS)
                self.written += 1
            await log.flush()
            await asyncio.sleep(0)  # the brokers share this loop
        self.is_written.set()

    async def read(self, records_max: int | None = None) -> None:
        """One member: comes, takes so many records, or all that there are, and leaves."""
        count = 0
        async with connected(self.cluster) as log, log.consume("orders", group=GROUP, heartbeat_interval_ms=200) as consumer:
            async for record in consumer:
                count += 1
                self.handed.append(record.json())
                self.by_partition.setdefault(record.partition, []).append(record.offset)
                await asyncio.sleep(0)
                if count == records_max or (self.is_over and self.has_all()):
                    return

    def has_all(self) -> bool:
        return len(set(self.handed)) == self.written


def test_each_record_is_delivered_once_and_in_order_while_members_join_and_leave(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        flow = Flow(cluster)
        turns = 0

        async def come_and_go(records_max: int) -> None:
            nonlocal turns
            for _ in range(3):
                await flow.read(records_max)
                turns += 1

        async with connected(cluster) as log:
            await log.topics.create("orders", partitions=PARTITIONS)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(flow.write(log, lambda: turns < 6))
                last = tasks.create_task(flow.read())
                for records_max in (200, 300):
                    tasks.create_task(come_and_go(records_max))
                await flow.is_written.wait()
                await until(flow.has_all)
                flow.written, flow.is_over = flow.written + 1, True
                await log.send("orders", flow.written - 1, partition=0)  # so that who waits for records sees that it is over
                await last
            counts = Counter(flow.handed)
            assert not {n: count for n in range(flow.written) if (count := counts[n]) != 1}
            for offsets in flow.by_partition.values():
                assert offsets == list(range(len(offsets)))
            ends = await log.offsets("orders")
            committed = {found.partition: found.offset for found in await log.groups.offsets(GROUP)}
            assert committed == {partition: end.high_watermark for partition, end in ends.items()}

    with_cluster(tmp_path, scenario, count=3)


def test_when_the_groups_coordinator_goes_its_members_read_on_and_nothing_is_skipped(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        flow = Flow(cluster)
        is_moved = asyncio.Event()
        async with connected(cluster) as log:
            await log.topics.create("orders", partitions=PARTITIONS)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(flow.write(log, lambda: not is_moved.is_set()))
                members = [tasks.create_task(flow.read()) for _ in range(2)]
                await until(lambda: len(flow.handed) > 200)
                before = (await log.groups.describe(GROUP)).coordinator
                await log.drain_broker(before)
                while (await log.groups.describe(GROUP)).coordinator == before:  # noqa: ASYNC110  # no event shows it
                    await asyncio.sleep(0.05)
                count = len(flow.handed)
                await until(lambda: len(flow.handed) > count + 500)
                is_moved.set()
                await flow.is_written.wait()
                await until(flow.has_all)
                for partition in range(PARTITIONS):
                    await log.send("orders", flow.written, partition=partition)
                    flow.written += 1
                await log.flush()
                await until(flow.has_all)
                for member in members:
                    member.cancel()
            assert set(flow.handed) == set(range(flow.written))

    with_cluster(tmp_path, scenario, count=3)
