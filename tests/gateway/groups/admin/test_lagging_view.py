"""Operators describe, seek and delete offsets at a coordinator whose view of the topics lags. The clock is virtual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from gateway.groups.admin.local_admin import LocalGroupAdmin
from gateway.groups.coordinator import GroupCoordinator
from gateway.proto import groups_pb2
from metadata.errors import TidelogError, Unavailable
from metadata.groups.model import Group
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import Partition, TopicId, TopicPartition
from metadata.topics.topic import Topic
from tests.gateway.http.groups.test_topics_heard_of import LAG_S, View, simulated
from tests.kit.gateway.reported_log import ReportedLog, bounds, topic

MADE_AGAIN = topic(topic_id="c" * 32)
PAYMENTS = topic("payments", "d" * 32)
ORDERS = groups_pb2.TopicPartitions(topic="orders")


class Coordinator:
    """Holds what a group without members has committed, each at offset 5."""

    def __init__(self, *committed: TopicPartition) -> None:
        self.stored = dict.fromkeys(committed, CommittedOffset(offset=5, committed_at_ms=0))

    async def describe(self, name: str) -> Group:
        return Group()

    async def offsets(self, name: str) -> StoredOffsets:
        return StoredOffsets(dict(self.stored), {})

    async def delete_offsets(self, name: str, partitions: Sequence[TopicPartition], *, topics: object) -> None:
        for at in partitions:
            del self.stored[at]

    async def commit(self, *asked: Any) -> dict[TopicPartition, TidelogError]:
        self.stored |= asked[-1]
        return {}


def at(of: Topic, number: int = 0) -> TopicPartition:
    return TopicPartition(TopicId(of.id), Partition(number))


def admin_of(view: View, coordinator: Coordinator) -> LocalGroupAdmin:
    log = ReportedLog({at(of, number): bounds(0, 9) for of in (topic(), MADE_AGAIN, PAYMENTS) for number in range(2)})
    return LocalGroupAdmin(cast(GroupCoordinator, coordinator), log, cast(Any, view), broker_id="b1", now_ms=lambda: 0)


def test_a_seek_of_all_moves_topics_that_the_coordinator_had_not_heard_of() -> None:
    async def scenario() -> None:
        view, coordinator = View(topic()), Coordinator(at(topic()), at(PAYMENTS))
        view.hears(LAG_S, PAYMENTS)
        moved = (await admin_of(view, coordinator).seek(groups_pb2.SeekGroupRequest(group="g", earliest=True))).moved
        assert sorted(row.topic for row in moved) == ["orders", "payments"]
        assert {offset.offset for offset in coordinator.stored.values()} == {0}

    simulated(scenario)


def test_a_seek_by_a_topics_name_moves_the_one_that_was_made_again_and_all_its_partitions() -> None:
    async def scenario() -> None:
        view, coordinator = View(topic(partition_count=1)), Coordinator(at(topic()))
        view.hears(LAG_S, MADE_AGAIN)
        request = groups_pb2.SeekGroupRequest(group="g", topics=[ORDERS], latest=True)
        moved = (await admin_of(view, coordinator).seek(request)).moved
        assert [(row.topic_id, row.partition, row.after) for row in moved] == [(MADE_AGAIN.id, 0, 9), (MADE_AGAIN.id, 1, 9)]

    simulated(scenario)


def test_offsets_are_deleted_of_the_topic_that_was_made_again() -> None:
    async def scenario() -> None:
        view, coordinator = View(topic()), Coordinator(at(MADE_AGAIN))
        view.hears(LAG_S, MADE_AGAIN)
        answer = await admin_of(view, coordinator).delete_offsets(groups_pb2.DeleteOffsetsRequest(group="g", topics=[ORDERS]))
        assert [(row.topic_id, row.offset) for row in answer.deleted] == [(MADE_AGAIN.id, 5)]
        assert coordinator.stored == {}

    simulated(scenario)


def test_a_group_is_described_with_topics_that_the_coordinator_had_not_heard_of() -> None:
    async def scenario() -> None:
        view, coordinator = View(topic()), Coordinator(at(topic()), at(PAYMENTS))
        view.hears(LAG_S, PAYMENTS)
        described = await admin_of(view, coordinator).describe(groups_pb2.DescribeGroupRequest(group="g"))
        assert [row.topic for row in described.lags] == ["orders", "payments"]

    simulated(scenario)


def test_a_coordinator_that_does_not_catch_up_changes_nothing() -> None:
    async def scenario() -> None:
        coordinator = Coordinator(at(topic()), at(PAYMENTS))
        before, admin = dict(coordinator.stored), admin_of(View(topic()), coordinator)
        with pytest.raises(Unavailable):
            await admin.seek(groups_pb2.SeekGroupRequest(group="g", earliest=True))
        with pytest.raises(Unavailable):
            await admin.delete_offsets(groups_pb2.DeleteOffsetsRequest(group="g", topics=[ORDERS]))
        assert coordinator.stored == before

    simulated(scenario)
