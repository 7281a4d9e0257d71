"""Committed offsets that a coordinator is asked for whose view of the topics lags: on a virtual clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.calls import Context
from gateway.grpc.services.groups import GroupsService
from gateway.proto import groups_pb2
from gateway.topics.names import LOOKUP_S
from metadata.errors import Unavailable
from metadata.groups.model import NO_GENERATION
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from tests.gateway.http.groups.test_topics_heard_of import LAG_S, World, simulated
from tests.kit.gateway.reported_log import topic
from tests.simulation.virtual_loop import virtual_loop

MADE_AGAIN = topic(topic_id="c" * 32)


def service_of(world: World, of: Topic, committed: int) -> GroupsService:
    stored = {TopicPartition(of.id, Partition(0)): CommittedOffset(offset=committed, committed_at_ms=0)}

    async def elsewhere(*_: object) -> None:
        return None

    async def offsets(*_: object) -> StoredOffsets:
        return StoredOffsets(stored, {})

    world.broker.groups = SimpleNamespace(forward=elsewhere)  # type: ignore[misc,assignment]  # a double of what is called
    world.broker.coordinated_groups = SimpleNamespace(offsets=offsets)  # type: ignore[misc,assignment]  # a double
    return GroupsService(world.broker, InterruptibleWaits())


async def fetched(service: GroupsService) -> int | None:
    """Returns the offset that a member of the SDK fetches; it names the topic."""
    named = groups_pb2.TopicPartitions(topic="orders", partitions=[0])
    context = cast(Context, SimpleNamespace(invocation_metadata=lambda: ()))
    answer = await service.fetch_offsets(groups_pb2.OffsetFetchRequest(group="g", topics=[named]), context)
    assert isinstance(answer, groups_pb2.OffsetFetchResponse)
    [found] = answer.offsets
    return found.offset if found.HasField("offset") else None


def test_an_offset_of_a_topic_that_was_made_again_is_found_once_the_coordinator_has_heard_of_that() -> None:
    async def scenario() -> None:
        world = World(topic(), MADE_AGAIN)
        world.view.hears(LAG_S, MADE_AGAIN)
        assert await fetched(service_of(world, MADE_AGAIN, 9)) == 9

    simulated(scenario)


def test_a_coordinator_that_does_not_hear_of_a_topic_in_time_does_not_say_that_nothing_is_committed() -> None:
    async def scenario() -> None:
        world = World(topic(), MADE_AGAIN)
        with pytest.raises(Unavailable):
            await fetched(service_of(world, MADE_AGAIN, 9))
        assert virtual_loop().time() <= LOOKUP_S + 0.1

    simulated(scenario)


@pytest.mark.parametrize(("member_id", "generation"), [("m", 3), ("", NO_GENERATION)], ids=["member", "by hand"])
def test_a_commit_by_name_goes_to_the_topic_that_was_made_again(member_id: str, generation: int) -> None:
    async def scenario() -> None:
        world = World(topic(), MADE_AGAIN)
        world.view.hears(LAG_S, MADE_AGAIN)
        service, written = service_of(world, MADE_AGAIN, 9), list[TopicPartition]()

        async def commit(*asked: Any, only_forward: bool) -> dict[TopicPartition, Exception]:
            written.extend(asked[-1])
            return {}

        world.broker.coordinated_groups = SimpleNamespace(commit=commit)  # type: ignore[misc,assignment]  # a double
        offset = groups_pb2.CommittedOffset(topic="orders", partition=0, offset=7)
        context = cast(Context, SimpleNamespace(invocation_metadata=lambda: ()))
        asked = groups_pb2.OffsetCommitRequest(group="g", member_id=member_id, generation=generation, offsets=[offset])
        await service.commit(asked, context)
        assert [at.topic_id for at in written] == [MADE_AGAIN.id]

    simulated(scenario)


def test_an_offset_of_a_deleted_topic_is_not_given_for_the_one_that_was_made_again() -> None:
    async def scenario() -> None:
        world = World(topic(), MADE_AGAIN)
        world.view.hears(LAG_S, MADE_AGAIN)
        assert await fetched(service_of(world, topic(), 9)) is None

    simulated(scenario)


def test_offsets_of_known_topics_are_given_where_the_metadata_store_does_not_answer() -> None:
    async def scenario() -> None:
        assert await fetched(service_of(World(topic(), topic()), topic(), 7)) == 7
        assert virtual_loop().time() <= LOOKUP_S + 0.1

    simulated(scenario)
