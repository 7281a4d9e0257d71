"""The Spark sink writes to the present topic, although a broker describes a deleted one of the same name."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from metadata.errors import Rejected
from spark.sink.brokers import ConnectedBrokers
from spark.sink.staged_files import StagedPartition
from tidelog.transport.connection import Connection
from tidelog.transport.routes import PartitionRoute, TopicRoute

FORMER, PRESENT = "a" * 32, "b" * 32


class Answers:
    """A connection that gives these topic ids for the topic, one after the other, and the last one from then on."""

    def __init__(self, *topic_ids: str) -> None:
        self._topic_ids = list(topic_ids)

    async def route(self, topic: str, *, fresh: bool = False, from_store: bool = False) -> TopicRoute:
        topic_id = self._topic_ids.pop(0) if len(self._topic_ids) > 1 else self._topic_ids[0]
        return TopicRoute(topic, topic_id, (PartitionRoute("a:9090", 1),), 1 << 20, 1 << 20, learnt_s=0.0)


def leader_by(*topic_ids: str) -> str:
    brokers = ConnectedBrokers(cast(Connection, Answers(*topic_ids)))
    return asyncio.run(brokers.leader_of(StagedPartition("orders", PRESENT, 0)))


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_broker_that_describes_the_former_topic_does_not_end_the_query(behind: int) -> None:
    assert leader_by(*[FORMER] * behind, PRESENT) == "a:9090"


def test_rows_of_a_topic_that_was_made_again_are_refused() -> None:
    with pytest.raises(Rejected, match="made again"):
        leader_by(FORMER)
