"""Questions to a leader that has not heard yet of a topic, or of a partition, that this broker's view has: on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cluster.view import ClusterView
from gateway.routing.cluster_log import ClusterLog
from gateway.routing.forwarder import ProduceForwarder
from gateway.routing.local_log import LocalLog
from gateway.routing.log_service import EpochQuestion, WrittenOnce
from gateway.routing.peer_reader import PeerReader
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoLeader, TidelogError, UnknownPartition, UnknownTopic
from metadata.model import LeaderEpoch, Offset, Partition, ProducerId, Revision, SessionId, TopicId, TopicPartition
from segments.byte_budget import ByteBudget
from segments.log.session_log import FetchTarget, SessionLog
from segments.partition.partition_log import Bounds
from segments.read.log_reader import FetchResult
from segments.settings import SegmentSettings
from segments.wal.run_index import EpochEnd
from tests.kit.gateway.reported_log import P0, P1, Topics, bounds, topic
from tests.simulation.virtual_loop import run, virtual_loop

LEADER = BrokerRegistration(broker_id="b1", session=SessionId(1))
LEADER_WAIT_S = 14.0
LAG_S = 3.0
FETCHED = FetchResult([b"x" * 10], 10, Offset(1), Offset(1), Offset(0), LeaderEpoch(1))
END = EpochEnd(LeaderEpoch(1), Offset(7))


class LaggingLeader:
    """Answers for the partitions that it has heard of. A question about one partition fails as a whole."""

    def __init__(self, error: TidelogError) -> None:
        self.error = error
        self.heard_of: set[TopicPartition] = {P0}

    def _each(self, partitions: Sequence[TopicPartition], answer: Any) -> list[Any]:
        return [answer if partition in self.heard_of else self.error for partition in partitions]

    def _one(self, partition: TopicPartition, answer: Any) -> Any:
        if partition not in self.heard_of:
            raise self.error
        return answer

    async def fetch(self, _: BrokerRegistration, targets: Sequence[tuple[str, FetchTarget]], **__: object) -> list[Any]:
        return self._each([target.partition for _, target in targets], FETCHED)

    async def bounds(self, _: BrokerRegistration, partitions: Sequence[tuple[str, TopicPartition]]) -> list[Any]:
        return self._each([partition for _, partition in partitions], bounds(2, 9))

    async def ends_of_epochs(self, _: BrokerRegistration, questions: Sequence[tuple[str, EpochQuestion]]) -> list[Any]:
        return self._each([question.partition for _, question in questions], END)

    async def offset_for_timestamp(self, _: BrokerRegistration, __: str, partition: TopicPartition, ___: int) -> Any:
        return self._one(partition, None)

    async def offset_of_max_timestamp(self, _: BrokerRegistration, __: str, partition: TopicPartition) -> Any:
        return self._one(partition, None)

    async def delete_records(self, _: BrokerRegistration, __: str, partition: TopicPartition, ___: int, **____: object) -> Any:
        return self._one(partition, Offset(5))

    async def explain(self, _: BrokerRegistration, __: str, partition: TopicPartition, ___: int) -> Any:
        return self._one(partition, "explained")

    async def written_once(
        self, _: BrokerRegistration, __: str, partitions: Sequence[TopicPartition], ___: ProducerId, *, topic_revision: Revision
    ) -> Any:
        return self._one(partitions[0], WrittenOnce({}, topic_revision))


class World:
    """This broker's view, and the leader of all partitions that it names."""

    def __init__(self, error: TidelogError) -> None:
        self.topics = Topics(topic(partition_count=2))
        self.leader = LaggingLeader(error)
        view = SimpleNamespace(
            leader=lambda _: LEADER,
            partitions=SimpleNamespace(subscribe=lambda _: None, get=lambda _: None),
            topics=self.topics,
            brokers=SimpleNamespace(brokers={}, subscribe=lambda _: None),
            changed=lambda *, timeout_s: asyncio.sleep(timeout_s),
        )
        self.log = ClusterLog(
            LocalLog(cast(Callable[[], SessionLog], lambda: SimpleNamespace(partitions=()))),
            cast(ClusterView, view),
            cast(ProduceForwarder, SimpleNamespace(no_leader_reason=lambda: None)),
            cast(PeerReader, self.leader),
            broker_id="b0",
            settings=SegmentSettings(),
            budget=ByteBudget(1 << 20),
            leader_wait_s=LEADER_WAIT_S,
        )

    async def fetched(self, *partitions: TopicPartition, wait_s: float = 0.0) -> list[FetchResult | TidelogError]:
        targets = [FetchTarget(partition, 0, 1000) for partition in partitions]
        return await self.log.fetch(targets, bytes_max=1000, wait_ms_max=1000 * wait_s)

    def catches_up(self) -> None:
        virtual_loop().call_later(LAG_S, lambda: self.leader.heard_of.add(P1))


