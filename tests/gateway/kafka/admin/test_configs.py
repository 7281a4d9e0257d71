"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, as clients of each version send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.protocol.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ListConfigResourcesRequest,
)
from gateway.settings import GatewaySettings
from metadata.topics.settings import SETTINGS
from tests.kit.gateway.kafka_admin import KafkaAdmin, address, with_admin
from tests.kit.gateway.kafka_client import kafka_client

pytestmark = pytest.mark.slow
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def resource(kind: int, name: str, names: Sequence[str] | None = None) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=names)


async def describe(admin: KafkaAdmin, *resources: DescribeConfigsResource, version: int = 4, details: bool = False) -> list[Any]:
    request = DescribeConfigsRequest(resources=resources, include_synonyms=details, include_documentation=details)
    answer = await admin.ask("DescribeConfigs", version, request)
    return list(answer.results)


async def own_settings(admin: KafkaAdmin, name: str = "orders") -> dict[str, str]:
    return (await admin.broker.topics.get(name)).settings


async def alter(
    admin: KafkaAdmin, configs: dict[str, str | None], *, kind: int = TOPIC, name: str = "orders", validate_only: bool = False
) -> tuple[int, str | None]:
    changed = [AlterConfigsRequestAlterableConfig(name=each, value=value) for each, value in configs.items()]
    asked = AlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=changed)
    answer = await admin.ask("AlterConfigs", 2, AlterConfigsRequest(resources=[asked], validate_only=validate_only))
    [response] = answer.responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response.error_code, response.error_message


async def change(
    admin: KafkaAdmin,
    *changes: tuple[str, int, str | None],
    kind: int = TOPIC,
    name: str = "orders",
    version: int = 1,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    configs = [
        IncrementalAlterConfigsRequestAlterableConfig(name=setting, config_operation=operation, value=value)
        for setting, operation, value in changes
    ]
    asked = IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=validate_only)
    [response] = (await admin.ask("IncrementalAlterConfigs", version, request)).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response.error_code, response.error_message


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_is_described_in_each_version(tmp_path: Path, version: int) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1, {"cleanup.policy": "compact"})
        [found] = await describe(admin, resource(TOPIC, "orders"), version=version)
        assert (found.error_code, found.error_message) == (0, None)
        assert (found.resource_type, found.resource_name) == (TOPIC, "orders")
        configs = {each.name: each for each in found.configs}
        assert configs.keys() == SETTINGS.keys()
        assert all(not each.synonyms and not each.read_only and not each.is_sensitive for each in found.configs)
        assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("compact", 1)
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("604800000", 5)
        [found] = await describe(admin, resource(TOPIC, "orders"), version=version, details=True)
        policy = next(each for each in found.configs if each.name == "cleanup.policy")
        assert [(each.name, each.value, each.source) for each in policy.synonyms] == [
            ("cleanup.policy", "compact", 1),
            ("log.cleanup.policy", "delete", 5),
        ]
        if version >= 3:
            types = {each.name: each.config_type for each in found.configs}
            names = ("preallocate", "compression.type", "segment.bytes", "retention.ms", "min.cleanable.dirty.ratio")
            assert [types[name] for name in names] == [1, 2, 3, 5, 6]
            assert types["cleanup.policy"] == 7
            assert all(each.documentation for each in found.configs)

    with_admin(tmp_path, scenario)


