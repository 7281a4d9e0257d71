"""A reader that names its rack is sent to a broker there, stays while that goes well, and comes back to the leader."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

import pytest

import tidelog
from gateway.routing.cluster_log import ClusterLog
from metadata.errors import Corrupt, InvalidArgument, NotLeader, OutOfRange, Throttled, TidelogError
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.tidelog.consuming import QUICK, read
from tests.kit.tidelog.producing import quick, until
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.consumer import fetcher
from tidelog.settings import SettingChanges

pytestmark = pytest.mark.slow

RECORDS = 30
Test = Callable[[SmallBroker, SmallBroker, tidelog.Client], Awaitable[None]]


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[SmallBroker, SmallBroker]]:
    """One of rack a, which leads all, and one of rack b, which reads for it."""
    leader, near = SmallBroker("leader"), SmallBroker("near")
    async with running(leader), running(near):
        near.join(leader)
        near.forwards = True
        leader.rack, near.rack = "a", "b"
        leader.create_topic("orders", 3)
        for partition in range(3):
            leader.leaders["orders", partition] = "leader"
            leader.preferred["orders", partition] = "near"
        yield leader, near


def with_two(test: Test, *, rack: str = "b", **settings: Unpack[SettingChanges]) -> None:
    changes: SettingChanges = {**QUICK, "client_rack": rack, "fetch_wait_ms_max": 50, **settings}

    async def run() -> None:
        async with two_brokers() as (leader, near), asyncio.timeout(60), tidelog.connect(leader.address, **changes) as log:
            for n in range(RECORDS):
                await log.send("orders", n, partition=n % 3)
            await log.flush()
            await test(leader, near, log)

    asyncio.run(run())


def values(found: list[tuple[int, int, object]]) -> list[object]:
    return sorted(value for _, _, value in found)  # type: ignore[type-var]


def racks(broker: SmallBroker) -> set[str]:
    return {rack for rack, _ in broker.fetched_for}


def test_all_is_read_through_the_broker_of_the_own_rack_once_the_leader_has_named_it() -> None:
    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        assert values(await read(log)) == list(range(RECORDS))
        assert leader.fetched_for == [("b", [0, 1, 2])]
        assert near.fetched_for
        assert racks(near) == {"b"}

    with_two(test)


def test_the_leader_is_read_without_a_rack_or_without_a_preferred_broker() -> None:
    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        leader.preferred.clear()
        assert values(await read(log)) == list(range(RECORDS))
        assert near.fetched_for == []

    with_two(test)
    with_two(test, rack="")
    with_two(test, rack="nowhere")


@pytest.mark.parametrize(
    "fault", [Corrupt("damaged"), NotLeader("not here"), OutOfRange("gone", log_start_offset=0, high_watermark=1)], ids=repr
)
def test_a_failed_read_of_the_preferred_broker_is_repeated_at_the_leader_without_a_rack(fault: TidelogError) -> None:
    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        near.fetch_refusals["orders", 1] = fault
        assert values(await read(log)) == list(range(RECORDS))
        assert ("", [1]) in leader.fetched_for
        assert {1} == {number for rack, numbers in leader.fetched_for if not rack for number in numbers}, "only this one"

    with_two(test)


def test_a_broker_that_dies_costs_nothing_but_the_way_to_the_leader() -> None:
    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders") as consumer:
            got = [record.json() for record in await consumer.chunk()]
            await near.stop()
            while len(got) < RECORDS:
                got += [record.json() for record in await consumer.chunk()]
            for n in range(RECORDS, RECORDS + 6):
                await log.produce("orders", n, partition=n % 3)
            while len(got) < RECORDS + 6:
                got += [record.json() for record in await consumer.chunk()]
            assert sorted(got) == list(range(RECORDS + 6))
            assert racks(leader) == {"b", ""}

    with_two(test, read_ahead_bytes_max=100, batch_bytes_max=27)


def test_a_broker_that_hangs_is_left_for_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "PREFERRED_SILENCE_S", 0.2)
    monkeypatch.setattr(fetcher, "SILENCE_S", 0.1)

    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        near.running.clear()
        assert values(await read(log)) == list(range(RECORDS))
        assert racks(leader) == {"b", ""}
        near.running.set()

    with_two(test)


def test_a_replica_that_failed_is_tried_again_at_the_next_fetch_from_the_leader() -> None:
    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        near.fetch_refusals = {("orders", number): Corrupt("damaged") for number in range(3)}
        async with log.consume("orders") as consumer:
            got = [record.json() for record in await consumer.chunk()]
            while len(got) < RECORDS:
                got += [record.json() for record in await consumer.chunk()]
            near.fetch_refusals.clear()
            fetches = near.fetches
            await until(lambda: near.fetches > fetches + 3)
            await log.produce("orders", 100, partition=0)
            assert [record.json() for record in await consumer.chunk()] == [100]

    with_two(test, topic_age_ms_max=300)


def test_a_busy_broker_and_a_newer_leader_epoch_are_no_reasons_to_leave_it() -> None:
    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders") as consumer:
            got: list[Any] = [record.json() for record in await consumer.chunk()]
            while len(got) < RECORDS:
                got += [record.json() for record in await consumer.chunk()]
            leader.leader_epochs["orders", 0] += 1
            near.fetch_faults.append(Throttled("busy", retry_after_s=0.01))
            leader.fetched_for.clear()
            await log.produce("orders", 100, partition=0)
            assert [record.json() for record in await consumer.chunk()] == [100]
            assert racks(leader) <= {"b"}

    with_two(test)


def test_two_brokers_that_name_each_other_as_preferred_cause_no_loop() -> None:
    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        near.rack = "moved"
        near.preferred = {("orders", number): "leader" for number in range(3)}
        assert values(await read(log)) == list(range(RECORDS))
        assert near.fetches == 1

    with_two(test)


@pytest.mark.parametrize(("rack", "why"), [("r" * (1 << 20), "at most 255"), (7, "no text"), (None, "no text")])
def test_a_rack_that_is_none_is_refused_before_anything_is_connected(rack: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        tidelog.connect("grpc://127.0.0.1:1", client_rack=rack)


@pytest.mark.slow
def test_the_command_line_names_a_rack_too() -> None:
    async def consume(leader: SmallBroker, rack: str) -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-m", "tidelog.cli.main", "consume", "orders", "--url", leader.address, "--client-rack", rack]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stdout, stderr = await process.communicate()
        assert process.returncode is not None
        return process.returncode, stdout, stderr

    async def test(leader: SmallBroker, near: SmallBroker, log: tidelog.Client) -> None:
        code, stdout, _ = await consume(leader, "b")
        assert (code, len(stdout.splitlines())) == (0, RECORDS)
        assert racks(near) == {"b"}
        code, stdout, stderr = await consume(leader, "r" * 256)
        assert (code, stdout) == (2, b"")
        assert b"client_rack has 256 characters" in stderr
        assert b"Traceback" not in stderr

    with_two(test, rack="")


# ── with real brokers ───────────────────────────────────────────────────────────────────────────────────────────────────


def connected(cluster: Cluster) -> tidelog.Client:
    return tidelog.connect(*(f"grpc://{broker.grpc_address}" for broker in cluster.brokers), **quick(client_rack="b"))


async def filled(log: tidelog.Client) -> None:
    await log.topics.create("orders", partitions=6)
    for n in range(RECORDS):
        await log.send("orders", n, partition=n % 6)
    await log.flush()


def bucket_bytes(cluster: Cluster) -> int:
    logs = [broker.cluster_log for broker in cluster.brokers]
    return sum(log.follower_fetch.counters.bucket_bytes for log in logs if isinstance(log, ClusterLog))


@pytest.mark.slow
def test_real_brokers_of_the_rack_read_for_it_while_they_and_the_leaders_come_and_go(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with connected(cluster) as log:
            await filled(log)
            assert values(await read(log)) == list(range(RECORDS))
            assert bucket_bytes(cluster) > 0
            async with log.consume("orders") as consumer:
                got: list[Any] = []
                for turn in range(3):
                    while len(got) < RECORDS + 6 * turn:
                        got += [record.json() for record in await consumer.chunk()]
                    if turn == 1:
                        cluster.brokers[1].stop()
                    for n in range(6):
                        await log.send("orders", RECORDS + 6 * turn + n, partition=n)
                    await log.flush()
                while len(got) < RECORDS + 18:
                    got += [record.json() for record in await consumer.chunk()]
                assert sorted(got) == list(range(RECORDS + 18)), "each once"

    with_cluster(tmp_path, scenario, count=3, racks="abb")


@pytest.mark.slow
def test_a_member_of_a_group_is_sent_there_too(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with connected(cluster) as log:
            await filled(log)
            got: list[Any] = []
            async with log.consume("orders", group="billing", follow=False) as consumer:
                async for record in consumer:
                    got.append(record.json())  # noqa: PERF401
            assert sorted(got) == list(range(RECORDS))
            assert bucket_bytes(cluster) > 0

    with_cluster(tmp_path, scenario, count=3, racks="abb")
