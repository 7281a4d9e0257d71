"""Readers repeat questions that are refused: a broker may not have heard of a new right or key yet. On a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.proto import log_pb2
from gateway.proto.status import to_status
from metadata.errors import NotAuthorized, TidelogError, Unauthenticated, Unavailable
from metadata.groups.assignors import TopicPartitionName
from tests.simulation.virtual_loop import run
from tidelog.consumer.fetch_state import DENIED_S
from tidelog.consumer.refusal_patience import RefusalPatience
from tidelog.consumer.subscription import Subscription
from tidelog.consumer.topic_reader import TopicReader
from tidelog.group.options import group_options
from tidelog.group.positions import Offset
from tidelog.group.reader import GroupReader
from tidelog.positions import Earliest
from tidelog.settings import ClientSettings
from tidelog.transport.routes import LeaderEpochs, PartitionRoute, TopicRoute

ORDERS = ("orders", 0)
DENIED = NotAuthorized("no right on orders")
# The questions that are refused, for a partition or as a whole call.
QUESTIONS = ["route", "offsets", "offsets call", "committed", "committed call"]


class Lagging:
    """A connection and a coordinator, of which one refuses until a time, or for good."""

    def __init__(self, question: str, until_s: float, error: TidelogError = DENIED) -> None:
        self.epochs = LeaderEpochs()
        self._question, self._until_s, self._error = question, until_s, error
        self._to = SimpleNamespace(log=SimpleNamespace(ListOffsets=self._list_offsets), address="b:9090")

    def _is_refused(self, question: str) -> bool:
        return question == self._question and asyncio.get_running_loop().time() < self._until_s

    def _check(self, question: str) -> None:
        if self._is_refused(question):
            raise self._error

    async def route(
        self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False
    ) -> TopicRoute:
        self._check("route")
        return TopicRoute(topic, "a" * 32, (PartitionRoute("a:9090", 1),), 1 << 20, 1 << 20, learnt_s=0.0)

    async def call(self, ask: Any, *, writes: bool) -> Any:
        self._check("offsets call")
        return await ask(self._to, 1.0)

    async def _list_offsets(self, request: log_pb2.ListOffsetsRequest, timeout: float) -> log_pb2.ListOffsetsResponse:
        answer = log_pb2.ListOffsetsResponse()
        for _ in request.queries:
            result = answer.results.add(offset=3, leader_epoch=1)
            if self._is_refused("offsets"):
                result.error.CopyFrom(to_status(self._error))
        return answer

    async def committed(
        self, name: str, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, Offset | TidelogError]:
        self._check("committed call")
        if self._question.startswith("committed"):
            return dict.fromkeys(partitions, self._error if self._is_refused("committed") else Offset(5))
        return {}


def member_of(cluster: Any) -> GroupReader:
    subscription = Subscription(("orders",))
    options = group_options({})
    return GroupReader(cluster, ClientSettings(), subscription, cluster, group="g", options=options, follow=True, reset="earliest")


def reader_of(cluster: Any) -> TopicReader:
    subscription = Subscription(("orders",))
    return TopicReader(cluster, ClientSettings(), subscription, start=Earliest(), partitions=None, follow=True, reset="earliest")


async def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_member_begins_its_partitions_once_a_lagging_broker_has_heard_of_its_right(question: str) -> None:
    async def main() -> None:
        reader = member_of(Lagging(question, await now_s() + DENIED_S - 1))
        await reader._begin(reader._number_assignments([ORDERS]))
        assert reader.positions.all() == {ORDERS: 5 if question.startswith("committed") else 3}
        assert not reader.fetching.errors

    run(main(), seed=1)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_member_that_is_refused_for_longer_has_the_error(question: str) -> None:
    async def main() -> None:
        began_s = await now_s()
        reader = member_of(Lagging(question, began_s + 3600))
        if question in {"offsets", "committed"}:
            await reader._begin(reader._number_assignments([ORDERS]))
            assert isinstance(reader.fetching.errors[ORDERS], NotAuthorized)
        else:
            with pytest.raises(NotAuthorized):
                await reader._begin(reader._number_assignments([ORDERS]))
        assert DENIED_S < await now_s() - began_s < 2 * DENIED_S

    run(main(), seed=1)


@pytest.mark.parametrize("question", ["offsets", "offsets call"])
def test_a_reader_begins_once_a_lagging_leader_has_heard_of_its_right(question: str) -> None:
    async def main() -> None:
        cluster = Lagging(question, await now_s() + DENIED_S - 1)
        begin = await reader_of(cluster)._begin_of("orders")
        assert begin is not None
        assert begin.starts == {0: 3}

    run(main(), seed=1)


def test_a_reader_that_a_leader_refuses_for_longer_has_the_error() -> None:
    async def main() -> None:
        began_s = await now_s()
        begin = await reader_of(Lagging("offsets", began_s + 3600))._begin_of("orders")
        assert begin is not None
        assert isinstance(begin.starts[0], NotAuthorized)
        with pytest.raises(NotAuthorized):
            await reader_of(Lagging("offsets call", began_s + 3600))._begin_of("orders")
        assert 2 * DENIED_S < await now_s() - began_s < 3 * DENIED_S

    run(main(), seed=1)


def test_the_first_question_of_a_reader_is_refused_at_once() -> None:
    """Else a user without a right would wait for the error."""

    async def main() -> None:
        began_s = await now_s()
        cluster = Lagging("route", began_s + 3600)
        with pytest.raises(NotAuthorized):
            await reader_of(cluster)._begin_of("orders")
        with pytest.raises(NotAuthorized):
            await member_of(cluster)._first_counts()
        assert await now_s() == began_s

    run(main(), seed=1)


Refresh = Callable[[Any], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("error", [DENIED, Unauthenticated("no such key")], ids=lambda error: error.code)
@pytest.mark.parametrize("refresh", [lambda c: member_of(c)._refresh_topics(), lambda c: reader_of(c)._refresh_topics()])
def test_the_search_for_new_topics_goes_on_after_a_refusal_that_passes(refresh: Refresh, error: TidelogError) -> None:
    async def main() -> None:
        interval_s = ClientSettings().topic_age_ms_max / 1000
        began_s = await now_s()
        passing = asyncio.create_task(refresh(Lagging("route", began_s + interval_s + DENIED_S - 1, error)))
        lasting = asyncio.create_task(refresh(Lagging("route", began_s + 3600, error)))
        await asyncio.wait([passing, lasting], timeout=10 * interval_s)
        assert not passing.done()
        assert lasting.exception() is error
        passing.cancel()

    run(main(), seed=1)


def test_partition_counts_for_an_assignment_may_be_asked_for_again_while_a_refusal_may_pass() -> None:
    async def main() -> None:
        reader = member_of(Lagging("route", await now_s() + DENIED_S + 5))
        with pytest.raises(Unavailable, match="no right on orders"):
            await reader.partition_counts(["orders"])
        await asyncio.sleep(DENIED_S + 1)
        with pytest.raises(NotAuthorized):
            await reader.partition_counts(["orders"])
        await asyncio.sleep(5)
        assert await reader.partition_counts(["orders"]) == {"orders": 1}

    run(main(), seed=1)


def test_an_answer_ends_a_refusal() -> None:
    async def main() -> None:
        patience = RefusalPatience()
        assert patience.may_pass(DENIED)
        assert not patience.may_pass(Unavailable("away"))
        await asyncio.sleep(DENIED_S + 1)
        assert not patience.may_pass(DENIED)
        patience.answered()
        assert patience.may_pass(DENIED)

    run(main(), seed=1)
