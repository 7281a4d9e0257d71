"""Which partitions a leader proves for keyed requests while some topics can't be read: on a virtual clock."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.cluster.proven_routing import PAUSE_S, ProvenRouting
from metadata.errors import TidelogError, Unavailable, UnknownTopic
from metadata.model import LeaderEpoch, Partition, TopicId, TopicPartition
from metadata.topics.cache import TopicCache
from segments.partition.leader_partitions import LeaderPartitions
from tests.kit.gateway.reported_log import topic
from tests.simulation.virtual_loop import run

EPOCH = LeaderEpoch(1)
LED = [TopicPartition(TopicId(f"{number:032x}"), Partition(0)) for number in range(10)]
READ, UNREAD = LED[:5], LED[5:]


class Topics:
    """Half of the topics can't be read, or are gone."""

    def __init__(self, error: TidelogError) -> None:
        self.error = error
        self.unread = {partition.topic_id for partition in UNREAD}
        self.asked = 0

    def by_id(self, topic_id: TopicId) -> object:
        if topic_id in self.unread and isinstance(self.error, UnknownTopic):
            raise self.error
        return topic(topic_id, topic_id)

    async def catch_up(self, name: str, *, timeout_s: float) -> None:
        self.asked += 1
        if name in self.unread:
            raise self.error


@pytest.mark.parametrize("error", [Unavailable("no answer"), UnknownTopic("it was deleted")], ids=["silent", "deleted"])
def test_a_topic_that_cannot_be_read_keeps_no_other_from_being_proven(error: TidelogError) -> None:
    async def scenario() -> None:
        topics = Topics(error)
        led = {partition: SimpleNamespace(log=SimpleNamespace(leader_epoch=EPOCH)) for partition in LED}
        routing = ProvenRouting(cast(TopicCache, topics))
        running = asyncio.ensure_future(routing.run(cast(LeaderPartitions, led)))
        await asyncio.sleep(PAUSE_S / 2)
        assert [partition for partition in LED if routing.is_proven(partition, EPOCH)] == READ

        asked = topics.asked
        await asyncio.sleep(10 * PAUSE_S)
        assert (topics.asked > asked) == isinstance(error, Unavailable), "what is deleted is not asked for again"
        topics.unread.clear()
        routing.wake()
        await asyncio.sleep(2 * PAUSE_S)
        assert all(routing.is_proven(partition, EPOCH) for partition in LED)
        running.cancel()

    run(scenario())
