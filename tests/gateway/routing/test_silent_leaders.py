"""How long a question to a leader waits for its answer, by a virtual clock: slow leaders are awaited, silent ones less."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cluster.view import ClusterView
from gateway.routing.cluster_fetch import SLOW_LEADER_S
from gateway.routing.cluster_log import ClusterLog
from gateway.routing.forwarder import ProduceForwarder
from gateway.routing.local_log import LocalLog
from gateway.routing.peer_channels import Unreachable
from gateway.routing.peer_reader import PeerReader
from gateway.routing.silent_leaders import SILENT_S, STALL_GRACE_S, SilentLeaders
from gateway.topics.names import BOUNDS_WAIT_S
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import TidelogError, Unavailable
from metadata.model import LeaderEpoch, Offset, SessionId, TopicPartition
from segments.byte_budget import ByteBudget
from segments.log.session_log import FetchTarget, SessionLog
from segments.partition.partition_log import Bounds
from segments.read.log_reader import FetchResult
from segments.settings import SegmentSettings
from tests.kit.gateway.reported_log import P0, P1, Topics, bounds, topic
from tests.simulation.virtual_loop import run, virtual_loop

B1, B2 = (BrokerRegistration(broker_id=f"b{number}", session=SessionId(number)) for number in (1, 2))
LEADER_WAIT_S = 14.0


class World:
    """Two leaders: b1 of partition 0, b2 of partition 1. b1 answers after `takes_s`, b2 at once."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.fetch_takes_s = 0.0
        self.fails_as: TidelogError | None = None
        self.asked = 0
        view = SimpleNamespace(
            leader=lambda partition: B1 if partition == P0 else B2,
            partitions=SimpleNamespace(subscribe=lambda _: None, get=lambda _: None),
            topics=Topics(topic(partition_count=2)),
            brokers=SimpleNamespace(brokers={}, subscribe=lambda _: None),
            changed=lambda *, timeout_s: asyncio.sleep(timeout_s),
        )
        self.log = ClusterLog(
            LocalLog(cast(Callable[[], SessionLog], lambda: SimpleNamespace(partitions=()))),
            cast(ClusterView, view),
            cast(ProduceForwarder, SimpleNamespace(no_leader_reason=lambda: None)),
            cast(PeerReader, self),
            broker_id="b0",
            settings=SegmentSettings(),
            budget=ByteBudget(1 << 20),
            leader_wait_s=LEADER_WAIT_S,
        )

    async def fetch(self, leader: BrokerRegistration, targets: Sequence[Any], **_: object) -> list[Any]:
        if leader is B1:
            await asyncio.sleep(self.fetch_takes_s)
        return [FetchResult([], 0, Offset(0), Offset(9), Offset(2), LeaderEpoch(0))] * len(targets)

    async def fetched(self) -> list[type[object]]:
        found = await self.log.fetch([FetchTarget(at, 0, 1000) for at in (P0, P1)], bytes_max=1000, bytes_min=0)
        return [type(each) for each in found]

    async def bounds(self, leader: BrokerRegistration, partitions: Sequence[tuple[str, TopicPartition]]) -> list[Bounds]:
        if leader is B1:
            self.asked += 1
            await asyncio.sleep(self.takes_s)
            if self.fails_as is not None:
                raise self.fails_as
        return [bounds(2, 9)] * len(partitions)

    async def described(self) -> tuple[list[type[object]], float]:
        """Returns what each partition is answered, and the time that this takes in seconds, to a millisecond."""
        began_s = virtual_loop().time()
        found = await self.log.bounds_of([P0, P1], wait_s=BOUNDS_WAIT_S)
        return [type(each) for each in found], round(virtual_loop().time() - began_s, 3)


