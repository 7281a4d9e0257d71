"""CreateTopics, DeleteTopics and CreatePartitions, as clients of each version send them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.protocol.admin_messages import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from gateway.settings import GatewaySettings
from metadata.errors import UnknownTopic
from metadata.topics.settings import SETTINGS
from tests.kit.gateway.kafka_admin import KafkaAdmin, with_admin

pytestmark = pytest.mark.slow
UNKNOWN_ID = b"\x07" * 16
# How often a client waits for a topic, each time twice as long: 20 ms to 5 s.
WAITS = 9


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, **more)


def assigned(name: str, *replicas: list[int], first: int = 0, **more: Any) -> CreatableTopic:
    assignments = [CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in enumerate(replicas, first)]
    return topic(name, -1, -1, assignments=assignments, **more)


def configured(name: str, setting: str, value: str | None) -> CreatableTopic:
    return topic(name, configs=[CreatableTopicConfig(name=setting, value=value)])


async def create(admin: KafkaAdmin, *topics: CreatableTopic, version: int = 7, validate_only: bool = False) -> Any:
    answer = await admin.ask("CreateTopics", version, CreateTopicsRequest(topics=topics, validate_only=validate_only))
    return {each.name: each for each in answer.topics}


async def codes(admin: KafkaAdmin, *topics: CreatableTopic) -> dict[str, int]:
    return {name: each.error_code for name, each in (await create(admin, *topics)).items()}


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_each_version_and_described_in_the_newer_ones(tmp_path: Path, version: int) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        new = topic("orders", 3, 3, configs=[CreatableTopicConfig(name="cleanup.policy", value="compact")])
        created = (await create(admin, new, version=version))["orders"]
        assert (created.error_code, created.error_message) == (0, None)
        held = await admin.broker.topics.get("orders")
        assert (held.partition_count, held.replication_factor, held.settings) == (3, 3, {"cleanup.policy": "compact"})
        if version >= 5:
            assert (created.num_partitions, created.replication_factor) == (3, 3)
            configs = {each.name: (each.value, each.config_source) for each in created.configs}
            assert configs.keys() == SETTINGS.keys()
            assert configs["cleanup.policy"] == ("compact", 1)
            assert configs["retention.ms"] == ("604800000", 5)
        if version >= 7:
            assert created.topic_id == bytes.fromhex(held.id)

    with_admin(tmp_path, scenario)


def test_terms_that_a_client_leaves_open_have_defaults(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        created = (await create(admin, topic("orders", -1, -1)))["orders"]
        assert (created.num_partitions, created.replication_factor) == (4, 1)

    with_admin(tmp_path, scenario, gateway=replace(GatewaySettings(), kafka_auto_create_partitions=4))


def test_replicas_that_are_assigned_by_hand_count_the_partitions(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        created = (await create(admin, assigned("orders", [5, 6, 7], [6, 7, 5])))["orders"]
        assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 2, 3)
        both = assigned("both", [0])
        both.num_partitions = 1
        factor = assigned("factor", [0])
        factor.replication_factor = 1
        wrong = [
            assigned("gap", [0], first=1),
            assigned("unequal", [0], [0, 1]),
            assigned("none", []),
            assigned("twice", [0, 0]),
        ]
        assert await codes(admin, both, factor, *wrong) == {
            "both": 42,
            "factor": 42,
            "gap": 39,
            "unequal": 39,
            "none": 39,
            "twice": 39,
        }

    with_admin(tmp_path, scenario)


def test_each_topic_that_is_refused_has_its_own_error(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        found = await create(
            admin,
            topic("orders"),
            topic("no name"),
            topic("none", 0),
            topic("negative", -2),
            topic("factor", 1, 0),
            topic("lower", 1, -2),
            configured("setting", "retention.ms", "soon"),
            configured("unknown", "retention.hours", "1"),
            configured("null", "retention.ms", None),
            topic("twice"),
            topic("twice"),
        )
        assert {name: each.error_code for name, each in found.items()} == {
            "orders": 0,
            "no name": 17,
            "none": 37,
            "negative": 37,
            "factor": 38,
            "lower": 38,
            "setting": 40,
            "unknown": 40,
            "null": 40,
            "twice": 42,
        }
        assert "retention.ms='soon'" in found["setting"].error_message
        assert found["setting"].configs == []
        assert {each.name for each in admin.broker.topic_cache.topics()} == {"orders"}
        again = (await create(admin, topic("orders")))["orders"]
        assert again.error_code == 36
        assert "already exists" in again.error_message

    with_admin(tmp_path, scenario)


def test_a_topic_that_is_only_validated_is_not_created(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        found = await create(admin, topic("orders", 3, 2), topic("bad name"), validate_only=True)
        assert (found["orders"].error_code, found["orders"].num_partitions, found["orders"].topic_id) == (0, 3, bytes(16))
        assert found["bad name"].error_code == 17
        assert not admin.broker.topic_cache.topics()

    with_admin(tmp_path, scenario)


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_by_their_names_in_each_version(tmp_path: Path, version: int) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1)
        names = ["orders", "missing", "bad name"]
        request = DeleteTopicsRequest(topic_names=names, topics=[DeleteTopicState(name=name) for name in names])
        answer = await admin.ask("DeleteTopics", version, request)
        assert {each.name: each.error_code for each in answer.responses} == {"orders": 0, "missing": 3, "bad name": 17}
        with pytest.raises(UnknownTopic):
            await admin.broker.topics.get("orders")

    with_admin(tmp_path, scenario)


def test_a_topic_is_deleted_by_its_id_and_no_later_one_of_its_name(tmp_path: Path) -> None:
    async def delete(admin: KafkaAdmin, *topics: DeleteTopicState) -> list[tuple[str | None, int]]:
        answer = await admin.ask("DeleteTopics", 6, DeleteTopicsRequest(topics=topics))
        return [(each.name, each.error_code) for each in answer.responses]

    async def scenario(admin: KafkaAdmin) -> None:
        old = await admin.broker.create_topic("orders", 1)
        assert await delete(admin, DeleteTopicState(topic_id=bytes.fromhex(old.id))) == [("orders", 0)]
        new = await admin.broker.create_topic("orders", 1)
        assert await delete(admin, DeleteTopicState(topic_id=bytes.fromhex(old.id))) == [(None, 100)]
        with pytest.raises(UnknownTopic, match="deleted and made again"):
            await admin.broker.delete_topic("orders", topic_id=old.id)
        assert await delete(admin, DeleteTopicState(topic_id=UNKNOWN_ID), DeleteTopicState()) == [(None, 100), (None, 42)]
        both = DeleteTopicState(name="orders", topic_id=bytes.fromhex(new.id))
        assert await delete(admin, both, DeleteTopicState(name="orders"), DeleteTopicState(name="orders")) == [
            ("orders", 42),
            ("orders", 42),
        ]
        assert (await admin.broker.topics.get("orders")).id == new.id

    with_admin(tmp_path, scenario)


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows_in_each_version_and_never_shrinks(tmp_path: Path, version: int) -> None:
    async def grow(admin: KafkaAdmin, *topics: CreatePartitionsTopic, validate_only: bool = False) -> dict[str, int]:
        request = CreatePartitionsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)
        answer = await admin.ask("CreatePartitions", version, request)
        assert all(bool(each.error_code) is bool(each.error_message) for each in answer.results)
        return {each.name: each.error_code for each in answer.results}

    def to(name: str, count: int, assignments: list[list[int]] | None = None) -> CreatePartitionsTopic:
        replicas = None if assignments is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
        return CreatePartitionsTopic(name=name, count=count, assignments=replicas)

    async def scenario(admin: KafkaAdmin) -> None:
        for name in ("a", "b", "c", "d"):
            await admin.broker.create_topic(name, 2)
        assert await grow(admin, to("a", 5), validate_only=True) == {"a": 0}
        assert (await admin.broker.topics.get("a")).partition_count == 2
        assert await grow(admin, to("a", 5), to("b", 2), to("c", 1), to("missing", 3), to("d", 3), to("d", 4)) == {
            "a": 0,
            "b": 37,
            "c": 37,
            "missing": 3,
            "d": 42,
        }
        assert await grow(admin, to("b", 4, [[0]]), to("c", 4, [[0], [1]]), to("d", 3, [[]])) == {"b": 39, "c": 0, "d": 39}
        counts = {each.name: each.partition_count for each in admin.broker.topic_cache.topics()}
        assert counts == {"a": 5, "b": 2, "c": 4, "d": 2}

    with_admin(tmp_path, scenario)


def test_a_client_that_waits_for_less_than_a_change_takes_is_answered_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        async def never_served(*_: object, **__: object) -> bool:
            await admin.broker.stopping.wait()
            return False

        monkeypatch.setattr(admin.broker._leadership, "led", never_served)
        # A slow disk may use up a short wait before the topic is registered: the change then never happened.
        for attempt in range(WAITS):
            name = f"orders-{attempt}"
            answer = await admin.ask("CreateTopics", 7, CreateTopicsRequest(topics=[topic(name)], timeout_ms=20 << attempt))
            assert [each.error_code for each in answer.topics] == [7]
            if name in {listed.name for listed in (await admin.broker.topics.list()).topics}:
                return
        pytest.fail("no wait was long enough to register a topic")

    with_admin(tmp_path, scenario)
