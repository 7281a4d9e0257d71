"""One fetch over several leaders: who is waited for, and for how long, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import cast

from gateway.cluster.view import ClusterView
from gateway.routing.cluster_fetch import SILENT_LEADER_S, SLOW_LEADER_S, ClusterFetch
from gateway.routing.follower_fetch import FollowerFetch
from gateway.routing.leader_lookup import LeaderLookup
from gateway.routing.peer_channels import CONNECT_TIMEOUT_S, Unreachable
from gateway.routing.silent_leaders import SILENT_S, SilentLeaders
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import Corrupt, NoLeader, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Offset, SessionId, TopicPartition
from segments.log.session_log import FetchTarget, SessionLog
from segments.read.log_reader import FetchResult
from tests.kit.segments.batches import partition_of
from tests.simulation.virtual_loop import run, virtual_loop

EMPTY = FetchResult([], 0, Offset(0), Offset(0), Offset(0), LeaderEpoch(0))
FULL = FetchResult([b"x" * 10], 10, Offset(1), Offset(1), Offset(0), LeaderEpoch(0))
B1, B2 = (BrokerRegistration(broker_id=f"b{n}", session=SessionId(n)) for n in (1, 2))
ONE, TWO, THREE = (partition_of(number) for number in range(3))
LEADER_WAIT_S = 14.0


class World:
    """Two other brokers, which answer what a test says, or nothing; and a view of who leads what."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, BrokerRegistration | None] = {ONE: B1, TWO: B2}
        self.has: dict[TopicPartition, FetchResult | TidelogError] = {ONE: EMPTY, TWO: EMPTY}
        self.frozen: set[str] = set()
        self.unreachable: set[str] = set()
        # How long each broker takes to answer, in seconds.
        self.takes_s: dict[str, float] = {}
        # How long this broker reads the bucket after the answer of any leader.
        self.bucket_s = 0.0
        self.calls: list[str] = []
        self._news = asyncio.Event()
        self._changed: Callable[[set[TopicPartition]], None] = lambda _: None
        view = SimpleNamespace(
            leader=lambda partition: self.leaders.get(partition),
            partitions=SimpleNamespace(subscribe=lambda changed: setattr(self, "_changed", changed), get=self._state),
            topics=SimpleNamespace(by_id=lambda _: SimpleNamespace(name="orders")),
            changed=self._view_changed,
        )
        leaders = LeaderLookup(
            cast(Callable[[], SessionLog], lambda: SimpleNamespace(partitions=())), cast(ClusterView, view), broker_id="b0"
        )
        self.fetch = ClusterFetch(
            self._here,
            cast(ClusterView, view),
            leaders,
            cast(FollowerFetch, SimpleNamespace(fetch=self._at_peer)),
            SilentLeaders(),
            leader_wait_s=LEADER_WAIT_S,
            is_hopeless=lambda: False,
        )

    async def fetched(self, *partitions: TopicPartition, wait_s: float = 0.0) -> list[FetchResult | TidelogError]:
        targets = [FetchTarget(partition, 0, 1000) for partition in partitions]
        return await self.fetch.fetch(targets, bytes_max=1000, bytes_min=1, wait_ms_max=1000 * wait_s)

    def led(self, partition: TopicPartition, by: BrokerRegistration | None) -> None:
        self.leaders[partition] = by
        self.notify({partition})

    def notify(self, changed: set[TopicPartition]) -> None:
        self._changed(changed)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _state(self, partition: TopicPartition) -> object:
        leader = self.leaders.get(partition)
        return SimpleNamespace(leader_session=leader.session, leader_epoch=0) if leader else None

    async def _view_changed(self, *, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    async def _here(self, targets: Sequence[FetchTarget], **_: object) -> list[FetchResult | TidelogError]:
        return [NoLeader("not led here") for _ in targets]

    async def _at_peer(
        self,
        leader: BrokerRegistration,
        named: Sequence[tuple[str, FetchTarget]],
        *,
        wait_ms_max: float,
        on_answer: Callable[[], None],
        **_: object,
    ) -> list[FetchResult | TidelogError]:
        self.calls.append(leader.broker_id)
        await asyncio.sleep(self.takes_s.get(leader.broker_id, 0.0))
        if leader.broker_id in self.unreachable:
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise Unreachable("no connection")
        if leader.broker_id in self.frozen:
            await asyncio.sleep(10 + wait_ms_max / 1000)
            raise Unavailable("no answer")
        ends_s = virtual_loop().time() + wait_ms_max / 1000
        while True:
            found = [self.has[target.partition] for _, target in named]
            if virtual_loop().time() >= ends_s or any(answer is not EMPTY for answer in found):
                on_answer()
                if FULL in found:
                    await asyncio.sleep(self.bucket_s)
                return found
            await asyncio.sleep(0.001)


def simulated(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(World())

    run(main(), seed=1)


async def took_s(fetch: Awaitable[object]) -> float:
    begun_s = virtual_loop().time()
    await fetch
    return virtual_loop().time() - begun_s


def kinds(answers: Sequence[object]) -> list[type]:
    return [type(answer) for answer in answers]


def test_a_partition_without_a_leader_is_waited_for_as_long_as_a_failover_takes_and_no_longer() -> None:
    async def scenario(world: World) -> None:
        assert LEADER_WAIT_S <= await took_s(world.fetched(THREE)) < LEADER_WAIT_S + 1
        assert kinds(await world.fetched(THREE)) == [NoLeader]
        world.has[THREE] = FULL
        virtual_loop().call_later(9.0, lambda: world.led(THREE, B1))
        begun_s = virtual_loop().time()
        assert await world.fetched(THREE) == [FULL]
        assert 9.0 <= virtual_loop().time() - begun_s < 9.1

    simulated(scenario)


def test_a_partition_without_a_leader_delays_no_other() -> None:
    async def scenario(world: World) -> None:
        assert kinds(await world.fetched(ONE, THREE)) == [FetchResult, NoLeader]
        assert await took_s(world.fetched(ONE, THREE)) < 0.1
        virtual_loop().call_later(2.0, lambda: world.has.update({ONE: FULL}))
        begun_s = virtual_loop().time()
        assert kinds(await world.fetched(ONE, THREE, wait_s=5.0)) == [FetchResult, NoLeader]
        assert 2.0 <= virtual_loop().time() - begun_s < 2.1

    simulated(scenario)


def test_a_partition_that_comes_to_be_led_ends_the_wait_with_what_it_has() -> None:
    async def scenario(world: World) -> None:
        world.has[THREE] = FULL
        virtual_loop().call_later(2.0, lambda: world.led(THREE, B2))
        begun_s = virtual_loop().time()
        assert await world.fetched(ONE, THREE, wait_s=5.0) == [EMPTY, FULL]
        assert 2.0 <= virtual_loop().time() - begun_s < 2.6

    simulated(scenario)


def test_a_frozen_leader_is_left_as_soon_as_another_leads() -> None:
    async def scenario(world: World) -> None:
        world.frozen.add("b1")
        world.has[ONE] = FULL
        virtual_loop().call_later(3.0, lambda: world.led(ONE, B2))
        begun_s = virtual_loop().time()
        assert await world.fetched(ONE, wait_s=20.0) == [FULL]
        assert 3.0 <= virtual_loop().time() - begun_s < 3.1

    simulated(scenario)


def test_of_several_leaders_a_frozen_one_is_waited_for_once_and_then_hardly() -> None:
    async def scenario(world: World) -> None:
        world.frozen.add("b1")
        world.has[TWO] = FULL
        begun_s = virtual_loop().time()
        assert kinds(await world.fetched(ONE, TWO)) == [Unavailable, FetchResult]
        assert virtual_loop().time() - begun_s <= SLOW_LEADER_S + SILENT_LEADER_S + 0.01
        assert await took_s(world.fetched(ONE, TWO)) <= SILENT_LEADER_S + 0.01
        world.frozen.clear()
        world.has[ONE] = FULL
        assert await world.fetched(ONE, TWO) == [FULL, FULL]

    simulated(scenario)


def test_a_leader_that_was_silent_once_and_is_slow_is_read_from_again() -> None:
    async def scenario(world: World) -> None:
        world.has |= {ONE: FULL, TWO: FULL}
        world.frozen.add("b1")
        assert kinds(await world.fetched(ONE, TWO)) == [Unavailable, FetchResult]
        world.frozen.clear()
        world.takes_s["b1"] = 5 * SILENT_LEADER_S
        assert kinds(await world.fetched(ONE, TWO)) == [Unavailable, FetchResult]
        await asyncio.sleep(SILENT_S)
        for _ in range(3):
            assert await world.fetched(ONE, TWO) == [FULL, FULL]

    simulated(scenario)


def test_a_reader_in_a_closed_loop_reads_again_from_a_leader_that_was_silent_once_and_is_slow() -> None:
    async def scenario(world: World) -> None:
        world.has |= {ONE: FULL, TWO: FULL}
        world.frozen.add("b1")
        assert kinds(await world.fetched(ONE, TWO)) == [Unavailable, FetchResult]
        world.frozen.clear()
        world.takes_s["b1"] = 5 * SILENT_LEADER_S
        ends_s = virtual_loop().time() + 3 * SILENT_S
        answers: list[list[FetchResult | TidelogError]] = []
        while virtual_loop().time() < ends_s:
            answers.append(await world.fetched(ONE, TWO))
        first = answers.index([FULL, FULL])
        assert all(kinds(answer) == [Unavailable, FetchResult] for answer in answers[:first])
        assert all(answer == [FULL, FULL] for answer in answers[first:])

    simulated(scenario)


def test_a_bucket_that_is_slow_from_here_is_no_silence_of_a_leader() -> None:
    async def scenario(world: World) -> None:
        world.has[ONE] = FULL
        world.bucket_s = 2 * SLOW_LEADER_S
        assert kinds(await world.fetched(ONE, TWO)) == [Unavailable, FetchResult]
        world.bucket_s = SLOW_LEADER_S / 2
        for _ in range(3):
            assert await world.fetched(ONE, TWO) == [FULL, EMPTY]

    simulated(scenario)


def test_of_several_leaders_one_that_can_not_be_reached_is_waited_for_once_and_then_hardly() -> None:
    async def scenario(world: World) -> None:
        world.unreachable.add("b1")
        world.has[TWO] = FULL
        assert kinds(await world.fetched(ONE, TWO)) == [Unreachable, FetchResult]
        for _ in range(3):
            assert await took_s(world.fetched(ONE, TWO)) <= SILENT_LEADER_S + 0.01
        world.unreachable.clear()
        assert kinds(await world.fetched(ONE, TWO)) == [FetchResult, FetchResult]

    simulated(scenario)


def test_a_long_poll_over_a_leader_that_freezes_ends_soon_after_its_time() -> None:
    async def scenario(world: World) -> None:
        virtual_loop().call_later(0.5, lambda: world.frozen.add("b1"))
        begun_s = virtual_loop().time()
        assert kinds(await world.fetched(ONE, TWO, wait_s=2.0)) == [FetchResult, FetchResult]
        assert virtual_loop().time() - begun_s <= 2.0 + SLOW_LEADER_S + 0.1

    simulated(scenario)


def test_an_error_that_waiting_cannot_resolve_is_returned_at_once() -> None:
    async def scenario(world: World) -> None:
        world.has[ONE] = Corrupt("damaged")
        assert await took_s(world.fetched(ONE, TWO, wait_s=5.0)) < 0.1
        assert kinds(await world.fetched(ONE, THREE, wait_s=5.0)) == [Corrupt, NoLeader]

    simulated(scenario)


def test_a_caller_that_gives_up_sooner_is_answered_before() -> None:
    from gateway.telemetry.request_context import note_deadline

    async def scenario(world: World) -> None:
        note_deadline(3.0)
        assert 2.5 <= await took_s(world.fetched(THREE)) < 3.0

    simulated(scenario)


def test_a_reader_that_hangs_up_ends_its_calls() -> None:
    async def scenario(world: World) -> None:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(world.fetched(ONE, TWO, wait_s=60.0))
            await asyncio.sleep(1.0)
            reading.cancel()
        assert len(asyncio.all_tasks()) == 1

    simulated(scenario)
