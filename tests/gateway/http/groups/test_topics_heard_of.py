"""Topics that the metadata store has and this broker's view has not yet: on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from gateway.api import BrokerApi
from gateway.grpc.consume.messages import ConsumeOptions, NamedStart
from gateway.grpc.consume.partitions import Start, StartKind
from gateway.grpc.consume.service import GrpcConsume
from gateway.http.groups import member_fetch
from gateway.http.groups.cursor import Cursor, CursorEntry, CursorOwner, encode_cursor
from gateway.http.groups.member_fetch import MemberFetch
from gateway.http.groups.offsets import HttpGroupOffsets
from gateway.http.groups.records import HttpGroupRecords, _ReadRequest
from gateway.http.groups.request import MemberIdentity
from gateway.http.records.encoding import Formats
from gateway.http.records.stream import Limits
from gateway.http.request import Query
from gateway.topics.names import LOOKUP_S, LOOKUPS_MAX, topic_heard_of, why_not_heard_of
from metadata.errors import NotAuthorized, Unavailable, UnknownTopic
from metadata.group_member.settings import MemberSettings
from metadata.group_member.start_offsets import StartPolicy
from metadata.groups.model import NO_INSTANCE, NO_MEMBER, Generation, MemberId
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from segments.records.json_values import JsonFormat
from tests.kit.gateway.reported_log import P0, Topics, topic
from tests.metadata.topics.test_cache import CountedGets, catching_up
from tests.simulation.virtual_loop import run, virtual_loop

LAG_S = 0.3
OTHER = TopicId("b" * 32)


class View(Topics):
    """This broker's view. It hears what the store has after a while, or never."""

    def __init__(self, *topics: Topic) -> None:
        super().__init__(*topics)
        self.news = asyncio.Event()
        self.store = Topics()
        self.lookups = 0
        self.news_at = Revision(1)

    async def wait_for(self, revision: Revision, timeout_s: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self.news.wait()
        except TimeoutError:
            return False
        return True

    def knows(self, partition: TopicPartition) -> bool:
        return any(topic.id == partition.topic_id for topic in self.topics.values())

    async def hear_of(self, partitions: Collection[TopicPartition], *, timeout_s: float) -> None:
        known = {topic.id for topic in self.topics.values()}
        if not known.issuperset(each.topic_id for each in partitions) and not await self.wait_for(self.news_at, timeout_s):
            raise Unavailable("the watch has not answered in time")

    async def catch_up(self, name: str, *, timeout_s: float) -> None:
        self.lookups += 1
        if name in self.store.topics and not await self.wait_for(self.news_at, timeout_s):
            raise Unavailable("the watch has not answered in time")

    async def catch_up_with_all(self, *, timeout_s: float) -> None:
        if not await self.wait_for(self.news_at, timeout_s):
            raise Unavailable("the watch has not answered in time")

    def hears(self, after_s: float, now: Topic) -> None:
        def heard() -> None:
            self.topics[now.name] = now
            self.news.set()

        virtual_loop().call_later(after_s, heard)


class World:
    def __init__(self, here: Topic | None, store: Topic | None) -> None:
        self.view = View(*([here] if here else []))
        self._store = self.view.store = Topics(*([store] if store else []))
        self.broker = cast(BrokerApi, SimpleNamespace(topic_cache=self.view, topics=SimpleNamespace(get=self._get)))

    async def _get(self, name: str) -> Topic:
        return self._store.get(name)


def simulated(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    run(main(), seed=1)


async def begun_read(world: World, cursor: Cursor) -> MemberFetch:
    """Of a member that is assigned orders/0, and begins at the latest record where its cursor says nothing."""
    records = HttpGroupRecords.__new__(HttpGroupRecords)
    records._broker = world.broker
    member = MemberIdentity("billing", MemberId("m"), NO_INSTANCE, cursor.generation)
    limits = Limits(None, 1_000, None, Formats(JsonFormat.AUTO, JsonFormat.AUTO))
    return await records._reading(_ReadRequest(member, cursor, False, StartPolicy.LATEST, limits), cursor, [("orders", 0)])


def read_by(world: World, unknown_here: dict[str, Exception]) -> list[str]:
    """Returns the codes that a member with partitions 0 and 5 receives for them."""
    reading = MemberFetch(
        world.broker,
        [("orders", 0), ("orders", 5)],
        Cursor(Generation(1), {}),
        group="billing",
        policy=StartPolicy.EARLIEST,
        unknown_here=unknown_here,  # type: ignore[arg-type]
    )
    return [error.code for error in reading._unknown.values()]


@pytest.mark.parametrize("here", [None, topic(partition_count=2)], ids=["made", "grown"])
def test_a_member_is_read_the_partitions_that_this_broker_hears_of_a_moment_later(here: Topic | None) -> None:
    async def scenario() -> None:
        now = topic(partition_count=8)
        world = World(here, now)
        world.view.hears(LAG_S, now)
        why = await why_not_heard_of(world.broker, [("orders", 0), ("orders", 5)])
        assert why == {}
        assert read_by(world, {}) == []
        assert world.view.lookups == 1

    simulated(scenario)


def test_a_partition_that_this_broker_does_not_hear_of_in_time_is_no_unknown_one() -> None:
    async def scenario() -> None:
        world = World(topic(partition_count=2), topic(partition_count=8))
        why = await why_not_heard_of(world.broker, [("orders", 0), ("orders", 5)])
        assert {name: type(error) for name, error in why.items()} == {"orders": Unavailable}
        assert virtual_loop().time() <= LOOKUP_S + 0.1
        assert read_by(world, dict(why)) == ["UNAVAILABLE"], "and the partition that is known is read"

    simulated(scenario)


def test_a_topic_that_the_store_has_not_either_is_unknown_and_what_is_known_is_not_looked_up() -> None:
    async def scenario() -> None:
        world = World(None, None)
        why = await why_not_heard_of(world.broker, [("orders", 0), ("orders", 5)])
        assert {name: type(error) for name, error in why.items()} == {"orders": UnknownTopic}
        known = World(topic(partition_count=8), None)
        assert await why_not_heard_of(known.broker, [("orders", 0), ("orders", 5)]) == {}
        assert known.view.lookups == 0

    simulated(scenario)


def test_a_topic_is_returned_once_the_watch_of_this_broker_has_reported_it() -> None:
    async def scenario() -> None:
        now = topic(partition_count=8)
        world = World(topic(partition_count=2), now)
        world.view.hears(LAG_S, now)
        assert await topic_heard_of(world.broker, "orders") == now
        assert LAG_S <= virtual_loop().time() < LAG_S + 0.1

    simulated(scenario)


def test_a_consume_stream_begins_when_this_broker_has_heard_of_what_it_names() -> None:
    async def scenario() -> None:
        now, member = topic(), MemberSettings()
        terms = ConsumeOptions(("orders",), "", member, (), StartPolicy.EARLIEST, 1_000, structured=False, heartbeat_s=5.0)
        world = World(None, now)
        service = GrpcConsume.__new__(GrpcConsume)
        service._broker = world.broker
        with pytest.raises(Unavailable, match="does not have all named topics yet"):
            await service._topics(terms)
        world.view.hears(LAG_S, now)
        began_s = virtual_loop().time()
        assert await service._topics(terms) == {"orders": now}
        assert world.view.by_id(now.id) == now
        assert LAG_S <= virtual_loop().time() - began_s < LAG_S + 0.1

    simulated(scenario)


def test_a_consume_stream_reads_what_was_added_to_a_topic_while_it_waited_for_another() -> None:
    async def scenario() -> None:
        now = topic()
        terms = ConsumeOptions(
            ("payments", "orders"), "", MemberSettings(), (), StartPolicy.EARLIEST, 1_000, structured=False, heartbeat_s=5.0
        )
        world = World(topic("payments", OTHER, partition_count=4), now)
        service = GrpcConsume.__new__(GrpcConsume)
        service._broker = world.broker
        grown = topic("payments", OTHER, partition_count=8)
        virtual_loop().call_later(LAG_S / 2, lambda: world.view.topics.update(payments=grown))  # no stream is notified of it yet
        world.view.hears(LAG_S, now)
        assert await service._topics(terms) == {"payments": grown, "orders": now}

        world.view.topics.pop("payments")
        with pytest.raises(UnknownTopic) as refused:
            await service._topics(terms)
        assert refused.value.details["field"] == "start.topics[0]"

    simulated(scenario)


@pytest.mark.parametrize("here", [topic(partition_count=2), topic(topic_id=OTHER, partition_count=8)], ids=["grown", "made again"])
def test_a_consume_stream_begins_at_an_offset_of_a_partition_that_its_client_has_heard_of_at_another_broker(here: Topic) -> None:
    async def scenario() -> None:
        now = topic(partition_count=8)
        starts = [NamedStart("orders", number, now.id, 7, Start(StartKind.EARLIEST)) for number in (5, 1)]
        terms = ConsumeOptions(
            (), "", MemberSettings(), tuple(starts), StartPolicy.EARLIEST, 1_000, structured=False, heartbeat_s=5.0
        )
        service = GrpcConsume.__new__(GrpcConsume)
        world = World(here, now)
        service._broker = world.broker
        hear_of_all = world.view.wait_for

        async def wait_for(revision: Revision, timeout_s: float | None) -> bool:
            return revision <= here.revision or await hear_of_all(revision, timeout_s)

        world.view.wait_for = wait_for  # type: ignore[method-assign]
        world.view.news_at = Revision(here.revision + 1)
        with pytest.raises(Unavailable):
            await service._topics(terms)
        assert virtual_loop().time() <= LOOKUP_S + 0.1
        world.view.hears(LAG_S, now)
        assert await service._topics(terms) == {"orders": now}
        gone = starts[0]._replace(topic_id="d" * 32)
        assert await service._topics(terms._replace(starts=(gone,))) == {"orders": now}, "the stream refuses it, with its field"

    simulated(scenario)


def test_a_cursor_keeps_what_it_has_read_of_a_topic_that_this_broker_has_not_heard_of() -> None:
    async def scenario() -> None:
        committed: list[TopicPartition] = []

        async def commit(*who: object, only_forward: bool) -> dict[TopicPartition, Exception]:
            committed.extend(who[-1])  # type: ignore[arg-type]
            return {}

        broker = SimpleNamespace(topic_cache=Topics(topic()), groups=SimpleNamespace(commit=commit))
        unknown_here = TopicPartition(TopicId("b" * 32), Partition(0))
        read = {P0: CursorEntry(7, must_stay=True), unknown_here: CursorEntry(9, must_stay=True)}
        member = MemberIdentity("g", MemberId("m"), NO_INSTANCE, Generation(1))
        cursor, reported = await HttpGroupOffsets(cast(BrokerApi, broker)).commit_cursor(member, Cursor(Generation(1), read))
        assert committed == [P0]
        assert [answer.offset for answer in reported] == [7]
        assert cursor.uncommitted == {unknown_here: 9}, "it is committed with a later request"

    simulated(scenario)


class Call(NamedTuple):
    """A request about offsets, as HttpGroupOffsets handles it."""

    group: str
    member_id: MemberId
    body: bytes
    answers: list[Any]

    def query(self, *names: str) -> Query:
        return Query(b"", frozenset(names))

    def with_hints(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def answer(self, body: Any) -> None:
        self.answers.append(body)


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("is_member", [True, False], ids=["member", "by hand"])
def test_a_commit_by_name_goes_to_the_topic_that_was_made_again(is_member: bool, hears: bool) -> None:
    async def scenario() -> None:
        committed: list[TopicPartition] = []

        async def commit(*who: Any, only_forward: bool) -> dict[TopicPartition, Exception]:
            committed.extend(who[-1])
            return {}

        made_again = topic(topic_id=OTHER)
        world = World(topic(), made_again)
        if hears:
            world.view.hears(LAG_S, made_again)
        world.broker.groups = SimpleNamespace(commit=commit)  # type: ignore[misc,assignment]  # a double
        body: dict[str, Any] = {"offsets": [{"topic": "orders", "partition": 0, "offset": 7}]}
        if is_member:
            body["generation"] = 1
        call = Call("g", MemberId("m" if is_member else ""), msgspec.json.encode(body), [])
        offsets = HttpGroupOffsets(world.broker)
        committing = (offsets.commit if is_member else offsets.commit_by_hand)(cast(Any, call))
        if hears:
            await committing
        else:
            with pytest.raises(Unavailable):
                await committing
        assert committed == ([TopicPartition(OTHER, Partition(0))] if hears else [])

    simulated(scenario)


@pytest.mark.parametrize("hears", [True, False])
def test_listed_offsets_are_of_the_topics_that_have_the_names_now(hears: bool) -> None:
    async def scenario() -> None:
        async def offsets(_: str) -> StoredOffsets:
            return StoredOffsets({P0: CommittedOffset(offset=9, committed_at_ms=0)}, {})

        world = World(topic(), topic(topic_id=OTHER))
        if hears:
            world.view.hears(LAG_S, topic(topic_id=OTHER))
        world.broker.groups = SimpleNamespace(offsets=offsets)  # type: ignore[misc,assignment]  # a double
        call = Call("g", NO_MEMBER, b"", [])
        await HttpGroupOffsets(world.broker).list_offsets(cast(Any, call))
        assert [each.offset for each in call.answers[0].offsets] == ([] if hears else [9]), "the store may be out of reach"

    simulated(scenario)


@pytest.mark.parametrize("hears", [True, False])
def test_a_commit_of_a_cursor_is_not_answered_before_this_broker_has_heard_of_all_topics_in_it(hears: bool) -> None:
    """The client may leave the group with the answer: what the answer leaves out is lost."""

    async def scenario() -> None:
        committed: list[TopicPartition] = []

        async def commit(*who: Any, only_forward: bool) -> dict[TopicPartition, Exception]:
            committed.extend(who[-1])
            return {}

        payments = topic("payments", OTHER)
        world = World(topic(), payments)
        if hears:
            world.view.hears(LAG_S, payments)
        world.broker.cluster_id, world.broker.groups = "c", SimpleNamespace(commit=commit)  # type: ignore[misc,assignment]
        owner, partition = CursorOwner("c", "g", MemberId("m")), TopicPartition(OTHER, Partition(0))
        read = {P0: CursorEntry(7, must_stay=True), partition: CursorEntry(9, must_stay=True)}
        body = {"generation": 1, "cursor": encode_cursor(Cursor(Generation(1), read), owner)}
        call = Call("g", MemberId("m"), msgspec.json.encode(body), [])
        committing = HttpGroupOffsets(world.broker).commit(cast(Any, call))
        if not hears:
            with pytest.raises(Unavailable):
                await committing
            assert committed == []
            return
        await committing
        assert committed == [P0, partition]
        assert [(each.topic, each.offset) for each in call.answers[0].offsets] == [("orders", 7), ("payments", 9)]

    simulated(scenario)


@pytest.mark.parametrize(
    ("here", "partition"),
    [(topic("payments", OTHER), P0), (topic(partition_count=2), TopicPartition(P0.topic_id, Partition(5)))],
    ids=["made", "grown"],
)
def test_reading_at_a_broker_that_has_not_heard_of_a_partition_keeps_its_cursor_entry(
    here: Topic, partition: TopicPartition
) -> None:
    async def scenario() -> None:
        world = World(here, topic(partition_count=8))
        assigned = [("payments", 0), ("orders", partition.partition)]
        why = await why_not_heard_of(world.broker, assigned)
        cursor = Cursor(Generation(1), {partition: CursorEntry(9, must_stay=True)})
        reading = MemberFetch(world.broker, assigned, cursor, group="billing", policy=StartPolicy.LATEST, unknown_here=why)
        assert reading.positions.cursor().uncommitted == {partition: 9}, "it reads on there at a broker that knows the partition"

    simulated(scenario)


def test_reading_keeps_the_cursor_entries_of_a_topic_that_the_member_may_not_read_at_the_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The right may be a new one, or one that was removed and added again, and this broker has not heard of it yet."""

    def check(name: str) -> None:
        if name == "payments":
            raise NotAuthorized("the member may not read payments")

    monkeypatch.setattr(member_fetch, "check_topic", check)

    async def scenario() -> None:
        world = World(topic(), topic())
        world.view.topics["payments"] = topic("payments", OTHER)
        denied, former = TopicPartition(OTHER, Partition(0)), TopicPartition(TopicId("c" * 32), Partition(0))
        read = {at: CursorEntry(9, must_stay=True) for at in (P0, denied, former)}
        reading = MemberFetch(
            world.broker,
            [("orders", 0), ("payments", 0)],
            Cursor(Generation(1), read),
            group="billing",
            policy=StartPolicy.LATEST,
        )
        assert reading.positions.cursor().uncommitted == {P0: 9, denied: 9}
        assert [at for at, _ in reading.positions.targets(reading.positions.in_rotation)] == [P0], "an entry gives no access"
        assert [error.code for error in reading._unknown.values()] == [NotAuthorized.code]

    simulated(scenario)


@pytest.mark.parametrize("hears", [True, False])
def test_reading_at_a_broker_that_knows_an_older_topic_of_this_name_keeps_the_cursor_entries(hears: bool) -> None:
    async def scenario() -> None:
        made_again = topic(topic_id=OTHER)
        world = World(topic(), made_again)
        if hears:
            world.view.hears(LAG_S, made_again)
        partition = TopicPartition(OTHER, Partition(0))
        cursor = Cursor(Generation(1), {partition: CursorEntry(9, must_stay=True)})
        reading = await begun_read(world, cursor)
        assert reading.positions.cursor().uncommitted == {partition: 9}, "from `latest` on it would read at a later end"
        assert reading.positions.has_entry(partition) == hears

    simulated(scenario)


def test_reading_at_a_broker_that_has_caught_up_drops_the_entries_of_the_former_topic() -> None:
    async def scenario() -> None:
        world = World(topic(topic_id=OTHER), topic(topic_id=OTHER))
        world.view.hears(0, topic(topic_id=OTHER))
        reading = await begun_read(world, Cursor(Generation(1), {P0: CursorEntry(9, must_stay=True)}))
        assert reading.positions.cursor().entries == {}

    simulated(scenario)


def test_reading_drops_the_entries_of_a_topic_that_is_deleted_in_the_store_too() -> None:
    async def scenario() -> None:
        world = World(topic("payments", OTHER), None)
        assigned = [("payments", 0), ("orders", 0)]
        why = await why_not_heard_of(world.broker, assigned)
        cursor = Cursor(Generation(1), {P0: CursorEntry(9, must_stay=True)})
        reading = MemberFetch(world.broker, assigned, cursor, group="billing", policy=StartPolicy.LATEST, unknown_here=why)
        assert reading.positions.cursor().entries == {}

    simulated(scenario)


def test_many_who_ask_for_a_missing_topic_share_a_read_of_the_store() -> None:
    """Consumers poll a missing topic like this."""

    async def scenario(store: CountedGets, topics: TopicRegistry, cache: TopicCache) -> None:
        broker = cast(BrokerApi, SimpleNamespace(topic_cache=cache, topics=TopicRegistry(store)))
        await topics.create("payments", 1)
        await cache.catch_up_with_all(timeout_s=LOOKUP_S)
        gets_before = store.gets
        found = await asyncio.gather(*(why_not_heard_of(broker, [("orders", 0)]) for _ in range(50)))
        assert {type(why["orders"]) for why in found} == {UnknownTopic}
        assert store.gets - gets_before <= 2

    catching_up(scenario)


def test_topics_beyond_those_that_are_looked_up_at_once_are_not_called_unknown() -> None:
    async def scenario() -> None:
        world = World(None, None)
        why = await why_not_heard_of(world.broker, [(f"orders-{number}", 0) for number in range(LOOKUPS_MAX + 2)])
        assert world.view.lookups == LOOKUPS_MAX
        assert [type(error) for error in why.values()].count(Unavailable) == 2
        assert len(why) == LOOKUPS_MAX + 2

    simulated(scenario)
