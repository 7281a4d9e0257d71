"""Members that come and go, topics that come and change: who reads what, and that nothing is skipped."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import tidelog
from tests.kit.gateway.small_broker import SmallBroker
from tests.kit.tidelog.consuming import until
from tests.kit.tidelog.grouping import GROUP, RECORDS, committed, connected, numbered, take, until_members, with_group

pytestmark = pytest.mark.slow

# Long enough for an answer on a busy machine: a heartbeat waits no longer for it.
QUICK_BEATS = 200
TopicPartitionName = tuple[str, int]


def test_a_partition_goes_to_another_member_when_its_caller_has_asked_for_more(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        await log.produce_many("orders", numbered(range(RECORDS, 90)))
        revoked: list[TopicPartitionName] = []

        async def note_revoked(partitions: list[TopicPartitionName]) -> None:
            assert await one.committed(*partitions) == {partition: at[partition] for partition in partitions}
            revoked.extend(partitions)

        async with (
            connected(broker) as other,
            log.consume("orders", group=GROUP, heartbeat_interval_ms=QUICK_BEATS, on_revoked=note_revoked) as one,
            other.consume("orders", group=GROUP, heartbeat_interval_ms=QUICK_BEATS) as two,
        ):
            at: dict[TopicPartitionName, int] = {}
            joining = None
            async for record in one:
                partition = record.topic, record.partition
                assert partition not in revoked
                at[partition] = record.offset + 1
                if joining is None and len(at) == 3:
                    joining = asyncio.create_task(two.chunk())
                if joining is not None and not revoked:
                    await asyncio.sleep(0.005)
                if revoked:
                    break
            assert joining is not None
            first = (await joining)[0]
            assert (first.topic, first.partition) in revoked
            assert first.offset == at[first.topic, first.partition], "it goes on where the other one stopped"

    with_group(tmp_path, scenario, read_ahead_bytes_max=400, batch_bytes_max=200)


def test_a_member_with_nothing_in_hand_of_the_revoked_partitions_need_not_ask_for_more(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with (
            connected(broker) as other,
            log.consume("orders", group=GROUP, heartbeat_interval_ms=QUICK_BEATS) as one,
            other.consume("orders", group=GROUP, heartbeat_interval_ms=QUICK_BEATS) as two,
        ):
            await take(one, RECORDS)
            idle = asyncio.create_task(one.chunk())
            joining = asyncio.create_task(two.chunk())
            await until(lambda: len(one.assignment()) == 2 and len(two.assignment()) == 1)
            await log.produce_many("orders", numbered(range(RECORDS, 33)))
            values = {record.json() for record in [*await idle, *await joining]}
            while len(values) < 3:
                values |= set(await take(one, 1))
            assert values == {30, 31, 32}, "what was committed is not read again"

    with_group(tmp_path, scenario)


def test_a_member_that_leaves_leaves_its_partitions_to_the_others(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        assigned: list[TopicPartitionName] = []
        async with connected(broker) as other:
            two = other.consume("orders", group=GROUP, heartbeat_interval_ms=QUICK_BEATS)
            async with log.consume("orders", group=GROUP, heartbeat_interval_ms=QUICK_BEATS, on_assigned=assigned.extend) as one:
                reading = [asyncio.create_task(take(each, 3)) for each in (one, two)]
                await until_members(broker, 2)
                await asyncio.gather(*reading)
                idle = asyncio.create_task(take(one, 1_000))
                await two.aclose()
                await until(lambda: len(one.assignment()) == 3)
                idle.cancel()
        assert sorted(set(assigned)) == [("orders", n) for n in range(3)]

    with_group(tmp_path, scenario)


def test_members_that_only_know_range_stop_for_a_moment_and_lose_nothing(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        options = {"heartbeat_interval_ms": QUICK_BEATS, "assignors": ("range",)}
        async with connected(broker) as other:
            async with (
                log.consume("orders", group=GROUP, **options) as one,  # type: ignore[call-overload]
                other.consume("orders", group=GROUP, **options) as two,  # type: ignore[call-overload]
            ):
                seen: list[int] = []

                async def read(consumer: tidelog.GroupConsumer) -> None:
                    async for record in consumer:
                        seen.append(record.json())
                        await asyncio.sleep(0)

                async with asyncio.TaskGroup() as tasks:
                    readers = [tasks.create_task(read(one))]
                    await until(lambda: bool(seen))
                    readers.append(tasks.create_task(read(two)))
                    for start in range(RECORDS, 300, 30):
                        await log.produce_many("orders", numbered(range(start, start + 30)))
                        await asyncio.sleep(0.01)
                    await until(lambda: len(seen) >= 300 and bool(two.assignment()))
                    for reader in readers:
                        reader.cancel()
            assert sorted(seen) == list(range(300)), "each once"

    with_group(tmp_path, scenario)


def test_several_topics_are_read_together(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        await log.produce_many("single", range(100, 105))
        async with log.consume(["orders", "single"], group=GROUP) as consumer:
            assert sorted(await take(consumer, 35)) == [*range(30), *range(100, 105)]
            assert consumer.positions == {**{("orders", n): 10 for n in range(3)}, ("single", 0): 5}

    with_group(tmp_path, scenario)


def test_topics_that_come_to_match_a_pattern_are_read_and_those_that_go_are_left_out(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        pattern = re.compile("orders.*")
        async with log.consume(pattern, group=GROUP, heartbeat_interval_ms=QUICK_BEATS) as consumer:
            assert sorted(await take(consumer, RECORDS)) == list(range(RECORDS))
            taking = asyncio.create_task(take(consumer, 2))
            await log.topics.create("orders-eu", partitions=1)
            await log.produce_many("orders-eu", [31, 32])
            assert await taking == [31, 32]
            idle = asyncio.create_task(take(consumer, 1_000))
            await log.topics.delete("orders")
            await until(lambda: consumer.assignment() == [("orders-eu", 0)])
            idle.cancel()

    with_group(tmp_path, scenario, topic_age_ms_max=50)


def test_partitions_that_are_added_are_assigned_and_read_from_their_start(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, heartbeat_interval_ms=QUICK_BEATS) as consumer:
            await take(consumer, RECORDS)
            taking = asyncio.create_task(take(consumer, 1))
            await log.topics.add_partitions("orders", 4)
            await log.produce("orders", 30, partition=3)
            assert await taking == [30]

    with_group(tmp_path, scenario, topic_age_ms_max=50)


def test_a_recreated_topic_is_read_from_its_start_and_old_offsets_do_not_count(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("single", group=GROUP, auto_commit_interval_ms=20) as consumer:
            await log.produce_many("single", range(10))
            await take(consumer, 10)
            taking = asyncio.create_task(take(consumer, 3))
            await log.topics.delete("single")
            await log.topics.create("single", partitions=1)
            await log.produce_many("single", [100, 101, 102])
            assert await taking == [100, 101, 102]
        assert [found.offset for found in await log.groups.offsets(GROUP)] == [3]

    with_group(tmp_path, scenario, topic_age_ms_max=50)


def test_a_static_member_that_restarts_in_time_reads_on_without_a_rebalance(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, instance_id="i1") as consumer:
            await take(consumer, RECORDS)
        assert sum((await committed(log)).values()) == RECORDS
        generation = (await log.groups.describe(GROUP)).generation
        await log.produce("orders", 30, partition=0)
        async with log.consume("orders", group=GROUP, instance_id="i1") as consumer:
            assert await take(consumer, 1) == [30]
        assert (await log.groups.describe(GROUP)).generation == generation

    with_group(tmp_path, scenario)