Ask = Callable[[World], Awaitable[object]]
QUESTIONS: dict[str, tuple[Ask, object]] = {
    "fetch": (lambda world: world.fetched(P1), [FETCHED]),
    "list offsets": (lambda world: world.log.bounds_of([P1]), [bounds(2, 9)]),
    "one bound": (lambda world: world.log.bounds(P1), bounds(2, 9)),
    "leader epochs": (lambda world: world.log.ends_of_epochs([EpochQuestion(P1, 1)]), [END]),
    "timestamp": (lambda world: world.log.offset_for_timestamp(P1, 5), None),
    "largest timestamp": (lambda world: world.log.offset_of_max_timestamp(P1), None),
    "delete records": (lambda world: world.log.delete_records(P1, 5), Offset(5)),
    "explain": (lambda world: world.log.explain(P1, 0), "explained"),
    "written once": (
        lambda world: world.log.written_once([P1], ProducerId(1), topic_revision=Revision(3)),
        WrittenOnce({}, Revision(3)),
    ),
}
UNHEARD_OF = [UnknownTopic("there is no topic orders"), UnknownPartition("topic orders has the partitions 0 to 0; 1 was asked for")]
unheard_of = pytest.mark.parametrize("error", UNHEARD_OF, ids=lambda error: error.code)


def simulated(error: TidelogError, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(World(error))

    run(main(), seed=1)


@unheard_of
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_leader_that_has_not_heard_of_a_partition_is_asked_again_until_it_has(question: str, error: TidelogError) -> None:
    async def scenario(world: World) -> None:
        world.catches_up()
        ask, answer = QUESTIONS[question]
        assert await ask(world) == answer
        assert LAG_S <= virtual_loop().time() < LAG_S + 1

    simulated(error, scenario)


@unheard_of
def test_a_partition_that_its_leader_has_not_heard_of_delays_no_other_and_is_not_final(error: TidelogError) -> None:
    async def scenario(world: World) -> None:
        full, unheard = await world.fetched(P0, P1)
        assert full == FETCHED
        assert isinstance(unheard, NoLeader)
        assert "b1" in unheard.message
        ends = await world.log.bounds_of([P0, P1], wait_s=1.0)
        assert [type(each) for each in ends] == [Bounds, NoLeader]
        assert virtual_loop().time() < 2

    simulated(error, scenario)


def test_a_leader_that_does_not_catch_up_within_a_failover_is_no_proof_that_the_topic_is_gone() -> None:
    async def scenario(world: World) -> None:
        [answer] = await world.fetched(P1)
        assert isinstance(answer, NoLeader)
        assert answer.retryable
        assert LEADER_WAIT_S <= virtual_loop().time() < LEADER_WAIT_S + 1

    simulated(UNHEARD_OF[0], scenario)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_topic_that_this_broker_too_knows_to_be_gone_is_refused_at_once(question: str) -> None:
    async def scenario(world: World) -> None:
        ask, _ = QUESTIONS[question]
        world.topics.topics = {"orders": topic(topic_id="b" * 32)}  # it was made again under another id
        try:
            answered = await ask(world)
            error = answered[0] if isinstance(answered, list) else answered
        except TidelogError as raised:
            error = raised
        assert isinstance(error, UnknownTopic)
        assert virtual_loop().time() < 1

    simulated(UnknownTopic("topic orders was deleted and made again"), scenario)


def test_a_topic_that_is_gone_keeps_no_partition_of_another_from_being_read_at_the_same_leader() -> None:
    async def scenario(world: World) -> None:
        gone = TopicPartition(TopicId("c" * 32), Partition(0))
        assert [type(each) for each in await world.fetched(gone, P0)] == [UnknownTopic, FetchResult]
        assert [type(each) for each in await world.fetched(P0, gone, wait_s=1.0)] == [FetchResult, UnknownTopic]
        assert [type(each) for each in await world.log.bounds_of([P0, gone, P0])] == [Bounds, UnknownTopic, Bounds]
        ends = await world.log.ends_of_epochs([EpochQuestion(gone, 1), EpochQuestion(P0, 1)])
        assert [type(each) for each in ends] == [UnknownTopic, EpochEnd]
        [alone] = await world.fetched(gone)
        assert isinstance(alone, UnknownTopic)

    simulated(UNHEARD_OF[0], scenario)