def test_resources_with_configs_are_listed_by_type(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        for name in ("payments", "orders"):
            await admin.broker.create_topic(name, 1)

        async def listed(*types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
            answer = await admin.ask("ListConfigResources", version, ListConfigResourcesRequest(resource_types=types))
            return answer.error_code, [(each.resource_type, each.resource_name) for each in answer.config_resources]

        number = str(next(iter(admin.broker.registrations())).node_id)
        topics = [(TOPIC, "orders"), (TOPIC, "payments")]
        assert await listed() == (0, [*topics, (BROKER, number)])
        assert await listed(BROKER, TOPIC, TOPIC) == (0, [*topics, (BROKER, number)])
        assert await listed(BROKER) == (0, [(BROKER, number)])
        assert await listed(BROKER_LOGGER, CLIENT_METRICS, GROUP) == (0, [])
        assert await listed(version=0) == (0, []), "it lists client metrics alone"
        assert await listed(TOPIC, 3) == (35, [])

    with_admin(tmp_path, scenario)


def test_only_the_configs_that_are_named_are_described(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1)
        few, everything, broker = await describe(
            admin,
            resource(TOPIC, "orders", ["retention.ms", "nothing"]),
            resource(TOPIC, "orders", []),
            resource(BROKER, node_id(admin), ["num.partitions"]),
        )
        assert [each.name for each in few.configs] == ["retention.ms"]
        assert len(everything.configs) == len(SETTINGS)
        assert [(each.name, each.value) for each in broker.configs] == [("num.partitions", "1")]

    with_admin(tmp_path, scenario)


def node_id(admin: KafkaAdmin, number: int = 0) -> str:
    registration = admin.broker.registration(admin.cluster.brokers[number].broker_id)
    assert registration is not None
    return str(registration.node_id)


def test_a_broker_describes_itself_and_what_is_no_resource_is_refused(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        own, every, other, unknown, logger, missing, bad = await describe(
            admin,
            resource(BROKER, node_id(admin)),
            resource(BROKER, ""),
            resource(BROKER, node_id(admin, 1)),
            resource(BROKER, "x"),
            resource(BROKER_LOGGER, node_id(admin)),
            resource(TOPIC, "missing"),
            resource(TOPIC, "bad name"),
        )
        configs = {each.name: each.value for each in own.configs}
        assert configs["node.id"] == node_id(admin)
        assert address(admin.broker, "forward") in configs["advertised.listeners"]
        assert all(each.read_only for each in own.configs)
        assert (every.error_code, every.configs) == (0, [])
        assert [each.error_code for each in (other, unknown, logger, missing, bad)] == [42, 42, 42, 3, 17]
        assert all(each.error_message for each in (other, unknown, logger, missing, bad))
        async with kafka_client(address(admin.broker, "forward")) as client:
            [found] = await describe(KafkaAdmin(admin.cluster, client), resource(BROKER, node_id(admin, 1)))
        assert {each.name: each.value for each in found.configs}["node.id"] == node_id(admin, 1)

    with_admin(tmp_path, scenario, count=2)


def test_altering_replaces_all_configs(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1, {"cleanup.policy": "compact", "retention.ms": "1"})
        assert await alter(admin, {"retention.ms": "2"}, validate_only=True) == (0, None)
        assert await own_settings(admin) == {"cleanup.policy": "compact", "retention.ms": "1"}
        assert await alter(admin, {"retention.ms": "2", "segment.bytes": "1048576"}) == (0, None)
        assert await own_settings(admin) == {"retention.ms": "2", "segment.bytes": "1048576"}
        assert (await alter(admin, {"retention.ms": "soon"}))[0] == 40
        assert (await alter(admin, {"retention.hours": "1"}))[0] == 40
        assert (await alter(admin, {"retention.ms": None}))[0] == 42
        assert (await alter(admin, {}, name="missing"))[0] == 3
        assert await own_settings(admin) == {"retention.ms": "2", "segment.bytes": "1048576"}
        assert await alter(admin, {}) == (0, None)
        assert await own_settings(admin) == {}

    with_admin(tmp_path, scenario)


@pytest.mark.parametrize("version", range(3))
def test_all_that_was_described_can_be_written_back_in_each_version(tmp_path: Path, version: int) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1, {"cleanup.policy": "compact"})
        [found] = await describe(admin, resource(TOPIC, "orders"))
        configs = [AlterConfigsRequestAlterableConfig(name=each.name, value=each.value) for each in found.configs]
        asked = AlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=configs)
        answer = await admin.ask("AlterConfigs", version, AlterConfigsRequest(resources=[asked]))
        assert [each.error_code for each in answer.responses] == [0]
        assert (await own_settings(admin))["cleanup.policy"] == "compact"

    low = replace(GatewaySettings(), message_bytes_max=65_536)
    with_admin(tmp_path, scenario, gateway=low)


@pytest.mark.parametrize("version", range(2))
def test_configs_are_set_deleted_and_lists_changed_one_by_one(tmp_path: Path, version: int) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1, {"retention.ms": "1"})

        async def done(*changes: tuple[str, int, str | None], validate_only: bool = False) -> dict[str, str]:
            assert await change(admin, *changes, version=version, validate_only=validate_only) == (0, None)
            return await own_settings(admin)

        assert await done(("segment.ms", SET, "5"), validate_only=True) == {"retention.ms": "1"}
        assert await done(("segment.ms", SET, "5")) == {"retention.ms": "1", "segment.ms": "5"}
        assert await done(("retention.ms", DELETE, None), ("segment.ms", DELETE, "")) == {}
        assert await done(("cleanup.policy", APPEND, "compact")) == {"cleanup.policy": "compact,delete"}
        assert await done(("cleanup.policy", APPEND, "delete,compact")) == {"cleanup.policy": "compact,delete"}
        assert await done(("cleanup.policy", SUBTRACT, "delete")) == {"cleanup.policy": "compact"}
        assert await done(("cleanup.policy", DELETE, None)) == {}
        throttled = "leader.replication.throttled.replicas"
        assert await done((throttled, APPEND, "0:1,1:2")) == {throttled: "0:1,1:2"}
        assert await done((throttled, SUBTRACT, "0:1,1:2")) == {}

    with_admin(tmp_path, scenario)


