"""What happens to clients while brokers die, freeze, leave and come: nothing, but for a wait.

Every test runs producers and readers of each kind meanwhile, and all their answers are judged in the end: nothing is
lost, doubled or out of order, readers miss nothing, and no error reaches who asks through the SDK.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.chaos.cluster import SESSION_TIMEOUT_S
from tests.chaos.http_workload import HttpEndpoints, http_session
from tests.chaos.topic_workload import PASSING, TopicChanger
from tests.cluster.three_brokers import PATIENCE_S, Loaded, ThreeBrokers, loaded, ready, until

pytestmark = pytest.mark.slow


def under_load(cluster: ThreeBrokers, directory: Path, scenario: Callable[[Loaded], Awaitable[None]]) -> None:
    async def run() -> None:
        async with loaded(cluster, directory) as load:
            await scenario(load)
            await ready(*cluster.brokers.values())
            await load.asking.all_led(by=set(cluster.brokers))

    asyncio.run(run())


async def kill_and_start_again(load: Loaded, *broker_ids: str) -> None:
    killed = [load.cluster.brokers[broker_id] for broker_id in broker_ids]
    for broker in killed:
        broker.kill()
    try:
        await load.acknowledged_more()
    finally:
        for broker in killed:
            broker.start()


def test_a_leader_is_killed(cluster: ThreeBrokers, tmp_path: Path) -> None:
    async def scenario(load: Loaded) -> None:
        leaders = await load.asking.all_led(by=set(load.cluster.brokers))
        controller = await load.asking.controller()
        leader = next(leader for leader in leaders if leader != controller)
        await kill_and_start_again(load, leader)

    under_load(cluster, tmp_path, scenario)


def test_the_controller_is_killed(cluster: ThreeBrokers, tmp_path: Path) -> None:
    async def scenario(load: Loaded) -> None:
        controller = await load.asking.controller()
        await kill_and_start_again(load, controller)
        assert await load.asking.controller() in cluster.brokers

    under_load(cluster, tmp_path, scenario)


def test_two_of_three_are_killed_at_once(cluster: ThreeBrokers, tmp_path: Path) -> None:
    async def scenario(load: Loaded) -> None:
        controller = await load.asking.controller()
        other = next(broker_id for broker_id in cluster.brokers if broker_id != controller)
        await kill_and_start_again(load, controller, other)

    under_load(cluster, tmp_path, scenario)


def test_a_leader_freezes_past_its_lease_and_wakes_up(cluster: ThreeBrokers, tmp_path: Path) -> None:
    """SIGSTOP, and SIGCONT when others lead: what it had taken is decided by the bucket, and it begins a new session."""

    async def scenario(load: Loaded) -> None:
        async def reported_session() -> int | None:
            brokers = await load.asking.brokers()
            return brokers["b2"]["session"] if "b2" in brokers else None

        session = await until(reported_session)
        frozen = cluster.brokers["b2"]
        frozen.pause()
        try:

            async def has_lost_all() -> bool:
                leaders = await load.asking.leaders()
                return bool(leaders) and None not in leaders and "b2" not in leaders

            await until(has_lost_all)
        finally:
            frozen.resume()

        async def has_a_new_session() -> bool:
            return await reported_session() not in (None, session)

        await until(has_a_new_session)

    under_load(cluster, tmp_path, scenario)


def test_brokers_are_restarted_one_after_the_other(cluster: ThreeBrokers, tmp_path: Path) -> None:
    """SIGTERM hands over before it ends, so no client waits for a lease."""

    async def scenario(load: Loaded) -> None:
        for broker in cluster.brokers.values():
            assert await broker.drain() == 0
            await load.acknowledged_more()
            broker.start()
            await ready(broker)
            await load.asking.all_led(by=set(cluster.brokers))

    under_load(cluster, tmp_path, scenario)


def test_a_broker_is_drained_by_command_and_let_in_again(cluster: ThreeBrokers, tmp_path: Path) -> None:
    async def scenario(load: Loaded) -> None:
        drained = cluster.brokers["b1"]
        try:
            await until(lambda: drained.order("drain"))  # again, where its answer is late, or it has just lost its lease
            await load.asking.all_led(by={"b2", "b3"})
            assert drained.process is not None
            assert drained.process.poll() is None
            await load.acknowledged_more()
        finally:
            await until(lambda: drained.order("undrain"))

    under_load(cluster, tmp_path, scenario)


def test_a_fourth_broker_comes_and_goes(cluster: ThreeBrokers, tmp_path: Path) -> None:
    async def scenario(load: Loaded) -> None:
        fourth = cluster.new_broker("b4")
        try:
            fourth.start()
            await ready(fourth)
            await load.asking.all_led(by={*cluster.brokers, "b4"})
            await load.acknowledged_more()
            assert await fourth.drain() == 0
        finally:
            fourth.kill()

    under_load(cluster, tmp_path, scenario)


def test_etcd_is_restarted(cluster: ThreeBrokers, tmp_path: Path) -> None:
    """While it is away, producing and reading go on."""

    async def scenario(load: Loaded) -> None:
        await asyncio.to_thread(cluster.etcd.end, signal.SIGKILL)
        try:
            await load.acknowledged_more()
            await asyncio.sleep(SESSION_TIMEOUT_S)  # leases would have ended
            await load.acknowledged_more()
        finally:
            await asyncio.to_thread(cluster.etcd.start)
        await load.acknowledged_more()

    under_load(cluster, tmp_path, scenario)


def test_a_topic_is_deleted_and_made_again_and_again(cluster: ThreeBrokers, tmp_path: Path) -> None:
    async def scenario(load: Loaded) -> None:
        async with http_session() as session:
            endpoints = HttpEndpoints(cluster.urls, session, random.Random(1), topic=PASSING)
            changer = TopicChanger(tuple(cluster.urls.values()), load.history, endpoints)
            enough = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(changer.run(enough))

                async def lived_once() -> bool:
                    return changer.lives >= 1

                await until(lived_once, patience_s=2 * PATIENCE_S)
                enough.set()  # the life that has begun is the last one, and is judged as well
            assert changer.lives >= 2

    under_load(cluster, tmp_path, scenario)
