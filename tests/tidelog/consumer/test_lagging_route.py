"""Where a reader begins if the first broker that it asks describes a topic that was deleted, and made again since."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

import tidelog
from gateway.proto import admin_pb2, log_pb2
from gateway.proto.status import to_status
from metadata.errors import InvalidArgument, NotAuthorized, TidelogError, Unauthenticated, Unavailable, UnknownTopic
from metadata.groups.assignors import TopicPartitionName
from tidelog.consumer import route_watcher
from tidelog.consumer.fetch_state import DENIED_S
from tidelog.consumer.refusal_patience import RefusalPatience
from tidelog.consumer.route_watcher import RouteWatcher
from tidelog.consumer.subscription import Subscription, TopicsLike, parse_topics
from tidelog.consumer.topic_reader import TopicReader
from tidelog.group.options import group_options
from tidelog.group.positions import Offset
from tidelog.group.reader import GroupReader
from tidelog.group.start_offsets import StartOffsets
from tidelog.positions import Earliest
from tidelog.settings import ClientSettings
from tidelog.transport.connection import Connection
from tidelog.transport.routes import LeaderEpochs, PartitionRoute, TopicRoute

FORMER, PRESENT = "a" * 32, "b" * 32
LOG_START, END = 3, 8


def route_to(topic_id: str) -> TopicRoute:
    return TopicRoute("orders", topic_id, (PartitionRoute("a:9090", 1),), 1 << 20, 1 << 20, learnt_s=0.0)


class FirstBrokerLags:
    """A connection whose first answer about the topic comes from a broker that lags, and all others from one that does not."""

    def __init__(self, present: str | None = PRESENT) -> None:
        self.epochs = LeaderEpochs()
        self._present = present
        self._answers = 0
        self._to = SimpleNamespace(log=SimpleNamespace(ListOffsets=self._list_offsets), address="b:9090")

    async def route(
        self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False
    ) -> TopicRoute:
        self._answers += 1
        if self._answers == 1:
            return route_to(FORMER)
        if self._present is None:
            raise UnknownTopic(f"there is no topic {topic}")
        return route_to(self._present)

    async def call(self, ask: Any, *, writes: bool) -> Any:
        return await ask(self._to, 1.0)

    async def _list_offsets(self, request: log_pb2.ListOffsetsRequest, timeout: float) -> log_pb2.ListOffsetsResponse:
        unknown = to_status(UnknownTopic("topic orders was deleted and recreated", new_topic_id=PRESENT))
        answer = log_pb2.ListOffsetsResponse()
        for query in request.queries:
            if query.topic_id == self._present:
                answer.results.add(offset=LOG_START if query.HasField("earliest") else END, leader_epoch=1)
            else:
                answer.results.add(offset=-1).error.CopyFrom(unknown)
        return answer


def reader(
    connection: FirstBrokerLags, *, follow: bool, refuses_outdated: bool = False, partitions: list[int] | None = None
) -> TopicReader:
    return TopicReader(
        cast(Connection, connection),
        ClientSettings(),
        Subscription(("orders",)),
        start=Earliest(),
        partitions=partitions,
        follow=follow,
        reset="error",
        refuses_outdated=refuses_outdated,
    )


@pytest.mark.parametrize("follow", [True, False])
def test_a_reader_begins_in_the_topic_that_was_made_again(follow: bool) -> None:
    async def main() -> None:
        begun = await reader(FirstBrokerLags(), follow=follow)._begin_of("orders")
        assert begun is not None
        assert (begun.route.topic_id, begun.starts) == (PRESENT, {0: LOG_START})
        assert [getattr(end, "high_watermark", end) for end in begun.ends.values()] == ([] if follow else [END])

    asyncio.run(main())


def test_a_reader_of_a_topic_that_was_deleted_learns_that() -> None:
    async def main() -> None:
        with pytest.raises(UnknownTopic):
            await reader(FirstBrokerLags(None), follow=True)._begin_of("orders")

    asyncio.run(main())


class GrowsElsewhere(FirstBrokerLags):
    """A connection to a broker that has not heard of a partition and of a topic that are in the metadata store."""

    def __init__(self) -> None:
        super().__init__()
        self._to.topics = SimpleNamespace(ListTopics=self._list_topics)

    async def route(
        self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False
    ) -> TopicRoute:
        leaders = (PartitionRoute("a:9090", 1),) * (2 if from_store else 1)
        return TopicRoute("orders", PRESENT, leaders, 1 << 20, 1 << 20, learnt_s=0.0)

    async def _list_topics(self, request: admin_pb2.ListTopicsRequest, timeout: float) -> admin_pb2.ListTopicsResponse:
        names = ["orders", "orders-new", "payments"] if request.fresh else ["orders", "payments"]
        count = 2 if request.fresh else 1
        return admin_pb2.ListTopicsResponse(topics=[admin_pb2.Topic(name=name, partition_count=count) for name in names])


def test_a_reader_that_ends_reads_partitions_that_were_added_through_another_broker() -> None:
    async def main() -> None:
        for follow, partitions in (False, [0, 1]), (True, [0]):  # one that follows reads the others when it hears of them
            begun = await reader(GrowsElsewhere(), follow=follow)._begin_of("orders")
            assert begun is not None
            assert list(begun.starts) == partitions

    asyncio.run(main())


class CutOff(GrowsElsewhere):
    """A connection to brokers that the metadata store does not answer."""

    async def route(
        self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False
    ) -> TopicRoute:
        if from_store and refuses_outdated:
            raise Unavailable("no broker has heard of all topics")
        return route_to(PRESENT)

    async def _list_topics(self, request: admin_pb2.ListTopicsRequest, timeout: float) -> admin_pb2.ListTopicsResponse:
        if request.refuse_outdated:
            raise Unavailable("no broker has heard of all topics")
        return admin_pb2.ListTopicsResponse(topics=[admin_pb2.Topic(name="orders", partition_count=1)])


def test_a_reader_that_ends_goes_on_without_the_metadata_store_unless_its_caller_takes_no_outdated_view() -> None:
    async def main() -> None:
        begun = await reader(CutOff(), follow=False)._begin_of("orders")
        assert begun is not None
        assert list(begun.starts) == [0]
        with pytest.raises(Unavailable):
            await reader(CutOff(), follow=False, refuses_outdated=True)._begin_of("orders")
        pattern, connection = parse_topics(re.compile("orders.*")), cast(Connection, CutOff())
        assert list(await pattern.present_topics(connection)) == ["orders"]
        with pytest.raises(Unavailable):
            await pattern.present_topics(connection, refuses_outdated=True)

    asyncio.run(main())


def test_a_partition_that_a_reader_names_may_be_read_later_where_no_broker_knows_whether_it_was_added() -> None:
    async def main() -> None:
        with pytest.raises(Unavailable):
            await reader(CutOff(), follow=True, partitions=[0, 1])._begin_of("orders")

    asyncio.run(main())


@pytest.mark.parametrize("options", [{}, {"until": "end", "group": "billing"}], ids=["follows", "of a group"])
def test_only_a_reader_with_an_end_and_without_a_group_can_refuse_an_outdated_view(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="readings with an end"):
        tidelog.connect("http://127.0.0.1:1").consume("orders", refuse_outdated=True, **options)


def test_a_pattern_matches_topics_that_were_created_through_another_broker() -> None:
    async def main() -> None:
        connection = cast(Connection, GrowsElsewhere())
        assert list(await parse_topics(re.compile("orders.*")).present_topics(connection)) == ["orders", "orders-new"]

    asyncio.run(main())


def test_a_topic_that_a_broker_lists_which_has_not_heard_that_it_was_deleted_keeps_no_other_topic_from_a_pattern() -> None:
    class Lists(GrowsElsewhere):
        async def route(
            self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False
        ) -> TopicRoute:
            if topic == "orders":
                raise UnknownTopic("topic orders was deleted")
            return route_to(PRESENT)

    async def main() -> None:
        settings = ClientSettings(topic_age_ms_max=1)
        begun = TopicReader(
            cast(Connection, Lists()),
            settings,
            parse_topics(re.compile("orders|payments")),
            start=Earliest(),
            partitions=None,
            follow=True,
            reset="error",
        )
        read: asyncio.Future[TopicRoute] = asyncio.get_running_loop().create_future()
        begun._read_new = lambda route: read.done() or read.set_result(route)  # type: ignore[assignment,method-assign,func-returns-value]
        refreshing = asyncio.create_task(begun._refresh_topics())
        async with asyncio.timeout(20):
            await read
        refreshing.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("topics", ["orders", re.compile("orders.*")], ids=["name", "pattern"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_group_that_ends_reads_partitions_and_topics_that_were_added_through_another_broker(
    topics: TopicsLike, follow: bool
) -> None:
    async def main() -> None:
        connection: Any = GrowsElsewhere()
        member = GroupReader(
            connection,
            ClientSettings(),
            parse_topics(topics),
            connection,
            group="g",
            options=group_options({}),
            follow=follow,
            reset="earliest",
        )
        known = {"orders": 1 if follow else 2}  # a member that follows asks for the others later
        new = {} if follow or topics == "orders" else {"orders-new": 2}
        assert await member._first_counts() == {**known, **new}
        assert await member.partition_counts(["orders"]) == known, "for the assignment of all members"

    asyncio.run(main())


class NothingCommitted:
    async def committed(
        self, name: str, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, Offset | TidelogError]:
        return {}


def test_a_member_of_a_group_asks_again_where_it_begins_and_does_not_give_the_partition_up() -> None:
    async def main() -> None:
        connection: Any = FirstBrokerLags()
        calls: Any = NothingCommitted()
        starts = StartOffsets(connection, calls, group="g", follow=True, reset="earliest")
        with pytest.raises(Unavailable):
            await starts.of([("orders", 0)], RefusalPatience())
        found = (await starts.of([("orders", 0)], RefusalPatience()))["orders", 0]
        assert found is not None
        assert (found.route.topic_id, found.offset) == (PRESENT, LOG_START)

    asyncio.run(main())


def test_a_topic_that_a_restore_left_fewer_partitions_has_the_leaders_of_now_and_is_not_asked_about_in_a_loop() -> None:
    """A broker that has not heard of added partitions says the same for a moment: none is given up."""

    async def main() -> None:
        asked: list[float] = []
        changed: list[TopicRoute] = []

        async def route(topic: str, *, fresh: bool) -> TopicRoute:
            asked.append(time.monotonic())
            return TopicRoute("orders", PRESENT, (PartitionRoute("b:9090", 9),), 1 << 20, 1 << 20, learnt_s=asked[-1])

        changes: Any = SimpleNamespace(topic_changed=changed.append)
        watcher = RouteWatcher(cast(Connection, SimpleNamespace(route=route)), ClientSettings(), changes)
        former = (PartitionRoute("a:9090", 1), PartitionRoute("a:9090", 1))
        watcher.follow(TopicRoute("orders", PRESENT, former, 1 << 20, 1 << 20, learnt_s=0.0))
        running = asyncio.create_task(watcher.run())
        for _ in range(100):
            await asyncio.sleep(0)
        running.cancel()
        assert len(asked) == 1, "the answer is new"
        assert [watcher.leader(("orders", number)) for number in range(2)] == ["b:9090", "a:9090"]
        assert not changed

    asyncio.run(main())


def test_a_route_that_a_broker_refuses_for_a_right_that_it_has_not_heard_of_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic ends with the error once the refusal has lasted longer than a broker's view of rights may be old."""
    now_s = [100.0]
    monkeypatch.setattr(route_watcher, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    answers: list[TopicRoute | TidelogError] = []

    async def route(topic: str, *, fresh: bool) -> TopicRoute:
        if isinstance(answer := answers.pop(0), TidelogError):
            raise answer
        return answer

    async def main() -> None:
        reported: list[tuple[str, TidelogError]] = []
        changes: Any = SimpleNamespace(topic_changed=lambda _: None, topic_denied=lambda *denial: reported.append(denial))
        watcher = RouteWatcher(cast(Connection, SimpleNamespace(route=route)), ClientSettings(), changes)
        watcher.follow(route_to(PRESENT))
        denied = NotAuthorized("no right")
        answers.extend([denied, denied, route_to(PRESENT), denied, Unavailable("away"), denied])
        await watcher._renew("orders")
        now_s[0] += DENIED_S
        await watcher._renew("orders")
        await watcher._renew("orders")
        now_s[0] += DENIED_S
        await watcher._renew("orders")
        now_s[0] += DENIED_S + 0.1
        await watcher._renew("orders")
        assert not reported
        await watcher._renew("orders")
        assert reported == [("orders", denied)]
        revoked = Unauthenticated("the key was revoked")
        answers.extend([revoked, revoked])
        await watcher._renew("orders")
        now_s[0] += DENIED_S + 0.1
        with pytest.raises(Unauthenticated):
            await watcher._renew("orders")

    asyncio.run(main())
