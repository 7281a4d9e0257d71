"""Descriptions of many topics by a broker whose metadata store is silent: on a virtual clock."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.kafka.admin.configs import KafkaConfigs
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode
from gateway.kafka.metadata import KafkaMetadata
from gateway.kafka.protocol.admin_messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopicRequest,
    DescribeTopicPartitionsResponse,
    encode_describe_configs_response,
)
from gateway.records.response_budget import ResponseBudget
from gateway.settings import GatewaySettings
from gateway.topics.names import LOOKUP_S
from metadata.model import Revision
from metadata.topics.topic import Topic
from tests.gateway.http.groups.test_topics_heard_of import LAG_S, World, simulated
from tests.kit.gateway.kafka_client import KEYS
from tests.kit.gateway.kafka_codec import INSTALLED
from tests.kit.gateway.reported_log import topic
from tests.simulation.virtual_loop import virtual_loop

TOPIC, BROKER = 2, 4
VERSION = 4
MISSING = [f"missing-{number}" for number in range(300)]


async def silence(name: str) -> Topic:
    await asyncio.Event().wait()
    raise AssertionError(name)


def silent_store(*here: Topic) -> World:
    world = World(None, None)
    world.view.topics = {each.name: each for each in here}
    world.broker.topics = SimpleNamespace(get=silence)  # type: ignore[misc,assignment]  # a double
    world.broker.settings = GatewaySettings()  # type: ignore[misc]
    return world


def call(version: int) -> KafkaCall:
    connection: Any = SimpleNamespace(listener=None)
    return KafkaCall(connection, version, "tests", None)


async def described(world: World, *names: str, partitions_max: int = 2_000) -> DescribeTopicPartitionsResponse:
    leaders: Any = SimpleNamespace(nodes=lambda listener: [], leader=lambda partition, listener: None)
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names], response_partition_limit=partitions_max
    )
    return await KafkaMetadata(world.broker, leaders).describe_topic_partitions(call(0), request)


async def configs(world: World, *names: str, kind: int = TOPIC) -> list[Any]:
    resources = [DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names]
    room = ResponseBudget(GatewaySettings(), InterruptibleWaits())
    answer = await KafkaConfigs(world.broker, (), room).describe(call(VERSION), DescribeConfigsRequest(resources=resources))
    frame = b"".join(encode_describe_configs_response(answer, VERSION, 7))
    return list(cast(Any, INSTALLED.decode_response(KEYS["DescribeConfigs"], frame[4:], VERSION)[1]).results)


def test_partitions_of_topics_that_the_view_lacks_are_described_after_one_look_up_of_all() -> None:
    async def scenario() -> None:
        answer = await described(silent_store(topic()), "orders", *MISSING)
        assert virtual_loop().time() <= 2 * LOOKUP_S + 0.1
        assert [each.name for each in answer.topics] == [*sorted(MISSING), "orders"]
        assert {each.error_code for each in answer.topics[:-1]}.isdisjoint({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        assert len(answer.topics[-1].partitions) == 2

    simulated(scenario)


def test_topics_behind_the_end_of_a_page_are_not_looked_up_for_it() -> None:
    async def scenario() -> None:
        here = [topic(f"a-{number}") for number in range(4)]
        world = silent_store(*here)
        answer = await described(world, *(each.name for each in here), *MISSING, partitions_max=4)
        assert [each.name for each in answer.topics] == ["a-0", "a-1"]
        assert answer.next_cursor is not None
        assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("a-2", 0)
        assert virtual_loop().time() == 0

    simulated(scenario)


def test_configs_of_many_topics_wait_once_for_the_metadata_store() -> None:
    async def scenario() -> None:
        here = [topic(f"topic-{number}") for number in range(300)]
        found = await configs(silent_store(*here), *(each.name for each in here), *MISSING)
        assert virtual_loop().time() <= LOOKUP_S + 0.1
        assert {each.error_code for each in found[:300]} == {0}
        codes = {each.error_code for each in found[300:]}
        assert codes.isdisjoint({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}), "they may exist"

    simulated(scenario)


def test_configs_are_described_with_changes_made_through_another_broker() -> None:
    async def scenario() -> None:
        world = silent_store(topic())
        world.view.hears(LAG_S, msgspec.structs.replace(topic(), settings={"retention.ms": "5000"}, revision=Revision(1)))
        orders, missing = await configs(world, "orders", "missing")
        assert {each.name: each.value for each in orders.configs}["retention.ms"] == "5000"
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert LAG_S <= virtual_loop().time() < LOOKUP_S

    simulated(scenario)


def test_configs_of_brokers_do_not_wait_for_the_metadata_store() -> None:
    async def scenario() -> None:
        await configs(silent_store(), "", kind=BROKER)
        assert virtual_loop().time() == 0

    simulated(scenario)
