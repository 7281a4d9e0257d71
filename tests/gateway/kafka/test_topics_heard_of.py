"""Committed offsets of topics that a client knows and the coordinator's view has not yet: on a virtual clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.kafka.admin.topics import DELETE_BY_ID, KafkaTopics
from gateway.kafka.call import KafkaCall
from gateway.kafka.consumer_groups.descriptions import KafkaGroupDescriptions
from gateway.kafka.errors import ErrorCode
from gateway.kafka.group_admin import KafkaGroupAdmin
from gateway.kafka.groups import BY_ID, KafkaGroups
from gateway.kafka.listener_config import Route
from gateway.kafka.metadata import KafkaMetadata
from gateway.kafka.protocol.admin_messages import (
    ConsumerGroupDescribeRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from gateway.kafka.protocol.client_messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from gateway.kafka.protocol.hot_messages import MetadataRequest, MetadataRequestTopic
from gateway.proto import groups_pb2
from gateway.topics.names import COMMIT_CATCH_UP_S
from metadata.errors import TidelogError, Unavailable
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.store.write_batcher import Outdated, UnchangedSince
from metadata.topics.topic import Topic
from tests.gateway.http.groups.test_topics_heard_of import LAG_S, View, World, simulated
from tests.kit.gateway.reported_log import topic
from tests.simulation.virtual_loop import virtual_loop

MADE_AGAIN = topic(topic_id="c" * 32)
BY_NAME = BY_ID - 1


class LaggingView(View):
    """A view that knows whether the store has changes that it has not heard of."""

    is_behind = True

    @property
    def view(self) -> UnchangedSince:
        return UnchangedSince("/tidelog/partition_count", Revision(1))

    async def catch_up_with_all(self, *, timeout_s: float) -> None:
        if self.is_behind and not await self.wait_for(Revision(1), timeout_s):
            raise Unavailable("the watch has not answered in time")

    async def catch_up(self, name: str, *, timeout_s: float) -> None:
        await self.catch_up_with_all(timeout_s=timeout_s)


class Coordinator(World):
    """A broker that coordinates a group with these committed offsets, by topic id."""

    def __init__(self, here: Topic | None, store: Topic | None, **committed: int) -> None:
        super().__init__(here, store)
        self.view = self.lagging = LaggingView(*([here] if here else []))
        self.broker.topic_cache = self.view  # type: ignore[misc,assignment]  # a double
        self.written: dict[TopicPartition, CommittedOffset] = {}
        self._stored = {
            TopicPartition(TopicId(topic_id), Partition(0)): CommittedOffset(offset=offset, committed_at_ms=0)
            for topic_id, offset in committed.items()
        }
        self.broker.groups = SimpleNamespace(  # type: ignore[misc,assignment]  # a double
            check_here=lambda _: None, offsets=self._offsets, commit=self._commit
        )
        self.groups = KafkaGroups(self.broker, Any, InterruptibleWaits())  # type: ignore[arg-type]  # no leader is looked up

    async def _offsets(self, *_: object) -> StoredOffsets:
        known = {each.id for each in self.view.topics.values()}
        return StoredOffsets({at: offset for at, offset in self._stored.items() if at.topic_id in known}, {})

    async def _commit(self, *asked: Any, view: UnchangedSince | None) -> dict[TopicPartition, TidelogError]:
        if view is not None and self.lagging.is_behind:
            raise Outdated
        self.written |= asked[-1]
        return {}

    async def fetched(self, version: int, of: Topic | None) -> tuple[int, int, int]:
        """The error of the group, the error of partition 0, and its committed offset; `of` None: of all topics."""
        topics = None
        if of is not None:
            named = {"topic_id": bytes.fromhex(of.id)} if version >= BY_ID else {"name": of.name}
            topics = [OffsetFetchRequestTopics(**named, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
        [group] = (await self.groups.fetch_offsets(call(version), request)).groups
        found = [each for topic in group.topics for each in topic.partitions]
        return (group.error_code, found[0].error_code, found[0].committed_offset) if found else (group.error_code, 0, -1)


def call(version: int) -> KafkaCall:
    connection: Any = SimpleNamespace(listener=SimpleNamespace(route=Route.DIRECT))
    return KafkaCall(connection, version, "tests", None)


def commit_of(of: Topic, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(topic_id=bytes.fromhex(of.id), partitions=[partition])]
    )


def commit_by_name(member_id: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topics = [OffsetCommitRequestTopic(name="orders", partitions=[partition])]
    return OffsetCommitRequest(group_id="g", member_id=member_id, topics=topics)


def test_a_topic_that_a_client_names_by_its_id_is_not_called_unknown_before_the_coordinator_has_caught_up() -> None:
    async def scenario() -> None:
        world = Coordinator(None, topic())
        world.view.hears(LAG_S, topic())
        assert await world.fetched(BY_ID, topic()) == (ErrorCode.NONE, ErrorCode.NONE, -1), "nothing is committed"
        behind = Coordinator(None, topic())
        assert (await behind.fetched(BY_ID, topic()))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE

    simulated(scenario)


def test_a_commit_by_a_topic_id_waits_until_the_coordinator_has_heard_of_it() -> None:
    async def scenario() -> None:
        world = Coordinator(None, topic())
        world.view.hears(LAG_S, topic())
        [answered] = (await world.groups.commit(call(BY_ID), commit_of(topic(), 7))).topics
        assert [each.error_code for each in answered.partitions] == [ErrorCode.NONE]
        assert [offset.offset for offset in world.written.values()] == [7]
        behind = Coordinator(None, topic())
        [answered] = (await behind.groups.commit(call(BY_ID), commit_of(topic(), 7))).topics
        assert [each.error_code for each in answered.partitions] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]

    simulated(scenario)


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("member_id", ["m", ""], ids=["member", "by hand"])
def test_a_commit_by_name_goes_to_the_topic_that_was_made_again(member_id: str, hears: bool) -> None:
    """The member may leave the group with the answer: no later commit of it corrects this one."""

    async def scenario() -> None:
        world = Coordinator(topic(), MADE_AGAIN)
        if hears:
            world.view.hears(LAG_S, MADE_AGAIN)
        [answered] = (await world.groups.commit(call(BY_NAME), commit_by_name(member_id))).topics
        code = ErrorCode.NONE if hears else ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [each.error_code for each in answered.partitions] == [code]
        assert [at.topic_id for at in world.written] == ([MADE_AGAIN.id] if hears else [])
        assert virtual_loop().time() <= COMMIT_CATCH_UP_S + 0.1

    simulated(scenario)


def test_a_commit_by_name_is_written_at_once_where_the_view_is_current() -> None:
    async def scenario() -> None:
        world = Coordinator(topic(), topic())
        world.lagging.is_behind = False
        await world.groups.commit(call(BY_NAME), commit_by_name("m"))
        assert [at.topic_id for at in world.written] == [topic().id]
        assert virtual_loop().time() == 0

    simulated(scenario)


@pytest.mark.parametrize("is_named", [True, False])
def test_offsets_of_a_former_topic_are_not_taken_for_those_of_the_one_that_was_made_again(is_named: bool) -> None:
    async def scenario() -> None:
        world = Coordinator(topic(), MADE_AGAIN, **{topic().id: 500})
        world.view.hears(LAG_S, MADE_AGAIN)
        asked = MADE_AGAIN if is_named else None
        assert await world.fetched(BY_NAME, asked) == (ErrorCode.NONE, ErrorCode.NONE, -1)

    simulated(scenario)


def test_a_view_that_does_not_catch_up_in_time_answers_as_it_is() -> None:
    async def scenario() -> None:
        world = Coordinator(topic(), topic(), **{topic().id: 7})
        assert await world.fetched(BY_NAME, topic()) == (ErrorCode.NONE, ErrorCode.NONE, 7)

    simulated(scenario)


def test_a_view_that_is_current_answers_at_once() -> None:
    async def scenario() -> None:
        world = Coordinator(topic(), topic(), **{topic().id: 7})
        world.lagging.is_behind = False
        assert await world.fetched(BY_NAME, topic()) == (ErrorCode.NONE, ErrorCode.NONE, 7)
        assert await world.fetched(BY_ID, topic()) == (ErrorCode.NONE, ErrorCode.NONE, 7)

    simulated(scenario)


@pytest.mark.parametrize("here", [None, topic(partition_count=1)], ids=["made", "grown"])
def test_an_operator_deletes_offsets_of_partitions_that_the_coordinator_had_not_heard_of(here: Topic | None) -> None:
    async def scenario() -> None:
        world = Coordinator(here, topic(partition_count=2))
        world.view.hears(LAG_S, topic(partition_count=2))
        asked: list[Any] = []

        async def noted(request: Any) -> None:
            asked.append(request)

        world.broker.group_operations = SimpleNamespace(describe=noted, delete_offsets=noted)  # type: ignore[misc,assignment]
        world.broker.guard = None  # type: ignore[misc]
        partitions = [OffsetDeleteRequestPartition(partition_index=number) for number in range(3)]
        request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="orders", partitions=partitions)])
        [answered] = (await KafkaGroupAdmin(world.broker).delete_offsets(call(0), request)).topics
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [each.error_code for each in answered.partitions] == [ErrorCode.NONE, ErrorCode.NONE, unknown]
        assert list(asked[-1].topics[0].partitions) == [0, 1]

    simulated(scenario)


@pytest.mark.parametrize(
    ("hears", "error"), [(True, ErrorCode.NONE), (False, 41)], ids=["it hears of it", "it does not"]
)  # 41: NOT_CONTROLLER, which clients repeat
def test_a_topic_that_is_described_by_its_id_is_not_unknown_before_the_broker_has_caught_up(hears: bool, error: int) -> None:
    async def scenario() -> None:
        world = Coordinator(None, topic())
        if hears:
            world.view.hears(LAG_S, topic())
        leaders: Any = SimpleNamespace(nodes=lambda _: (), node=lambda *_: None, leader=lambda *_: None)
        world.broker.broker_id, world.broker.cluster_id = "b", "c"  # type: ignore[misc]  # a double
        request = MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=bytes.fromhex(topic().id), name=None)], allow_auto_topic_creation=False
        )
        [found] = (await KafkaMetadata(world.broker, leaders).metadata(call(12), request)).topics
        assert (found.error_code, found.name) == (error, "orders" if hears else None)

    simulated(scenario)


@pytest.mark.parametrize(("hears", "error"), [(True, ErrorCode.NONE), (False, 41)], ids=["it hears of it", "it does not"])
def test_a_topic_that_is_deleted_by_its_id_is_not_unknown_before_the_broker_has_caught_up(hears: bool, error: int) -> None:
    async def scenario() -> None:
        world = Coordinator(None, topic())
        if hears:
            world.view.hears(LAG_S, topic())

        async def delete_topic(name: str, *, topic_id: TopicId) -> Topic:
            return topic()

        world.broker.delete_topic, world.broker.guard = delete_topic, None  # type: ignore[method-assign,misc,assignment]  # doubles
        named = DeleteTopicState(name=None, topic_id=bytes.fromhex(topic().id))
        request = DeleteTopicsRequest(topics=[named], timeout_ms=30_000)
        [deleted] = (await KafkaTopics(world.broker).delete_topics(call(DELETE_BY_ID), request)).responses
        assert deleted.error_code == error

    simulated(scenario)


@pytest.mark.parametrize("hears", [True, False])
def test_a_described_member_has_the_partitions_of_topics_that_the_broker_has_not_heard_of(hears: bool) -> None:
    async def scenario() -> None:
        world = Coordinator(None, topic())
        if hears:
            world.view.hears(LAG_S, topic())
        member = groups_pb2.GroupMember(member_id="m")
        for partitions in (member.consumer.assigned, member.consumer.target):
            partitions.topics.add(topic_id=topic().id, partitions=[0])

        async def describe(_: object) -> groups_pb2.GroupDescription:
            return groups_pb2.GroupDescription(type="consumer", members=[member])

        world.broker.group_operations = SimpleNamespace(describe=describe)  # type: ignore[misc,assignment]  # a double
        request = ConsumerGroupDescribeRequest(group_ids=["g"])
        [found] = (await KafkaGroupDescriptions(world.broker).describe(call(1), request)).groups
        assert found.error_code == (ErrorCode.NONE if hears else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        described = [each.topic_name for member in found.members for each in member.assignment.topic_partitions]
        assert described == (["orders"] if hears else [])

    simulated(scenario)