def simulated(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(World())

    run(main(), seed=1)


def test_a_leader_that_is_slow_and_not_silent_is_awaited_for_longer_than_a_leader_that_is_missing() -> None:
    async def scenario(world: World) -> None:
        world.takes_s = 2.5 * BOUNDS_WAIT_S
        for _ in range(3):
            assert await world.described() == ([Bounds, Bounds], world.takes_s)
        assert world.asked == 3

    simulated(scenario)


def test_a_silent_leader_is_awaited_for_long_once_and_again_after_a_while() -> None:
    async def scenario(world: World) -> None:
        world.takes_s = 1_000.0
        for _ in range(2):
            first, took_s = await world.described()
            assert first == [Unavailable, Bounds]
            assert took_s == SLOW_LEADER_S + STALL_GRACE_S
            for _ in range(3):
                assert await world.described() == ([Unavailable, Bounds], BOUNDS_WAIT_S + STALL_GRACE_S)
            await asyncio.sleep(SILENT_S)

    simulated(scenario)


def test_a_question_in_a_closed_loop_is_answered_again_by_a_leader_that_was_silent_once_and_is_slow() -> None:
    async def scenario(world: World) -> None:
        world.takes_s = 1_000.0
        assert (await world.described())[0] == [Unavailable, Bounds]
        world.takes_s = 2.5 * BOUNDS_WAIT_S
        ends_s = virtual_loop().time() + 3 * SILENT_S
        answers: list[list[type[object]]] = []
        while virtual_loop().time() < ends_s:
            answers.append((await world.described())[0])
        first = answers.index([Bounds, Bounds])
        assert all(answer == [Unavailable, Bounds] for answer in answers[:first])
        assert all(answer == [Bounds, Bounds] for answer in answers[first:])

    simulated(scenario)


def test_a_leader_that_is_silent_for_questions_has_its_time_for_fetches_and_the_other_way_round() -> None:
    async def scenario(world: World) -> None:
        world.takes_s, world.fetch_takes_s = 1_000.0, SLOW_LEADER_S / 2
        assert (await world.described())[0] == [Unavailable, Bounds]
        assert await world.fetched() == [FetchResult, FetchResult]
        assert (await world.described())[1] == BOUNDS_WAIT_S + STALL_GRACE_S, (
            "a fetch that is answered ends no silence of questions"
        )
        await asyncio.sleep(SILENT_S)
        world.takes_s, world.fetch_takes_s = 2.5 * BOUNDS_WAIT_S, 1_000.0
        assert await world.fetched() == [Unavailable, FetchResult]
        assert (await world.described())[0] == [Bounds, Bounds]

    simulated(scenario)


def test_a_leader_that_answers_again_has_as_much_time_as_before() -> None:
    async def scenario(world: World) -> None:
        world.takes_s = 1_000.0
        await world.described()
        world.takes_s = BOUNDS_WAIT_S / 2
        assert (await world.described())[0] == [Bounds, Bounds]
        world.takes_s = 2.5 * BOUNDS_WAIT_S
        assert (await world.described())[0] == [Bounds, Bounds]

    simulated(scenario)


def test_a_leader_that_can_not_be_reached_is_awaited_for_less_time_from_then_on() -> None:
    async def scenario(world: World) -> None:
        world.takes_s, world.fails_as = 2.0, Unreachable("broker b1 can't be reached")
        assert await world.described() == ([Unreachable, Bounds], 2.0)
        assert await world.described() == ([Unavailable, Bounds], BOUNDS_WAIT_S + STALL_GRACE_S)

    simulated(scenario)


def test_an_answer_that_arrives_while_this_process_stands_still_is_not_taken_for_silence() -> None:
    async def scenario(world: World) -> None:
        loop = virtual_loop()
        world.takes_s = SLOW_LEADER_S / 2

        def stand_still() -> None:
            loop._now_s += 10 * SLOW_LEADER_S

        loop.call_later(0.1, stand_still)
        assert (await world.described())[0] == [Bounds, Bounds]
        assert world.asked == 1

    simulated(scenario)


def test_a_caller_that_is_cancelled_ends_its_question() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def answer() -> None:
            try:
                await asyncio.sleep(1_000)
            finally:
                ended.append("ended")

        leaders = SilentLeaders()
        asking = asyncio.ensure_future(leaders.ask(B1, answer(), limit_s=5.0))
        await asyncio.sleep(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert ended == ["ended"]
        assert not leaders.is_silent(B1.session)

    run(main(), seed=1)


def test_leaders_whose_silence_is_over_are_forgotten() -> None:
    async def main() -> None:
        leaders = SilentLeaders()
        for number in range(20):
            gone = BrokerRegistration(broker_id="b", session=SessionId(number))
            with pytest.raises(Unavailable):
                await leaders.ask(gone, asyncio.Event().wait(), limit_s=1.0)
            await asyncio.sleep(SILENT_S)
        assert len(leaders._until_s) == 1

    run(main(), seed=1)
