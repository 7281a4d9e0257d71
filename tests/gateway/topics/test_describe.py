"""Descriptions of topics from the watches: pages, and topics that only the metadata store knows yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import BrokerApi
from gateway.topics.describe import PartitionDescription, described_topic, partition_leaders
from gateway.topics.names import LOOKUP_S
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import TidelogError, Unavailable, UnknownTopic
from metadata.model import SessionId, TopicId, TopicPartition
from metadata.topics.registry import page_of
from metadata.topics.topic import Topic
from tests.simulation.virtual_loop import run, virtual_loop


def topic_named(name: str) -> Topic:
    return Topic(id=TopicId("0" * 32), name=name, partition_count=1, settings={}, created_at_ms=0)


def broker_that_knows(*names: str, made_elsewhere: Topic | TidelogError | None) -> BrokerApi:
    """`made_elsewhere`: what the metadata store answers; None: nothing, ever."""

    def known(name: str) -> Topic:
        if name not in names:
            raise UnknownTopic(f"there is no topic {name}")
        return topic_named(name)

    async def stored(_: str) -> Topic:
        if made_elsewhere is None:
            await asyncio.Event().wait()
        if isinstance(made_elsewhere, TidelogError):
            raise made_elsewhere
        assert made_elsewhere is not None
        return made_elsewhere

    return cast(BrokerApi, SimpleNamespace(topic_cache=SimpleNamespace(get=known), topics=SimpleNamespace(get=stored)))


def test_a_topic_that_the_watches_hold_is_described_without_a_request() -> None:
    async def main() -> None:
        assert (await described_topic(broker_that_knows("orders", made_elsewhere=None), "orders")).name == "orders"

    run(main(), seed=1)


def test_leaders_are_described_without_a_request_to_them() -> None:
    leader = BrokerRegistration(broker_id="b", session=SessionId(2), http_address="b:8080", grpc_address="b:9090")

    def leads(partition: TopicPartition) -> BrokerRegistration | None:
        return leader if partition.partition else None

    broker = cast(BrokerApi, SimpleNamespace(leader=leads, leader_epoch=lambda _: 7))
    topic = Topic(id=TopicId("0" * 32), name="orders", partition_count=2, settings={}, created_at_ms=0)
    assert partition_leaders(broker, topic) == [
        PartitionDescription(0, -1, -1, -1, "", "", "", None),
        PartitionDescription(1, -1, -1, 7, "b", "b:8080", "b:9090", None),
    ]


def test_a_topic_that_was_made_at_another_broker_this_moment_is_looked_up() -> None:
    async def main() -> None:
        broker = broker_that_knows(made_elsewhere=topic_named("new"))
        assert (await described_topic(broker, "new")).name == "new"
        with pytest.raises(UnknownTopic):
            await described_topic(broker_that_knows(made_elsewhere=UnknownTopic("there is no topic new")), "new")

    run(main(), seed=1)


@pytest.mark.parametrize("away", [None, Unavailable("no answer")])
def test_an_unknown_topic_is_unavailable_and_not_missing_while_the_store_is_away(away: TidelogError | None) -> None:
    async def main() -> None:
        with pytest.raises(Unavailable, match="the metadata store, which does not answer") as reported:
            await described_topic(broker_that_knows(made_elsewhere=away), "new")
        assert reported.value.retryable
        assert virtual_loop().time() <= LOOKUP_S + 0.1

    run(main(), seed=1)


@given(st.sets(st.text("abc.-_", min_size=3, max_size=6)), st.integers(1, 5))
def test_pages_of_what_is_known_hold_every_topic_once_in_order(names: set[str], page_size: int) -> None:
    topics = [topic_named(name) for name in names]
    token, listed = "", list[str]()
    while True:
        page = page_of(topics, page_size=page_size, page_token=token)
        assert len(page.topics) <= page_size
        listed += [topic.name for topic in page.topics]
        token = page.next_page_token
        if not token:
            break
    assert listed == sorted(names)