def test_a_config_that_cannot_be_changed_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1)
        good = ("segment.ms", SET, "5")
        assert (await change(admin, good, ("retention.ms", APPEND, "1")))[0] == 40
        assert (await change(admin, good, ("cleanup.policy", SUBTRACT, "delete")))[0] == 40
        assert (await change(admin, good, ("cleanup.policy", APPEND, "shred")))[0] == 40
        assert (await change(admin, good, ("retention.ms", SET, "soon")))[0] == 40
        assert (await change(admin, good, ("retention.hours", APPEND, "1")))[0] == 40
        assert (await change(admin, good, ("retention.ms", SET, None)))[0] == 42
        assert (await change(admin, good, ("retention.ms", 9, "1")))[0] == 42
        assert (await change(admin, good, good))[0] == 42
        assert (await change(admin, good, name="missing"))[0] == 3
        assert (await change(admin, good, kind=BROKER_LOGGER, name="0"))[0] == 42
        code, text = await change(admin, ("num.partitions", SET, "5"), kind=BROKER, name=node_id(admin))
        assert code == 42
        assert text is not None
        assert "can't be altered" in text
        assert (await alter(admin, {"num.partitions": "5"}, kind=BROKER, name=node_id(admin)))[0] == 42
        assert await own_settings(admin) == {}

    with_admin(tmp_path, scenario)


def test_a_resource_that_is_named_twice_is_refused_once(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1)
        await admin.broker.create_topic("others", 1)
        resources = [
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=TOPIC,
                resource_name=name,
                configs=[IncrementalAlterConfigsRequestAlterableConfig(name="segment.ms", value=value)],
            )
            for name, value in (("orders", "1"), ("orders", "2"), ("others", "3"))
        ]
        answer = await admin.ask("IncrementalAlterConfigs", 1, IncrementalAlterConfigsRequest(resources=resources))
        assert {each.resource_name: each.error_code for each in answer.responses} == {"orders": 42, "others": 0}
        assert await own_settings(admin) == {}
        assert await own_settings(admin, "others") == {"segment.ms": "3"}

    with_admin(tmp_path, scenario)
