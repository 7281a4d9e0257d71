"""Operators of consumer groups through Kafka's protocol, at real brokers, through real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.broker.broker import Broker
from metadata.groups.consumer_protocol import Subscription, encode_assignment, encode_subscription
from metadata.groups.model import NO_GENERATION
from tests.kit.gateway.broker_cluster import Cluster, broker_cluster
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller
from tests.kit.gateway.small_broker import PATIENCE_S

pytestmark = pytest.mark.slow

TWO_LISTENERS = "direct=127.0.0.1:0,forward=127.0.0.1:0/forward"
ORDERS = encode_subscription(Subscription(("orders",)))


def with_brokers(tmp_path: Path, scenario: Callable[[Cluster], Awaitable[None]], *, count: int = 1) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, count, kafka=TWO_LISTENERS) as cluster:
            await scenario(cluster)

    uvloop.run(run())


async def joined(client: KafkaCaller, group: str, *, protocol_type: str = "consumer", metadata: bytes = ORDERS) -> Any:
    """Makes the client the only member of the group, and waits for its assignment."""
    terms = {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": protocol_type,
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    reported = await client.ask("JoinGroup", 9, **terms)
    assert reported.error_code == 79
    answer = await client.ask("JoinGroup", 9, member_id=reported.member_id, **terms)
    assert (answer.error_code, answer.leader) == (0, reported.member_id)
    await synced(client, group, answer, encode_assignment({"orders": [0]}))
    return answer


async def synced(client: KafkaCaller, group: str, answer: Any, assignment: bytes) -> None:
    found = await client.ask(
        "SyncGroup",
        5,
        group_id=group,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignments=[{"member_id": answer.member_id, "assignment": assignment}],
    )
    assert (found.error_code, found.assignment) == (0, assignment)


async def committed(client: KafkaCaller, group: str, topic: str, *offsets: int) -> None:
    partitions = [{"partition_index": number, "committed_offset": offset} for number, offset in enumerate(offsets)]
    answer = await client.ask(
        "OffsetCommit",
        8,
        group_id=group,
        generation_id_or_member_epoch=NO_GENERATION,
        topics=[{"name": topic, "partitions": partitions}],
    )
    assert [each.error_code for topic in answer.topics for each in topic.partitions] == [0] * len(offsets)


async def offsets_of(client: KafkaCaller, group: str) -> dict[tuple[str, int], int]:
    answer = await client.ask("OffsetFetch", 8, groups=[{"group_id": group, "topics": None}])
    [found] = answer.groups
    return {(topic.name, each.partition_index): each.committed_offset for topic in found.topics for each in topic.partitions}


def coordinator_and_other(cluster: Cluster, group: str) -> tuple[Broker, Broker]:
    at = cluster.brokers[0].groups.coordinator(group).broker_id
    there = next(broker for broker in cluster.brokers if broker.broker_id == at)
    return there, next(broker for broker in cluster.brokers if broker is not there)


# ── DescribeGroups ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stable_group_is_described_with_what_its_members_subscribe_to_and_are_assigned(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 1)
        async with kafka_caller(broker, client_id="till") as member, kafka_caller(broker) as client:
            me = await joined(member, "billing")
            for version in range(7):
                [group] = (await client.ask("DescribeGroups", version, groups=["billing"])).groups
                assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
                    0,
                    "Stable",
                    "consumer",
                    "range",
                )
                [found] = group.members
                assert (found.member_id, found.client_id, found.client_host) == (me.member_id, "till", "127.0.0.1")
                assert (found.member_metadata, found.member_assignment) == (ORDERS, encode_assignment({"orders": [0]}))
                assert group.authorized_operations == -(2**31)
            asked = await client.ask("DescribeGroups", 3, groups=["billing"], include_authorized_operations=True)
            assert asked.groups[0].authorized_operations == 1 << 3 | 1 << 6 | 1 << 8  # READ, DELETE, DESCRIBE

    with_brokers(tmp_path, scenario)


def test_metadata_of_other_protocol_types_is_described_as_it_was_sent(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        async with kafka_caller(broker) as member:
            await joined(member, "workers", protocol_type="connect", metadata=b"\x00\xff\x01")
            [group] = (await member.ask("DescribeGroups", 6, groups=["workers"])).groups
            assert (group.protocol_type, group.members[0].member_metadata) == ("connect", b"\x00\xff\x01")

    with_brokers(tmp_path, scenario)


def test_an_unknown_group_is_dead_and_an_error_from_version_6_on(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with kafka_caller(cluster.brokers[0]) as client:
            [group] = (await client.ask("DescribeGroups", 5, groups=["nothing"])).groups
            assert (group.error_code, group.group_state, list(group.members)) == (0, "Dead", [])
            [group] = (await client.ask("DescribeGroups", 6, groups=["nothing"])).groups
            assert (group.error_code, group.group_state, group.error_message) == (69, "Dead", "there is no group nothing")
            [group] = (await client.ask("DescribeGroups", 6, groups=[""])).groups
            assert group.error_code == 24

    with_brokers(tmp_path, scenario)


def test_another_broker_is_not_the_coordinator_and_a_forward_listener_asks_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers[0].create_topic("orders", 1)
        there, other = coordinator_and_other(cluster, "billing")
        async with (
            kafka_caller(there) as member,
            kafka_caller(other) as direct,
            kafka_caller(other, listener=1) as forward,
        ):
            await committed(member, "billing", "orders", 7)
            for api, fields in (
                ("DescribeGroups", {"groups": ["billing"]}),
                ("DeleteGroups", {"groups_names": ["billing"]}),
                ("OffsetDelete", {"group_id": "billing", "topics": []}),
            ):
                answer = await direct.ask(api, 0, **fields)
                found = answer if api == "OffsetDelete" else (answer.groups if api == "DescribeGroups" else answer.results)[0]
                assert found.error_code == 16, api
            [group] = (await forward.ask("DescribeGroups", 6, groups=["billing"])).groups
            assert (group.error_code, group.group_state) == (0, "Empty")
            # Clients ask each broker for its groups; behind a forward listener they may reach one broker only.
            assert [each.group_id for each in (await member.ask("ListGroups", 5)).groups] == ["billing"]
            assert list((await direct.ask("ListGroups", 5)).groups) == []
            assert [each.group_id for each in (await forward.ask("ListGroups", 5)).groups] == ["billing"]
            deleted = await forward.ask(
                "OffsetDelete", 0, group_id="billing", topics=[{"name": "orders", "partitions": [{"partition_index": 0}]}]
            )
            assert (deleted.error_code, deleted.topics[0].partitions[0].error_code) == (0, 0)
            assert await offsets_of(member, "billing") == {}
            assert (await forward.ask("DeleteGroups", 2, groups_names=["billing"])).results[0].error_code == 0
            assert list((await forward.ask("ListGroups", 5)).groups) == []

    with_brokers(tmp_path, scenario, count=2)


# ── ListGroups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_groups_are_listed_by_states_and_types(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 1)
        async with kafka_caller(broker) as member, kafka_caller(broker) as client:
            await joined(member, "billing")
            await committed(client, "by-hand", "orders", 1)

            async def listed(version: int, **filters: Any) -> list[tuple[str, str, str, str]]:
                answer = await client.ask("ListGroups", version, **filters)
                assert answer.error_code == 0
                return sorted((each.group_id, each.protocol_type, each.group_state, each.group_type) for each in answer.groups)

            billing, by_hand = ("billing", "consumer", "Stable", "classic"), ("by-hand", "", "Empty", "classic")
            assert await listed(5) == [billing, by_hand]
            assert await listed(5, states_filter=["stable"], types_filter=["Classic"]) == [billing]
            assert await listed(4, states_filter=["Empty"]) == [(*by_hand[:3], "")]
            assert await listed(5, states_filter=["Dead"]) == []
            assert await listed(5, types_filter=["consumer", "share"]) == []
            for version in range(4):
                assert [each[:2] for each in await listed(version)] == [billing[:2], by_hand[:2]]

    with_brokers(tmp_path, scenario)


# ── DeleteGroups ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_group_is_deleted_or_says_why_not(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 1)
        async with kafka_caller(broker) as member, kafka_caller(broker) as client:
            await joined(member, "busy")
            for version in range(3):
                await committed(client, "done", "orders", 5)
                answer = await client.ask("DeleteGroups", version, groups_names=["busy", "done", "nothing", "", "done"])
                assert {each.group_id: each.error_code for each in answer.results} == {"busy": 68, "done": 0, "nothing": 69, "": 24}
                assert await offsets_of(client, "done") == {}

    with_brokers(tmp_path, scenario)


# ── OffsetDelete ────────────────────────────────────────────────────────────────────────────────────────────────────────


def asked(topic: str, *partitions: int) -> dict[str, Any]:
    return {"name": topic, "partitions": [{"partition_index": number} for number in partitions]}


def codes(answer: Any) -> dict[tuple[str, int], int]:
    return {(topic.name, each.partition_index): each.error_code for topic in answer.topics for each in topic.partitions}


def test_offsets_of_topics_that_a_member_subscribes_to_are_not_deleted(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 2)
        await broker.create_topic("returns", 2)
        async with kafka_caller(broker) as member, kafka_caller(broker) as client:
            await committed(client, "billing", "orders", 1, 2)
            await committed(client, "billing", "returns", 3, 4)
            await joined(member, "billing")
            topics = [asked("orders", 0, 1), asked("returns", 1, 9), asked("nothing", 0)]
            answer = await client.ask("OffsetDelete", 0, group_id="billing", topics=topics)
            assert answer.error_code == 0
            assert codes(answer) == {("orders", 0): 86, ("orders", 1): 86, ("returns", 1): 0, ("returns", 9): 3, ("nothing", 0): 3}
            assert await offsets_of(client, "billing") == {("orders", 0): 1, ("orders", 1): 2, ("returns", 0): 3}

    with_brokers(tmp_path, scenario)


def test_offsets_of_a_group_without_members_are_deleted_and_again_without_an_error(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 2)
        async with kafka_caller(broker) as client:
            await committed(client, "billing", "orders", 1, 2)
            for _ in range(2):
                answer = await client.ask("OffsetDelete", 0, group_id="billing", topics=[asked("orders", 1)])
                assert (answer.error_code, codes(answer)) == (0, {("orders", 1): 0})
                assert await offsets_of(client, "billing") == {("orders", 0): 1}

    with_brokers(tmp_path, scenario)


def test_an_error_of_the_group_stands_at_the_top(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 1)
        async with kafka_caller(broker) as member, kafka_caller(broker) as client:
            answer = await client.ask("OffsetDelete", 0, group_id="nothing", topics=[asked("orders", 0)])
            assert (answer.error_code, list(answer.topics)) == (69, [])
            await joined(member, "workers", protocol_type="connect", metadata=b"of its own")
            answer = await client.ask("OffsetDelete", 0, group_id="workers", topics=[asked("orders", 0)])
            assert (answer.error_code, list(answer.topics)) == (68, [])

    with_brokers(tmp_path, scenario)
